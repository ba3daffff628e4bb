"""The adapter: a small library that makes forebay PyTorch's allocator, one for each interface that PyTorch has had.

A wheel of forebay brings those of known versions, named by a hash of the headers that define the interface. With any other
PyTorch the adapter is compiled once from the sources beside this file, which takes some seconds and a C++ compiler.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .errors import InstallError

#: The versions of PyTorch whose interface is known, the last included.
OLDEST, NEWEST = (2, 8), (2, 15)

SOURCES = Path(__file__).resolve().parent / "torch_adapter"

#: The headers that define the interface: what has the same has the same table of functions and the same structures.
_HEADERS = (
    "ATen/core/CachingHostAllocator.h",
    "c10/cuda/CUDACachingAllocator.h",
    "c10/cuda/CUDAStream.h",
    "c10/core/CachingDeviceAllocator.h",
    "c10/core/Allocator.h",
    "c10/core/StorageImpl.h",
    "c10/core/impl/GPUTrace.h",
    "c10/util/UniqueVoidPtr.h",
    "c10/util/ApproximateClock.h",
)


def version_of(text: str) -> tuple[int, int]:
    """The major and minor version; (0, 0) for what is none."""
    parts = text.split("+")[0].split(".")
    try:
        return int(parts[0]), int(parts[1])
    except (IndexError, ValueError):
        return 0, 0


def check_version(text: str, untested: bool) -> None:
    """Refuses a PyTorch that forebay does not know."""
    if sys.platform != "linux":
        raise InstallError(f"forebay works inside PyTorch on Linux alone, and this is {sys.platform}")
    version = version_of(text)
    known = " to ".join(".".join(map(str, one)) for one in (OLDEST, NEWEST))
    if version < OLDEST:
        raise InstallError(f"forebay works inside PyTorch {known}, and this is {text}, which is too old")
    if version > NEWEST and not untested:
        raise InstallError(
            f"forebay knows the allocators of PyTorch {known}, and this is {text}; "
            "install(untested=True) compiles an adapter and installs all the same"
        )


def interface_of(include: Path) -> str:
    """A name for the interface that the headers of a PyTorch define."""
    digest = hashlib.sha256()
    for name in _HEADERS:
        header = include / name
        digest.update(name.encode() + b"\0")
        digest.update(header.read_bytes() if header.is_file() else b"")
    return digest.hexdigest()[:16]


def load(torch: Any) -> ctypes.CDLL:
    """The adapter for this PyTorch: that of the wheel, or one that is compiled."""
    root = Path(torch.__file__).resolve().parent
    interface = interface_of(root / "include")
    modern = bool(getattr(torch._C, "_GLIBCXX_USE_CXX11_ABI", True))
    path = SOURCES / f"adapter_{interface}.so"
    if not path.is_file() or not modern:
        path = _compiled(root, version_of(torch.__version__), interface, modern)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise InstallError(f"nothing was installed: the adapter for PyTorch cannot be loaded: {error}") from error


def install(adapter: ctypes.CDLL, library: str, pinned: bool) -> None:
    """Makes the adapter PyTorch's allocator, of pinned memory too where asked. Where that fails nothing is changed."""
    function = adapter.forebay_adapter_install
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_char_p, ctypes.c_int]
    reason = function(os.fsencode(library), int(pinned))
    if reason:
        raise InstallError(f"nothing was installed: {reason.decode(errors='replace')}")


def sharing(adapter: ctypes.CDLL, torch: Any) -> Callable[..., Any]:
    """What shares a storage with other processes: it moves it first to memory that can be shared."""
    function = adapter.forebay_adapter_make_shareable
    function.restype, function.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    share = getattr(torch.UntypedStorage, "_share_cuda_", None)
    if share is None:
        raise InstallError("nothing was installed: this PyTorch shares no storages as the known versions do")

    def moved_and_shared(self: Any, *arguments: Any, **named: Any) -> Any:
        reason = function(self._cdata)
        if reason:
            raise RuntimeError(reason.decode(errors="replace"))
        return share(self, *arguments, **named)

    return moved_and_shared


def _compiled(root: Path, version: tuple[int, int], interface: str, modern: bool) -> Path:
    sources = sorted([*SOURCES.glob("*.cpp"), *SOURCES.rglob("*.h")])
    digest = hashlib.sha256(b"".join(one.read_bytes() for one in sources)).hexdigest()[:8]
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (base / "forebay", Path(tempfile.gettempdir()) / f"forebay-{os.getuid()}"):
        path = folder / f"adapter_{interface}_{digest}_{int(modern)}.so"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # What another user has put there is not loaded.
            if folder.stat().st_uid != os.getuid():
                continue
            if path.is_file() and path.stat().st_uid == os.getuid():
                return path
            with tempfile.TemporaryDirectory(dir=folder) as work:
                made = Path(work) / "adapter.so"
                build(root / "include", root / "lib", _cuda_headers(root), version, made, modern, _standard_library())
                os.replace(made, path)
            return path
        except OSError:
            continue
    raise InstallError("nothing was installed: there is no folder to put the adapter for PyTorch into")


def _standard_library() -> list[str]:
    """The C++ library that PyTorch has loaded: the adapter must share it, and some compilers bring a copy of their own."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sorted({line.split(maxsplit=5)[-1] for line in lines if "/libstdc++.so" in line})[:1]
    return []


def _cuda_headers(root: Path) -> Path:
    """Where CUDA's headers are: those of PyTorch's own packages, or those of an installed CUDA."""
    packages = {root.parent, Path(sysconfig.get_paths()["purelib"])}
    places = [one / "include" for package in packages for one in sorted(package.glob("nvidia/c*"))]
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    places += [Path(one) / "include" for one in [*named, "/usr/local/cuda"] if one]
    for place in places:
        if (place / "cuda_runtime_api.h").is_file():
            return place
    raise InstallError(
        "nothing was installed: this wheel of forebay has no adapter for this PyTorch, and compiling one needs CUDA's "
        "headers: pip install nvidia-cuda-runtime, or set CUDA_HOME"
    )


def build(
    include: Path,
    lib: Path,
    cuda: Path,
    version: tuple[int, int],
    path: Path,
    modern: bool = True,
    libraries: Sequence[str] = (),
) -> None:
    """Compiles the adapter for a PyTorch whose headers and libraries are there."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++") or shutil.which("c++")
    if not compiler:
        raise InstallError(
            "nothing was installed: this wheel of forebay has no adapter for this PyTorch, and there is no C++ compiler to "
            "make one: install g++"
        )
    command = [
        *compiler.split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden",
        f"-DFOREBAY_TORCH={100 * version[0] + version[1]}", f"-D_GLIBCXX_USE_CXX11_ABI={int(modern)}",
        f"-I{SOURCES / 'include'}", "-isystem", str(cuda), "-isystem", str(include),
        str(SOURCES / "adapter.cpp"), *libraries, f"-L{lib}", "-lc10", "-lc10_cuda", "-Wl,--allow-shlib-undefined", "-s",
        "-o", str(path),
    ]  # fmt: skip
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise InstallError(f"nothing was installed: the C++ compiler {compiler} does not start: {error}") from error
    if ran.returncode != 0:
        wrong = [line for line in ran.stderr.splitlines() if "error" in line]
        raise InstallError(
            "nothing was installed: the adapter for this PyTorch does not compile: " + (wrong or [ran.stderr])[0]
        )
