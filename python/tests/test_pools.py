"""Pools: limits, figures, what they say and whom they ask."""

from __future__ import annotations

import gc
import json
import time

import pytest

import forebay


def test_the_process_has_one_pool_of_a_device(device):
    assert forebay.pool(device).id == forebay.pool(device.name).id == device.pool().id
    assert forebay.Pool(device).id != forebay.pool(device).id


def test_batches_are_all_or_none(device):
    with forebay.Pool(device, max_bytes="8MiB") as pool:
        buffers = pool.allocate_batch([100, "1KiB", 0, 5000])
        assert [buffer.size for buffer in buffers] == [100, 1024, 0, 5000]
        del buffers
        with pytest.raises(forebay.OutOfMemoryError):
            pool.allocate_batch(["4MiB", "4MiB", "4MiB"])
        gc.collect()
        assert pool.statistics()["live_bytes"] == 0
        assert pool.allocate_batch([]) == []


def test_out_of_memory_says_all_figures(device):
    with forebay.Pool(device, max_bytes="4MiB") as pool, forebay.tag("weights"):
        kept = pool.allocate("2MiB")
        with pytest.raises(forebay.OutOfMemoryError, match="out of memory") as caught:
            pool.allocate("16MiB")
        error = caught.value
        assert isinstance(error, MemoryError) and isinstance(error, forebay.Error)
        assert (error.requested, error.limit, error.live) == (16 << 20, 4 << 20, 2 << 20)
        assert error.held >= error.live and error.device_free > 0 and error.owners == {"weights": 2 << 20}
        kept.free()


def test_warmup_takes_memory_ahead_of_time(pool):
    figures = pool.warmup([("1MiB", 4), 4096])
    assert figures["complete"] and figures["had_blocks"] == 5 and figures["had_bytes"] == (4 << 20) + 4096
    assert pool.statistics()["live_bytes"] == 0 and pool.held >= 4 << 20
    misses = pool.statistics()["misses"]
    buffers = [pool.allocate("1MiB") for _ in range(4)]
    assert pool.statistics()["misses"] == misses
    del buffers
    with pytest.raises(forebay.InvalidError):
        pool.warmup([("1MiB", 4), "much"])


def test_what_is_free_goes_back(pool):
    pool.allocate("32MiB").free()
    assert pool.held >= 32 << 20
    pool.defragment()
    pool.process_deferred()
    if "virtual_memory" in pool.device.capabilities:
        assert pool.trim("16MiB") > 0
        assert pool.held <= 24 << 20
    else:
        # A segment of 32 MiB goes back whole or not at all.
        assert pool.trim("16MiB") == 0
    pool.empty_cache()
    assert pool.held == 0
    pool.allocate("8MiB").free()
    pool.collect(0.0)
    assert pool.collect(age=0) >= 0
    for age in (-1, float("nan"), float("inf")):
        with pytest.raises(forebay.InvalidError, match="a time cannot be"):
            pool.collect(age)


def test_statistics_have_plain_names(pool):
    with pool.allocate(1000):
        figures = pool.statistics()
        assert figures["live_bytes"] == 1024 and figures["requested_bytes"] == 1000 and figures["blocks"] == 1
        assert figures["held_bytes"] == pool.held > 0 and figures["allocations"] == 1
        assert figures["hit_rate"] == 0.0 and 0 < figures["efficiency"] < 1
        assert figures["streams"][0]["allocations"] == 1
    snapshot = pool.snapshot()
    assert snapshot["schema"] == "forebay.pool.v1" and snapshot["limit_bytes"] == pool.limit
    assert snapshot["device"]["kind"] == pool.device.kind and snapshot["pool"] == pool.id
    assert json.loads(pool.snapshot_json())["settings"] == snapshot["settings"]
    assert "1 allocation" in pool.summary()
    assert pool.pressure in {"low", "normal", "moderate", "high", "critical"}
    assert pool.device.name in repr(pool)


