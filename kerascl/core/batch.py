"""Functions of one element, run on a whole batch at once.

Inside `vmap`, a *batched array* stands for one element of a batch: an Array of the element's shape
whose node knows the whole batch, and the `BatchTracer` of the call.  `core.array.apply` hands an
operation on them to `BatchTracer.apply`, which finds the same operation on whole batches by
the rule that its declaration names, else by that of its kind.  Tapes outside the vmap record what
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
from kerascl.core.node import Node, new_serial
from kerascl.core.op import BATCHED, Kind, Op
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


class BatchTracer:
    """One call of a function mapped over a batch.

    Attributes:
        size: how many elements the batch has.
        serial: later ones are further inside.
        start: nodes that are made inside have a larger serial.
    """

    __slots__ = ("size", "serial", "start")

    def __init__(self, size: int):
        self.size = size
        self.serial = next(_serial)
        self.start = new_serial()

    def __repr__(self) -> str:
        return f"<batch tracer of {self.size}>"

    def wrap(self, batch: Array) -> Array:
        """The batched array of a batch (size, …)."""
        node = batch._node
        return Array(Node(BATCHED, (), (self, batch), node.shape[1:], node.dtype, node.device))

    def holds(self, x: Array) -> bool:
        """Whether `x` is a batched array of this call."""
        node = x._node
        return node.op is BATCHED and node.attrs[0] is self

    def batch(self, x: Array) -> Array:
        """The batch behind a batched array; other arrays as they are."""
        return x._node.attrs[1] if self.holds(x) else x

    def broadcast(self, x: Array) -> Array:
        """The batch behind a batched array; other arrays repeated for each element."""
        return x._node.attrs[1] if self.holds(x) else _expand[0](x, (self.size, *x.shape))

    def active(self) -> AbstractContextManager[None]:
        """A block whose operations know this tracer."""
        return current.replaced(tracers=(*current.tracers, self))

    def apply(
        self, op: Op, inputs: tuple[Array, ...], attrs: Attrs, results: Results
    ) -> tuple[Array, ...]:
        """An operation on batched arrays of this call, among others; see `core.array.apply`."""
        rule = op.batch or _of_kind.get(op.kind) or _fallback[0]
        inside = [tape for tape in current.tapes if self in tape.tracers]
        with current.replaced(
            tapes=tuple([tape for tape in current.tapes if self not in tape.tracers]),
            tracers=tuple([tracer for tracer in current.tracers if tracer is not self]),
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
        """Note a derivative that is no operation's, of batched arrays, on tapes inside and out."""
        outside = []
        for tape in tapes:
            if self in tape.tracers:
                tape.record(vjp, inputs, attrs, outputs)
            else:
                outside.append(tape)
        if not outside:
            return
        single = not isinstance(outputs, tuple)

        def of_batches(g: Outputs, y: Outputs, *rest: Any) -> Gradients:
            with self.active():
                tracers = tuple([self.wrap(d) for d in _several(g)])
                found = vjp(tracers[0] if single else tracers, outputs, *inputs, *attrs)
                return tuple([None if d is None else self.broadcast(d) for d in found])

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
        outputs: an Array or a tuple of them, which nothing else has made; batched where inputs are
            (see `as_batched`).
    """
    both = (*inputs, *_several(outputs))
    tracer = innermost(both) if current.tracers else None
    if tracer is not None:
        tracer.record(tapes, vjp, inputs, outputs, attrs)
        return
    for tape in tapes:
        tape.record(vjp, inputs, attrs, outputs)


def as_batched(inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """`outputs` as batched arrays of every call that `inputs` are batched arrays of."""
    tracer = innermost(inputs) if current.tracers else None
    if tracer is None:
        return list(outputs)
    inner = as_batched([tracer.batch(x) for x in inputs], [tracer.broadcast(y) for y in outputs])
    return [tracer.wrap(y) for y in inner]


class BatchTrace(Overlay):
    """The trace of a function of one element: what it assigns must be the same for all."""

    def write(self, state: State, value: Array) -> None:
        """Assign a State a value that is the same for all elements.

        Raises:
            CaptureError: it differs between elements."""
        if value._node.op is BATCHED:
            raise CaptureError(
                f"{state.name} is assigned a value that differs between the elements of a "
                "vectorized map"
            )
        super().write(state, value)
