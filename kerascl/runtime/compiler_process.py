"""A process that `out_of_process` starts."""

from __future__ import annotations

import contextlib
import json
import os
import sys

from kerascl.runtime import device
from kerascl.runtime.errors import CompileError


def main(index: str) -> None:
    """Build for the device of that number what standard input asks for.

    A line of JSON is a pair of source and options, and answered with a line.  What fails is left
    to the process that asked.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what drivers print is no answer
        programs = device.get(index).programs
        for line in sys.stdin:
            source, options = json.loads(line)
            with contextlib.suppress(CompileError):
                programs.build([(source, options)])
            programs.let_go()
            print("done", file=answers, flush=True)
