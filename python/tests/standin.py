"""Runs PyTorch's CUDA wheels where there is no GPU and none of NVIDIA's libraries.

    python python/tests/standin.py SITE [--gpus N] [--memory MIB] -- python program.py

SITE is a folder that holds the package `torch`. Tensors on "cuda" can be created, freed, filled by memset and
copied; streams, events, captures, statistics and snapshots work; kernels do nothing. Three parts make that:

* the driver made of the simulated device (`cargo build -p forebay-cuda-fake-driver`), found by libcuda.so.1;
* a small CUDA runtime over it (standin/cudart.c), and less of a management library (standin/nvml.c);
* stubs that return zero for every other function that PyTorch's libraries need of NVIDIA's, generated here.

Needs gcc and binutils, and nothing of Python's beyond the standard library.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: Libraries that are more than stubs, by how their names begin.
SOURCES = {"libcudart.so": HERE / "standin" / "cudart.c", "libnvidia-ml.so": HERE / "standin" / "nvml.c"}

#: The driver and the management library, whose functions PyTorch finds by name while it runs.
DRIVER, MANAGEMENT = "libcuda.so.1", "libnvidia-ml.so.1"

#: Libraries that the system or PyTorch's wheel has.
PRESENT = re.compile(r"lib(c|m|dl|rt|pthread|util|stdc\+\+|gcc_s|gomp|z|python[\d.]+)\.so|ld-linux")

#: Stubs that return something other than zero. PyTorch compares cuDNN's version with the one it was built with.
RESULTS = {"cudnnGetVersion": "99900", "ncclGetVersion": "1"}


def _output(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


def driver():
    """The driver made of the simulated device: what the environment names, or what cargo has built last."""
    named = os.environ.get("FOREBAY_CUDA_DRIVER")
    if named:
        return Path(named)
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = list(target.glob("*/libforebay_cuda_fake_driver.so"))
    if not found:
        raise SystemExit("no fake driver: run cargo build -p forebay-cuda-fake-driver")
    return max(found, key=lambda path: path.stat().st_mtime)


def _defined(library):
    """The symbols a library exports."""
    lines = _output("nm", "-D", "--defined-only", library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


def _needed(library):
    """The libraries a library names."""
    return re.findall(r"\(NEEDED\).*\[(.*)\]", _output("readelf", "-dW", library))


def _versions(library):
    """Which library each version of a symbol is asked of."""
    found, file = {}, None
    for line in _output("readelf", "-VW", library).splitlines():
        named = re.search(r"File: (\S+)", line)
        file = named.group(1) if named else file
        version = re.search(r"Name: (\S+)\s+Flags", line)
        if version and file:
            found[version.group(1)] = file
    return found


def _missing(torch, fake):
    """The libraries that PyTorch's need and that are not there, each with its symbols and their versions."""
    libraries = sorted(path for path in (torch / "lib").glob("*.so*") if path.is_file())
    here = {path.name for path in libraries}
    defined = set().union(_defined(fake), *map(_defined, libraries))
    missing = {}
    for library in libraries:
        needed = [name for name in _needed(library) if name not in here and not PRESENT.match(name)]
        for name in needed:
            missing.setdefault(name, {})
        versions = _versions(library)
        for line in _output("nm", "-D", "--undefined-only", library).splitlines():
            kind, symbol = line.split()[-2:]
            name, _, version = symbol.replace("@@", "@").partition("@")
            owner = versions.get(version) if version else next(iter(needed), None)
            owner = DRIVER if not version and DRIVER in needed and name.startswith("cu") else owner
            wanted = kind == "U" and name not in defined and not re.match(r"_?Py|_Z", name)
            if owner and wanted and not PRESENT.match(owner) and owner not in here:
                missing.setdefault(owner, {})[name] = version
    for name in re.findall(rb"\0((?:cu|nvml)[A-Z]\w+)(?=\0)", (torch / "lib" / "libc10_cuda.so").read_bytes()):
        name = name.decode()
        if name not in defined:
            missing.setdefault(DRIVER if name.startswith("cu") else MANAGEMENT, {})[name] = ""
    return missing


def _stub(name):
    """A function that does nothing, in C. It gives way to one of the same name in SOURCES."""
    # Functions of the driver and of the management library say that they are not supported.
    result = "3" if name.startswith("nvml") else "801" if re.match("cu[A-Z]", name) else "0"
    result = RESULTS.get(name, '(long)"stub"' if name.endswith("String") else result)
    return f"__attribute__((weak)) long {name}(void) {{ return {result}; }}\n"


