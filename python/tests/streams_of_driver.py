"""Streams of the driver that FOREBAY_CUDA_DRIVER names, or of the machine's own, as another library would make them."""

import ctypes
import os


def _driver():
    return ctypes.CDLL(os.environ.get("FOREBAY_CUDA_DRIVER", "libcuda.so.1"))


def make(count):
    driver = _driver()
    context, streams = ctypes.c_void_p(), []
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    for _ in range(count):
        stream = ctypes.c_void_p()
        assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
        streams.append(stream.value)
    return streams


def destroy(stream):
    assert _driver().cuStreamDestroy_v2(ctypes.c_void_p(stream)) == 0


def synchronize(stream):
    assert _driver().cuStreamSynchronize(ctypes.c_void_p(stream)) == 0


def fill(stream, address, value, size, times):
    """Fills memory so many times, and does not wait for it."""
    call = _driver().cuMemsetD8Async
    call.argtypes = [ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p]
    for _ in range(times):
        assert call(address, value, size, stream) == 0
