"""PyTorch itself over the stand-in for CUDA: each script runs in a process of its own, with forebay installed.

FOREBAY_TEST_TORCH names a folder that holds one unpacked PyTorch built with CUDA, or several folders. The adapter is
compiled at the first use, which needs g++ and CUDA's headers: CUDA_HOME names them, where PyTorch's packages do not
bring them. A folder `deps` beside the one with PyTorch may hold what it requires, and transformers and Lightning.
"""

import functools
import os
import textwrap
from pathlib import Path

import faces
import pytest
import standin

HOW = (
    "there is no PyTorch: unpack a wheel that is built with CUDA (pip install --target FOLDER --no-deps torch) and set "
    "FOREBAY_TEST_TORCH=FOLDER"
)

#: Libraries of the stand-in and adapters, kept from one run to the next.
MADE = faces.ROOT / "target" / "standin"


def sites():
    """The folders with a PyTorch."""
    return [Path(site) for site in os.environ.get("FOREBAY_TEST_TORCH", "").split(os.pathsep) if site]


def version(site):
    """PyTorch's version, such as (2, 11)."""
    return tuple(int(part) for part in standin._version(site / "torch")[0].split(".")[:2])


def _environment(site, gpus, memory):
    made = standin.environment(site, MADE, gpus, memory)
    kept = ("PYTHONPATH", "LD_LIBRARY_PATH", "FOREBAY_CUDA_DRIVER", "FOREBAY_FAKE_GPUS", "FOREBAY_FAKE_MEMORY_MIB")
    found = {key: made[key] for key in kept}
    found["PYTHONPATH"] = os.pathsep.join([found["PYTHONPATH"], str(faces.HERE)])
    found["XDG_CACHE_HOME"] = os.environ.get("XDG_CACHE_HOME") or str(MADE / "adapters")
    return found


@functools.cache
def why_not(site):
    """Why forebay cannot be tested inside the PyTorch of a folder; nothing where it can."""
    if not (site / "torch" / "version.py").is_file():
        return f"FOREBAY_TEST_TORCH names {site}, which holds no package torch"
    headers = [*site.glob("nvidia/c*/include"), *(Path(os.environ.get(name, "/no")) for name in ("CUDA_HOME", "CUDA_PATH"))]
    if not any(place.is_dir() for place in [*headers, Path("/usr/local/cuda")]):
        return "compiling the adapter needs CUDA's headers: pip install nvidia-cuda-runtime, and set CUDA_HOME"
    return None


INSTALL = """
import forebay.torch, torch
forebay.torch.install()
MIB = 1 << 20
def empty(size, device="cuda", dtype=torch.uint8):
    return torch.empty(size, device=device, dtype=dtype)
def refused(size):
    try:
        empty(size)
    except torch.OutOfMemoryError:
        return True
    return False
"""


class Torch:
    """A PyTorch that scripts run with."""

    def __init__(self, site, folder):
        self.site, self.folder, self.version = site, folder, version(site)

    def __call__(self, script, gpus=1, memory=1024, environment=(), prelude=INSTALL, python=()):
        """Runs a script; what it prints."""
        found = _environment(self.site, gpus, memory)
        found["PYTHONPATH"] = os.pathsep.join([*map(str, python), found["PYTHONPATH"]])
        script = textwrap.dedent(prelude) + f"VERSION = {self.version}\n" + textwrap.dedent(script)
        return faces.run(script, self.folder, environment={**found, **dict(environment)})


@pytest.fixture(params=sites() or [None], ids=lambda site: site.name if site else "none")
def torch(request, tmp_path):
    """Each PyTorch there is."""
    if request.param is None:
        pytest.skip(HOW)
    reason = why_not(request.param)
    if reason:
        pytest.skip(reason)
    return Torch(request.param, tmp_path)
