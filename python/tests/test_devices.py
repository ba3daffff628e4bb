"""Devices and streams."""

from __future__ import annotations

import gc

import pytest

import forebay


def test_the_host_and_the_simulated_device_are_always_there():
    names = [device.name for device in forebay.devices()]
    assert names[0] == "host" and names[-1] == "sim"
    assert len(set(names)) == len(names)


def test_a_name_is_one_device(device):
    again = forebay.device(device.name)
    assert again == device and hash(again) == hash(device)
    assert again != forebay.device("sim") or device.name == "sim"
    assert device.kind == device.name.split(":")[0] and device.ordinal == 0
    assert device.label and isinstance(device.driver, str)
    assert "data" in device.capabilities
    memory = device.memory()
    assert 0 < memory["free"] <= memory["total"] and memory["held"] >= 0
    assert forebay.device(device) == device


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CUDA:0", 3, None])
def test_what_is_no_device_is_refused(name):
    with pytest.raises(forebay.InvalidError, match="device"):
        forebay.device(name)


def test_a_gpu_that_is_not_there_is_an_error():
    with pytest.raises(forebay.Error, match="device"):
        forebay.device("cuda:63")


def test_streams_come_and_go(device):
    with device.stream() as stream:
        assert stream.device == device and stream.handle != 0 and not stream.closed
        stream.synchronize()
        assert stream.done()
    with device.stream("high") as first, device.stream("low") as second:
        first.wait_for(second)
        second.wait_for(None)
    stream.close()
    stream.close()
    assert stream.closed
    for use in (lambda: stream.synchronize(), lambda: stream.handle, lambda: first.wait_for(stream)):
        with pytest.raises(forebay.ClosedError):
            use()
    assert device.default_stream.handle == 0
    with pytest.raises(forebay.InvalidError, match="low, normal or high"):
        device.stream("urgent")


def test_a_stream_outlives_its_object_while_a_buffer_needs_it(device, pool):
    stream = device.stream()
    buffer = pool.allocate(4096, stream=stream)
    handle = stream.handle
    stream.close()
    del stream
    buffer.fill(7)
    assert buffer.stream.handle == handle
    assert buffer.to_bytes() == b"\x07" * 4096
    buffer.free()


def test_many_streams_one_after_another_leave_nothing(device, pool):
    """More than a pool tells apart at a time: each is forgotten when it goes."""
    for _ in range(200):
        with device.stream() as stream, pool.allocate(4096, stream=stream) as buffer:
            buffer.fill(1, wait=False)
        del stream, buffer
    gc.collect()
    assert pool.statistics()["live_bytes"] == 0


def test_streams_of_another_device_are_refused(pool):
    other = forebay.device("sim" if pool.device.name == "host" else "host")
    with pytest.raises(forebay.InvalidError, match="the stream is of"):
        pool.allocate(10, stream=other.stream())


@pytest.mark.parametrize("stream", ["x", -1, 2**64, 1.5, object()])
def test_what_is_no_stream_is_refused(pool, stream):
    with pytest.raises(forebay.InvalidError, match="is no stream"):
        pool.allocate(10, stream=stream)


def test_devices_without_foreign_streams_say_so(host):
    with pytest.raises(forebay.UnsupportedError):
        host.allocate(10, stream=12345)


class _Protocol:
    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return (0, self.handle)


class _Torch:
    def __init__(self, handle):
        self.cuda_stream = handle


class _CuPy:
    def __init__(self, handle):
        self.ptr = handle


@pytest.mark.parametrize("kind", [_Protocol, _Torch, _CuPy, int])
def test_streams_of_other_libraries_are_taken(cuda, kind):
    stream = cuda.stream()
    adopted = cuda.adopt(kind(stream.handle))
    assert adopted.handle == stream.handle
    with forebay.Pool(cuda) as pool, pool.allocate(100, stream=kind(stream.handle)) as buffer:
        assert buffer.stream.handle == stream.handle
    assert cuda.adopt(kind(0)).handle == 0
    cuda.forget(adopted)
