"""torch.cuda, as it is under an allocator that is not PyTorch's own: figures are errors."""

from .. import _C
from . import memory
from .memory import *  # noqa: F403


def is_initialized():
    return _C.initialized


def current_device():
    return 0


def device_count():
    return 2


class MemPool:
    """A pool over an allocator."""

    def __init__(self, allocator=None, **options):
        self.allocator, self.options = allocator, options


__all__ = [*memory.__all__]
