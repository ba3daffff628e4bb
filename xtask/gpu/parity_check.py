"""What PyTorch programs do, with PyTorch's own allocator and with forebay's side by side.

    python3 parity_check.py [ROW...]     both sides, a table, and parity.json in $OUT
    python3 parity_check.py --side forebay [ROW...]

Each row is a function that returns what must be equal on both sides, or fails. What differs by nature is printed under
"about" and not compared. Rows for several GPUs need two.
"""

import contextlib
import gc
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
import traceback

ROWS = {}
ABOUT = {}


def row(function):
    ROWS[function.__name__] = function
    return function


def about(name, **figures):
    ABOUT.setdefault(name, {}).update(figures)


def close(one, two, tolerance=1e-2):
    """Whether two tensors agree: the same computation in another order of additions."""
    import torch

    return bool(torch.allclose(one.float(), two.float(), rtol=tolerance, atol=tolerance))


def fresh():
    import torch

    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


@row
def cudnn_benchmark():
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 5), torch.nn.ReLU(), torch.nn.Conv2d(32, 64, 3)).cuda()
    outs = [net(torch.ones(4, 3, size, size, device="cuda")).mean().item() for size in (32, 48, 64)]
    torch.backends.cudnn.benchmark = False
    return [round(out, 3) for out in outs]


def transformer():
    import torch

    layer = torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2).cuda(), torch.randn(8, 32, 128, device="cuda")


def residual():
    import torch

    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.one = torch.nn.Conv2d(width, width, 3, padding=1)
            self.two = torch.nn.Conv2d(width, width, 3, padding=1)

        def forward(self, x):
            return torch.relu(x + self.two(torch.relu(self.one(x))))

    net = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), Block(16), Block(16), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return net.cuda(), torch.randn(8, 3, 32, 32, device="cuda")


def compiled(make, mode):
    """Trains and evaluates a compiled model beside the same model as it is. Whether results agree at every step."""
    import copy

    import torch
    import torch._inductor.config

    torch.manual_seed(0)
    torch._dynamo.reset()
    # Which kernel is fastest is no question of memory, and trying them all takes minutes.
    torch._inductor.config.max_autotune_gemm_backends = "ATEN"
    model, x = make()
    plain = copy.deepcopy(model)
    fast = torch.compile(model, mode=mode)
    agree = []
    sides = [(module, torch.optim.SGD(module.parameters(), 0.01)) for module in (plain, fast)]
    for _ in range(4):
        losses = []
        for module, optimizer in sides:
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach().clone())
        agree.append(close(*losses))
    with torch.no_grad():
        for batch in (8, 4, 8):
            agree.append(close(plain(x[:batch]), fast(x[:batch]).clone()))
    del fast, sides
    return agree


for _mode in ("default", "reduce-overhead", "max-autotune-no-cudagraphs", "max-autotune"):
    for _make in (transformer, residual):
        _name = f"compile_{_make.__name__}_{_mode.replace('-', '_')}"
        ROWS[_name] = lambda make=_make, mode=_mode: compiled(make, mode)


