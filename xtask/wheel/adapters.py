"""Prebuilt adapters for the wheel of forebay: one for each interface that the allocator of a known PyTorch has.

    python adapters.py build CACHE [VERSION...]     fetch headers, compile CACHE/adapter_INTERFACE.so
        --parts                                     fail where a server sends wheels whole alone, 0.9 GB each
    python adapters.py pack CACHE WHEEL FOLDER      write the wheel with the adapters in it to FOLDER

A wheel of PyTorch has 0.5 to 0.9 GB, of which an adapter needs some 4 MB: c10's headers and libraries, and one header of
ATen's. They are read out of the wheel where it lies, by HTTP range requests, 3 MB in all. The wheel is downloaded whole
only if its server refuses them. pip finds the address, so that its settings apply. Needs the standard library, pip and
g++.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import http.client
import importlib
import inspect
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent.parent / "python" / "forebay"

#: Every release of the known minor versions. Those that have one interface share an adapter.
VERSIONS = (
    "2.8.0", "2.9.0", "2.9.1", "2.10.0", "2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0",
)  # fmt: skip

#: The wheels that are read: for this Python there is one of each version above. Their headers do not depend on it.
PYTHON = "3.12"

#: CUDA's headers. One version serves all: the adapter of PyTorch 2.9, which is built for CUDA 12.8 and 13.0, comes out
#: byte for byte the same with the headers of either.
CUDA = "nvidia-cuda-runtime==13.0.96"

#: What is kept of a wheel of PyTorch, and of one of CUDA's.
OF_TORCH = re.compile(
    r"torch/(include/((c10|torch/headeronly)/.*|ATen/core/CachingHostAllocator\.h)|lib/libc10(_cuda)?\.so)"
)
OF_CUDA = re.compile(r"nvidia/[^/]+/include/[^/]+\.(h|hpp)")

#: The newest symbols of libstdc++ that a manylinux wheel may need, from the version of glibc in its tag on.
LIBSTDCXX = {
    (2, 5): (3, 4, 8), (2, 17): (3, 4, 19), (2, 27): (3, 4, 24), (2, 31): (3, 4, 28), (2, 34): (3, 4, 29),
    (2, 35): (3, 4, 30), (2, 39): (3, 4, 33),
}  # fmt: skip

#: Read ahead: the headers lie side by side in the wheel, so that a few requests bring all of them.
AHEAD = 1 << 20

#: How long a server may be silent, and how often it is asked again.
PATIENCE, TRIES = 60, 3


def say(line: str) -> None:
    """Prints a line whole: threads print at the same time."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Unavailable(Exception):
    """Something that the adapters need and that could not be had."""


class Remote(io.RawIOBase):
    """A file on a server, read by range requests."""

    def __init__(self, address: str):
        self._address, self._position = address, 0
        self._size = self._ask(0, 1)[1]

    def _ask(self, start: int, end: int) -> tuple[bytes, int]:
        """The bytes from start to before end, and the size of the whole file."""
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        for attempt in range(1, TRIES + 1):
            try:
                request = urllib.request.Request(self._address, headers=headers)
                with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                    told = re.fullmatch(rf"bytes {start}-\d+/(\d+)", answer.headers.get("Content-Range", ""))
                    if answer.status != HTTPStatus.PARTIAL_CONTENT or not told:
                        break
                    return answer.read(), int(told[1])
            except urllib.error.HTTPError:
                raise  # What the server said it would say again.
            except (OSError, http.client.HTTPException) as error:
                if attempt == TRIES:
                    raise OSError(f"{self._address}: {error}") from error
                time.sleep(attempt)
        raise OSError("the server answers no range requests")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer) -> int:
        end = min(self._position + len(buffer), self._size)
        if self._position >= end:
            return 0
        read, _ = self._ask(self._position, end)
        buffer[: len(read)] = read
        self._position += len(read)
        return len(read)


