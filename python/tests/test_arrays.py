"""Arrays: made, sliced, copied with types that are checked, shown, and let go."""

from __future__ import annotations

import gc
import sys

import pytest

import forebay

np = pytest.importorskip("numpy")


@pytest.fixture(params=["pool", "pinned", "unified"])
def make(request, pool):
    """Makes an array of each kind of memory: ``make(shape, dtype)``."""
    if request.param == "pool":
        yield pool.empty
    elif request.param == "pinned":
        yield forebay.PinnedPool(pool.device).empty
    else:
        yield forebay.BufferManager(pool).buffer
    gc.collect()


def filled(make, values):
    """An array of these values."""
    values = np.asarray(values)
    return make(values.shape, values.dtype).copy_(values)


def test_every_kind_of_memory_is_an_array(make):
    x = filled(make, np.arange(12, dtype="f4").reshape(3, 4))
    assert isinstance(x, forebay.Array)
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((3, 4), 2, 12, 4, 48, 3)
    assert x.dtype == np.float32 == np.dtype("<f4") and x.dtype == "float32"
    assert np.array_equal(x.numpy(), np.arange(12).reshape(3, 4)) and x.numpy().dtype == np.float32
    assert np.array_equal(np.asarray(x), x.numpy()) and np.asarray(x).dtype == np.float32
    assert np.array_equal(np.array(x, dtype="f8"), x.numpy())


def test_rows_are_taken_by_number_and_range(make):
    whole = np.arange(40, dtype="i4").reshape(10, 4)
    x = filled(make, whole)
    for key in (slice(2, 5), slice(None, None, 3), slice(1, None, 2), slice(7, 3), slice(-3, None), slice(0, 10, 100)):
        assert np.array_equal(x[key].numpy(), whole[key]), key
        assert x[key].to_bytes() == whole[key].tobytes(), key
    assert np.array_equal(x[::2][1::2].numpy(), whole[::2][1::2]), "a part of a part"
    assert np.array_equal(x[3].numpy(), whole[3]) and np.array_equal(x[-1].numpy(), whole[-1])
    assert x[3][2].item() == 14 and x[3][2].shape == () and x[np.int64(3)].shape == (4,)
    assert np.array_equal(x[...].numpy(), whole)
    assert [row.numpy().tolist() for row in x] == whole.tolist()
    for wrong in (10, -11, 2**62):
        with pytest.raises(IndexError, match="of 10"):
            x[wrong]
    with pytest.raises(ValueError, match="step of -1"):
        x[::-1]
    for wrong in ((1, 2), "a", 1.5, None):
        with pytest.raises(TypeError):
            x[wrong]


def test_rows_are_given_values_and_arrays(make):
    x = filled(make, np.zeros((6, 3), "f4"))
    x[1] = 2.5
    x[2:4] = np.float32(1)
    x[::5] = np.array([[1, 2, 3], [4, 5, 6]], "f4")
    x[4] = x[0]
    expected = np.array([[1, 2, 3], [2.5] * 3, [1] * 3, [1] * 3, [1, 2, 3], [4, 5, 6]], "f4")
    assert np.array_equal(x.numpy(), expected)
    with pytest.raises(ValueError, match="float64"):
        x[1] = np.zeros(3)
    with pytest.raises(ValueError, match="shapes"):
        x[1] = np.zeros(2, "f4")
    assert np.array_equal(x.numpy(), expected), "nothing was changed"


def test_rows_that_overlap_are_copied_as_if_all_at_once(make):
    for target, source in ((slice(1, 9), slice(0, 8)), (slice(0, 10, 2), slice(0, 5)), (slice(5, 10), slice(0, 10, 2))):
        whole = np.arange(30, dtype="i8").reshape(10, 3)
        x = filled(make, whole)
        x[target].copy_(x[source])
        whole[target] = whole[source].copy()
        assert np.array_equal(x.numpy(), whole), (target, source)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "float16", "float32", "int64", "float64", "complex64",
                                   "complex128"])
def test_a_fill_gives_elements_of_any_type_a_value(make, dtype):
    value = {"b": True, "c": 1.5 - 2j}.get(np.dtype(dtype).kind, 3)
    whole = np.zeros((50, 7), dtype)
    x = filled(make, whole)
    x[5:45].fill(value)
    whole[5:45] = value
    x[::9].fill(0)
    whole[::9] = 0
    assert np.array_equal(x.numpy(), whole)
    x.fill(value)
    assert (x.numpy() == value).all()


def test_shapes_change_without_a_copy(make):
    x = filled(make, np.arange(24, dtype="i2"))
    assert x.reshape(2, 3, 4).shape == (2, 3, 4) and x.reshape((4, -1)).shape == (4, 6)
    assert x.reshape(-1).shape == (24,) and x.reshape([24, 1]).shape == (24, 1)
    x.reshape(4, 6)[1] = 7
    assert x.numpy()[6:12].tolist() == [7] * 6
    for wrong in ((5, 5), (-1, 5), (-1, -1), (-2, 12), (2**40, 2**40)):
        with pytest.raises(ValueError):
            x.reshape(*wrong)
    with pytest.raises(TypeError):
        x.reshape("24")
    with pytest.raises(ValueError, match="rows lie apart"):
        x.reshape(12, 2)[::2].reshape(12)


