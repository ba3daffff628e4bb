"""How much PyTorch pins for data loaders, with its own allocator and with forebay's: the peak over what was asked for.

    python3 pinned_check.py [--side native|forebay|pins]     one line of JSON for each loader and side, and each size

Each loader keeps some batches ready and copies them to the GPU without blocking. What was asked for is counted here: the
tensors that live or whose copy is under way, since no allocator can use their memory again.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import time


def sizes(loader: str, count: int):
    """The bytes of batches: of one size, of sentences padded to the longest, of pictures cut at random."""
    draw = random.Random(7)
    for _ in range(count):
        if loader == "fixed":
            yield [64 * 3 * 224 * 224 * 4, 64 * 8]
        elif loader == "text":
            longest = max(min(2048, int(draw.lognormvariate(5.5, 0.7))) for _ in range(64))
            yield [64 * longest * 8] * 3
        else:
            yield [32 * 3 * draw.randrange(160, 480) * draw.randrange(160, 480) * 4, 32 * 8]


def run(side: str) -> None:
    if side == "forebay":
        import forebay.torch

        forebay.torch.install()
    import torch

    torch.ones(1, device="cuda")
    for loader, ready in [("fixed", 4), ("fixed", 16), ("text", 16), ("text", 64), ("pictures", 4), ("pictures", 16)]:
        torch.cuda.synchronize()
        torch._C._host_emptyCache()
        torch.cuda.reset_peak_host_memory_stats()
        live = {"now": 0, "peak": 0}

        def pin(size: int, value: int):
            while flying and flying[0][0].query():
                live["now"] -= flying.popleft()[1]
            tensor = torch.empty(size, dtype=torch.uint8, pin_memory=True)
            tensor[0] = value
            tensor[-1] = value
            live["now"] += size
            live["peak"] = max(live["peak"], live["now"])
            return tensor

        side_stream, queue, flying = torch.cuda.Stream(), collections.deque(), collections.deque()
        checks, spent = [], 0.0
        for index, batch in enumerate(sizes(loader, 400)):
            begun = time.perf_counter()
            queue.append([pin(size, index % 251) for size in batch])
            spent += time.perf_counter() - begun
            if len(queue) < ready:
                continue
            with torch.cuda.stream(side_stream):
                batch = queue.popleft()
                moved = [tensor.to("cuda", non_blocking=True) for tensor in batch]
                flying.append((side_stream.record_event(), sum(tensor.numel() for tensor in batch)))
                del batch
                checks.append(torch.stack([one[0] + one[-1] for one in moved]))
            if index % 8 == 0:
                side_stream.synchronize()
        queue.clear()
        side_stream.synchronize()
        right = all(
            int(value) == 2 * (index % 251) % 256 for index, one in enumerate(checks) for value in one.cpu()
        )
        stats = torch.cuda.host_memory_stats()
        peak = stats.get("allocated_bytes.peak") if "active_bytes.peak" in stats else stats["reserved_bytes.peak"]
        figures = {
            "loader": loader, "ready": ready, "side": side, "asked_mib": round(live["peak"] / 2**20, 1),
            "used_mib": round(stats.get("active_bytes.peak", 0) / 2**20, 1), "pinned_mib": round(peak / 2**20, 1), "ratio": round(peak / live["peak"], 3),
            "pin_seconds": round(spent, 3), "contents_right": right,
        }  # fmt: skip
        print(json.dumps(figures), flush=True)
        if not right:
            sys.exit(1)


def pins() -> None:
    """What pinning takes: forebay's device.pinned(), and the driver's calls, medians of five."""
    import ctypes
    import forebay

    device = next(device for device in forebay.devices() if device.name == "cuda:0")
    device.pinned(1 << 20)
    driver = ctypes.CDLL("libcuda.so.1")
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxPushCurrent_v2(context) == 0

    def pin(size: int) -> ctypes.c_void_p:
        address = ctypes.c_void_p()
        assert driver.cuMemHostAlloc(ctypes.byref(address), ctypes.c_size_t(size), 0) == 0
        return address

    for size in (1 << 20, 8 << 20, 64 << 20, 256 << 20, 1 << 30):
        for side, take in (("forebay", device.pinned), ("driver", pin)):
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                memory = take(size)
                taken = time.perf_counter()
                if side == "driver":
                    assert driver.cuMemFreeHost(memory) == 0
                del memory
                times.append((taken - begun, time.perf_counter() - taken))
            middle = [round(sorted(column)[2] * 1e3, 3) for column in zip(*times)]
            print(json.dumps({"pin": side, "bytes": size, "pin_ms": middle[0], "unpin_ms": middle[1]}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", choices=["native", "forebay", "pins"])
    side = parser.parse_args().side
    if side:
        pins() if side == "pins" else run(side)
        return
    paths = [os.path.join(os.path.dirname(os.path.abspath(__file__)), "python"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    for one in ("native", "forebay", "pins"):
        subprocess.run([sys.executable, __file__, "--side", one], env=environment, check=True)


if __name__ == "__main__":
    main()
