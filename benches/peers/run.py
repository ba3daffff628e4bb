"""Compares forebay with cudaMallocAsync, PyTorch's allocator and cudaMalloc on a machine with an NVIDIA GPU.

Needs nvcc, PyTorch and, in a clone, cargo. Every measurement is a process of its own. Saves DIR/peers.jsonl, one line
for each result, and prints the tables of README.md and docs/performance.md; README.md beside this file says what each
line means. Exits with 1 if a measurement failed.
"""

import argparse
import datetime
import gzip
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tables

SCHEMA = "forebay.peers.v1"
HERE = Path(__file__).resolve().parent
# In a bundle this folder lies beside the library and the recorded runs; in a clone it is benches/peers.
BUNDLE = HERE.parent if (HERE.parent / "COMMIT").exists() else None
CLONE = HERE.parent.parent
# What git ignores: a new file elsewhere would make the clone look changed.
OUT = BUNDLE / "out" if BUNDLE else CLONE / "target/peers"

# A process that takes longer hangs. The longest, cudaMalloc on the longest run, takes 5 s on an H200.
LIMIT_SECONDS = 120


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help=f"the folder for peers.jsonl ({OUT})")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--library", type=Path, help="forebay's C library, instead of the bundle's or a new build")
    parser.add_argument("runs", type=Path, nargs="*", help="recorded runs, instead of the repository's")
    options = parser.parse_args()

    nvcc = shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin")
    torch = importlib.util.find_spec("torch")
    if not nvcc or not torch:
        sys.exit(f"{'PyTorch' if nvcc else 'nvcc'} is not installed: nothing was measured")
    library = options.library or (BUNDLE / "libforebay_capi.so" if BUNDLE else build_library())
    runs = options.runs or recorded_runs()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "peers.jsonl"
    failed = False
    with tempfile.TemporaryDirectory() as folder, open(path, "w") as file:

        def save(line):
            file.write(json.dumps(line) + "\n")
            file.flush()  # a run that is ended early leaves what it has measured

        program, allocators = build(nvcc, Path(torch.origin).parent, Path(folder), library.resolve())
        save({"schema": SCHEMA, **machine(nvcc)})
        for label, allocator, words, run in plan(options.rounds, allocators, runs):
            said, reason = measure([program, allocator, *words], run, label["allocator"])
            for line in said:
                save({**label, **line})
            name = " ".join(str(value) for value in label.values())
            print(f"{name}: {reason or f'{len(said)} results'}", flush=True)
            failed |= reason is not None
    print()
    tables.show(tables.read(path))
    return 1 if failed else 0


def plan(rounds, allocators, runs):
    """What is measured, in order: the label of its lines, the allocator, the program's words and its recorded run."""
    for number in range(1, rounds + 1):
        for name in tables.KEEPING:
            yield {"round": number, "allocator": name}, allocators[name], ["pairs"], None
        for run in runs:
            for name in tables.ALLOCATORS:
                label = {"round": number, "allocator": name, "run": run.name.split(".")[0]}
                passes = 2 if name in tables.KEEPING else 1
                yield label, allocators[name], ["replay", str(passes)], run


def measure(words, run, name):
    """The lines that the program printed, and why it failed if it did."""
    environment = dict(os.environ)
    environment.pop("PYTORCH_CUDA_ALLOC_CONF", None)
    environment.pop("PYTORCH_ALLOC_CONF", None)
    if name == "pytorch-expandable":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    data = gzip.decompress(run.read_bytes()) if run else b""
    try:
        ran = subprocess.run(words, input=data, capture_output=True, env=environment, timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return [], f"not done after {LIMIT_SECONDS} s"
    lines = [json.loads(line) for line in ran.stdout.decode().splitlines() if line.startswith("{")]
    if ran.returncode != 0:
        return lines, f"status {ran.returncode}: {ran.stderr.decode(errors='replace').strip()[-500:]}"
    return lines, None


def build(nvcc, torch, folder, library):
    """Compiles the program, and the other allocators as a library. Gives the program and where each allocator is."""
    program, sides = folder / "peers", folder / "libsides.so"
    words = [nvcc, "-O2", "-std=c++20"]
    call([*words, "-Xcompiler", "-pthread", HERE / "peers.cpp", "-o", program, "-ldl"])
    words += ["-x", "cu", "-w", "-Xcompiler", "-fPIC", "-shared", f"-I{torch}/include", HERE / "sides.cpp", "-o", sides]
    call([*words, f"-L{torch}/lib", "-lc10", "-lc10_cuda", "-Xlinker", f"-rpath,{torch}/lib"])
    return program, {
        "forebay": f"{library}:forebay_torch_alloc:forebay_torch_free",
        "pytorch": f"{sides}:torch_allocate:torch_free",
        "pytorch-expandable": f"{sides}:torch_allocate:torch_free",
        "cudaMallocAsync": f"{sides}:async_allocate:async_free",
        "cudaMalloc": f"{sides}:plain_allocate:plain_free",
    }


def build_library():
    if not shutil.which("cargo"):
        sys.exit("cargo is not installed: name forebay's library with --library, or use a bundle")
    words = ["cargo", "build", "--release", "--package", "forebay-capi", "--message-format", "json"]
    for line in call(words, cwd=CLONE).splitlines():
        message = json.loads(line)
        if message["reason"] == "compiler-artifact" and message["target"]["name"] == "forebay_capi":
            return Path(next(name for name in message["filenames"] if name.endswith(".so")))
    sys.exit("cargo has built no libforebay_capi.so")


def recorded_runs():
    """The repository's recorded runs, in the order of the tables."""
    folders = [BUNDLE / "traces"] if BUNDLE else [CLONE / "benches/runs", CLONE / "crates/forebay-trace/data"]
    found = [folder / f"{name}.csv.gz" for name in tables.RUNS for folder in folders]
    return [path for path in found if path.exists()]


def machine(nvcc):
    """What the figures were measured on."""
    name, driver = gpu()
    return {
        "gpu": name,
        "driver": driver,
        "cuda": re.search(r"release ([\d.]+)", call([nvcc, "--version"]))[1],
        "pytorch": importlib.metadata.version("torch"),
        "processors": os.cpu_count(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def gpu():
    """The GPU's name and its driver's version. Containers may lack nvidia-smi; PyTorch knows the name."""
    try:
        said = call(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"])
        name, driver = (word.strip() for word in said.split(","))
        return name, driver
    except (OSError, ValueError, subprocess.CalledProcessError):
        said = call([sys.executable, "-c", "import torch; print(torch.cuda.get_device_name(0))"])
        return said.strip(), "unknown"


def commit():
    if BUNDLE:
        return (BUNDLE / "COMMIT").read_text().strip()
    try:
        head = call(["git", "rev-parse", "HEAD"], cwd=CLONE).strip()
        return head + ("+changes" if call(["git", "status", "--porcelain"], cwd=CLONE) else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def call(words, cwd=None):
    """What a command prints to standard output."""
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, cwd=cwd).stdout


if __name__ == "__main__":
    sys.exit(main())
