"""Recordings: made, kept, played."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
import threading
import time
import weakref

import pytest

import forebay

TRACE = "op,id,bytes,stream\na,1,3145728,0\na,2,1048576,1\nf,1,,0\na,3,3145728,0\nf,2,,1\nf,3,,0\n"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.csv"
    path.write_text(TRACE)
    return path


def test_a_run_is_played_as_the_command_does(trace):
    rows = forebay.replay(trace)
    assert [(row["policy"], row["pass"]) for row in rows] == [
        (policy, number) for policy in ("forebay", "torch", "torch-expandable", "pow2", "direct") for number in (1, 2)]
    for row in rows:
        assert row["schema"] == "forebay.replay.v1" and row["ops"] == 6 and row["device"] == "sim"
        assert row["peak_requested_bytes"] == 4 << 20 and row["peak_reserved_bytes"] >= 4 << 20
        assert row["ratio"] == row["peak_reserved_bytes"] / row["peak_requested_bytes"] and row["ooms"] == 0


def test_policies_devices_and_limits_are_chosen(trace):
    rows = forebay.replay(trace, device="host", policy=["forebay", "direct"], passes=1, verify=True)
    assert [(row["policy"], row["device"], row["verified"]) for row in rows] == [
        ("forebay", "host", True), ("direct", "host", True)]
    assert len(forebay.replay(str(trace), policy="pow2,direct", passes=3)) == 6
    assert forebay.replay(trace, policy="direct", capacity="3MiB", passes=1)[0]["ooms"] > 0
    assert forebay.replay(trace, policy="forebay", verify=True)[0]["verified"] is True


def test_a_run_is_replayed_on_any_device(device, trace):
    rows = forebay.replay(trace, device=device.name, verify=True)
    assert all(row["verified"] is True and row["device"] == device.name for row in rows)
    policies = {row["policy"] for row in rows}
    assert {"forebay", "torch", "pow2", "direct"} <= policies
    if "virtual_memory" in device.capabilities:
        assert "torch-expandable" in policies
        return
    assert "torch-expandable" not in policies
    with pytest.raises(forebay.UnsupportedError, match="expandable segments"):
        forebay.replay(trace, device=device.name, policy="torch-expandable")


@pytest.mark.parametrize("words", [{"policy": "jemalloc"}, {"device": "gpu"}, {"passes": 0}, {"passes": 1001},
                                   {"capacity": "much"}])
def test_what_cannot_be_played_is_refused(trace, words):
    with pytest.raises(forebay.InvalidError):
        forebay.replay(trace, **words)


def test_files_that_are_no_recordings_say_why(tmp_path):
    broken = tmp_path / "broken.csv"
    broken.write_text("op,id,bytes,stream\na,1,-5,0\n")
    for path in (broken, tmp_path / "none.csv"):
        with pytest.raises(forebay.TraceError, match=path.name):
            forebay.replay(path)


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".fbt"])
def test_a_pool_is_recorded_and_played_again(device, tmp_path, ending):
    path = tmp_path / f"mine{ending}"
    with forebay.Pool(device, record=True) as pool:
        kept = pool.allocate(5000)
        pool.allocate("1MiB").free()
        assert pool.save_trace(path) == 3
        with pytest.raises(forebay.TraceError, match="saved already"):
            pool.save_trace(path)
        kept.free()
    (row,) = forebay.replay(path, policy="forebay", passes=1)
    assert row["ops"] == 3 and row["peak_requested_bytes"] == (1 << 20) + 5000


def allocate_weights(pool):
    return pool.allocate("1MiB")


def allocate_state(pool):
    return pool.allocate("2MiB")


@pytest.mark.parametrize("words", [{"record": True}, {"history": 100}])
def test_a_recording_has_lines_of_python_and_transfers(tmp_path, words):
    page = tmp_path / "mine.json"
    with forebay.Pool("sim", stacks=True, **words) as pool:
        blocks = [allocate_weights(pool), allocate_state(pool)]
        pool.upload(bytes(100_000))
        with pytest.raises(forebay.TraceError, match="nowhere"):
            pool.save_trace(tmp_path / "nowhere" / "mine.json")
        blocks.append(pool.arena("1MiB"))
        assert pool.save_trace(page) >= 4
        blocks.clear()
    events = json.loads(page.read_text())["traceEvents"]
    stacks = [event["args"]["stack"].split("\n") for event in events if "stack" in event.get("args", {})]
    owners = {stack[0].split(":")[0] for stack in stacks}
    here = allocate_weights.__code__.co_filename
    assert {f"allocate_weights {here}", f"allocate_state {here}"} <= owners
    assert [event["args"]["bytes"] for event in events if event.get("cat") == "transfer"] == [100_000]


def test_a_refusal_is_described_with_lines_of_python(tmp_path):
    described = tmp_path / "oom.txt"
    with forebay.Pool("sim", max_bytes="16MiB", stacks=True, oom_report=str(described)) as pool:
        kept = [allocate_state(pool) for _ in range(6)]
        with forebay.tag("activations"), pytest.raises(forebay.OutOfMemoryError, match=str(described)):
            pool.allocate("8MiB")
        kept.clear()
    snapshot = json.loads((tmp_path / "oom.txt.json").read_text())
    refusal, stacks = snapshot["refusal"], snapshot["stacks"]
    assert (refusal["requested_bytes"], refusal["tag"], refusal["cause"]) == (8 << 20, "activations", "limit")
    assert "test_a_refusal_is_described" in stacks[refusal["stack"]] and "test_traces.py:" in stacks[refusal["stack"]]
    assert len(snapshot["blocks"]) == 6
    assert all(stacks[block["stack"]].startswith("allocate_state ") for block in snapshot["blocks"])
    assert all(block["age_ms"] >= 0 for block in snapshot["blocks"])
    forebay.report(described, tmp_path / "page.html")
    assert "forebay.postmortem.v1" in (tmp_path / "page.html").read_text()
    missing = tmp_path / "nowhere" / "oom.txt"
    with forebay.Pool("sim", max_bytes="4MiB", oom_report=str(missing)) as pool:
        with pytest.raises(forebay.OutOfMemoryError, match="could not be written to .*nowhere"):
            pool.allocate("8MiB")


def test_stacks_go_on_and_off_in_a_history():
    with forebay.Pool("host", history=100) as pool:
        allocate_weights(pool).free()
        pool.configure(stacks=True)
        allocate_weights(pool).free()
        pool.configure(stacks=False)
        rows = pool.history()
    assert [row["stack"] is not None for row in rows] == [False, False, True, False]
    line = allocate_weights.__code__.co_firstlineno + 1
    assert rows[2]["stack"][0].endswith(f"test_traces.py:{line}") and rows[2]["thread"] == rows[0]["thread"]


def test_a_stack_keeps_no_code_alive_and_names_it_all_the_same():
    names = {}
    exec("def passing(pool):\n    return pool.allocate(10)\n", names)
    code = weakref.ref(names["passing"].__code__)
    with forebay.Pool("host", stacks=True, history=10) as pool:
        names["passing"](pool).free()
        names.clear()
        gc.collect()
        assert code() is None
        assert pool.history()[0]["stack"][0] == "passing <string>:2"


LONG_NAMES = """
import forebay
with forebay.Pool("host", stacks=True, history=100) as pool:
    for number in range(40):
        names = {}
        exec(f"def f{number}_{'x' * (1 << 20)}(pool): return pool.allocate(10)", names)
        names.popitem()[1](pool).free()
    lines = [row["stack"][0] for row in pool.history()[::2]]
