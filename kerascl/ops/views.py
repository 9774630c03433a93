"""Views on checked arguments: the part of `movement` that everything else stands on.

A view costs nothing: it becomes index arithmetic in the kernels that read it.
Nothing here validates or promotes; `movement` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl.core.array import Array, apply
from kerascl.core.batch import Rule
from kerascl.core.op import Kind, Op, ReductionSpec, register
from kerascl.core.types import Attrs, Gradients, Results, Shape, Vjp
from kerascl.dtypes import DType


def _plus(dtype: DType, other: str) -> str:
    if dtype.kind != "i":
        return f"s0 += {other};"
    return f"s0 = ({dtype.compute})(({dtype.wrapping})s0 + ({dtype.wrapping}){other});"


def _sum_spec(dtype: DType) -> ReductionSpec:
    exact = dtype.is_integer or dtype.is_bool
    text = _plus(dtype, "x"), _plus(dtype, "t0")
    lanes = "" if dtype.is_complex else text[0]
    if dtype.kind == "i":
        own = f"{dtype.compute}LANES"
        lanes = f"s0 = as_{own}(as_u{own}(s0) + as_u{own}(x));"
    return ReductionSpec((("acc", "0"),), *text, block=0 if exact else 16, lanes=lanes)


SUM_OP = register(
    Op(
        "sum", Kind.REDUCTION, reduction=_sum_spec,
        vjp=lambda g, y, x, axes: (expand_to(g, x.shape),),
    )
)  # fmt: skip

# The attributes of a view of whole batches, from those of a view of elements and the new shape.
Moved: TypeAlias = Callable[[Attrs, Shape], Attrs]


def moved_view(moved: Moved = lambda attrs, wide: attrs) -> Rule:
    """The rule for a view on whole batches: the same view, whose axes count one further.

    Args:
        moved: `moved(attrs, wide)`, the view's attributes there, where its shape is `wide`.
    """

    def rule(
        size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
    ) -> list[Array]:
        ((shape, dtype),) = results
        wide = (size, *shape)
        batches = [
            x if b else expand_to(x, (size, *x.shape)) for x, b in zip(inputs, batched, strict=True)
        ]
        return [apply(op, tuple(batches), moved(attrs, wide), wide, dtype)]

    return rule


def _view(name: str, vjp: Vjp, moved: Moved) -> Op:
    return register(Op(name, Kind.VIEW, vjp=vjp, batch=moved_view(moved)))


EXPAND = _view("expand", lambda g, y, x, shape: (sum_to(g, x.shape),), lambda attrs, wide: (wide,))
RESHAPE = _view(
    "reshape", lambda g, y, x, shape: (reshape_to(g, x.shape),), lambda attrs, wide: (wide,)
)
PERMUTE = _view(
    "permute", lambda g, y, x, axes: (permute(g, inverse(axes)),),
    lambda attrs, wide: ((0, *(a + 1 for a in attrs[0])),),
)  # fmt: skip
FLIP = _view(
    "flip", lambda g, y, x, axes: (flip_axes(g, axes),),
    lambda attrs, wide: (tuple(a + 1 for a in attrs[0]),),
)  # fmt: skip


def _slice_vjp(
    g: Array, y: Array, x: Array, starts: Sequence[int], steps: Sequence[int]
) -> Gradients:
    high = [
        n - s - ((m - 1) * k + 1 if m else 0)
        for n, s, m, k in zip(x.shape, starts, g.shape, steps, strict=True)
    ]
    return (pad_with(g, starts, high, [k - 1 for k in steps], 0),)


def _pad_vjp(
    g: Array, y: Array, x: Array, low: Sequence[int], gap: Sequence[int], value: complex
) -> Gradients:
    stops = [
        at + (n - 1) * (s + 1) + 1 if n else at for at, n, s in zip(low, x.shape, gap, strict=True)
    ]
    return (strided(g, low, stops, [s + 1 for s in gap]),)


def _concat_vjp(g: Array, y: Array, *rest: Any) -> Gradients:
    *arrays, axis = rest
    parts, start = [], 0
    for x in arrays:
        parts.append(window(g, axis, start, start + x.shape[axis]))
        start += x.shape[axis]
    return parts


SLICE = _view("slice", _slice_vjp, lambda attrs, wide: ((0, *attrs[0]), (1, *attrs[1])))
# Element o of an axis comes from (o - low) / (gap + 1) where that is whole and in range; the
# others are `value`.
PAD = _view("pad", _pad_vjp, lambda attrs, wide: ((0, *attrs[0]), (0, *attrs[1]), attrs[2]))
CONCAT = _view("concat", _concat_vjp, lambda attrs, wide: (attrs[0] + 1,))

# Arrays that one kernel joins; more are joined in several steps, so that kernels stay small.
CONCAT_MOST = 24


def reshape_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with another shape of the same size."""
    if x._node.shape == shape:
        return x
    return apply(RESHAPE, (x,), (shape,), shape, x._node.dtype)


