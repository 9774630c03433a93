"""A device that copies beside its other commands, and kernels that hold a queue up."""

import dataclasses

import numpy as np

from kerascl.runtime import device as devices
from kerascl.runtime.opencl import cl

_SPIN = """
__kernel void spin(__global float* a, const int rounds) {
  float x = a[0];
  for (int i = 0; i < rounds; ++i) x = x * 0.999f + 1.0f;
  a[0] = x;
}
"""
_ROUNDS = 200_000  # in a millisecond, about


def opened(copies_beside):
    """The device under test, open once more, as if its memory were its own: copies go through
    staging, large ones beside other commands or not."""
    dev = devices.default()
    device = devices.Device(dev.handle, dataclasses.replace(dev.info, staged_copies=True))
    device.queue.copies_beside = copies_beside
    return device


class Delay:
    """Enqueues kernels of so many milliseconds: what comes later on that queue waits for them."""

    def __init__(self, device):
        self._queue = device.queue
        self._kernel = device.programs.kernel(_SPIN, "spin").handle
        place = device.buffers.allocate(4)
        device.queue.fill(place, bytes(4))
        self._place = place

    def __call__(self, milliseconds, handle=None):
        rounds = np.int32(milliseconds * _ROUNDS)
        self._kernel.set_args(self._place.handle, rounds)
        handle = handle or self._queue.handle
        cl.enqueue_nd_range_kernel(handle, self._kernel, (1,), None)
        handle.flush()
