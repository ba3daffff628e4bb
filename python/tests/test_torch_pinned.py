"""PyTorch's pinned memory from forebay: figures as PyTorch counts them, and memory that graphs use."""

#: Names of the figures: of blocks in use, of their bytes, of what the driver pinned, of its bytes.
NAMES = """
torch.cuda.init()
if VERSION >= (2, 10):
    REQUESTS, BYTES, PINNED, HELD = "active_requests", "active_bytes", "allocations", "allocated_bytes"
else:
    REQUESTS, BYTES, PINNED, HELD = "allocation", "allocated_bytes", "segment", "reserved_bytes"
def pin(size=MIB):
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
def figure(name, part="current"):
    return torch.cuda.host_memory_stats()[f"{name}.{part}"]
def empty_cache():
    torch._C._host_emptyCache()
"""


def test_requests_and_what_the_driver_pinned_are_counted_apart(torch):
    torch(
        NAMES
        + """
held = [pin() for _ in range(4)]
assert all(one.is_pinned() for one in held)
made = figure(PINNED)
assert figure(REQUESTS) == 4 and figure(BYTES) == 4 * MIB
assert 1 <= made == figure(PINNED, "allocated") == torch.cuda.host_memory_stats()["num_host_alloc"]
del held
for _ in range(100):
    pin()
assert figure(REQUESTS) == 0 == figure(BYTES) and figure(REQUESTS, "allocated") == 104 == figure(REQUESTS, "freed")
assert figure(BYTES, "peak") == 4 * MIB
assert figure(PINNED) == made == figure(PINNED, "allocated"), "nothing more was pinned"
assert figure(HELD) >= 4 * MIB
empty_cache()
stats = torch.cuda.host_memory_stats()
assert figure(PINNED) == 0 == figure(HELD) and stats["num_host_free"] == made == figure(PINNED, "freed")
assert figure(HELD, "allocated") == figure(HELD, "freed") == figure(HELD, "peak")
torch.cuda.reset_accumulated_host_memory_stats(), torch.cuda.reset_peak_host_memory_stats()
stats = torch.cuda.host_memory_stats()
assert stats["num_host_alloc"] == 0 == figure(REQUESTS, "allocated") == figure(HELD, "peak") == figure(BYTES, "peak")
"""
    )


def test_memory_that_a_graph_copies_from_serves_nobody_else(torch):
    torch(
        NAMES
        + """
source, there = pin(), empty(MIB)
place = source.data_ptr()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    there.copy_(source, non_blocking=True)
del source
held = [pin() for _ in range(8)]
assert all(one.data_ptr() != place for one in held)
del held, graph
torch.cuda.synchronize()
empty_cache()
assert figure(REQUESTS) == 0 == figure(PINNED), torch.cuda.host_memory_stats()
"""
    )


def test_threads_pin_and_free_at_once(torch):
    torch(
        NAMES
        + """
from concurrent.futures import ThreadPoolExecutor
def work(seed):
    held = {}
    for at in range(2000):
        one = pin(1000 + (seed * 7 + at) % 50 * 1000)
        one[:8] = seed
        assert int(one[7]) == seed
        held[at % 8] = one
    return len(held)
with ThreadPoolExecutor(4) as threads:
    assert list(threads.map(work, range(4))) == [8] * 4
assert figure(REQUESTS, "allocated") == 8000 == figure(REQUESTS, "freed")
assert figure(REQUESTS) == 0 == figure(BYTES)
"""
    )
