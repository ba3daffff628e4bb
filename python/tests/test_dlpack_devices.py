"""DLPack tensors of devices that numpy cannot read: their fields, as another library would find them."""

from __future__ import annotations

import ctypes

import pytest

import forebay

#: Device types of dlpack.h.
CPU, CUDA, CUDA_HOST, OPENCL, METAL, ROCM, ROCM_HOST = 1, 2, 3, 4, 8, 10, 11


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def _tensor(capsule) -> _Tensor:
    """The tensor in a capsule, which must outlive it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _Tensor.from_address(get(capsule, b"dltensor"))


def _read_buffer(tensor: _Tensor, size: int) -> bytes:
    """The bytes of an OpenCL tensor, read through OpenCL alone: its buffer object says whose context it is of."""
    opencl = ctypes.CDLL("libOpenCL.so.1")
    handle, pointer = ctypes.c_void_p, ctypes.POINTER

    def call(name, result, *arguments):
        function = getattr(opencl, name)
        function.restype, function.argtypes = result, arguments
        return function

    memory_info = call("clGetMemObjectInfo", ctypes.c_int32, handle, ctypes.c_uint32, ctypes.c_size_t, handle, handle)
    context_info = call("clGetContextInfo", ctypes.c_int32, handle, ctypes.c_uint32, ctypes.c_size_t, handle, handle)
    make = call("clCreateCommandQueue", handle, handle, handle, ctypes.c_uint64, pointer(ctypes.c_int32))
    read = call("clEnqueueReadBuffer", ctypes.c_int32, handle, handle, ctypes.c_uint32, ctypes.c_size_t,
                ctypes.c_size_t, handle, ctypes.c_uint32, handle, handle)
    release = call("clReleaseCommandQueue", ctypes.c_int32, handle)
    context, device, error = handle(), handle(), ctypes.c_int32()
    assert memory_info(tensor.data, 0x1106, 8, ctypes.byref(context), None) == 0
    assert context_info(context, 0x1081, 8, ctypes.byref(device), None) == 0
    queue = make(context, device, 0, ctypes.byref(error))
    assert error.value == 0
    to = ctypes.create_string_buffer(size)
    assert read(queue, tensor.data, 1, tensor.byte_offset, size, to, 0, None, None) == 0
    assert release(queue) == 0
    return to.raw


def test_each_device_has_its_type(device):
    if device.kind == "sim":
        with forebay.Pool(device) as pool, pool.allocate(8) as buffer:
            with pytest.raises(forebay.ExportError, match="no device type"):
                buffer.__dlpack_device__()
        return
    types = {"host": CPU, "cuda": CUDA, "hip": ROCM, "opencl": OPENCL}
    pinned_types = {"cuda": CUDA_HOST, "hip": ROCM_HOST}
    with forebay.Pool(device) as pool, pool.allocate(4096) as buffer:
        assert buffer.__dlpack_device__() == (types[device.kind], 0)
        capsule = buffer.view("int16", (16, 128)).__dlpack__()
        tensor = _tensor(capsule)
        assert (tensor.device_type, tensor.device_id) == buffer.__dlpack_device__()
        assert (tensor.ndim, tensor.code, tensor.bits, tensor.lanes) == (2, 0, 16, 1)
        assert (tensor.shape[0], tensor.shape[1], tensor.strides[0]) == (16, 128, 128)
        if device.kind != "opencl":
            assert (tensor.data, tensor.byte_offset) == (buffer.address, 0)
        del tensor, capsule
    pinned = device.pinned(4096)
    assert pinned.__dlpack_device__() == (pinned_types.get(device.kind, CPU), 0)


def test_an_opencl_tensor_is_a_buffer_object_and_an_offset(opencl):
    with forebay.Pool(opencl) as pool:
        buffers = [pool.allocate(5000) for _ in range(3)]
        for number, buffer in enumerate(buffers):
            buffer.copy_from(bytes([number + 1]) * 5000)
        capsules = [buffer.__dlpack__() for buffer in buffers]
        tensors = [_tensor(capsule) for capsule in capsules]
        places = {(tensor.data, tensor.byte_offset) for tensor in tensors}
        assert len(places) == 3, "each block has a place of its own"
        for number, tensor in enumerate(tensors):
            assert _read_buffer(tensor, 5000) == bytes([number + 1]) * 5000
        del tensor, tensors, capsules
        for buffer in buffers:
            buffer.free()


def test_a_part_of_an_opencl_buffer_begins_at_its_offset(opencl):
    memory = forebay.BufferManager(opencl)
    buffer = memory.buffer(1000, "int32")
    with buffer.host(write=True) as view:
        memoryview(view).cast("B").cast("i")[:] = memoryview(b"".join(n.to_bytes(4, "little") for n in range(1000))).cast("i")
    assert buffer.__dlpack_device__() == (OPENCL, 0)
    capsule = buffer.__dlpack__()
    read = _read_buffer(_tensor(capsule), 4000)
    assert [int.from_bytes(read[at:at + 4], "little") for at in (0, 4, 3996)] == [0, 1, 999]


def test_rocm_tensors_come_back(hip):
    with forebay.Pool(hip) as pool, pool.allocate(1024) as buffer:
        buffer.fill(9)
        back = forebay.from_dlpack(buffer)
        assert (back.device, back.address) == (hip, buffer.address)
        assert back.to_bytes() == b"\x09" * 1024
        del back


def test_metal_tensors_of_others_are_refused_with_words(host):
    with host.allocate(1024) as buffer:

        class Relabelled:
            def __dlpack__(self, **words):
                capsule = buffer.__dlpack__()
                _tensor(capsule).device_type = METAL
                return capsule

            def __dlpack_device__(self):
                return METAL, 0

        with pytest.raises(forebay.UnsupportedError, match="buffer object of another library"):
            forebay.from_dlpack(Relabelled())


def test_opencl_tensors_of_others_are_refused_with_words(opencl):
    with forebay.Pool(opencl) as pool, pool.allocate(1024) as buffer:
        with pytest.raises(forebay.UnsupportedError, match="buffer object of another library"):
            forebay.from_dlpack(buffer)
