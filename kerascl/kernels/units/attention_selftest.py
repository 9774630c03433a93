"""Attention with attention_mma.cl: its self-test, and what those of other kernels share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kerascl import dtypes, philox
from kerascl.dtypes import DType
from kerascl.kernels.attention.problem import (
    LOG2_E,
    AttentionProblem,
    Dropout,
    KeptProblem,
    Tensor,
    kept_words,
)
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units.attention import FragmentBlock
from kerascl.runtime.device import DeviceInfo

# Batch entries, queries, keys, heads, features of keys and of values, whether it is causal, and the
# chance that a weight is kept; then the blocks of both solvers, of which each kind is tried: by the
# words of a part between dtype and direction.  Of each a case of features that are no multiple of
# what the units take.
CASES = {
    "": (
        ((2, 140, 140, 2, 64, 64, False, 1.0), (FragmentBlock(4, 2, 32), FragmentBlock(4, 1, 32))),
        ((2, 75, 70, 2, 20, 36, False, 1.0), (FragmentBlock(4, 1, 32), FragmentBlock(2, 1, 40))),
    ),
    "causal": (
        ((1, 140, 140, 3, 64, 64, True, 1.0), (FragmentBlock(4, 2, 32), FragmentBlock(4, 1, 32))),
        ((1, 50, 78, 2, 33, 18, True, 1.0), (FragmentBlock(2, 1, 16), FragmentBlock(2, 1, 32))),
    ),
    "dropout": (
        ((2, 70, 90, 2, 64, 64, False, 0.75), (FragmentBlock(4, 2, 40), FragmentBlock(4, 1, 40))),
        ((1, 50, 78, 2, 33, 18, False, 0.9), (FragmentBlock(2, 1, 16), FragmentBlock(2, 1, 32))),
    ),
    "causal dropout": (
        ((2, 70, 90, 2, 64, 64, True, 0.75), (FragmentBlock(4, 2, 40), FragmentBlock(4, 1, 40))),
        ((1, 75, 70, 2, 20, 36, True, 0.9), (FragmentBlock(4, 1, 32), FragmentBlock(2, 1, 40))),
    ),
}
BOUNDS = {dtypes.float32: 2e-3, dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}
WAYS = "forward", "gradient"
PARTS = tuple(
    " ".join(filter(None, (dtype.name, case, way)))
    for dtype in BOUNDS for case in CASES for way in WAYS
)  # fmt: skip

# A case, its dtype, bound and solvers of both ways, of which either may be None.
Case = tuple[tuple, DType, float, tuple]


def _solvers(forward: FragmentBlock, gradient: FragmentBlock) -> tuple:
    kinds = unit_attention.FragmentAttention, unit_attention.FragmentAttentionGradient
    return kinds[0](forward), kinds[1](gradient)


def one_way(way: str, solvers: Sequence[Any]) -> tuple:
    """Of solvers of both ways, the other is left out."""
    forward, gradient = solvers
    return (forward, None) if way == WAYS[0] else (None, gradient)


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


def attentions(
    info: DeviceInfo, cases: Iterable[Case], kept: Sequence[bool] = (False,)
) -> Iterator[Trial]:
    """Results and statistics of some cases, and their gradients.

    Args:
        kept: where there is dropout, whether what it keeps lies in memory: each in turn.
    """
    for case, dtype, bound, solvers in cases:
        known = functools.partial(_values, case, dtype)
        makes = _forward, _backward
        for solver, p, make in zip(solvers, problems(case, dtype), makes, strict=True):
            for keeps in kept if p.dropout else (False,):
                if solver is None:
                    continue
                if keeps:
                    fields = {f.name: getattr(p, f.name) for f in dataclasses.fields(p)}
                    p = KeptProblem(**fields)
                plan = solver.plan(p, info, store_epilogue(dtype))
                yield Trial(plan, functools.partial(make, known, bound, keeps))


@dataclasses.dataclass(frozen=True)
class _Values:
    """Inputs of a case, and what it gives in float64.

    Attributes:
        inputs: queries, keys, values and the result's gradient.
        key: of dropout's generator, where there is any.
        out, statistic: the result, and the logarithm of the sums to base 2.
        kept: what dropout keeps, see `KeptProblem`; `seen` has the bits that queries see.
        back: gives the sums of the result's gradient times the result, for each row, and the
            slopes of the queries, keys and values, with heads before rows.
    """

    inputs: tuple[np.ndarray, ...]
    key: dict[str, np.ndarray]
    out: np.ndarray
    statistic: np.ndarray
    kept: np.ndarray
    seen: np.ndarray
    back: Callable[[], tuple[np.ndarray, dict[str, np.ndarray]]]


@functools.lru_cache(maxsize=8)  # both directions, and several kernels, take the same
def _values(case: tuple, dtype: DType) -> _Values:
    batch, length, source, heads, width, depth, causal, keep = case
    rng = np.random.default_rng()
    sizes = ((length, width), (source, width), (source, depth), (length, depth))
    inputs = tuple(
        rng.standard_normal((batch, n, heads, f), np.float32).astype(dtype.numpy) for n, f in sizes
    )
    scale = width**-0.5
    factors = np.ones((batch, heads, length, source))
    key = rng.integers(2**32, size=2, dtype=np.uint32)
    if keep < 1:
        factors = philox.kept(key, factors.shape, round(keep * 2**32)) / keep
    q, k, v, g = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in inputs)
    logits = q @ k.swapaxes(2, 3) * scale
    if causal:
        logits = np.where(np.tril(np.ones((length, source), bool)), logits, -np.inf)
    top = logits.max(-1, keepdims=True)
    weights = np.exp(logits - top)
    sums = weights.sum(-1, keepdims=True)
    weights /= sums
    dropped = weights * factors
    kept, seen = _packed(factors > 0), _packed(np.broadcast_to(np.isfinite(logits), factors.shape))

    def back() -> tuple[np.ndarray, dict[str, np.ndarray]]:
        through = (g @ v.swapaxes(2, 3)) * factors
        delta = (weights * through).sum(-1, keepdims=True)
        slope = weights * (through - delta) * scale
        return np.ascontiguousarray(delta[..., 0].transpose(0, 2, 1), np.float32), {
            "out": slope @ k, "dk": slope.swapaxes(2, 3) @ q, "dv": dropped.swapaxes(2, 3) @ g,
        }  # fmt: skip

    return _Values(
        inputs, {"key": key} if keep < 1 else {}, (dropped @ v).transpose(0, 2, 1, 3),
        ((top + np.log(sums)) * LOG2_E)[..., 0], kept, seen, back,
    )  # fmt: skip


def _packed(x: np.ndarray) -> np.ndarray:
    """A bit for each element, rows of `kept_words`."""
    whole = np.zeros((*x.shape[:-1], 32 * kept_words(x.shape[-1])), np.uint8)
    whole[..., : x.shape[-1]] = x
    return np.packbits(whole, -1, bitorder="little").view("<u4")


def _forward(known, bound: float, keeps: bool) -> Data:
    x = known()
    kept = np.empty_like(x.kept)
    y = np.empty(x.out.shape, x.inputs[0].dtype)
    statistic = np.empty(x.statistic.shape, np.float32)

    def verdict() -> None:
        check("attention", y.astype(np.float64), x.out, bound)
        check("attention's statistic", statistic, x.statistic, bound)
        if keeps:
            got, want = ((bits & x.seen).astype(np.int64) for bits in (kept, x.kept))
            check("what attention's dropout keeps", got, want, 0.0)

    inputs = dict(zip("abcd", (*x.inputs[:3], *x.key.values())))
    more = {"kept": kept} if keeps else {}
    return Data(inputs, {"out": y, "stat": statistic} | more, verdict)


def _backward(known, bound: float, keeps: bool) -> Data:
    x = known()
    sums, slopes = x.back()
    outs = {name: np.empty_like(y) for name, y in zip(slopes, x.inputs[:3], strict=True)}

    def verdict() -> None:
        for name, want in slopes.items():
            got = outs[name].astype(np.float64)
            check(f"attention's gradient {name}", got, want.transpose(0, 2, 1, 3), bound)

    given = (*x.inputs, x.statistic.astype(np.float32), sums, *x.key.values())
    more = {"h": x.kept} if keeps else {}
    return Data(dict(zip("abcdefg", given)) | more, outs, verdict)


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """The cases of a part."""
    dtype, _, (*words, way) = part.parsed(of)
    return attentions(info, [
        (case, dtype, BOUNDS[dtype], one_way(way, _solvers(*blocks)))
        for case, blocks in CASES[" ".join(words)]
    ], kept=(False, True))  # fmt: skip
