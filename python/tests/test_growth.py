"""Nothing grows: thousands of each thing leave the process as large as before."""

from __future__ import annotations

import gc
import sys

import pytest

import forebay

np = pytest.importorskip("numpy")

#: A page or two that the allocator keeps are no leak; one object a turn would be hundreds of KiB.
ALLOWED_KIB = 256

#: How often it is looked whether the process has grown. What leaks grows every time; what depends on how fast the
#: machine is, as how much work is under way at some moment, does not.
LOOKS = 5


def resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4


def refused(pool):
    with pytest.raises(MemoryError):
        pool.allocate("100TiB")


#: Limited, as what a pool holds is no leak: while the work of one stream is under way another one gets new memory.
SIMULATED = forebay.Pool("sim", max_bytes="64MiB")

CASES = {
    "a pair": (2000, lambda pool: pool.allocate(4096).free()),
    "a buffer dropped": (2000, lambda pool: pool.allocate(4096)),
    "a memoryview": (2000, lambda pool: memoryview(pool.allocate(4096))),
    "an array": (2000, lambda pool: np.asarray(pool.allocate(4096).view("float32", (32, 32)))),
    "a tensor given": (2000, lambda pool: np.from_dlpack(pool.allocate(4096))),
    "a capsule nobody takes": (2000, lambda pool: pool.allocate(4096).__dlpack__(max_version=(1, 0))),
    "a tensor taken": (2000, lambda pool: forebay.from_dlpack(np.arange(100))),
    "a copy": (1000, lambda pool: pool.allocate(100).copy_from(b"x" * 100)),
    "an arena": (2000, lambda pool: pool.arena(4096).allocate(10)),
    # Simulated: a stream of the host is a thread, and the system's allocator keeps something for each.
    "a stream": (3500, lambda _: SIMULATED.allocate(10, stream=SIMULATED.device.stream())),
    "figures": (1000, lambda pool: pool.snapshot()),
    "a refusal": (1000, refused),
    "a pool": (100, lambda pool: forebay.Pool("sim", history=10).allocate(10)),
}


@pytest.mark.skipif(sys.platform != "linux", reason="what is resident is told by /proc alone")
@pytest.mark.parametrize("case", CASES)
def test_nothing_grows(host, case):
    turns, act = CASES[case]

    def grown_kib() -> int:
        before = resident_kib()
        for _ in range(turns):
            act(host)
        gc.collect()
        # What is put off until work is done is done, and what is held for later given back: neither is a leak.
        SIMULATED.device.synchronize()
        SIMULATED.trim()
        return resident_kib() - before

    for _ in range(2):
        grown_kib()
    grown = []
    while len(grown) < LOOKS and (not grown or grown[-1] >= ALLOWED_KIB):
        grown.append(grown_kib() + grown_kib())
    assert grown[-1] < ALLOWED_KIB, f"by so many KiB each time: {grown}"
    assert host.statistics()["live_bytes"] == SIMULATED.statistics()["live_bytes"] == 0
    assert SIMULATED.held == 0
    assert forebay.lost_frees() == (0, None)
