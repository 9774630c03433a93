"""The child's side of `asked`: self-tests of kernels on one device, in a process of their own.

`python -m kerascl.kernels.selftests.child INDEX ALONE` takes a device by its number in the order of
`find_devices`, and from standard input a line of JSON, a list of MODULE:PART.  Each module has
`trials(info, part)`, or `trials(info)` where the part is "".  At another line it begins: all their
programs are built at once, which takes much longer than they run, by processes of its own where it
builds ALONE (1).  A line of JSON tells when a self-test begins, ["begun", place], and when it ends,
["ended", place, what is wrong or ""].
"""

from __future__ import annotations

import contextlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from kerascl.kernels.selftests import asked, trial
from kerascl.kernels.units import selftests
from kerascl.runtime import device
from kerascl.runtime.errors import CompileError, OutOfDeviceMemory
from kerascl.runtime.selftest import FULL

assert selftests  # what it imports registers the rewrites that processes need from the beginning


def _tell(*what: str) -> None:
    print(json.dumps(what), flush=True)


def main(index: str, alone: str) -> None:
    """Run self-tests; exit with FULL where there is no memory for them."""
    dev = device.get(index)
    with contextlib.ExitStack() as stack:
        build = dev.programs.build
        if int(alone):  # processes start while it waits for the list
            build = stack.enter_context(dev.programs.compiler_processes())
        _ = dev.queue, dev.buffers
        places: list[str] = json.loads(sys.stdin.readline() or "[]")
        trials = {place: asked.trials(dev.info, place) for place in places}
        every = [one for found in trials.values() for one in found]
        # What they are given, and must leave, is computed while their programs are built.
        host = stack.enter_context(ThreadPoolExecutor(2))
        data = {id(one): host.submit(one.data) for one in every}
        sys.stdin.readline()
        with contextlib.suppress(CompileError):  # it is met again, by whom it belongs to
            build(trial.programs(every))
    for name, found in trials.items():
        _tell("begun", name)
        try:
            trial.run(dev, [replace(one, data=data.pop(id(one)).result) for one in found])
        except OutOfDeviceMemory:
            sys.exit(FULL)
        except Exception as failure:  # whatever it was, the result is one line
            _tell("ended", name, (str(failure).splitlines() or [type(failure).__name__])[0])
        else:
            _tell("ended", name, "")


if __name__ == "__main__":
    main(*sys.argv[1:])
