"""What becomes of it all when a process ends, forks, or is configured; and the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import pytest

import forebay

#: A child that hangs is a failure, not a wait.
LIMIT = 60


def run(program: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
                          timeout=LIMIT, env=environment, check=False)


def succeeds(program: str, **variables: str) -> str:
    ran = run(program, **variables)
    assert ran.returncode == 0, f"{ran.returncode}: {ran.stdout}{ran.stderr}"
    assert ran.stderr == ""
    return ran.stdout


def test_a_program_may_end_with_anything_alive(device):
    name = device.name
    assert succeeds(f"""
        import forebay, threading
        device = forebay.device("{name}")
        pool, own = forebay.pool(device), forebay.Pool(device, upkeep=True, history=100)
        stream = device.stream()
        kept = [pool.allocate(1 << 20, stream=stream), own.allocate(100), own.arena(4096).allocate(10)]
        kept[0].fill(1, wait=False)
        pinned = device.pinned(4096)
        tag = forebay.tag("left"); tag.__enter__()
        scope = own.performance_context(); scope.__enter__()
        memory = memoryview(pinned)
        class Cycle: pass
        cycle = Cycle(); cycle.self, cycle.buffer = cycle, pool.allocate(77)
        def forever():
            while True:
                pool.allocate(4096).free()
        threading.Thread(target=forever, daemon=True).start()
        import atexit
        atexit.register(lambda: kept.append(pool.allocate(10)))
        print("ended")
    """) == "ended\n"


def test_opencl_is_loaded_by_who_asks_for_it_alone():
    """Its drivers start threads, and do not survive the fork of a data loader."""
    program = """
        import forebay
        def loaded():
            with open("/proc/self/maps") as maps:
                return any("OpenCL" in line or "pocl" in line for line in maps)
        said = [loaded()]
        for name in ("host", "sim", "cuda:0", "hip:0"):
            try:
                forebay.Pool(name).allocate(4096).free()
            except forebay.Error:
                pass
        forebay.pool("host").allocate(4096).free()
        said.append(loaded())
        names = [device.name for device in forebay.devices()]
        said.append(loaded() or "opencl:0" not in names)
        print(said)
    """
    assert succeeds(program) == "[False, False, True]\n"


def test_numpy_may_have_memory_at_the_end():
    pytest.importorskip("numpy")
    assert succeeds("""
        import forebay, numpy
        pool = forebay.Pool("host")
        arrays = [numpy.asarray(pool.allocate(4096)), numpy.from_dlpack(pool.allocate(4096))]
        lent = forebay.from_dlpack(numpy.arange(10))
        del pool
        print(sum(array.size for array in arrays))
    """) == "8192\n"


FORK = """
    import forebay, os, sys, threading
    device = forebay.device("{name}")
    pool, stream = forebay.pool(device), device.stream()
    own = forebay.Pool(device)
    buffer, arena = pool.allocate(100, stream=stream), own.arena(4096)
    part, view = arena.allocate(10), buffer.view("int8")
    transfer = buffer.upload_async(bytes(100))
    busy = threading.Event()
    def work():
        while not busy.is_set():
            pool.allocate(4096).free()
    thread = threading.Thread(target=work)
    thread.start()
    child = os.fork()
    if child == 0:
        told = []
        for use in (lambda: pool.allocate(1), lambda: pool.statistics(), lambda: pool.leaks(), lambda: own.trim(),
                    lambda: buffer.to_bytes(), lambda: buffer.free(), lambda: buffer.fill(1), lambda: view[:],
                    lambda: part.address, lambda: arena.reset(), lambda: arena.close(), lambda: own.close(),
                    lambda: stream.synchronize(), lambda: device.memory(), lambda: device.stream(),
                    lambda: memoryview(buffer), lambda: device.pinned(10), lambda: transfer.wait(),
                    lambda: transfer.done(), lambda: transfer.cancel(), lambda: transfer.order(),
                    lambda: buffer.upload(b""), lambda: buffer.download(), lambda: pool.upload(b"x")):
            try:
                use()
                told.append("nothing")
            except forebay.ForkedError:
                pass
            except Exception as error:
                told.append(repr(error))
        fresh = forebay.pool("host").allocate(100)
        fresh.upload(b"x" * 100)
        assert fresh.to_bytes() == b"x" * 100
        assert [row["requested_bytes"] for row in forebay.leaks()] == [100], forebay.leaks()
        if "{name}".startswith("cuda"):
            try:
                forebay.device("{name}")
                told.append("CUDA in a child")
            except forebay.UnsupportedError:
                pass
            assert all(device.kind != "cuda" for device in forebay.devices())
        del pool, own, buffer, arena, part, view, stream, transfer
        print(told, flush=True)
        sys.exit(0)
    busy.set()
    thread.join()
    pid, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    buffer.fill(2)
    assert buffer.to_bytes() == bytes([2]) * 100, "the parent goes on"
    del view
    transfer.wait()
    buffer.free()
    part.free()
    arena.close()
    print("parent", pool.statistics()["live_bytes"])
