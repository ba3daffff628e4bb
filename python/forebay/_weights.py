"""Files of weights in the safetensors format: ``forebay.load_file`` and ``forebay.torch.load_file``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from . import _forebay
from .errors import UnsupportedError

if TYPE_CHECKING:
    import torch

    from ._forebay import Array, Device

_Path: TypeAlias = "str | os.PathLike[str]"

#: What PyTorch calls the elements that reach it as bytes.
_TORCH_TYPES = {
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def _paths(given: _Path | Iterable[_Path]) -> list[str]:
    paths = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    for path in paths:
        os.stat(path)  # FileNotFoundError, as Python's own functions raise it.
    return [os.fspath(path) for path in paths]


def load_file(
    path: _Path | Iterable[_Path],
    device: Device | str | None = None,
    *,
    names: Sequence[str] | None = None,
    stream: Any = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Array]:
    """Load the tensors of a safetensors file to a device: a dictionary of arrays by name, in the order of the file.

    path
        A file, an index of several (``model.safetensors.index.json``), a folder that has one of them, or a list of files.
    device
        A device or its name, such as ``"cuda:0"``; the host if it is ``None``. The arrays are of the process's pool there.
    names
        The tensors to load; all if it is ``None``. Of a file only their bytes are read.
    stream
        In whose order the arrays are used; the default stream if it is ``None``.
    progress
        Called with the bytes that were loaded and all bytes, some twenty times a second. What it raises cancels the load,
        and so does Ctrl-C; nothing stays allocated.

    Several threads read into pinned memory, from which the device copies. A file that is damaged, lies or changes meanwhile
    raises ``WeightsError``. 8-bit floats are arrays of their type, elements of 4 bits arrays of bytes with two in each, and
    those of 6 bits plain bytes.
    """
    loaded = _forebay.load_weights(_paths(path), device, names=names, stream=stream, progress=progress)
    return {name: array for name, _, array in loaded}


def load_torch_file(
    path: _Path | Iterable[_Path],
    device: torch.device | str | int = "cpu",
    *,
    names: Sequence[str] | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, torch.Tensor]:
    """``forebay.torch.load_file``."""
    import torch

    to = torch.device(device)
    if to.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"weights are loaded to the CPU and to CUDA, not to {to}: load to the CPU and move them")
    number = torch.cuda.current_device() if to.type == "cuda" and to.index is None else to.index
    there = "host" if to.type == "cpu" else f"cuda:{number}"
    loaded = _forebay.load_weights(_paths(path), there, names=names, progress=progress, as_bytes=True)
    return {name: _tensor(torch, name, dtype, array) for name, dtype, array in loaded}


def _tensor(torch: Any, name: str, dtype: str, array: Array) -> torch.Tensor:
    tensor = torch.from_dlpack(array)
    known = _TORCH_TYPES.get(dtype)
    if known is None:
        return tensor
    if not hasattr(torch, known):
        raise UnsupportedError(
            f"{name!r} has elements of {dtype}, and PyTorch {torch.__version__} has no {known}: install a newer one, or use "
            "forebay.load_file, which gives bytes"
        )
    return tensor.view(getattr(torch, known))
