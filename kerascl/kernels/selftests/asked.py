"""Whether kernels passed their self-tests on a device: asked once for a device and driver.

A kernel that faults takes the context with it, so self-tests run in a child process; what they
found is kept on disk until their sources or the driver change (see `runtime.selftest`).
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kerascl.runtime import children, selftest, sources
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.selftest import FULL, FULL_TEXT, SECONDS, Outcome


@dataclass(frozen=True)
class SelfTest:
    """A self-test of some kernels.

    Attributes:
        name: of what it is for; its result is kept under it.
        module: which has `trials(info)`, what they compute.
    """

    name: str
    module: str


_known: dict[tuple[DeviceInfo, SelfTest], str] = {}
_lock = threading.RLock()


def results(info: DeviceInfo, tests: Iterable[SelfTest]) -> dict[str, str]:
    """Of each self-test, by its name: "" when it passed, else why it did not.

    Those without a kept result run now, together: asked for one by one they would take as long as
    all of them, as programs are built at once.
    """
    tests = tuple(dict.fromkeys(tests))
    with _lock:
        missing = [test for test in tests if (info, test) not in _known]
        for test in list(missing):
            if (text := selftest.load(info, test.name, _digest(test))) is not None:
                _known[info, test] = text
                missing.remove(test)
        if missing:
            for test, (text, lasting) in zip(missing, _run(info, missing), strict=True):
                _known[info, test] = text
                if lasting:
                    selftest.keep(info, test.name, _digest(test), text)
        return {test.name: _known[info, test] for test in tests}


def passed(info: DeviceInfo, test: SelfTest) -> bool:
    """Whether a self-test passes on a device."""
    known = _known.get((info, test))
    return not (results(info, (test,))[test.name] if known is None else known)


def forget() -> None:
    """Ask again, for tests: what is kept on disk stays."""
    with _lock:
        _known.clear()


def _digest(test: SelfTest) -> str:
    return sources.of_module(test.module)


def _run(info: DeviceInfo, tests: Sequence[SelfTest]) -> list[Outcome]:
    """What self-tests found; those after one whose process died go on in another one."""
    index = devices.index_of(info)
    if index is None:
        return [("the device is not listed", False)] * len(tests)
    found: dict[str, Outcome] = {}
    left = [test.module for test in tests]
    while left:
        ended = _child(index, left)
        found |= ended
        left = [module for module in left if module not in ended]
        if not ended:
            break
    return [found[test.module] for test in tests]


def _child(index: int, modules: Sequence[str]) -> dict[str, Outcome]:
    """What one process found of the modules that it came to; of all, where another would be no
    better."""
    command = [sys.executable, "-m", "kerascl.kernels.selftests.child", str(index), *modules]
    # The kinds of kernels that are wrong on this driver are no business of these.
    environment = children.environment(KERASCL_CHECK="0")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment
        )
        output, errors, code = done.stdout, done.stderr, done.returncode
    except (OSError, subprocess.TimeoutExpired) as failure:
        reason = f"the self-test did not end: {type(failure).__name__}"
        given = getattr(failure, "stdout", None) or b""
        output, errors, code = given.decode() if isinstance(given, bytes) else given, reason, None
    found: dict[str, Outcome] = {}
    begun = ""
    for line in output.splitlines():
        try:
            event, module, *text = json.loads(line)
        except ValueError:  # something else printed
            continue
        begun = module if event == "begun" else ""
        if event == "ended":
            found[module] = text[0], True
    rest = [module for module in modules if module not in found]
    if code is None:
        return found | dict.fromkeys(rest, (errors, False))
    if code == FULL:
        return found | dict.fromkeys(rest, (FULL_TEXT, False))
    lines = errors.strip().splitlines()
    if begun:  # it died there
        found[begun] = f"the self-test ended with {code}", True
    elif rest:  # Python or a package failed, not the device
        last = lines[-1][:200] if lines else ""
        found |= dict.fromkeys(rest, (f"the self-test did not begin: {last}", False))
    return found
