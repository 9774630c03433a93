"""The child's side of `selftest`."""

from __future__ import annotations

import sys
from collections.abc import Callable

from kerascl.runtime import device
from kerascl.runtime.errors import OutOfDeviceMemory
from kerascl.runtime.selftest import BEGUN, FULL, OK


def main(*tests: Callable[[device.Device], None]) -> None:
    """Run the tests on the device that the command line names, and exit with the result."""
    print(BEGUN, flush=True)
    try:
        chosen = device.get(sys.argv[1])
        for test in tests:
            test(chosen)
    except OutOfDeviceMemory:
        sys.exit(FULL)
    except Exception as failure:  # whatever it was, the result is one line
        sys.exit((str(failure).splitlines() or [type(failure).__name__])[0])
    print(OK)
