"""What compilers say of all texts, target by target, and whether it stays within the budgets."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests import profiles
from tests.offline.compilers import Kernel, Outcome
from tests.offline.texts import Text

BUDGETS = Path(__file__).parent / "budgets.toml"
COUNTS = ("errors", "spilled", "private", "arguments")


@dataclass
class Row:
    """One target's sums.

    Attributes:
        spilled, private: kernels by "label name", with what was said of them, worst first.
        arguments: kernels with more bytes of arguments than a device takes.
    """

    programs: int = 0
    kernels: int = 0
    errors: list[str] = field(default_factory=list)
    spilled: list[tuple[int, str]] = field(default_factory=list)
    private: list[tuple[int, str]] = field(default_factory=list)
    arguments: list[tuple[int, str]] = field(default_factory=list)
    registers: int = 0
    local: int = 0
    occupancy: int = 0


class Report:
    """All rows, by target."""

    def __init__(
        self,
        texts: Iterable[Text],
        refused: Iterable[tuple[str, str, str]],
        outcomes: dict[tuple[str, str], Outcome],
    ) -> None:
        self.rows: dict[str, Row] = {}
        self.refused = sorted(set(refused))
        self.kernels: list[dict] = []
        by_key = {text.key: text for text in texts}
        for (key, target), outcome in sorted(outcomes.items()):
            self._add(by_key[key], target, outcome)
        for text in by_key.values():
            self._note_arguments(text)
        for row in self.rows.values():
            for name in ("spilled", "private", "arguments"):
                getattr(row, name).sort(reverse=True)

    def _add(self, text: Text, target: str, outcome: Outcome) -> None:
        row = self.rows.setdefault(target, Row())
        row.programs += 1
        origin = min(text.origins)
        if outcome.error:
            row.errors.append(f"{text.key} ({origin}): {outcome.error}")
        for name, kernel in outcome.kernels.items():
            if name not in text.arguments:
                continue  # of a unit that others share
            row.kernels += 1
            row.registers = max(row.registers, kernel.registers)
            row.local = max(row.local, kernel.local)
            if kernel.occupancy:
                row.occupancy = min(kernel.occupancy, row.occupancy or kernel.occupancy)
            said = f"{text.labels[name]}: {name} of {text.key} ({origin})"
            if kernel.spills:
                row.spilled.append((kernel.spills, said))
            elif kernel.private:
                row.private.append((kernel.private, said))
            self.kernels.append(self._entry(text, target, name, kernel))

    def _entry(self, text: Text, target: str, name: str, kernel: Kernel) -> dict:
        facts = {k: v for k, v in vars(kernel).items() if v}
        return dict(target=target, text=text.key, kernel=name, label=text.labels[name],
                    origins=sorted(text.origins), **facts)  # fmt: skip

    def _note_arguments(self, text: Text) -> None:
        for profile in text.profiles:
            known = profiles.load()[profile]
            for name, nbytes in text.arguments.items():
                if nbytes > known.info.max_parameter_bytes and known.target in self.rows:
                    said = f"{name} of {text.key} ({min(text.origins)}) on {profile}"
                    self.rows[known.target].arguments.append((nbytes, said))

    def show(self, console: Console, most: int) -> None:
        """Print the rows, and for each target the worst kernels."""
        names = ("programs", "kernels", "errors", "spilled", "private", "arguments", "registers",
                 "local", "occupancy")  # fmt: skip
        table = Table("target", *names)
        for target, row in self.rows.items():
            values = [getattr(row, name) for name in names]
            cells = [str(len(v)) if isinstance(v, list) else str(v or "") for v in values]
            bad = row.errors or row.spilled or row.arguments
            table.add_row(target, *cells, style="red" if bad else "")
        console.print(table)
        for target, row in self.rows.items():
            for error in row.errors[:most]:
                console.print(f"{target}: error: {error}", markup=False)
            for name in ("spilled", "private", "arguments"):
                found = getattr(row, name)
                for count, said in found[:most]:
                    console.print(f"{target}: {name} {count}: {said}", markup=False)
                if len(found) > most:
                    console.print(f"{target}: {name}: {len(found) - most} more", markup=False)
        if self.refused:
            what, profile, why = self.refused[0]
            count = f"{len(self.refused)} graphs that no kernel serves"
            console.print(f"{count}, as {what} on {profile}: {why}", markup=False)

    def beyond_budgets(self) -> list[str]:
        """What exceeds `budgets.toml`: counts by target, a budget that is not there being 0."""
        budgets = tomllib.loads(BUDGETS.read_text())
        beyond = []
        for target, row in self.rows.items():
            allowed = budgets["every"] | budgets.get(target, {})
            for name in COUNTS:
                found = len(getattr(row, name))
                if found > allowed.get(name, 0):
                    beyond.append(f"{target}: {found} {name}, of {allowed.get(name, 0)}")
            solvers = [said for _, said in row.spilled if not GENERATED.match(said)]
            if len(solvers) > allowed.get("spilled_solvers", 0):
                beyond.append(f"{target}: {len(solvers)} spilled kernels of solvers: {solvers[0]}")
        return beyond

    def as_json(self) -> dict:
        """Everything, for machines."""
        return dict(
            targets={name: vars(row) for name, row in self.rows.items()},
            kernels=self.kernels, refused=self.refused,
        )  # fmt: skip


#: Labels of generated kernels; all others are of hand-written ones.
GENERATED = re.compile(r"(map_|reduction_|multi_|copy)")
