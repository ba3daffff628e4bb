"""forebay inside PyTorch itself: installing, settings, allocating, streams, GPUs, and want of memory."""

import faces
import pytest

BARE = "import forebay.torch, torch\nMIB = 1 << 20\n"

#: A PyTorch that is refused before anything of it is used.
STUB = """
import types
torch = types.ModuleType("torch")
torch.__version__, torch.__file__ = "{version}", "/nowhere/torch/__init__.py"
torch.cuda = types.SimpleNamespace(is_initialized=lambda: {initialized})
torch.version = types.SimpleNamespace(hip={hip!r})
torch._C = types.SimpleNamespace()
sys.modules["torch"] = torch
"""


@pytest.mark.parametrize(
    ("version", "initialized", "hip", "words"),
    [
        ("2.7.1+cu128", False, None, "too old"),
        ("2.6.0", False, None, "too old"),
        ("2.99.0", False, None, "untested=True"),
        ("3.0.0a0+git1234", False, None, "untested=True"),
        ("nonsense", False, None, "too old"),
        ("2.11.0", True, None, "before the first tensor"),
        ("2.11.0+rocm7.0", False, "7.0", "AMD"),
        ("2.11.0+cpu", False, None, "built without CUDA"),
    ],
)
def test_what_cannot_be_installed_says_why(tmp_path, version, initialized, hip, words):
    said = faces.run(
        STUB.format(version=version, initialized=initialized, hip=hip)
        + """
import forebay.errors, forebay.torch
try:
    forebay.torch.install(max_bytes="64MiB")
except forebay.errors.InstallError as error:
    assert isinstance(error, RuntimeError)
    print(error)
else:
    raise AssertionError
assert not forebay.torch.is_installed()
assert forebay.torch._process.statistics(0)["settings"]["max_bytes"] == "none"
""",
        tmp_path,
    )
    assert words in said, said


def test_an_install_without_the_library_is_an_install_error(tmp_path):
    said = faces.run(
        STUB.format(version="2.11.0", initialized=False, hip=None)
        + """
torch._C._cuda_customAllocator = None
import forebay.errors, forebay.torch
try:
    forebay.torch.install()
except forebay.errors.InstallError as error:
    print(error)
    assert isinstance(error.__cause__, forebay.errors.ProcessError)
""",
        tmp_path,
        environment={"FOREBAY_LIBRARY": "/nowhere.so"},
    )
    assert "/nowhere.so" in said


def test_the_allocator_is_forebay_and_tensors_are_from_it(torch):
    torch(
        """
        assert forebay.torch.is_installed() and not torch.cuda.is_initialized()
        assert torch.cuda.memory_stats() == {} and torch.cuda.memory_allocated() == 0
        small, large = empty(1000), empty(5 * MIB)
        assert torch.cuda.memory_allocated() == 1024 + 5 * MIB
        assert forebay.torch.attribution(0) == {"torch": 1024 + 5 * MIB}
        place = large.data_ptr()
        del large
        assert empty(5 * MIB).data_ptr() == place, "freed memory serves the next request"
        assert empty(0).data_ptr() == 0
        # Data goes there and back.
        host = torch.arange(100_000, dtype=torch.int32)
        assert torch.equal(host.to("cuda").cpu(), host)
        zero = torch.empty(5000, dtype=torch.uint8, device="cuda").zero_()
        assert int(zero.cpu().sum()) == 0
        del small, zero
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        """
    )


def test_it_is_refused_once_pytorch_has_used_the_gpu(torch):
    said = torch(
        """
        import forebay.errors
        torch.empty(1, device="cuda")
        try:
            forebay.torch.install(max_bytes="64MiB")
        except forebay.errors.InstallError as error:
            print(error)
        assert not forebay.torch.is_installed()
        assert forebay.torch._process.statistics(0)["settings"]["max_bytes"] == "none"
        torch.empty(100 << 20, device="cuda")
        """,
        prelude=BARE,
    )
    assert "before the first tensor" in said


def test_versions_are_refused_by_number_and_installed_all_the_same(torch):
    torch(
        """
        import forebay.errors
        true = torch.__version__
        for version, words in [("2.7.1", "too old"), ("2.99.0", "untested=True")]:
            torch.__version__ = version
            try:
                forebay.torch.install()
            except forebay.errors.InstallError as error:
                assert words in str(error) and "2.8 to 2.15" in str(error), error
            else:
                raise AssertionError
        torch.__version__ = true
        forebay.torch.install(untested=True)
        assert torch.empty(1, device="cuda").data_ptr()
        """,
        prelude=BARE,
    )


