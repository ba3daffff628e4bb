"""The buffer protocol, numpy, DLPack and __cuda_array_interface__."""

from __future__ import annotations

import ctypes
import gc
import threading

import pytest
import streams_of_driver

import forebay

np = pytest.importorskip("numpy")
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def test_the_host_sees_its_memory(host):
    buffer = host.allocate(4096)
    memory = memoryview(buffer)
    assert (memory.format, memory.shape, memory.strides, memory.itemsize) == ("B", (4096,), (1,), 1)
    assert not memory.readonly and memory.c_contiguous
    memory[:5] = b"hello"
    array = np.asarray(buffer)
    assert array.dtype == np.uint8 and array[:5].tobytes() == b"hello"
    array[0] = ord("H")
    assert buffer.to_bytes()[:5] == b"Hello"
    assert np.frombuffer(buffer, dtype=np.float32).shape == (1024,)
    assert array.ctypes.data == buffer.address


def test_a_device_does_not_show_its_memory_to_the_host(accelerator):
    with forebay.Pool(accelerator) as pool, pool.allocate(64) as buffer:
        for use in (lambda: memoryview(buffer), lambda: bytes(buffer.view("int8"))):
            with pytest.raises(forebay.ExportError, match="the host cannot reach memory"):
                use()
        with pytest.raises(ValueError, match="without a copy"):
            np.asarray(buffer, copy=False) if NUMPY_2 else buffer.__array__(copy=False)
        buffer.fill(3)
        copied = np.asarray(buffer)
        assert copied.tobytes() == b"\3" * 64 and not copied.flags.writeable
        assert np.array(buffer).flags.writeable
        with pytest.raises(BufferError):
            memoryview(buffer)


@pytest.mark.parametrize("export", [memoryview, np.asarray, np.from_dlpack, lambda it: it.view("int8"),
                                    lambda it: it.__dlpack__(), lambda it: it.__dlpack__(max_version=(1, 0))])
def test_views_keep_the_memory(host, export):
    buffer = host.allocate(1024)
    view = export(buffer)
    with pytest.raises(forebay.InUseError, match="1 view"):
        buffer.free()
    assert not buffer.freed
    del buffer
    gc.collect()
    assert host.statistics()["live_bytes"] == 1024, "the view has it"
    del view
    gc.collect()
    assert host.statistics()["live_bytes"] == 0
    assert forebay.lost_frees()[0] == 0


def test_a_view_of_a_view_keeps_it_too(host):
    buffer = host.allocate(1024)
    inner = buffer.view("uint8", 512, offset=512).view("float32").reshape(8, -1)
    array = np.asarray(inner)
    del buffer, inner
    array[:] = 1.5
    assert host.statistics()["live_bytes"] == 1024
    assert array.sum() == 8 * 16 * 1.5
    del array
    gc.collect()
    assert host.statistics()["live_bytes"] == 0


TYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
         "float64", "complex64", "complex128"]


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_is_the_same_in_every_protocol(host, dtype):
    with host.allocate(4096) as buffer:
        buffer.fill(0)
        view = buffer.view(dtype, (2, 3, 4), offset=64)
        array, lent = np.asarray(view), np.from_dlpack(view)
        assert array.dtype == lent.dtype == np.dtype(dtype)
        assert array.shape == lent.shape == view.shape == (2, 3, 4)
        array[1, 2, 3] = 1
        assert lent[1, 2, 3] == 1
        assert lent.ctypes.data == view.address == buffer.address + 64
        assert view.nbytes == array.nbytes and view.dtype == dtype
        back = forebay.from_dlpack(array)
        assert (back.dtype, back.shape, back.address) == (dtype, (2, 3, 4), view.address)
        assert buffer.view(np.dtype(dtype)).shape == (4096 // array.itemsize,)
        assert buffer.view(getattr(np, dtype.replace("bool", "bool_"))).shape == (4096 // array.itemsize,)
        del array, lent, back, view


def test_bfloat16_goes_by_dlpack_alone(host):
    with host.allocate(64) as buffer:
        view = buffer.view("bfloat16")
        with pytest.raises(forebay.ExportError, match="bfloat16"):
            memoryview(view)
        assert forebay.from_dlpack(view).dtype == "bfloat16"
        del view


@pytest.mark.parametrize("dtype,shape,offset,said", [
    ("float31", None, 0, "is not an element type"),
    ("float64", (13,), 0, "take more than the 100 B"),
    ("float64", None, 0, "not a whole number of float64"),
    ("uint8", (2**40, 2**40), 0, "take more than"),
    ("uint8", None, 101, "past the end"),
    ("int32", (2,), 2, "aligned to 4 B"),
    ("uint8", (1,) * 65, 0, "at most 64"),
    ("uint8", -1, 0, "is not a shape"),
])
def test_views_that_cannot_be_are_refused(host, dtype, shape, offset, said):
    with host.allocate(100) as buffer, pytest.raises(forebay.InvalidError, match=said):
        buffer.view(dtype, shape, offset)


def test_strides_of_the_buffer_protocol_are_asked_for_one_by_one(host):
    with host.allocate(240) as buffer:
        view = buffer.view("float64", (5, 6))
        memory = memoryview(view)
        assert (memory.shape, memory.strides, memory.format) == ((5, 6), (48, 8), "d")
        assert memory.tobytes() == buffer.to_bytes()
        memory.release()
        plain = (ctypes.c_char * 240).from_buffer(view)
        del plain
        gc.collect()
        with pytest.raises(forebay.ExportError, match="in C order"):
            _fortran(view)
        del view


def _fortran(view):
    """Asks for memory in which the first index runs fastest."""
    release, get = ctypes.pythonapi.PyBuffer_Release, ctypes.pythonapi.PyObject_GetBuffer
    place = (ctypes.c_byte * 256)()
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    get(view, place, 0x40 | 0x10 | 0x8)
    release(place)


def test_a_single_element_has_no_shape(host):
    with host.allocate(8) as buffer:
        view = buffer.view("float64", ())
        memory = memoryview(view)
        assert (memory.ndim, memory.shape, memory.strides, memory.nbytes) == (0, (), (), 8)
        memory[()] = 2.5
        assert np.asarray(view)[()] == 2.5
        memory.release()
        get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
        get.argtypes, release.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int], [ctypes.c_void_p]
        place = _RawView()
        get(view, ctypes.addressof(place), 0x18)
        assert (place.ndim, place.shape, place.strides) == (0, None, None), "as the protocol has it"
        release(ctypes.addressof(place))
        del view


class _RawView(ctypes.Structure):
    """Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("suboffsets", ctypes.c_void_p), ("internal", ctypes.c_void_p),
    ]


def test_memory_lent_by_numpy_is_shared_and_kept(host):
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    view = forebay.from_dlpack(array)
    array[0, 0] = 99
    assert np.asarray(view)[0, 0] == 99
    view.copy_(np.ones((3, 4), np.int32))
    assert array.sum() == 12
    address = array.ctypes.data
    del array
    gc.collect()
    assert view.address == address and view.to_bytes() == np.ones(12, np.int32).tobytes()


def test_read_only_memory_stays_so():
    array = np.arange(4)
    array.flags.writeable = False
    view = forebay.from_dlpack(array)
    assert view.readonly and memoryview(view).readonly
    with pytest.raises(forebay.InvalidError, match="read-only"):
        view.copy_(np.zeros(4, int))
    with pytest.raises(forebay.ExportError, match="read-only"):
        view.__dlpack__()
    assert np.from_dlpack(view).flags.writeable is False


def test_what_cannot_be_lent_is_refused():
    with pytest.raises(forebay.InvalidError, match="contiguous"):
        forebay.from_dlpack(np.arange(12).reshape(3, 4).T)
    assert np.array_equal(forebay.from_dlpack(np.arange(12)[1::3]).numpy(), [1, 4, 7, 10]), "rows may lie apart"
    with pytest.raises(forebay.InvalidError, match="no __dlpack__"):
        forebay.from_dlpack(b"bytes")
    capsule = np.arange(3).__dlpack__()
    assert forebay.from_dlpack(capsule).shape == (3,)
    with pytest.raises(forebay.InvalidError, match="taken already"):
        forebay.from_dlpack(capsule)


def test_a_capsule_nobody_takes_lets_go(pool):
    if pool.device.name == "sim":
        with pool.allocate(8) as buffer, pytest.raises(forebay.ExportError, match="no device type"):
            buffer.__dlpack__()
        return
    buffer = pool.allocate(1 << 20)
    for version in (None, (0, 8), (1, 0), (1, 9)):
        capsule = buffer.__dlpack__(max_version=version)
        assert ("versioned" in repr(capsule)) == (version is not None and version[0] >= 1)
        with pytest.raises(forebay.InUseError):
            buffer.free()
        del capsule
    with pytest.raises(forebay.ExportError, match="without a copy"):
        buffer.__dlpack__(copy=True)
    with pytest.raises(forebay.ExportError, match="without a copy"):
        buffer.__dlpack__(dl_device=(99, 0))
    assert buffer.__dlpack__(dl_device=buffer.__dlpack_device__(), copy=False) is not None
    buffer.free()


def test_dlpack_lets_go_on_any_thread(host):
    buffer = host.allocate(1 << 16)
    arrays = [np.from_dlpack(buffer)]
    del buffer
    thread = threading.Thread(target=arrays.clear)
    thread.start()
    thread.join()
    assert host.statistics()["live_bytes"] == 0


def test_cuda_libraries_see_cuda_memory_alone(pool):
    with pool.allocate(4096) as buffer:
        view = buffer.view("float32", (4, 8), offset=512)
        if pool.device.kind != "cuda":
            assert not hasattr(buffer, "__cuda_array_interface__")
            assert not hasattr(view, "__cuda_array_interface__")
        else:
            assert buffer.__cuda_array_interface__ == {
                "version": 3, "shape": (4096,), "typestr": "|u1", "data": (buffer.address, False), "strides": None,
                "stream": 1}
            interface = view.__cuda_array_interface__
            assert interface["shape"] == (4, 8) and interface["typestr"] == "<f4"
            assert interface["data"] == (buffer.address + 512, False)
        del view


def test_cuda_memory_goes_through_dlpack_in_order(cuda):
    with forebay.Pool(cuda) as pool:
        stream, other = cuda.stream(), cuda.stream()
        buffer = pool.allocate(1 << 16, stream=stream)
        assert buffer.__dlpack_device__() == (2, 0)
        buffer.fill(6, wait=False)
        view = forebay.from_dlpack(buffer.view("int32"))
        assert (view.dtype, view.shape) == ("int32", (1 << 14,))
        assert set(view.to_bytes()) == {6}
        for consumer in (None, 1, -1, other.handle):
            del view
            view = buffer.__dlpack__(stream=consumer)
        del view
        assert buffer.__cuda_array_interface__["stream"] == stream.handle
        buffer.free()


def test_a_consumers_stream_may_end_before_its_tensor(cuda):
    """Its number is good during the call; after that nobody says what became of it."""
    (consumer,) = streams_of_driver.make(1)
    with forebay.Pool(cuda) as pool:
        buffer = pool.allocate("1MiB", stream=cuda.stream())
        capsule = buffer.__dlpack__(stream=consumer)
        streams_of_driver.destroy(consumer)
        del capsule
        buffer.free()
        buffer = pool.allocate("1MiB")
        (consumer,) = streams_of_driver.make(1)
        capsule = buffer.__dlpack__(stream=consumer)
        del buffer
        streams_of_driver.destroy(consumer)
        del capsule
        gc.collect()
        assert pool.statistics()["live_bytes"] == 0
    assert forebay.lost_frees()[0] == 0


def test_what_a_stream_that_was_adopted_still_writes_is_not_handed_out(cuda):
    (consumer,) = streams_of_driver.make(1)
    cuda.adopt(consumer)
    with forebay.Pool(cuda) as pool:
        buffer = pool.allocate("32MiB", stream=cuda.stream())
        address, own = buffer.address, buffer.stream
        capsule = buffer.__dlpack__(stream=consumer)
        streams_of_driver.fill(consumer, address, 3, 32 << 20, 8)
        del capsule
        buffer.free()
        with pool.allocate("32MiB", stream=own) as again:
            again.fill(4)
            streams_of_driver.synchronize(consumer)
            is_filled = again.to_bytes() == b"\4" * len(again)
            assert is_filled
            # The work is done, so the memory is there again.
            with pool.allocate("32MiB", stream=own) as third:
                assert address in (again.address, third.address)
        del third, again, buffer
    cuda.forget(consumer)
    streams_of_driver.destroy(consumer)


def _plain_arrays():
    """Arrays whose bytes are all there is to them, whatever the protocol calls them."""
    return [np.arange(4, dtype="<f8"), np.arange(4, dtype=">i4"), np.zeros(3, "datetime64[s]"), np.zeros(2, "S5"),
            np.zeros(2, "U5"), np.zeros(2, [("O", "i4"), ("x", "c16")]), np.float64(1).reshape(()), np.zeros((0, 3))]


def _of_references():
    """Objects whose bytes are references or addresses."""
    structure = np.zeros(2, [("a", "i4"), ("b", object)])
    return [np.array([1, "two", None], dtype=object), np.empty((0,), dtype=object), structure,
            memoryview(np.array([[], {}], dtype=object)), (ctypes.py_object * 2)(1, 2), (ctypes.c_char_p * 2)(b"a", b"b"),
            (ctypes.POINTER(ctypes.c_int) * 2)(), (ctypes.CFUNCTYPE(None) * 2)(), (ctypes.c_void_p * 2)()]


def test_references_are_copied_neither_way(pool):
    """A reference made of bytes would end the process when it is let go."""
    with pool.allocate(4096) as buffer:
        buffer.fill(0xAB)
        view = buffer.view("int8")
        for given in _of_references():
            for copy in (buffer.copy_to, buffer.copy_from, view.copy_):
                with pytest.raises(forebay.InvalidError, match="references or addresses"):
                    copy(given)
        del view, copy
        assert set(buffer.to_bytes()) == {0xAB}, "nothing was written"
        array = np.array([{}, "kept"], dtype=object)
        with pytest.raises(forebay.Error):
            buffer.copy_to(array)
        assert array.tolist() == [{}, "kept"]


def test_plain_elements_of_any_kind_are_copied_byte_by_byte(pool):
    with pool.allocate(4096) as buffer:
        for array in _plain_arrays():
            back = np.empty_like(array)
            buffer.copy_from(array)
            buffer.copy_to(back)
            assert back.tobytes() == array.tobytes(), array.dtype


@pytest.mark.parametrize("make", [
    lambda: np.arange(8, dtype="u1")[::-1],
    lambda: np.arange(8, dtype="u1")[::2],
    lambda: np.asfortranarray(np.zeros((3, 4))),
    lambda: np.broadcast_to(np.uint8(1), (4, 4)),
    lambda: memoryview(bytearray(8))[::-1],
], ids=["reversed", "every other", "Fortran's order", "broadcast", "memoryview"])
def test_memory_that_is_not_in_one_piece_is_refused(pool, make):
    with pool.allocate(4096) as buffer:
        buffer.fill(7)
        given = make()
        before = given.tobytes()
        for copy in (buffer.copy_from, buffer.copy_to):
            with pytest.raises(forebay.Error) as told:
                copy(given)
            assert isinstance(told.value, (ValueError, BufferError)) and told.value.__cause__ is not None
        assert given.tobytes() == before and set(buffer.to_bytes()) == {7}


def test_memory_that_may_be_read_alone_is_no_target(pool):
    frozen = np.zeros(8, "u1")
    frozen.flags.writeable = False
    with pool.allocate(8) as buffer:
        buffer.fill(9)
        for target in (b"12345678", frozen, memoryview(b"12345678"), forebay.from_dlpack(frozen)):
            with pytest.raises(forebay.Error):
                buffer.copy_to(target)
        with pytest.raises(forebay.InvalidError, match="read-only"):
            forebay.from_dlpack(frozen).copy_(buffer.to_bytes())
        assert not frozen.any()


def test_what_shows_no_memory_is_the_wrong_type(pool):
    with pool.allocate(8) as buffer:
        for given in (3, None, "text", [1, 2], object()):
            for copy in (buffer.copy_from, buffer.copy_to):
                with pytest.raises(TypeError):
                    copy(given)


def test_the_same_memory_may_be_source_and_target(host):
    with host.allocate(16) as buffer:
        buffer.copy_from(bytes(range(16)))
        memory = memoryview(buffer)
        buffer.copy_from(memory[:8], offset=4)
        assert buffer.to_bytes()[4:12] == bytes(range(8))
        buffer.copy_to(memory)
        memory.release()


@pytest.mark.parametrize("dtype", [">i4", ">f8", object, "datetime64[s]", [("a", "i4")], "S3"])
def test_elements_that_a_view_cannot_have_are_refused(host, dtype):
    """The other order of bytes has the same name in numpy."""
    with host.allocate(64) as buffer, pytest.raises((TypeError, ValueError), match="is not an element type"):
        buffer.view(np.dtype(dtype))


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


@pytest.mark.parametrize("change,said", [
    ({"ndim": -1}, "-1 dimensions"),
    ({"shape": None}, "no shape"),
    ({"data": None}, "no memory"),
    ({"byte_offset": 2**64 - 1}, "no memory"),
    ({"code": 3}, "elements of kind 3"),
    ({"lanes": 4}, "4 at a time"),
    ({"bits": 7}, "7 bits"),
    ({"shape": [-1]}, "negative length"),
    ({"shape": [2**62]}, "larger than any memory|no memory"),
    ({"strides": [-1]}, "not contiguous"),
    ({"device_type": 9}, "device type 9"),
    ({"device_type": 2, "device_id": -1}, "no device"),
])
def test_tensors_that_make_no_sense_are_refused(change, said):
    """A capsule is whatever another library put there."""
    memory, lists = (ctypes.c_uint8 * 64)(), []

    def numbers(values):
        lists.append((ctypes.c_int64 * len(values))(*values))
        return ctypes.cast(lists[-1], ctypes.POINTER(ctypes.c_int64))

    fields = {"data": ctypes.addressof(memory), "device_type": 1, "ndim": 1, "code": 0, "bits": 32, "lanes": 1,
              "shape": [4], "strides": [1], **change}
    for name in ("shape", "strides"):
        fields[name] = None if fields[name] is None else numbers(fields[name])
    tensor = _Tensor(**fields)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.create_string_buffer(b"dltensor")
    capsule = new(ctypes.addressof(tensor), name, None)
    with pytest.raises(forebay.Error, match=said):
        forebay.from_dlpack(capsule)
