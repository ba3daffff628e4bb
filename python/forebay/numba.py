"""forebay as the manager of Numba's GPU memory.

    >>> import forebay.numba
    >>> forebay.numba.install()          # before Numba uses the GPU

or, without a change to the program, ``NUMBA_CUDA_MEMORY_MANAGER=forebay.numba``. Numba does not tell on which stream an
array is made or used: blocks are in the order of the default stream, which those that Numba makes wait for and are waited
for by. An array that is used on a stream that does not has to be kept until its work is done.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from numba import cuda

from . import _process
from ._process import attribution, configure
from .errors import UnsupportedError

__all__ = ["ForebayNumbaManager", "attribution", "configure", "install"]

_TAG = b"numba"
_DEFAULT_STREAM = 0


class ForebayNumbaManager(cuda.HostOnlyCUDAMemoryManager):
    """Numba's device memory from the process's pool of the GPU; host memory stays Numba's own."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        #: Live blocks with their GPU, by a number that none had before: an address may be another's after a reset.
        self.blocks: dict[int, tuple[int, int]] = {}
        self._numbers = itertools.count()

    def initialize(self) -> None:
        """The pool is made when it is first needed."""

    def memalloc(self, size: int) -> Any:
        """A block of the pool. ``MemoryError`` where there is none."""
        device = int(self.context.device.id)
        try:
            block = _process.allocate(size, device, _DEFAULT_STREAM, _TAG)
        except MemoryError:
            # What Numba has put off to free may be what is missing.
            self.deallocations.clear()
            block = _process.allocate(size, device, _DEFAULT_STREAM, _TAG)
        blocks, number = self.blocks, next(self._numbers)

        def finalizer() -> None:
            # After a reset of the context it is gone already.
            if blocks.pop(number, None) is not None:
                _process.free(block, device, _DEFAULT_STREAM)

        if block:
            blocks[number] = (block, device)
        return cuda.MemoryPointer(self.context, ctypes.c_void_p(block), size, finalizer=finalizer)

    def reset(self) -> None:
        """Gives back all there is: arrays that live on have no memory any more, as after any reset."""
        while self.blocks:
            _, (block, device) = self.blocks.popitem()
            _process.free(block, device, _DEFAULT_STREAM)
        super().reset()

    def get_memory_info(self) -> Any:
        """What is free and what there is, as the driver tells."""
        return cuda.MemoryInfo(*_process.memory_info(int(self.context.device.id)))

    def get_ipc_handle(self, memory: Any) -> Any:
        """Not to be had: a block may be made of several pieces of the GPU's memory."""
        raise UnsupportedError("forebay's blocks cannot be opened by other processes through Numba")

    @property
    def interface_version(self) -> int:
        """The version of Numba's interface that this is of."""
        return 1


#: What NUMBA_CUDA_MEMORY_MANAGER looks for.
_numba_memory_manager = ForebayNumbaManager


def install(**settings: Any) -> None:
    """Makes forebay the manager of Numba's GPU memory. Must come before Numba uses the GPU. Where it fails nothing is
    changed."""
    _process.library_to_install()
    with _process.configured(settings):
        cuda.set_memory_manager(ForebayNumbaManager)
