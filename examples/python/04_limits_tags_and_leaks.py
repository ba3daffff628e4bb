"""Who has the memory: limits, tags, figures of a stretch, and what was not given back."""

import forebay

cache = []


def let_go(shortage):
    print(f"asked to let go: {shortage['requested'] >> 20} MiB wanted, {shortage['live'] >> 20} MiB live")
    had = bool(cache)
    cache.clear()
    return had  # whether it is worth trying again


pool = forebay.Pool("host", max_bytes="64MiB", on_shortage=let_go)
forebay.trace_origins(frames=2)

with forebay.tag("cache"):
    cache.append(pool.allocate("40MiB"))
with forebay.tag("weights"), forebay.performance_context(pool) as scope:
    weights = pool.allocate("40MiB")
print("in that stretch:", scope.statistics["allocations"], "allocation")

try:
    pool.allocate("1GiB")
except forebay.OutOfMemoryError as error:
    print("refused:", error.requested >> 20, "MiB;", {name: size >> 20 for name, size in error.owners.items()})

for row in pool.leaks():
    print("lives:", row["requested_bytes"] >> 20, "MiB,", row["tag"], "since", f"{row['age_s']:.1f} s")
    print("  from", row["origin"][0].rsplit("/", 1)[-1])
weights.free()
