"""One file about a device, for those who have it to send: facts, checks, rates, networks.

Takes ten minutes at most. Each part runs in a process of its own, so that a driver that fails or
hangs in one does not stop the others; Ctrl-C writes what there is. The file holds no user names,
folders of yours or names of machines: read it, and attach it to an issue. The exit status is 1 if
anything failed or was wrong, 2 if there is no device, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kerascl import config
from kerascl.checks.guard import name_of
from kerascl.commands.reports import document
from kerascl.commands.reports.parts import Setting
from kerascl.commands.reports.private import Scrubber
from kerascl.commands.reports.running import Outcome, Runner, command
from kerascl.commands.reports.solvers import problems_of
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo

# Each part, and its share of the time; what one leaves goes to those after it.
PARTS = {
    "facts": 1, "checks": 5, "rates": 2, "products": 3, "convolutions": 5, "attention": 2,
    "networks": 7, "solvers": 4,
}  # fmt: skip
_MINUTES, _QUICK_MINUTES = 10.0, 2.0
_RESERVE = 0.06  # of the time: processes start, and last items end after their part's time
_LEAST = 1.0  # seconds with which a part is begun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--output", metavar="FILE", help="(kerascl-report-DEVICE-DATE.md)")
    parser.add_argument("--json", action="store_true", help="also write FILE.json, for programs")
    parser.add_argument("--quick", action="store_true", help="little of everything, in 2 minutes")
    parser.add_argument("--minutes", type=float, help="time for all parts (10; 2 with --quick)")
    parser.add_argument("--device", help="as KERASCL_DEVICE names it")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="only these, and the facts"
    )


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    usual = _QUICK_MINUTES if options.quick else _MINUTES
    minutes = usual if options.minutes is None else options.minutes
    if not 0 < minutes < 24 * 60:
        console.print(f"report: --minutes must be above 0, not {minutes:g}", style="red")
        return 2
    info, index = None, None
    try:
        device = devices.get(options.device) if options.device else devices.default()
        info, index = device.info, device.index
    except devices.DeviceError as error:
        console.print(str(error), style="red", markup=False)
        if any(found.device for found in devices.find_devices()):
            return 2  # another name was meant
    now = datetime.datetime.now()
    output = Path(options.output or _file_name(info, now))
    if not output.parent.is_dir():
        console.print(f"report: --output: there is no folder {output.parent}", style="red")
        return 2
    parts = [p for p in PARTS if p == "facts" or (p in options.parts and index is not None)]
    outcomes: list[Outcome] = []
    interrupted = False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        # Neither this user's records nor programs that are built already.
        config.set_cache_dir(cache)
        try:
            _measure(parts, outcomes, Setting(index, options.quick), minutes * 60, info, console)
        except KeyboardInterrupt:
            interrupted = True
            left = parts[len(outcomes) :]
            outcomes += [Outcome(part, remarks=["not begun: interrupted"]) for part in left]
    title = name_of(info) if info else "a machine on which no device was found"
    report = document.to_json(title, f"{now:%Y-%m-%d}", outcomes)
    report = Scrubber().everything(report)
    output.write_text(document.markdown(report), encoding="utf-8")
    if options.json:
        output.with_suffix(".json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    return _told(output, outcomes, info, interrupted, console)


def _file_name(info: DeviceInfo | None, now: datetime.datetime) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", info.name.lower()).strip("-") if info else "no-device"
    return f"kerascl-report-{name[:40].rstrip('-')}-{now:%Y-%m-%d}.md"


def _measure(
    parts: list[str], outcomes: list[Outcome], setting: Setting, seconds: float,
    info: DeviceInfo | None, console: Console,
) -> None:  # fmt: skip
    """Run the parts, each within its share of what time is left; outcomes come as they begin."""
    end = time.monotonic() + seconds * (1 - _RESERVE)
    if info is not None:
        console.print(f"{name_of(info)}: {seconds / 60:g} minutes", highlight=False, markup=False)
    columns = (
        TextColumn("{task.description:<13}"), BarColumn(30), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[item]}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bars = {part: progress.add_task(part, total=None, start=False, item="") for part in parts}
        for number, part in enumerate(parts):
            bar = bars[part]
            progress.start_task(bar)

            def told(count: int, done: int, item: str, bar=bar) -> None:
                progress.update(bar, total=count, completed=done, item=item[:60])

            left = end - time.monotonic()
            share = left * PARTS[part] / sum(PARTS[p] for p in parts[number:])
            if left < _LEAST:
                outcomes.append(Outcome(part, remarks=["not begun: the time was up"]))
                progress.update(bar, item="the time is up")
                if not console.is_terminal:
                    console.print(f"{part}: the time is up", highlight=False)
                continue
            met = problems_of([row for outcome in outcomes for row in outcome.rows])
            own = Setting(setting.device, setting.quick, share, problems=met)
            runner = Runner(part, command(part), own, told)
            outcomes.append(runner.outcome)
            runner.run()
            words = _ended(runner.outcome)
            progress.update(bar, item=words)
            progress.stop_task(bar)
            if not console.is_terminal:
                took = f"{runner.outcome.seconds:.0f} s"
                console.print(f"{part}: {words}, {took}", highlight=False)


def _ended(outcome: Outcome) -> str:
    """A part in a few words."""
    count, left = len(outcome.faults), outcome.items - outcome.done
    words = f"{count} {'fault' if count == 1 else 'faults'}" if count else "done"
    return words + (f", {left} of {outcome.items} left out" if left > 0 else "")


def _told(
    output: Path, outcomes: list[Outcome], info: DeviceInfo | None, interrupted: bool,
    console: Console,
) -> int:  # fmt: skip
    faults = [fault for outcome in outcomes for fault in outcome.faults]
    for fault in faults[:10]:
        line = f"{fault.part}, {fault.item}: {fault.text.partition(chr(10))[0]}"
        console.print(line, style="red", highlight=False, markup=False, soft_wrap=True)
    if len(faults) > 10:
        console.print(f"and {len(faults) - 10} more", style="red")
    if interrupted:
        console.print("Interrupted: the report holds what there was.")
    console.print(f"The report is in {output}. Read it, and attach it to an issue.", markup=False)
    if interrupted:
        return 130
    return 2 if info is None else int(bool(faults))
