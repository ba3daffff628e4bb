"""cupy.cuda: the current stream, and allocators made of functions."""

from . import memory, runtime  # noqa: F401

_allocator = memory.alloc
_stream = None


class Stream:
    """A stream, by its number; current while it is entered."""

    destroyed = []

    def __init__(self, ptr=0):
        self.ptr, self._before = ptr, None

    def __enter__(self):
        global _stream
        self._before, _stream = _stream, self
        return self

    def __exit__(self, *_words):
        global _stream
        _stream = self._before

    def __del__(self):
        if self.ptr:
            Stream.destroyed.append(self.ptr)


_default = Stream()


def get_current_stream():
    return _stream or _default


def set_allocator(allocator):
    global _allocator
    _allocator = allocator


def get_allocator():
    return _allocator


class PythonFunctionAllocator:
    """An allocator of two functions: (size, device) -> address, and (address, device)."""

    def __init__(self, malloc_func, free_func):
        self._malloc, self._free = malloc_func, free_func

    def malloc(self, size):
        return memory.Memory(size, self._malloc, self._free)


def alloc(size):
    return _allocator(size)