def pip(*words: str) -> str:
    """What pip says, about wheels for one version of Python whichever this is."""
    options = ["--no-deps", "--only-binary=:all:", "--python-version", PYTHON, "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", *words, *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        wrong = [line for line in ran.stderr.splitlines() if line.startswith("ERROR")]
        raise Unavailable((wrong or ran.stderr.splitlines() or ["pip failed"])[-1])
    return ran.stdout


def address_of(requirement: str) -> str:
    """Where pip would download a package from."""
    with tempfile.TemporaryDirectory() as nothing:
        report = pip("install", "--dry-run", "--ignore-installed", "--report", "-", "--target", nothing, requirement)
    return json.loads(report)["install"][0]["download_info"]["url"]


@contextmanager
def opened(requirement: str, whole: bool = True) -> Iterator[zipfile.ZipFile]:
    """The wheel of a package: on its server where that can be, else downloaded, unless `whole` forbids it."""
    address = address_of(requirement)
    local = urllib.parse.urlsplit(address)
    try:
        if local.scheme == "file":
            file = open(urllib.request.url2pathname(local.path), "rb")
        else:
            file = io.BufferedReader(Remote(address), AHEAD)
    except OSError as error:
        if not whole:
            raise
        say(f"{requirement}: downloading the whole wheel: {error}")
        with tempfile.TemporaryDirectory() as folder:
            pip("download", "--dest", folder, requirement)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                yield wheel
        return
    with file, zipfile.ZipFile(file) as wheel:
        yield wheel


def fetch(requirement: str, wanted: re.Pattern[str], cache: Path, whole: bool = True) -> Path:
    """The folder in the cache with these files of a package. It is there whole, or not at all."""
    folder = cache / requirement.replace("==", "-")
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=cache) as work, opened(requirement, whole) as wheel:
            entries = [entry for entry in wheel.infolist() if wanted.fullmatch(entry.filename)]
            if not entries:
                raise Unavailable("its wheel has none of the files that are needed")
            for entry in sorted(entries, key=lambda entry: entry.header_offset):
                wheel.extract(entry, Path(work) / "files")
            os.replace(Path(work) / "files", folder)
    except (OSError, Unavailable, zipfile.BadZipFile) as error:
        raise Unavailable(f"{requirement} could not be had: {error}") from error
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    say(f"{requirement}: {len(entries)} files, {size / 1e6:.1f} MB")
    return folder


def adapter_module() -> types.ModuleType:
    """forebay's own module that names and compiles adapters, without the extension that is not built yet."""
    package = types.ModuleType("forebay")
    package.__path__ = [str(PACKAGE)]
    sys.modules["forebay"] = package
    return importlib.import_module("forebay._torch_adapter")


def sources_digest(module: types.ModuleType) -> str:
    """A name for what an adapter is compiled from, the command included."""
    digest = hashlib.sha256(inspect.getsource(module.build).encode())
    for path in sorted(path for path in module.SOURCES.rglob("*") if path.suffix in {".cpp", ".h"}):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def build(cache: Path, versions: tuple[str, ...], whole: bool = True) -> dict[str, list[str]]:
    """Compiles an adapter for each interface of these versions. The versions by interface."""
    module = adapter_module()
    folder = cache / sources_digest(module)
    # pip spends its time waiting, and so do requests.
    with ThreadPoolExecutor(4) as workers:
        cuda = workers.submit(fetch, CUDA, OF_CUDA, cache, whole)
        folders = list(workers.map(lambda version: fetch(f"torch=={version}", OF_TORCH, cache, whole), versions))
        torches = [folder / "torch" for folder in folders]
        (headers,) = cuda.result().glob("nvidia/*/include")
    interfaces: dict[str, list[str]] = {}
    first: dict[str, Path] = {}
    for version, torch in zip(versions, torches, strict=True):
        interface = module.interface_of(torch / "include")
        interfaces.setdefault(interface, []).append(version)
        first.setdefault(interface, torch)

    def compile_one(interface: str) -> None:
        path, torch, of = folder / f"adapter_{interface}.so", first[interface], interfaces[interface]
        if not path.is_file():
            folder.mkdir(exist_ok=True)
            made = path.with_suffix(".part")
            try:
                module.build(torch / "include", torch / "lib", headers, module.version_of(of[0]), made)
            except module.InstallError as error:
                reason = str(error).removeprefix("nothing was installed: ")
                raise Unavailable(f"no adapter for PyTorch {of[0]}: {reason}") from error
            os.replace(made, path)
        say(f"adapter_{interface}.so: PyTorch {', '.join(of)}; {path.stat().st_size / 1e3:.0f} kB")

    with ThreadPoolExecutor(os.cpu_count()) as workers:
        list(workers.map(compile_one, interfaces))
    for path in cache.glob("adapter_*.so"):
        path.unlink()
    for interface in interfaces:
        shutil.copy2(folder / f"adapter_{interface}.so", cache)
    return interfaces


