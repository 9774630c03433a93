"""Compilers that make wrong code unless they are told what to leave out, and whether they listened.

A driver reads such options from its environment at the first context of a process, which may have
been another library's.  So before the first build there is that of a probe, with each pattern that
is known to go wrong.  Where it still does, nothing is optimised.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.opencl import Program, cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device, DeviceInfo

UNOPTIMISED = "-cl-opt-disable"

# NOT beside a maximum, in what is left of work-items when vectors have taken theirs: the register
# that should hold ones is never set.  And the lanes of a difference: they are subtracted from each
# other instead of added where a narrower vector takes the remainder of the loop.  Both need vectors
# of 16; where a device has none, it is right whatever it was told.
_PROBE = """
__kernel void turned(const int n, __global const int* a, __global int* b) {
  const int i = get_global_id(0);
  if (i < n) b[i] = ~max(a[i], a[n - 1 - i]);
}
__kernel void difference(const int n, __global const int* a, __global float* b) {
  float s = 0;
  for (int i = 0; i < n; ++i) s -= (float)a[i];
  b[0] = s;
}
"""
_COUNT = 39


@contextlib.contextmanager
def told(info: DeviceInfo) -> Iterator[None]:
    """Within, a device's first context is made.

    Children get an environment without the options: other drivers end a process that has any which
    they do not know.
    """
    if not info.compiler_options:
        yield
        return
    before = os.environ.get("CL_CONFIG_LLVM_OPTIONS")
    os.environ["CL_CONFIG_LLVM_OPTIONS"] = f"{before or ''} {info.compiler_options}".strip()
    try:
        yield
    finally:
        if before is None:
            del os.environ["CL_CONFIG_LLVM_OPTIONS"]
        else:
            os.environ["CL_CONFIG_LLVM_OPTIONS"] = before


def options(device: Device) -> tuple[str, ...]:
    """Options for every build from source on the device; called before the first.

    Warns:
        RuntimeWarning: programs are built without optimisation.
    """
    if not device.info.compiler_options or _right(device):
        return ()
    warnings.warn(
        f"{device.info.name}: OpenCL was used before kerascl could keep its compiler from known "
        "faults, so its kernels are built without optimisation; make an array of kerascl first",
        RuntimeWarning,
        stacklevel=2,
    )
    return (UNOPTIMISED,)


def _right(device: Device) -> bool:
    """Whether the probe computes what it says."""
    program = Program(device.context, device.handle, _PROBE).build()
    queue = cl.CommandQueue(device.context, device.handle)
    a = np.arange(_COUNT, dtype=np.int32) * 7 % 40 - 20
    flags = cl.mem_flags
    given = cl.Buffer(device.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=a)
    memory = cl.Buffer(device.context, flags.WRITE_ONLY, a.nbytes)

    def run(name: str, work_items: int, group: int, found: np.ndarray) -> np.ndarray:
        kernel = cl.Kernel(program, name)
        kernel.set_args(np.int32(_COUNT), given, memory)
        cl.enqueue_nd_range_kernel(queue, kernel, (work_items,), (group,))
        cl.enqueue_copy(queue, found, memory, is_blocking=True)
        return found

    turned = run("turned", 64, 64, np.empty_like(a))
    difference = run("difference", 1, 1, np.empty(1, np.float32))
    return np.array_equal(turned, ~np.maximum(a, a[::-1])) and difference[0] == -a.sum()
