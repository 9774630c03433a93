"""One of the processes of `build_apart`.

`python -m kerascl.runtime.build_process <index>` builds for the device of that number what it reads
from standard input, a line of JSON for each program: a pair of source and options.  It answers each
with a line.  Rewrites are known, since Python imports all of kerascl first.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import TextIO

from kerascl.runtime import device
from kerascl.runtime.errors import CompileError


def main(index: str, lines: TextIO, answers: TextIO) -> None:
    """Build all of it; what fails is left to the process that asked."""
    programs = device.get(index).programs
    for line in lines:
        source, options = json.loads(line)
        with contextlib.suppress(CompileError):
            programs.build([(source, options)])
        programs.clear()
        print("done", file=answers, flush=True)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what drivers print is no answer
        main(sys.argv[1], sys.stdin, answers)
