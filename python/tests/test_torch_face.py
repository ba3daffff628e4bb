"""forebay inside PyTorch: a fake of it that calls an allocator as PyTorch does, on a driver without a GPU."""

import pickle
import subprocess

import faces
import pytest


@pytest.fixture(scope="module")
def fakes(tmp_path_factory):
    return faces.fakes(tmp_path_factory.mktemp("torch"))


def test_tensors_come_from_forebay_and_figures_have_pytorch_names(fakes, tmp_path):
    faces.run(
        """
        import forebay.torch, torch
        forebay.torch.install(max_bytes="256MiB")
        assert forebay.torch.is_installed()
        assert torch.cuda.memory_stats() == {} and torch.cuda.memory_allocated() == 0
        small, large = torch.empty(1000), torch.empty(5 << 20)
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.current"] == 2
        assert stats["allocation.small_pool.current"] == stats["allocation.large_pool.current"] == 1
        assert stats["allocated_bytes.all.current"] == 1024 + (5 << 20) == torch.cuda.memory_allocated()
        assert stats["allocated_bytes.small_pool.current"] == 1024
        assert stats["requested_bytes.all.current"] == 1000 + (5 << 20)
        assert stats["reserved_bytes.all.current"] == torch.cuda.memory_reserved("cuda:0") >= 1024 + (5 << 20)
        assert stats["reserved_bytes.all.allocated"] - stats["reserved_bytes.all.freed"] == torch.cuda.memory_reserved()
        assert stats["segment.all.current"] == stats["num_device_alloc"] > 0 == stats["num_ooms"]
        assert stats["num_alloc_retries"] == 0
        nested = torch.cuda.memory_stats_as_nested_dict()
        assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
        assert "torch" in torch.cuda.memory_summary() and "5121 KiB" in torch.cuda.memory_summary(abbreviated=True)
        from forebay._torch_stats import NAMES
        assert set(stats) <= NAMES, set(stats) - NAMES
        try:
            stats["allocated_bytes.all.freed"]
        except KeyError as error:
            assert "keeps no such figure" in str(error)
        else:
            raise AssertionError
        assert forebay.torch.attribution(0) == {"torch": 1024 + (5 << 20)}
        # Peaks, and what only grows, begin anew.
        del large
        assert torch.cuda.max_memory_allocated() >= 5 << 20
        assert torch.cuda.memory_allocated() == 1024
        torch._C.call("set_reset_fn")
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        assert torch.cuda.max_memory_allocated() < 5 << 20
        assert torch.cuda.max_memory_reserved() < 5 << 20
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
        again = torch.empty(3 << 20)
        assert torch.cuda.memory_stats()["allocation.all.allocated"] == 1
        assert torch.cuda.max_memory_allocated() >= 3 << 20
        del again, small
        forebay.torch.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        assert torch.cuda.memory_stats()["segment.all.current"] == 0
        """,
        tmp_path,
        [fakes],
    )


def test_a_request_without_memory_raises_and_the_program_goes_on(fakes, tmp_path):
    faces.run(
        """
        import forebay.torch, torch
        forebay.torch.install(max_bytes="64MiB")
        kept = torch.empty(32 << 20)
        for _ in range(3):
            try:
                torch.empty(48 << 20)
            except torch.OutOfMemoryError as error:
                said = str(error)
            else:
                raise AssertionError("a tensor without memory")
            assert said.startswith("CUDA out of memory. 48.00 MiB"), said
            assert "at most 64.00 MiB" in said and "torch (32.00 MiB)" in said, said
        smaller = torch.empty(24 << 20)
        assert smaller.pointer and torch.empty(0).pointer is None
        assert torch.cuda.memory_stats()["num_ooms"] == 3
        # Settings change, each alone.
        forebay.torch.install(max_bytes="128MiB")
        assert torch.empty(48 << 20).pointer
        import forebay.errors
        try:
            forebay.torch.install(max_bytes="lots")
        except forebay.errors.InvalidError as error:
            assert "max_bytes" in str(error) and "lots" in str(error)
        else:
            raise AssertionError
        """,
        tmp_path,
        [fakes],
    )


