"""Devices and streams."""

from __future__ import annotations

import gc

import pytest
import streams_of_driver

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
    with pytest.raises(forebay.InvalidError if isinstance(name, str) else TypeError, match="device"):
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
    with pytest.raises(forebay.InvalidError, match="the stream belongs to"):
        pool.allocate(10, stream=other.stream())


@pytest.mark.parametrize("stream", ["x", -1, 2**64, 1.5, object()])
def test_what_is_no_stream_is_refused(pool, stream):
    with pytest.raises(forebay.InvalidError if isinstance(stream, int) else TypeError, match="is not a stream"):
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


KINDS = [_Protocol, _Torch, _CuPy, int]


def _streams_of(pool):
    """The streams that a pool tells apart, but for the default one."""
    return {row["stream"] for row in pool.statistics()["streams"]} - {0}


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_other_libraries_are_taken(cuda, kind):
    (handle,) = streams_of_driver.make(1)
    adopted = cuda.adopt(kind(handle))
    assert adopted.handle == handle
    with forebay.Pool(cuda) as pool:
        with pool.allocate(100, stream=kind(handle)) as buffer:
            assert buffer.stream.handle == handle
        assert cuda.adopt(kind(0)).handle == 0
        del buffer
        cuda.forget(kind(handle))
        streams_of_driver.destroy(handle)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_is_forgotten_is_so_at_once(cuda, kind):
    """However many objects still have it: its maker destroys it right after."""
    (handle,) = streams_of_driver.make(1)
    adopted = cuda.adopt(handle)
    with forebay.Pool(cuda, max_bytes="2MiB") as pool, forebay.Pool(cuda, max_bytes="2MiB") as other:
        pool.allocate("2MiB", stream=adopted).free()
        other.allocate("2MiB", stream=adopted).free()
        assert _streams_of(pool) == _streams_of(other) == {handle}
        cuda.forget(kind(handle))
        streams_of_driver.destroy(handle)
        assert _streams_of(pool) == _streams_of(other) == set()
        # The pools may hold no more, so this is what was freed on the stream: everybody's once its work is done.
        for each in (pool, other):
            with each.allocate("2MiB"):
                assert each.held == 2 << 20
        # The device waits for the streams that there are.
        cuda.synchronize()
    cuda.forget(kind(handle))
    cuda.forget(adopted)
    for use in (adopted.synchronize, adopted.done, lambda: adopted.wait_for(None)):
        with pytest.raises(forebay.ClosedError, match="forgotten"):
            use()


def test_buffers_of_a_forgotten_stream_go_on_in_the_order_of_the_default_one(cuda):
    handle, user = streams_of_driver.make(2)
    with forebay.Pool(cuda) as pool:
        buffer, other = pool.allocate("1MiB", stream=handle), pool.allocate("1MiB")
        buffer.fill(5, wait=False)
        other.fill(6, stream=user, wait=False)
        for stream in (handle, user):
            cuda.forget(stream)
            streams_of_driver.destroy(stream)
        assert buffer.stream.handle == 0
        assert set(buffer.to_bytes()) == {5} and set(other.to_bytes()) == {6}
        view = buffer.view("int8")
        del buffer, view
        other.free()
        gc.collect()
        assert pool.statistics()["live_bytes"] == 0
        assert _streams_of(pool) == set()
    assert forebay.lost_frees()[0] == 0


def test_what_is_no_stream_is_not_forgotten(cuda):
    for stream in ("x", -1, None, object()):
        with pytest.raises(forebay.InvalidError if isinstance(stream, int) else TypeError, match="is not a stream"):
            cuda.forget(stream)


@pytest.mark.parametrize("use", [
    lambda pool, stream: pool.allocate(4096).free(stream),
    lambda pool, stream: pool.warmup([4096], stream=stream),
    lambda pool, stream: pool.allocate(4096, stream=stream).free(),
    lambda pool, stream: pool.arena(4096, stream=stream).close(),
])
def test_a_pool_that_used_a_stream_in_any_way_is_told_of_its_end(device, pool, use):
    stream = device.stream()
    use(pool, stream)
    gc.collect()
    handle = stream.handle
    assert handle in _streams_of(pool)
    stream.close()
    assert handle not in _streams_of(pool)


def test_a_stream_lives_until_what_it_was_used_for_is_freed(device, pool):
    buffer, stream = pool.allocate("1MiB"), device.stream()
    buffer.fill(7, stream=stream, wait=False)
    stream.close()
    del stream
    buffer.free()
    with pool.allocate("1MiB") as again:
        again.fill(8)
        assert set(again.to_bytes()) == {8}
    del again, buffer
    assert forebay.lost_frees()[0] == 0


def test_a_view_that_outlives_its_buffer_and_stream_is_freed_in_order(device, pool):
    """The block is freed before the stream goes, and is nobody's to lose."""
    stream = device.stream()
    buffer = pool.allocate("1MiB", stream=stream)
    view, handle = buffer.view("int8"), stream.handle
    stream.close()
    del buffer, stream
    gc.collect()
    assert pool.statistics()["live_bytes"] == 1 << 20
    del view
    gc.collect()
    assert pool.statistics()["live_bytes"] == 0
    assert handle not in _streams_of(pool)
    assert forebay.lost_frees()[0] == 0


def test_a_part_that_outlives_its_arena_and_stream_is_freed_in_order(device, pool):
    stream = device.stream()
    arena = pool.arena("1MiB", stream=stream)
    part, handle = arena.allocate(4096), stream.handle
    stream.close()
    del arena, stream
    gc.collect()
    assert pool.statistics()["live_bytes"] > 0
    del part
    gc.collect()
    assert pool.statistics()["live_bytes"] == 0
    assert handle not in _streams_of(pool)
    assert forebay.lost_frees()[0] == 0
