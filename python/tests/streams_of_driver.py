"""Streams of the driver that FOREBAY_CUDA_DRIVER names, as another library would make them."""

import ctypes
import os


def make(count):
    driver = ctypes.CDLL(os.environ["FOREBAY_CUDA_DRIVER"])
    context, streams = ctypes.c_void_p(), []
    assert driver.cuInit(0) == 0
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0
    for _ in range(count):
        stream = ctypes.c_void_p()
        assert driver.cuStreamCreateWithPriority(ctypes.byref(stream), 1, 0) == 0
        streams.append(stream.value)
    return streams