@row
def mem_pool():
    import torch

    fresh()
    base = torch.cuda.memory_allocated()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(1 << 20, device="cuda")
        inside = pool.use_count()
    outside = torch.ones(1 << 20, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        y = x + 1
    held = [segment["segment_pool_id"] == pool.id for segment in pool.snapshot()]
    told = [inside, pool.use_count(), all(held), len(held) > 0, y.sum().item(), torch.cuda.memory_allocated() - base]
    del x, y, outside, pool
    fresh()
    return [*told, torch.cuda.memory_allocated() - base]


@row
def graphs_and_peaks():
    import torch

    fresh()
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(1 << 20, device="cuda")
    with torch.cuda.graph(graph):
        y = (x * 2 + 1) * 3
    x.fill_(5)
    graph.replay()
    value = y.sum().item()
    peak = torch.cuda.max_memory_allocated() - base
    about("graphs_and_peaks", peak_mib=round(peak / 2**20, 1))
    torch.cuda.reset_peak_memory_stats()
    after = torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated()
    del graph, y, x
    fresh()
    return [value, after, torch.cuda.memory_allocated() - base]


@row
def destroyed_graph():
    """A graph is destroyed, and its result stays: only the result's memory is kept once the cache is emptied."""
    import torch

    mib = 1 << 20
    x = torch.ones(8 * mib, device="cuda")

    def work():
        parts = [x * (index + 1) for index in range(8)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total[: mib // 4].clone()

    # Kernels are loaded before the capture.
    work()
    fresh()
    allocated, before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    figures = {}

    def reserved(name):
        now = torch.cuda.memory_reserved() - before
        figures[name] = {"reserved_mib": round(now / mib, 1), "segments": torch.cuda.memory_stats()["segment.all.current"]}
        return now

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    graph.replay()
    values = [result.sum().item()]
    x.fill_(2)
    graph.replay()
    values.append(result.sum().item())
    # Eight temporaries of 32 MiB at the same time, which the graph may use again.
    told = [reserved("captured") >= 256 * mib]
    torch.cuda.empty_cache()
    told.append(reserved("emptied") >= 256 * mib)
    x.fill_(3)
    graph.replay()
    values.append(result.sum().item())
    x.fill_(4)
    # It is destroyed while it runs.
    graph.replay()
    del graph
    gc.collect()
    torch.cuda.empty_cache()
    # A page or segment or two, of the 320 MiB that the graph used.
    told.append(reserved("destroyed") <= 64 * mib)
    # The result's 1 MiB and nothing else.
    told.append(mib <= torch.cuda.memory_allocated() - allocated <= mib + 65536)
    values.append(result.sum().item())
    # What was released serves others, and the result stays.
    others = [torch.full((8 * mib,), -1.0, device="cuda") for _ in range(8)]
    values.extend([result.min().item(), result.max().item(), sum(other.sum().item() for other in others)])
    del others, result
    fresh()
    # PyTorch keeps the seeds of graphs, in a segment of 2 MiB.
    told.append(reserved("freed") <= 8 * mib)
    about("destroyed_graph", **figures)
    return [values, told]


@row
def recorded_stream():
    """A block that another stream has used comes back to its own stream once that is done, and nothing is reserved."""
    import torch

    size = 64 << 20
    side = torch.cuda.Stream()
    torch.cuda.current_stream().synchronize()
    fresh()
    with torch.cuda.stream(side):
        block = torch.zeros(size, dtype=torch.uint8, device="cuda")
    torch.cuda.current_stream().wait_stream(side)
    first = block.data_ptr()
    total = block.sum()
    block.record_stream(torch.cuda.current_stream())
    del block
    torch.cuda.synchronize()
    before = torch.cuda.memory_reserved()
    with torch.cuda.stream(side):
        block = torch.full((size,), 3, dtype=torch.uint8, device="cuda")
    about("recorded_stream", same_address=block.data_ptr() == first)
    side.synchronize()
    told = [total.item(), int(block[-1]), torch.cuda.memory_reserved() - before]
    del block
    fresh()
    return told


@row
def out_of_memory_in_graph_pool():
    import torch

    fresh()
    base = torch.cuda.memory_allocated()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 30)) / total)
    said = ""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            kept = torch.empty(1 << 28, dtype=torch.uint8, device="cuda")
            torch.empty(1 << 33, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        said = str(error)[:20]
    with contextlib.suppress(UnboundLocalError):
        del kept
    del graph
    fresh()
    torch.cuda.set_per_process_memory_fraction(1.0)
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        z = torch.ones(1 << 20, device="cuda") * 2
    again.replay()
    value = z.sum().item()
    del again, z
    fresh()
    return [said, value, torch.cuda.memory_allocated() - base]


def _receive(queue, back):
    import torch

    tensors = queue.get()
    sums = [tensor.double().sum().item() for tensor in tensors]
    for tensor in tensors:
        tensor.add_(1)
    torch.cuda.synchronize()
    back.put(sums)
    del tensors, tensor
    queue.get()


def _send(queue, back):
    import torch

    tensors = [torch.full((size,), 2.0, device="cuda") for size in (1000, 1 << 20, 5 << 20)]
    torch.cuda.synchronize()
    queue.put(tensors)
    back.get()
    queue.put([tensor.double().sum().item() for tensor in tensors])
    back.get()


@row
def shared_with_a_process():
    """Tensors of this process in a process with PyTorch's own allocator, and the other way round."""
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    torch.cuda.empty_cache()
    # Small, stitched of pages of several sizes, and large.
    keep = [torch.zeros(n << 18, device="cuda") for n in (1, 3, 7, 13, 29)]
    tensors = [torch.full((size,), 1.0, device="cuda") for size in (1000, 1 << 20, 3 << 20, 40 << 20)]
    torch.cuda.synchronize()
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=_receive, args=(queue, back))
    child.start()
    queue.put(tensors)
    got = back.get(timeout=60)
    torch.cuda.synchronize()
    seen = [tensor.double().sum().item() for tensor in tensors]
    queue.put(None)
    child.join(30)
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=_send, args=(queue, back))
    child.start()
    theirs = queue.get(timeout=60)
    sums = [tensor.double().sum().item() for tensor in theirs]
    for tensor in theirs:
        tensor.mul_(2)
    torch.cuda.synchronize()
    back.put(None)
    changed = queue.get(timeout=60)
    del theirs, tensor, tensors, keep
    gc.collect()
    back.put(None)
    child.join(30)
    return [got, seen, sums, changed]


