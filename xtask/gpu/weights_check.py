"""Files of weights to the GPU: safetensors' own load_file beside forebay's, from the page cache, in one run.

    python3 weights_check.py [--gib 16] [--rounds 3] [--device cuda:0]     one line of JSON for each round, and one for all

Writes four files of a model's tensors: large matrices, and norms of some hundred bytes. Loads them by turns in one process:
with safetensors, or where that is not installed by what it does (a mapped file, and a copy of each tensor). Every tensor of
the two is compared on the GPU.
"""

import argparse
import json
import math
import mmap
import os
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

#: What is asked for: GB/s of forebay's load, and how many times the other's.
TARGETS = {"gb_per_s": 45.0, "ratio": 5.0}

SHARDS = 4


def tensors(gib: float):
    """Names and shapes of a model in bfloat16, as many layers as fill so much."""
    width, rows = 4096, 14336
    shapes = {f"self_attn.{one}_proj": [width, width] for one in "qo"}
    shapes |= {f"self_attn.{one}_proj": [1024, width] for one in "kv"}
    shapes |= {f"mlp.{one}_proj": [rows, width] for one in ("gate", "up")} | {"mlp.down_proj": [width, rows]}
    shapes |= {"input_layernorm": [width], "post_attention_layernorm": [width]}
    shapes |= {"self_attn.q_norm": [128], "self_attn.k_norm": [128]}
    vocabulary = [min(128256, int(gib * 8192)), width]
    yield "model.embed_tokens.weight", vocabulary
    left = gib * 2**30 - 4 * math.prod(vocabulary)
    layer = 0
    while left > 0:
        for name, shape in shapes.items():
            left -= 2 * math.prod(shape)
            yield f"model.layers.{layer}.{name}.weight", shape
            if left <= 0 and name.startswith("mlp"):
                break
        layer += 1
    yield "model.norm.weight", [width]
    yield "lm_head.weight", vocabulary


def write(folder: Path, gib: float) -> list[Path]:
    """The files. Each tensor has bytes of its own."""
    shards = [[] for _ in range(SHARDS)]
    sizes = [0] * SHARDS
    for name, shape in tensors(gib):
        least = sizes.index(min(sizes))
        shards[least].append((name, shape))
        sizes[least] += 2 * math.prod(shape)
    block = os.urandom(64 << 20)
    paths, number = [], 0
    for shard, given in enumerate(shards):
        header, end = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in given:
            size = 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        with open(path, "wb", buffering=0) as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for _, shape in given:
                left, number = 2 * math.prod(shape), number + 1
                start = number * 7919 * 16 % len(block)
                while left:
                    left -= file.write(memoryview(block)[start : min(len(block), start + left)])
                    start = 0
        paths.append(path)
    return paths


def read_all(paths: list[Path], threads: int) -> float:
    """Seconds that threads take to read the files into a buffer each: what the page cache gives."""
    piece, work, lock = 4 << 20, [], threading.Lock()
    for path in paths:
        work += [(path, at) for at in range(0, path.stat().st_size, piece)]
    work.reverse()
    files = {path: os.open(path, os.O_RDONLY) for path in paths}

    def run() -> None:
        buffer = memoryview(bytearray(piece))
        while True:
            with lock:
                if not work:
                    return
                path, at = work.pop()
            os.preadv(files[path], [buffer], at)

    begun = time.perf_counter()
    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    for file in files.values():
        os.close(file)
    return time.perf_counter() - begun


def by_hand(torch, path: Path, device: str) -> dict:
    """What safetensors does: maps the file, and copies each tensor."""
    with open(path, "rb") as file:
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(bytes(data[8 : 8 + length]))
    header.pop("__metadata__", None)
    loaded = {}
    for name, info in header.items():
        start, end = info["data_offsets"]
        part = data[8 + length + start : 8 + length + end]
        loaded[name] = torch.frombuffer(part, dtype=torch.bfloat16).reshape(info["shape"]).to(device)
    return loaded


def room_for(size: int) -> str:
    """A folder with room: in memory, else the temporary one."""
    for folder in ("/dev/shm", tempfile.gettempdir()):
        if os.path.isdir(folder) and shutil.disk_usage(folder).free > size * 1.1:
            return folder
    sys.exit(f"neither /dev/shm nor {tempfile.gettempdir()} has room for {size} B")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args()
    import forebay.torch
    import torch

    try:
        import safetensors
        import safetensors.torch

        baseline = f"safetensors {safetensors.__version__}"

        def peer(path: Path) -> dict:
            return safetensors.torch.load_file(path, device=options.device)

    except ImportError:
        baseline = "by hand: mmap, torch.frombuffer, .to(device); safetensors is not installed"

        def peer(path: Path) -> dict:
            return by_hand(torch, path, options.device)

    def wait() -> None:
        if options.device.startswith("cuda"):
            torch.cuda.synchronize()

    folder = Path(tempfile.mkdtemp(dir=room_for(int(options.gib * 2**30))))
    try:
        begun = time.perf_counter()
        paths = write(folder, options.gib)
        size = sum(path.stat().st_size for path in paths)
        print("record:", json.dumps({"case": "files written", "bytes": size, "seconds": time.perf_counter() - begun,
                                     "folder": str(folder.parent), "peer": baseline}), flush=True)
        # The first reading warms the cache.
        for threads in (1, min(12, os.cpu_count() or 1)):
            seconds = min(read_all(paths, threads) for _ in range(2))
            print("record:", json.dumps({"case": "read() from the page cache", "threads": threads, "bytes": size,
                                         "seconds": seconds, "gb_per_s": size / seconds / 1e9}), flush=True)
        torch.ones(1, device=options.device)
        wait()

        def load(side: str) -> dict:
            if side == "forebay":
                return forebay.torch.load_file(paths, device=options.device)
            loaded = {}
            for path in paths:
                loaded |= peer(path)
            wait()
            return loaded

        times, wrong, count = {"peer": [], "forebay": []}, 0, 0
        for number in range(options.rounds):
            loaded = {}
            for side, taken in times.items():
                wall, processor = time.perf_counter(), time.process_time()
                loaded[side] = load(side)
                taken.append(time.perf_counter() - wall)
                processor = time.process_time() - processor
                print("record:", json.dumps({"case": "a load", "side": side, "round": number, "bytes": size,
                                             "seconds": taken[-1], "gb_per_s": size / taken[-1] / 1e9,
                                             "cpu_seconds": processor}), flush=True)
            # As integers: a NaN equals nothing.
            ours, theirs = ({name: one.view(torch.int16) for name, one in loaded[side].items()}
                            for side in ("forebay", "peer"))
            count = len(theirs)
            wrong += ours.keys() != theirs.keys()
            wrong += sum(not torch.equal(ours[name], theirs[name]) for name in theirs.keys() & ours.keys())
            del loaded, ours, theirs
            wait()
        rate = {side: size / statistics.median(taken) / 1e9 for side, taken in times.items()}
        ratio = rate["forebay"] / rate["peer"]
        met = {"gb_per_s": rate["forebay"] >= TARGETS["gb_per_s"], "ratio": ratio >= TARGETS["ratio"]}
        print("record:", json.dumps({"case": "loads, medians", "tensors": count, "bytes": size, "peer": baseline,
                                     "peer_gb_per_s": rate["peer"], "gb_per_s": rate["forebay"], "ratio": ratio,
                                     "targets": TARGETS, "met": met, "wrong": wrong}), flush=True)
        return 1 if wrong else 0
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
