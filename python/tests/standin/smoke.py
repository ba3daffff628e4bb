"""What PyTorch's own allocator does over the stand-in runtime; run by standin.py. Prints a line for each part."""

import sys
import warnings

import torch

warnings.simplefilter("error")
# PyTorch says so wherever the first call of a thread is to cuBLAS.
warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
device_count = torch.cuda.device_count()


def part(function):
    function()
    print("ok", function.__name__, flush=True)


@part
def devices():
    assert torch.cuda.is_available()
    assert torch.cuda.get_device_name() == "forebay stand-in"
    assert torch.cuda.get_device_capability() == (9, 0)
    free, total = torch.cuda.mem_get_info()
    assert 0 < free <= total == torch.cuda.get_device_properties(0).total_memory
    for device in range(device_count):
        with torch.cuda.device(device):
            assert torch.cuda.current_device() == device
            assert torch.empty(8, device="cuda").get_device() == device


@part
def allocation():
    before = torch.cuda.memory_allocated()
    x = torch.empty(1 << 20, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4 << 20
    del x
    assert torch.cuda.memory_allocated() == before
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= 2 << 20 or device_count > 1


@part
def copies():
    values = torch.arange(1000)
    there = values.to("cuda")
    assert torch.equal(there.cpu(), values)
    pinned = torch.empty(1000, dtype=torch.int64, pin_memory=True)
    assert pinned.is_pinned() and not values.is_pinned()
    pinned.copy_(there, non_blocking=True)
    torch.cuda.current_stream().synchronize()
    assert torch.equal(pinned, values)
    assert torch.equal(there.clone().cpu(), values)
    assert not torch.zeros(1 << 22, device="cuda").cpu().any()
    if device_count > 1:
        assert torch.equal(there.to("cuda:1").cpu(), values)


@part
def streams():
    first, second = torch.cuda.Stream(), torch.cuda.Stream(priority=-1)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(first)
    with torch.cuda.stream(first):
        x = torch.empty(1 << 20, device="cuda")
        x.record_stream(second)
    second.wait_stream(first)
    end.record(second)
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= 0
    torch.cuda.synchronize()
    assert first.query() and second.priority < 0


@part
def statistics():
    stats = torch.cuda.memory_stats()
    assert len(stats) > 100, len(stats)
    print("  keys of memory_stats:", len(stats))
    assert "Allocated memory" in torch.cuda.memory_summary()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history()
    x = torch.empty(1 << 22, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert any(segment["total_size"] >= 16 << 20 for segment in snapshot["segments"])
    assert any(entry["action"] == "alloc" for entry in snapshot["device_traces"][0])
    del x


@part
def graphs():
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        y = torch.empty(1 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            assert torch.cuda.is_current_stream_capturing()
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
    assert not torch.cuda.is_current_stream_capturing()
    graph.replay()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other, pool=graph.pool()):
        w = y * 2
    other.replay()
    torch.cuda.synchronize()
    del y, z, w, graph, other
    torch.cuda.empty_cache()


@part
def pools():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.empty(1 << 22, device="cuda")
    segments = torch.cuda.memory_snapshot()
    assert any(tuple(segment["segment_pool_id"]) == tuple(pool.id) for segment in segments)
    del x, pool


@part
def out_of_memory():
    try:
        torch.empty(1 << 45, device="cuda")
    except torch.OutOfMemoryError as error:
        assert "out of memory" in str(error)
    else:
        sys.exit("a tensor of 128 TiB was made")
    torch.empty(1 << 20, device="cuda")


@part
def libraries():
    a = torch.empty(64, 64, device="cuda", requires_grad=True)
    (a @ a).sum().backward()
    assert a.grad.shape == (64, 64)
    torch.randn(16, device="cuda")
    torch.cuda.manual_seed_all(1)