assert lines[0].startswith("f0_xxx") and lines[0].endswith(" <string>:1"), lines[0][-100:]
assert lines[-1] == "(a function: the table of names is full):1", lines[-1][-100:]
print(sum(map(len, lines)) >> 20)
"""


def test_names_of_functions_take_a_bounded_part_of_the_memory():
    ended = subprocess.run([sys.executable, "-c", LONG_NAMES], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert 10 <= int(ended.stdout) <= 16


class Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]


@pytest.mark.parametrize("holds_gil", [True, False])
def test_a_library_has_the_lines_of_a_caller_with_the_gil(tmp_path, holds_gil):
    library = (ctypes.PyDLL if holds_gil else ctypes.CDLL)(forebay._forebay.__file__)
    path, device, pool, block = tmp_path / "c.json", Handle(), Handle(), ctypes.c_void_p()
    assert library.forebay_device_open(b"host", ctypes.byref(device)) == 0
    assert library.forebay_pool_create(device, b"stacks:on", ctypes.byref(pool)) == 0
    assert library.forebay_trace_start(pool, ctypes.c_uint64(100)) == 0
    assert library.forebay_alloc(pool, ctypes.c_uint64(4096), Handle(), ctypes.byref(block)) == 0
    assert library.forebay_free(pool, block, Handle()) == 0
    assert library.forebay_trace_stop(pool, str(path).encode(), None) == 0
    events = json.loads(path.read_text())["traceEvents"]
    (stack,) = (event["args"]["stack"] for event in events if "stack" in event.get("args", {}))
    assert stack and stack.startswith("test_a_library_has_the_lines_of_a_caller_with_the_gil ") is holds_gil
    assert library.forebay_pool_close(pool, None) == 0 and library.forebay_device_close(device) == 0


BESIDE_SUBINTERPRETER = """
import ctypes, threading, time, forebay
try:
    import _xxsubinterpreters as interpreters
