"""Buffers: their life, their bytes, and what goes wrong."""

from __future__ import annotations

import gc
import weakref

import pytest

import forebay


def test_bytes_come_back_as_they_were_written(pool):
    data = bytes(range(256)) * 40
    with pool.allocate(len(data)) as buffer:
        assert buffer.size == buffer.nbytes == len(buffer) == len(data)
        buffer.copy_from(data)
        assert buffer.to_bytes() == data
        part = bytearray(100)
        buffer.copy_to(part, offset=3)
        assert part == data[3:103]
        buffer.copy_from(memoryview(b"abc"), offset=10)
        assert buffer.to_bytes()[8:15] == data[8:10] + b"abc" + data[13:15]
        buffer.fill(0xEE, offset=1, size=5)
        assert buffer.to_bytes()[:7] == data[:1] + b"\xee" * 5 + data[6:7]
        buffer.fill(9, wait=False)
        assert buffer.to_bytes() == b"\x09" * len(data)
    assert buffer.freed and "freed" in repr(buffer)


def test_buffers_are_copied_on_their_device(pool, device):
    stream = device.stream()
    with pool.allocate(5000) as one, pool.allocate(5000, stream=stream) as two:
        one.fill(1)
        two.copy_from(one)
        assert two.to_bytes() == b"\x01" * 5000
        two.fill(2, wait=False)
        two.copy_to(one)
        assert one.to_bytes() == b"\x02" * 5000
        with pytest.raises(forebay.InvalidError, match="do not lie within"):
            one.copy_from(two, offset=1)


def test_a_buffer_is_copied_onto_itself(host):
    with host.allocate(10_000) as buffer:
        data = bytes(range(250)) * 40
        buffer.copy_from(data)
        with memoryview(buffer) as memory:
            buffer.copy_from(memory[:9_000], offset=1_000)
            assert buffer.to_bytes() == data[:1_000] + data[:9_000]
            buffer.copy_to(memory[500:1_500], offset=0)
        assert buffer.to_bytes()[500:1_500] == data[:1_000]


def test_memory_of_the_host_is_copied_to_any_device(accelerator, host):
    with forebay.Pool(accelerator) as pool, pool.allocate(16) as here, host.allocate(16) as there:
        there.fill(ord("x"), wait=False)
        here.copy_from(there)
        assert here.to_bytes() == b"x" * 16
        here.fill(ord("y"))
        here.copy_to(there)
        assert there.to_bytes() == b"y" * 16


def test_memory_is_copied_between_two_devices(cuda):
    with forebay.Pool(cuda) as pool, forebay.Pool("sim") as other:
        with pool.allocate(16) as here, other.allocate(16) as there:
            there.fill(ord("x"), wait=False)
            here.copy_from(there)
            assert here.to_bytes() == b"x" * 16
            here.fill(ord("y"), wait=False)
            here.copy_to(there)
            assert there.to_bytes() == b"y" * 16


@pytest.mark.parametrize("offset,size", [(0, 101), (100, 1), (2**63, 1), (50, 51)])
def test_what_lies_outside_is_refused(pool, offset, size):
    with pool.allocate(100) as buffer:
        with pytest.raises(forebay.InvalidError, match="do not lie within"):
            buffer.copy_from(bytes(size), offset=offset)
        with pytest.raises(forebay.InvalidError, match="do not lie within"):
            buffer.copy_to(bytearray(size), offset=offset)
        with pytest.raises(forebay.InvalidError, match="do not lie within"):
            buffer.fill(0, offset=offset, size=size)


def test_negative_and_odd_arguments_are_exceptions(pool):
    with pool.allocate(100) as buffer:
        for use in (
            lambda: buffer.copy_from(b"x", offset=-1),
            lambda: buffer.fill(256),
            lambda: buffer.fill(-1),
            lambda: buffer.copy_from("text"),
            lambda: buffer.copy_from(3),
            lambda: buffer.copy_from(None),
            lambda: buffer.copy_to(b"read alone"),
            lambda: buffer.view("float32", (-1,)),
            lambda: buffer.free(stream="x"),
        ):
            with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
                use()
        assert buffer.to_bytes() is not None


@pytest.mark.parametrize("size,error", [
    (-1, ValueError), (2**64, ValueError), ("much", ValueError), (True, TypeError), (1.5, TypeError), (None, TypeError),
    ([1], TypeError),
])
def test_what_is_no_size_is_refused(pool, size, error):
    with pytest.raises(error, match="a size cannot be"):
        pool.allocate(size)


def test_no_bytes_are_a_buffer_too(pool):
    with pool.allocate(0) as buffer:
        assert (buffer.size, buffer.address, len(buffer)) == (0, 0, 0)
        assert buffer
        buffer.copy_from(b"")
        buffer.fill(1)
        assert buffer.to_bytes() == b""
        if pool.device.name == "host":
            assert bytes(memoryview(buffer)) == b""


def test_a_freed_buffer_is_refused_everywhere(pool):
    buffer = pool.allocate(100)
    buffer.free()
    for use in (
        lambda: buffer.free(),
        lambda: buffer.address,
        lambda: buffer.to_bytes(),
        lambda: buffer.copy_from(b"x"),
        lambda: buffer.copy_to(bytearray(1)),
        lambda: buffer.fill(0),
        lambda: buffer.view(),
        lambda: memoryview(buffer),
        lambda: buffer.__dlpack__(),
        lambda: buffer.__cuda_array_interface__,
    ):
        with pytest.raises(forebay.ClosedError, match="freed"):
            use()
    buffer.close()
    assert buffer.freed


def test_a_buffer_that_goes_gives_its_memory_back(pool):
    buffer = pool.allocate("1MiB")
    assert pool.statistics()["live_bytes"] == 1 << 20
    there = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert there() is None
    assert pool.statistics()["live_bytes"] == 0


