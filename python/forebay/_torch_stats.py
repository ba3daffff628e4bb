"""forebay's figures under PyTorch's names."""

from __future__ import annotations

from typing import Any

#: Up to here PyTorch calls a block small. forebay tells sizes apart by powers of two, so a block of exactly this size
#: counts as large here, and as small there.
SMALL = 1 << 20

_TAKEN = ("create_page", "allocate")
_GIVEN = ("release_page", "free")


class MemoryStats(dict):
    """Figures by PyTorch's names. A name that PyTorch has and forebay keeps no figure for says so when it is asked."""

    def __missing__(self, key: str) -> Any:
        if key in NAMES:
            raise KeyError(f"{key}: forebay keeps no such figure; docs/pytorch.md says which it has")
        raise KeyError(key)


def _names() -> frozenset[str]:
    counts = ["allocation", "segment", "active", "inactive_split"]
    byte_counts = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"]
    kinds = ("current", "peak", "allocated", "freed")
    names = {
        f"{figure}.{pool}.{kind}"
        for figure in counts + byte_counts
        for pool in ("all", "small_pool", "large_pool")
        for kind in kinds
    }
    names |= {f"{figure}.{kind}" for figure in ("oversize_allocations", "oversize_segments") for kind in kinds}
    names |= {"num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"}
    return frozenset(names | {"max_split_size"})


#: All of PyTorch's names.
NAMES = _names()


def stats_of(told: dict[str, Any]) -> MemoryStats:
    """PyTorch's names for the figures of a GPU: of its pool, and of its graphs' private pools."""
    pools = [told, *told["graphs"]]
    stats = MemoryStats()
    _blocks(stats, pools)
    _memory(stats, pools)
    # Private pools keep what they have as long as there are graphs, so what they hold is their peak.
    private = [pool["statistics"] for pool in told["graphs"]]
    peak_out = told["peak_out_bytes"] + sum(pool["peak_out_bytes"] for pool in private)
    peak_held = told["peak_held_bytes"] + sum(pool["held_bytes"] for pool in private)
    stats["allocated_bytes.all.peak"] = max(peak_out, stats["allocated_bytes.all.current"])
    stats["active_bytes.all.peak"] = stats["allocated_bytes.all.peak"]
    stats["reserved_bytes.all.peak"] = max(peak_held, stats["reserved_bytes.all.current"])
    stats["num_ooms"] = told["refusals"]
    # Blocks are cut wherever it fits, and none is too large for that.
    stats["max_split_size"] = -1
    for figure in ("oversize_allocations", "oversize_segments"):
        for kind in ("current", "peak", "allocated", "freed"):
            stats[f"{figure}.{kind}"] = 0
    return MemoryStats(sorted(stats.items()))


def _blocks(stats: MemoryStats, pools: list[dict[str, Any]]) -> None:
    """What is in blocks, all and by PyTorch's two ranges of sizes."""
    sides = {"small_pool": [0, 0, 0], "large_pool": [0, 0, 0]}
    requested = 0
    for pool in pools:
        figures = pool["statistics"]
        requested += figures["requested_bytes"]
        for size in figures["classes"]:
            side = sides["small_pool" if size["from_bytes"] < SMALL else "large_pool"]
            side[0] += size["allocations"]
            side[1] += size["frees"]
            side[2] += size["live_bytes"]
    sides["all"] = [sum(side[index] for side in sides.values()) for index in range(3)]
    for name, (allocations, frees, live) in sides.items():
        # A block that was given back and may still be in use by another stream counts with those at hand.
        for figure in ("allocation", "active"):
            stats[f"{figure}.{name}.allocated"] = allocations
            stats[f"{figure}.{name}.freed"] = frees
            stats[f"{figure}.{name}.current"] = allocations - frees
        for figure in ("allocated_bytes", "active_bytes"):
            stats[f"{figure}.{name}.current"] = live
    stats["requested_bytes.all.current"] = requested


def _memory(stats: MemoryStats, pools: list[dict[str, Any]]) -> None:
    """What is taken from the device. It serves blocks of every size, so there are not two kinds of it."""
    asked = given = given_bytes = pages = held = pieces = free = waited = 0
    for pool in pools:
        figures = pool["statistics"]
        pages += pool["pages"]
        held += figures["held_bytes"]
        pieces += figures["pieces"]
        free += figures["free_bytes"]
        for call in figures["driver"]:
            if call["call"] in _TAKEN:
                asked += call["count"]
            elif call["call"] in _GIVEN:
                given += call["count"]
                given_bytes += call["count"] * call["size_bytes"]
            elif call["call"] == "synchronize_device":
                waited += call["count"]
    stats["segment.all.current"], stats["segment.all.freed"] = pages, given
    stats["segment.all.allocated"] = pages + given
    stats["reserved_bytes.all.current"], stats["reserved_bytes.all.freed"] = held, given_bytes
    stats["reserved_bytes.all.allocated"] = held + given_bytes
    stats["inactive_split.all.current"] = pieces
    stats["inactive_split_bytes.all.current"] = free
    stats["num_device_alloc"], stats["num_device_free"] = pages + given, given
    # What was asked for and neither is there nor was given back: the driver had none, and the pool went on to give
    # back what was idle and to try again.
    stats["num_alloc_retries"] = max(asked - pages - given, 0)
    stats["num_sync_all_streams"] = waited


def summary(stats: dict[str, Any], told: dict[str, Any], device: int) -> str:
    """The figures as a table for people, and who has how much."""
    rows = [
        ("allocated memory", "allocated_bytes", True),
        ("requested memory", "requested_bytes", True),
        ("memory of the GPU", "reserved_bytes", True),
        ("free of that", "inactive_split_bytes", True),
        ("allocations", "allocation", False),
        ("pages of the GPU", "segment", False),
        ("free pieces", "inactive_split", False),
    ]
    head = f"{'metric':<18} | {'now':>12} | {'peak':>12} | {'in all':>12} | {'given back':>12}"
    lines = [f"forebay, GPU {device}; refused for want of memory: {stats['num_ooms']}", "", head, "-" * len(head)]
    for name, figure, in_bytes in rows:
        cells = []
        for kind in ("current", "peak", "allocated", "freed"):
            value = stats.get(f"{figure}.all.{kind}")
            cells.append("-" if value is None else _bytes(value) if in_bytes else str(value))
        lines.append(f"{name:<18} | " + " | ".join(f"{cell:>12}" for cell in cells))
    lines.append("-" * len(head))
    for tag in sorted(told["statistics"]["tags"], key=lambda tag: -tag["live_bytes"]):
        lines.append(f"{tag['tag']:<18} | {_bytes(tag['live_bytes']):>12}")
    for graph in told["graphs"]:
        name = f"graphs ({graph['first']}, {graph['second']})"
        lines.append(f"{name:<18} | {_bytes(graph['statistics']['held_bytes']):>12}")
    return "\n".join(lines)


def _bytes(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 10240:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.0f} TiB"
