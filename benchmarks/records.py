r"""Tuning records to ship: where a solver beat, as the tuner measured, what cost models choose.

    python -m kerascl tune --network ResNet50 --times times.json
    python benchmarks/records.py times.json --match name=H200 \
        --out kerascl/kernels/tuning/records/h200.json

Only solvers whose tile and number of slices are given, where there are several, get records: what
the others do changes with the cost models.  Where several files have a problem, the solver must win
in each of them.  A record keeps mean times, which also correct the costs for problems near it.
--card asks the cost models of a device that need not be there.  A report (`python -m kerascl
report`) has its device's facts, and says which solvers were chosen on it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from collections.abc import Iterable
from pathlib import Path

from kerascl.commands.reports import document
from kerascl.kernels.contract.solver import choose
from kerascl.kernels.conv import solvers as conv
from kerascl.kernels.conv.problem import ConvProblem
from kerascl.kernels.hopper import probe as hopper_probe
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.kernels.tuning import database
from kerascl.kernels.tuning.trial import plan
from kerascl.runtime import device as devices

KINDS = {"gemm": (matmul, MatmulProblem), "conv": (conv, ConvProblem)}
MOST_TIMES = 6  # of one record
CARDS = {  # facts that the choice depends on; the self-tests of its kernels count as passed
    "h200": dict(
        name="NVIDIA H200", kind="gpu", compute_units=132, max_work_group_size=1024,
        local_mem_bytes=49152, max_parameter_bytes=32764, matrix="wgmma90",
        nvidia_capability=(9, 0), device_atomics=False,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("times", nargs="+", help="what tune --times or report wrote")
    parser.add_argument("--match", nargs="+", required=True, metavar="FACT=TEXT", help="of devices")
    parser.add_argument("--card", choices=CARDS, help="instead of the default device")
    parser.add_argument("--without", default="$.", metavar="REGEX", help="problems to leave out")
    parser.add_argument("--gain", type=float, default=1.05, help="least ratio (1.05)")
    parser.add_argument("--least", type=float, default=1.0, help="least microseconds won (1)")
    parser.add_argument("--out", required=True, metavar="FILE")
    options = parser.parse_args()
    info = devices.default().info
    if options.card:
        info = dataclasses.replace(info, **CARDS[options.card])
        hopper_probe.available = lambda *_: True
    times: dict[str, list[dict[str, float]]] = {}
    chosen: dict[str, str] = {}
    for file in options.times:
        text = Path(file).read_text()
        if text.startswith("#"):
            report = document.machine_form(text)
            info, found = document.device(report), document.records(report)
            chosen |= document.chosen(report)
            hopper_probe.available = lambda *_: True  # it was, where its solvers have times
        else:
            found = json.loads(text)
        for name, measured in found.items():
            times.setdefault(name, []).append(measured)
    records = {}
    for name, runs in sorted(times.items()):
        if re.search(options.without, name):
            continue
        fastest, befores = race(name, runs, info, chosen.get(name))
        if fastest and all(
            before / run[fastest] >= options.gain and before - run[fastest] >= options.least
            for before, run in zip(befores, runs, strict=True)
        ):
            records[name] = fixed_times(name, runs, info)
    device = dict(match.split("=", 1) for match in options.match)
    Path(options.out).write_text(
        json.dumps({"device": device, "records": records}, indent=0) + "\n"
    )
    print(f"{len(records)} records of {len(times)} problems in {options.out}")


def race(
    name: str, runs: list[dict[str, float]], info, present: str | None = None
) -> tuple[str, list[float]]:
    """The fastest solver that a record may name and, of each run, the microseconds of `present` or,
    without, of what the cost models choose; "" where that was not measured."""
    kind, key = name.split(" ", 1)
    module, problem_class = KINDS[kind]
    problem = database.from_key(key, problem_class)
    known = {solver.name: solver for solver in (*module.SOLVERS, *module.VARIANTS)}
    names = set.intersection(*map(set, runs))
    fixed = [n for n in sorted(names) if _fixed(n, known) and known[n].applies(problem, info)]
    solvers = module.candidates(problem, info)[0]
    chosen = next((s for s in solvers if s.name == present), None)
    chosen = chosen or choose(solvers, problem, info)
    wanted = plan(chosen, problem, info)
    same = [n for n in fixed if plan(known[n], problem, info) == wanted]
    same = same or [n for n in names if n == chosen.name]
    if not fixed or not same:
        return "", []
    fastest = min(fixed, key=lambda n: sum(run[n] for run in runs))
    return fastest, [min(run[n] for n in same) for run in runs]


def fixed_times(name: str, runs: list[dict[str, float]], info) -> dict[str, float]:
    """Of the solvers that a record may name, the mean microseconds, of the fastest few."""
    kind, key = name.split(" ", 1)
    module, problem_class = KINDS[kind]
    problem = database.from_key(key, problem_class)
    known = {solver.name: solver for solver in (*module.SOLVERS, *module.VARIANTS)}
    names = [n for n in set.intersection(*map(set, runs)) if n in known and _fixed(n, known)]
    usable = [n for n in names if known[n].applies(problem, info)]
    times = {n: sum(run[n] for run in runs) / len(runs) for n in usable}
    return {n: round(times[n], 2) for n in sorted(times, key=lambda n: times[n])[:MOST_TIMES]}


def _fixed(name: str, known: Iterable[str]) -> bool:
    """Whether the name tells all, as no other goes on where it ends."""
    return not any(other != name and re.match(rf"{name}(\d+x|_?s\d|_)", other) for other in known)


if __name__ == "__main__":
    main()
