"""Many threads at once: nothing is lost, and waiting does not stop the others."""

from __future__ import annotations

import sys
import threading
import time

import pytest

import forebay

THREADS = 4


def together(work, count=THREADS):
    errors = []

    def guarded(index):
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    assert not errors, errors


def test_blocks_are_each_threads_own(pool, device):
    def work(index):
        stream = device.stream()
        for turn in range(60):
            size = 1000 + 997 * ((turn * 7 + index) % 50)
            with pool.allocate(size, stream=stream) as buffer:
                buffer.fill(index + 1, wait=False)
                assert set(buffer.to_bytes()) == {index + 1}

    together(work)
    assert pool.statistics()["live_bytes"] == 0
    assert pool.statistics()["allocations"] == THREADS * 60


def test_one_buffer_is_freed_once(pool):
    for _ in range(30):
        buffer, freed = pool.allocate(4096), []

        def work(_, buffer=buffer, freed=freed):
            try:
                buffer.free()
                freed.append(True)
            except forebay.ClosedError:
                pass

        together(work)
        assert len(freed) == 1


def test_views_and_frees_race_without_harm(host):
    """Whoever comes first: a view that was had stays good, and a free that was done is final."""
    for _ in range(50):
        buffer, seen = host.allocate(4096), []

        def work(index, buffer=buffer, seen=seen):
            try:
                if index % 2:
                    buffer.free()
                else:
                    with memoryview(buffer) as memory:
                        memory[0] = 1
                        seen.append(memory[0])
            except (forebay.ClosedError, forebay.InUseError):
                pass

        together(work)
        assert set(seen) <= {1}
        buffer.close()
    assert host.statistics()["live_bytes"] == 0


def test_an_arena_may_be_shared(host):
    with host.arena("8MiB") as arena:
        addresses = []
        together(lambda _: addresses.extend(arena.allocate(1000).address for _ in range(100)))
        assert len(set(addresses)) == THREADS * 100


def test_tags_are_each_threads_own(pool):
    ready = threading.Barrier(THREADS)
    kept = []

    def work(index):
        with forebay.tag(f"thread {index}"):
            ready.wait(30)
            kept.append(pool.allocate(1024 * (index + 1)))

    together(work)
    tags = {row["tag"]: row["live_bytes"] for row in pool.statistics()["tags"]}
    assert tags == {f"thread {index}": 1024 * (index + 1) for index in range(THREADS)}
    del kept


def test_other_threads_run_while_one_waits(host):
    """A copy of much memory does not hold Python's lock."""
    buffer, data = host.allocate("256MiB"), bytearray(256 << 20)
    ticks, over = [], threading.Event()

    def tick():
        while not over.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    watch = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    watch.start()
    try:
        begun = time.perf_counter()
        for _ in range(4):
            buffer.copy_from(data)
        ended = time.perf_counter()
    finally:
        over.set()
        watch.join()
    within = [tick for tick in ticks if begun < tick < ended]
    assert len(within) > 3, f"{len(within)} ticks in {ended - begun:.3f} s, switch interval {interval}"
    buffer.free()


@pytest.mark.parametrize("export", [
    lambda buffer: buffer.view("int8"),
    lambda buffer: memoryview(buffer),
    lambda buffer: buffer.__dlpack__(),
    lambda buffer: buffer.__dlpack__(max_version=(1, 0)),
], ids=["view", "memoryview", "capsule", "versioned capsule"])
def test_other_threads_run_while_the_last_of_a_pool_waits(export):
    """What outlives its buffer and its pool waits for the device when it goes: without Python's lock."""
    pool = forebay.Pool("host")
    stream = pool.device.stream()
    buffer = pool.allocate("64MiB", stream=stream)
    buffer.fill(0)
    kept = [export(buffer)]
    for _ in range(30):
        buffer.fill(1, wait=False)
    pool.close()
    del buffer, pool
    begun, ended, turns = threading.Event(), threading.Event(), []

    def turn():
        begun.set()
        while not ended.is_set():
            turns.append(time.monotonic())
            time.sleep(0.001)

    thread = threading.Thread(target=turn)
    thread.start()
    begun.wait()
    start = time.monotonic()
    kept.clear()
    end = time.monotonic()
    ended.set()
    thread.join()
    assert end - start > 0.03, "there was something to wait for"
    assert sum(start < moment < end for moment in turns) > 5


def test_callbacks_of_python_do_not_deadlock(device):
    """Asked for memory by several threads at once, each asks Python, which looks at the pool meanwhile."""
    pool = None

    def let_go(_):
        return pool.statistics()["live_bytes"] < 0

    pool = forebay.Pool(device, max_bytes="16MiB", on_shortage=let_go)
    arena = pool.arena("4KiB", most="64MiB")
    part = arena.allocate(10)

    def work(index):
        for _ in range(10):
            if index % 2:
                with pytest.raises(forebay.OutOfMemoryError):
                    arena.allocate("32MiB")
            else:
                with pytest.raises(forebay.OutOfMemoryError):
                    pool.allocate("32MiB")
            assert part.address

    together(work)
    arena.close()
    pool.close()
