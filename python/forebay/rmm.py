"""forebay as RMM's memory resource, and so of cuDF and what else is over RMM.

    >>> import forebay.rmm
    >>> forebay.rmm.install()
    >>> import rmm
    >>> buffer = rmm.DeviceBuffer(size=1 << 20)
"""

from __future__ import annotations

from typing import Any

from . import _process
from ._process import attribution, configure

__all__ = ["attribution", "configure", "install", "resource"]

_TAG = b"rmm"


def handle_of(stream: Any) -> int:
    """The number of a stream, as CUDA has it."""
    told = getattr(stream, "__cuda_stream__", None)
    if told is None:
        raise TypeError(f"RMM gave a stream that does not tell its number: {stream!r}; RMM 25.02 and later do")
    _, handle = told()
    return int(handle)


def resource(device: int = 0) -> Any:
    """A resource over the process's pool of a GPU: blocks in the order of the streams RMM says."""
    import rmm

    _process.library()

    def allocate(size: int, stream: Any) -> int:
        return _process.allocate(size, device, handle_of(stream), _TAG)

    def deallocate(block: int, size: int, stream: Any) -> None:
        if block:
            _process.free(block, device, handle_of(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)


def install(device: int = 0, **settings: Any) -> Any:
    """Makes forebay RMM's resource of a GPU; gives the resource, which RMM keeps too. Where it fails nothing is changed."""
    import rmm

    _process.library_to_install()
    made = resource(device)
    with _process.configured(settings):
        rmm.mr.set_per_device_resource(device, made)
    return made