def test_an_exception_in_a_with_frees_it_as_well(pool):
    with pytest.raises(KeyError), pool.allocate(100) as buffer:
        raise KeyError
    assert buffer.freed


def test_buffers_and_views_are_made_by_others():
    for made in (forebay.Buffer, forebay.Array):
        with pytest.raises(TypeError, match="are made by"):
            made()
        with pytest.raises(TypeError, match="are made by"):
            made(b"parcel")
    with pytest.raises(TypeError):
        type("Mine", (forebay.Buffer,), {})


def test_freeing_on_another_stream_keeps_order(pool, device):
    stream = device.stream()
    for _ in range(20):
        buffer = pool.allocate("64KiB")
        buffer.fill(3, stream=stream, wait=False)
        buffer.free(stream)
        again = pool.allocate("64KiB")
        again.fill(4)
        assert set(again.to_bytes()) == {4}
        again.free()


def test_what_is_freed_on_another_stream_waits_for_its_own(pool, device):
    """The memory is reused only once the work on its own stream is done, and then it is."""
    own, other = device.stream(), device.stream()
    addresses = set()
    for _ in range(5):
        buffer = pool.allocate("32MiB", stream=own)
        addresses.add(buffer.address)
        for _ in range(8):
            buffer.fill(3, wait=False)
        buffer.free(other)
        with pool.allocate("32MiB", stream=other) as again:
            addresses.add(again.address)
            again.fill(4)
            own.synchronize()
            is_filled = again.to_bytes() == b"\4" * len(again)
            assert is_filled
    assert len(addresses) <= 3, "no round needs memory of its own"


def test_a_part_of_an_arena_waits_for_other_streams_too(pool, device):
    own, other = device.stream(), device.stream()
    with pool.arena("32MiB", stream=own) as arena:
        part = arena.allocate("32MiB")
        for _ in range(8):
            part.fill(3, stream=other, wait=False)
        arena.reset()
        part = arena.allocate("32MiB")
        part.fill(4)
        other.synchronize()
        is_filled = part.to_bytes() == b"\4" * len(part)
        assert is_filled


def test_alignment(pool):
    with pool.allocate(100, alignment=1 << 16) as buffer:
        assert buffer.address % (1 << 16) == 0
    with pytest.raises(forebay.InvalidError, match="power of two"):
        pool.allocate(100, alignment=3)


def test_a_block_of_python_is_freed_by_nobody_else(cuda):
    """PyTorch's free, by address, of a block that Python has: refused, and the buffer stays whole."""
    import ctypes

    library = ctypes.CDLL(forebay.library_path())
    library.forebay_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    buffer = cuda.pool().allocate(1000)
    live = cuda.pool().statistics()["blocks"]
    library.forebay_torch_free(buffer.address, 1000, 0, None)
    assert cuda.pool().statistics()["blocks"] == live
    buffer.free()
    assert cuda.pool().statistics()["blocks"] == live - 1



def test_pinned_memory_is_the_hosts(device):
    buffer = device.pinned(4096)
    memory = memoryview(buffer)
    memory[:3] = b"abc"
    assert buffer.to_bytes()[:3] == b"abc"
    with forebay.Pool(device) as pool, pool.allocate(3) as there:
        there.copy_from(memory[:3])
        assert there.to_bytes() == b"abc"
        there.fill(ord("z"))
        there.copy_to(memory[:3])
        assert bytes(memory[:4]) == b"zzz" + bytes(memory[3:4])
    with pytest.raises(forebay.InUseError):
        buffer.free()
    memory.release()
    buffer.fill(5)
    assert set(buffer.to_bytes()) == {5}
    buffer.free()
    with pytest.raises(forebay.ClosedError):
        buffer.free()


def test_numbers_out_of_range_are_forebays_own_errors(host):
    with host.allocate(64) as buffer:
        view = buffer.view("int8")
        for use in (
            lambda: buffer.view("int8", offset=-1),
            lambda: buffer.copy_from(b"x", offset=-1),
            lambda: buffer.copy_to(bytearray(1), offset=2**70),
            lambda: buffer.fill(256),
            lambda: buffer.fill(-1),
            lambda: buffer.fill(1, offset=-1),
            lambda: buffer.fill(1, size=-1),
            lambda: host.allocate(1, alignment=-1),
            lambda: host.arena(4096).allocate(1, alignment=2**64),
            lambda: forebay.trace_origins(-1),
            lambda: forebay.replay("/nowhere.csv", passes=-1),
        ):
            with pytest.raises(forebay.InvalidError, match="out of range"):
                use()
        for use in (lambda: buffer.fill("x"), lambda: buffer.view("int8", offset=1.5)):
            with pytest.raises(TypeError):
                use()
        del view


def test_a_with_does_not_hide_what_its_body_raises(pool):
    with pytest.raises(IndexError, match="the real one"):
        with pool.allocate(24) as buffer:
            view = buffer.view("uint8", (24,))
            held = view.view("uint8", (24,))
            raise IndexError("the real one")
    assert buffer.freed and view.to_bytes() == held.to_bytes(), "the memory goes with the last array"
    del view, held
    gc.collect()
    assert pool.statistics()["live_bytes"] == 0
    with pytest.raises(IndexError, match="the real one"):
        with pool.arena("1MiB") as arena:
            part = arena.allocate(100)
            view = part.view("uint8", (100,))
            raise IndexError("the real one")
    del view, part


def test_a_callback_has_to_be_callable():
    for name in ("on_shortage", "on_pressure", "on_leak"):
        with pytest.raises(TypeError, match=f"{name} must be callable, not int"):
            forebay.Pool("host", **{name: 3})
