"""`vmap`: functions of one element on whole batches, and how each operation becomes batched.

| operations | on batches |
|---|---|
| pointwise | the same, one axis more |
| fold, view, gather | the same, with axes counted one further |
| scatter, scan, sort, search, attention | batches are more rows |
| matmul | one more batch axis; with one shared matrix on the right, more rows |
| conv and its gradients | batched images are more images; batched kernels are more groups |
| pooling | batches are more images |
| loop | a loop over steps of the whole batch |
| any other | element by element |
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from kerascl.core.array import Array, apply, apply_multi
from kerascl.core.batch import RULES, BatchTrace, Lane, install_batching
from kerascl.core.op import CONST, Kind, Op
from kerascl.core.scope import current
from kerascl.core.structure import flatten
from kerascl.ops.control import loop
from kerascl.ops.declare import as_array
from kerascl.ops.movement import iota, moveaxis
from kerascl.ops.pointwise import logical_and, where
from kerascl.ops.reduction import any as some
from kerascl.ops.views import concat, expand_to, permute, reshape_to, window

__all__ = ["vmap"]

_MATMUL_AXES = 3  # batch axes that the matrix product takes


def vmap(function: Callable, in_axes=0, out_axes: int = 0) -> Callable:
    """A function of batches from a function of one element.

    The function runs once.  Each operation is carried out for the whole batch, so that the work
    is that of batched code; those without a rule (see the table above) run element by element.
    It may be used inside itself, inside `jit`, and with gradients on either side.

    Args:
        function: takes and returns nested structures of Arrays.  Assignments of States must not
            depend on the element, and random numbers are the same for all unless keys differ.
        in_axes: the axis of the batch in every argument, or one for each argument, where None
            passes the argument whole to each element.
        out_axes: where the batch's axis goes in the results.

    Raises:
        CaptureError: when the function needs an element's value on the host.
        ValueError: when no argument has a batch, or sizes differ.
    """

    @functools.wraps(function)
    def mapped(*args):
        axes = in_axes if isinstance(in_axes, list | tuple) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(f"vmap: {len(axes)} in_axes for {len(args)} arguments")
        batches, rebuilds = [], []
        for arg, axis in zip(args, axes, strict=True):
            leaves: list = []
            rebuild = flatten(arg, leaves)[1]
            if axis is not None:
                leaves = [moveaxis(as_array(x), axis, 0) for x in leaves]
            batches.append(leaves)
            rebuilds.append(rebuild)
        mapped_over = [x for leaves, a in zip(batches, axes, strict=True) if a is not None
                       for x in leaves]  # fmt: skip
        sizes = {x.shape[0] for x in mapped_over}
        if len(sizes) != 1:
            raise ValueError(f"vmap: the batch's sizes {sorted(sizes)} differ or there is no batch")
        lane = Lane(sizes.pop())
        with lane.active(), BatchTrace() as trace:
            result = function(
                *(
                    rebuild(iter(leaves if axis is None else [lane.wrap(x) for x in leaves]))
                    for rebuild, leaves, axis in zip(rebuilds, batches, axes, strict=True)
                )
            )
        trace.commit()
        leaves = []
        rebuild = flatten(result, leaves)[1]
        return rebuild(
            iter([None if y is None else moveaxis(lane.spread(as_array(y)), 0, out_axes)
                  for y in leaves])
        )  # fmt: skip

    return mapped


def some_element(condition: Array) -> Array:
    """Whether a condition holds for any element of the batches that it is a lane of."""
    lane = next((lane for lane in reversed(current.lanes) if lane.holds(condition)), None)
    return condition if lane is None else some_element(some(lane.batch(condition), 0))


def _element_by_element(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    rows = []
    for k in range(size):
        parts = tuple(
            [
                reshape_to(window(x, 0, k, k + 1), x.shape[1:]) if b else x
                for x, b in zip(inputs, batched, strict=True)
            ]
        )
        if op.outputs > 1:
            rows.append(apply_multi(op, parts, attrs, results))
        else:
            rows.append((apply(op, parts, attrs, *results[0]),))
    return [
        concat([reshape_to(y, (1, *y.shape)) for y in column], 0)
        for column in zip(*rows, strict=True)
    ]


def _lead(size: int, inputs: Sequence[Array], batched: Sequence[bool]) -> list[Array]:
    """All inputs as batches."""
    return [
        x if b else expand_to(x, (size, *x.shape)) for x, b in zip(inputs, batched, strict=True)
    ]


def _pointwise(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    wide, arguments = (size, *shape), []
    for x, b in zip(inputs, batched, strict=True):
        if b:
            if x.ndim < len(wide):
                x = reshape_to(x, (size, *[1] * (len(wide) - x.ndim), *x.shape[1:]))
            x = expand_to(x, wide)
        elif x._node.op is not CONST:
            x = expand_to(x, wide)
        arguments.append(x)
    return [apply(op, tuple(arguments), attrs, wide, dtype)]


def _fold(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    axes, *rest = attrs
    axes = tuple(a + 1 for a in axes)
    return [apply(op, tuple(inputs), (axes, *rest), (size, *shape), dtype)]


def _view(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    wide = (size, *shape)
    inputs = _lead(size, inputs, batched)
    if op.name in ("expand", "reshape"):
        attrs = (wide,)
    elif op.name == "permute":
        attrs = ((0, *(a + 1 for a in attrs[0])),)
    elif op.name == "flip":
        attrs = (tuple(a + 1 for a in attrs[0]),)
    elif op.name == "slice":
        attrs = ((0, *attrs[0]), (1, *attrs[1]))
    elif op.name == "pad":
        attrs = ((0, *attrs[0]), (0, *attrs[1]), attrs[2])
    elif op.name == "concat":
        attrs = (attrs[0] + 1,)
    elif op.name not in ("alias", "barrier"):
        raise NotImplementedError(f"vmap: the view {op.name}")
    return [apply(op, tuple(inputs), attrs, wide, dtype)]


def _gather(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    (spec,) = attrs
    wide = (size, *shape)
    spec = tuple((kind, k + 1 if kind == "d" else k) for kind, k in spec)
    if batched[0]:
        spec = (("d", 0), *spec)
    indices = [expand_to(x, wide) for x in inputs[1:]]
    return [apply(op, (inputs[0], *indices), (spec,), wide, dtype)]


def _merge(x: Array) -> Array:
    """(size, n, …) as (size * n, …)."""
    return reshape_to(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def _more_rows(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    """Batches as a longer first axis of every input and result."""
    inputs = tuple([_merge(x) for x in _lead(size, inputs, batched)])
    if op.outputs > 1:
        outputs = apply_multi(
            op, inputs, attrs, [((size * s[0], *s[1:]), dtype) for s, dtype in results]
        )
    else:
        ((shape, dtype),) = results
        outputs = (apply(op, inputs, attrs, (size * shape[0], *shape[1:]), dtype),)
    return [reshape_to(y, (size, *s)) for y, (s, _) in zip(outputs, results, strict=True)]


def _scatter(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    rows = shape[0]
    if size * rows >= 2**31:
        return _element_by_element(size, op, inputs, batched, attrs, results)
    base, indices, updates = _lead(size, inputs, batched)
    inside = logical_and(indices >= 0, indices < rows)  # those outside are dropped
    indices = where(inside, indices + iota(indices.shape, 0) * rows, -1)
    merged = (_merge(base), _merge(indices), _merge(updates))
    return [reshape_to(apply(op, merged, attrs, (size * rows, *shape[1:]), dtype), (size, *shape))]


def _matmul(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    ((shape, dtype),) = results
    a, b = inputs
    if not batched[1] and b.ndim == 2:
        flat = apply(op, (_merge(a), b), attrs, (size * shape[0], shape[1]), dtype)
        return [reshape_to(flat, (size, *shape))]
    a, b = _lead(size, inputs, batched)
    lead = (size, *shape[:-2])
    if len(lead) > _MATMUL_AXES:
        count = math.prod(lead)
        a, b = (reshape_to(x, (count, *x.shape[-2:])) for x in (a, b))
        lead = (count,)
    flat = apply(op, (a, b), attrs, (*lead, *shape[-2:]), dtype)
    return [reshape_to(flat, (size, *shape))]


def _conv(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    """x and y (N, …, channels) and w (*kernel, channels, filters), two of them inputs."""
    kernel_given = op.name != "conv_filter_grad"
    if kernel_given and not batched[1]:
        return _images(size, op, inputs, batched, attrs, results)
    ((shape, dtype),) = results
    strides, pads, dilation, groups, first, *rest = attrs
    inputs = _lead(size, inputs, batched)

    def wide_images(x: Array) -> Array:
        """(size, N, …, C) as (N, …, size * C)."""
        axis = 2 if first else x.ndim - 1
        order = [a for a in range(1, x.ndim) if a != axis]
        place = axis - 1
        order[place:place] = [0, axis]
        moved = permute(x, tuple(order))
        lead = moved.shape[:place]
        rest = moved.shape[place + 2 :]
        return reshape_to(moved, (*lead, size * x.shape[axis], *rest))

    def wide_kernel(w: Array) -> Array:
        """(size, *kernel, C, K) as (*kernel, C, size * K)."""
        moved = permute(w, (*range(1, w.ndim - 1), 0, w.ndim - 1))
        return reshape_to(moved, (*moved.shape[:-2], size * w.shape[-1]))

    attrs = (strides, pads, dilation, groups * size, first, *rest)
    if kernel_given:
        axis = 1 if first else len(shape) - 1
        wide = (*shape[:axis], size * shape[axis], *shape[axis + 1 :])
        y = apply(op, (wide_images(inputs[0]), wide_kernel(inputs[1])), attrs, wide, dtype)
        y = reshape_to(y, (*shape[:axis], size, *shape[axis:]))
        return [moveaxis(y, axis, 0)]
    wide = (*shape[:-1], size * shape[-1])
    w = apply(op, tuple([wide_images(x) for x in inputs]), attrs, wide, dtype)
    return [moveaxis(reshape_to(w, (*shape[:-1], size, shape[-1])), -2, 0)]


def _images(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    """A convolution of batched images with one kernel."""
    ((shape, dtype),) = results
    flat = apply(op, (_merge(inputs[0]), inputs[1]), attrs, (size * shape[0], *shape[1:]), dtype)
    return [reshape_to(flat, (size, *shape))]


def _loop(size: int, op: Op, inputs, batched, attrs, results) -> list[Array]:
    body, length, reverse, history = attrs
    carries, slices = len(body.carry), len(body.slices)
    carry = _lead(size, inputs[:carries], batched[:carries])
    # slices are taken along the steps, so that these come first
    xs = [moveaxis(x, 1, 0) if b else x
          for x, b in zip(inputs[carries : carries + slices],
                          batched[carries : carries + slices], strict=True)]  # fmt: skip
    flags = batched[carries:]
    captured = inputs[carries + slices :]

    def step(carry, now):
        lane = Lane(size)
        with lane.active():
            rest = [lane.wrap(x) if b else x for x, b in zip([*now, *captured], flags, strict=True)]
            new, out = body.run([lane.wrap(c) for c in carry], rest[:slices], rest[slices:])
        streamed = [lane.spread(y) for y in out]
        return [lane.spread(c) for c in new], [*streamed, *(carry if history else ())]

    final, streamed = loop(step, carry, xs, length, reverse)
    return [*final, *(moveaxis(y, 0, 1) for y in streamed)]


install_batching(_element_by_element, expand_to)
RULES.update({
    Kind.POINTWISE: _pointwise,
    Kind.FOLD: _fold,
    Kind.VIEW: _view,
    Kind.GATHER: _gather,
    "scatter": _scatter,
    "scan": _more_rows,
    "sort": _more_rows,
    "search": _more_rows,
    "attention": _more_rows,
    "attention_grad": _more_rows,
    "matmul": _matmul,
    "conv": _conv,
    "conv_data_grad": _conv,
    "conv_filter_grad": _conv,
    "pool_max": _more_rows,
    "pool_max_grad": _more_rows,
    "pool_max_select": _more_rows,
    "pool_average": _more_rows,
    "pool_average_grad": _more_rows,
    "loop": _loop,
})  # fmt: skip
