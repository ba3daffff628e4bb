"""forebay as CuPy's allocator of GPU memory.

    >>> import forebay.cupy
    >>> forebay.cupy.install()
    >>> import cupy
    >>> x = cupy.zeros(1 << 20)

Arrays are from the process's pool of their GPU, which PyTorch, Numba and RMM may share, in the order of CuPy's current
stream.
"""

from __future__ import annotations

from typing import Any

from . import _process
from ._process import attribution, configure

__all__ = ["attribution", "configure", "forget_stream", "install", "is_installed", "uninstall"]

_TAG = b"cupy"

#: The stream each block is of.
_streams: dict[int, int] = {}
#: Streams that blocks are of, so that CuPy does not destroy them while the pool may still ask for their work.
_kept: dict[tuple[int, int], Any] = {}
_before: Any = None
_installed: Any = None


def is_installed() -> bool:
    """Whether forebay is CuPy's allocator."""
    return _installed is not None


def install(**settings: Any) -> None:
    """Makes forebay CuPy's allocator of GPU memory, in all threads.

    Arrays that there are stay what they are. ``settings`` are forebay's (``max_bytes="8GiB"``), for the pools of the
    process. Calling it again changes the settings that are given, and nothing else. Where it fails nothing is changed.
    """
    global _before, _installed
    import cupy

    if _installed is not None:
        configure(**settings)
        return
    # Without the library it fails here, and not at the first array.
    _process.library_to_install()
    allocator = cupy.cuda.PythonFunctionAllocator(_allocate, _free)
    before = cupy.cuda.get_allocator()
    with _process.configured(settings):
        cupy.cuda.set_allocator(allocator.malloc)
    _before, _installed = before, allocator


def uninstall() -> None:
    """Gives CuPy the allocator back that it had. Arrays that are from forebay go back to it when they end."""
    global _installed
    import cupy

    if _installed is not None:
        cupy.cuda.set_allocator(_before)
        _installed = None


def _allocate(size: int, device: int) -> int:
    import cupy

    stream = cupy.cuda.get_current_stream()
    handle = stream.ptr
    try:
        block = _process.allocate(size, device, handle, _TAG)
    except MemoryError as error:
        raise _out_of_memory(cupy, size, device, str(error)) from None
    if block:
        _streams[block] = handle
        _kept.setdefault((device, handle), stream)
    return block


def _out_of_memory(cupy: Any, size: int, device: int, said: str) -> Exception:
    told = _process.statistics(device) if _process.has_pool(device) else None
    live = told["statistics"]["live_bytes"] if told else 0
    limit = told["limit_bytes"] if told else 0
    error = cupy.cuda.memory.OutOfMemoryError(size, live, limit)
    # With the report in place of CuPy's own words.
    error.args = (said,)
    return error


def _free(block: int, device: int) -> None:
    if not block:
        return
    import cupy

    handle = _streams.pop(block, 0)
    try:
        # Who gives it back on another stream than it was allocated on has used it there.
        if cupy.cuda.runtime.getDevice() == device:
            current = cupy.cuda.get_current_stream()
            if current.ptr != handle:
                _kept.setdefault((device, current.ptr), current)
                _process.record_use(block, device, current.ptr)
    finally:
        # CuPy does not ask a second time.
        _process.free(block, device, handle)


def forget_stream(stream: Any, device: int | None = None) -> None:
    """Lets CuPy destroy a stream that arrays were made on. Its arrays are to be gone."""
    import cupy

    device = cupy.cuda.runtime.getDevice() if device is None else device
    _process.check(_process.library().forebay_face_forget_stream(device, stream.ptr))
    _kept.pop((device, stream.ptr), None)