def test_graphs_have_pools_of_their_own(fakes, tmp_path):
    faces.run(
        """
        import forebay.torch, torch
        forebay.torch.install()
        first = torch.empty(1 << 20)
        torch._C.call("set_begin_allocate_to_pool", 0, 3, 4, None)
        inside = torch.empty(1 << 20)
        torch._C.call("set_end_allocate_to_pool_fn", 0, 3, 4)
        outside = torch.empty(1 << 20)
        (segment,) = torch.cuda.memory_snapshot((3, 4))
        assert segment["address"] <= inside.pointer < segment["address"] + segment["total_size"]
        others = [one for one in torch.cuda.memory_snapshot() if one["segment_pool_id"] == (0, 0)]
        held = [block["address"] for one in others for block in one["blocks"] if block["state"] == "active_allocated"]
        assert sorted(held) == sorted([first.pointer, outside.pointer])
        assert torch.cuda.memory_allocated() == 3 << 20 == forebay.torch.attribution()["torch"]
        torch._C.call("set_release_pool", 0, 3, 4)
        assert torch.cuda.memory_snapshot((3, 4)), "a tensor of it lives"
        del inside
        assert not torch.cuda.memory_snapshot((3, 4))
        """,
        tmp_path,
        [fakes],
    )


def test_a_snapshot_is_as_pytorchs_viewer_has_it(fakes, tmp_path):
    faces.run(
        """
        import forebay.torch, torch
        forebay.torch.install(max_bytes="64MiB")
        early = torch.empty(2000)
        torch.cuda.memory._record_memory_history()
        def the_place():
            return torch.empty(3 << 20)
        tensors = [the_place() for _ in range(4)]
        del tensors[1]
        try:
            torch.empty(1 << 40)
        except torch.OutOfMemoryError:
            pass
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        torch.cuda.memory._record_memory_history(None)
        torch.empty(100)
        assert forebay.torch.snapshot()["device_traces"] == [[], []]
        """,
        tmp_path,
        [fakes],
    )
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        snapshot = pickle.load(file)
    history, none = snapshot["device_traces"]
    assert not none
    assert [entry["action"] for entry in history] == ["alloc"] * 4 + ["free_requested", "free_completed", "oom"]
    assert all(entry["size"] == 3 << 20 for entry in history[:6]) and history[6]["size"] == 1 << 40
    assert history[4]["addr"] == history[1]["addr"] and history[6]["device_free"] > 0
    assert [entry["time_us"] for entry in history] == sorted(entry["time_us"] for entry in history)
    names = [frame["name"] for frame in history[0]["frames"]]
    assert "the_place" in names and names[-1] == "<module>", names
    assert all(set(frame) == {"name", "filename", "line"} for frame in history[0]["frames"])
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    live = [block for block in blocks if block["state"] == "active_allocated"]
    assert sorted(block["requested_size"] for block in live) == [2000, *[3 << 20] * 3]
    for segment in snapshot["segments"]:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
        assert segment["allocated_size"] <= segment["total_size"]
    placed = [block for block in live if block["requested_size"] > 2000]
    assert all("the_place" in [frame["name"] for frame in block["frames"]] for block in placed)


def test_pytorchs_settings_are_kept_where_they_mean_something(fakes, tmp_path):
    said = faces.run(
        """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import forebay.torch, forebay._process, torch
            forebay.torch.install(0)
        (one,) = told
        print(one.message)
        settings = forebay._process.figures(0)["settings"]
        assert settings["max_fraction"] == "0.5" and settings["pressure_moderate"] == "0.7", settings
        """,
        tmp_path,
        [fakes],
        {
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True, max_split_size_mb:128,per_process_memory_fraction:0.5,"
            "roundup_power2_divisions:[256:1,>:4],pinned_use_background_threads:True",
            "PYTORCH_ALLOC_CONF": "garbage_collection_threshold:0.7",
        },
    )
    assert said.strip().endswith(": max_split_size_mb:128, roundup_power2_divisions:[256:1,>:4]"), said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("torch.__version__ = '2.99.0'", "2.6 to 2.15"),
        ("torch._C.initialized = True", "before the first tensor"),
        ("del torch._C._cuda_customAllocator", "built without CUDA"),
        ("torch.version = type('version', (), {'hip': '6.4'})", "AMD"),
        ("torch._C.Allocator.__getattr__ = object.__getattribute__", "set_begin_allocate_to_pool"),
        ("torch.__file__ = '/nowhere/torch/__init__.py'", "null_on_failure"),
    ],
)
def test_what_cannot_be_installed_says_why_and_changes_nothing(fakes, tmp_path, change, words):
    said = faces.run(
        f"""
        import forebay.errors, forebay.torch, torch
        before = torch.cuda.memory_stats
        {change}
        try:
            forebay.torch.install(max_bytes="64MiB")
        except forebay.errors.InstallError as error:
            assert isinstance(error, RuntimeError)
            print(error)
        assert torch._C.current is None and not forebay.torch.is_installed()
        assert torch.cuda.memory_stats is before
        assert forebay.torch._process.figures(0)["settings"]["max_bytes"] == "none"
        """,
        tmp_path,
        [fakes],
    )
    assert words in said, said


