"""The child's side of `asked`: self-tests of kernels on one device, in a process of their own.

`python -m kerascl.kernels.selftests.child INDEX` takes a device by its number in the order of
`find_devices`, and from standard input a line of JSON, a list of MODULE:PART.  Each module has
`trials(info, part)`, or `trials(info)` where the part is "".  Before the first of them all their
programs are built at once, which takes much longer than they run.  A line of JSON tells when one
begins, ["begun", place], and when it ends, ["ended", place, what is wrong or ""].
"""

from __future__ import annotations

import contextlib
import json
import pkgutil
import sys
from collections.abc import Iterable

from kerascl.kernels.selftests import trial
from kerascl.kernels.units import selftests
from kerascl.runtime import device
from kerascl.runtime.errors import CompileError, OutOfDeviceMemory
from kerascl.runtime.selftest import FULL

assert selftests  # what it imports registers the rewrites that processes need from the beginning


def _tell(*what: str) -> None:
    print(json.dumps(what), flush=True)


def _trials(info: device.DeviceInfo, place: str) -> Iterable[trial.Trial]:
    module, _, part = place.partition(":")
    found = pkgutil.resolve_name(f"{module}:trials")
    made: Iterable[trial.Trial] = found(info, part) if part else found(info)
    return made


def main(index: str) -> None:
    """Run self-tests; exit with FULL where there is no memory for them."""
    dev = device.get(index)
    with dev.programs.compiler_processes() as build:  # they start while it waits for the list
        _ = dev.queue, dev.buffers
        places: list[str] = json.loads(sys.stdin.readline() or "[]")
        trials = {place: list(_trials(dev.info, place)) for place in places}
        every = [one for found in trials.values() for one in found]
        with contextlib.suppress(CompileError):  # it is met again, by whom it belongs to
            build(trial.programs(every))
    for name, found in trials.items():
        _tell("begun", name)
        try:
            trial.run(dev, found)
        except OutOfDeviceMemory:
            sys.exit(FULL)
        except Exception as failure:  # whatever it was, the result is one line
            _tell("ended", name, (str(failure).splitlines() or [type(failure).__name__])[0])
        else:
            _tell("ended", name, "")


if __name__ == "__main__":
    main(*sys.argv[1:])