def expand_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` broadcast to `shape`."""
    own = x._node.shape
    if own == shape:
        return x
    if len(own) < len(shape):
        x = reshape_to(x, (1,) * (len(shape) - len(own)) + own)
        if x._node.shape == shape:
            return x
    return apply(EXPAND, (x,), (shape,), shape, x._node.dtype)


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of `expand_to`: sum the axes that were broadcast."""
    lead = g.ndim - len(shape)
    wide = (1,) * lead + shape
    axes = tuple(a for a, (n, m) in enumerate(zip(g.shape, wide, strict=True)) if n != m)
    if axes:
        g = apply(SUM_OP, (g,), (axes,), wide, g.dtype)
    return reshape_to(g, shape)


def inverse(axes: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `axes`."""
    result = [0] * len(axes)
    for position, axis in enumerate(axes):
        result[axis] = position
    return tuple(result)


def permute(x: Array, axes: tuple[int, ...]) -> Array:
    """`x` with its axes permuted."""
    if axes == tuple(range(len(axes))):
        return x
    return apply(PERMUTE, (x,), (axes,), tuple(x.shape[a] for a in axes), x.dtype)


def flip_axes(x: Array, axes: tuple[int, ...]) -> Array:
    """`x` reversed along `axes`."""
    axes = tuple(a for a in axes if x.shape[a] > 1)
    return apply(FLIP, (x,), (axes,), x.shape, x.dtype) if axes else x


def strided(x: Array, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    """x[starts:stops:steps] with one non-negative start, stop and positive step for each axis."""
    shape = tuple(max(0, -(-(e - s) // k)) for s, e, k in zip(starts, stops, steps, strict=True))
    if shape == x.shape:
        return x
    return apply(SLICE, (x,), (tuple(starts), tuple(steps)), shape, x.dtype)


def window(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """x[start:stop:step] along one axis."""
    starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return strided(x, starts, stops, steps)


def pad_with(
    x: Array, low: Sequence[int], high: Sequence[int], gap: Sequence[int], value: complex
) -> Array:
    """Pad (negative: crop) each axis, with `gap` new elements between neighbours."""
    low, high = list(low), list(high)
    if min(low, default=0) < 0 or min(high, default=0) < 0:
        starts, stops = [0] * x.ndim, list(x.shape)
        for a in range(x.ndim):
            step = gap[a] + 1
            if low[a] < 0:
                starts[a] = -(low[a] // step)
                low[a] += starts[a] * step
            if high[a] < 0:
                cut = -(high[a] // step)
                stops[a] = max(starts[a], stops[a] - cut)
                high[a] += cut * step
        x = strided(x, starts, stops, [1] * x.ndim)
    shape = tuple(
        before + after + (n + (n - 1) * s if n else 0)
        for n, before, after, s in zip(x.shape, low, high, gap, strict=True)
    )
    if shape == x.shape and not any(low):
        return x
    return apply(PAD, (x,), (tuple(low), tuple(gap), value), shape, x.dtype)


def concat(arrays: Sequence[Array], axis: int) -> Array:
    """Join arrays of one dtype that differ only along `axis`."""
    arrays = [x for x in arrays if x.shape[axis]] or list(arrays[:1])
    if len(arrays) == 1:
        return arrays[0]
    while len(arrays) > CONCAT_MOST:
        arrays = [
            concat(arrays[k : k + CONCAT_MOST], axis).evaluate()
            for k in range(0, len(arrays), CONCAT_MOST)
        ]
    shape = list(arrays[0].shape)
    shape[axis] = sum(x.shape[axis] for x in arrays)
    return apply(CONCAT, tuple(arrays), (axis,), tuple(shape), arrays[0].dtype)
