"""PyTorch and CuPy in one process on one pool, with streams, and who has what adds up.

usage: together_check.py --library LIBRARY

Numba and RMM are checked too where they are installed; which were is in the JSON object. Status 3 where PyTorch or CuPy is
missing.
"""

import argparse
import gc
import importlib.util
import json
import sys

import bare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    options = parser.parse_args()
    bare.need("torch", "to share a pool")
    bare.need("cupy", "to share a pool")
    bare.use(options.library)
    import forebay.cupy
    import forebay.torch

    forebay.torch.install()
    import cupy
    import torch

    forebay.cupy.install()
    tensor = torch.ones(5 << 20, device="cuda")
    array = cupy.ones(3 << 20, dtype=cupy.float32)
    held = forebay.torch.attribution(0)
    assert held["torch"] >= 20 << 20 and held["cupy"] >= 12 << 20, held
    assert sum(held.values()) == torch.cuda.memory_allocated(), (held, torch.cuda.memory_allocated())

    # The same memory by both names, and values across.
    seen = cupy.from_dlpack(tensor)
    assert seen.data.ptr == tensor.data_ptr()
    back = torch.from_dlpack(array)
    assert back.data_ptr() == array.data.ptr and back.sum().item() == 3 << 20
    del seen, back

    # What CuPy gives back serves PyTorch on the same stream, and the other way round.
    reserved = torch.cuda.memory_reserved()
    for _ in range(50):
        array = None
        array = torch.empty(3 << 20, device="cuda")
        array = None
        array = cupy.empty(3 << 20, dtype=cupy.float32)
    assert torch.cuda.memory_reserved() == reserved, (reserved, torch.cuda.memory_reserved())

    # Streams: what is freed on one while it works is not another's too early.
    one, two = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    wrong = 0
    for step in range(200):
        with one:
            a = cupy.full(1 << 20, step, dtype=cupy.int32)
            total = a.sum()
            del a
        with two:
            b = cupy.full(1 << 20, -1, dtype=cupy.int32)
            del b
        one.synchronize()
        wrong += int(total.get(stream=one)) != step << 20
    assert wrong == 0, wrong
    two.synchronize()

    # Out of memory is CuPy's own error.
    try:
        cupy.empty(1 << 50, dtype=cupy.uint8)
    except cupy.cuda.memory.OutOfMemoryError as error:
        said = str(error)
    else:
        raise AssertionError("an array of 1 PiB")

    others = {}
    others["numba"] = with_numba(forebay) if importlib.util.find_spec("numba") else "not installed"
    others["rmm"] = with_rmm(forebay) if importlib.util.find_spec("rmm") else "not installed"
    held = forebay.torch.attribution(0)
    assert sum(held.values()) == torch.cuda.memory_allocated()
    array = total = None
    tensor = None
    held_at_last = forebay.torch.attribution(0)
    # CuPy may keep a little for itself.
    assert held_at_last.get("cupy", 0) < 1 << 20, held_at_last
    print(
        json.dumps(
            {
                "schema": "forebay.together_check.v1",
                "attribution": held,
                "said": said,
                "others": others,
                "left": held_at_last,
                "cupy": cupy.__version__,
                "torch": torch.__version__,
            }
        )
    )
    return 0


def with_numba(forebay):
    try:
        import forebay.numba
        from numba import cuda
    except Exception as error:  # What is missing is in the record, not hidden.
        return f"cannot be used here: {error}"
    forebay.numba.install()
    array = cuda.device_array(1 << 20, dtype="float32")
    held = forebay.torch.attribution(0)
    assert held["numba"] == 4 << 20, held
    del array
    gc.collect()
    assert forebay.torch.attribution(0).get("numba", 0) == 0
    return "checked"


def with_rmm(forebay):
    import rmm

    import forebay.rmm

    forebay.rmm.install()
    buffer = rmm.DeviceBuffer(size=4 << 20)
    held = forebay.torch.attribution(0)
    assert held["rmm"] == 4 << 20, held
    del buffer
    assert forebay.torch.attribution(0).get("rmm", 0) == 0
    return "checked"


if __name__ == "__main__":
    sys.exit(main())