@row
def distributed():
    """DDP and FSDP with one rank over NCCL."""
    import torch
    import torch.distributed as distributed

    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ["MASTER_PORT"] = str(29500 + os.getpid() % 1000)
    distributed.init_process_group("nccl", rank=0, world_size=1)
    try:
        results = []
        for wrap in ("ddp", "fsdp"):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
            if wrap == "ddp":
                model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[0])
            else:
                from torch.distributed.fsdp import FullyShardedDataParallel

                model = FullyShardedDataParallel(model, device_id=0)
            optimizer = torch.optim.SGD(model.parameters(), 0.01)
            for _ in range(3):
                loss = model(torch.ones(8, 64, device="cuda")).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            results.append(round(loss.item(), 4))
        return results
    finally:
        distributed.destroy_process_group()


@row
def profiler():
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as told:
        x = torch.randn(1000, 1000, device="cuda")
        y = x @ x
        del y
    events = told.key_averages()
    return sorted((event.key, event.device_memory_usage > 0) for event in events if event.device_memory_usage > 0)


@row
def snapshots():
    """The file that PyTorch's viewer opens, read by its own code."""
    import torch
    from torch.cuda import _memory_viz as viewer

    torch.cuda.memory._record_memory_history()
    x = torch.ones(1 << 20, device="cuda")
    y = x + 1
    del x
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(path)
        with open(path, "rb") as file:
            data = pickle.load(file)
    torch.cuda.memory._record_memory_history(enabled=None)
    pages = [viewer.trace_plot(data), viewer.segment_plot(data)]
    texts = [viewer.segsum(data), viewer.trace(data)]
    actions = {entry["action"] for entry in data["device_traces"][0]}
    placed = any(frame["name"] == "snapshots" for entry in data["device_traces"][0] for frame in entry["frames"])
    del y
    about("snapshots", actions=sorted(actions))
    wanted = {"alloc", "free_requested", "free_completed"}
    return [wanted <= actions, placed, all(len(text) > 100 for text in pages + texts), sorted(data)]


@row
def observers():
    import torch

    called = []
    torch._C._cuda_attach_out_of_memory_observer(lambda device, *rest: called.append(device))
    with contextlib.suppress(torch.OutOfMemoryError):
        torch.empty(1 << 45, device="cuda")
    return called


@row
def functions():
    """Every function of torch.cuda.memory with every documented argument: the types of results."""
    import torch

    memory = torch.cuda.memory
    device = torch.device("cuda:0")

    def disabled():
        """What is allocated while the allocator is disabled, and freed afterwards."""
        memory.caching_allocator_enable(False)
        tensor = torch.empty(1 << 20, device="cuda")
        memory.caching_allocator_enable(True)
        del tensor
        if hasattr(memory, "caching_allocator_disabled"):
            with memory.caching_allocator_disabled():
                torch.empty(1 << 20, device="cuda")
        return torch.empty(1 << 20, device="cuda")

    calls = []
    for which in (None, 0, "cuda:0", device):
        for name in (
            "memory_stats memory_stats_as_nested_dict memory_allocated max_memory_allocated memory_reserved "
            "max_memory_reserved reset_peak_memory_stats reset_accumulated_memory_stats reset_max_memory_allocated "
            "reset_max_memory_cached memory_cached max_memory_cached mem_get_info get_per_process_memory_fraction "
            "memory_summary"
        ).split():
            calls.append((name, lambda name=name, which=which: getattr(memory, name)(which)))
    calls += [
        ("memory_summary short", lambda: memory.memory_summary(0, True)),
        ("set fraction", lambda: memory.set_per_process_memory_fraction(1.0, 0)),
        ("empty_cache", lambda: memory.empty_cache()),
        ("memory_snapshot", lambda: memory.memory_snapshot()),
        ("memory_snapshot pool", lambda: memory.memory_snapshot((0, 0))),
        ("_snapshot", lambda: memory._snapshot()),
        ("_snapshot 0", lambda: memory._snapshot(0)),
        ("list_gpu_processes", lambda: memory.list_gpu_processes(0)),
        *((name, lambda name=name: getattr(memory, name)()) for name in (
            "host_memory_stats", "host_memory_stats_as_nested_dict", "reset_accumulated_host_memory_stats",
            "reset_peak_host_memory_stats")),
        ("disabled", disabled),
        ("change_current_allocator", lambda: memory.change_current_allocator(memory.CUDAPluggableAllocator(
            "libc.so.6", "malloc", "free"))),
        ("backend", lambda: memory.get_allocator_backend() != ""),
        ("raw", lambda: memory.caching_allocator_delete(memory.caching_allocator_alloc(1000, 0, torch.cuda.Stream()))),
        ("history off", lambda: memory._record_memory_history(None)),
        ("history old", lambda: memory._record_memory_history(True)),
        ("history old off", lambda: memory._record_memory_history(False)),
        ("history state", lambda: memory._record_memory_history("state", context="state", stacks="python", max_entries=10)),
        ("history clear", lambda: memory._record_memory_history("all", clear_history=True)),
        ("history end", lambda: memory._record_memory_history(enabled=None)),
        ("is history", lambda: torch._C._cuda_isHistoryEnabled()),
        ("accelerator", lambda: [getattr(torch.accelerator, name)() for name in dir(torch.accelerator) if "memory" in name and name not in ("memory", "empty_host_cache")]),
    ]  # fmt: skip
    told = {}
    for name, call in calls:
        try:
            told[name] = type(call()).__name__
        except Exception as error:
            told[name] = f"{type(error).__name__}: {str(error)[:80]}"
    told["keys"] = len(memory.memory_stats())
    return told