except ImportError:
    import _interpreters as interpreters
interpreters.create()
class Handle(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64)]
library, device, pool = ctypes.CDLL(forebay._forebay.__file__), Handle(), Handle()
assert library.forebay_device_open(b"host", ctypes.byref(device)) == 0
assert library.forebay_pool_create(device, b"stacks:on,history:100", ctypes.byref(pool)) == 0
end = time.monotonic() + 0.7
def allocate():
    block = ctypes.c_void_p()
    while time.monotonic() < end:
        assert library.forebay_alloc(pool, ctypes.c_uint64(4096), Handle(), ctypes.byref(block)) == 0
        assert library.forebay_free(pool, block, Handle()) == 0
def calls(depth):
    return [calls(depth - 1) for _ in range(2)] if depth else None
threads = [threading.Thread(target=allocate) for _ in range(3)]
for thread in threads:
    thread.start()
while time.monotonic() < end:
    calls(8)
for thread in threads:
    thread.join()
"""


def test_a_thread_without_the_gil_beside_a_subinterpreter_captures_no_lines():
    ended = subprocess.run([sys.executable, "-c", BESIDE_SUBINTERPRETER], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_nobody_waits_for_a_recording_that_is_being_written(tmp_path):
    library = ctypes.CDLL(forebay._forebay.__file__)
    library.forebay_last_error.restype = ctypes.c_char_p
    path, device, pool = tmp_path / "slow.csv", Handle(), Handle()
    os.mkfifo(path)
    assert library.forebay_device_open(b"host", ctypes.byref(device)) == 0
    assert library.forebay_pool_create(device, b"stacks:on", ctypes.byref(pool)) == 0
    assert library.forebay_trace_start(pool, ctypes.c_uint64(100)) == 0
    writer = threading.Thread(target=library.forebay_trace_stop, args=(pool, str(path).encode(), None))
    # What waits for the writer waits for this.
    reader = threading.Timer(2, path.read_text)
    writer.start(), reader.start()
    time.sleep(0.5)
    busy = library.forebay_trace_start(pool, ctypes.c_uint64(100)), library.forebay_last_error()
    assert reader.is_alive() and busy[0] == 11, busy
    writer.join(), reader.join()
    assert library.forebay_pool_close(pool, None) == 0 and library.forebay_device_close(device) == 0


def test_what_a_callback_allocates_has_its_own_lines():
    with forebay.Pool("host", history=10, stacks=True) as other:
        def on_shortage(_):
            allocate_state(other).free()

        with forebay.Pool("sim", max_bytes="8MiB", stacks=True, history=10, on_shortage=on_shortage) as pool:
            kept = pool.allocate("6MiB")
            with pytest.raises(forebay.OutOfMemoryError):
                pool.allocate("4MiB")
            kept.free()
        assert other.history()[0]["stack"][0].startswith("allocate_state ")


def test_two_places_that_allocate_are_two_owners(tmp_path):
    with forebay.Pool("host", history=100, stacks=True) as pool:
        kept = [allocate_weights(pool), allocate_state(pool), allocate_state(pool)]
        page = open(forebay.report(pool, tmp_path / "pool.html")).read()
        kept.clear()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    owners = {data["labels"][owner["key"] - 1].split(" ")[0]: owner for owner in data["owners"]["by_site"]}
    assert {name: (owner["blocks"], owner["bytes"]) for name, owner in owners.items()} == {
        "allocate_state": (2, 4 << 20), "allocate_weights": (1, 1 << 20)}
    assert [len(data["owners"][by]) for by in ("by_thread", "by_stream")] == [1, 1]


def test_a_stack_that_looks_like_markup_is_escaped(tmp_path):
    scope = {}
    exec(compile("def allocate(pool):\n    return pool.allocate(5000)\n", "</script><script>", "exec"), scope)
    with forebay.Pool("host", history=100, stacks=True) as pool:
        scope["allocate"](pool).free()
        page = open(forebay.report(pool, tmp_path / "pool.html")).read()
    assert "\\u003c/script\\u003e\\u003cscript\\u003e:2" in page and "</script><script>:2" not in page


def test_a_history_is_a_recording_too(device, tmp_path):
    with forebay.Pool(device, history=100) as pool:
        pool.allocate(3000).free()
        assert pool.save_trace(tmp_path / "late.fbt") == 2
    with forebay.Pool(device) as pool:
        with pytest.raises(forebay.TraceError, match="record=True"):
            pool.save_trace(tmp_path / "none.fbt")
        with pytest.raises(forebay.InvalidError, match="ending|\\.csv"):
            pool.save_trace(tmp_path / "none.txt")


def test_a_report_is_a_page_that_notebooks_show(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report = forebay.report(trace)
    assert str(report) == "run.report.html" and (tmp_path / "run.report.html").read_text().startswith("<!doctype html>")
    inline = report._repr_html_()
    assert inline.startswith("<iframe sandbox") and "forebay.report.v1" in inline and "<script" not in inline
    assert "run.report.html" in repr(report)
    with pytest.raises(forebay.TraceError, match="missing.csv"):
        forebay.report("missing.csv")
    with pytest.raises(TypeError):
        forebay.report(7)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        forebay.report(trace, tmp_path / "nowhere" / "page.html")


def test_a_report_is_named_after_its_file_and_advises_no_forebay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with forebay.Pool("host", record=True) as pool:
        with forebay.tag("weights"):
            pool.allocate("3MiB").free()
        pool.save_trace("monday.fbt")
    report = forebay.report("monday.fbt", quick=False)
    page = open(report).read()
    assert str(report) == "monday.report.html" and "<h1>monday</h1>" in page
    assert '"of_forebay":true' in page and '"began_unix_ms":1' in page
    assert "Use forebay's pool" not in page


def test_a_report_follows_no_link(trace, tmp_path):
    far, page = tmp_path / "far", tmp_path / "page.html"
    far.write_text("far")
    page.symlink_to(far)
    forebay.report(trace, page)
    assert far.read_text() == "far" and not page.is_symlink()
    assert page.read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("words", [{}, {"history": 100}, {"record": True}])
def test_a_pool_is_reported_as_it_is(tmp_path, words):
    with forebay.Pool("host", **words) as pool, forebay.tag("<script>weights"):
        kept = pool.allocate("3MiB")
        page = open(forebay.report(pool, tmp_path / "pool.html")).read()
        # Without a recording nothing is known of a run: the page is one of the moment.
        said = '"peak_requested_bytes":3145728' if words else '"live_bytes":3145728'
        assert "\\u003cscript\\u003eweights" in page and said in page
        assert ("forebay.report.v1" if words else "forebay.postmortem.v1") in page
        kept.free()
        if words:  # What is over stays in a history and in a recording.
            page = open(forebay.report(pool, tmp_path / "pool.html")).read()
            assert '"peak_requested_bytes":3145728' in page


INTERRUPTED = """
import os, signal, sys, threading, time, forebay
path = sys.argv[1]
with forebay.Pool("host", record=True) as pool:
    for number in range(10_000):
        pool.allocate(1000 + number).free()
    pool.save_trace(path)
began = time.monotonic()
threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    forebay.replay(path, device="sim", passes=1000)
except KeyboardInterrupt:
    print(time.monotonic() - began)
"""


def test_a_replay_ends_with_a_signal(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "long.fbt")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert 0.5 <= float(ended.stdout) < 5
