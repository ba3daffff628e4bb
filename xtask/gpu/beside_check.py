"""forebay beside another process that takes and returns memory of the same GPU.

usage: beside_check.py --library libforebay_capi.so [--rounds 300] [--seed 1]

By turns, a second process takes or returns gigabytes by cuMemAlloc, and this one allocates and frees blocks of 1 KiB to 8
GiB. No request may be refused while the driver has as many bytes free and some to spare, and none may take more of the
device than the request and the spare pages that a pool may have. Prints a JSON object; status 1 where a rule was broken.
"""

import argparse
import ctypes
import json
import multiprocessing
import random
import sys

GIB = 1 << 30
# What the driver itself takes for its tables.
SPARE = 64 << 20
# A pool at a new peak may hold up to eight pages of 32 MiB beyond its need, and pages are whole.
MAX_MORE = 9 * (32 << 20)


class Gpu:
    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        for code in (
            self.cuda.cuInit(0),
            self.cuda.cuDeviceGet(ctypes.byref(device), 0),
            self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
            self.cuda.cuCtxSetCurrent(context),
        ):
            if code != 0:
                raise SystemExit(f"no GPU: error {code}")

    def free(self):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        return free.value


def other(pipe, seed):
    """The second process: takes or returns memory when told to."""
    gpu, draw, taken = Gpu(), random.Random(seed), []
    pipe.send(gpu.free())
    while pipe.recv():
        if taken and draw.random() < 0.45:
            gpu.cuda.cuMemFree_v2(ctypes.c_uint64(taken.pop(draw.randrange(len(taken)))))
        else:
            pointer = ctypes.c_uint64()
            most = max(gpu.free() // GIB, 1)
            if gpu.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(draw.randint(1, most) * GIB)) == 0:
                taken.append(pointer.value)
        pipe.send(len(taken))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    pipe, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=other, args=(theirs, options.seed), daemon=True)
    process.start()
    pipe.recv()
    gpu, library = Gpu(), ctypes.CDLL(options.library)
    library.forebay_torch_alloc.restype = ctypes.c_void_p
    library.forebay_torch_alloc.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    library.forebay_torch_free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    draw, live, figures = random.Random(options.seed + 1), [], {"served": 0, "refused": 0, "wrongly_refused": 0, "took_too_much": 0, "max_more_mib": 0}
    for _ in range(options.rounds):
        pipe.send(True)
        pipe.recv()
        for _ in range(8):
            if live and draw.random() < 0.5:
                block, size = live.pop(draw.randrange(len(live)))
                library.forebay_torch_free(block, size, 0, None)
                continue
            size, before = int(2 ** draw.uniform(10, 33)), gpu.free()
            block = library.forebay_torch_alloc(size, 0, None)
            more = before - gpu.free() - size
            if block:
                live.append((block, size))
                figures["served"] += 1
                figures["max_more_mib"] = max(figures["max_more_mib"], more >> 20)
                figures["took_too_much"] += more > MAX_MORE
            else:
                figures["refused"] += 1
                figures["wrongly_refused"] += before >= size + SPARE
                figures["took_too_much"] += before - gpu.free() > 0
    pipe.send(False)
    print(json.dumps({"schema": "forebay.beside.v1", "rounds": options.rounds, "seed": options.seed, **figures}))
    return 1 if figures["wrongly_refused"] or figures["took_too_much"] else 0


if __name__ == "__main__":
    sys.exit(main())
