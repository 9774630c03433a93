"""`python -m kerascl.checks.child INDEX CASES KINDS PLAIN BUDGET FIRST`: trial.py's other side."""

from __future__ import annotations

import json
import os
import sys
import time

import numpy as np

from kerascl.checks import kinds
from kerascl.checks.guard import MENDED, Guard
from kerascl.runtime import device
from kerascl.runtime.errors import ContextLost, DeviceError, OutOfDeviceMemory


def main(index: str, which: str, chosen: str, plain: str, budget: str, first: str) -> None:
    """Run the cases; a line of JSON says when one begins, and one what it gave."""
    begun, last = time.perf_counter(), None
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what drivers print is no answer

        def say(*words) -> None:
            print(json.dumps(words), file=answers, flush=True)

        dev = device.set_default(index)
        if plain:
            dev.programs.guard = Guard(dev.info, dict.fromkeys(plain.split(","), MENDED))
        rng = np.random.default_rng(int(first))
        for number, (case, captured) in enumerate(kinds.CASES[which]()):
            wanted = not chosen or case.kind in chosen.split(",")
            if number < int(first) or not wanted or not kinds.possible(case, dev.info):
                continue
            late = float(budget) and time.perf_counter() - begun > float(budget)
            if late and case.kind != last:
                break
            last = case.kind
            say("begun", number, case.kind, f"{case.name}{', captured' if captured else ''}")
            try:
                say("ended", case.problem(rng, captured))
            except OutOfDeviceMemory:
                say("ended", None)
            except ContextLost as error:  # the next case needs another process
                say("ended", str(error).splitlines()[0])
                return
            except DeviceError as error:
                # What does not build or start says so itself when it is used: no wrong number.
                say("ended", str(error).splitlines()[0] if which == "many" else None)
            except Exception as error:  # no fault of the device's
                say("ended", None)
                print(f"{case.name}: {error!r}", file=sys.stderr)
        say("done")


if __name__ == "__main__":
    main(*sys.argv[1:7])
