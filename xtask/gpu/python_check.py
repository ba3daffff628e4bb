"""The Python package on a GPU: blocks, streams, DLPack both ways with PyTorch, the array interface with CuPy, refusals.

usage: python_check.py --library LIBRARY

Prints a JSON object. Status 0 where all of it is right.
"""

import argparse
import json
import sys

import bare


def refused(kind, call):
    """What ``call`` said when it was refused with an error of ``kind``; anything else ends the check."""
    try:
        call()
    except kind as error:
        return str(error)
    sys.exit(f"{call} was not refused with {kind.__name__}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    options = parser.parse_args()
    bare.need("torch", "to share memory with")
    bare.use(options.library)
    import forebay
    import torch

    told = {"schema": "forebay.python_check.v1", "torch": torch.__version__}
    gpu = forebay.device("cuda:0")
    pool = gpu.pool()
    told["gpu"], told["driver"] = gpu.label, gpu.driver

    # Bytes there and back, on the default stream and on PyTorch's.
    data = bytes(range(256)) * 4096
    side = torch.cuda.Stream()
    for stream in (None, gpu.stream(), side):
        with pool.allocate(len(data), stream) as buffer:
            buffer.fill(7)
            assert buffer.to_bytes() == b"\x07" * len(data), "what was filled is not what is there"
            buffer.copy_from(data)
            assert buffer.to_bytes() == data, "what was copied is not what came back"

    # One memory seen by both: what PyTorch writes is there for us, and the other way.
    with pool.allocate(4 << 20) as buffer:
        tensor = torch.from_dlpack(buffer.view("float32", (1024, 1024)))
        assert tensor.data_ptr() == buffer.address and tensor.is_cuda
        tensor.fill_(2.5)
        torch.cuda.synchronize()
        assert buffer.to_bytes()[:4] == b"\x00\x00\x20\x40"
        told["held_by_a_view"] = refused(forebay.Error, buffer.free)
        del tensor
    tensor = torch.arange(1000, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    view = forebay.from_dlpack(tensor)
    assert view.address == tensor.data_ptr() and view.shape == (1000,)
    assert view.to_bytes()[-4:] == (999).to_bytes(4, "little")
    try:
        import cupy
    except ImportError:
        told["cupy"] = "not installed"
    else:
        with pool.allocate(4096) as buffer:
            array = cupy.asarray(buffer.view("uint8", (4096,)))
            assert array.data.ptr == buffer.address
            array[:] = 9
            cupy.cuda.runtime.deviceSynchronize()
            assert buffer.to_bytes() == b"\x09" * 4096
            del array
        told["cupy"] = cupy.__version__

    # Wrong use is an error, and the GPU goes on.
    buffer = pool.allocate(512)
    told["on_the_device"] = refused(BufferError, lambda: memoryview(buffer))
    buffer.free()
    told["double_free"] = refused(forebay.ClosedError, buffer.free)
    told["negative"] = refused(forebay.InvalidError, lambda: pool.allocate(-1))
    told["out_of_memory"] = refused(forebay.OutOfMemoryError, lambda: pool.allocate(1 << 50))
    del view
    assert pool.statistics()["live_bytes"] == 0, pool.leaks()
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
