"""Ordinary tensors to the GPU and back: PyTorch's own copy beside forebay's upload and download, in one run.

    python3 transfer_check.py [--device cuda:0] [--largest BYTES]     one line of JSON for each size, direction and way

Each figure is the best of some rounds, with the processor time of all threads in that round. What arrived is compared.
"""

import argparse
import json
import sys
import time


def best(rounds: int, work) -> tuple[float, float]:
    """The shortest wall time, and the processor time beside it."""
    work()
    times = []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        times.append((time.perf_counter() - wall, time.process_time() - processor))
    return min(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--largest", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    import forebay
    import torch

    pool = forebay.Pool(options.device)
    wrong = 0
    sizes = [size for size in (4 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20, 1 << 30) if size <= options.largest]
    for size in sizes:
        source = torch.randint(0, 255, (size,), dtype=torch.uint8)
        back = torch.empty_like(source)
        there = torch.empty(size, dtype=torch.uint8, device=options.device)
        view = pool.upload(source)
        ways = {
            ("up", "torch"): lambda: (there.copy_(source), torch.cuda.synchronize()),
            ("up", "torch_to"): lambda: (source.to(options.device), torch.cuda.synchronize()),
            ("up", "forebay"): lambda: view.upload(source),
            ("up", "forebay_new"): lambda: pool.upload(source),
            ("down", "torch"): lambda: (back.copy_(there), torch.cuda.synchronize()),
            ("down", "forebay"): lambda: view.download(into=back),
        }
        for (direction, way), work in ways.items():
            back.zero_()
            seconds, processor = best(options.rounds, work)
            right = direction == "up" or bool(torch.equal(back, source))
            wrong += not right
            row = {"case": "a copy of a tensor", "bytes": size, "direction": direction, "way": way, "seconds": seconds}
            row |= {"gb_per_s": size / seconds / 1e9, "cpu_seconds": processor, "right": right}
            print("record:", json.dumps(row))
        wrong += not torch.equal(torch.from_dlpack(view).cpu(), source)
    print("wrong:", wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
