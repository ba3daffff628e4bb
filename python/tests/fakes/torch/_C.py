"""What PyTorch's own module has, over core.cpp: all calls are made by C++, which catches what is thrown."""

import ctypes
import os

_core = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "lib", "libtorch_python.so"))
_core.fake_allocate.restype = ctypes.c_int
_core.fake_allocate.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_char_p,
]
_core.fake_free.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
_core.fake_record_stream.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
_core.fake_reset.argtypes = [ctypes.c_void_p]
_core.fake_begin.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_void_p]
_core.fake_end.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_ulonglong, ctypes.c_ulonglong]

current = None
initialized = False


class OutOfMemoryError(RuntimeError):
    """torch.OutOfMemoryError."""


class Allocator:
    """An allocator of functions, by their addresses."""

    def __init__(self, allocate, free):
        self.functions = {"allocate": allocate, "free": free}

    def __getattr__(self, name):
        setters = (
            "set_init_fn set_reset_fn set_memory_fraction_fn set_base_alloc_fn set_record_stream_fn "
            "set_begin_allocate_to_pool set_end_allocate_to_pool_fn set_release_pool"
        ).split()
        if name not in setters:
            raise AttributeError(name)
        return lambda address: self.functions.__setitem__(name, address)


def _cuda_customAllocator(allocate, free):
    return Allocator(allocate, free)


def allocate(size, device, stream):
    global initialized
    initialized = True
    block, said = ctypes.c_void_p(), ctypes.create_string_buffer(4096)
    way = current.functions["allocate"]
    status = _core.fake_allocate(way, size, device, stream, ctypes.byref(block), said)
    if status == 1:
        raise OutOfMemoryError(said.value.decode())
    if status == 2:
        raise RuntimeError(said.value.decode())
    return block.value


def free(block, size, device, stream):
    _core.fake_free(current.functions["free"], block, size, device, stream)


def call(setter, *words):
    """Calls a further function of the allocator."""
    function = current.functions[setter]
    {
        "set_record_stream_fn": _core.fake_record_stream,
        "set_reset_fn": _core.fake_reset,
        "set_begin_allocate_to_pool": _core.fake_begin,
        "set_end_allocate_to_pool_fn": _core.fake_end,
        "set_release_pool": _core.fake_end,
    }[setter](function, *words)
