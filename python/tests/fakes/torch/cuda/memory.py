"""torch.cuda.memory."""

from .. import _C

_NAMES = (
    "memory_stats memory_stats_as_nested_dict memory_allocated max_memory_allocated memory_reserved "
    "max_memory_reserved reset_peak_memory_stats reset_accumulated_memory_stats memory_summary memory_snapshot "
    "_snapshot _dump_snapshot _record_memory_history"
).split()


def _refuse(name):
    def refuse(*_words, **_named):
        raise RuntimeError(f"CUDAPluggableAllocator does not yet support {name}")

    return refuse


for _name in _NAMES:
    globals()[_name] = _refuse(_name)

__all__ = [name for name in _NAMES if not name.startswith("_")]


class _CUDAAllocator:
    def __init__(self, allocator):
        self._allocator = allocator

    def allocator(self):
        return self._allocator


def change_current_allocator(allocator):
    if _C.initialized:
        raise RuntimeError("Can't swap an already initialized allocator")
    _C.current = allocator.allocator()
