"""forebay inside PyTorch itself: figures, private pools, graphs, history and snapshots."""

import pytest

#: Whether the figures of every GPU agree with its segments.
AGREE = '''
def agree(device=0):
    stats = torch.cuda.memory_stats(device)
    segments = [one for one in torch.cuda.memory_snapshot() if one["device"] == device]
    for side in ("all", "small_pool", "large_pool"):
        chosen = [one for one in segments if side in ("all", one["segment_type"] + "_pool")]
        blocks = [block for one in chosen for block in one["blocks"]]
        live = [block for block in blocks if block["state"] == "active_allocated"]
        told = {name: stats[f"{name}.{side}.current"] for name in (
            "allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes", "reserved_bytes")}
        held = {
            "allocation": len(live), "active": len(live),
            "allocated_bytes": sum(block["size"] for block in live),
            "active_bytes": sum(one["active_size"] for one in chosen),
            "requested_bytes": sum(block["requested_size"] for block in live),
            "reserved_bytes": sum(one["total_size"] for one in chosen),
        }
        assert told == held, (side, told, held)
        assert sum(one["allocated_size"] for one in chosen) == held["allocated_bytes"]
        for name in ("allocation", "active", "allocated_bytes", "active_bytes", "requested_bytes"):
            one = {part: stats[f"{name}.{side}.{part}"] for part in ("current", "peak", "allocated", "freed")}
            assert one["allocated"] - one["freed"] == one["current"] <= one["peak"], (name, side, one)
    for name in ("allocation", "active", "segment", "inactive_split", "allocated_bytes", "active_bytes", "reserved_bytes",
                 "inactive_split_bytes", "requested_bytes"):
        small, large = stats[f"{name}.small_pool.current"], stats[f"{name}.large_pool.current"]
        assert stats[f"{name}.all.current"] == small + large, name
    for one in segments:
        assert one["total_size"] == sum(block["size"] for block in one["blocks"]), one
        at = one["address"]
        for block in one["blocks"]:
            assert block["address"] == at
            at += block["size"]
    return stats
'''


def test_all_figures_are_there_and_agree_with_the_segments(torch):
    torch(
        AGREE
        + """
names = "allocation segment active inactive_split allocated_bytes reserved_bytes active_bytes inactive_split_bytes " \\
    "requested_bytes"
names = {f"{name}.{side}.{part}" for name in names.split() for side in ("all", "small_pool", "large_pool")
         for part in ("current", "peak", "allocated", "freed")}
names |= {f"oversize_{what}.{part}" for what in ("allocations", "segments") for part in ("current", "peak", "allocated", "freed")}
names |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free", "max_split_size"}
assert len(names) == 122
held = [empty(size) for size in (1, 1000, 100_000, MIB, 2 * MIB, 30 * MIB)]
stats = agree()
assert names <= set(stats), names - set(stats)
nested = torch.cuda.memory_stats_as_nested_dict()
assert nested["allocated_bytes"]["all"]["current"] == stats["allocated_bytes.all.current"]
assert stats["num_device_alloc"] > 0 == stats["num_ooms"]
with torch.cuda.stream(torch.cuda.Stream()):
    held += [empty(5000), empty(7 * MIB)]
pool = torch.cuda.MemPool()
with torch.cuda.use_mem_pool(pool):
    held += [empty(300), empty(9 * MIB)]
agree()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inside = empty(4 * MIB)
agree()
del held[1], held[3], inside
agree()
held.clear()
agree()
torch.cuda.empty_cache()
stats = agree()
# Before 2.15 a capture keeps a state of random numbers, two blocks.
assert stats["allocated_bytes.all.current"] in (0, 2 * 512), stats["allocated_bytes.all.current"]
"""
    )


