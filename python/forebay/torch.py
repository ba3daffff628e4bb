"""forebay as PyTorch's allocator of GPU memory.

    >>> import forebay.torch
    >>> forebay.torch.install()          # before anything of PyTorch uses the GPU
    >>> import torch
    >>> x = torch.zeros(1 << 20, device="cuda")

From then on every tensor on a GPU is from the process's pool of that GPU. Where there is no memory,
``torch.OutOfMemoryError`` is raised with forebay's report. CUDA graphs have private pools. ``torch.cuda.memory_stats``
and its kin show forebay's figures.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from . import _alloc_conf, _process
from ._process import attribution, configure
from ._torch_snapshot import Frames, history_of, segments_of
from ._torch_stats import MemoryStats, stats_of
from ._torch_stats import summary as _summary
from .errors import InstallError, InvalidError

__all__ = [
    "attribution",
    "configure",
    "dump_snapshot",
    "empty_cache",
    "install",
    "is_installed",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_pool",
    "memory_allocated",
    "memory_reserved",
    "memory_snapshot",
    "memory_stats",
    "memory_summary",
    "record_memory_history",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "snapshot",
]

#: The versions of PyTorch whose way of calling an allocator is known, the last included. Another one may hand the
#: streams of a capture over in another way, and a wrong guess would end in memory that two graphs share.
OLDEST, NEWEST = (2, 6), (2, 15)

#: What PyTorch's object for an allocator is told: the name of its setter, and our function.
_HOOKS = {
    "set_init_fn": "forebay_torch_init",
    "set_reset_fn": "forebay_torch_reset",
    "set_memory_fraction_fn": "forebay_torch_memory_fraction",
    "set_base_alloc_fn": "forebay_torch_base_allocation",
    "set_record_stream_fn": "forebay_torch_record_stream",
    "set_begin_allocate_to_pool": "forebay_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "forebay_torch_end_allocate_to_pool",
    "set_release_pool": "forebay_torch_release_pool",
}

_installed: Any = None
_baselines: dict[int, dict[str, int]] = {}


def is_installed() -> bool:
    """Whether forebay is PyTorch's allocator."""
    return _installed is not None


def install(
    device: int | None = None,
    *,
    patch: bool = True,
    untested: bool = False,
    null_on_failure: bool = False,
    **settings: Any,
) -> None:
    """Makes forebay PyTorch's allocator of GPU memory, for the rest of the process.

    Must come before PyTorch uses the GPU. Calling it again changes the settings that are given, and nothing else. Where it
    fails nothing is changed, neither in PyTorch nor in the settings: ``forebay.InstallError``, or ``forebay.InvalidError``
    for a setting.

    device
        A GPU whose pool is made at once, so that what is wrong with it shows here. None: when it is first used.
    patch
        Whether ``torch.cuda.memory_stats``, ``memory_allocated``, ``memory_summary``, ``memory_snapshot`` and their kin
        show forebay's figures. Without it they raise, as with any allocator but PyTorch's own.
    untested
        Installs with a version of PyTorch that is not known to work.
    null_on_failure
        Installs where there is no way to raise ``torch.OutOfMemoryError``. A tensor that there was no memory for then
        has none, and using it ends the process.
    settings
        forebay's settings, by the names they have everywhere: ``max_bytes="60GiB"``, ``max_fraction=0.9``. They are
        above those of the environment, and above what ``PYTORCH_ALLOC_CONF`` says.
    """
    global _installed
    import torch

    if _installed is not None:
        configure(**settings)
        return
    _check_version(torch.__version__, untested)
    if torch.cuda.is_initialized():
        raise InstallError(
            "PyTorch has used the GPU already, and its allocator cannot change any more: call forebay.torch.install() "
            "before the first tensor on a GPU, best right after the imports"
        )
    if getattr(getattr(torch, "version", None), "hip", None):
        raise InstallError("this PyTorch is built for AMD's GPUs, and forebay works inside PyTorch with CUDA alone")
    if not hasattr(torch._C, "_cuda_customAllocator"):
        raise InstallError("this PyTorch is built without CUDA, so there is no allocator of GPU memory to replace")
    library = _process.library_to_install()
    way = "forebay_torch_alloc_or_throw"
    if library.forebay_torch_errors_from(_torch_library(torch).encode()) != 0:
        reason = _process.last_error()
        if not null_on_failure:
            raise InstallError(
                f"{reason}. Nothing was installed, since PyTorch would take a request that fails for memory; "
                "install(null_on_failure=True) installs all the same"
            )
        way = "forebay_torch_alloc"
    translated, without = _alloc_conf.translated()
    allocator = torch._C._cuda_customAllocator(_process.address_of(way), _process.address_of("forebay_torch_free"))
    missing = [setter for setter in _HOOKS if not hasattr(allocator, setter)]
    if missing:
        raise InstallError(
            f"PyTorch {torch.__version__} takes no {', '.join(missing)}, without which CUDA graphs and streams would "
            "share memory; nothing was installed"
        )
    for setter, function in _HOOKS.items():
        getattr(allocator, setter)(_process.address_of(function))
    ours = torch.cuda.memory._CUDAAllocator(allocator)
    if without:
        warnings.warn(
            f"of PyTorch's settings of its allocator these mean nothing to forebay: {', '.join(without)}",
            RuntimeWarning,
            stacklevel=2,
        )
    # From here on something changes: each step is taken back where a later one fails. PyTorch's allocator comes last,
    # since PyTorch takes no other after it.
    with _process.configured({**translated, **settings}):
        if device is not None:
            _process.figures(device)
        with _patched(torch) if patch else contextlib.nullcontext():
            torch.cuda.memory.change_current_allocator(ours)
    _installed = allocator


