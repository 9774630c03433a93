"""Builds and runs one kernel on one device; meant to be run in a child process.

`python -m kerascl.runtime.probe <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import sys

import numpy as np

from kerascl.runtime import device

OK = "kerascl-probe-ok"

_SOURCE = """
__kernel void kerascl_probe(__global float* out, __local float* part, float scale) {
    const int i = (int)get_global_id(0), l = (int)get_local_id(0);
    part[l] = scale * i;
    barrier(CLK_LOCAL_MEM_FENCE);
    out[i] = part[get_local_size(0) - 1 - l];
}
"""


def probe(chosen: device.Device) -> None:
    """Run the probe kernel.

    Raises:
        DeviceError: of any step, or the result is wrong.
    """
    n, group = 64, 8
    out = chosen.buffers.allocate(4 * n)
    kernel = chosen.programs.kernel(_SOURCE, "kerascl_probe")
    args = (out, device.LocalMemory(4 * group), np.float32(2))
    chosen.queue.launch(kernel, (n,), (group,), args)
    result = chosen.queue.read(out, np.empty(n, np.float32))
    wanted = 2 * np.arange(n, dtype=np.float32).reshape(-1, group)[:, ::-1].reshape(-1)
    if not np.array_equal(result, wanted):
        raise device.DeviceError(f"{chosen.info.name} computed a wrong result")


if __name__ == "__main__":
    try:
        probe(device.get(sys.argv[1]))
    except device.DeviceError as failure:
        sys.exit(str(failure).splitlines()[0])
    print(OK)
