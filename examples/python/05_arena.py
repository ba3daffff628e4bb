"""An arena: memory for one step at a time, given back all at once, and refused after that."""

import forebay

pool = forebay.Pool("host")
with pool.arena("8MiB") as arena:
    for step in range(3):
        place = arena.checkpoint()
        scratch = [arena.allocate("1MiB") for _ in range(4)]
        print("step", step, "used", arena.usage()["used"] >> 20, "MiB, requests of the pool:",
              pool.statistics()["allocations"])
        arena.rewind(place)
    try:
        scratch[0].to_bytes()
    except forebay.LapsedError as error:
        print("refused:", error)
