"""Computes attention with attention_mma.cl on one device, in a process of its own.

`python -m kerascl.kernels.units.attention_selftest <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kerascl import dtypes, philox
from kerascl.dtypes import DType
from kerascl.kernels.attention.problem import LOG2_E, AttentionProblem, Dropout, Tensor
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.hopper.selftests.basics import check, run
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units.attention import FragmentBlock
from kerascl.runtime import device, selftest_child

# Batch entries, queries, keys, heads, features of keys and of values, whether it is causal, and the
# chance that a weight is kept; then the blocks of both solvers, of which each kind is tried.
CASES = (
    ((2, 75, 70, 2, 20, 36, False, 1.0), (FragmentBlock(4, 1, 32), FragmentBlock(2, 1, 40))),
    ((1, 140, 140, 3, 64, 64, True, 1.0), (FragmentBlock(4, 2, 32), FragmentBlock(4, 1, 32))),
    ((2, 70, 90, 2, 64, 64, False, 0.75), (FragmentBlock(4, 2, 40), FragmentBlock(4, 1, 40))),
    ((1, 50, 78, 2, 33, 18, False, 1.0), (FragmentBlock(2, 1, 16), FragmentBlock(2, 1, 32))),
)  # fmt: skip
BOUNDS = {dtypes.float32: 2e-3, dtypes.bfloat16: 1e-2}


Trial = tuple[tuple, DType, float, tuple]  # a case, its dtype, bound and solvers


def _solvers(forward: FragmentBlock, gradient: FragmentBlock) -> tuple:
    kinds = unit_attention.FragmentAttention, unit_attention.FragmentAttentionGradient
    return kinds[0](forward), kinds[1](gradient)


def problems(case: tuple, dtype: DType) -> tuple[AttentionProblem, AttentionProblem]:
    """A case's forward and backward problem, of contiguous arrays."""
    batch, length, source, heads, width, depth, causal, keep = case

    def tensor(rows: int, features: int) -> Tensor:
        return Tensor(dtype, (rows * heads * features, heads * features, features, 1))

    p = AttentionProblem(
        batch, length, source, heads, heads, width, depth, width**-0.5, causal, dtype,
        tensor(length, width), tensor(source, width), tensor(source, depth),
        dropout=Dropout(round(keep * 2**32), 1 / keep) if keep < 1 else None,
    )  # fmt: skip
    return p, dataclasses.replace(p, grad=tensor(length, depth))


def attentions(dev: device.Device, trials: list[Trial]) -> None:
    """`attention` of each; all programs are built at once first, as that takes the longest.

    Raises:
        DeviceError: as `attention`.
    """
    plans = [
        solver.plan(p, dev.info, store_epilogue(dtype))
        for case, dtype, _, solvers in trials
        for solver, p in zip(solvers, problems(case, dtype), strict=True)
        if solver is not None
    ]
    dev.programs.build([(x.source, x.options) for plan in plans for x in plan.launches])
    for trial in trials:
        attention(dev, *trial)


def attention(
    dev: device.Device, case: tuple, dtype: DType, bound: float, solvers: tuple
) -> None:
    """A result, its statistic and its gradients.

    Args:
        solvers: what plans them; either may be None, where the result or the gradients are
            another kernel's.

    Raises:
        DeviceError: of any step, or something is wrong.
    """
    forward, gradient = solvers
    batch, length, source, heads, width, depth, causal, keep = case
    rng = np.random.default_rng()
    sizes = ((length, width), (source, width), (source, depth), (length, depth))
    q, k, v, g = (
        rng.standard_normal((batch, n, heads, f), np.float32).astype(dtype.numpy) for n, f in sizes
    )
    p, backward = problems(case, dtype)
    scale = p.scale
    factors = np.ones((batch, heads, length, source))
    key = rng.integers(2**32, size=2, dtype=np.uint32)
    if keep < 1:
        factors = philox.kept(key, factors.shape, round(keep * 2**32)) / keep
    wide = [x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v, g)]
    logits = wide[0] @ wide[1].swapaxes(2, 3) * scale
    if causal:
        logits = np.where(np.tril(np.ones((length, source), bool)), logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    sums = weights.sum(-1, keepdims=True)
    weights /= sums
    dropped = weights * factors
    back = (wide[3] @ wide[2].swapaxes(2, 3)) * factors
    delta = (weights * back).sum(-1, keepdims=True)
    slope = weights * (back - delta) * scale
    wanted = {
        "out": slope @ wide[1], "dk": slope.swapaxes(2, 3) @ wide[0],
        "dv": dropped.swapaxes(2, 3) @ wide[3],
    }  # fmt: skip
    statistic = ((top + np.log(sums)) * LOG2_E)[..., 0]
    stat = np.ascontiguousarray(statistic, np.float32)
    if forward is not None:
        y = np.empty(g.shape, dtype.numpy)
        stat = np.empty_like(stat)
        plan = forward.plan(p, dev.info, store_epilogue(dtype))
        inputs = {"a": q, "b": k, "c": v} | ({"d": key} if keep < 1 else {})
        run(plan, inputs, y, dev, stat=stat)
        check("attention", y.astype(np.float64), (dropped @ wide[2]).transpose(0, 2, 1, 3), bound)
        check("attention's statistic", stat, statistic, bound)
    if gradient is None:
        return
    sums = np.ascontiguousarray(delta[..., 0].transpose(0, 2, 1), np.float32)
    inputs = {"a": q, "b": k, "c": v, "d": g, "e": stat, "f": sums}
    inputs |= {"g": key} if keep < 1 else {}
    outs = {n: np.empty(x.shape, dtype.numpy) for n, x in zip(wanted, (q, k, v), strict=True)}
    plan = gradient.plan(backward, dev.info, store_epilogue(dtype))
    run(plan, inputs, dev=dev, **outs)
    for name, want in wanted.items():
        got = outs[name].astype(np.float64)
        check(f"attention's gradient {name}", got, want.transpose(0, 2, 1, 3), bound)


def cases(dev: device.Device) -> None:
    """Each case in each dtype.

    Raises:
        DeviceError: as `attention`.
    """
    attentions(dev, [
        (case, dtype, bound, _solvers(*blocks))
        for case, blocks in CASES for dtype, bound in BOUNDS.items()
    ])  # fmt: skip


if __name__ == "__main__":
    selftest_child.main(cases)
