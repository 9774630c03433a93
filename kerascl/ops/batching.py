"""`vmap`: functions of one element on whole batches.  How each operation becomes batched stands
where it is declared, or here for its kind:

| operations | on batches |
|---|---|
| pointwise | the same, one axis more |
| reduction, view, gather | the same, with axes counted one further |
| scatter, scan, sort, search, attention | batches are more rows |
| matmul | one more batch axis; with one shared matrix on the right, more rows |
| conv and its gradients | batched images are more images; batched kernels are more groups |
| pooling | batches are more images |
| loop | a loop over steps of the whole batch |
| any other | element by element |
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

from kerascl.core.array import Array, apply
from kerascl.core.batch import BatchTrace, BatchTracer, install_batching
from kerascl.core.context import P, R, current
from kerascl.core.op import CONST, Kind, Op
from kerascl.core.structure import flatten
from kerascl.core.types import Attrs, Results
from kerascl.ops.batched import element_by_element
from kerascl.ops.declare import as_array
from kerascl.ops.movement import moveaxis
from kerascl.ops.reduction import any as some
from kerascl.ops.views import expand_to, moved_view, reshape_to

__all__ = ["vmap"]


def vmap(
    function: Callable[P, R], in_axes: int | Sequence[int | None] | None = 0, out_axes: int = 0
) -> Callable[P, R]:
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
    def mapped(*args: Any) -> Any:
        axes = in_axes if isinstance(in_axes, list | tuple) else (in_axes,) * len(args)
        if len(axes) != len(args):
            raise ValueError(f"vmap: {len(axes)} in_axes for {len(args)} arguments")
        batches: list[list[Any]] = []
        rebuilds = []
        for arg, axis in zip(args, axes, strict=True):
            leaves: list[Any] = []
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
        tracer = BatchTracer(sizes.pop())
        with tracer.active(), BatchTrace() as trace:
            result = cast(Callable[..., Any], function)(
                *(
                    rebuild(iter(leaves if axis is None else [tracer.wrap(x) for x in leaves]))
                    for rebuild, leaves, axis in zip(rebuilds, batches, axes, strict=True)
                )
            )
        trace.commit()
        leaves = []
        rebuild = flatten(result, leaves)[1]
        return rebuild(
            iter([None if y is None else moveaxis(tracer.broadcast(as_array(y)), 0, out_axes)
                  for y in leaves])
        )  # fmt: skip

    return cast(Callable[P, R], mapped)


def some_element(condition: Array) -> Array:
    """Whether a condition holds for any element of the batches that it is a tracer of."""
    tracer = next((tracer for tracer in reversed(current.tracers) if tracer.holds(condition)), None)
    return condition if tracer is None else some_element(some(tracer.batch(condition), 0))


def _pointwise(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
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


def _reduction(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    ((shape, dtype),) = results
    axes, *rest = attrs
    axes = tuple(a + 1 for a in axes)
    return [apply(op, tuple(inputs), (axes, *rest), (size, *shape), dtype)]


install_batching(
    {Kind.POINTWISE: _pointwise, Kind.REDUCTION: _reduction, Kind.VIEW: moved_view()},
    element_by_element,
    expand_to,
)