def test_history_and_leaks_say_what_since_when_from_where(device):
    with forebay.Pool(device, history=100) as pool:
        forebay.trace_origins(4)
        try:
            with forebay.tag("activations"):
                kept = pool.allocate(3000)
        finally:
            forebay.trace_origins(0)
        time.sleep(0.02)
        later = pool.allocate(100)
        rows = pool.leaks()
        assert [row["requested_bytes"] for row in rows] == [3000, 100], "the oldest first"
        first, second = rows
        assert first["tag"] == "activations" and first["address"] == kept.address
        assert 0.02 <= first["age_s"] < 60 and abs(first["since_unix_s"] - time.time()) < 60
        assert "test_pools.py" in first["origin"][0] and "test_history_and_leaks" in first["origin"][0]
        assert second["origin"] is None and second["age_s"] < first["age_s"]
        kept.free()
        later.free()
        assert pool.leaks() == []
        actions = [(event["action"], event["requested_bytes"], event["tag"]) for event in pool.history()]
        assert actions[:2] == [("allocate", 3000, "activations"), ("allocate", 100, "untagged")]
        assert [action for action, *_ in actions] == ["allocate", "allocate", "free", "free"]
    with pytest.raises(forebay.InvalidError, match="0 to 64"):
        forebay.trace_origins(65)


def test_the_processs_leaks_are_those_of_its_pools(device):
    kept = forebay.pool(device).allocate(777)
    rows = [row for row in forebay.leaks() if row["requested_bytes"] == 777]
    assert [(row["device"], row["address"]) for row in rows] == [(device.name, kept.address)]
    assert any(row["requested_bytes"] == 777 for row in forebay.leaks(device.name))
    kept.free()


def test_scopes_measure_a_stretch(pool):
    with forebay.performance_context(pool) as outer:
        assert outer.statistics is None
        buffer = pool.allocate("1MiB")
        with pool.performance_context() as inner:
            pool.allocate("2MiB").free()
        with pytest.raises(forebay.InvalidError, match="already running"):
            outer.__enter__()
    assert inner.statistics["allocations"] == inner.statistics["frees"] == 1
    assert outer.statistics["allocations"] == 2 and outer.statistics["peak_bytes"] >= 3 << 20
    assert outer.statistics["live_after_bytes"] - outer.statistics["live_before_bytes"] == 1 << 20
    assert outer.statistics["seconds"] >= inner.statistics["seconds"] >= 0
    buffer.free()
    with pytest.raises(forebay.InvalidError, match="was not started"):
        forebay.performance_context("host").__exit__(None, None, None)


def test_tags_tell_who_has_what(pool):
    with forebay.tag("outer") as outer:
        one = pool.allocate(1024)
        with forebay.tag("inner"):
            two = pool.allocate(2048)
        three = pool.allocate(4096)
    four = pool.allocate(512)
    tags = {row["tag"]: row["live_bytes"] for row in pool.statistics()["tags"]}
    assert tags == {"outer": 5120, "inner": 2048, "untagged": 512}
    assert outer.name == "outer"
    outer.__exit__(None, None, None)  # left already
    del one, two, three, four


def test_the_program_is_asked_before_memory_runs_out(device):
    cache, asked = [], []

    def let_go(shortage):
        asked.append(shortage)
        cache.clear()
        return True

    with forebay.Pool(device, max_bytes="8MiB", on_shortage=let_go) as pool:
        cache.append(pool.allocate("6MiB"))
        with pool.allocate("6MiB"):
            assert len(asked) == 1 and asked[0]["requested"] == 6 << 20 and asked[0]["live"] == 6 << 20


