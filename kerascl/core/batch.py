"""Functions of one element, run on a whole batch at once.

Inside `vmap`, a *lane* stands for one element of every batched array: an Array of the element's
shape whose node knows the whole batch.  `core.array.apply` hands an operation on lanes to
`Lane.apply`, which finds the same operation on whole batches by the rule that its declaration
names, else by that of its kind, and gives a lane of the result.  Tapes outside the vmap record what
happens to batches, tapes inside what happens to elements; so gradients work on both sides, and
vmaps may be nested.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kerascl.core.array import Array, State, innermost
from kerascl.core.context import current
from kerascl.core.errors import CaptureError
from kerascl.core.node import Node
from kerascl.core.op import LANE, Kind, Op
from kerascl.core.overlay import Overlay
from kerascl.core.types import Attrs, Gradients, Outputs, Results, Tape, Vjp

# rule(size, op, inputs, batched, attrs, results) -> batches: the operation on whole batches.
# `inputs` are batches (with a new first axis of `size`) where `batched` says so, else the same
# for every element; `results` are (shape, dtype) of one element.
Rule = Callable[[int, Op, list[Array], list[bool], Attrs, Results], Sequence[Array]]

# How arrays are broadcast to a shape.
Expand = Callable[[Array, tuple[int, ...]], Array]

_of_kind: dict[Kind, Rule] = {}
_fallback: list[Rule] = []
_expand: list[Expand] = []
_serial = itertools.count()


def install_batching(kinds: dict[Kind, Rule], fallback: Rule, expand: Expand) -> None:
    """The rules of kinds of operations, that for those without one, and how to broadcast; called by
    the ops room."""
    _of_kind.update(kinds)
    _fallback[:], _expand[:] = [fallback], [expand]


class Lane:
    """One call of a function mapped over a batch.

    Attributes:
        size: how many elements the batch has.
        serial: later ones are further inside.
    """

    __slots__ = ("size", "serial")

    def __init__(self, size: int):
        self.size = size
        self.serial = next(_serial)

    def __repr__(self) -> str:
        return f"<lane of {self.size}>"

    def wrap(self, batch: Array) -> Array:
        """The lane of a batch (size, …)."""
        node = batch._node
        return Array(Node(LANE, (), (self, batch), node.shape[1:], node.dtype, node.device))

    def holds(self, x: Array) -> bool:
        """Whether `x` is a lane of this call."""
        node = x._node
        return node.op is LANE and node.attrs[0] is self

    def batch(self, x: Array) -> Array:
        """The batch behind a lane; other arrays as they are."""
        return x._node.attrs[1] if self.holds(x) else x

    def spread(self, x: Array) -> Array:
        """The batch behind a lane; other arrays repeated for each element."""
        return x._node.attrs[1] if self.holds(x) else _expand[0](x, (self.size, *x.shape))

    def active(self) -> AbstractContextManager[None]:
        """A block whose operations know this lane."""
        return current.replaced(lanes=(*current.lanes, self))

    def apply(
        self, op: Op, inputs: tuple[Array, ...], attrs: Attrs, results: Results
    ) -> tuple[Array, ...]:
        """An operation some of whose inputs are lanes of this call; see `core.array.apply`."""
        rule = op.batch or _of_kind.get(op.kind) or _fallback[0]
        inside = [tape for tape in current.tapes if self in tape.lanes]
        with current.replaced(
            tapes=tuple([tape for tape in current.tapes if self not in tape.lanes]),
            lanes=tuple([lane for lane in current.lanes if lane is not self]),
        ):
            batched = [self.holds(x) for x in inputs]
            batches = rule(self.size, op, [self.batch(x) for x in inputs], batched, attrs, results)
            outputs = tuple([self.wrap(y) for y in batches])
        if op.vjp is not None:
            for tape in inside:
                tape.record(op.vjp, inputs, attrs, outputs if op.outputs > 1 else outputs[0])
        return outputs

    def record(
        self,
        tapes: Sequence[Tape],
        vjp: Vjp,
        inputs: tuple[Array, ...],
        outputs: Outputs,
        attrs: Attrs,
    ) -> None:
        """Note a derivative that is no operation's, of lanes, on tapes inside and outside."""
        outside = []
        for tape in tapes:
            if self in tape.lanes:
                tape.record(vjp, inputs, attrs, outputs)
            else:
                outside.append(tape)
        if not outside:
            return
        single = not isinstance(outputs, tuple)

        def of_batches(g: Outputs, y: Outputs, *rest: Any) -> Gradients:
            with self.active():
                lanes = tuple([self.wrap(d) for d in _several(g)])
                found = vjp(lanes[0] if single else lanes, outputs, *inputs, *attrs)
                return tuple([None if d is None else self.spread(d) for d in found])

        batches = [self.batch(y) for y in _several(outputs)]
        note(
            outside,
            of_batches,
            tuple([self.batch(x) for x in inputs]),
            batches[0] if single else tuple(batches),
        )


def _several(outputs: Outputs) -> tuple[Array, ...]:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def note(
    tapes: Sequence[Tape],
    vjp: Vjp,
    inputs: tuple[Array, ...],
    outputs: Outputs,
    attrs: Attrs = (),
) -> None:
    """Record on tapes that `outputs` came from `inputs`, whatever made them.

    Args:
        vjp: `vjp(g, outputs, *inputs, *attrs)`, gradients for the inputs (None for none).
        outputs: an Array or a tuple of them, which nothing else has made; lanes where inputs are
            (see `as_lanes`).
    """
    both = (*inputs, *_several(outputs))
    lane = innermost(both) if current.lanes else None
    if lane is not None:
        lane.record(tapes, vjp, inputs, outputs, attrs)
        return
    for tape in tapes:
        tape.record(vjp, inputs, attrs, outputs)


def as_lanes(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """`outputs` as lanes of every call that `inputs` are lanes of."""
    lane = innermost(inputs) if current.lanes else None
    if lane is None:
        return list(outputs)
    inner = as_lanes([lane.batch(x) for x in inputs], [lane.spread(y) for y in outputs])
    return [lane.wrap(y) for y in inner]


class BatchTrace(Overlay):
    """The trace of a function of one element: what it assigns must be the same for all."""

    def write(self, state: State, value: Array) -> None:
        if value._node.op is LANE:
            raise CaptureError(
                f"{state.name} is assigned a value that differs between the elements of a "
                "vectorized map"
            )
        super().write(state, value)
