"""Buffers that are on the host and on a device: views, conflicts, numpy and DLPack."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import threading

import pytest

import forebay


@pytest.fixture
def memory(device):
    memory = forebay.BufferManager(device)
    yield memory
    gc.collect()
    assert memory.live_buffers() == []


def test_what_the_host_writes_reaches_the_device_and_back(memory):
    buffer = memory.buffer(1000, "float32")
    assert (buffer.dtype, buffer.shape, buffer.nbytes, buffer.state) == ("float32", (1000,), 4000, "Uninitialized")
    with buffer.host(write=True) as view:
        assert (view.format, view.shape, view.readonly) == ("f", (1000,), False)
        view[7] = 2.5
    place = buffer.on_device()
    assert place.device == memory.device and place.dtype == "float32"
    assert struct.unpack_from("f", place.to_bytes(), 28) == (2.5,)
    place[8:9].view("uint8").copy_(struct.pack("f", 3.5))
    del place
    with buffer.host() as view:
        assert (view.readonly, view[7], view[8], view[9]) == (True, 2.5, 3.5, 0)
    figures = buffer.statistics()
    assert figures["views"] == 0
    if figures["copies_to_device"]:
        assert (figures["bytes_to_device"], figures["bytes_to_host"]) == (4000, 4000)


def test_a_live_view_refuses_what_conflicts_with_it(memory):
    buffer = memory.buffer(100)
    writing = buffer.on_host(write=True)
    conflicts = [
        buffer.on_device,
        buffer.on_host,
        buffer.to_bytes,
        buffer.close,
        buffer.synchronize,
        lambda: buffer.fill(1),
        lambda: buffer[:1].copy_(b"1"),
        lambda: buffer.compact("host"),
        lambda: buffer.invalidate("device"),
        lambda: buffer.__dlpack__(),
    ]
    for conflict in conflicts:
        with pytest.raises(forebay.InUseError, match="bytes 0 to 100 of the buffer are mapped on the host for writing"):
            conflict()
    with pytest.raises(BufferError):
        buffer.on_device()
    memoryview(writing)[3] = 9
    # What shares the view keeps it.
    shared = memoryview(writing)
    del writing
    with pytest.raises(forebay.InUseError):
        buffer.on_device()
    shared.release()
    place = buffer.on_device()
    with pytest.raises(forebay.InUseError, match="exported on the device"):
        buffer.on_host()
    del place

    reading = buffer.on_host()
    assert reading.readonly and buffer.on_host().to_bytes()[3] == 9
    buffer.on_device(write=False)
    with pytest.raises(forebay.InUseError, match="for reading"):
        buffer.on_device()
    del reading


def test_a_view_that_outlives_its_with_is_an_error_and_never_stale(memory):
    buffer = memory.buffer(100)
    with buffer.host(write=True) as view:
        pass
    with pytest.raises(ValueError, match="released"):
        view[0]
    with buffer.host() as view:
        kept = memoryview(view)
    with pytest.raises(forebay.InUseError):
        buffer.on_device()
    kept.release()
    buffer.on_device()
    access = buffer.host()
    with access:
        with pytest.raises(forebay.InUseError, match="entered"):
            access.__enter__()
    buffer.close()
    with pytest.raises(forebay.ClosedError):
        buffer.on_host()
    with pytest.raises(forebay.ClosedError):
        buffer.free()
    buffer.close()


def test_a_view_keeps_the_memory_of_a_buffer_that_is_gone(memory):
    buffer = memory.buffer_from(b"hello")
    view = buffer.on_host()
    del buffer
    gc.collect()
    assert bytes(memoryview(view)) == b"hello"
    assert len(memory.live_buffers()) == 1
    del view


def test_sizes_and_arguments_that_cannot_be_are_refused(memory):
    buffer = memory.buffer((10, 10), "int32")
    for wrong in (
        lambda: memory.buffer((2**40, 2**40), "float64"),
        lambda: memory.buffer(2**63, "uint8"),
        lambda: memory.buffer(-1),
        lambda: memory.buffer(1, "no such"),
        lambda: buffer.copy_(bytes(400)),
        lambda: buffer.view("uint8").copy_(bytes(401)),
        lambda: buffer[5:].view("uint8", 200).copy_(bytes(201)),
        lambda: buffer.compact("elsewhere"),
        lambda: buffer.invalidate(""),
    ):
        with pytest.raises(forebay.InvalidError):
            wrong()
    assert buffer.shape == (10, 10)
    assert buffer.to_bytes() == bytes(400)


def test_fill_compact_and_figures(memory, device):
    buffer = memory.buffer(4096)
    buffer.fill(7)
    buffer.synchronize()
    freed = buffer.compact("host")
    assert freed in (0, 4096) and buffer.to_bytes() == b"\7" * 4096
    totals = memory.totals()
    assert totals["buffers"] == 1 and totals["created"] == 1
    row = memory.live_buffers()[0]
    assert row["bytes"] == 4096 and row["age_s"] >= 0
    assert row["number"] == buffer.statistics()["number"]
    assert any(other["bytes"] == 4096 for other in forebay.live_buffers())
    with forebay.Pool(device) as pool:
        over = forebay.BufferManager(pool).buffer(100)
        place = over.on_device()
        assert pool.statistics()["live_bytes"] > 0
        del place, over
        gc.collect()


def test_a_slice_shares_the_memory_and_moves_its_own_bytes_alone(memory):
    buffer = memory.buffer((1000, 4), "int32")
    buffer.synchronize()
    part = buffer[10:20]
    assert (part.shape, part.nbytes, len(part), part.dtype) == ((10, 4), 160, 10, "int32")
    with part.host(write=True) as view:
        assert view.shape == (10, 4)
        view[0, 1], view[9, 3] = 7, 8
    with buffer.host() as view:
        assert (view[10, 1], view[19, 3], view[20, 0]) == (7, 8, 0)
    before = buffer.statistics()["bytes_to_device"]
    place = part[5:].on_device()
    assert struct.unpack_from("i", place.to_bytes(), 76) == (8,)
    moved = buffer.statistics()["bytes_to_device"] - before
    assert moved == (0 if memory.device.kind in ("host", "sim") else 80), "on the host and on sim there is one replica"
    # Rows that the device has do not keep the host from others.
    assert buffer[:15].to_bytes()[164:168] == struct.pack("i", 7)
    with pytest.raises(forebay.InUseError, match="bytes 240 to 320"):
        buffer[14:16].on_host()
    del place
    buffer[-2:].view("uint8", 32).copy_(struct.pack("8i", *range(8)))
    assert buffer[998:][1:].to_bytes() == struct.pack("4i", 4, 5, 6, 7)
    assert len(buffer[600:500]) == 0 == buffer[2000:].nbytes and buffer[600:500].to_bytes() == b""
    assert repr(part).startswith("forebay.UnifiedBuffer([[")


def test_a_slice_keeps_the_memory_and_leaves_what_concerns_all_to_the_buffer(memory):
    buffer = memory.buffer_from(bytes(range(100)))
    part = buffer[50:60]
    for whole in (part.close, part.synchronize, lambda: part.resize(3), lambda: part.compact("host")):
        with pytest.raises(forebay.InvalidError, match="call it on the buffer"):
            whole()
    assert buffer[::30].to_bytes() == bytes([0, 30, 60, 90])
    with pytest.raises(TypeError, match="no dimensions"):
        memory.buffer(())[:]
    assert buffer[3].item() == 3 and part[-1].item() == 59
    with pytest.raises(forebay.InvalidError, match="shapes"):
        part.copy_(bytes(11))
    del buffer
    gc.collect()
    assert part.to_bytes() == bytes(range(50, 60)) and len(memory.live_buffers()) == 1


def test_resizing_keeps_the_first_elements(memory):
    buffer = memory.buffer_from(struct.pack("6H", *range(6)))
    view = buffer.on_host()
    with pytest.raises(forebay.InUseError):
        buffer.resize(5)
    del view
    assert buffer.shape == (12,)
    last = buffer[10:]
    buffer.resize((4, 5))
    assert (buffer.shape, buffer.nbytes) == ((4, 5), 20)
    assert buffer.to_bytes() == struct.pack("6H", *range(6)) + bytes(8)
    assert last.to_bytes() == struct.pack("H", 5)
    buffer.resize(4)
    assert buffer.to_bytes() == struct.pack("2H", 0, 1)
    with pytest.raises(forebay.InvalidError):
        last.to_bytes()
    for wrong in (-1, 2**63, (2**40, 2**40)):
        with pytest.raises(forebay.InvalidError):
            buffer.resize(wrong)
    assert buffer.shape == (4,)


def test_buffers_are_copied_from_each_other(memory):
    source, target = memory.buffer_from(b"0123456789"), memory.buffer(10)
    source.synchronize()
    target.copy_(source)
    assert target.to_bytes() == b"0123456789"
    target[2:4].copy_(source[8:])
    assert target.to_bytes() == b"0189456789"
    # Of one buffer, and where they overlap.
    target[1:9].copy_(target[:8])
    assert target.to_bytes() == b"0018945679"
    target[7:].copy_(source[:3])
    assert target.to_bytes() == b"0018945012"
    other = forebay.BufferManager("host").buffer(10)
    other.copy_(source)
    assert other.to_bytes() == b"0123456789"
    stream = memory.device.stream()
    target.copy_(other, stream=stream)
    assert target.to_bytes() == b"0123456789"
    for wrong in (lambda: target.copy_(target), lambda: target[1:].copy_(source)):
        with pytest.raises(forebay.InvalidError):
            wrong()
    with source.host(write=True), pytest.raises(forebay.InUseError):
        target.copy_(source)


@pytest.mark.parametrize(
    ("dtype", "value", "format"),
    [("uint8", 7, "B"), ("int16", -3, "h"), ("float32", 2.5, "f"), ("float64", -1e300, "d"), ("bool", True, "?"),
     ("uint64", 2**64 - 1, "Q"), ("float16", 0.5, "e")],
)  # fmt: skip
def test_a_fill_gives_elements_one_value(memory, dtype, value, format):
    buffer = memory.buffer(100, dtype)
    buffer[10:90].fill(value)
    edge, inside = [0] * 10, [value] * 80
    assert list(struct.unpack(f"100{format}", buffer.to_bytes())) == edge + inside + edge
    buffer[:50].fill(0)
    assert struct.unpack(f"100{format}", buffer.to_bytes())[49:51] == (0, value)


def test_a_value_that_no_element_has_is_refused(memory):
    for dtype, value in (("uint8", 256), ("uint8", -1), ("int32", 2.5), ("float32", "x"), ("complex64", "x"), ("bfloat16", "x")):
        with pytest.raises(forebay.InvalidError, match=dtype):
            memory.buffer(10, dtype).fill(value)


def test_numpy_shares_the_host_side(memory):
    np = pytest.importorskip("numpy")
    source = np.arange(12, dtype=np.float64).reshape(3, 4)
    buffer = memory.buffer_from(source)
    assert (buffer.dtype, buffer.shape) == ("float64", (3, 4))
    array = buffer.numpy()
    assert not array.flags.writeable and (array == source).all()
    assert array.ctypes.data == buffer.numpy().ctypes.data
    with pytest.raises(forebay.InUseError):
        buffer.numpy(write=True)
    del array
    gc.collect()
    writable = buffer.numpy(write=True)
    writable[0, 0] = 5
    with pytest.raises(forebay.InUseError):
        buffer.on_device()
    part = writable[1:]
    del writable
    with pytest.raises(forebay.InUseError):
        buffer.on_device()
    del part
    buffer.on_device()
    assert buffer.numpy()[0, 0] == 5
    with buffer.host(write=True) as view:
        kept = np.asarray(view)
    with pytest.raises(forebay.InUseError):
        buffer.on_device()
    del kept
    buffer.on_device()


def test_dlpack_is_the_device_side():
    np = pytest.importorskip("numpy")
    buffer = forebay.BufferManager("host").buffer(10, "int32")
    assert buffer.__dlpack_device__() == (1, 0)
    array = np.from_dlpack(buffer)
    array[3] = 4
    with pytest.raises(forebay.InUseError, match="exported on the device"):
        buffer.on_host()
    del array
    assert buffer.numpy()[3] == 4


def test_cuda_arrays_are_the_device_side(cuda):
    buffer = forebay.BufferManager(cuda).buffer((2, 3), "float32")
    assert buffer.__dlpack_device__() == (2, 0)
    view = buffer.on_device()
    interface = view.__cuda_array_interface__
    assert interface["shape"] == (2, 3) and interface["data"] == (view.address, False)
    shared = forebay.from_dlpack(buffer)
    del view
    with pytest.raises(forebay.InUseError):
        buffer.on_host()
    del shared
    buffer.on_host()


def test_threads_never_write_at_once(memory):
    buffer = memory.buffer(8)
    written, wrong = [], []

    def write(number: int) -> None:
        for _ in range(200):
            try:
                with buffer.host(write=True) as view:
                    view[:] = bytes([number]) * 8
                    if len(set(view)) != 1:
                        wrong.append(number)
                    written.append(number)
            except forebay.InUseError:
                pass

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written and not wrong
    assert buffer.statistics()["views"] == 0


def test_a_sequence_that_says_it_is_endless_is_refused(memory):
    with pytest.raises(forebay.InvalidError, match="is not a shape"):
        memory.buffer(range(1 << 50))
    with forebay.Pool("host") as pool:
        for call in (pool.allocate_batch, pool.warmup):
            with pytest.raises(MemoryError, match="8.0 PiB|requested"):
                call(range(1 << 50))
            with pytest.raises(TypeError):
                call("1MiB")


SHORT_OF_MEMORY = """
import forebay, resource, sys
size = 256 << 20
memory = forebay.BufferManager("host")
one, two, other = memory.buffer(size, "uint8"), memory.buffer(size, "uint8"), bytearray(size)
one.fill(1)
shared = memory.shared(f"short-{sys.argv[1]}", size, "uint8")
(used,) = (int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmSize"))
# No room for another copy.
resource.setrlimit(resource.RLIMIT_AS, (used + size // 2,) * 2)
calls = {
    "to_bytes": one.to_bytes,
    "write": lambda: shared.write(other),
    "read": shared.read,
    "read_into": lambda: shared.read_into(other),
}
for name, call in calls.items():
    try:
        call()
    except MemoryError as error:
        print(name, getattr(error, "requested", None) in (None, size, size // 4 * 3))
print("first", memoryview(one.on_host())[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses are Linux's")
def test_a_host_without_memory_for_a_copy_raises():
    command = [sys.executable, "-c", SHORT_OF_MEMORY, str(os.getpid())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    names = ["to_bytes", "write", "read", "read_into"]
    assert ended.stdout.splitlines() == [f"{name} True" for name in names] + ["first 1"]
