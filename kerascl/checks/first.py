"""A driver's first use: a handful of each kind of kernel against the host, once for its sources.

The result is kept in the cache folder; where nothing can be kept nothing is checked.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from kerascl import config
from kerascl.checks import trial
from kerascl.checks.guard import FINE, KINDS, LOOP, MENDED, OK, UNKNOWN, Guard, kinds_of, name_of
from kerascl.checks.trial import Result
from kerascl.runtime import sources
from kerascl.runtime.device import Device, DeviceInfo
from kerascl.runtime.diskcache import DiskCache

ROOMS = ("kernels", "compiler", "core", "ops", "runtime", "checks")
# Of processes that check at once: how many, processors for each, and bytes of the device's memory
# that its context and the cases may take.
MOST_CHILDREN, CORES_EACH, CHILD_BYTES = 6, 2, 4 << 30
SECONDS = 3.0  # after which the other kinds are left to the next process


def guard_for(device: Device) -> Guard | None:
    """What the programs of a device need; asked when its first program is wanted."""
    info, index = device.info, device.index
    cache = DiskCache.open("checks", info.cache_key)
    if not config.check() or "simulator" in info.quirks or index is None or cache is None:
        return None
    statuses = cache.load(_key(cache), _parse) or {}
    missing = [kind for kind in KINDS if kind not in statuses]
    if missing and cache.writable:
        if (count := _children(info)) > 1:
            return Asking(info, statuses, index, missing, count)
        begun = time.perf_counter()
        statuses |= judge(index, "few", missing, SECONDS)
        _found(info, statuses, begun)
        return Guard(info, statuses)
    warn(info, statuses)
    return Guard(info, statuses)


class Asking(Guard):
    """A guard while processes still find out: a program waits for its own kinds.

    Args:
        statuses: what is known.
        index: of the device in the order of `find_devices`.
        missing: the other kinds, shared out over `count` processes.
    """

    def __init__(
        self, info: DeviceInfo, statuses: dict[str, str], index: int, missing: list[str], count: int
    ):  # fmt: skip
        super().__init__(info, statuses)
        self._statuses, self._begun = dict(statuses), time.perf_counter()
        count = min(count, len(missing))
        self._lock, self._left, self.asking = threading.Lock(), count, True
        self._asked: dict[str, Future[None]] = {}
        pool = ThreadPoolExecutor(count, "kerascl-check")
        for k in range(count):
            share = missing[k::count]
            self._asked |= dict.fromkeys(share, pool.submit(self._judge, index, share))
        pool.shutdown(wait=False)

    def _judge(self, index: int, share: list[str]) -> None:
        # Each has few kinds, and nobody waits for those that he does not use.
        found = judge(index, "few", share, 3 * SECONDS)
        with self._lock:
            self._statuses |= found
            self.plain |= {kind for kind, status in found.items() if status == MENDED}
            self.refused |= {kind: v for kind, v in found.items() if v not in FINE}
            self._left -= 1
            if self._left:
                return
            try:
                _found(self._info, self._statuses, self._begun)
            finally:
                self.asking = False

    def __call__(self, source: str) -> tuple[str, ...]:
        if self._asked:
            for kind in kinds_of(source).intersection(self._asked):
                self._asked[kind].result()
            if not self.asking:
                self._asked = {}
        return super().__call__(source)


def _found(info: DeviceInfo, statuses: dict[str, str], begun: float) -> None:
    """Keep what was found out, and tell of it."""
    keep(info, statuses)
    if config.debug():
        seconds = time.perf_counter() - begun
        print(f"kerascl: {name_of(info)} checked in {seconds:.1f} s", file=sys.stderr)
    warn(info, statuses)


def _children(info: DeviceInfo) -> int:
    """How many processes check a driver at once: most of their time they start, and compile."""
    if info.kind == "cpu":  # whose kernels take the processors
        return 1
    fit = info.global_mem_bytes // CHILD_BYTES
    return max(1, min(MOST_CHILDREN, config.build_threads() // CORES_EACH, fit))


def keep(info: DeviceInfo, statuses: dict[str, str]) -> None:
    """Keep statuses for the next process, where that can be."""
    cache = DiskCache.open("checks", info.cache_key)
    if cache is not None:
        cache.put(_key(cache), json.dumps(statuses).encode())


def judge(
    index: int, cases: str, kinds: Iterable[str] = (), budget: float = 0,
    told: Callable[[Result], None] | None = None,
) -> dict[str, str]:  # fmt: skip
    """Run cases, and those of kinds that are wrong again with optimisation off.

    Args: as of `trial.run`.

    Returns:
        OK, MENDED, UNKNOWN or what is wrong, by kind; none of a kind that was not begun.
    """
    found = by_kind(trial.run(index, cases, kinds, (), budget, told))
    wrong = [kind for kind, status in found.items() if status not in (OK, UNKNOWN) and kind != LOOP]
    # One kind's kernels may serve another's cases: all that is wrong goes together.
    again = by_kind(trial.run(index, cases, wrong, wrong)) if wrong else {}
    return found | {kind: MENDED for kind in wrong if again.get(kind) == OK}


def by_kind(results: list[Result]) -> dict[str, str]:
    """OK, UNKNOWN or what is wrong, of each kind that has a result."""
    found: dict[str, str] = {}
    for result in results:
        status = UNKNOWN if result.problem is None else result.problem or OK
        if found.get(result.kind, UNKNOWN) == UNKNOWN or status not in (OK, UNKNOWN):
            found.setdefault(result.kind, status)
            if found[result.kind] in (OK, UNKNOWN):
                found[result.kind] = status
    return found


def warn(info: DeviceInfo, statuses: dict[str, str]) -> None:
    """One line about what is wrong, if anything is."""
    mended = sorted(kind for kind, status in statuses.items() if status == MENDED)
    refused = sorted(kind for kind, v in statuses.items() if v not in FINE and kind != LOOP)
    cut = statuses.get(LOOP, OK) not in FINE and "cuts_loops" not in info.quirks
    if not mended and not refused and not cut:
        return
    parts = []
    if cut:
        parts.append("long loops (what is computed of very large arrays can be wrong)")
    if mended:
        parts.append(f"{', '.join(mended)} (built with optimisation off, which is right but slow)")
    if refused:
        parts.append(f"{', '.join(refused)} (refused)")
    warnings.warn(
        f"{name_of(info)} computes kernels wrongly: {'; '.join(parts)}. "
        "python -m kerascl check tells more",
        RuntimeWarning,
        stacklevel=2,
    )


def _key(cache: DiskCache) -> str:
    return cache.key("verdicts", sources.of_rooms(*ROOMS))


def _parse(data: bytes) -> dict[str, str]:
    found = json.loads(data)
    if not isinstance(found, dict) or not set(found) <= set(KINDS):
        raise ValueError("no statuses by kind")
    if not all(isinstance(status, str) for status in found.values()):
        raise ValueError("no statuses")
    return found
