"""Processes that compile in this one's place, for drivers whose compiler may end a process or never
return: then one of them is lost, and another compiles the program again.

They also keep what such a compiler keeps of every program it has compiled.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

from kerascl.runtime import children, compilers
from kerascl.runtime.errors import CompileError

# Seconds that a program may take, and options besides its own: when it is tried first, once more,
# and for the last time.
TRIES: tuple[tuple[float, tuple[str, ...]], ...] = (
    (120, ()),
    (120, ()),
    (900, (compilers.UNOPTIMISED,)),
)
READY = 60  # seconds until a process must be, or programs are compiled here
PROGRAMS = 500  # after so many a process has kept enough of its compiler's memory
IDLE = 20.0  # seconds after which processes that nobody needs end

_PROCESS = """
import sys, types
package = sys.modules["kerascl"] = types.ModuleType("kerascl")
package.__path__ = [{folder!r}]
from kerascl.runtime import compiler_process
compiler_process.answer({index!r}, {seconds!r})
"""


class Failed(Exception):
    """The process ended, or did not answer in time."""


class Compiler:
    """One process.

    Args:
        index: of the device in the order of `find_devices`.

    Raises:
        OSError: it cannot be begun.
    """

    def __init__(self, index: int):
        folder = str(Path(__file__).parents[1])
        text = _PROCESS.format(folder=folder, index=str(index), seconds=max(TRIES)[0])
        # NumPy's linear algebra would begin a thread for each core.
        self._process = subprocess.Popen(
            [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=children.environment(OPENBLAS_NUM_THREADS="1"),
        )  # fmt: skip
        self._ready = False
        self.built = 0

    def ready(self) -> bool:
        """Wait until it can compile; False: it never will, and is closed."""
        try:
            if not self._ready:
                self._answer(READY)
                self._ready = True
        except BaseException as error:
            self.close()
            if not isinstance(error, Failed):
                raise
        return self._ready

    def compile(self, source: str, options: tuple[str, ...], seconds: float) -> bytes:
        """The binary of a program.

        Raises:
            CompileError: it does not compile; its text is the name of the status code.
            Failed: the process has ended. After this and any other exception it is closed.
        """
        try:
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):  # it has ended, and answers nothing
                self._process.stdin.write(json.dumps([source, options]).encode() + b"\n")
                self._process.stdin.flush()
            about, binary = self._answer(seconds)
        except BaseException:
            self.close()
            raise
        self.built += 1
        if "code" in about:
            raise CompileError(about["code"], about["log"], source)
        return binary

    def _answer(self, seconds: float) -> tuple[dict[str, str], bytes]:
        late = threading.Event()

        def end() -> None:
            late.set()
            self._process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        answers = self._process.stdout
        assert answers is not None
        try:
            line = answers.readline()
            about = json.loads(line) if line.endswith(b"\n") else {}
            size = about.pop("bytes", -1)
            binary = answers.read(max(size, 0))
        finally:
            timer.cancel()
        if len(binary) != size:
            status = self._process.wait()
            how = f"did not return in {seconds:g} s" if late.is_set() else f"ended ({status})"
            raise Failed(how)
        return about, binary

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()


class CompilerPool:
    """As many processes as programs are compiled at a time; those that nobody needs end.

    Args:
        index: of the device in the order of `find_devices`.
        name: of the device, for messages.
        most: how many processes there may be.
    """

    def __init__(self, index: int, name: str, most: int):
        self._index = index
        self._name = name
        self._room = threading.Semaphore(most)
        self._lock = threading.Lock()
        self._idle: list[Compiler] = []
        self._used = 0.0
        self._answers: bool | None = None  # whether any process was ever ready
        self._ender: threading.Thread | None = None
        self._owner = os.getpid()
        weakref.finalize(self, _close, self._idle, self._owner).atexit = False
        _pools.add(self)
        with contextlib.suppress(OSError):  # which the first program meets again
            self._idle.append(Compiler(index))

    def compile(self, source: str, options: tuple[str, ...]) -> tuple[bytes, bool]:
        """The binary of a program (b"" if there can be no process), and whether it is optimised.

        Raises:
            CompileError: it does not compile (its text is the name of the status code), or the
                compiler failed each time.

        Warns:
            RuntimeWarning: the compiler failed, and the program is compiled again.
        """
        failure = ""
        with self._room:
            for seconds, more in TRIES:
                compiler = self._take()
                if compiler is None:
                    return b"", True
                try:
                    binary = compiler.compile(source, options + more, seconds)
                except CompileError:
                    self._give(compiler)
                    raise
                except Failed as failed:
                    failure = str(failed)
                    warnings.warn(
                        f"{self._name}: the driver's compiler {failure}; the program is compiled "
                        "again",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                else:
                    self._give(compiler)
                    return binary, not more
        raise CompileError("the compiler failed", f"the driver's compiler {failure}", source)

    def _take(self) -> Compiler | None:
        """A process that is ready, None if there can be none."""
        if self._answers is False:
            return None
        with self._lock:
            if self._owner != os.getpid():  # a fork: the processes are the other's
                self._owner, self._ender = os.getpid(), None
                self._idle.clear()
            found = self._idle.pop() if self._idle else None
        try:
            found = found or Compiler(self._index)
        except OSError:
            return None
        ready = found.ready()
        self._answers = self._answers or ready
        return found if ready else None

    def _give(self, compiler: Compiler) -> None:
        if compiler.built >= PROGRAMS:
            compiler.close()
            return
        with self._lock:
            self._idle.append(compiler)
            self._used = time.monotonic()
            if self._ender is None:
                self._ender = threading.Thread(
                    target=_end_idle, args=(weakref.ref(self),), daemon=True
                )
                self._ender.start()

    def close(self) -> None:
        """End the processes that compile nothing now."""
        with self._lock:
            idle, self._idle[:] = self._idle[:], []
        _close_all(idle)

    def _end(self) -> float:
        """End processes that were idle for long.

        Returns:
            Seconds until it is to be asked again, 0: not any more.
        """
        with self._lock:
            rest = self._used + IDLE - time.monotonic()
            if rest > 0:
                return rest
            self._ender = None
        self.close()
        return 0


def _end_idle(pool: weakref.ref[CompilerPool]) -> None:
    rest = IDLE
    while rest > 0:
        time.sleep(rest)
        found = pool()
        rest = 0 if found is None else found._end()
        del found


def _close(idle: list[Compiler], owner: int) -> None:
    """End processes from a finalizer: another thread waits for them, as a Ctrl-C that came in here
    meanwhile would be lost."""
    if idle and os.getpid() == owner:
        threading.Thread(target=_close_all, args=(idle,), daemon=True).start()


def _close_all(compilers: list[Compiler]) -> None:
    for compiler in compilers:
        compiler.close()


_pools: weakref.WeakSet[CompilerPool] = weakref.WeakSet()


@atexit.register
def _close_pools() -> None:
    for pool in _pools:
        if pool._owner == os.getpid():
            pool.close()
