"""Every buffer of a CPU driver ends, or begins, at a page that nobody may touch.

    python -m tests.faults.fences [--front] tests/ops/test_table.py ...

The arguments are pytest's.  A kernel that reads or writes one byte beyond a buffer ends the process
(signal 11), with the stack that `faulthandler` prints; elsewhere such bytes belong to a neighbour,
and nobody sees it.  What is in a new buffer is NaN, -1 or True.  Linux only.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import sys

import numpy as np
import pytest

PAGE = mmap.PAGESIZE
NEITHER, BOTH = 0, mmap.PROT_READ | mmap.PROT_WRITE
POISON = 0xFF

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def fenced(nbytes: int, front: bool) -> np.ndarray:
    """Host memory between two pages that may not be touched, at one of them; never freed."""
    pages = -(-nbytes // PAGE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    base = _libc.mmap(None, (pages + 2) * PAGE, BOTH, flags, -1, 0)
    after = base + (pages + 1) * PAGE
    for fence in (base, after):
        if _libc.mprotect(fence, PAGE, NEITHER):
            raise OSError(ctypes.get_errno(), "no page can be fenced")
    start = base + PAGE if front else after - nbytes
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(start))


def fence_buffers(front: bool) -> None:
    """Have kerascl allocate fenced buffers from now on.

    Raises:
        SystemExit: kernels of the device do not use such memory as it lies.
    """
    from kerascl.runtime import buffers, device
    from kerascl.runtime.opencl import cl

    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
    if device.default().info.kind != "cpu":
        raise SystemExit("fences: only the memory of a CPU driver can be fenced")

    def create(allocator: buffers.Allocator, nbytes: int, size: int) -> tuple:
        memory = fenced(size, front)
        memory[:] = POISON
        return cl.Buffer(allocator._device.context, flags, hostbuf=memory), None

    # No buffer is larger than what was asked for, so that its last byte lies at the fence.
    buffers.size_class = lambda nbytes: max(nbytes, 1)
    buffers.Allocator._from_driver = create


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--front", action="store_true", help="buffers begin at the fence")
    chosen, rest = parser.parse_known_args()
    fence_buffers(chosen.front)
    return pytest.main(["-q", "-p", "no:xdist", "-p", "no:cacheprovider", *rest])


if __name__ == "__main__":
    sys.exit(main())