def test_settings_are_given_changed_and_refused(torch):
    torch(
        """
        import forebay.errors
        from forebay import _process
        for device, words in [(40, "40"), (0, "no_such")]:
            settings = {"no_such": 1} if device == 0 else {"max_bytes": "64MiB"}
            try:
                forebay.torch.install(device, **settings)
            except forebay.errors.Error as error:
                assert words in str(error), error
            else:
                raise AssertionError
            assert not forebay.torch.is_installed()
        forebay.torch.install(0, max_bytes="64MiB", history=9)
        assert _process.statistics(0)["settings"]["history"] == "9"
        kept = torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")
        try:
            torch.empty(48 * MIB, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            assert "64.00 MiB allowed" in str(error), error
        else:
            raise AssertionError
        forebay.torch.install(max_bytes="128MiB")
        assert torch.empty(48 * MIB, dtype=torch.uint8, device="cuda").data_ptr()
        for bad in ({"max_bytes": "lots"}, {"max_bytes": "1,2"}, {"no_such": 1}):
            try:
                forebay.torch.install(**bad)
            except forebay.errors.InvalidError:
                pass
            else:
                raise AssertionError(bad)
        assert _process.statistics(0)["limit_bytes"] == 128 * MIB
        try:
            forebay.torch.mem_pool()
        except forebay.errors.InstallError as error:
            assert "already" in str(error)
        else:
            raise AssertionError
        """,
        prelude=BARE,
    )


def test_pytorchs_settings_are_kept_where_they_mean_something(torch):
    said = torch(
        """
        import warnings
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            import forebay._process
            forebay.torch.install(0)
        told = [str(one.message) for one in told if "forebay" in str(one.message)]
        (one,) = told
        print(one)
        settings = forebay._process.statistics(0)["settings"]
        assert settings["max_fraction"] == "0.5" and settings["pressure_moderate"] == "0.7", settings
        """,
        prelude=BARE,
        environment={
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True,max_split_size_mb:128,per_process_memory_fraction:0.5,"
            "roundup_power2_divisions:[256:1,>:4],garbage_collection_threshold:0.7",
        },
    )
    assert said.strip().endswith(": max_split_size_mb:128, roundup_power2_divisions:[256:1,>:4]"), said


def test_an_install_that_fails_late_changes_nothing(torch):
    torch(
        """
        import warnings
        forebay.torch.configure(history=3)
        warnings.simplefilter("error")
        try:
            forebay.torch.install(max_bytes="64MiB", history=9)
        except RuntimeWarning as error:
            assert "roundup_power2_divisions" in str(error)
        else:
            raise AssertionError
        assert not forebay.torch.is_installed()
        settings = forebay.torch._process.statistics(0)["settings"]
        assert (settings["max_bytes"], settings["history"]) == ("none", "3"), settings
        warnings.simplefilter("ignore")
        torch.empty(1, device="cuda")
        assert torch.cuda.memory_reserved() > 0, "PyTorch's own allocator serves it"
        assert forebay.torch.attribution(0) == {}
        """,
        prelude=BARE,
        environment={"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4"},
    )


def test_functions_that_were_imported_before_tell_forebays_figures(torch):
    torch(
        """
        from torch.cuda import memory_allocated, max_memory_allocated, memory_stats, memory_snapshot, empty_cache
        from torch.cuda.memory import memory_reserved, memory_summary, reset_peak_memory_stats
        import inspect
        before = [memory_allocated, memory_stats, memory_snapshot, memory_summary]
        forebay.torch.install()
        held = torch.empty(3 * MIB, dtype=torch.uint8, device="cuda")
        assert memory_allocated() == 3 * MIB == max_memory_allocated() <= memory_reserved()
        assert memory_stats()["allocation.all.current"] == 1 and len(memory_snapshot()) >= 1
        after = [torch.cuda.memory_allocated, torch.cuda.memory_stats, torch.cuda.memory_snapshot, torch.cuda.memory_summary]
        assert all(one is other for one, other in zip(before, after)), "nothing of PyTorch is replaced"
        assert all(function.__module__ == "torch.cuda.memory" for function in after)
        del held
        empty_cache()
        reset_peak_memory_stats()
        assert memory_reserved() == 0 == max_memory_allocated()
        """,
        prelude=BARE,
    )


