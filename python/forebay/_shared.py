"""Shared buffers that were pickled: opened by name where they arrive."""

from __future__ import annotations

from ._forebay import BufferManager, SharedBuffer


def reopened(device: str, name: str, shape: tuple[int, ...], dtype: str, any_user: bool) -> SharedBuffer:
    """The buffer of that name, as a process of this machine has it."""
    return BufferManager(device).open_shared(name, shape, dtype, any_user=any_user)
