"""Programs built in several processes at once, for drivers that compile one at a time in each.

Each process leaves its binaries in the disk cache (and the driver its own in the driver's), where
the process that asked finds them.  `python -m kerascl.runtime.build_process <index>` is such a
process; it reads its work from standard input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence

FEWEST = 12  # programs from which a second process pays: one takes a second to begin
SHARE = 4  # programs, at least, of each process
SECONDS = 300


def build(
    index: int | None,
    programs: Sequence[tuple[str, Sequence[str]]],
    most: int,
) -> None:
    """Build (source, options) pairs for the device of this number in up to `most` processes.

    What fails there is not reported: the caller builds whatever is missing and meets the error.
    """
    count = min(most, len(programs) // SHARE)
    if index is None or count < 2:
        return
    # Long sources take long: dealt out from the longest on.
    ordered = sorted(programs, key=lambda program: -len(program[0]))
    command = [sys.executable, "-m", "kerascl.runtime.build_process", str(index)]
    workers = []
    for k in range(count):
        # A file and not a pipe: nobody waits for the process to begin reading.
        with contextlib.suppress(OSError), tempfile.TemporaryFile("w+") as work:
            json.dump(ordered[k::count], work)
            work.seek(0)
            silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            workers.append(subprocess.Popen(command, stdin=work, **silent))
    for worker in workers:
        try:
            worker.wait(SECONDS)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
