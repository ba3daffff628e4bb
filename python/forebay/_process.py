"""The process's pool of each GPU, which PyTorch, CuPy, Numba and RMM share, through the library's C functions.

Needs nothing but the library: ``FOREBAY_LIBRARY`` names it, or the package's own is taken.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

from .errors import Error, InstallError, InvalidError, OutOfMemoryError, ProcessError

__all__ = ["attribution", "configure", "empty_cache", "statistics", "library", "library_path", "memory_info"]

_lock = threading.Lock()
#: Held while settings change, and until it is known whether they stay.
_changing = threading.RLock()
_loaded: ctypes.CDLL | None = None
_path: str | None = None

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "forebay_last_error": (ctypes.c_char_p, []),
    "forebay_torch_statistics": (ctypes.c_void_p, [ctypes.c_int]),
    "forebay_string_free": (None, [ctypes.c_void_p]),
    "forebay_face_alloc": (ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p]),
    "forebay_face_free": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "forebay_face_record_use": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]),
    "forebay_face_forget_stream": (ctypes.c_int, [ctypes.c_int, ctypes.c_void_p]),
    "forebay_face_memory_info": (
        ctypes.c_int,
        [ctypes.c_int, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_uint64)],
    ),
    "forebay_face_configure": (ctypes.c_int, [ctypes.c_char_p]),
    "forebay_face_configure_undo": (ctypes.c_int, []),
    "forebay_face_trim": (ctypes.c_int, [ctypes.c_int]),
    "forebay_face_has_pool": (ctypes.c_int, [ctypes.c_int]),
}


def library_path() -> str:
    """Where the library lies: what ``FOREBAY_LIBRARY`` says, or the package's own."""
    named = os.environ.get("FOREBAY_LIBRARY")
    if named:
        return named
    import forebay

    return forebay.library_path()


def library() -> ctypes.CDLL:
    """The library, with the signatures of its functions. Loaded once; the same for the whole process."""
    global _loaded, _path
    with _lock:
        if _loaded is None:
            path = library_path()
            try:
                loaded = ctypes.CDLL(path)
            except OSError as error:
                raise ProcessError(f"forebay's library cannot be loaded: {error}") from error
            for name, (result, arguments) in _SIGNATURES.items():
                function = getattr(loaded, name, None)
                if function is None:
                    raise ProcessError(f"{path} has no {name}: it is not forebay's library, or one of another version")
                function.restype = result
                function.argtypes = arguments
            _loaded, _path = loaded, path
        return _loaded


def library_to_install() -> ctypes.CDLL:
    """The library, for ``install()``: ``InstallError`` where it cannot be loaded."""
    try:
        return library()
    except Error as error:
        raise InstallError(f"nothing was installed: {error}") from error


def find_driver() -> None:
    """``InstallError`` if there is no CUDA driver. Loads it without a call: after one, forked children could not use it."""
    named = os.environ.get("FOREBAY_CUDA_DRIVER") or "libcuda.so.1"
    try:
        ctypes.CDLL(named)
    except OSError as error:
        raise InstallError(
            f"nothing was installed: there is no NVIDIA driver here ({error}); install it, or give the container a GPU"
        ) from error


def address_of(name: str) -> int:
    """The address of a function of the library, for those that take functions as numbers."""
    address = ctypes.cast(getattr(library(), name), ctypes.c_void_p).value
    if address is None:
        raise ProcessError(f"{_path} has no {name}")
    return address


def last_error() -> str:
    """Why the last call of this thread that failed did."""
    return library().forebay_last_error().decode(errors="replace")


def check(status: int) -> None:
    """Raises what a call said that gives 0 where it succeeds."""
    if status != 0:
        raise ProcessError(last_error())


def _text(pointer: int | None) -> Any:
    if not pointer:
        raise ProcessError(last_error())
    try:
        return json.loads(ctypes.string_at(pointer))
    finally:
        library().forebay_string_free(pointer)


def statistics(device: int = 0) -> dict[str, Any]:
    """All figures of the pool of a GPU, and of the private pools of CUDA graphs there."""
    return _text(library().forebay_torch_statistics(device))


def has_pool(device: int) -> bool:
    """Whether there is a pool of a GPU yet."""
    return bool(library().forebay_face_has_pool(device))


def configure(**settings: Any) -> None:
    """Sets settings of the process's pools, above those of the environment.

    Values are written as in ``FOREBAY_CONF``: ``configure(max_bytes="8GiB", upkeep=True)``. For pools that are there
    already each changes too. Where one is refused, nothing is changed: ``forebay.InvalidError``.
    """
    if settings:
        text = ",".join(f"{key}:{_written(value)}" for key, value in settings.items())
        with _changing:
            if library().forebay_face_configure(text.encode()) != 0:
                raise InvalidError(last_error())


@contextlib.contextmanager
def configured(settings: dict[str, Any]) -> Iterator[None]:
    """As ``configure``; where what is done within fails, the settings are again what they were."""
    with _changing:
        configure(**settings)
        try:
            yield
        except BaseException:
            if settings:
                library().forebay_face_configure_undo()
            raise


def _written(value: Any) -> str:
    if value is True:
        return "on"
    if value is False:
        return "off"
    if value is None:
        return "none"
    text = str(value)
    if "," in text:
        raise InvalidError(f"a setting cannot have a comma in it: {text!r}")
    return text


def attribution(device: int = 0) -> dict[str, int]:
    """Who has how much of a GPU's memory: live bytes by tag, the most first.

    What PyTorch allocated is under ``torch``, CuPy's under ``cupy``, Numba's under ``numba``, RMM's under ``rmm``, and
    what a program tagged itself under that; the rest is ``untagged``. Together it is all that is live.
    """
    told = statistics(device)
    held: dict[str, int] = {}
    for pool in [told, *told["graphs"]]:
        for tag in pool["statistics"]["tags"]:
            held[tag["tag"]] = held.get(tag["tag"], 0) + tag["live_bytes"]
    return dict(sorted(held.items(), key=lambda item: (-item[1], item[0])))


def memory_info(device: int = 0) -> tuple[int, int]:
    """What is free and what there is of a GPU's memory, as its driver tells: what a pool holds is not free."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    check(library().forebay_face_memory_info(device, ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def empty_cache(device: int = 0) -> None:
    """Gives back to a GPU what is free of its pool. Waits for work that may still use it."""
    check(library().forebay_face_trim(device))


def allocate(size: int, device: int, stream: int, tag: bytes) -> int:
    """A block of at least ``size`` bytes in the order of ``stream``; 0 for none. ``OutOfMemoryError`` where there is none."""
    if size == 0:
        return 0
    block = library().forebay_face_alloc(size, device, stream, tag)
    if not block:
        raise OutOfMemoryError(last_error())
    return block


def free(block: int, device: int, stream: int) -> None:
    """Gives back a block in the order of ``stream``."""
    check(library().forebay_face_free(block, device, stream))


def record_use(block: int, device: int, stream: int) -> None:
    """Notes that a block is used on ``stream`` beside the one it will be freed on."""
    check(library().forebay_face_record_use(block, device, stream))
