"""forebay inside CuPy, Numba and RMM: fakes of them, on a driver without a GPU."""

import faces
import pytest


@pytest.fixture
def fakes():
    return faces.fakes()


def test_cupys_arrays_are_of_its_current_stream(fakes, tmp_path):
    faces.run(
        """
        import cupy, streams_of_driver
        import forebay.cupy
        before = cupy.cuda.get_allocator()
        forebay.cupy.install(max_bytes="64MiB")
        assert forebay.cupy.is_installed()
        one, two, one_more = (cupy.cuda.Stream(handle) for handle in streams_of_driver.make(3))
        array = cupy.cuda.alloc(1 << 20)
        assert array.ptr and forebay.cupy.attribution(0) == {"cupy": 1 << 20}
        with one:
            a = cupy.cuda.alloc(100_000)
            first = a.ptr
            del a
            a = cupy.cuda.alloc(100_000)
            assert a.ptr == first, "the same stream gets it again at once"
        with two:
            del a  # Used here too, as far as can be known.
        with one:
            a = cupy.cuda.alloc(100_000)
            assert a.ptr != first, "the other stream may still use it"
            del a
        # A stream that blocks are of is not destroyed.
        handle = one.ptr
        del one
        assert handle not in cupy.cuda.Stream.destroyed
        try:
            cupy.cuda.alloc(128 << 20)
        except cupy.cuda.memory.OutOfMemoryError as error:
            assert "128.00 MiB" in str(error) and "at most 64.00 MiB" in str(error), error
        else:
            raise AssertionError
        assert cupy.cuda.alloc(0).ptr == 0
        # What cannot be noted is given back all the same.
        with one_more:
            a = cupy.cuda.alloc(100_000)
        noted, forebay.cupy._process.record_use = forebay.cupy._process.record_use, None
        sys.unraisablehook = lambda _told: None
        del a
        sys.unraisablehook, forebay.cupy._process.record_use = sys.__unraisablehook__, noted
        assert forebay.cupy.attribution(0) == {"cupy": 1 << 20}
        forebay.cupy.uninstall()
        assert cupy.cuda.get_allocator() is before
        del array
        assert forebay.cupy.attribution(0) == {}
        """,
        tmp_path,
        [fakes],
    )


def test_a_stream_that_is_forgotten_can_be_destroyed(fakes, tmp_path):
    faces.run(
        """
        import cupy, streams_of_driver
        import forebay.cupy
        forebay.cupy.install()
        stream = cupy.cuda.Stream(streams_of_driver.make(1)[0])
        with stream:
            a = cupy.cuda.alloc(1 << 20)
            del a
        handle = stream.ptr
        forebay.cupy.forget_stream(stream)
        del stream
        assert handle in cupy.cuda.Stream.destroyed
        assert cupy.cuda.alloc(1 << 20).ptr
        """,
        tmp_path,
        [fakes],
    )


def test_numbas_manager(fakes, tmp_path):
    faces.run(
        """
        import forebay.numba
        from numba import cuda
        assert forebay.numba._numba_memory_manager is forebay.numba.ForebayNumbaManager
        forebay.numba.install(max_bytes="64MiB")
        manager = cuda.manager
        memory = manager.memalloc(1000)
        assert memory.device_pointer.value and memory.size == 1000
        assert forebay.numba.attribution(0) == {"numba": 1024}
        free, total = manager.get_memory_info()
        assert 0 < free < total
        try:
            manager.memalloc(1 << 30)
        except MemoryError as error:
            assert "1.00 GiB" in str(error)
        else:
            raise AssertionError
        assert manager.deallocations.cleared == 1
        del memory
        assert forebay.numba.attribution(0) == {}
        kept = manager.memalloc(1 << 20)
        manager.reset()
        assert forebay.numba.attribution(0) == {}
        again = manager.memalloc(1 << 20)
        assert again.device_pointer.value == kept.device_pointer.value
        del kept
        assert forebay.numba.attribution(0) == {"numba": 1 << 20}, "the new one's, at the same address"
        del again
        assert forebay.numba.attribution(0) == {}
        """,
        tmp_path,
        [fakes],
    )


def test_rmms_resource_is_told_of_streams(fakes, tmp_path):
    faces.run(
        """
        import rmm, streams_of_driver
        import forebay.rmm
        forebay.rmm.install(max_bytes="64MiB")
        one, two = (rmm.Stream(handle) for handle in streams_of_driver.make(2))
        buffer = rmm.DeviceBuffer(3 << 20, one)
        place = buffer.ptr
        assert forebay.rmm.attribution(0) == {"rmm": 3 << 20}
        del buffer
        assert rmm.DeviceBuffer(3 << 20, one).ptr == place
        try:
            rmm.DeviceBuffer(1 << 30, two)
        except MemoryError as error:
            assert "1.00 GiB" in str(error)
        else:
            raise AssertionError
        try:
            rmm.mr.resources[0].allocate(1, object())
        except TypeError as error:
            assert "25.02" in str(error)
        else:
            raise AssertionError
        """,
        tmp_path,
        [fakes],
    )


