"""forebay's Python package: with its extension module where that is beside it, and without where only a library was built."""

import importlib.util
import os
import sys
import types
from pathlib import Path


def use(library):
    """Makes ``import forebay.torch`` and its kin work. The folder with the package is on PYTHONPATH, beside this file, or
    where the repository has it. Where it has its extension module it is used as people have it installed; else its
    modules for other packages work with ``library``."""
    here = Path(__file__).resolve().parent
    candidates = [Path(entry) for entry in sys.path if entry] + [here / "python", here.parent.parent / "python"]
    for folder in candidates:
        package = folder / "forebay"
        if (package / "_process.py").exists():
            break
    else:
        sys.exit("forebay's Python package is not found: put its folder on PYTHONPATH")
    if (package / "_forebay.abi3.so").exists():
        sys.path.insert(0, str(package.parent))
        return
    os.environ["FOREBAY_LIBRARY"] = str(Path(library).resolve())
    # What __init__ imports needs the extension module; the modules for other packages do not.
    module = types.ModuleType("forebay")
    module.__path__ = [str(package)]
    sys.modules["forebay"] = module


def need(name, why):
    """Ends the script loudly where a package is missing: nothing is left out in silence."""
    if importlib.util.find_spec(name) is None:
        print(f"there is no Python package {name}, which is needed {why}; nothing was checked", file=sys.stderr)
        sys.exit(3)