def _check_version(version: str, untested: bool) -> None:
    if sys.platform != "linux":
        raise InstallError(f"forebay works inside PyTorch on Linux alone, and this is {sys.platform}")
    parts = version.split("+")[0].split(".")
    try:
        number = (int(parts[0]), int(parts[1]))
    except (IndexError, ValueError):
        number = (0, 0)
    if not untested and not OLDEST <= number <= NEWEST:
        known = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
        raise InstallError(
            f"forebay knows how PyTorch {known} call an allocator, and this is {version}; "
            "install(untested=True) installs all the same"
        )


def _torch_library(torch: Any) -> str:
    """The library that has PyTorch's errors, or depends on one that does."""
    return os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_python.so")


def mem_pool(**options: Any) -> Any:
    """A ``torch.cuda.MemPool`` whose memory is from forebay, while PyTorch's own allocator serves the rest.

    PyTorch cuts tensors from what it gets; with ``no_split=True`` each tensor is a block of forebay's.
    """
    import torch

    if _installed is not None:
        raise InstallError("forebay is PyTorch's allocator already: all memory is from it, and PyTorch makes no MemPool")
    # Null on purpose: inside a MemPool it is what PyTorch expects of a request that fails.
    allocator = torch._C._cuda_customAllocator(
        _process.address_of("forebay_torch_alloc"), _process.address_of("forebay_torch_free")
    )
    pool = torch.cuda.MemPool(allocator, **options)
    # It does not keep what it allocates by.
    _pools.append(allocator)
    return pool


_pools: list[Any] = []


def _index(device: Any = None) -> int:
    if isinstance(device, int) and not isinstance(device, bool):
        return device
    import torch

    if device is None:
        return torch.cuda.current_device()
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def memory_stats(device: Any = None) -> MemoryStats:
    """The figures of a GPU's memory under PyTorch's names.

    They are of the process's pool, which CuPy and others may share (``attribution`` tells who has what), and of the
    private pools of CUDA graphs. Names that forebay keeps no figure for are left out.
    """
    index = _index(device)
    if not _process.has_pool(index):
        return MemoryStats()
    stats = stats_of(_process.figures(index))
    for name, before in _baselines.get(index, {}).items():
        stats[name] -= before
    return stats


