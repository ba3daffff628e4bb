"""numba.cuda: the interface of external memory managers."""

import weakref
from collections import namedtuple
from types import SimpleNamespace

MemoryInfo = namedtuple("MemoryInfo", "free,total")


class MemoryPointer:
    """Memory with a finalizer."""

    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size = context, pointer, size
        if finalizer is not None:
            weakref.finalize(self, finalizer)


class _Pending:
    cleared = 0

    def clear(self):
        _Pending.cleared += 1


class HostOnlyCUDAMemoryManager:
    """A manager that has device memory alone."""

    def __init__(self, *_words, context=None):
        self.context, self.allocations, self.deallocations = context, {}, _Pending()

    def reset(self):
        self.allocations.clear()
        self.deallocations.clear()


def set_memory_manager(plugin):
    global manager
    assert plugin(context=None).interface_version == 1
    manager = plugin(context=SimpleNamespace(device=SimpleNamespace(id=0)))


manager = None
