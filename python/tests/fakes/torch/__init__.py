"""As much of PyTorch as an allocator sees: the object that takes functions, and calls of them through C++."""

from . import _C, cuda  # noqa: F401
from ._C import OutOfMemoryError  # noqa: F401

__version__ = "2.11.0+cu130"


class device:
    """A device by name."""

    def __init__(self, name):
        kind, _, index = str(name).partition(":")
        self.type, self.index = kind, int(index) if index else None


class Tensor:
    """Memory from the current allocator, given back when it goes."""

    def __init__(self, size, stream=0):
        self.size, self.stream = size, stream
        self.pointer = _C.allocate(size, 0, stream)

    def record_stream(self, stream):
        _C.call("set_record_stream_fn", self.pointer, stream)

    def __del__(self):
        if getattr(self, "pointer", None):
            _C.free(self.pointer, self.size, 0, self.stream)


def empty(size, stream=0):
    return Tensor(size, stream)
