"""Runs a script with forebay's library, the driver made of the simulated device, and fakes of other packages.

Each in a process of its own: an allocator is installed for good, and pools are the whole process's.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

#: The package without what is in its __init__, which needs the extension module: the faces need the library alone.
BARE = f"""
import sys, types
package = types.ModuleType("forebay")
package.__path__ = [{str(HERE.parent / "forebay")!r}]
sys.modules["forebay"] = package
"""


def _built(variable, name):
    """A library: what the environment names, or what cargo has built last."""
    named = os.environ.get(variable)
    if named:
        return Path(named)
    found = [path for path in ROOT.glob(f"target/*/deps/{name}") if path.exists()]
    if not found:
        pytest.skip(f"there is no {name}: cargo build -p forebay-capi -p forebay-cuda-fake-driver makes it")
    return max(found, key=lambda path: path.stat().st_mtime)


def library():
    return _built("FOREBAY_LIBRARY", "libforebay_capi.so")


def driver():
    return _built("FOREBAY_CUDA_DRIVER", "libforebay_cuda_fake_driver.so")


def fakes():
    """The folder with the fakes of other packages."""
    return HERE / "fakes"


def run(script, folder, python=(), environment=()):
    """Runs a script; what it prints. Fails with what it said where it fails."""
    path = folder / "script.py"
    path.write_text(BARE + textwrap.dedent(script))
    env = {key: value for key, value in os.environ.items() if not key.startswith(("FOREBAY", "PYTORCH"))}
    env["FOREBAY_LIBRARY"] = str(library())
    env["FOREBAY_CUDA_DRIVER"] = str(driver())
    env["PYTHONPATH"] = os.pathsep.join([*map(str, python), str(HERE)])
    env.update(dict(environment))
    # Fakes are alone: what is installed may bring hooks of its own for the same names.
    alone = ["-S"] if python else []
    command = [sys.executable, *alone, str(path)]
    ran = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, f"status {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