def memory_stats_as_nested_dict(device: Any = None) -> dict[str, Any]:
    """The same, by the parts of the names."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *outer, last = name.split(".")
        inside = nested
        for part in outer:
            inside = inside.setdefault(part, {})
        inside[last] = value
    return nested


def memory_allocated(device: Any = None) -> int:
    """Bytes in live blocks."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in blocks at once, what is at hand in magazines counted, since the last reset."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """Bytes taken from the GPU."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that were taken from the GPU at once, since the last reset."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """Lets peaks begin anew."""
    index = _index(device)
    if _process.has_pool(index):
        _process.check(_process.library().forebay_torch_reset_peaks(index))


def reset_accumulated_memory_stats(device: Any = None) -> None:
    """Lets what only grows begin anew at 0."""
    index = _index(device)
    _baselines.pop(index, None)
    growing = (".allocated", ".freed")
    _baselines[index] = {
        name: value for name, value in memory_stats(index).items() if name.endswith(growing) or name.startswith("num_")
    }


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """A table of the figures for people, and who has how much. ``abbreviated`` changes nothing: it is short."""
    index = _index(device)
    return _summary(memory_stats(index), _process.figures(index), index)


def empty_cache() -> None:
    """Gives back to every GPU what is free of its pool."""
    for index in range(_device_count()):
        if _process.has_pool(index):
            _process.empty_cache(index)


def _device_count() -> int:
    import torch

    return torch.cuda.device_count()


#: The places of what is recorded; None while nothing is.
_frames: Frames | None = None


def _place(_device: int, _block: int | None, _size: int) -> int:
    """The number of the place in the program that asks for a block: what is called for every one of them."""
    frames = _frames
    try:
        return 0 if frames is None else frames.here(2)
    except ValueError:
        # A thread of PyTorch's own, with no Python in it.
        return 0


#: One function for the whole process: a thread may be about to call it at any time.
_ASK = _process.ASK(_place)


def record_memory_history(enabled: str | None = "all", max_entries: int = 1 << 20, **ignored: Any) -> None:
    """Records what is allocated and freed from now on, with the place in the Python program; None ends it.

    As ``torch.cuda.memory._record_memory_history``: "state" is taken for "all". What was recorded is in ``snapshot()``: the
    last ``max_entries`` events. As many places in the program are kept, and go with their events. Every request takes a few
    microseconds longer meanwhile.
    """
    global _frames
    if enabled not in (None, "all", "state"):
        raise InvalidError(f"enabled can be None, 'state' or 'all', not {enabled!r}")
    if max_entries < 0:
        raise InvalidError(f"max_entries can be 0 or more, not {max_entries}")
    library = _process.library()
    if enabled is None:
        library.forebay_torch_record(0, None)
        _frames = None
        return
    _frames = Frames(max_entries)
    library.forebay_torch_record(max_entries, ctypes.cast(_ASK, ctypes.c_void_p))


def snapshot(device: Any = None) -> dict[str, Any]:
    """All memory by address, and what was recorded, in the form of ``torch.cuda.memory._snapshot``.

    PyTorch's viewer opens it. A segment is a stretch of addresses with memory behind it; it belongs to no stream, so its
    stream is 0.
    """
    only = None if device is None else _index(device)
    count = max(_device_count(), 1 if only is None else only + 1)
    frames = _frames or Frames(0)
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    settings: dict[str, Any] = {}
    for index in range(count):
        wanted = (only is None or index == only) and _process.has_pool(index)
        recorded = _process.records(index) if wanted else []
        traces.append(history_of(recorded, frames))
        if wanted:
            segments += segments_of(index, _process.layout(index), recorded, frames)
            settings = settings or _process.figures(index)["settings"]
    return {
        "segments": segments,
        "device_traces": traces,
        "allocator_settings": {
            "PYTORCH_CUDA_ALLOC_CONF": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "expandable_segments": True,
            "forebay": settings,
        },
        "external_annotations": [],
    }


def dump_snapshot(path: str | os.PathLike[str] = "dump_snapshot.pickle") -> None:
    """Writes ``snapshot()`` to a file that PyTorch's viewer and ``forebay replay`` read."""
    with open(path, "wb") as file:
        pickle.dump(snapshot(), file)


def memory_snapshot(mempool_id: tuple[int, int] | None = None, include_traces: bool = True) -> list[dict[str, Any]]:
    """The segments of ``snapshot()``, all or those of one private pool."""
    found = snapshot()["segments"]
    return found if mempool_id is None else [one for one in found if one["segment_pool_id"] == tuple(mempool_id)]


@contextlib.contextmanager
def _patched(torch: Any) -> Iterator[None]:
    """Lets PyTorch's own functions show forebay's figures, where they would raise; not where what is within fails."""
    ours = {
        "memory_stats": memory_stats,
        "memory_stats_as_nested_dict": memory_stats_as_nested_dict,
        "memory_allocated": memory_allocated,
        "max_memory_allocated": max_memory_allocated,
        "memory_reserved": memory_reserved,
        "max_memory_reserved": max_memory_reserved,
        "memory_cached": memory_reserved,
        "max_memory_cached": max_memory_reserved,
        "reset_peak_memory_stats": reset_peak_memory_stats,
        "reset_accumulated_memory_stats": reset_accumulated_memory_stats,
        "reset_max_memory_allocated": reset_peak_memory_stats,
        "reset_max_memory_cached": reset_peak_memory_stats,
        "memory_summary": memory_summary,
        "memory_snapshot": memory_snapshot,
        "_snapshot": snapshot,
        "_dump_snapshot": dump_snapshot,
        "_record_memory_history": record_memory_history,
    }
    before: list[tuple[Any, str, Any]] = []
    try:
        for name, function in ours.items():
            for module in (torch.cuda.memory, torch.cuda):
                if hasattr(module, name):
                    before.append((module, name, getattr(module, name)))
                    setattr(module, name, function)
        yield
    except BaseException:
        for module, name, function in before:
            setattr(module, name, function)
        raise