def test_want_of_memory_raises_is_observed_and_the_program_goes_on(torch):
    torch(
        """
        seen = []
        torch._C._cuda_attach_out_of_memory_observer(lambda *told: seen.append(told))
        kept = empty(600 * MIB)
        for round in range(3):
            try:
                empty(700 * MIB)
            except torch.OutOfMemoryError as error:
                assert isinstance(error, torch.cuda.OutOfMemoryError) and isinstance(error, RuntimeError)
                words = str(error)
            else:
                raise AssertionError("a tensor without memory")
            assert words.startswith("CUDA out of memory. Tried to allocate 700.00 MiB. GPU 0 has a total capacity of"), words
            assert "600.00 MiB is allocated by PyTorch" in words and "torch (600.00 MiB)" in words, words
            assert torch.cuda.memory_stats()["num_ooms"] == round + 1
        assert len(seen) == 3 and all(told[:2] == (0, 700 * MIB) for told in seen), seen
        assert all(told[2] >= told[3] > 0 for told in seen), seen
        other = empty(300 * MIB)
        del kept
        assert empty(700 * MIB).data_ptr()
        try:
            empty(1 << 60)
        except torch.OutOfMemoryError as error:
            assert "more than 1EB" in str(error)
        else:
            raise AssertionError
        """
    )


def test_a_fraction_of_the_memory_is_the_most_also_for_graphs(torch):
    torch(
        """
        fraction = torch.cuda.set_per_process_memory_fraction
        assert torch.cuda.get_per_process_memory_fraction() == 1.0
        fraction(0.25)
        assert torch.cuda.get_per_process_memory_fraction("cuda:0") == 0.25
        pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        def in_graph():
            with torch.cuda.graph(graph):
                empty(300 * MIB)
        def in_pool():
            with torch.cuda.use_mem_pool(pool):
                empty(300 * MIB)
        for use in (lambda: empty(300 * MIB), in_pool, in_graph):
            try:
                use()
            except torch.OutOfMemoryError as error:
                assert "256.00 MiB allowed" in str(error), error
            else:
                raise AssertionError(use)
        with torch.cuda.use_mem_pool(pool):
            inside = empty(200 * MIB)
        assert refused(100 * MIB), "together they are beyond"
        fraction(0.9, 0)
        assert abs(torch.cuda.get_per_process_memory_fraction(0) - 0.9) < 1e-9
        assert empty(300 * MIB).data_ptr()
        fraction(1 / 3)
        assert torch.cuda.get_per_process_memory_fraction() == 1 / 3
        for bad in (-0.1, 1.1):
            try:
                fraction(bad)
            except ValueError:
                pass
            else:
                raise AssertionError
        """
    )


def test_streams_have_their_order_and_a_recorded_use_delays_reuse(torch):
    torch(
        """
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        blocks = {}
        for stream in (one, two, torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                block = empty(3 * MIB)
                place = block.data_ptr()
                del block
                again = empty(3 * MIB)
                assert again.data_ptr() == place, "the same stream has it again at once"
                blocks[stream] = again
        assert len({block.data_ptr() for block in blocks.values()}) == 3
        held = torch.cuda.memory_allocated()
        block = blocks.pop(one)
        place = block.data_ptr()
        import streams_of_driver
        streams_of_driver.fill(two.cuda_stream, place, 1, 3 * MIB, 50)
        block.record_stream(two)
        block.record_stream(one)
        del block
        with torch.cuda.stream(one):
            other = empty(3 * MIB)
            assert other.data_ptr() != place, "the other stream may still use it"
        torch.cuda.synchronize()
        blocks.clear()
        del other, again
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        empty(0).record_stream(two)
        """
    )


def test_threads_allocate_and_free_each_others_tensors(torch):
    torch(
        """
        import queue, threading
        queues, wrong = [queue.Queue() for _ in range(4)], []
        def work(number):
            try:
                stream = torch.cuda.Stream()
                with torch.cuda.stream(stream):
                    for round in range(150):
                        queues[(number + 1) % 4].put(empty(1000 + round * 4096))
                        while not queues[number].empty():
                            queues[number].get()
            except BaseException as error:
                wrong.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        queues.clear()
        assert not wrong, wrong
        assert torch.cuda.memory_allocated() == 0, torch.cuda.memory_allocated()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        assert torch.cuda.memory_reserved() == 0
        """
    )


