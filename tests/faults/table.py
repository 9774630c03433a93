"""Runs named checks with a progress bar and prints one table of what they found."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

# A check gives what it found, in words, and whether that is right.
Check = Callable[[], tuple[str, bool]]


def run(title: str, checks: Iterable[tuple[str, Check]]) -> int:
    """The number of checks that were wrong or raised."""
    console = Console(width=110)
    table = Table("check", "found", "", "seconds", title=title)
    wrong = 0
    checks = list(checks)
    with Progress(console=console) as progress:
        task = progress.add_task("", total=len(checks))
        for name, check in checks:
            progress.update(task, description=name)
            start = time.perf_counter()
            try:
                found, right = check()
            except Exception as error:  # the table shows it, and the rest goes on
                found, right = f"{type(error).__name__}: {str(error).splitlines()[0][:60]}", False
            wrong += not right
            spent = time.perf_counter() - start
            table.add_row(name, found, "ok" if right else "[red]WRONG", f"{spent:.1f}")
            progress.advance(task)
    console.print(table)
    return wrong
