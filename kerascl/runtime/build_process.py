"""One of the processes of `build_apart`.

`python -m kerascl.runtime.build_process <index>` builds for the device of that number what it reads
from standard input: JSON, a list of pairs of source and options.  Rewrites are known, since Python
imports all of kerascl first.
"""

from __future__ import annotations

import contextlib
import json
import sys

from kerascl.runtime import device
from kerascl.runtime.errors import CompileError


def main(index: str, text: str) -> None:
    """Build all of it; what fails is left to the process that asked."""
    programs = device.get(index).programs
    for source, options in json.loads(text):
        with contextlib.suppress(CompileError):
            programs.build([(source, options)])


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.read())
