"""Which solver to take: records that were measured, before cost models.

A record says for one problem on one device how long solvers took, or only which was the fastest.
The user's own records (written by `python -m kerascl tune` into the cache folder) come before those
shipped in `records/*.json`.  Where there is neither, the solvers' costs decide, corrected by how
long they took for the nearest problem of which times are known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kerascl import config
from kerascl.dtypes import DType, as_dtype
from kerascl.kernels.contract import registry
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import machine, nearest, shipped
from kerascl.runtime.diskcache import DiskCache

# The fastest solver of a problem, or the microseconds of several.
Record = str | dict[str, float]

# While a list, every problem that a solver is chosen for is appended, once.
_recorded: list | None = None


def key(problem) -> str:
    """The problem in one line of text, the same in every process."""
    return " ".join(_text(getattr(problem, f.name)) for f in dataclasses.fields(problem))


def _text(value) -> str:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, tuple):
        return "x".join(map(_text, value)) or "-"
    return str(int(value) if isinstance(value, bool) else value)


def from_key(text: str, problem: type):
    """The problem of this class that `key` gave the text for.

    Raises:
        ValueError: there is none.
    """
    try:
        fields = zip(dataclasses.fields(problem), text.split(" "), strict=True)
        return problem(*(_value(str(field.type), word) for field, word in fields))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{text!r} is no key: {error}") from error


def _value(annotation: str, word: str):
    plain: dict[str, Callable[[str], Any]] = {
        "int": int, "str": str, "bool": lambda w: w == "1", "DType": as_dtype,
    }  # fmt: skip
    if annotation in plain:
        return plain[annotation](word)
    numbers = () if word == "-" else tuple(map(int, word.split("x")))
    pairs = annotation.startswith("tuple[tuple")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True)) if pairs else numbers


def to_json(kind: str, problem) -> dict:
    """A problem as JSON keeps it."""
    fields = {f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)}
    return {"of": kind} | {k: v.name if isinstance(v, DType) else v for k, v in fields.items()}


def from_json(entry: dict, problems: dict[str, type]) -> tuple:
    """What `to_json` was given.

    Args:
        problems: the class of each kind.

    Raises:
        ValueError: it is no such entry.
    """
    fields = dict(entry)
    try:
        made = problems[kind := fields.pop("of")](**{k: _plain(v) for k, v in fields.items()})
        types = {k: as_dtype(getattr(made, k)) for k in ("a", "b", "acc")}
    except (KeyError, TypeError) as error:
        raise ValueError(f"{entry} is no problem: {error}") from error
    return kind, dataclasses.replace(made, **types)


def _plain(value):
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def choose(
    kind: str, solvers: Iterable[Solver], variants: Iterable[Solver], problem, info
) -> Solver:
    """The measured best of `solvers`, `variants` and those that users added, else the cheapest
    applicable of `solvers`, by `corrected` costs.

    Raises:
        NotImplementedError: when none applies; it names the problem.
    """
    if _recorded is not None and (kind, problem) not in _recorded:
        _recorded.append((kind, problem))
    wanted = config.solvers(), config.avoided_solvers(), contract.joined()
    others = (*variants, *registry.of(kind))
    while True:
        failures = asked.failures()
        solver = _choose(kind, tuple(solvers), others, problem, info, wanted, failures)
        # It was compared without its self-tests, which it now relies on.
        if solver.applies(problem, info) or failures == asked.failures():
            return solver


def choose_for(
    kind: str, solvers: tuple, variants: tuple, problem, info, epilogue: Epilogue
) -> Solver:
    """What `choose` gives or, for an epilogue with moments, `choose_with_moments`.

    Raises:
        NotImplementedError: when none applies.
        ValueError: the epilogue has moments, and no solver takes them.
    """
    if not epilogue.moments:
        return choose(kind, solvers, variants, problem, info)
    solver = choose_with_moments(kind, solvers, variants, problem, info)
    if solver is None:
        raise ValueError(f"no solver of {problem} takes moments: ask takes_moments first")
    return solver


def choose_with_moments(
    kind: str, solvers: tuple, variants: tuple, problem, info
) -> Solver | None:
    """The solver for an epilogue with moments: what `choose` gives or, where this does not take
    them, the cheapest, if it does: a pass of their own costs more than records gain, which know
    nothing of epilogues.  None where neither does.

    Raises:
        NotImplementedError: when none applies.
    """
    while True:
        failures = asked.failures()
        with asked.comparing():
            found = (
                choose(kind, solvers, variants, problem, info),
                _cheapest(kind, solvers, problem, info),
            )
            taken = next((s for s in found if s.takes_moments(problem, info)), None)
        if taken is None:
            return None
        if taken.applies(problem, info) and taken.takes_moments(problem, info):
            return taken
        if failures == asked.failures():
            return None


@functools.lru_cache(maxsize=4096)
def _choose(
    kind: str, solvers: tuple, variants: tuple, problem, info, wanted: tuple, failures: int
) -> Solver:  # fmt: skip
    with asked.comparing():
        return _compared(kind, solvers, variants, problem, info)


def _compared(kind: str, solvers: tuple, variants: tuple, problem, info) -> Solver:
    forced = contract.forced((*solvers, *variants), problem, info)
    if forced is not None:
        return forced
    known = records(info).get(f"{kind} {key(problem)}") if records(info) else None
    if known is not None:
        by_name = {s.name: s for s in reversed((*solvers, *variants))}
        for name in fastest_first(known, lambda name: _saved(by_name.get(name), info)):
            candidate = by_name.get(name)
            if candidate is not None and candidate.applies(problem, info):
                if not contract.avoided(candidate):
                    return candidate
    return _cheapest(kind, solvers, problem, info)


def _cheapest(kind: str, solvers: tuple, problem, info) -> Solver:
    """The solver with the least corrected cost, or the forced one."""
    cost = estimate(kind, solvers, problem, info)
    return contract.choose(solvers, problem, info, lambda s: cost(s) - _saved(s, info))


def _saved(solver: Solver | None, info) -> float:
    """Microseconds of its launch that a solver saves, where its launches become parts of one."""
    joins = solver is not None and solver.joins and contract.joined()
    return machine.of(info).launch if joins else 0.0


def estimate(kind: str, solvers: tuple, problem, info) -> Callable[[Solver], float]:
    """Microseconds that each solver should take for a problem: its cost, corrected where times are
    known of a problem near it."""
    made: Any = type(problem)
    with asked.comparing():
        found = nearest.correction(problem, _timed(kind, made, info), solvers, info)
    if found is None:
        return lambda solver: solver.cost(problem, info)
    return lambda solver: found.of(solver.name) * solver.cost(problem, info)


@functools.lru_cache(maxsize=256)
def _timed(kind: str, problem: Any, info) -> list[tuple[Any, dict[str, float]]]:
    """Problems of a kind with the times of solvers."""
    found = []
    for name, known in records(info).items():
        if isinstance(known, dict) and name.startswith(kind + " "):
            with contextlib.suppress(ValueError):
                found.append((from_key(name.removeprefix(kind + " "), problem), known))
    return found


def fastest_first(
    record: Record, saved: Callable[[str], float] = lambda name: 0.0
) -> list[str]:
    """The solvers that a record names; `saved`: microseconds of each time that do not count."""
    if isinstance(record, str):
        return [record]
    return sorted(record, key=lambda name: record[name] - saved(name))


@functools.cache
def records(info) -> dict[str, Record]:
    """Records by "<kind> <key>" for a device: shipped ones, overridden by the user's."""
    found: dict[str, Record] = {}
    for entry in shipped.of_device(info):
        found.update(entry["records"])
    return found | own_records(info)