@pytest.mark.parametrize("gpus", [2, 4])
def test_every_gpu_has_tensors_and_they_are_copied_between_them(torch, gpus):
    torch(
        """
        count = torch.cuda.device_count()
        data = torch.arange(3 * MIB, dtype=torch.int64).to(torch.uint8)
        tensors = [data.to("cuda:0")]
        for device in range(1, count):
            tensors.append(tensors[-1].to(f"cuda:{device}"))
        for device, tensor in enumerate(tensors):
            assert tensor.get_device() == device and torch.equal(tensor.cpu(), data), device
            assert torch.cuda.memory_allocated(device) == 3 * MIB == torch.cuda.memory_stats(device)["allocated_bytes.all.current"]
            assert forebay.torch.attribution(device) == {"torch": 3 * MIB}
        # Back, in place, on another stream, and without waiting.
        tensors[0].copy_(tensors[-1])
        with torch.cuda.device(count - 1), torch.cuda.stream(torch.cuda.Stream()):
            back = tensors[-1].to("cuda:0", non_blocking=True)
            torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize(0)
        assert torch.equal(back.cpu(), data)
        assert torch.cuda.can_device_access_peer(0, 1) in (True, False)
        # Memory that a pool takes after it was opened to a peer is open too.
        late = torch.empty(64 * MIB, dtype=torch.uint8, device="cuda:0").zero_()
        assert int(late.to("cuda:1").cpu().sum()) == 0
        assert {one["device"] for one in torch.cuda.memory_snapshot()} == set(range(count))
        del back, late, tensor
        tensors.clear()
        for device in range(count):
            assert torch.cuda.memory_allocated(device) == 0, device
        torch.cuda.empty_cache()
        assert all(torch.cuda.memory_reserved(device) == 0 for device in range(count))
        """,
        gpus=gpus,
    )


def test_a_forked_child_frees_nothing_and_says_nothing(torch):
    printed = torch(
        """
        import gc, os, sys, threading
        torch.cuda.memory._record_memory_history()
        tensors = [empty(MIB) for _ in range(10)]
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                empty(MIB)
        threads = [threading.Thread(target=busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            child = os.fork()
            if child == 0:
                tensors.clear()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        assert torch.cuda.memory_allocated() == 10 * MIB
        """
    )
    assert not printed


def test_allocating_by_hand(torch):
    torch(
        """
        allocate, delete = torch.cuda.caching_allocator_alloc, torch.cuda.caching_allocator_delete
        stream = torch.cuda.Stream()
        for words in ({}, {"device": 0}, {"device": "cuda:0"}, {"stream": stream}, {"device": 0, "stream": stream.cuda_stream}):
            block = allocate(MIB, **words)
            assert block and torch.cuda.memory_allocated() == MIB, words
            delete(block)
            assert torch.cuda.memory_allocated() == 0
        for bad in (12345, block):
            try:
                delete(bad)
            except RuntimeError as error:
                assert "invalid device pointer" in str(error), error
            else:
                raise AssertionError
        try:
            allocate(1 << 40)
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError
        # Without caching, PyTorch's own way serves.
        torch.cuda.caching_allocator_enable(False)
        held = empty(MIB)
        assert held.data_ptr() and torch.cuda.memory_allocated() == 0
        del held
        torch.cuda.caching_allocator_enable(True)
        held = empty(MIB)
        assert torch.cuda.memory_allocated() == MIB
        """
    )


def test_a_pool_beside_pytorchs_own_allocator(torch):
    torch(
        """
        pool = forebay.torch.mem_pool()
        def empty(size):
            return torch.empty(size, dtype=torch.uint8, device="cuda")
        outside = empty(MIB)
        with torch.cuda.use_mem_pool(pool):
            inside = empty(5 * MIB)
        assert not forebay.torch.is_installed()
        assert forebay.torch.attribution(0)["torch"] >= 5 * MIB
        assert torch.cuda.memory_allocated() == 6 * MIB
        with torch.cuda.use_mem_pool(pool):
            try:
                empty(1 << 40)
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError
        del inside, outside
        """,
        prelude=BARE,
    )


def test_cupy_numba_and_rmm_share_the_pool(torch):
    torch(
        """
        import cupy, rmm
        import forebay.cupy, forebay.numba, forebay.rmm
        from numba import cuda
        forebay.torch.configure(max_bytes="64MiB")
        forebay.cupy.install()
        forebay.numba.install()
        forebay.rmm.install()
        held = [empty(MIB), cupy.cuda.alloc(2 * MIB), cuda.manager.memalloc(3 * MIB), rmm.DeviceBuffer(4 * MIB)]
        assert forebay.torch.attribution(0) == {"rmm": 4 * MIB, "numba": 3 * MIB, "cupy": 2 * MIB, "torch": MIB}
        assert torch.cuda.memory_allocated() == 10 * MIB
        place = held[1].ptr
        held[1] = None
        assert empty(2 * MIB).data_ptr() == place, "what one gives back serves the others"
        try:
            empty(60 * MIB)
        except torch.OutOfMemoryError as error:
            assert "rmm (4.00 MiB), numba (3.00 MiB)" in str(error), error
        else:
            raise AssertionError
        """,
        python=[faces.HERE / "fakes"],
    )
