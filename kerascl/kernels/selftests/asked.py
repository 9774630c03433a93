"""Whether kernels passed their self-tests on a device: asked once for a device and driver.

A kernel that faults takes the context with it, so self-tests run in a child process; what they
found is kept on disk until their sources or the driver change (see `runtime.selftest`).

They take long to build, so a program asks for no more than it uses: it is made as if all that
nobody ran yet had passed (`settled`), which notes the parts that its solvers rely on; these run
together, and what failed makes it anew. Costs are compared under `comparing`, where nothing is
relied upon. Anywhere else a self-test runs when it is asked for.
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from kerascl.kernels.selftests import trial
from kerascl.runtime import children, selftest, sources
from kerascl.runtime import device as devices
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.errors import CompileError
from kerascl.runtime.out_of_process import Program
from kerascl.runtime.selftest import FULL, FULL_TEXT, SECONDS, Outcome

SECONDS_EACH = 4  # that the child may take for each, where they are many
SECONDS_ALONE = 60  # that one in a process of its own may take
T = TypeVar("T")


@dataclass(frozen=True)
class SelfTest:
    """A self-test of some kernels, or a part of one.

    Attributes:
        name: of what it is for; its result is kept under it and its part.
        module: which has `trials(info)`, what they compute, or `trials(info, part)`.
        part: which of its kernels, such as those of a dtype, "" where it has no parts.
        alone: whether it has a process of its own, `python -m module INDEX`, as it may never end.
        environment: variables that this process has besides ours.
    """

    name: str
    module: str
    part: str = ""
    alone: bool = False
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def title(self) -> str:
        """Its name and its part."""
        return f"{self.name} ({self.part})" if self.part else self.name

    @property
    def place(self) -> str:
        """Its module and its part, as the child process is told."""
        return f"{self.module}:{self.part}"


class _Thread(threading.local):
    """What a thread relies on without knowing: the self-tests that it asked for, while it makes a
    program or compares solvers; None: it has to know."""

    noted: dict[SelfTest, None] | None = None
    comparing = False
    alone = True  # whether nobody but the child process will build its programs
    built: threading.Event | None = None  # set when they are


_thread = _Thread()
# None: none was kept.
_known: dict[tuple[DeviceInfo, SelfTest], str | None] = {}
_lock = threading.RLock()
_running = threading.RLock()  # one child process at a time
_failures = 0


def failures() -> int:
    """A number that changes with what is known to have failed, for choices that are kept."""
    return _failures


def results(info: DeviceInfo, tests: Iterable[SelfTest]) -> dict[str, str]:
    """Of each self-test, by its title: "" when it passed, else why it did not.

    Those without a kept result run now, together: asked for one by one they would take as long as
    all of them, as programs are built at once.
    """
    tests = tuple(dict.fromkeys(tests))
    with _running:
        missing = [test for test in tests if _look(info, test) is None]
        if missing:
            for test, (text, lasting) in zip(missing, _run(info, missing), strict=True):
                _note(info, test, text)
                if lasting:
                    selftest.keep(info, test.title, _digest(test), text)
        _stop(info, tests)  # another thread, or process, had the results meanwhile
        return {test.title: _known[info, test] or "" for test in tests}


def passed(info: DeviceInfo, *tests: SelfTest) -> bool:
    """Whether self-tests pass on a device, or are to be taken to pass: see `settled`."""
    missing = []
    for test in tests:
        known = _known.get((info, test))
        if known is None:
            missing.append(test)
        elif known:
            return False
    if not missing:
        return True
    noted = _thread.noted
    if noted is None:
        return not any(results(info, tests).values())
    for test in missing:
        found = _look(info, test)
        if found:
            return False
        if found is None and not _thread.comparing:
            if test.alone:
                _begin_alone(info, test)
            elif all(other.alone for other in noted):
                _begin_early(info)
            noted[test] = None
    return True


@contextlib.contextmanager
def comparing() -> Iterator[None]:
    """Inside it, what nobody tested passes: solvers are compared, of which few are used.

    Who uses one asks again whether it applies.
    """
    before = _thread.noted, _thread.comparing
    _thread.noted, _thread.comparing = {}, True
    try:
        yield
    finally:
        _thread.noted, _thread.comparing = before


# Called with what was made, the programs of its self-tests, and what says that these are built.
Meanwhile = Callable[[T, list[Program], Callable[[], None]], Any]


def settled(info: DeviceInfo, make: Callable[[], T], meanwhile: Meanwhile[T] | None = None) -> T:
    """What `make` gives where each self-test that it relies on has passed.

    It runs as if those that nobody ran yet had passed; if one of those that it asked for fails, it
    runs again.

    Args:
        meanwhile: called with what `make` gave while its self-tests run, with their programs, which
            it may have built, and what it then may call: the self-tests wait for that.
    """
    while True:
        noted: dict[SelfTest, None] = {}
        before = _thread.noted, _thread.comparing, _thread.alone
        _thread.noted, _thread.comparing, _thread.alone = noted, False, meanwhile is None
        try:
            made = make()
        except BaseException:
            if noted:
                _end_early(info)
            raise
        finally:
            _thread.noted, _thread.comparing, _thread.alone = before
        if not noted:
            if meanwhile is not None:
                meanwhile(made, [], lambda: None)
            return made
        problem, built = None, threading.Event()
        with ThreadPoolExecutor(1, "kerascl-selftest") as beside:
            asked = beside.submit(_results_when, built, info, tuple(noted))
            try:
                if meanwhile is not None:
                    meanwhile(made, programs_of(info, noted), built.set)
            except CompileError as error:  # it may be a kernel's whose self-test fails, too
                problem = error
            finally:
                built.set()
            if any(asked.result().values()):
                continue
        if problem is not None:
            raise problem
        return made


def _results_when(
    built: threading.Event, info: DeviceInfo, tests: tuple[SelfTest, ...]
) -> dict[str, str]:
    """`results`, where somebody says when the programs are built."""
    _thread.built = built
    return results(info, tests)


def programs_of(info: DeviceInfo, tests: Iterable[SelfTest]) -> list[Program]:
    """What self-tests have to build."""
    found: dict[Program, None] = {}
    for test in tests:
        with contextlib.suppress(Exception):  # it is met again, by whom it belongs to
            found |= dict.fromkeys(trial.programs(trials(info, test.place)))
    return list(found)


def trials(info: DeviceInfo, place: str) -> list[trial.Trial]:
    """Those of a self-test, by its place."""
    module, _, part = place.partition(":")
    found = pkgutil.resolve_name(f"{module}:trials")
    return list(found(info, part) if part else found(info))


def forget() -> None:
    """Ask again, for tests: what is kept on disk stays."""
    global _failures
    with _lock:
        _known.clear()
        _failures += 1


def _look(info: DeviceInfo, test: SelfTest) -> str | None:
    """What is known of a self-test, from now or from disk."""
    try:
        return _known[info, test]
    except KeyError:
        text = selftest.load(info, test.title, _digest(test))
        if text is None:
            with _lock:  # it may have ended meanwhile
                return _known.setdefault((info, test), None)
        _note(info, test, text)
        return text


def _note(info: DeviceInfo, test: SelfTest, text: str) -> None:
    global _failures
    with _lock:
        _known[info, test] = text
        _failures += bool(text)


def _digest(test: SelfTest) -> str:
    return sources.of_module(test.module)


def _run(info: DeviceInfo, tests: Sequence[SelfTest]) -> list[Outcome]:
    """What self-tests found; those after one whose process died go on in another one."""
    index = devices.index_of(info)
    if index is None:
        return [("the device is not listed", False)] * len(tests)
    found: dict[str, Outcome] = {}
    apart = [test for test in tests if test.alone]
    with ThreadPoolExecutor(len(apart) or 1, "kerascl-selftest") as beside:
        ends = {test.place: beside.submit(_alone, index, test) for test in apart}
        left = [test.place for test in tests if not test.alone]
        while left:
            ended = _child(index, left)
            found |= ended
            left = [place for place in left if place not in ended]
            if not ended:
                break
        found |= {place: end.result() for place, end in ends.items()}
    return [found[test.place] for test in tests]


def _alone(index: int, test: SelfTest) -> Outcome:
    """What a self-test in a process of its own found."""
    with _lock:
        process = _begun_alone.pop((index, test), None)
    try:
        process = process or _own(index, test)
    except OSError as failure:
        return f"the self-test did not begin: {type(failure).__name__}", False
    text, lasting = selftest.ended(process, SECONDS_ALONE)
    # what hangs once would hang every process that asks
    return text, lasting or "TimeoutExpired" in text


_begun: dict[int, subprocess.Popen[str]] = {}  # by the device's index
_begun_alone: dict[tuple[int, SelfTest], subprocess.Popen[str]] = {}


def _own(index: int, test: SelfTest) -> subprocess.Popen[str]:
    """The process of a self-test that has its own."""
    return selftest.begin(test.module, index, True, **dict(test.environment))


def _begin_alone(info: DeviceInfo, test: SelfTest) -> None:
    """Start a self-test in a process of its own: it runs while the program is made."""
    index = devices.index_of(info)
    with _lock, contextlib.suppress(OSError):
        if index is not None and (index, test) not in _begun_alone:
            _begun_alone[index, test] = _own(index, test)


def _begin(index: int, alone: bool) -> subprocess.Popen[str]:
    """A process that waits for a list of self-tests, and ends where it never gets one.

    Args:
        alone: whether nobody else builds their programs.
    """
    # The kinds of kernels that are wrong on this driver are no business of these.
    return subprocess.Popen(
        children.light("kerascl.kernels.selftests.child", str(index), str(int(alone))),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=children.testing(),
    )  # fmt: skip


def _begin_early(info: DeviceInfo) -> None:
    """Start the child process, which somebody will need."""
    index = devices.index_of(info)
    with _lock, contextlib.suppress(OSError):
        if index is not None and index not in _begun:
            _begun[index] = _begin(index, _thread.alone)


def _end_early(info: DeviceInfo) -> None:
    """Nobody needs the child processes after all."""
    index = devices.index_of(info)
    with _lock:
        process = None if index is None else _begun.pop(index, None)
        apart = [test for place, test in _begun_alone if place == index]
    _stop(info, apart)
    if process is not None:
        process.communicate("")


def _stop(info: DeviceInfo, tests: Iterable[SelfTest]) -> None:
    """End processes of self-tests, of which nobody needs to hear any more."""
    index = devices.index_of(info)
    for test in tests:
        with _lock:
            process = None if index is None else _begun_alone.pop((index, test), None)
        if process is not None:
            process.kill()
            process.communicate()


def _child(index: int, places: Sequence[str]) -> dict[str, Outcome]:
    """What one process found of the self-tests that it came to; of all, where another would be no
    better."""
    code: int | None
    try:
        with _lock:
            process = _begun.pop(index, None)
        process = process or _begin(index, True)
        try:
            assert process.stdin is not None
            with contextlib.suppress(OSError):  # it has died, and its output says why
                process.stdin.write(json.dumps(places) + "\n")
                process.stdin.flush()
            if _thread.built is not None:
                _thread.built.wait()
            seconds = max(SECONDS, SECONDS_EACH * len(places))
            output, errors = process.communicate("\n", seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            errors, code = "the self-test did not end: TimeoutExpired", None
    except OSError as failure:
        output, errors, code = "", f"the self-test did not end: {type(failure).__name__}", None
    found: dict[str, Outcome] = {}
    begun = ""
    for line in output.splitlines():
        try:
            event, place, *text = json.loads(line)
        except ValueError:  # something else printed
            continue
        begun = place if event == "begun" else ""
        if event == "ended":
            found[place] = text[0], True
    rest = [place for place in places if place not in found]
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
