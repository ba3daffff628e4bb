"""Buffers that several processes share by name: contents, errors, locks."""

from __future__ import annotations

import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
import time

import pytest

import forebay

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="buffers are shared by name on Linux only")


def memory_of(device):
    """A manager of a device that can share its memory."""
    if device.kind == "opencl":
        pytest.skip("OpenCL memory cannot be shared with other processes")
    return forebay.BufferManager(device)


@pytest.fixture
def memory(device):
    return memory_of(device)


@pytest.fixture
def name(request):
    return f"py-{os.getpid()}-{abs(hash(request.node.name)) % 10**9}"


def other_process(code: str, *arguments: str) -> subprocess.Popen:
    """Another process, with a manager of the host."""
    code = "import sys, time, forebay\nmemory = forebay.BufferManager('host')\n" + code
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def test_memory_that_cannot_be_shared_is_refused(opencl, name):
    with pytest.raises(forebay.UnsupportedError, match="cannot share memory with other processes"):
        forebay.BufferManager(opencl).shared(name, 10)


def test_who_opens_a_buffer_has_its_elements(memory, name):
    created = memory.shared(name, (3, 4), "float32")
    assert (created.name, created.dtype, created.shape, created.nbytes) == (name, "float32", (3, 4), 48)
    assert created.read() == bytes(48), "all zero"
    assert created.creator == {"pid": os.getpid(), "uid": os.getuid()}
    opened = memory.open_shared(name)
    assert (opened.dtype, opened.shape) == ("float32", (12,))
    created.write(struct.pack("2f", 1.5, 2.5), offset=4)
    assert opened.read(4, 8) == struct.pack("2f", 1.5, 2.5)
    target = bytearray(4)
    memory.open_shared(name, (12,), "float32").read_into(target, offset=8)
    assert struct.unpack("f", target) == (2.5,)
    assert created.address > 0 and name in repr(created)
    assert memory.shared(name, 12, "float32", or_open=True).read(4, 4) == struct.pack("f", 1.5)


def test_what_does_not_fit_is_refused(memory, name):
    created = memory.shared(name, 10, "uint16")
    with pytest.raises(forebay.NameTakenError, match="already"):
        memory.shared(name, 10, "uint16")
    with pytest.raises(forebay.NotFoundError, match="no living process"):
        memory.open_shared(name + "-none")
    with pytest.raises(LookupError):
        memory.open_shared(name + "-none")
    with pytest.raises(forebay.InvalidError, match="elements of uint16, not float32"):
        memory.open_shared(name, dtype="float32")
    with pytest.raises(forebay.InvalidError, match=r"uint16 \(3,\) are 6 B"):
        memory.open_shared(name, 3)
    with pytest.raises(forebay.InvalidError, match="has 10 elements, not 11"):
        memory.shared(name, 11, "uint16", or_open=True)
    with pytest.raises(forebay.InvalidError, match="cannot name"):
        memory.shared("a/b", 1)
    for call in [lambda: created.write(bytes(21)), lambda: created.write(b"1", 20), lambda: created.read(21)]:
        with pytest.raises(forebay.InvalidError, match="do not lie within 20 B"):
            call()
    assert created.read() == bytes(20)
    del created
    with pytest.raises(forebay.NotFoundError):
        memory.open_shared(name)


def test_another_process_reads_and_writes(name):
    memory = forebay.BufferManager("host")
    here = memory.shared(name, 4, "int64")
    here.write(struct.pack("q", 42))
    code = """
there = memory.open_shared(sys.argv[1])
print(there.dtype, there.shape, int.from_bytes(there.read(0, 8), "little"))
there.write((7).to_bytes(8, "little"), offset=24)
"""
    said, _ = other_process(code, name).communicate(timeout=60)
    assert said.split() == ["int64", "(4,)", "42"]
    assert here.read(24) == struct.pack("q", 7)


def test_processes_count_under_the_lock(name):
    memory = forebay.BufferManager("host")
    counter = memory.shared(name, 1, "uint64")
    code = """
counter = memory.open_shared(sys.argv[1])
for _ in range(200):
    with counter.lock():
        value = int.from_bytes(counter.read(), "little")
        counter.write((value + 1).to_bytes(8, "little"))
"""
    others = [other_process(code, name) for _ in range(3)]
    for other in others:
        assert other.wait(60) == 0
    assert int.from_bytes(counter.read(), "little") == 600