@row
def pinned():
    import torch

    fresh()
    told = [torch.ones(1000).pin_memory().is_pinned(), torch.empty(0, pin_memory=True).numel()]
    stream, wrong = torch.cuda.Stream(), 0
    for index in range(200):
        # Each is freed while its copy is under way; the next would overwrite it if it were reused too early.
        one = torch.full((1 << 20,), float(index)).pin_memory()
        with torch.cuda.stream(stream):
            there = one.to("cuda", non_blocking=True)
        del one
        two = torch.full((1 << 20,), -1.0).pin_memory()
        with torch.cuda.stream(stream):
            wrong += (there != float(index)).any()
        del two
    told.append(int(wrong))
    data = torch.utils.data.TensorDataset(torch.arange(6000.0).reshape(600, 10))
    loader = torch.utils.data.DataLoader(data, batch_size=7, pin_memory=True)
    told.append(sum(batch.to("cuda", non_blocking=True).sum().item() for (batch,) in loader))
    # A copy from pinned memory inside a graph, whose memory is changed between replays.
    source, target = torch.zeros(1000).pin_memory(), torch.zeros(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source, non_blocking=True)
    for value in (1.0, 2.0):
        source.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        told.append(target.sum().item())
    del source
    stats = torch.cuda.host_memory_stats()
    told.append(sorted(key for key in stats if "bucket" not in key))
    about("pinned", freed_while_captured=freed_while_captured(target))
    torch._C._host_emptyCache()
    return told


def freed_while_captured(target):
    """What a graph copies from pinned memory that was freed while the copy was captured. PyTorch 2.11 itself fails."""
    import torch

    source, graph = torch.full((1000,), 3.0).pin_memory(), torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            target.copy_(source, non_blocking=True)
            del source
        others = [torch.zeros(1000).pin_memory() for _ in range(10)]
        graph.replay()
        torch.cuda.synchronize()
        return target.sum().item() + sum(other.sum().item() for other in others)
    except RuntimeError as error:
        return str(error).splitlines()[0]


@row
def several_gpus():
    import torch

    if torch.cuda.device_count() < 2:
        return "needs two GPUs"
    tensors = [torch.full((1 << 20,), float(gpu), device=f"cuda:{gpu}") for gpu in range(torch.cuda.device_count())]
    sums = [sum(tensor.to(f"cuda:{gpu}").sum().item() for tensor in tensors) for gpu in range(len(tensors))]
    side = torch.cuda.Stream(1)
    with torch.cuda.stream(side):
        for _ in range(20):
            moved = tensors[0].to("cuda:1", non_blocking=True) + 1
    side.synchronize()
    return [sums, moved.sum().item(), [torch.cuda.memory_allocated(gpu) > 0 for gpu in range(len(tensors))]]


def _sums(queue, back):
    """A process that sums each tensor it gets."""
    import torch  # noqa: F401

    while (tensor := queue.get()) is not None:
        back.put(tensor.double().sum().item())
        del tensor


