"""Processes that `out_of_process` and `compiler_pool` start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import BinaryIO

from kerascl.runtime import device
from kerascl.runtime.errors import CompileError


def _answers() -> BinaryIO:
    """Standard output, for answers alone: what drivers print goes to standard error."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def main(index: str) -> None:
    """Build for the device of that number what standard input asks for.

    A line of JSON is a pair of source and options, and answered with a line.  What fails is left
    to the process that asked.
    """
    with _answers() as answers:
        programs = device.get(index).programs
        for line in sys.stdin:
            source, options = json.loads(line)
            with contextlib.suppress(CompileError):
                programs.build([(source, options)])
            programs.let_go()
            answers.write(b"done\n")
            answers.flush()


def answer(index: str, seconds: int) -> None:
    """Compile for the device of that number what standard input asks for, after one answer.

    It ends where the compiler needs precautions.  A line of JSON is a pair of source and options.
    An answer is a line of JSON: "bytes", how many bytes of a binary follow, and of what does not
    compile "code" and "log".

    Args:
        seconds: that a program may take: nobody else may be left to end this process.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the process that asked
    alarm = getattr(signal, "alarm", lambda seconds: 0)
    with _answers() as answers:
        programs = device.get(index).programs

        def tell(about: dict[str, str | int], binary: bytes = b"") -> None:
            answers.write(json.dumps(about | {"bytes": len(binary)}).encode() + b"\n" + binary)
            answers.flush()

        if not programs.compiles_rightly:
            return
        tell({})
        for line in sys.stdin:
            source, options = json.loads(line)
            alarm(seconds + 60)
            try:
                tell({}, programs.compile(source, tuple(options)))
            except CompileError as error:
                tell({"code": str(error), "log": error.log})
            alarm(0)
