"""One pass through device, buffers, programs, launch and replay."""

import numpy as np

from kerascl.runtime.launch import LocalMemory
from kerascl.runtime.replay import Replay

SOURCE = """
__kernel void scale(__global float* a, __global const float* b, int n, float s) {
    const int i = (int)get_global_id(0);
    if (i < n) a[i] = b[i] * s;
}
__kernel void reverse(__global float* a, __local float* t) {
    const int l = (int)get_local_id(0);
    t[l] = a[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    a[get_global_id(0)] = t[get_local_size(0) - 1 - l];
}
"""


def test_launch_and_replay(dev, rng):
    n = 1000
    x = rng.standard_normal(n).astype(np.float32)
    a, b = dev.buffers.allocate(4 * n), dev.buffers.allocate(4 * n)
    dev.queue.write(b, x)
    dev.queue.fill(a, b"\xff")
    scale = dev.programs.kernel(SOURCE, "scale")
    reverse = dev.programs.kernel(SOURCE, "reverse")
    launches = [
        (scale, (1024,), None, (a, b, np.int32(n), np.float32(2))),
        (reverse, (n,), (8,), (a, LocalMemory(32))),
    ]
    for launch in launches:
        dev.queue.launch(*launch)
    want = (2 * x).reshape(-1, 8)[:, ::-1].reshape(-1)
    np.testing.assert_array_equal(dev.queue.read(a, np.empty(n, np.float32)), want)
    replay = Replay(dev, launches)
    assert len(replay) == 2
    dev.queue.fill(a, b"\xff")
    replay.run()
    np.testing.assert_array_equal(dev.queue.read(a, np.empty(n, np.float32)), want)
