"""Arrays of the process's pools.

``device`` is a device, its name, or a ``Pool``; by default the host. ``stream`` is the one in whose order the array is used,
and ``tag`` is for whom it is, as in ``forebay.tag()``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._forebay import Array, Device, Pool, pool

__all__ = ["array", "asarray", "empty", "full", "zeros"]

_Device = Device | str | Pool | None


def _pool(device: _Device) -> Pool:
    return device if isinstance(device, Pool) else pool(device)


def empty(
    shape: int | Sequence[int],
    dtype: Any = None,
    *,
    device: _Device = None,
    stream: Any = None,
    tag: str | None = None,
) -> Array:
    """A new array in ``shape``, of elements of ``dtype``, by default "float64". Their values are undefined."""
    return _pool(device).empty(shape, dtype, stream=stream, tag=tag)


def zeros(
    shape: int | Sequence[int],
    dtype: Any = None,
    *,
    device: _Device = None,
    stream: Any = None,
    tag: str | None = None,
) -> Array:
    """A new array in ``shape``, of elements of ``dtype``, by default "float64", all of them 0."""
    return _pool(device).zeros(shape, dtype, stream=stream, tag=tag)


def full(
    shape: int | Sequence[int],
    value: complex,
    dtype: Any = None,
    *,
    device: _Device = None,
    stream: Any = None,
    tag: str | None = None,
) -> Array:
    """A new array in ``shape``, with all elements ``value``; by default of its type."""
    return _pool(device).full(shape, value, dtype, stream=stream, tag=tag)


def array(
    source: Any, dtype: Any = None, *, device: _Device = None, stream: Any = None, tag: str | None = None
) -> Array:
    """A new array with a copy of ``source``: numbers in lists, a numpy array, a tensor or an array of any device.

    With ``dtype`` they are converted.
    """
    return _pool(device).array(source, dtype, stream=stream, tag=tag)


def asarray(
    source: Any, dtype: Any = None, *, device: _Device = None, stream: Any = None, tag: str | None = None
) -> Array:
    """As ``array()``, without a copy where ``source`` is on that device, can be written, and is of that ``dtype``.

    An array of forebay's stays on its device if none is named.
    """
    if device is None and isinstance(source, Array):
        device = source.device
    return _pool(device).asarray(source, dtype, stream=stream, tag=tag)
