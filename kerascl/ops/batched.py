"""Rules of `core.batch` that several operations share: how they are carried out on whole batches.

A rule gets the inputs as batches (size, …) where `batched` says so, else as one array for all
elements; the rule of one operation alone stands beside its declaration.
"""

from __future__ import annotations

from collections.abc import Sequence

from kerascl.core.array import Array, apply, apply_multi
from kerascl.core.op import Op
from kerascl.core.types import Attrs, Results
from kerascl.ops.views import concat, expand_to, reshape_to, window


def as_batches(size: int, inputs: Sequence[Array], batched: Sequence[bool]) -> list[Array]:
    """All inputs as batches."""
    return [
        x if b else expand_to(x, (size, *x.shape)) for x, b in zip(inputs, batched, strict=True)
    ]


def merge(x: Array) -> Array:
    """(size, n, …) as (size * n, …)."""
    return reshape_to(x, (x.shape[0] * x.shape[1], *x.shape[2:]))


def more_rows(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """Batches as a longer first axis of every input and result."""
    merged = tuple([merge(x) for x in as_batches(size, inputs, batched)])
    if op.outputs > 1:
        outputs = apply_multi(
            op, merged, attrs, [((size * s[0], *s[1:]), dtype) for s, dtype in results]
        )
    else:
        ((shape, dtype),) = results
        outputs = (apply(op, merged, attrs, (size * shape[0], *shape[1:]), dtype),)
    return [reshape_to(y, (size, *s)) for y, (s, _) in zip(outputs, results, strict=True)]


def element_by_element(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """The operation on one element after the other."""
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