def test_bytes_are_taken_for_another_type_only_by_view(make):
    x = filled(make, np.array([1.0, 2.0], "f4"))
    bits = x.view("uint32")
    assert bits.shape == (2,) and bits.numpy().tolist() == [0x3F800000, 0x40000000]
    assert x.view("u1").shape == (8,) and x.view("f8").shape == (1,) and x.view("u1", (2, 4)).shape == (2, 4)
    with pytest.raises(ValueError, match="whole number"):
        x[:1].view("f8")
    cast = x.cast("int64")
    assert cast.dtype == np.int64 and cast.numpy().tolist() == [1, 2] and cast.device == x.device


WRONG = [np.zeros((2, 3), "i4"), np.zeros((2, 3), "f8"), np.zeros(6, "f4"), np.zeros((1, 3), "f4"), np.zeros((3, 2), "f4"),
         np.zeros((2, 3), ">f4"), b"\0" * 24, bytearray(24)]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_copies_check_type_and_shape(make, number):
    """Of the old ones some read 1.4e-45, and some filled a part in silence."""
    given, x = WRONG[number], filled(make, np.ones((2, 3), "f4"))
    uses = [lambda: x.copy_(given), lambda: x.upload(given)]
    if not isinstance(given, bytes):
        uses.append(lambda: x.download(into=given))
    for use in uses:
        with pytest.raises(ValueError, match="float32|byte order|same"):
            use()
    assert (x.numpy() == 1).all() and not np.frombuffer(bytes(given), "u1").any(), "nothing was copied"
    x.upload(np.full((2, 3), 2, "f4"))
    assert (x.download() == 2).all()
    into = np.zeros((2, 3), "f4")
    assert x.download(into=into) is into and (into == 2).all()


def test_downloads_into_memory_that_lies_apart_say_what_helps(pool):
    x, into = pool.zeros(4, "f4"), np.ones(8, "f4")
    with pytest.raises(forebay.Error, match=r"target\[\.\.\.\] = x\.download\(\)"):
        x.download(into=into[::2])
    into[::2] = x.download()
    assert into.tolist() == [0, 1] * 4


def test_arrays_of_all_devices_are_copied_to_each_other():
    kinds = {
        "host": forebay.pool("host").empty,
        "sim": forebay.pool("sim").empty,
        "pinned": forebay.PinnedPool("sim").empty,
        "unified": forebay.BufferManager("sim").buffer,
        "unified host": forebay.BufferManager("host").buffer,
    }
    whole = np.arange(2000, dtype="i4").reshape(100, 20)
    for one, first in kinds.items():
        for other, second in kinds.items():
            for rows in (slice(None), slice(None, None, 3)):
                source, target = filled(first, whole), filled(second, np.zeros_like(whole))
                target[rows].copy_(source[rows])
                expected = np.zeros_like(whole)
                expected[rows] = whole[rows]
                assert np.array_equal(target.numpy(), expected), (one, other, rows)


def test_everyone_types_these_first(device):
    x = forebay.zeros((3, 4), device=device.name)
    assert x.dtype == np.float64 and x.device == device and not x.numpy().any()
    assert forebay.empty(5, "f4", device=device).shape == (5,)
    assert forebay.full((2, 2), 7, device=device).dtype == np.int64
    assert forebay.full(2, 1.5, "float16", device=device).numpy().tolist() == [1.5, 1.5]
    assert forebay.full((), True, device=device).item() is True
    assert forebay.array([[1, 2], [3, 4]], device=device).numpy().tolist() == [[1, 2], [3, 4]]
    assert forebay.array(2.5, device=device).shape == ()
    assert forebay.array(np.arange(10)[::3], "f4", device=device).numpy().tolist() == [0, 3, 6, 9]
    assert forebay.array(np.arange(6, dtype=">i4").reshape(2, 3).T, device=device).numpy().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert forebay.array(x, device="host").device.name == "host"
    with forebay.Pool(device) as pool:
        assert pool.array([1.0, 2.0]).numpy().tolist() == [1, 2]
        assert forebay.zeros(4, device=pool).device == device
        gc.collect()
    for wrong in (lambda: forebay.zeros("3"), lambda: forebay.zeros(3, 5), lambda: forebay.array(object()),
                  lambda: forebay.array(["a"])):
        with pytest.raises((TypeError, ValueError)):
            wrong()
    with pytest.raises(TypeError):
        forebay.zeros(object())


def test_asarray_copies_only_if_it_must():
    own = forebay.zeros(4, "f4")
    assert forebay.asarray(own) is own and forebay.asarray(own, "f4") is own
    assert forebay.asarray(own, "f8") is not own
    there = np.arange(5.0)
    shared = forebay.asarray(there)
    shared[0] = 9
    assert there[0] == 9
    frozen = np.arange(3.0)
    frozen.flags.writeable = False
    copy = forebay.asarray(frozen)
    copy[0] = 5
    assert frozen[0] == 0
    assert forebay.asarray(own, device="sim").device.name == "sim"
    assert forebay.asarray([1, 2]).numpy().tolist() == [1, 2]


