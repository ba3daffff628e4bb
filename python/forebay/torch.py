"""forebay as PyTorch's allocator of GPU memory.

    >>> import forebay.torch
    >>> forebay.torch.install()          # before anything of PyTorch uses the GPU
    >>> import torch
    >>> x = torch.zeros(1 << 20, device="cuda")

From then on every tensor on a GPU is from the process's pool of that GPU. All of PyTorch works as before: its figures,
snapshots and history, CUDA graphs and ``torch.compile``, ``torch.cuda.MemPool``, ``torch.OutOfMemoryError``.

Without a change to the program, its child processes included::

    python -m forebay.torch train.py --epochs 3
    FOREBAY_TORCH=1 torchrun --nproc-per-node 4 train.py
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from . import _alloc_conf, _process, _torch_adapter
from ._process import attribution, configure
from .errors import InstallError

if TYPE_CHECKING:
    import torch

__all__ = ["attribution", "configure", "install", "is_installed", "load_file", "mem_pool"]

_installed = False
_installing = threading.Lock()


def is_installed() -> bool:
    """Whether forebay is PyTorch's allocator."""
    return _installed


def install(device: int | None = None, *, pinned: bool = True, untested: bool = False, **settings: Any) -> None:
    """Makes forebay PyTorch's allocator of GPU memory, for the rest of the process.

    Must come before PyTorch uses the GPU. Calling it again changes the settings that are given, and nothing else. Where it
    fails nothing is changed, neither in PyTorch nor in the settings: ``forebay.InstallError``, or ``forebay.InvalidError``
    for a setting.

    device
        A GPU whose pool is made at once, so that what is wrong with it shows here. None: when it is first used.
    pinned
        Whether pinned host memory is forebay's too: ``pin_memory()``, data loaders, ``pin_memory=True``.
    untested
        Installs with a version of PyTorch that is newer than those forebay was tested with.
    settings
        forebay's settings, by the names they have everywhere: ``max_bytes="60GiB"``, ``max_fraction=0.9``. They are
        above those of the environment, and above what ``PYTORCH_ALLOC_CONF`` says.
    """
    with _installing:
        if _installed:
            configure(**settings)
        else:
            _install(device, pinned, untested, settings)


def _install_at_import() -> None:
    """Installs as soon as PyTorch is imported, for FOREBAY_TORCH. The program's own ``install``, where that is what imports
    PyTorch, has arguments of its own."""
    if not _installing.locked():
        install()


def _install(device: int | None, pinned: bool, untested: bool, settings: dict[str, Any]) -> None:
    global _installed
    import torch

    _torch_adapter.check_version(torch.__version__, untested)
    if torch.cuda.is_initialized():
        raise InstallError(
            "PyTorch has used the GPU already, and its allocator cannot change any more: call forebay.torch.install() "
            "before the first tensor on a GPU, best right after the imports"
        )
    if getattr(getattr(torch, "version", None), "hip", None):
        raise InstallError("this PyTorch is built for AMD's GPUs, and forebay works inside PyTorch with CUDA alone")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise InstallError("this PyTorch is built without CUDA, so there is no allocator of GPU memory to replace")
    _process.library_to_install()
    _process.find_driver()
    translated, without = _alloc_conf.translated()
    adapter = _torch_adapter.load(torch)
    share = _torch_adapter.sharing(adapter, torch)
    if without:
        warnings.warn(
            f"of PyTorch's settings of its allocator these mean nothing to forebay: {', '.join(without)}",
            RuntimeWarning,
            stacklevel=4,
        )
    # From here on something changes: the settings are taken back where a later step fails. PyTorch's allocator comes last.
    with _process.configured({**translated, **settings}):
        if device is not None:
            _process.statistics(device)
        _torch_adapter.install(adapter, _process.library_path(), pinned)
    torch.UntypedStorage._share_cuda_ = share
    _installed = True


def mem_pool(**options: Any) -> Any:
    """A ``torch.cuda.MemPool`` whose memory is from forebay, while PyTorch's own allocator serves the rest.

    PyTorch cuts tensors from what it gets; with ``no_split=True`` each tensor is a block of forebay's.
    """
    import torch

    if _installed:
        raise InstallError("forebay is PyTorch's allocator already: torch.cuda.MemPool() is from it")
    # Null on purpose: inside a MemPool it is what PyTorch expects of a request that fails.
    allocator = torch._C._cuda_customAllocator(
        _process.address_of("forebay_torch_alloc"), _process.address_of("forebay_torch_free")
    )
    pool = torch.cuda.MemPool(allocator, **options)
    # It does not keep what it allocates by.
    _pools.append(allocator)
    return pool


_pools: list[Any] = []


def load_file(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    device: torch.device | str | int = "cpu",
    *,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, torch.Tensor]:
    """Loads the tensors of a safetensors file to ``device``: what ``safetensors.torch.load_file`` does, by several threads.

    Works with and without ``install()``. ``path`` is a file, an index of several, a folder with one of them, or a list of
    files; ``names`` are the tensors to load, all if it is ``None``; ``progress`` is called with the bytes that were loaded and
    all bytes. See ``forebay.load_file``.
    """
    from ._weights import load_torch_file

    return load_torch_file(path, device, names=names, progress=progress)


if __name__ == "__main__":
    from ._torch_run import main

    sys.exit(main())
