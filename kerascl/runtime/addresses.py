"""Kernel arguments as plain addresses, where the driver takes long over memory objects.

With NVIDIA's driver a launch costs the host 6.6 us and 0.42 us more for each memory object among
its arguments, but only 0.1 us for an integer (H200): a third to a half of a small step's time.
Its binaries are PTX, which says of each parameter whether it is a memory object.  Without those
words it is an integer of 64 bits, and the rest of the text does not change.

OpenCL promises nothing of the kind: that memory never moves, and that the driver keeps what it does
not see in use.  Hence the self-test, and `Allocator` waits before it gives memory back.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from kerascl import config
from kerascl.runtime import selftest, sources
from kerascl.runtime.opencl import RAW, Program, cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device, DeviceInfo

REWRITE = "addresses"
PATIENCE = 10.0  # seconds to wait for another process' result

_OBJECT = re.compile(rb"(\.param\s+\.u64)\s+\.ptr\s+\.global(?:\s+\.align\s+\d+)?")

_SOURCE = """
__kernel void address_of(__global char* memory, __global ulong* out) { *out = (ulong)memory; }
"""


def plain(binary: bytes) -> bytes:
    """PTX whose kernels take 64-bit integers where they took memory objects."""
    return _OBJECT.sub(rb"\1", binary)


def usable(info: DeviceInfo, index: int | None) -> bool:
    """Whether kernels on the device (number `index` of all) are to take addresses."""
    if "slow_memory_arguments" not in info.quirks or RAW is None or not config.addresses():
        return False
    return config.addresses() == 2 or _self_test(info, index) == ""


@functools.cache
def _self_test(info: DeviceInfo, index: int | None) -> str:
    module = "kerascl.runtime.addresses_selftest"
    digest = sources.of_module(module)
    end = time.monotonic() + (PATIENCE if config.addresses() == 3 else 0)
    while time.monotonic() < end and selftest.load(info, "addresses", digest) is None:
        time.sleep(0.02)
    return selftest.kept(
        info, "addresses", digest,
        lambda: selftest.in_child(module, index, light=True, KERASCL_ADDRESSES="2"),
    )  # fmt: skip


class Addresses:
    """`device.addresses`."""

    def __init__(self, device: Device):
        self._device = device
        self._lock = threading.Lock()

    @functools.cached_property
    def _tools(self) -> tuple[cl.CommandQueue, cl.Kernel, cl.Buffer]:
        """The queue, kernel and memory that find an address; a process that only builds programs
        never needs them."""
        device = self._device
        # A queue of its own: nobody waits for the kernels under way.
        queue = cl.CommandQueue(device.context, device.handle)
        program = Program(device.context, device.handle, _SOURCE).build()
        out = cl.Buffer(device.context, cl.mem_flags.READ_WRITE, 8)
        return queue, cl.Kernel(program, "address_of"), out

    def of(self, handle: cl.Buffer) -> int:
        """The device address of a pyopencl.Buffer, which then has its memory.

        Raises:
            pyopencl.Error: there is no memory for it.
        """
        found = np.zeros(1, np.uint64)
        with self._lock:
            queue, kernel, out = self._tools
            kernel.set_args(handle, out)
            cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
            cl.enqueue_copy(queue, found, out, is_blocking=True)
        return int(found[0])