@pytest.mark.parametrize(
    ("change", "device", "words"),
    [
        ("", 40, "40"),
        ("torch.cuda.memory.change_current_allocator = refuse", None, "on purpose"),
        ("torch.cuda.memory.change_current_allocator = refuse", 0, "on purpose"),
        ("warnings.simplefilter('error')", None, "roundup_power2_divisions"),
        ("torch.cuda = Unpatchable(torch.cuda)", None, "on purpose"),
    ],
    ids=["no such GPU", "PyTorch refuses", "PyTorch refuses, with a pool", "warnings are errors", "no patch"],
)
def test_an_install_that_fails_late_leaves_everything_as_it_was(fakes, tmp_path, change, device, words):
    said = faces.run(
        f"""
        import warnings
        import forebay.torch, torch
        class Unpatchable:
            def __init__(self, module):
                self.__dict__["module"] = module
            def __getattr__(self, name):
                return getattr(self.module, name)
            def __setattr__(self, name, value):
                if name == "memory_reserved" and value.__module__ == "forebay.torch":
                    refuse()
                setattr(self.module, name, value)
        def refuse(*_words):
            raise RuntimeError("on purpose")
        memory = torch.cuda.memory
        before = {{name: getattr(memory, name) for name in memory._NAMES}}
        forebay.torch.configure(history=3)
        {change}
        try:
            forebay.torch.install({device}, max_bytes="64MiB", history=9)
        except (RuntimeError, Warning) as error:
            print(error)
        else:
            raise AssertionError("nothing failed")
        assert not forebay.torch.is_installed() and torch._C.current is None
        assert all(getattr(memory, name) is function for name, function in before.items())
        assert torch.cuda.memory_reserved is before["memory_reserved"]
        settings = forebay.torch._process.figures(0)["settings"]
        assert (settings["max_bytes"], settings["history"]) == ("none", "3"), settings
        assert forebay.torch._process.figures(0)["limit_bytes"] > 64 << 20
        """,
        tmp_path,
        [fakes],
        {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"} if "simplefilter" in change else {},
    )
    assert words in said, said


def test_places_go_with_the_events_they_belong_to(fakes, tmp_path):
    """A program with many places in it does not grow by recording them."""
    faces.run(
        """
        import gc, weakref
        import forebay.torch, torch
        forebay.torch.install()
        torch.cuda.memory._record_memory_history(max_entries=10)
        frames = forebay.torch._frames
        codes = []
        for line in range(2000):
            code = compile("\\n" * line + "kept = torch.empty(512)", f"place{line}", "exec")
            if line % 100 == 0:
                codes.append(weakref.ref(code))
            exec(code)
            assert len(frames) <= 10, len(frames)
        del code
        gc.collect()
        assert not any(code() for code in codes[:-1]), "the places keep the code of what is long over"
        history = torch.cuda.memory._snapshot(0)["device_traces"][0]
        allocated = [entry for entry in history if entry["action"] == "alloc"]
        assert len(allocated) == 5, "every other event is a free"
        for number, entry in enumerate(allocated):
            assert f"place{1995 + number}" in [frame["filename"] for frame in entry["frames"]], entry["frames"]
        # The same place, however often, is kept once and until its last event goes.
        for _ in range(100):
            torch.empty(512)
        assert len(frames) == 1
        # What ends the recording ends the places, and the next one begins with none.
        gone = weakref.ref(frames)
        del frames
        for _ in range(3):
            torch.cuda.memory._record_memory_history(None)
            torch.cuda.memory._record_memory_history(max_entries=10)
        gc.collect()
        assert gone() is None and len(forebay.torch._frames) == 0
        torch.cuda.memory._record_memory_history(None)
        assert forebay.torch._frames is None
        """,
        tmp_path,
        [fakes],
    )


def test_every_refusal_is_forebays_own(fakes, tmp_path):
    faces.run(
        """
        import forebay.errors, forebay.torch, torch
        from forebay import _process
        from forebay.errors import Error, InstallError, InvalidError, OutOfMemoryError, ProcessError
        forebay.torch.install(max_bytes="64MiB")
        for wanted, use in [
            (InvalidError, lambda: forebay.torch.configure(no_such=1)),
            (InvalidError, lambda: forebay.torch.configure(max_bytes="1,2")),
            (InvalidError, lambda: forebay.torch.install(max_bytes="lots")),
            (InvalidError, lambda: forebay.torch.record_memory_history("some")),
            (InvalidError, lambda: forebay.torch.record_memory_history(max_entries=-1)),
            (InstallError, lambda: forebay.torch.mem_pool()),
            (ProcessError, lambda: _process.figures(77)),
            (ProcessError, lambda: _process.layout(77)),
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


@pytest.mark.parametrize("module", ["torch", "cupy", "numba", "rmm"])
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


def test_a_pool_beside_pytorchs_own_allocator(fakes, tmp_path):
    faces.run(
        """
        import forebay.errors, forebay.torch, torch
        pool = forebay.torch.mem_pool(no_split=True)
        assert pool.options == {"no_split": True}
        torch._C.current = pool.allocator
        assert torch.empty(1 << 60).pointer is None, "within a MemPool null is what PyTorch expects"
        assert torch.empty(1 << 10).pointer
        torch._C.current, torch._C.initialized = None, False
        forebay.torch.install()
        try:
            forebay.torch.mem_pool()
        except forebay.errors.InstallError as error:
            assert "already" in str(error)
        else:
            raise AssertionError
        """,
        tmp_path,
        [fakes],
    )


def test_the_real_package_calls_and_catches(tmp_path):
    """PyTorch itself, with a runtime of CUDA that finds one GPU and no more: memory is the simulated device's."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed", exc_type=ImportError)
    if not hasattr(torch._C, "_cuda_customAllocator"):
        pytest.skip("PyTorch is built without CUDA")
    source, stub = tmp_path / "stub.c", tmp_path / "stub.so"
    source.write_text(
        "int cudaGetDevice(int* d) { *d = 0; return 0; }\n"
        "int cudaSetDevice(int d) { (void)d; return 0; }\n"
        "int cudaGetDeviceCount(int* n) { *n = 1; return 0; }\n"
    )
    command = [faces.compiler(), "-x", "c", "-shared", "-fPIC", str(source), "-o", str(stub)]
    subprocess.run(command, check=True)
    faces.run(
        """
        import forebay.torch, torch
        forebay.torch.install(max_bytes="64MiB")
        allocate, free = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
        block = allocate(1 << 20, 0)
        for _ in range(3):
            try:
                allocate(1 << 40, 0)
            except torch.OutOfMemoryError as error:
                assert "CUDA out of memory. 1.00 TiB" in str(error), error
            else:
                raise AssertionError
        torch._C._cuda_beginAllocateCurrentThreadToPool(0, (5, 6))
        inside = allocate(1 << 20, 0)
        torch._C._cuda_endAllocateToPool(0, (5, 6))
        assert torch.cuda.memory_allocated(0) == 2 << 20
        assert len(torch.cuda.memory_snapshot((5, 6))) == 1
        free(inside)
        torch._C._cuda_releasePool(0, (5, 6))
        assert not torch.cuda.memory_snapshot((5, 6))
        assert "refused for want of memory: 3" in torch.cuda.memory_summary(0)
        try:
            torch._C._cuda_endAllocateToPool(0, (5, 6))
        except RuntimeError as error:
            assert "nothing is allocated to pool (5, 6)" in str(error)
        else:
            raise AssertionError
        free(block)
        torch._C._cuda_emptyCache()
        assert torch.cuda.memory_reserved(0) == 0
        """,
        tmp_path,
        preload=stub,
    )
