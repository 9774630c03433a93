"""Lowering and compiling in several processes, with what was done before kept on disk."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from functools import cache
from pathlib import Path

from rich.progress import Progress

import kerascl
from kerascl import config
from tests import profiles
from tests.offline import suites
from tests.offline.compilers import STANDARD, Compiler, Outcome, compiler
from tests.offline.texts import Text, Texts

Key = tuple[Text, str]  # a text and a target


@cache
def folder() -> Path:
    """Where outcomes are kept; a temporary folder where caches are off."""
    given = config.cache_dir()
    root = Path(given) if given else Path(tempfile.gettempdir()) / "kerascl-tests"
    place = root / "offline"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


@cache
def _sources() -> str:
    """A digest of everything that texts depend on."""
    package, own = Path(kerascl.__file__).parent, Path(__file__).parents[1]
    files = [f for f in package.rglob("*") if f.suffix in (".py", ".cl", ".json")]
    rooms = ("offline", "profiles", "fuzz", "ops")
    files += [f for room in rooms for f in (own / room).glob("*.*")]
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(str(file.name).encode() + file.read_bytes())
    return digest.hexdigest()


def lowered(
    names: Iterable[str], chosen: Sequence[str], processes: int, progress: Progress
) -> tuple[list[Text], list]:
    """The texts of suites for profiles, and what was refused."""
    jobs = suites.jobs(names, chosen)
    task = progress.add_task("lowering", total=len(jobs))
    every, refused = Texts({}), []

    def take(result) -> None:
        every.join(result[0])
        refused.extend(result[1])
        progress.advance(task)

    missing = []
    for job in jobs:
        kept = _kept(job)
        if kept.exists():
            take(pickle.loads(kept.read_bytes()))
        else:
            missing.append(job)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, spawn, max_tasks_per_child=1) as pool:
        futures = {pool.submit(suites.collect, job): job for job in missing}
        for future in as_completed(futures):
            _kept(futures[future]).write_bytes(pickle.dumps(future.result()))
            take(future.result())
    return sorted(every.by_text.values(), key=lambda text: -len(text.source)), refused


def _kept(job: suites.Job) -> Path:
    name = hashlib.sha256(repr((job, _sources())).encode()).hexdigest()
    return folder() / f"{name}.texts"


def targets_of(profile: str, wanted: Iterable[str]) -> set[str]:
    """What a profile's texts are compiled for: its device, if a compiler here knows it, and
    OpenCL C 1.2."""
    target = profiles.load()[profile].target
    return {t for t in wanted if t == target or t == "opencl-c"}


def _dialect(text: Text) -> str:
    """The extensions that all of a text's profiles have, for `Standard`."""
    infos = [profiles.load()[name].info for name in text.profiles]
    common = frozenset.intersection(*(info.extensions for info in infos))
    maker = "nvidia" if all(info.platform == "NVIDIA CUDA" for info in infos) else "any"
    return "+".join((maker, *sorted(x for x in common if x.startswith("cl_khr"))))


def compiled(
    texts: Iterable[Text], wanted: Sequence[str], threads: int, progress: Progress
) -> dict[tuple[str, str], Outcome]:
    """The outcome of each text for each target of its profiles whose compiler is there.

    Returns:
        By the text's key and the target.
    """
    todo: dict[tuple[str, str], tuple[Text, Compiler, str]] = {}
    for text in texts:
        for target in set().union(*(targets_of(name, wanted) for name in text.profiles)):
            by = STANDARD if target == "opencl-c" else compiler(target)
            if by is STANDARD and not text.standard:
                continue
            if by is not None and not by.missing:
                as_named = _dialect(text) if by is STANDARD else target
                todo[text.key, target] = text, by, as_named
    task = progress.add_task("compiling", total=len(todo))
    outcomes = {}

    def one(text: Text, by: Compiler, target: str) -> Outcome:
        kept = folder() / f"{by.key(text.source, text.options, target)}.json"
        if kept.exists():
            return Outcome.from_json(json.loads(kept.read_text()))
        outcome = by.compile(text.source, text.options, target)
        kept.write_text(json.dumps(outcome.as_json()))
        return outcome

    with ThreadPoolExecutor(threads) as pool:
        futures: dict[Future, tuple[str, str]] = {pool.submit(one, *v): k for k, v in todo.items()}
        for future in as_completed(futures):
            outcomes[futures[future]] = future.result()
            progress.advance(task)
    return outcomes
