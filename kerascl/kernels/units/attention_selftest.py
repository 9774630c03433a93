"""Computes attention with attention_mma.cl on one device, in a process of its own.

`python -m kerascl.kernels.units.attention_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper.selftests.basics import check, run
from kerascl.kernels.units import attention as unit_attention
from kerascl.runtime import device, selftest_child

# Batch entries, queries, keys, heads, features of keys and of values, and whether it is causal.
CASES = ((2, 75, 70, 2, 20, 36, False), (1, 140, 140, 3, 64, 64, True))


def attention(dev: device.Device, case: tuple, dtype: DType, bound: float) -> None:
    """A result and its gradients.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    batch, length, source, heads, width, depth, causal = case
    rng = np.random.default_rng()
    sizes = ((length, width), (source, width), (source, depth), (length, depth))
    q, k, v, g = (
        rng.standard_normal((batch, n, heads, f), np.float32).astype(dtype.numpy) for n, f in sizes
    )

    def tensor(x: np.ndarray) -> Tensor:
        a, b, c, d = (step // dtype.itemsize for step in x.strides)
        return Tensor(dtype, (a, b, c, d))

    scale = width**-0.5
    p = AttentionProblem(
        batch, length, source, heads, heads, width, depth, scale, causal, dtype, tensor(q),
        tensor(k), tensor(v),
    )  # fmt: skip
    wide = [x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, g)]
    logits = wide[0] @ wide[1].swapaxes(2, 3) * scale
    if causal:
        logits = np.where(np.tril(np.ones((length, source), bool)), logits, -np.inf)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    back = wide[3] @ wide[2].swapaxes(2, 3)
    delta = (weights * back).sum(-1, keepdims=True)
    slope = weights * (back - delta) * scale
    wanted = {
        "out": slope @ wide[1], "dk": slope.swapaxes(2, 3) @ wide[0],
        "dv": weights.swapaxes(2, 3) @ wide[3],
    }  # fmt: skip
    y, stat = np.empty(g.shape, dtype.numpy), np.empty((batch, heads, length), np.float32)
    plan = unit_attention.FragmentAttention().plan(p, dev.info, store_epilogue(dtype))
    run(plan, {"a": q, "b": k, "c": v}, y, dev, stat=stat)
    check("attention", y.astype(np.float64), (weights @ wide[2]).transpose(0, 2, 1, 3), bound)
    sums = np.ascontiguousarray(delta[..., 0].transpose(0, 2, 1), np.float32)
    inputs = {"a": q, "b": k, "c": v, "d": g, "e": stat, "f": sums}
    outs = {n: np.empty(x.shape, dtype.numpy) for n, x in zip(wanted, (q, k, v), strict=True)}
    backward = dataclasses.replace(p, grad=tensor(g))
    plan = unit_attention.FragmentAttentionGradient().plan(
        backward, dev.info, store_epilogue(dtype)
    )
    run(plan, inputs, dev=dev, **outs)
    for name, want in wanted.items():
        got = outs[name].astype(np.float64)
        check(f"attention's gradient {name}", got, want.transpose(0, 2, 1, 3), bound)


def cases(dev: device.Device) -> None:
    """Each case in float32 and bfloat16.

    Raises:
        DeviceError: as `attention`.
    """
    for case in CASES:
        attention(dev, case, dtypes.float32, 2e-3)
        attention(dev, case, dtypes.bfloat16, 1e-2)


if __name__ == "__main__":
    selftest_child.main(cases)
