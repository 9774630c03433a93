"""Cases run in a child process, which a driver may take down; what they gave."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kerascl import config
from kerascl.checks.guard import KINDS
from kerascl.runtime import children

# Seconds that a case may take: the first of some devices waits for the self-tests of its kernels.
PATIENCE = 60.0
DEATHS = 6  # processes that may die before the rest is given up
# How a process ends that somebody stopped, or that ran out of memory: no word about the driver.
_STOPPED = tuple(-getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP"))


@dataclass(frozen=True)
class Result:
    """What one case gave: `problem` is "" if it was right, None if that could not be told."""

    number: int
    kind: str
    name: str
    problem: str | None


def run(
    index: int, cases: str, kinds: Iterable[str] = (), plain: Iterable[str] = (),
    budget: float = 0, told: Callable[[Result], None] | None = None,
) -> list[Result]:  # fmt: skip
    """Run cases on a device.

    A case that takes longer than PATIENCE tells nothing, as the machine may be busy, and ends it.

    Args:
        index: of the device in the order of `find_devices`.
        cases: "few" or "many", of kinds.py.
        kinds: those to run; none: all.
        plain: kinds whose programs are built with optimisation off.
        budget: seconds after which no other kind is begun; 0: all are.
        told: called with each result as it comes.
    """
    found: list[Result] = []
    left = list(kinds or KINDS)
    for _ in range(DEATHS):
        last, first = len(found), found[-1].number + 1 if found else 0
        arguments = [str(index), cases, ",".join(left), ",".join(plain), str(budget), str(first)]
        done = _child(arguments, found, told)
        if done or len(found) == last:  # or it never began, which says nothing of the device
            break
        left.remove(found[-1].kind)  # one death is enough for its kind
        if not left:
            break
    return found


def _result(begun: list[Any], ended: list[Any]) -> Result:
    """From what a child told when a case began, and when it ended."""
    told = [*begun, *ended]
    return Result(*told)


def _child(arguments: list[str], found: list[Result], told) -> bool:
    """One process; whether it came to its end, or took too long for another one."""
    command = [sys.executable, "-m", "kerascl.checks.child", *arguments]
    # Matrix units have self-tests of their own, for which a first use need not wait twice.
    more = {"KERASCL_MATRIX": "0"} if arguments[1] == "few" else {}
    if more and float(arguments[4]) and config.addresses() == 1:  # a first use asks that itself
        more["KERASCL_ADDRESSES"] = "3"
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env=children.testing(**more),
        )  # fmt: skip
    except OSError:
        return False
    assert process.stdout is not None
    late, done = threading.Event(), False
    begun: Any = None

    def stop() -> None:
        late.set()
        process.kill()

    def tell(result: Result) -> None:
        found.append(result)
        if told is not None:
            told(result)

    while True:
        timer = threading.Timer(PATIENCE, stop)
        timer.start()
        try:
            line = process.stdout.readline()
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
        finally:
            timer.cancel()
        if not line:
            break
        with contextlib.suppress(ValueError, TypeError):
            event, *values = json.loads(line)
            if event == "begun":
                begun = values
            elif event == "ended":
                tell(_result(begun, values))
                begun = None
            done = done or event == "done"
    process.stdout.close()
    code = process.wait()
    if begun is not None:
        # Python's own exit codes are small, crashes are signals or, on Windows, large numbers.
        crashed = not late.is_set() and (code < 0 or code > 255) and code not in _STOPPED
        tell(_result(begun, [f"the process ended with {code}" if crashed else None]))
    return done or late.is_set()