def test_what_a_callback_raises_does_not_reach_the_pool(device, monkeypatch):
    import sys

    told, levels = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))

    def broken(_):
        raise KeyError("on purpose")

    with forebay.Pool(device, max_bytes="8MiB", on_shortage=broken,
                      on_pressure=lambda level, held: levels.append((level, held))) as pool:
        with pool.allocate("4MiB"), pytest.raises(forebay.OutOfMemoryError) as refused:
            pool.allocate("6MiB")
        assert isinstance(refused.value.__cause__, KeyError) and told == []
        with pool.allocate("7900KiB"):
            pass
        assert levels and levels[0][0] in {"moderate", "high", "critical"}


def test_settings_change_while_a_pool_lives(device):
    with forebay.Pool(device, "max_bytes:64MiB,history:5", magazine_bytes="1MiB", upkeep=False) as pool:
        assert pool.limit == 64 << 20
        table = pool.settings()
        assert table["history"]["value"] == "5" and table["magazine_bytes"]["value"] == "1MiB"
        assert table["history"]["changeable"] and not table["poison"]["changeable"] and table["history"]["help"]
        pool.configure(max_bytes="32MiB", history=7)
        pool.configure("history:8")
        assert pool.limit == 32 << 20 and pool.settings()["history"]["value"] == "8"
        assert pool.settings()["max_bytes"]["source"] != table["max_bytes"]["source"]
        for bad in ({"poison": True}, {"max_byte": 1}, {"history": -1}, {"history": []}, {"min_bytes": "64MiB"}):
            with pytest.raises((forebay.InvalidError, TypeError)):
                pool.configure(**bad)
        with pytest.raises(forebay.InvalidError):
            pool.configure(history=9, max_bytes="nonsense")
        assert pool.settings()["history"]["value"] == "8", "all or none"


@pytest.mark.parametrize("words", [{"max_byte": "8GiB"}, {"max_bytes": "lots"}, {"zero": "sometimes"},
                                   {"conf": "max_bytes=8GiB"}])
def test_settings_that_cannot_be_are_refused(words):
    with pytest.raises(forebay.InvalidError):
        forebay.Pool("host", **words)


def test_debugging_aids_find_writes_past_the_end():
    with forebay.Pool("host", canaries=True) as pool:
        import ctypes

        buffer = pool.allocate(512)
        pool.check()
        ctypes.memset(buffer.address + 512, 0x5A, 2)
        with pytest.raises(forebay.CorruptionError, match="past the end"):
            pool.check()
        with pytest.raises(forebay.CorruptionError, match="past the end"):
            buffer.free()
        assert buffer.freed and len(pool.findings()) == 1
        del buffer
    assert forebay.lost_frees()[0] == 0, "the check kept the block, so no free was lost"


def test_a_closed_pool_serves_no_more_and_its_buffers_live_on(device):
    pool = forebay.Pool(device)
    buffer = pool.allocate(100)
    pool.close()
    pool.close()
    assert pool.closed and "closed" in repr(pool)
    for use in (lambda: pool.allocate(1), lambda: pool.statistics(), lambda: pool.limit, lambda: pool.trim(),
                lambda: pool.arena(100), lambda: pool.leaks(), lambda: pool.configure(history=1)):
        with pytest.raises(forebay.ClosedError, match="the pool was closed"):
            use()
    buffer.fill(4)
    assert buffer.to_bytes() == b"\x04" * 100
    buffer.free()


def test_torch_and_python_have_one_pool(cuda):
    import ctypes

    library = ctypes.CDLL(forebay.library_path())
    library.forebay_torch_alloc.restype = ctypes.c_void_p
    library.forebay_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.forebay_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    pool = cuda.pool()
    before = pool.statistics()["requested_bytes"]
    block = library.forebay_torch_alloc(12345, 0, None)
    assert block
    rows = [row for row in pool.leaks() if row["address"] == block]
    assert len(rows) == 1 and rows[0]["requested_bytes"] == 12345 and rows[0]["age_s"] is None
    assert pool.statistics()["requested_bytes"] == before + 12345
    library.forebay_torch_free(block, 12345, 0, None)
    assert pool.statistics()["requested_bytes"] == before
