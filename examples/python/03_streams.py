"""Streams: memory freed on one serves the next request there at once, and another stream after one event."""

import forebay

device = forebay.device("sim")
pool = forebay.Pool(device)

with device.stream() as compute, device.stream() as copies:
    activations = pool.allocate("4MiB", stream=compute)
    activations.fill(1, wait=False)  # enqueued, not waited for
    copies.wait_for(compute)
    host = bytearray(16)
    activations.copy_to(host, stream=copies)
    print("the copy came after the fill:", set(host) == {1})
    activations.free()
    again = pool.allocate("4MiB", stream=compute)
    print("served without the driver:", pool.statistics()["hits"], "of", pool.statistics()["allocations"])
    again.free()
