"""What a hot pair costs through the function that PyTorch calls, and by forebay's own bench where it is given.

usage: pair_check.py --library LIBRARY [--forebay PROGRAM] [--pairs 2000000]

Needs a compiler of C. Prints a JSON object: nanoseconds a pair, the median of five rounds.
"""

import argparse
import ctypes
import json
import shutil
import statistics
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--forebay")
    parser.add_argument("--pairs", type=int, default=2_000_000)
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
        result = {"schema": "forebay.pair_check.v1", "ns_per_pair": {}}
        for way in ("forebay_torch_alloc", "forebay_torch_alloc_or_throw"):
            for size in (512, 64 << 10, 1 << 20, 16 << 20):
                rounds = [
                    loop.pairs(address(way), address("forebay_torch_free"), size, options.pairs) for _ in range(5)
                ]
                if min(rounds) < 0:
                    library.forebay_last_error.restype = ctypes.c_char_p
                    print(library.forebay_last_error().decode(), file=sys.stderr)
                    return 1
                result["ns_per_pair"][f"{way} {size}"] = statistics.median(rounds)
    if options.forebay:
        command = [options.forebay, "bench", "alloc", "--device", "cuda:0", "--quick", "--json"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
        result["bench"] = [row for row in rows if row.get("allocator") == "forebay" and row.get("threads") == 1]
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
