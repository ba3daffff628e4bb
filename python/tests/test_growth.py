"""Nothing grows: thousands of each thing leave the process as large as before."""

from __future__ import annotations

import gc
import sys

import pytest

import forebay

np = pytest.importorskip("numpy")

#: A page or two that the allocator keeps are no leak; one object a turn would be hundreds of KiB.
ALLOWED_KIB = 256


def resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * 4


def refused(pool):
    with pytest.raises(MemoryError):
        pool.allocate("100TiB")


SIMULATED = forebay.Pool("sim")

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

    def act_often():
        for _ in range(turns):
            act(host)
        gc.collect()

    act_often()
    act_often()
    before = resident_kib()
    act_often()
    act_often()
    assert resident_kib() - before < ALLOWED_KIB
    assert host.statistics()["live_bytes"] == 0
    assert forebay.lost_frees() == (0, None)
