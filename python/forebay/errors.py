"""Exceptions: everything that forebay refuses is a ``forebay.Error``.

Each says what was asked, what is allowed and what would help. Where Python has a class for the same mistake it is a
base too, so that ``except MemoryError`` and ``except ValueError`` go on working.

Three exceptions are Python's own, by its conventions: ``TypeError`` for an argument of the wrong type or number,
``AttributeError`` and ``KeyError`` for a name that is not there, and whatever another library or a callback of the program
raised, which passes through as it is. What PyTorch, CuPy and Numba want raised by their allocator, as
``torch.OutOfMemoryError``, is theirs.
"""

from __future__ import annotations

__all__ = [
    "BusyError",
    "CancelledError",
    "ClosedError",
    "CorruptionError",
    "DeniedError",
    "Error",
    "ExportError",
    "ForkedError",
    "InUseError",
    "InstallError",
    "InvalidError",
    "LapsedError",
    "LostError",
    "NameTakenError",
    "NotFoundError",
    "OutOfMemoryError",
    "ProcessError",
    "TraceError",
    "UnsupportedError",
    "WeightsError",
]


class Error(Exception):
    """Anything that forebay refuses."""


class OutOfMemoryError(Error, MemoryError):
    """There is not that much memory left, after everything that could be given back was.

    The figures are in bytes; those that the device did not tell are ``None``.
    """

    #: What was asked for.
    requested: int | None = None
    #: What that takes in one piece.
    needed: int | None = None
    #: The most that the pool may hold, or all that the device has.
    limit: int | None = None
    #: What the pool holds.
    held: int | None = None
    #: What of that is in blocks.
    live: int | None = None
    #: What of it is in no block.
    free: int | None = None
    #: The largest free piece.
    largest_free: int | None = None
    #: What the device could still give.
    device_free: int | None = None
    #: What of the device is neither left nor this pool's.
    held_elsewhere: int | None = None
    #: Who has the most, by tag.
    owners: dict[str, int] | None = None


class InvalidError(Error, ValueError):
    """An argument that is not allowed; nothing was changed."""


class ClosedError(Error):
    """Something that was freed or closed: a second free, or a use after it."""


class LapsedError(ClosedError):
    """A buffer or checkpoint of an arena that was taken back since."""


class InUseError(Error, BufferError):
    """Memory that cannot be given back because views of it live."""


class ExportError(Error, BufferError):
    """Memory that cannot be shown as it was asked for: to the host, or by DLPack."""


class UnsupportedError(Error, NotImplementedError):
    """Something that this device, driver or machine does not have."""


class LostError(Error):
    """The device is gone: it was reset, fell off the bus, or a kernel broke it."""


class BusyError(Error):
    """Something is in use, or failed for a reason that may pass; trying again may help."""


class NotFoundError(Error, LookupError):
    """No living process has a shared buffer of that name."""


class NameTakenError(Error):
    """A living process has a shared buffer of that name already."""


class DeniedError(Error, PermissionError):
    """What has that name is of another user."""


class CancelledError(Error):
    """A transfer that was cancelled: what was copied before stays, the rest is undefined."""


class CorruptionError(Error):
    """A debugging aid found that memory was written to without right."""


class ForkedError(ClosedError):
    """Something made before the process forked, used in the child."""


class TraceError(Error):
    """A recording that cannot be read, written or played."""


class InstallError(Error, RuntimeError):
    """forebay cannot be the allocator of another library; nothing was changed."""


class ProcessError(Error, RuntimeError):
    """The process's pools, as PyTorch, CuPy, Numba and RMM have them, refused something."""


class WeightsError(Error, ValueError):
    """A file of weights is damaged, lies about what it has, or was changed while it was read."""
