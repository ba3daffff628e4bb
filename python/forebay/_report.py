"""Reports as pages for a browser, and inline in notebooks."""

from __future__ import annotations

import html
import os
from pathlib import Path

from ._forebay import Pool, report_page, write_page


class Report(os.PathLike):
    """A page that was written to ``path``. A notebook shows it inline."""

    def __init__(self, path: Path, page: str) -> None:
        self.path = path
        self._page = page

    def __fspath__(self) -> str:
        return str(self.path)

    __str__ = __fspath__

    def __repr__(self) -> str:
        return f"forebay.Report({str(self.path)!r})"

    def _repr_html_(self) -> str:
        # A frame of its own: the page runs its script, and reaches nothing of the notebook.
        return (f'<iframe sandbox="allow-scripts" style="width:100%;height:48em;border:0" title="forebay report" '
                f'srcdoc="{html.escape(self._page)}"></iframe>')


def report(source: str | os.PathLike[str] | Pool, path: str | os.PathLike[str] | None = None, *,
           capacity: int | str | None = None, quick: bool = True) -> Report:
    """Write a report of a recorded run, or of a pool as it is, as one HTML page.

    ``source`` is a file that ``forebay.replay()`` reads, a snapshot of a pool as JSON, or a ``Pool``: what it has
    recorded (``record=True``), else its history, else its live blocks. The page goes to ``path``, by default to the current
    folder under the name of the file: ``monday.report.html`` of ``monday.fbt``.
    ``capacity`` is the memory of the simulated device. Without ``quick`` it also finds the smallest device, other settings
    and larger batches, which takes dozens of replays.
    """
    page, default = report_page(source, capacity, quick)
    written = Path(default if path is None else path)
    write_page(written, page)
    return Report(written, page)
