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
    array = pinned.empty((2, 3), "float32")
    assert (array.dtype, array.shape, array.nbytes, array.readonly) == ("float32", (2, 3), 24, False)
    assert array.device == pinned.device and repr(array).startswith("forebay.Array(")
    with memoryview(array) as view:
        assert (view.format, view.shape, view.readonly) == ("f", (2, 3), False)
        view[1, 2] = 2.5
    assert struct.unpack_from("f", array.to_bytes(), 20) == (2.5,)
    assert pinned.empty(7).dtype == "float64"
    assert pinned.empty(0).to_bytes() == b""


def test_copies_go_to_the_device_and_back(pinned, pool):
    there, back = pinned.empty(1000, "uint32"), pinned.empty(1000, "uint32")
    there.view("uint8").copy_(struct.pack("1000I", *range(1000)))
    block = pool.allocate(4000)
    block.view("uint32").copy_(there)
    back.copy_(block.view("uint32"))
    assert back.to_bytes() == struct.pack("1000I", *range(1000))
    stream = pinned.device.stream()
    there.fill(0)
    block.view("uint32").copy_(there, stream=stream, wait=False)
    back.copy_(block.view("uint32"), stream=stream, wait=False)
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
    array, block = pinned.empty(4096, "uint8"), pool.allocate(4096)
    array.fill(7)
    stream = busy_stream(block)
    block.view("uint8").copy_(array, stream=stream, wait=False)
    assert not array.idle
    busy = array.address
    del array
    others = [pinned.empty(4096, "uint8") for _ in range(3)]
    assert busy not in [other.address for other in others]
    for other in others:
        other.fill(0)
    assert block.to_bytes(stream) == b"\x07" * 4096
    later = [pinned.empty(4096, "uint8") for _ in range(1000)]
    assert busy in [one.address for one in later], "the copy is done"


def test_recorded_work_of_others_delays_reuse():
    pinned, pool = forebay.PinnedPool("sim"), forebay.Pool("sim")
    array, block = pinned.empty(4096, "uint8"), pool.allocate(4096)
    stream = busy_stream(block)
    assert array.idle
    array.record_use(stream)
    assert not array.idle
    busy = array.address
    del array
    assert pinned.empty(4096, "uint8").address != busy


def test_a_view_keeps_the_memory(pinned):
    array = pinned.empty(4096, "uint8")
    address = array.address
    view, part = memoryview(array), array[100:110]
    del array
    gc.collect()
    view[100] = 9
    assert all(pinned.empty(4096, "uint8").address != address for _ in range(4))
    assert part.to_bytes()[0] == 9
    view.release()
    assert pinned.statistics()["live_bytes"] >= 4096
    del part
    assert pinned.empty(4096, "uint8").address == address, "memory that no copy uses is used again at once"


def test_numpy_shares_the_memory(pinned):
    numpy = pytest.importorskip("numpy")
    array = pinned.empty((10, 10), numpy.float64)
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
        pinned.empty(100_000, "uint8")
    held = pinned.held
    assert 100_000 <= held < 8 << 20
    assert pinned.trim() == held and pinned.held == 0
    kept = pinned.empty(10, "uint8")
    pinned.trim()
    assert pinned.held > 0, "what lives is not unpinned"
    del kept
    assert pinned.limit == 64 << 20


def test_mapped_memory_has_an_address_on_the_device(device):
    if device.kind == "opencl":
        with pytest.raises(forebay.UnsupportedError, match="stays mapped"):
            forebay.PinnedPool(device, mapped=True).empty(100)
        return
    assert forebay.PinnedPool(device, mapped=True).empty(100).device_address > 0
    with pytest.raises(forebay.Error, match="mapped"):
        _ = forebay.PinnedPool("sim").empty(100).device_address


def test_what_cannot_be_is_refused(pinned, pool):
    array = pinned.empty(100, "uint8")
    with pytest.raises(forebay.InvalidError, match=r"uint8 \(99,\) and the other side uint8 \(100,\)"):
        pool.allocate(99).view("uint8").copy_(array)
    with pytest.raises(TypeError):
        array.copy_(3)
    freed = pool.allocate(100)
    freed.free()
    with pytest.raises(forebay.ClosedError):
        array.copy_(freed)
    with pytest.raises(forebay.OutOfMemoryError):
        pinned.empty(65 << 20, "uint8")
    with pytest.raises(forebay.InvalidError):
        pinned.empty((1 << 40, 1 << 40))
    with pytest.raises(TypeError, match="forebay.empty"):
        forebay.Array()
