"""A pool, a buffer, and its bytes: on whichever device is named."""

import sys

import forebay

device = forebay.device(sys.argv[1] if len(sys.argv) > 1 else "host")
pool = forebay.pool(device)

with pool.allocate("1MiB") as buffer:
    buffer.copy_from(b"hello from the host")
    print(buffer, "holds", buffer.to_bytes()[:19])

# Freed at the end of the with: the pool keeps the memory for the next who asks.
print(pool.summary())
