"""Memory for accelerators.

    >>> import forebay
    >>> x = forebay.zeros((2, 3), "float32", device="host")     # or "cuda:0"
    >>> x[0] = 1
    >>> x.numpy().sum()
    np.float32(3.0)

Arrays and buffers are from a pool, in the order of streams. ``forebay.pool(device)`` is the process's own pool of a
device, which PyTorch and C use too; ``forebay.Pool(device, ...)`` makes another with settings of its own.
"""

from __future__ import annotations

from . import _forebay, errors
from ._forebay import (
    Arena,
    Array,
    Buffer,
    Checkpoint,
    Device,
    BufferManager,
    PinnedPool,
    Pool,
    Scope,
    SharedBuffer,
    Stream,
    TagScope,
    Transfer,
    UnifiedBuffer,
    __version__,
    configure,
    device,
    devices,
    from_dlpack,
    leaks,
    live_buffers,
    lost_frees,
    performance_context,
    pool,
    replay,
    settings,
    tag,
    trace_origins,
)
from ._arrays import array, asarray, empty, full, zeros
from ._report import Report, report
from ._weights import load_file
from .errors import *  # noqa: F403

__all__ = [
    "Arena",
    "Array",
    "Buffer",
    "Checkpoint",
    "Device",
    "BufferManager",
    "PinnedPool",
    "Pool",
    "Report",
    "Scope",
    "SharedBuffer",
    "Stream",
    "TagScope",
    "Transfer",
    "UnifiedBuffer",
    "__version__",
    "array",
    "asarray",
    "configure",
    "device",
    "devices",
    "empty",
    "from_dlpack",
    "full",
    "leaks",
    "library_path",
    "live_buffers",
    "load_file",
    "lost_frees",
    "performance_context",
    "pool",
    "replay",
    "report",
    "settings",
    "tag",
    "trace_origins",
    "zeros",
]
__all__ += errors.__all__


def library_path() -> str:
    """The path of the library behind this package, which exports forebay's C functions.

    For ``ctypes.CDLL`` and PyTorch's ``CUDAPluggableAllocator``: loaded by this path it is the very library that is
    loaded already, with the pools of this process.
    """
    path = _forebay.__file__
    if path is None:
        raise errors.UnsupportedError("the extension module is part of the program and has no path of its own")
    return path