def test_a_lock_times_out_and_ends_with_its_holder(name):
    memory = forebay.BufferManager("host")
    buffer = memory.shared(name, 1)
    code = """
buffer = memory.open_shared(sys.argv[1])
with buffer.lock():
    print("locked", flush=True)
    time.sleep(60)
"""
    other = other_process(code, name)
    assert other.stdout.readline() == "locked\n"
    begun = time.monotonic()
    with pytest.raises(forebay.BusyError, match="another holds the lock"), buffer.lock(0.2):
        pass
    assert 0.2 <= time.monotonic() - begun < 10
    other.send_signal(signal.SIGKILL)
    other.wait(60)
    other.stdout.close()
    with buffer.lock(timeout=10):
        with pytest.raises(forebay.BusyError, match="already"), buffer.lock():
            pass
        refused = []
        thread = threading.Thread(target=lambda: refused.append(pytest.raises(forebay.BusyError, enter, buffer)))
        thread.start()
        thread.join()
        assert len(refused) == 1
    with buffer.lock(0):
        pass
    with pytest.raises(forebay.InvalidError, match="does not hold"):
        buffer.lock().__exit__(None, None, None)


def enter(buffer):
    buffer.lock(0).__enter__()


def test_numpy_shares_the_memory_only_when_asked(name):
    numpy = pytest.importorskip("numpy")
    memory = forebay.BufferManager("host")
    buffer = memory.shared(name, (2, 3), numpy.float64)
    with pytest.raises(TypeError):
        memoryview(buffer)
    array = buffer.unsafe_numpy()
    array[1, 2] = 2.5
    assert memory.open_shared(name).read(40) == struct.pack("d", 2.5)
    del buffer
    assert array[1, 2] == 2.5, "the array keeps the memory"
    assert memory.open_shared(name).nbytes == 48, "and the name"
    del array
    with pytest.raises(forebay.NotFoundError):
        memory.open_shared(name)


def test_numpy_cannot_share_memory_of_a_device(accelerator, name):
    pytest.importorskip("numpy")
    buffer = memory_of(accelerator).shared(name, 10)
    with pytest.raises(forebay.ExportError, match="cannot reach"):
        buffer.unsafe_numpy()


def test_names_of_any_user_are_apart_and_patience_is_a_time(memory, name):
    own = memory.shared(name, 4, "uint8")
    shared = memory.shared(name, 8, "uint8", any_user=True)
    assert memory.open_shared(name, patience=0.5).nbytes == own.nbytes == 4
    assert memory.open_shared(name, any_user=True).nbytes == shared.nbytes == 8
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(forebay.Error):
            memory.open_shared(name, patience=bad)


WORKER = """
import multiprocessing, os, sys
import forebay

def work(buffer, index):
    with buffer, buffer.lock(timeout=30):
        count = int.from_bytes(buffer.read(0, 8), "little")
        buffer.write((count + index).to_bytes(8, "little"))
        print(os.getpid() != buffer.creator["pid"], buffer.shape, buffer.dtype, flush=True)

if __name__ == "__main__":
    memory = forebay.BufferManager("host")
    with memory.shared(sys.argv[1], (2, 4), "uint64") as buffer:
        context = multiprocessing.get_context("spawn")
        workers = [context.Process(target=work, args=(buffer, index)) for index in (1, 2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(int.from_bytes(buffer.read(0, 8), "little"), [worker.exitcode for worker in workers])
"""


def test_a_spawned_process_gets_it_as_an_argument(name, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(WORKER)
    ended = subprocess.run([sys.executable, str(program), name], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["True (2, 4) uint64"] * 2 + ["3 [0, 0]"]


def test_it_is_closed_at_the_end_of_its_with(memory, name):
    with memory.shared(name, 10, "uint8") as buffer:
        copy = pickle.loads(pickle.dumps(buffer))
        copy.write(b"x")
        assert buffer.read(0, 1) == b"x" and copy.name == name and copy.shape == (10,)
        lock = buffer.lock()
        with lock:
            copy.close()
    assert "closed" in repr(buffer)
    buffer.close()
    for use in (buffer.read, lambda: buffer.write(b"1"), buffer.lock, lambda: buffer.address, lambda: pickle.dumps(buffer)):
        with pytest.raises(forebay.ClosedError, match="was closed"):
            use()
    with pytest.raises(forebay.NotFoundError):
        memory.open_shared(name)