def test_types_have_numpys_names(host, monkeypatch):
    names = ["f4", "<f4", "=f4", "float32", np.float32, np.dtype("f4"), "f", "single"]
    assert {host.empty(1, name).dtype for name in names} == {np.dtype("float32")}
    assert host.empty(1, float).dtype == np.float64 and host.empty(1, bool).dtype == np.bool_
    with pytest.raises(ValueError, match="byte order"):
        host.empty(1, ">f4")
    with pytest.raises(ValueError, match="float31.*expected one of uint8"):
        host.empty(1, "float31")
    with pytest.raises(TypeError, match="is not an element type"):
        host.empty(1, 32)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_types_of_machine_learning(name, make):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.array([[0.5, 1, 2], [4, 8, 16]], dtype)
    x = filled(make, values)
    assert x.dtype == dtype and np.array_equal(x.numpy(), values) and np.asarray(x).dtype == dtype
    assert np.array_equal(x[1].numpy(), values[1]) and np.array_equal(x.download(), values)
    x.fill(2)
    assert (x.numpy().astype("f4") == 2).all()
    assert x.cast("f4").numpy().tolist() == [[2] * 3] * 2
    assert forebay.array([1, 2], name).dtype == dtype


def test_a_representation_shows_the_values(make):
    x = filled(make, np.array([[1.5, 2], [3, 4]], "f4"))
    assert "[1.5, 2. ]" in repr(x) and "dtype=float32" in repr(x) and x.device.name in repr(x)
    big = make((1000, 1000), "f8")
    assert "float64 (1000, 1000)" in repr(big) and len(repr(big)) < 200
    x.free()
    assert "freed" in repr(x) and "float32 (2, 2)" in repr(x)


def test_memory_goes_with_the_last_array(pool):
    x = pool.zeros((4, 4), "f4")
    part = x[1:3]
    assert x.buffer.size == 64 and x.buffer.address == x.address
    with pytest.raises(forebay.InUseError, match="1 view"):
        x.free()
    assert not x.freed and not x.numpy().any(), "as before"
    with x:
        pass
    assert x.freed and not part.numpy().any()
    with pytest.raises(forebay.ClosedError, match="freed"):
        x.numpy()
    part.free()
    assert pool.statistics()["live_bytes"] == 0
    with pytest.raises(forebay.ClosedError):
        part.free()
    part.close()
    with pytest.raises(forebay.ClosedError, match="before this with"), part:
        pass


def test_a_with_never_hides_an_error_and_does_not_raise_for_views(host):
    with pytest.raises(RuntimeError, match="the real one") as told, host.allocate(100) as buffer:
        kept = np.asarray(buffer)
        raise RuntimeError("the real one")
    assert told.value.__context__ is None and buffer.freed
    kept[:] = 3
    with host.allocate(100) as buffer:
        array = np.asarray(buffer)
        array[:] = 5
    with pytest.raises(forebay.ClosedError):
        buffer.to_bytes()
    assert kept.sum() == 300 and array.sum() == 500, "memory of its own for each"
    assert host.statistics()["live_bytes"] >= 200
    del kept, array
    gc.collect()
    assert host.statistics()["live_bytes"] == 0
    with pytest.raises(forebay.ClosedError, match="before this with"), buffer:
        pass


def test_tensors_of_other_libraries_share_the_memory(host):
    x = host.full((6, 2), 3.0, "f4")
    lent = np.from_dlpack(x[::2])
    assert lent.shape == (3, 2) and lent.strides == (16, 4)
    lent[:] = 1
    assert x.numpy()[::2].tolist() == [[1, 1]] * 3 and x.numpy()[1].tolist() == [3, 3]
    memory = memoryview(x[::2])
    assert memory.strides == (16, 4) and not memory.c_contiguous
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(x[::2], "f4")
    memory.release()


def test_it_works_without_numpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    x = forebay.zeros((2, 3), "float32")
    assert x.dtype == "float32" and x.to_bytes() == bytes(24)
    x[1] = 2
    assert memoryview(x)[1, 2] == 2 and "float32 (2, 3)" in repr(x)
    with pytest.raises(ImportError):
        x.numpy()


def test_pinned_memory_is_copied_without_waiting(device):
    pinned, pool = forebay.PinnedPool(device).empty(1 << 16, "u1"), forebay.Pool(device)
    pinned.fill(7)
    stream = device.stream()
    x = pool.zeros(1 << 16, "u1", stream=stream)
    assert x.stream.handle == stream.handle
    assert x.copy_(pinned, stream=stream, wait=False) is x
    x.wait()
    assert x.idle and x.to_bytes() == b"\7" * (1 << 16)
    del x
    gc.collect()
    pool.close()
