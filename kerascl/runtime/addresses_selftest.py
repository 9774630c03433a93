"""Computes with kernels that take addresses, in a process of its own.

`python -m kerascl.runtime.addresses_selftest <index>` with KERASCL_ADDRESSES=2 exits 0 and prints
OK, or fails in whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl.runtime import device, selftest_child

_SOURCE = """
__kernel void blend(__global const float* restrict a, __global const float4* restrict b,
                    const float scale, __global float* c, __local float* part, const int n) {
    const int i = (int)get_global_id(0), l = (int)get_local_id(0);
    part[l] = i < n ? a[i] : 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < n) c[i] += scale * part[get_local_size(0) - 1 - l] + ((__global const float*)b)[i];
}
"""


def blends(chosen: device.Device) -> None:
    """Chains of kernels over buffers that come and go, and over parts of them.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    kernel = chosen.programs.kernel(_SOURCE, "blend")
    group = 64
    for size in (1, 5, 80):
        n = group * 100 * size
        host = [rng.integers(-9, 9, n).astype(np.float32) for _ in range(6)]
        memory = [chosen.buffers.allocate(4 * n) for _ in host]
        for buffer, values in zip(memory, host, strict=True):
            chosen.queue.write(buffer, values)
        for turn in range(200):
            a, b, c = rng.permutation(len(host))[:3]
            start = chosen.info.mem_align_bytes // 4 * int(rng.integers(0, 9)) if turn % 2 else 0
            count = n - start - group * int(rng.integers(0, 3))
            views = [memory[k].view(4 * start, 4 * count) for k in (a, b, c)]
            args = (*views[:2], np.float32(1), views[2], device.LocalMemory(4 * group),
                    np.int32(count))  # fmt: skip
            whole = -(-count // group) * group
            chosen.queue.launch(kernel, (whole,), (group,), args)
            turned = np.zeros(whole, np.float32)
            turned[:count] = host[a][start : start + count]
            turned = turned.reshape(-1, group)[:, ::-1].reshape(-1)[:count]
            host[c][start : start + count] += turned + host[b][start : start + count]
            if turn % 20 == 19:  # small again: float32 holds sums of nine exactly
                for k in range(len(host)):
                    host[k] = rng.integers(-9, 9, n).astype(np.float32)
                    if turn % 40 == 39:
                        memory[k] = chosen.buffers.allocate(4 * n)
                    chosen.queue.write(memory[k], host[k])
            elif turn % 20 == 8:
                for buffer, values in zip(memory, host, strict=True):
                    if not np.array_equal(chosen.queue.read(buffer, np.empty_like(values)), values):
                        raise device.DeviceError(f"{chosen.info.name} computed a wrong result")
        chosen.buffers.trim()


if __name__ == "__main__":
    selftest_child.main(blends)
