"""Whether the device computes every kind of kernel rightly, at many lengths and dtypes.

A few of each kind are checked by themselves when a driver is first used; this takes some minutes.
What is wrong is tried again with optimisation off, and the statuses are kept: kerascl then builds
such kernels without, or refuses them. Ctrl-C shows what there is, and keeps nothing. The exit
status is 1 if a kind stays wrong, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kerascl.checks import first, kinds
from kerascl.checks.guard import FINE, MENDED, OK, UNKNOWN, name_of
from kerascl.checks.trial import Result
from kerascl.runtime import device as devices
from kerascl.runtime.tables import table as new_table

_WORDS = {
    OK: "[green]ok[/]",
    MENDED: "[yellow]mended with optimisation off[/]",
    UNKNOWN: "not checked",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--few", action="store_true", help="only what a first use checks")
    parser.add_argument("--json", metavar="FILE", help="write the results there, too")


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    device = devices.default()
    info, which = device.info, "few" if options.few else "many"
    if device.index is None:
        console.print(f"{info.name} is not listed.", style="red", markup=False)
        return 1
    console.print(f"Checking {name_of(info)}", highlight=False, markup=False)
    results: list[Result] = []
    count = sum(kinds.possible(case, info) for case, _ in kinds.CASES[which]())
    columns = (
        TextColumn("{task.description:<11}"), BarColumn(30), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task("", total=count)
        piped = None if console.is_terminal else _Kinds(console)

        def told(result: Result) -> None:
            results.append(result)
            progress.update(task, advance=1, description=result.kind)
            if piped:
                piped.told(result)

        try:
            statuses, interrupted = first.judge(device.index, which, told=told), False
        except KeyboardInterrupt:
            statuses, interrupted = first.by_kind(results), True
    if interrupted:
        console.print(f"Interrupted after {len(results)} of {count} cases: nothing is kept.")
    elif not statuses:
        console.print("The check could not begin.", style="red")
        return 1
    else:
        first.keep(info, statuses)
    _print(results, statuses, console)
    if options.json:
        report = {
            "device": info.name,
            "platform": info.platform,
            "driver": info.driver_version,
            "statuses": statuses,
            "cases": [vars(result) for result in results],
        }
        Path(options.json).write_text(json.dumps(report, indent=1))
    if interrupted:
        return 130
    return 0 if all(status in FINE for status in statuses.values()) else 1


class _Kinds:
    """A line for each kind that begins, where no bar is shown."""

    def __init__(self, console: Console):
        self._console, self._kind, self._begun = console, "", time.monotonic()

    def told(self, result: Result) -> None:
        if result.kind != self._kind:
            self._kind = result.kind
            line = f"{time.monotonic() - self._begun:4.0f} s  {result.kind}"
            self._console.print(line, highlight=False)


def _print(results: list[Result], statuses: dict[str, str], console: Console) -> None:
    table = new_table(None, ("kind", "result"), ("cases", "wrong"))
    for kind, status in statuses.items():
        own = [result for result in results if result.kind == kind]
        wrong = [result for result in own if result.problem]
        table.add_row(kind, _WORDS.get(status, "[red]wrong[/]"), str(len(own)), str(len(wrong)))
    console.print(table)
    for kind in statuses:
        wrong = [result for result in results if result.kind == kind and result.problem]
        for result in wrong[:3]:
            line = f"{kind}, {result.name}: {result.problem}"
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        if len(wrong) > 3:
            console.print(f"{kind}: {len(wrong) - 3} more", highlight=False)
