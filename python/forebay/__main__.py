"""``python -m forebay``: the ``forebay`` command."""

from __future__ import annotations

import signal
import sys

from ._forebay import command


def main() -> int:
    """Run the command with this program's arguments; the exit status."""
    # Python only notes an interrupt, and looks after it between its own steps: this is one long step.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return command(["forebay", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
