"""What a hot pair costs through the function that PyTorch calls, and by forebay's own bench where it is given.

usage: pair_check.py --library LIBRARY [--forebay PROGRAM] [--pairs 2000000] [--rounds 5]

Needs a compiler of C. Prints a JSON object: nanoseconds a pair, the least of rounds in which both take turns (what
disturbs a processor only adds to it), and how many times the Rust pair the one through C is.
"""

import argparse
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

LOOP = """
#include <stddef.h>
#include <time.h>
typedef void* (*take)(ptrdiff_t, int, void*);
typedef void (*give)(void*, ptrdiff_t, int, void*);
double pairs(take take, give give, ptrdiff_t size, long count) {
  struct timespec a, b;
  for (int warm = 0; warm < 1000; ++warm) { void* p = take(size, 0, 0); if (!p) return -1; give(p, size, 0, 0); }
  clock_gettime(CLOCK_MONOTONIC, &a);
  for (long i = 0; i < count; ++i) { void* p = take(size, 0, 0); give(p, size, 0, 0); }
  clock_gettime(CLOCK_MONOTONIC, &b);
  return ((b.tv_sec - a.tv_sec) * 1e9 + (b.tv_nsec - a.tv_nsec)) / count;
}
"""


CASES = {"512 B": 512, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "16 MiB": 16 << 20}
SIZES = list(CASES.values())


def hot_pairs(program):
    """What a pair takes by forebay's own benchmark, by its cases."""
    command = [program, "bench", "alloc", "HOT", "--device", "cuda:0", "--json"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {row["case"]: row["ns_per_op"] for row in rows if row["allocator"] == "forebay" and row["bench"] == "HOT"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--forebay")
    parser.add_argument("--pairs", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        print("there is no compiler of C; nothing was measured", file=sys.stderr)
        return 3
    library = ctypes.CDLL(str(Path(options.library).resolve()))
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "loop.c"), Path(folder, "loop.so")
        source.write_text(LOOP)
        subprocess.run([compiler, "-O2", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        loop = ctypes.CDLL(str(made))
        loop.pairs.restype = ctypes.c_double
        loop.pairs.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_long]
        address = lambda name: ctypes.cast(getattr(library, name), ctypes.c_void_p)  # noqa: E731
        # What a pluggable allocator is called with, and what forebay's adapter calls, which frees by address alone.
        ways = {"forebay_torch_alloc": "forebay_torch_free", "forebay_torch_allocate": "forebay_torch_deallocate"}
        taken = {(way, size): [] for way in ways for size in SIZES}
        own = {size: [] for size in SIZES}
        # By turns, as the clock of a processor is not the same from one second to the next.
        for _ in range(options.rounds):
            for (way, size), times in taken.items():
                # In short runs, so that some of them are not disturbed.
                for _ in range(20):
                    count = max(1, options.pairs // 20)
                    times.append(loop.pairs(address(way), address(ways[way]), size, count))
                if times[-1] < 0:
                    library.forebay_last_error.restype = ctypes.c_char_p
                    print(library.forebay_last_error().decode(), file=sys.stderr)
                    return 1
            if options.forebay:
                for case, nanoseconds in hot_pairs(options.forebay).items():
                    if case in CASES:
                        own[CASES[case]].append(nanoseconds)
    result = {"schema": "forebay.pair_check.v1", "rounds": options.rounds, "ns_per_pair": {}}
    for (way, size), times in taken.items():
        result["ns_per_pair"][f"{way} {size}"] = min(times)
    if options.forebay:
        result["ns_per_pair"].update({f"rust {size}": min(times) for size, times in own.items()})
        figures = result["ns_per_pair"]
        ratios = {size: figures[f"forebay_torch_allocate {size}"] / figures[f"rust {size}"] for size in SIZES}
        result["ratio_to_rust"] = {str(size): round(ratio, 3) for size, ratio in ratios.items()}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