def needed(library: Path) -> dict[str, tuple[int, ...]]:
    """The newest versions of glibc's and libstdc++'s symbols that a library asks for."""
    said = subprocess.run(["objdump", "-T", str(library)], capture_output=True, text=True, check=True).stdout
    found: dict[str, tuple[int, ...]] = {}
    for name, version in re.findall(r"\b(GLIBC|GLIBCXX)_([\d.]+)", said):
        found[name] = max(found.get(name, ()), tuple(map(int, version.split("."))))
    return found


def check_tag(wheel: Path, adapters: list[Path]) -> None:
    """Refuses a wheel whose tag promises to run on an older system than its adapters do."""
    tag = re.search(r"manylinux_(\d+)_(\d+)_", wheel.name)
    if not tag:
        raise Unavailable(f"{wheel.name} is no manylinux wheel: maturin found that it needs more than such a wheel may")
    glibc = int(tag[1]), int(tag[2])
    promised = {"GLIBC": glibc, "GLIBCXX": max(cxx for system, cxx in LIBSTDCXX.items() if system <= glibc)}
    for adapter in adapters:
        for name, version in needed(adapter).items():
            if version > promised[name]:
                shown = f"{name}_{'.'.join(map(str, version))}"
                raise Unavailable(f"{adapter.name} needs {shown}, and {wheel.name} promises to run with an older one")


def pack(cache: Path, wheel: Path, folder: Path) -> Path:
    """Writes the wheel with the adapters in it."""
    adapters = sorted(cache.glob("adapter_*.so"))
    if not adapters:
        raise Unavailable(f"{cache} has no adapters: build them first")
    check_tag(wheel, adapters)
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / wheel.name
    part = made.with_suffix(".part")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as new:
        (record,) = [entry for entry in old.infolist() if entry.filename.endswith(".dist-info/RECORD")]
        lines = old.read(record).decode().splitlines()
        for entry in old.infolist():
            if entry is not record:
                new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
        for adapter in adapters:
            content, name = adapter.read_bytes(), f"forebay/torch_adapter/{adapter.name}"
            if name in old.namelist():
                raise Unavailable(f"{wheel.name} has {name} already: it was built with adapters in the source tree")
            entry = zipfile.ZipInfo(name, record.date_time)
            entry.external_attr = 0o100755 << 16
            new.writestr(entry, content, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}")
        # The record is the last file of a wheel by convention.
        new.writestr(record, "".join(f"{line}\n" for line in lines), zipfile.ZIP_DEFLATED)
    os.replace(part, made)
    say(f"{made}: {made.stat().st_size / 1e6:.1f} MB, {len(adapters)} adapters")
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="fetch headers and compile the adapters")
    building.add_argument("cache", type=Path)
    building.add_argument("versions", nargs="*", help="of PyTorch; else all that are known")
    building.add_argument("--parts", action="store_true", help="fail where a server sends wheels whole alone")
    packing = commands.add_parser("pack", help="put the adapters into a wheel")
    for name in ("cache", "wheel", "folder"):
        packing.add_argument(name, type=Path)
    given = parser.parse_args()
    try:
        if given.command == "build":
            build(given.cache, tuple(given.versions) or VERSIONS, whole=not given.parts)
        else:
            pack(given.cache, given.wheel, given.folder)
    except (Unavailable, OSError, subprocess.CalledProcessError) as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