@pytest.mark.parametrize(
    ("module", "breaks"),
    [
        ("cupy", "cupy.cuda.set_allocator = refuse"),
        ("cupy", "cupy.cuda.PythonFunctionAllocator = refuse"),
        ("numba", "forebay.numba.cuda.set_memory_manager = refuse"),
        ("rmm", "rmm.mr.set_per_device_resource = refuse"),
        ("rmm", "rmm.mr.CallbackMemoryResource = refuse"),
    ],
)
def test_an_install_that_fails_changes_no_settings(fakes, tmp_path, module, breaks):
    faces.run(
        f"""
        import cupy, rmm
        import forebay.{module}
        from forebay import _process
        def refuse(*_words):
            raise RuntimeError("on purpose")
        _process.configure(history=3)
        {breaks}
        try:
            forebay.{module}.install(max_bytes="64MiB", history=9)
        except RuntimeError as error:
            assert "on purpose" in str(error)
        else:
            raise AssertionError
        settings = _process.statistics(0)["settings"]
        assert (settings["max_bytes"], settings["history"]) == ("none", "3"), settings
        assert "{module}" != "cupy" or not forebay.cupy.is_installed()
        """,
        tmp_path,
        [fakes],
    )


def test_settings_change_all_together_or_not_at_all(fakes, tmp_path):
    faces.run(
        """
        import forebay.errors
        from forebay import _process
        before = _process.statistics(0)["settings"]
        try:
            _process.configure(history=9, max_bytes="64MiB", poison=True)
        except forebay.errors.InvalidError as error:
            assert "poison" in str(error)
        else:
            raise AssertionError
        assert _process.statistics(0)["settings"] == before
        _process.configure(history=9)
        _process.configure(history=9, max_bytes="64MiB")
        """,
        tmp_path,
        [fakes],
    )


def test_one_pool_serves_all_and_tags_tell_who_has_what(fakes, tmp_path):
    faces.run(
        """
        import cupy, rmm
        import forebay.cupy, forebay.numba, forebay.rmm
        from numba import cuda
        forebay.cupy.install(max_bytes="64MiB")
        forebay.numba.install()
        forebay.rmm.install()
        held = [cupy.cuda.alloc(2 << 20), cuda.manager.memalloc(3 << 20), rmm.DeviceBuffer(4 << 20)]
        assert forebay.cupy.attribution(0) == {"rmm": 4 << 20, "numba": 3 << 20, "cupy": 2 << 20}
        place = held[0].ptr
        held[0] = None
        buffer = rmm.DeviceBuffer(2 << 20)
        assert buffer.ptr == place, "what one gives back serves the others"
        try:
            cupy.cuda.alloc(60 << 20)
        except cupy.cuda.memory.OutOfMemoryError as error:
            assert "rmm (6.00 MiB), numba (3.00 MiB)" in str(error), error
        else:
            raise AssertionError
        """,
        tmp_path,
        [fakes],
    )


def test_every_refusal_is_forebays_own(fakes, tmp_path):
    faces.run(
        """
        from forebay import _process
        from forebay.errors import Error, InstallError, InvalidError, OutOfMemoryError, ProcessError
        _process.configure(max_bytes="64MiB")
        for wanted, use in [
            (InvalidError, lambda: _process.configure(no_such=1)),
            (InvalidError, lambda: _process.configure(max_bytes="1,2")),
            (ProcessError, lambda: _process.statistics(77)),
            (ProcessError, lambda: _process.memory_info(77)),
            (ProcessError, lambda: _process.empty_cache(77)),
            (ProcessError, lambda: _process.free(12345, 0, 0)),
            (ProcessError, lambda: _process.record_use(12345, 0, 0)),
            (OutOfMemoryError, lambda: _process.allocate(1 << 30, 0, 0, b"x")),
        ]:
            try:
                use()
            except wanted as error:
                assert isinstance(error, Error) and str(error)
            else:
                raise AssertionError(wanted)
        assert issubclass(OutOfMemoryError, MemoryError) and issubclass(InvalidError, ValueError)
        assert issubclass(InstallError, RuntimeError) and issubclass(ProcessError, RuntimeError)
        """,
        tmp_path,
        [fakes],
    )


def test_a_library_that_is_none_is_told(fakes, tmp_path):
    faces.run(
        """
        import forebay.errors, forebay._process
        for _ in range(2):
            try:
                forebay._process.library()
            except forebay.errors.ProcessError as error:
                assert "/nowhere.so" in str(error)
            else:
                raise AssertionError
        """,
        tmp_path,
        [fakes],
        {"FOREBAY_LIBRARY": "/nowhere.so"},
    )


@pytest.mark.parametrize("module", ["cupy", "numba", "rmm"])
def test_an_install_without_the_library_is_an_install_error(fakes, tmp_path, module):
    faces.run(
        f"""
        import forebay.errors, forebay.{module}
        try:
            forebay.{module}.install()
        except forebay.errors.InstallError as error:
            assert "/nowhere.so" in str(error)
            assert isinstance(error.__cause__, forebay.errors.ProcessError)
        else:
            raise AssertionError
        """,
        tmp_path,
        [fakes],
        {"FOREBAY_LIBRARY": "/nowhere.so"},
    )