@row
def rounds():
    """A long mixed program: training, evaluation by graphs, generation, sharing, freeing everything.

    SHARE=0 leaves sharing out, for a machine where processes cannot share.
    """
    import torch
    import torch.multiprocessing as processes

    context = processes.get_context("spawn")
    queue, back = context.Queue(), context.Queue()
    child = context.Process(target=_sums, args=(queue, back)) if os.environ.get("SHARE") != "0" else None
    if child:
        child.start()
    sums = []
    fresh()
    begin = torch.cuda.memory_allocated()
    count = int(os.environ.get("ROUNDS", "1000"))
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 64)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    side = torch.cuda.Stream()
    after_warm_up = 0
    largest = 0
    began = time.time()
    for number in range(count):
        size = 16 + number * 37 % 200
        loss = model(torch.randn(size, 256, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number % 10 == 0:
            fixed = torch.randn(32, 256, device="cuda")
            with torch.no_grad():
                model(fixed)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = model(fixed)
            graph.replay()
            float(out.sum())
            del graph, out, fixed
        cache = []
        for step in range(8):
            cache.append(torch.zeros(1, 8, number % 64 + step + 1, 64, device="cuda"))
        with torch.cuda.stream(side):
            moved = cache[-1] * 2
        cache[-1].record_stream(side)
        if number % 50 == 0:
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                inside = torch.ones(1 << 18, device="cuda")
            del inside, pool
            torch.cuda.empty_cache()
        if child and number % 20 == 0:
            shared = torch.ones((number % 7 + 1) << 18, device="cuda")
            queue.put(shared)
            sums.append(back.get(timeout=60) == shared.numel())
            del shared
        del cache, moved, loss
        if number == count // 4:
            torch.cuda.synchronize()
            after_warm_up = torch.cuda.memory_reserved()
        largest = max(largest, torch.cuda.memory_reserved())
    took = time.time() - began
    del model, optimizer
    if child:
        queue.put(None)
        child.join(30)
        torch.cuda.ipc_collect()
    fresh()
    about(
        "rounds", seconds=round(took, 1), warm_mib=after_warm_up >> 20, largest_mib=largest >> 20,
        left_bytes=torch.cuda.memory_allocated() - begin, reserved_mib=torch.cuda.memory_reserved() >> 20,
    )  # fmt: skip
    # cuBLAS keeps its workspace, on either side.
    grown, left = largest - after_warm_up, torch.cuda.memory_allocated() - begin
    return [grown <= max(after_warm_up, 64 << 20), left <= 48 << 20, sums]


def one_side(side, names):
    if side == "forebay":
        import bare

        bare.use(os.environ.get("FOREBAY_LIBRARY") or os.path.join(os.path.dirname(__file__), "libforebay_capi.so"))
        import forebay.torch

        forebay.torch.install()
    results = {}
    for name in names:
        began = time.time()
        try:
            results[name] = {"result": ROWS[name]()}
        except BaseException as error:
            results[name] = {"error": f"{type(error).__name__}: {str(error)[:300]}", "where": traceback.format_exc()[-1500:]}
        results[name]["seconds"] = round(time.time() - began, 2)
        results[name]["about"] = ABOUT.get(name, {})
        print(json.dumps({name: results[name]}), file=sys.stderr, flush=True)
    print(json.dumps(results), flush=True)
    os._exit(0)


def main(arguments):
    if arguments[:1] == ["--side"]:
        one_side(arguments[1], arguments[2:] or list(ROWS))
    names = arguments or list(ROWS)
    out = os.environ.get("OUT", ".")
    running = {}
    for side in ("native", "forebay"):
        environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=tempfile.mkdtemp())
        errors = open(os.path.join(out, f"parity.{side}.txt"), "w")
        command = [sys.executable, os.path.abspath(__file__), "--side", side, *names]
        running[side] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    told = {}
    for side, process in running.items():
        lines = process.communicate()[0].strip().splitlines()
        told[side] = json.loads(lines[-1]) if lines else {}
    rows = []
    for name in names:
        native, forebay = (told[side].get(name, {"error": "the process ended"}) for side in ("native", "forebay"))
        same = "result" in native and "result" in forebay and native["result"] == forebay["result"]
        rows.append({"row": name, "same": same, "native": native, "forebay": forebay})
        words = "same" if same else f"DIFFERS: native {native.get('result', native.get('error'))} forebay {forebay.get('result', forebay.get('error'))}"
        print(f"{name:45} {words}"[:400], flush=True)
    with open(os.path.join(out, "parity.json"), "w") as file:
        json.dump(rows, file, indent=1)
    return 0 if all(one["same"] for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
