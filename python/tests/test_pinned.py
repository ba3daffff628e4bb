"""Pools of pinned memory: arrays, views that keep them, copies, and when memory is used again."""

from __future__ import annotations

import gc
import struct

import pytest

import forebay


@pytest.fixture
def pinned(device):
    pool = forebay.PinnedPool(device, max_bytes="64MiB")
    yield pool
    gc.collect()
    assert pool.statistics()["live_bytes"] == 0


def test_an_array_has_elements_that_the_host_writes(pinned):
    array = pinned.array((2, 3), "float32")
    assert (array.dtype, array.shape, array.nbytes, array.readonly) == ("float32", (2, 3), 24, False)
    assert array.device == pinned.device and "PinnedArray of float32" in repr(array)
    with memoryview(array) as view:
        assert (view.format, view.shape, view.readonly) == ("f", (2, 3), False)
        view[1, 2] = 2.5
    assert struct.unpack_from("f", array.to_bytes(), 20) == (2.5,)
    assert pinned.array(7).dtype == "uint8"
    assert pinned.array(0).to_bytes() == b""


def test_copies_go_to_the_device_and_back(pinned, pool):
    there, back = pinned.array(1000, "uint32"), pinned.array(1000, "uint32")
    there.copy_from(struct.pack("1000I", *range(1000)))
    block = pool.allocate(4000)
    there.copy_to_device(block)
    back.copy_from_device(block.view("uint32"))
    assert back.to_bytes() == struct.pack("1000I", *range(1000))
    stream = pinned.device.stream()
    there.copy_from(bytes(4000))
    there.copy_to_device(block, stream, wait=False)
    back.copy_from_device(block, stream=stream, wait=False)
    back.wait()
    assert back.idle and there.idle
    assert back.to_bytes() == bytes(4000)


def busy_stream(block):
    """A stream with a thousand fills ahead. The simulated device does a few whenever it is asked how far it is."""
    stream = block.device.stream()
    for _ in range(1000):
        block.fill(1, size=8, stream=stream, wait=False)
    return stream


def test_memory_of_an_unfinished_copy_is_not_used_again():
    pinned, pool = forebay.PinnedPool("sim"), forebay.Pool("sim")
    array, block = pinned.array(4096), pool.allocate(4096)
    array.copy_from(b"\x07" * 4096)
    stream = busy_stream(block)
    array.copy_to_device(block, stream, wait=False)
    assert not array.idle
    busy = array.address
    del array
    others = [pinned.array(4096) for _ in range(3)]
    assert busy not in [other.address for other in others]
    for other in others:
        other.copy_from(bytes(4096))
    assert block.to_bytes(stream) == b"\x07" * 4096
    later = [pinned.array(4096) for _ in range(1000)]
    assert busy in [one.address for one in later], "the copy is done"


def test_recorded_work_of_others_delays_reuse():
    pinned, pool = forebay.PinnedPool("sim"), forebay.Pool("sim")
    array, block = pinned.array(4096), pool.allocate(4096)
    stream = busy_stream(block)
    assert array.idle
    array.record_use(stream)
    assert not array.idle
    busy = array.address
    del array
    assert pinned.array(4096).address != busy


def test_a_view_keeps_the_memory(pinned):
    array = pinned.array(4096)
    address = array.address
    view, part = memoryview(array), array.view("uint8", 10, offset=100)
    del array
    gc.collect()
    view[100] = 9
    assert all(pinned.array(4096).address != address for _ in range(4))
    assert part.to_bytes()[0] == 9
    view.release()
    assert pinned.statistics()["live_bytes"] >= 4096
    del part
    assert pinned.array(4096).address == address, "memory that no copy uses is used again at once"


def test_numpy_shares_the_memory(pinned):
    numpy = pytest.importorskip("numpy")
    array = pinned.array((10, 10), numpy.float64)
    shared = array.numpy()
    assert shared.dtype == numpy.float64 and shared.shape == (10, 10)
    shared[:] = 1.5
    assert array.to_bytes() == struct.pack("d", 1.5) * 100
    assert shared.__array_interface__["data"] == (array.address, False)
    del array
    gc.collect()
    assert shared.sum() == 150


def test_memory_is_pinned_once_and_trimmed(pinned):
    for _ in range(50):
        pinned.array(100_000)
    held = pinned.held
    assert 100_000 <= held < 8 << 20
    assert pinned.trim() == held and pinned.held == 0
    kept = pinned.array(10)
    pinned.trim()
    assert pinned.held > 0, "what lives is not unpinned"
    del kept
    assert pinned.limit == 64 << 20


def test_mapped_memory_has_an_address_on_the_device(device):
    if device.kind == "opencl":
        with pytest.raises(forebay.UnsupportedError, match="stays mapped"):
            forebay.PinnedPool(device, mapped=True).array(100)
        return
    assert forebay.PinnedPool(device, mapped=True).array(100).device_address > 0
    with pytest.raises(forebay.Error, match="mapped"):
        _ = forebay.PinnedPool("sim").array(100).device_address


def test_what_cannot_be_is_refused(pinned, pool):
    array = pinned.array(100)
    with pytest.raises(forebay.InvalidError, match="100 B and the other side 99 B"):
        array.copy_to_device(pool.allocate(99))
    with pytest.raises(forebay.InvalidError, match="host memory"):
        array.copy_to_device(pinned.array(100))
    with pytest.raises(TypeError, match="device memory"):
        array.copy_to_device(bytearray(100))
    other = "sim" if pinned.device.name == "host" else "host"
    with pytest.raises(forebay.InvalidError, match="directly"):
        array.copy_from_device(forebay.pool(other).allocate(100))
    freed = pool.allocate(100)
    freed.free()
    with pytest.raises(forebay.ClosedError):
        array.copy_from_device(freed)
    with pytest.raises(forebay.OutOfMemoryError):
        pinned.array(65 << 20)
    with pytest.raises(forebay.InvalidError):
        pinned.array((1 << 40, 1 << 40))
    with pytest.raises(TypeError, match="PinnedPool.array"):
        forebay.PinnedArray()