def test_peaks_are_those_of_all_pools_together(torch):
    torch(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            inside = empty(40 * MIB)
        outside = empty(30 * MIB)
        del inside, outside
        peak = torch.cuda.max_memory_allocated()
        assert 70 * MIB <= peak < 80 * MIB
        assert torch.cuda.max_memory_allocated() == peak, "asking and freeing change no peak"
        assert torch.cuda.max_memory_reserved() >= torch.cuda.max_memory_allocated()
        torch.cuda.reset_accumulated_memory_stats()
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.allocated"] == 0 == stats["num_device_alloc"], stats
        empty(MIB)
        stats = torch.cuda.memory_stats()
        assert stats["allocation.all.allocated"] == 1 == stats["allocation.all.freed"]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_reserved() == torch.cuda.memory_reserved()
        """
    )


def test_peaks_of_pools_one_after_the_other(torch):
    torch(
        """
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            empty(40 * MIB)
        outside = empty(41 * MIB)
        peak = torch.cuda.max_memory_allocated()
        assert 41 * MIB <= peak < 50 * MIB, peak
        """
    )


@pytest.mark.parametrize("where", ["outside", "pool", "graph"])
def test_a_reset_lets_peaks_begin_at_what_is_live(torch, where):
    torch(
        f"""
        where = {where!r}
        kept = empty(2 * MIB)
        pool, graph = torch.cuda.MemPool(), torch.cuda.CUDAGraph()
        if where == "outside":
            empty(40 * MIB)
        elif where == "pool":
            with torch.cuda.use_mem_pool(pool):
                empty(40 * MIB)
        else:
            with torch.cuda.graph(graph):
                empty(40 * MIB)
        assert torch.cuda.max_memory_allocated() >= 42 * MIB
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() < 3 * MIB
        empty(20 * MIB)
        assert 22 * MIB <= torch.cuda.max_memory_allocated() < 30 * MIB
        outside = empty(40 * MIB)
        assert 42 * MIB <= torch.cuda.max_memory_allocated() < 50 * MIB
        """
    )


def test_every_function_of_memory_takes_all_its_arguments(torch):
    """Each function that PyTorch documents, with a device in each form."""
    torch(
        """
        import warnings
        warnings.simplefilter("ignore")
        held = empty(3 * MIB)
        names = '''memory_stats memory_stats_as_nested_dict memory_allocated max_memory_allocated memory_reserved
            max_memory_reserved memory_cached max_memory_cached reset_peak_memory_stats reset_accumulated_memory_stats
            reset_max_memory_allocated reset_max_memory_cached memory_summary mem_get_info list_gpu_processes
            get_per_process_memory_fraction'''.split()
        for name in names:
            function = getattr(torch.cuda.memory, name, None) or getattr(torch.cuda, name)
            told = []
            devices = [None, 0, "cuda:0", torch.device("cuda", 0)]
            # This one wants a number with the name, also with PyTorch's own allocator.
            devices += [] if "fraction" in name else ["cuda", torch.device("cuda")]
            for device in devices:
                try:
                    told.append(function(device=device))
                except ModuleNotFoundError:
                    assert name == "list_gpu_processes"
            told.append(function())
            assert all(one == told[0] or name.startswith("reset") for one in told), (name, told)
        for bad in (7, "cuda:7"):
            for name in ("memory_stats", "reset_peak_memory_stats", "set_per_process_memory_fraction"):
                words = (0.5, bad) if name.startswith("set") else (bad,)
                try:
                    getattr(torch.cuda, name)(*words)
                except (RuntimeError, AssertionError, ValueError) as error:
                    assert "nvalid" in str(error), error
                else:
                    raise AssertionError((name, bad))
        for abbreviated in (False, True):
            summary = torch.cuda.memory_summary(device=0, abbreviated=abbreviated)
            assert "Allocated memory" in summary and "3072 KiB" in summary, summary
        assert torch.cuda.get_allocator_backend() in ("native", "forebay"), torch.cuda.get_allocator_backend()
        free, total = torch.cuda.mem_get_info()
        assert 0 < free < total == 1024 * MIB
        torch.cuda.memory_snapshot(mempool_id=None)
        torch.cuda.memory_snapshot(mempool_id=(0, 0))
        if VERSION >= (2, 11):
            torch.cuda.memory_snapshot(mempool_id=None, include_traces=False)
        assert torch.cuda.memory_snapshot((123, 0)) == []
        torch.cuda.host_memory_stats(), torch.cuda.host_memory_stats_as_nested_dict()
        torch.cuda.reset_peak_host_memory_stats(), torch.cuda.reset_accumulated_host_memory_stats()
        assert torch.empty(1000, pin_memory=True).is_pinned()
        if hasattr(torch.cuda.memory, "_set_memory_metadata") and VERSION >= (2, 10):
            torch.cuda.memory._set_memory_metadata("a note")
            assert torch.cuda.memory._get_memory_metadata() == "a note"
            torch.cuda.memory._set_memory_metadata("")
        torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.8")
        """
    )


def test_the_accelerators_names_tell_the_same(torch):
    torch(
        """
        if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
            accelerator = torch.accelerator
            held = empty(3 * MIB)
            for device in (None, 0, "cuda:0", torch.device("cuda", 0)):
                words = () if device is None else (device,)
                assert accelerator.memory_allocated(*words) == 3 * MIB == accelerator.max_memory_allocated(*words)
                assert accelerator.memory_reserved(*words) == torch.cuda.memory_reserved() > 0
                assert accelerator.max_memory_reserved(*words) >= torch.cuda.memory_reserved()
                assert accelerator.memory_stats(*words)["allocated_bytes.all.current"] == 3 * MIB
            del held
            accelerator.empty_cache()
            accelerator.reset_peak_memory_stats()
            accelerator.reset_accumulated_memory_stats()
            assert accelerator.max_memory_allocated() == 0 == accelerator.memory_reserved()
        """
    )


def test_a_summary_before_the_first_allocation(torch):
    torch(
        """
        assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
        torch.cuda.init()
        summary = torch.cuda.memory_summary()
        assert "PyTorch CUDA memory summary" in summary and "CUDA OOMs: 0" in summary
        assert torch.cuda.memory_snapshot() == []
        torch.cuda.empty_cache()
        assert torch.cuda.memory_allocated() == 0 == torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        """
    )


def test_pools_of_the_program(torch):
    torch(
        """
        pool = torch.cuda.MemPool()
        first = pool.use_count()
        with torch.cuda.use_mem_pool(pool):
            assert pool.use_count() == first + 1
            inside = empty(5 * MIB)
            with torch.cuda.use_mem_pool(torch.cuda.MemPool()) as _:
                other = empty(MIB)
            again = empty(MIB)
        outside = empty(MIB)
        assert pool.use_count() == first
        def pool_of(tensor):
            place = tensor.data_ptr()
            (found,) = [one for one in torch.cuda.memory_snapshot()
                        if one["address"] <= place < one["address"] + one["total_size"]]
            return tuple(found["segment_pool_id"])
        assert pool_of(inside) == pool_of(again) == tuple(pool.id) != pool_of(other)
        assert pool_of(outside) == (0, 0)
        held = [block for one in pool.snapshot() for block in one["blocks"] if block["state"] == "active_allocated"]
        assert sorted(block["size"] for block in held) == [MIB, 5 * MIB]
        # Entered once more; freed memory serves the pool's own requests, and no others.
        place = inside.data_ptr()
        del inside
        assert empty(5 * MIB).data_ptr() != place
        with torch.cuda.use_mem_pool(pool):
            inside = empty(5 * MIB)
        assert inside.data_ptr() == place and pool.use_count() == first
        # An exception within ends it too.
        try:
            with torch.cuda.use_mem_pool(pool):
                raise KeyError
        except KeyError:
            pass
        assert pool_of(empty(MIB)) == (0, 0)
        # Another thread's requests go elsewhere meanwhile.
        import threading
        places = []
        with torch.cuda.use_mem_pool(pool):
            thread = threading.Thread(target=lambda: places.append(pool_of(empty(MIB))))
            thread.start()
            thread.join()
        assert places == [(0, 0)], places
        identity = tuple(pool.id)
        del inside, again, pool, held
        torch.cuda.empty_cache()
        assert not [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == identity]
        """
    )


def test_a_pool_that_is_the_last_resort_serves_before_a_request_fails(torch):
    torch(
        """
        pool = torch.cuda.MemPool(use_on_oom=True)
        with torch.cuda.use_mem_pool(pool):
            inside = empty(600 * MIB)
        place = inside.data_ptr()
        del inside
        outside = empty(600 * MIB)
        assert outside.data_ptr() == place
        del outside
        # Without that a pool keeps what it has while the program has the pool, and the request fails.
        other = torch.cuda.MemPool()
        del pool
        torch.cuda.empty_cache()
        with torch.cuda.use_mem_pool(other):
            inside = empty(600 * MIB)
        assert refused(600 * MIB)
        """
    )


def test_pools_over_an_allocator_of_the_program(torch):
    torch(
        """
        import ctypes, os
        driver = ctypes.CDLL(os.environ["FOREBAY_CUDA_DRIVER"])
        taken = []
        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        def take(size, device, stream):
            place = ctypes.c_uint64()
            assert driver.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(size)) == 0
            taken.append(size)
            return place.value
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        def give_back(place, size, device, stream):
            assert driver.cuMemFree_v2(ctypes.c_uint64(place)) == 0
            taken.remove(size)
        allocator = torch._C._cuda_customAllocator(*(ctypes.cast(one, ctypes.c_void_p).value for one in (take, give_back)))
        first = torch.cuda.MemPool(allocator)
        second = torch.cuda.MemPool(allocator, use_on_oom=True)
        # The limit is one for all of them.
        torch.cuda.set_per_process_memory_fraction(80 / 1024)
        with torch.cuda.use_mem_pool(first):
            one = empty(40 * MIB)
        with torch.cuda.use_mem_pool(second):
            two = empty(40 * MIB)
        assert taken == [40 * MIB] * 2 and torch.cuda.memory_allocated() == 80 * MIB
        assert refused(40 * MIB)
        place = two.data_ptr()
        del one, two
        # Free memory of the second serves before a request fails, and that of the first does not.
        three = empty(40 * MIB)
        assert three.data_ptr() == place and len(taken) == 2
        assert refused(30 * MIB)
        three.record_stream(torch.cuda.Stream())
        del three, first, second
        torch.cuda.empty_cache()
        assert taken == [] and torch.cuda.memory_reserved() == 0
        # What forebay has is not there for the program's allocator.
        four = empty(60 * MIB)
        third = torch.cuda.MemPool(allocator)
        with torch.cuda.use_mem_pool(third):
            assert refused(40 * MIB)
            five = empty(10 * MIB)
        assert sum(taken) >= 10 * MIB
        # What nothing uses any more is given back before a request fails.
        del five, third
        six = empty(18 * MIB)
        assert taken == []
        """,
        memory=1024,
    )


def test_graphs_have_pools_and_share_them(torch):
    torch(
        """
        graph = torch.cuda.CUDAGraph()
        before = empty(MIB)
        with torch.cuda.graph(graph):
            inside = empty(4 * MIB)
            place = inside.data_ptr()
            del inside
            inside = empty(4 * MIB)
            assert inside.data_ptr() == place, "within a capture its order is enough"
        identity = tuple(graph.pool())
        segments = [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == identity]
        assert sum(one["allocated_size"] for one in segments) == 4 * MIB
        assert [tuple(one["segment_pool_id"]) for one in torch.cuda.memory_snapshot(identity)] == [identity] * len(segments)
        graph.replay()
        second = torch.cuda.CUDAGraph()
        with torch.cuda.graph(second, pool=graph.pool()):
            more = empty(2 * MIB)
        assert tuple(second.pool()) == identity
        handle = torch.cuda.graph_pool_handle()
        third = torch.cuda.CUDAGraph()
        with torch.cuda.graph(third, pool=handle):
            other = empty(MIB)
        assert tuple(third.pool()) == tuple(handle) != identity
        # Its memory stays while a graph has it, also if the cache is emptied.
        del inside, more
        torch.cuda.empty_cache()
        assert [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == identity]
        graph.reset()
        del second
        torch.cuda.empty_cache()
        assert not [one for one in torch.cuda.memory_snapshot() if tuple(one["segment_pool_id"]) == identity]
        # Before 2.15 a capture keeps a state of random numbers, two blocks.
        assert torch.cuda.memory_allocated() - 2 * MIB in (0, 2 * 512), torch.cuda.memory_allocated()
        # A capture that fails leaves everything usable.
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                raise KeyError
        except KeyError:
            pass
        assert empty(MIB).data_ptr()
        """
    )


def test_checkpoints_of_a_pool_as_graph_trees_use_them(torch):
    torch(
        """
        device, pool = 0, torch.cuda.graph_pool_handle()
        torch.cuda.init()
        stream = torch.cuda.Stream()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            first, second = empty(3 * MIB), empty(2000)
        places = [first.data_ptr(), second.data_ptr()]
        state = torch._C._cuda_getCheckpointState(device, pool)
        storages = [tensor.untyped_storage() for tensor in (first, second)]
        live = torch._C._cuda_checkPoolLiveAllocations
        assert live(device, pool, set(places)) and not live(device, pool, {places[0]}) and not live(device, pool, {1, *places})
        del second, storages[1]
        assert live(device, pool, {places[0]})
        stale = [first.untyped_storage()._cdata]
        torch._C._cuda_setCheckpointPoolState(device, state, stale, [])
        assert live(device, pool, set(places)), "what was live then is live again"
        for missing in (lambda: live(device, (99, 99), set()), lambda: torch._C._cuda_getCheckpointState(device, (99, 99))):
            try:
                missing()
            except RuntimeError as error:
                assert "Could not find pool" in str(error), error
            else:
                raise AssertionError
        """
    )


def test_history_in_all_its_forms(torch):
    torch(
        """
        record, snapshot = torch.cuda.memory._record_memory_history, torch.cuda.memory._snapshot
        torch.cuda.init()
        early = empty(2000)
        def the_place():
            return empty(3 * MIB)
        def actions():
            return [entry["action"] for entry in snapshot()["device_traces"][0]]
        def names(entry):
            return [frame["name"] for frame in entry.get("frames", [])]
        record("all", stacks="python")
        tensors = [the_place() for _ in range(4)]
        del tensors[1]
        try:
            empty(1 << 40)
        except torch.OutOfMemoryError:
            pass
        told = snapshot()
        trace = told["device_traces"][0]
        events = [entry for entry in trace if not entry["action"].startswith("segment")]
        assert [entry["action"] for entry in events] == ["alloc"] * 4 + ["free_requested", "free_completed", "oom"], actions()
        assert any(entry["action"] in ("segment_map", "segment_alloc") for entry in trace)
        assert all(entry["size"] == 3 * MIB for entry in events[:6]) and events[6]["size"] == 1 << 40
        assert events[4]["addr"] == events[1]["addr"] and events[6]["device_free"] > 0
        assert [entry["time_us"] for entry in events] == sorted(entry["time_us"] for entry in events)
        assert "the_place" in names(events[0]) and names(events[0])[-1] == "<module>", names(events[0])
        blocks = [block for one in told["segments"] for block in one["blocks"] if block["state"] == "active_allocated"]
        assert sorted(block["requested_size"] for block in blocks) == [2000] + [3 * MIB] * 3
        assert all("the_place" in names(block) for block in blocks if block["requested_size"] > 2000)
        record(None)
        count = len(actions())
        empty(100)
        assert len(actions()) == count, "nothing is recorded any more"
        # Only what lives now.
        record("state", stacks="python")
        tensors.append(the_place())
        assert "the_place" in [name for one in snapshot()["segments"] for block in one["blocks"] for name in names(block)]
        record(None)
        # The most that is kept, with and without places, and begun anew.
        for context in (None, "state", "alloc", "all"):
            record("all", context=context, stacks="python", max_entries=10, device=None)
            for _ in range(20):
                the_place()
            trace = snapshot()["device_traces"][0]
            assert len(trace) == 10, (context, len(trace))
            found = "the_place" in names([one for one in trace if one["action"] == "alloc"][-1])
            assert found == (context in ("alloc", "all")), (context, trace[-3:])
            freed = [one for one in trace if one["action"] == "free_requested"][-1]
            if context != "alloc":
                assert bool(names(freed)) == (context == "all"), (context, freed)
            record(None)
        if VERSION >= (2, 7):
            record("all", stacks="python", clear_history=True)
            assert actions() == []
            record(None)
        # The earlier form.
        record(True, trace_alloc_max_entries=100, trace_alloc_record_context=True, device=None, record_context_cpp=False)
        the_place()
        assert "alloc" in actions()
        record(False)
        for wrong in (lambda: record("some"), lambda: record("all", context="x"), lambda: record("all", stacks="x")):
            try:
                wrong()
            except (RuntimeError, AssertionError, TypeError, ValueError):
                pass
            else:
                raise AssertionError
        """
    )


def test_a_freed_block_has_the_place_of_its_allocation(torch):
    torch(
        """
        torch.cuda.memory._record_memory_history("all", context="alloc", stacks="python")
        def the_place():
            return empty(3 * MIB)
        the_place()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        for entry in trace:
            if entry["action"] in ("alloc", "free_requested", "free_completed"):
                assert "the_place" in [frame["name"] for frame in entry.get("frames", [])], entry
        """
    )


def test_a_snapshot_is_opened_by_pytorchs_own_tools(torch):
    torch(
        """
        import pickle
        from torch.cuda import _memory_viz as viz
        torch.cuda.memory._record_memory_history("all", stacks="python")
        tensors = [empty(size) for size in (1000, 3 * MIB, 30 * MIB)]
        with torch.cuda.stream(torch.cuda.Stream()):
            tensors.append(empty(2 * MIB))
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool):
            tensors.append(empty(4 * MIB))
        del tensors[1]
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        torch.cuda.memory._record_memory_history(None)
        with open("snapshot.pickle", "rb") as file:
            snapshot = pickle.load(file)
        assert set(snapshot) >= {"segments", "device_traces", "allocator_settings"}
        def text(lines):
            assert lines
            return lines
        assert "stream_0" in viz.segments(snapshot, format_flamegraph=text)
        assert "empty" in viz.memory(snapshot, format_flamegraph=text)
        assert "only_after" in viz.compare([], snapshot["segments"], format_flamegraph=text)
        assert viz.segsum(snapshot)
        trace = viz.trace(snapshot)
        assert "30.0MiB]" in trace and "del b # 3.0MiB" in trace, trace
        for plot in (viz.trace_plot, viz.segment_plot):
            assert "<html>" in plot(snapshot) or "<!DOCTYPE html>" in plot(snapshot)
        """
    )


def test_the_profiler_shows_the_bytes(torch):
    torch(
        """
        from torch.cuda import _memory_viz as viz
        torch.cuda.init()
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True) as told:
            tensor = empty(5 * MIB)
            del tensor
            held = empty(3 * MIB)
        def used(event):
            return getattr(event, "self_device_memory_usage", None) or getattr(event, "device_memory_usage", 0)
        table = {event.key: used(event) for event in told.key_averages()}
        assert 3 * MIB <= max(table.values()) <= 9 * MIB, table
        events = [event for event in told.profiler.kineto_results.events() if event.name() == "[memory]"]
        sizes = [event.nbytes() for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
        assert sizes == [5 * MIB, -5 * MIB, 3 * MIB], sizes
        html = viz.profile_plot(told)
        assert "html" in html
        """
    )
