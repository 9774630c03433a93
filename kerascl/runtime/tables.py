"""Tables that can be read on a narrow terminal, and through a pipe by people and by programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table

#: Columns where nothing limits them: a table is as wide as what it holds.
UNLIMITED = 10_000


def console() -> Console:
    """Standard output: of the terminal's width or, where it goes elsewhere, as wide as its lines.

    `COLUMNS` in the environment says another width.
    """
    limited = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    return Console(width=None if limited else UNLIMITED)


def table(title: str | None, texts: Iterable[str], numbers: Iterable[str] = ()) -> Table:
    """A table whose numbers stay whole; what a terminal has no room for is folded in the texts.

    Args:
        title: above the table.
        texts: headings of the columns on the left.
        numbers: headings of the columns on the right of them, which are aligned to the right.
    """
    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in texts:
        made.add_column(name, overflow="fold")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made