"""


def test_a_program_may_exit_with_transfers_under_way():
    said = succeeds("""
        import forebay, threading
        source = bytearray(32 << 20)
        pools = [forebay.Pool(name) for name in ("host", "sim")]
        transfers = [pool.upload_async(source) for pool in pools for _ in range(3)]
        threading.Thread(target=transfers[0].wait, daemon=True).start()
        cycle = [pools[1].upload_async(source)]
        cycle.append(cycle)
        print("end")
    """)
    assert said.splitlines() == ["end"]


@pytest.mark.filterwarnings("ignore")
def test_a_child_is_told_that_things_are_its_parents(device):
    # Python itself warns of forks with threads, from 3.12 on.
    program = textwrap.dedent(FORK.format(name=device.name))
    said = succeeds("import warnings; warnings.simplefilter('ignore')" + program)
    assert said.splitlines() == ["[]", "parent 0"]


def test_the_whole_process_is_configured():
    succeeds("""
        import forebay
        assert forebay.settings()["history"]["source"] == "FOREBAY_HISTORY"
        forebay.configure("max_bytes:64MiB", history=3)
        pool = forebay.pool("host")
        assert pool.limit == 64 << 20 and pool.settings()["history"]["value"] == "3"
        assert forebay.Pool("host").limit == 64 << 20
        forebay.configure(max_bytes="32MiB")
        assert pool.limit == 32 << 20, "pools that are there change as well"
        for words in ({"poison": True}, {"history": 1, "max_fraction": 7}, {"no_such": 1}):
            try:
                forebay.configure(**words)
                raise SystemExit(f"{words} was not refused")
            except forebay.InvalidError:
                pass
        assert forebay.settings()["poison"]["value"] == "off" and pool.settings()["history"]["value"] == "3"
    """, FOREBAY_HISTORY="9")


def test_what_pytorchs_face_configures_is_the_same(cuda):
    succeeds("""
        import ctypes, forebay
        library = ctypes.CDLL(forebay.library_path())
        assert library.forebay_face_configure(b"max_bytes:64MiB") == 0
        assert forebay.settings()["max_bytes"]["value"] == "64MiB"
        forebay.configure(history=100)
        pool = forebay.pool("cuda:0")
        assert pool.limit == 64 << 20 and pool.settings()["history"]["value"] == "100"
        assert library.forebay_face_configure(b"history:7") == 0
        assert forebay.Pool("host").settings()["history"]["value"] == "7"
    """)


def test_the_environment_is_heard_and_its_mistakes_told():
    said = succeeds('import forebay; print(forebay.pool("host").limit)', FOREBAY_CONF="max_bytes:3MiB")
    assert said == "4194304\n", "in whole pages of 2 MiB"
    ran = run('import forebay; forebay.pool("host")', FOREBAY_MAX_BYTES="lots")
    assert ran.returncode == 1 and "forebay.errors.InvalidError" in ran.stderr and "max_bytes" in ran.stderr


def test_without_a_driver_cuda_is_an_error_and_not_a_crash():
    said = succeeds("""
        import forebay
        print([device.name for device in forebay.devices()])
        try:
            forebay.device("cuda:0")
        except forebay.Error as error:
            print(type(error).__name__, error)
    """, FOREBAY_CUDA_DRIVER="/nowhere/libcuda.so", FOREBAY_HIP_DRIVER="/nowhere/libamdhip64.so",
        OCL_ICD_VENDORS="/nowhere")
    names, error = said.splitlines()
    assert names == "['host', 'sim']" and "no CUDA driver" in error


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "forebay", *arguments], capture_output=True, text=True,
                          timeout=LIMIT, check=False)


def test_the_command_is_there():
    ran = command("doctor", "--json")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["schema"] == "forebay.doctor.v1"
    assert command("--version").stdout == f"forebay {forebay.__version__}\n"
    assert command("replay").returncode == 2
    assert command("replay", "/nowhere.csv").returncode == 1
    script = os.path.join(os.path.dirname(sys.executable), "forebay")
    assert subprocess.run([script, "--version"], capture_output=True, text=True, timeout=LIMIT,
                          check=True).stdout == f"forebay {forebay.__version__}\n"
