"""Which solver to take: records that were measured, before cost models.

A record says for one problem on one device which solver was the fastest.  The user's own records
(written by `python -m kerascl tune` into the cache folder) come before those shipped in
`records/*.json`; where there is neither, the solvers' cost models decide.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerascl.dtypes import DType, as_dtype
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.solver import Solver
from kerascl.runtime.diskcache import DiskCache

RECORDS_FOLDER = Path(__file__).parent / "records"

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
    """The measured best of `solvers` and `variants`, else the cheapest applicable of `solvers`.

    Raises:
        NotImplementedError: when none applies; it names the problem.
    """
    if _recorded is not None and (kind, problem) not in _recorded:
        _recorded.append((kind, problem))
    return _choose(kind, tuple(solvers), tuple(variants), problem, info)


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
    for solver in (
        choose(kind, solvers, variants, problem, info),
        contract.choose(solvers, problem, info),
    ):
        if solver.takes_moments(problem, info):
            return solver
    return None


@functools.lru_cache(maxsize=4096)
def _choose(kind: str, solvers: tuple, variants: tuple, problem, info) -> Solver:
    forced = contract.forced((*solvers, *variants), problem, info)
    if forced is not None:
        return forced
    name = records(info).get(f"{kind} {key(problem)}")
    if name is not None:
        for candidate in (*solvers, *variants):
            usable = candidate.name == name and candidate.applies(problem, info)
            if usable and not contract.avoided(candidate):
                return candidate
    return contract.choose(solvers, problem, info)


@functools.cache
def records(info) -> dict[str, str]:
    """Solver names by "<kind> <key>" for a device: shipped records, overridden by the user's."""
    found: dict[str, str] = {}
    for entry in sorted(_shipped(), key=lambda entry: len(entry["device"])):
        if matches(info, entry["device"]):
            found.update(entry["records"])
    return found | own_records(info)


def matches(info, facts: dict[str, str]) -> bool:
    """Whether each of these facts about a device contains its text."""
    return all(text.lower() in str(getattr(info, f, "")).lower() for f, text in facts.items())


@functools.cache
def _shipped() -> list[dict]:
    return [json.loads(file.read_text()) for file in sorted(RECORDS_FOLDER.glob("*.json"))]


def _cache(info) -> DiskCache | None:
    return DiskCache.open("tuned", info.cache_key)


def own_records(info) -> dict[str, str]:
    """The user's records for a device."""
    cache = _cache(info)
    found = None if cache is None else cache.load(cache.key("records"), _parse)
    return {} if found is None else found


def _parse(data: bytes) -> dict[str, str]:
    """What `keep` wrote; ValueError, TypeError and the like of anything else."""
    found = json.loads(data)
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise ValueError("no names of solvers by problem")
    return found


def keep(info, found: dict[str, str]) -> bool:
    """Add records to the user's; whether there is a cache folder to keep them in."""
    cache = _cache(info)
    if cache is None:
        return False
    cache.put(cache.key("records"), json.dumps(own_records(info) | found).encode())
    records.cache_clear()
    _choose.cache_clear()
    return True


@contextmanager
def recording() -> Iterator[list]:
    """Inside, the list given gets every (kind, problem) that a solver is chosen for."""
    global _recorded
    before, _recorded = _recorded, []
    try:
        yield _recorded
    finally:
        _recorded = before
