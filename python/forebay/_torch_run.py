"""``python -m forebay.torch``: runs a program with forebay as PyTorch's allocator, in it and in every process it starts.

Python starts anew with FOREBAY_TORCH set, and the program's own words: what the program sees of itself, such as ``__main__``
and ``sys.argv``, is as without forebay, and each child process gets forebay in the same way.
"""

from __future__ import annotations

import os
import site
import sys
from pathlib import Path

VARIABLE, HOOK = "FOREBAY_TORCH", "forebay-torch.pth"

USAGE = f"""\
usage: python -m forebay.torch PROGRAM.py [ARGUMENT...]
       python -m forebay.torch -m MODULE [ARGUMENT...]

Runs a program with forebay as PyTorch's allocator of GPU memory, in it and in every process it starts. The same as
{VARIABLE}=1 python PROGRAM.py; with {VARIABLE}=fallback it runs without forebay where that cannot be installed.
Settings come from FOREBAY_CONF and its kin."""


def main() -> int:
    """Does not return where the program starts; else the exit status."""
    given = sys.argv[1:]
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if given else sys.stderr)
        return 0 if given else 2
    if not _has_hook():
        print(
            f"forebay: nothing was started: {HOOK} is not in the site-packages of {sys.executable}, so the program would "
            "run without forebay. pip install puts it there; a copy of forebay on PYTHONPATH or in pip's --target lacks it. "
            "A program can call forebay.torch.install() instead",
            file=sys.stderr,
        )
        return 1
    if os.environ.get(VARIABLE, "0") in ("", "0"):
        os.environ[VARIABLE] = "1"
    command = [sys.executable, *_options(sys.orig_argv, given), *given]
    os.execv(sys.executable, command)


def _has_hook() -> bool:
    """Whether a Python process that starts looks after the variable."""
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]
    return not sys.flags.no_site and any((Path(folder) / HOOK).is_file() for folder in folders)


def _options(command: list[str], given: list[str]) -> list[str]:
    """Python's own options out of a command that ends in ``-m forebay.torch`` and what is given to it."""
    options = command[1 : len(command) - len(given)]
    # Two words, -m forebay.torch; one, -mforebay.torch; or behind other letters, -um forebay.torch.
    letters = (options.pop().removesuffix("forebay.torch") or options.pop()).removesuffix("m")
    return options if letters == "-" else [*options, letters]