def _cache(info) -> DiskCache | None:
    return DiskCache.open("tuned", info.cache_key)


def own_records(info) -> dict[str, Record]:
    """The user's records for a device."""
    cache = _cache(info)
    found = None if cache is None else cache.load(cache.key("records"), _parse)
    return {} if found is None else found


def _parse(data: bytes) -> dict[str, Record]:
    """What `keep` wrote; ValueError, TypeError and the like of anything else."""
    found = json.loads(data)
    if not isinstance(found, dict):
        raise ValueError("no records by problem")
    return {name: _record(known) for name, known in found.items()}


def _record(known: Any) -> Record:
    if isinstance(known, str):
        return known
    times = {str(name): float(time) for name, time in dict(known).items()}
    if not times or not all(0 < time < math.inf for time in times.values()):
        raise ValueError("no times of solvers")
    return times


def keep(info, found: dict[str, Record]) -> bool:
    """Add records to the user's; whether there is a cache folder to keep them in."""
    cache = _cache(info)
    if cache is None:
        return False
    cache.put(cache.key("records"), json.dumps(own_records(info) | found).encode())
    forget()
    return True


def forget() -> None:
    """Read the records again, as where they changed."""
    for cached in (records, _timed, _choose):
        cached.cache_clear()


@contextmanager
def recording() -> Iterator[list]:
    """Inside, the list given gets every (kind, problem) that a solver is chosen for."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before
