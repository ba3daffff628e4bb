"""Buffers that are on the host and on a device: forebay copies when a use needs it, and nothing else."""

import forebay

memory = forebay.BufferManager("sim")  # "cuda:0" for the first GPU
x = memory.buffer(1_000_000, "float32")  # no memory yet; all zero

with x.host(write=True) as view:  # a memoryview; x.numpy(write=True) is a numpy array
    view[505] = 2.0
    try:
        x.on_device()  # the host still writes it
    except forebay.InUseError as error:
        print(error)

place = x.on_device()  # current on the device: for a kernel, DLPack or __cuda_array_interface__
print(f"{place.nbytes} bytes at {place.address:#x} of {place.device.name}")
del place  # from here on the host may use it again

with x.host() as view:
    print(view[505], x.state)
print(memory.totals())
