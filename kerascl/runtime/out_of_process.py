"""Out-of-process compilation: several programs at once, for drivers that compile one at a time in
each process.

Each process leaves its binaries in the disk cache (and the driver its own in the driver's), where
the process that asked finds them.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from kerascl.runtime import children

FEWEST = 6  # programs that are worth starting processes for: one takes a second to start
SECONDS = 300  # that all of them may take
CONTEXT_BYTES = 1 << 30  # of the device's memory for each process: its context takes part of it
# Drivers make contexts one after the other.  Of fewer than MANY problems FEW processes are enough:
# of 5, 8, 12 and 16, 8 are done first with the 24 programs of 6 (GPT-2's text on an H100).
FEW, MANY = 8, 32
LONG = 64 << 10  # characters of a program that all others can be built beside

Program = tuple[str, tuple[str, ...]]

# kerascl's package stands there without what `import kerascl` loads, most of which compiles graphs.
_PROCESS = """
import sys, types
package = sys.modules["kerascl"] = types.ModuleType("kerascl")
package.__path__ = [{folder!r}]
from kerascl.runtime import compiler_process
import {modules}
compiler_process.main({index!r})
"""


class CompilerProcesses:
    """Processes that build programs for one device; each is ready within a second or two.

    Args:
        index: of the device in the order of `find_devices`.
        count: how many processes.
        modules: to import there: they register the binary rewrites that programs may ask for.
        once: `build` is called once: a process ends as soon as nothing is left for it to build,
            while the others still work.
    """

    def __init__(self, index: int, count: int, modules: Iterable[str], once: bool = False):
        self._once = once
        folder = str(Path(__file__).parents[1])
        text = _PROCESS.format(folder=folder, modules=", ".join(modules), index=str(index))
        # NumPy's linear algebra would begin a thread for each core in each process.
        environment = children.environment(OPENBLAS_NUM_THREADS="1")
        self._processes: list[subprocess.Popen[str]] = []
        for _ in range(count):
            with contextlib.suppress(OSError):
                process = subprocess.Popen(
                    [sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL, env=environment, text=True,
                )  # fmt: skip
                self._processes.append(process)

    def build(
        self, programs: Sequence[Program], ended: Callable[[Program, float], None],
        first: Container[Program] = (), meanwhile: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """Have (source, options) pairs built; each process takes the next when it has done one.

        What fails there is not reported: the caller builds whatever is missing and meets the error.

        Args:
            ended: called from one thread with each program that a process is done with, and the
                seconds it took; the process goes on meanwhile.
            first: those that are begun before the others, if these are not LONG.
            meanwhile: called once all processes have something to build.

        Raises:
            BaseException: what `ended` or `meanwhile` raised.
        """
        if not self._processes:
            return
        # Long sources take long: begun first, none is waited for at the end.
        def turn(program: Program) -> tuple[bool, int]:
            length = len(program[0])
            return program not in first and length < LONG, -length

        work = deque(sorted(programs, key=turn))
        count = len(self._processes)
        told: list[Future[None]] = []
        with (
            ThreadPoolExecutor(1, "kerascl-built") as teller,
            ThreadPoolExecutor(count, "kerascl-build") as pool,
        ):

            def tell(program: Program, seconds: float) -> None:
                told.append(teller.submit(ended, program, seconds))

            fed = [pool.submit(self._feed, p, work, tell) for p in self._processes]
            meanwhile()
            _, late = wait(fed, SECONDS)
            if late:
                self.close()  # so that their threads read the end
        for future in (*fed, *told):
            future.result()

    def _feed(
        self,
        process: subprocess.Popen[str],
        work: deque[Program],
        tell: Callable[[Program, float], None],
    ) -> None:
        assert process.stdin is not None and process.stdout is not None
        while True:
            try:
                program = work.popleft()
            except IndexError:
                if self._once:
                    process.terminate()
                return
            begun = time.perf_counter()
            try:
                process.stdin.write(json.dumps(program) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except (OSError, ValueError):
                answer = ""
            if not answer:  # it has died
                return
            tell(program, time.perf_counter() - begun)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
