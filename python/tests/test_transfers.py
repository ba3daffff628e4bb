"""Transfers by several threads: what they take, what they hold, and what is refused."""

from __future__ import annotations

import array
import asyncio
import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

import forebay

np = pytest.importorskip("numpy")

#: More than one piece of 4 MiB, and not a whole number of them.
LENGTH = (9 << 20) + 13
#: Where forebay is installed.
PACKAGES = Path(forebay.__file__).parent.parent


def data(length=LENGTH, seed=1):
    return np.random.default_rng(seed).integers(0, 256, length, dtype="uint8")


class Tensor:
    """What a tensor of PyTorch's has: DLPack, and no buffer protocol."""

    def __init__(self, values):
        self.values = values

    def __dlpack__(self, **words):
        return self.values.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()


def test_an_array_goes_there_and_comes_back(pool):
    source = data(LENGTH // 8 * 8).view("float32").reshape(2, -1)
    there = pool.upload(source)
    assert (there.dtype, there.shape, there.device) == ("float32", source.shape, pool.device)
    back = there.download()
    assert isinstance(back, np.ndarray) and (back.dtype, back.shape) == (source.dtype, source.shape)
    assert np.array_equal(back.view("uint8"), source.view("uint8"))


@pytest.mark.parametrize("other", ["host", "sim"])
def test_memory_is_copied_between_devices(pool, other):
    source = data()
    with forebay.Pool(other) as far, far.allocate(LENGTH + 5) as there, pool.allocate(LENGTH + 5) as here:
        here.fill(1)
        here.copy_from(source, offset=5)
        there.fill(2)
        there.copy_from(here, stream=far.device.stream())  # all of it, after the fill
        assert there.to_bytes() == b"\x01" * 5 + source.tobytes()
        here.fill(3)
        there.copy_to(here.view("uint8", (LENGTH,), 5), offset=5)
        assert here.to_bytes() == b"\x03" * 5 + source.tobytes()
        pinned = pool.device.pinned(1000)
        pinned.copy_from(there.view("uint8", (1000,), 5))
        assert pinned.to_bytes() == source[:1000].tobytes()
        pinned.fill(9)
        there.copy_from(pinned)
        assert there.to_bytes()[:1001] == b"\x09" * 1000 + source[995:996].tobytes()
        with pytest.raises(forebay.InvalidError, match="do not lie within"):
            there.copy_from(here, offset=1)


@pytest.mark.parametrize("made", [bytes, bytearray, memoryview, lambda raw: array.array("B", raw), Tensor])
def test_sources_of_any_kind(pool, made):
    raw = data(100_000)
    source = made(raw if made is Tensor else raw.tobytes())
    with pool.allocate(raw.nbytes) as buffer:
        buffer.upload(source)
        assert buffer.to_bytes() == raw.tobytes()
    there = pool.upload(source)
    assert (there.dtype, there.shape) == ("uint8", (100_000,))
    assert there.to_bytes() == raw.tobytes()


@pytest.mark.parametrize(
    "made", [bytearray, lambda size: np.zeros(size, "uint8"), lambda size: Tensor(np.zeros(size, "uint8"))]
)
def test_downloads_into_what_can_be_written(pool, made):
    raw = data(100_000)
    there, into = pool.upload(raw), made(100_000)
    assert there.download(into) is into
    assert np.array_equal(np.frombuffer(getattr(into, "values", into), "uint8"), raw)


def test_a_part_of_a_buffer(pool):
    with pool.allocate(1000) as buffer:
        buffer.fill(7)
        buffer.upload(b"\x01\x02", 10)
        assert bytes(buffer.download(bytearray(4), 9)) == b"\x07\x01\x02\x07"
        assert buffer.view("uint16", 3, 10).download().tolist() == [0x0201, 0x0707, 0x0707]


def test_empty_and_scalar_arrays(pool):
    assert pool.upload(np.empty((0, 3), "float32")).download().shape == (0, 3)
    assert pool.upload(np.array(2.5)).download() == 2.5


def test_bfloat16_by_its_bytes(pool, monkeypatch):
    raw = data(1000).view("uint16")
    with pool.allocate(1000) as buffer:
        view = buffer.view("bfloat16")
        view.view("uint16").upload(raw)
        assert bytes(view.view("uint8").download(bytearray(1000))) == raw.tobytes()
        monkeypatch.setitem(sys.modules, "ml_dtypes", None)
        assert view.dtype == "bfloat16"
        with pytest.raises(forebay.UnsupportedError, match="bfloat16 with the package ml_dtypes"):
            view.download()
        del view


def test_a_transfer_that_is_waited_for(pool):
    source = data()
    transfer = pool.upload_async(source, priority="high")
    moved, total = transfer.progress
    assert 0 <= moved <= total == LENGTH
    there = transfer.wait()
    assert there is transfer.wait() and transfer.done() and not transfer.cancel()
    assert transfer.progress == (LENGTH, LENGTH) and f"{LENGTH} of {LENGTH} B" in repr(transfer)
    into = np.zeros(LENGTH, "uint8")
    back = there.download_async(into)
    assert back.wait() is into and np.array_equal(into, source)


def test_a_transfer_can_be_awaited(pool):
    async def main():
        first, second = pool.upload_async(data(seed=1)), pool.upload_async(data(seed=2))
        views = await asyncio.gather(first, second)
        return [await view.download_async() for view in views]

    for seed, back in enumerate(asyncio.run(main()), start=1):
        assert np.array_equal(back, data(seed=seed))


def test_it_holds_both_sides_until_it_was_waited_for(pool):
    source, buffer = bytearray(data(100_000)), pool.allocate(100_000)
    transfer = buffer.upload_async(source)
    with pytest.raises(forebay.InUseError):
        buffer.free()
    with pytest.raises(BufferError):
        source.append(1)
    transfer.wait()
    source.append(1)
    buffer.free()


def test_the_last_reference_to_a_source_is_the_transfers(pool):
    class Source(bytearray):
        pass

    source = Source(data(100_000))
    gone = weakref.ref(source)
    with pool.allocate(100_000) as buffer:
        transfer = buffer.upload_async(source)
        wanted = bytes(source)
        del source
        gc.collect()
        assert gone() is not None
        transfer.wait()
        assert gone() is None and buffer.to_bytes() == wanted
        del transfer


def test_a_dropped_transfer_is_cancelled_and_uses_no_memory(pool):
    size = 64 << 20
    source, ended = np.ones(size, "uint8"), 0
    with pool.allocate(size) as buffer:
        for _ in range(5):
            buffer.fill(9)
            buffer.upload_async(source)
            source[:] = 0
            found = set(np.unique(buffer.download()))
            assert found <= {1, 9}
            ended += 9 in found
            source[:] = 1
    assert ended > 0


def test_work_after_order_comes_after_the_transfer(pool):
    stream, source = pool.device.stream(), data()
    with pool.allocate(LENGTH, stream=stream) as buffer:
        transfer = buffer.upload_async(source)
        transfer.order()
        source[:] = 0
        buffer.fill(9, size=1, wait=False)
        del transfer
        back = buffer.download()
        assert back[0] == 9 and np.array_equal(back[1:], data()[1:])
        other = pool.device.stream()
        buffer.upload_async(data(seed=2), stream=other).order()
    # The buffer was freed on its own stream, and its memory is used again after the transfer on the other.
    again = pool.allocate(LENGTH, stream=stream)
    again.fill(3)
    assert set(again.to_bytes()) == {3}


def test_cancelling(pool):
    source, ended = data(64 << 20), 0
    with pool.allocate(64 << 20) as buffer:
        for _ in range(5):
            transfer = buffer.upload_async(source)
            if transfer.cancel():
                ended += 1
                for _ in range(2):
                    with pytest.raises(forebay.CancelledError, match="cancelled"):
                        transfer.wait()
            else:
                transfer.wait()
            assert transfer.done()
        buffer.upload(source)
        assert np.array_equal(buffer.download(), source)
        del transfer
    assert ended > 0


def test_threads_that_wait_for_one_transfer(pool):
    source, found = data(), []
    transfer = pool.upload_async(source)
    threads = [threading.Thread(target=lambda: found.append(transfer.wait())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4 and all(one is found[0] for one in found)
    assert np.array_equal(found[0].download(), source)
    found.clear()
    del transfer


def test_pinned_memory_on_both_sides(pool):
    pinned = forebay.PinnedPool(pool.device)
    batch = pinned.empty((10, 1000), "float32")
    batch.view("uint8", 40_000).copy_(data(40_000))
    there = pool.upload(batch)
    assert (there.dtype, there.shape) == ("float32", (10, 1000))
    into = pinned.empty((10, 1000), "float32")
    transfer = there.download_async(into)
    transfer.order()
    del transfer
    assert into.to_bytes() == data(40_000).tobytes()
    raw = pool.device.pinned(1000)
    raw.copy_from(data(1000))
    with pool.allocate(1000) as buffer:
        buffer.upload(raw)
        assert buffer.to_bytes() == data(1000).tobytes()
    # That of another device is memory like any other.
    other = forebay.PinnedPool("host" if pool.device.kind == "sim" else "sim").empty(1000, "uint8")
    other.copy_(data(1000))
    assert pool.upload(other).to_bytes() == data(1000).tobytes()


def test_what_is_refused(pool):
    buffer, plain = pool.allocate(1000), np.zeros(1000, "uint8")
    grid = np.zeros((10, 10), "uint8")
    for apart in (grid[:, ::2], grid.T[:, :5], memoryview(bytes(100))[::2]):
        with pytest.raises((forebay.InvalidError, forebay.ExportError), match="contiguous.*numpy.ascontiguousarray"):
            buffer.upload(apart)
    with pytest.raises(forebay.InvalidError, match="contiguous"):
        buffer.upload(Tensor(np.zeros((10, 10), "uint8")[:, ::2]))
    plain.flags.writeable = False
    for fixed in (plain, bytes(10), Tensor(plain)):
        with pytest.raises((forebay.Error, BufferError)):
            buffer.download(fixed)
    for wrong in (3, "text", None, object(), [1, 2]):
        with pytest.raises(TypeError):
            buffer.upload(wrong)
    with pytest.raises(forebay.InvalidError, match="references or addresses"):
        buffer.upload(np.array([object()]))
    with pytest.raises(forebay.InvalidError, match="1001 B from byte 0 on do not lie within 1000 B"):
        buffer.upload(bytes(1001))
    with pytest.raises(forebay.InvalidError, match="do not lie within"):
        buffer.download(bytearray(1), 1000)
    with pytest.raises(forebay.InvalidError, match="out of range"):
        buffer.upload(b"", -1)
    with pytest.raises(forebay.InvalidError, match="low, normal or high"):
        buffer.upload(b"", priority="urgent")
    pinned = forebay.PinnedPool(pool.device).empty(10, "uint8")
    with pytest.raises(forebay.InvalidError, match="host's.*copy_"):
        pinned.upload_async(bytes(10))
    pinned.upload(bytes(10))
    with pytest.raises(TypeError):
        forebay.Transfer()
    buffer.free()
    with pytest.raises(forebay.ClosedError):
        buffer.upload(b"")


def test_memory_of_a_device_is_not_host_memory(accelerator):
    with forebay.Pool(accelerator) as pool:
        buffer, other = pool.allocate(1000), pool.allocate(1000)
        with pytest.raises(forebay.ExportError):
            buffer.upload(other)
        with pytest.raises(forebay.ExportError):
            buffer.download(other)


def test_a_buffer_of_the_host_is_not_uploaded_into_itself(host):
    with host.allocate(1000) as buffer:
        with pytest.raises(forebay.InvalidError, match="same memory"):
            buffer.view(offset=10)[:100].upload(memoryview(buffer)[:100])


def test_tensors_of_pytorch(torch):
    torch(
        """
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
            source = torch.arange(300_000).to(dtype).reshape(3, -1)
            there = forebay.pool("host").upload(source)
            assert (there.dtype, there.shape) == (str(dtype).removeprefix("torch."), (3, 100_000))
            into = torch.empty_like(source)
            assert there.download(into) is into and torch.equal(into, source)
        try:
            forebay.pool("host").upload(torch.zeros(10, 10).T[:, :5])
            raise SystemExit("taken")
        except forebay.InvalidError as error:
            assert "contiguous" in str(error)
        """,
        # The scripts of this fixture have the package without its extension module.
        prelude=f"del sys.modules['forebay']; sys.path.insert(0, {str(PACKAGES)!r}); import forebay, torch\n",
    )