def _compile(folder, soname, symbols, sources, flags):
    """Makes the library `soname` of stubs, with the versions that its symbols are asked by."""
    source = folder / f"{soname}.c"
    source.write_text("".join(_stub(name) for name in sorted(symbols)) or "/* Nothing is needed of it. */\n")
    versions = defaultdict(list)
    for name, version in symbols.items():
        if version:
            versions[version].append(name)
    script = folder / f"{soname}.map"
    script.write_text("".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in versions.items()))
    command = ["gcc", "-std=gnu17", "-O1", "-w", "-fPIC", "-shared", f"-Wl,-soname,{soname}", *flags]
    if versions:
        command.append(f"-Wl,--version-script={script}")
    command += [str(source), *map(str, sources), "-ldl", "-lpthread", "-o", str(folder / soname)]
    subprocess.run(command, check=True)


def _version(torch):
    """PyTorch's version, and the version of CUDA it was built with, such as (2.11.0, 13, 0)."""
    text = (torch / "version.py").read_text()
    cuda = re.search(r"^cuda[^=\n]*= '(\d+)\.(\d+)'", text, re.MULTILINE)
    if not cuda:
        raise SystemExit(f"{torch} was built without CUDA")
    return re.search(r"__version__ = '([^']+)'", text).group(1), int(cuda.group(1)), int(cuda.group(2))


def build(site, folder):
    """The folder with the libraries for the `torch` in `site`, made on the first call."""
    torch, fake = Path(site).resolve() / "torch", driver().resolve()
    version, major, minor = _version(torch)
    parts = [path.read_bytes() for path in (Path(__file__), *SOURCES.values())]
    parts.append(str((torch, fake, fake.stat().st_mtime)).encode())
    made = Path(folder).resolve() / f"{version}-{hashlib.sha256(b''.join(parts)).hexdigest()[:12]}"
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=made.parent) as temporary:
        stage = Path(temporary) / "libraries"
        stage.mkdir()
        flags = ["-Wl,--no-as-needed", f"-DCUDA_MAJOR={major}", f"-DRUNTIME_VERSION={major * 1000 + minor * 10}"]
        for soname, symbols in _missing(torch, fake).items():
            sources = [path for name, path in SOURCES.items() if soname.startswith(name)]
            # Names the driver lacks are looked for, and found, in a library that needs the driver itself.
            sources += [fake] if soname == DRIVER else []
            _compile(stage, soname, symbols, sources, flags)
        try:
            stage.rename(made)
        except OSError:  # Another process was faster.
            if not made.exists():
                raise
    return made


def environment(site, folder, gpus=1, memory=16384, deps=None):
    """The environment in which a program imports the `torch` in `site` and finds so many simulated GPUs, each
    with so many MiB. Libraries are made in `folder`, once for each version. `deps` is a folder with PyTorch's
    own requirements; a folder of that name beside `site` is used where none is named.
    """
    made = build(site, folder)
    deps = Path(deps) if deps else Path(site).resolve().parent / "deps"
    found = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
    joined = [str(Path(site).resolve()), *([str(deps)] if deps.is_dir() else []), found.get("PYTHONPATH")]
    found["PYTHONPATH"] = os.pathsep.join(filter(None, joined))
    found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(made), found.get("LD_LIBRARY_PATH")]))
    found["FOREBAY_CUDA_DRIVER"] = str(driver().resolve())
    found["FOREBAY_FAKE_GPUS"] = str(gpus)
    found["FOREBAY_FAKE_MEMORY_MIB"] = str(memory)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.epilog = "After -- follows the program that is run."
    parser.add_argument("site", help="a folder that holds the package torch")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--memory", type=int, default=16384, metavar="MIB", help="memory of each GPU")
    parser.add_argument("--deps", help="a folder with what PyTorch requires; else `deps` beside SITE")
    parser.add_argument("--folder", default=ROOT / "target" / "standin", help="where the libraries are made")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, command = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    made = environment(given.site, given.folder, given.gpus, given.memory, given.deps)
    command = command or ["env"]
    os.execve(shutil.which(command[0]) or command[0], command, made)


if __name__ == "__main__":
    sys.exit(main())
