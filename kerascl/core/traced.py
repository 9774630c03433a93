"""Functions traced once: a graph from inputs to outputs, which can be run again and differentiated.

The derivative of a `TracedFunction` is another one, made by taking gradients symbolically along
what the trace recorded; so derivatives of one's own inside it count, to any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kerascl.core import node as graph
from kerascl.core.array import Array, State, apply, apply_multi
from kerascl.core.batch import as_batched, note
from kerascl.core.context import P, R, current
from kerascl.core.errors import CaptureError
from kerascl.core.holders import enrol
from kerascl.core.node import Node
from kerascl.core.op import ARGUMENT, CONST, PICK, Kind, Op, register
from kerascl.core.overlay import Overlay
from kerascl.core.structure import flatten
from kerascl.core.tape import Record, backward, pause, private_tapes, stop_gradient, swap_records
from kerascl.core.types import Gradients, Outputs, Tape

# The same value; what is computed from it is not taken from what was computed without it.
BARRIER = register(Op("barrier", Kind.VIEW, vjp=lambda g, y, x: (g,)))


class TracedFunction:
    """A traced function.

    Args:
        outside: nodes of the trace that count as from outside.

    Attributes:
        arguments: stand-ins for its inputs.
        outputs: what they become.
        records: what a tape noted on the way; empty when it was traced without derivatives.
        captured: Arrays from outside that it reads.
        nodes: what lies between, inputs first.
        found: of a gradient: which of the function's arguments and captured Arrays have one.
        start: its own nodes have a larger serial.
    """

    def __init__(
        self,
        arguments: Iterable[Array],
        outputs: Iterable[Array],
        records: list[Record],
        start: int,
        outside: Iterable[Node] = (),
    ):
        self.arguments: list[Array] = list(arguments)
        self.outputs: list[Array] = list(outputs)
        self.records = records
        self.start = start
        self._outside = {id(node) for node in outside}
        enrol(self)
        self.nodes, self.captured = self._inside()
        self.found: list[bool] = []
        self._gradient: TracedFunction | None = None

    def _inside(self) -> tuple[list[Node], list[Array]]:
        """The nodes to run, inputs first, and the Arrays from outside that they read."""
        own = {id(x._node) for x in self.arguments}
        nodes: list[Node] = []
        captured: dict[int, Node] = {}
        seen = set(own)
        stack = [y._node for y in self.outputs]
        while stack:
            node = stack.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            given = node.op.kind is Kind.LEAF or id(node) in self._outside
            if given or (node.serial < self.start and self._is_source(node)):
                captured[id(node)] = node
            else:
                nodes.append(node)
                stack.extend(node.inputs)
        nodes.sort(key=lambda n: n.serial)
        outside = sorted(captured.values(), key=lambda n: n.serial)
        return nodes, [handle(n) for n in outside]

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        for held in (self.arguments, self.outputs, self.captured):
            held[:] = [other if x is array else x for x in held]
        swap_records(self.records, array, other)

    def _is_source(self, node: Node) -> bool:
        """Whether a gradient for a node from outside may be asked: of constants, if held."""
        if node.op is not CONST:
            return True
        return bool(self.records) and node.dtype.is_float and _held(node) is not None

    def replay(self, inputs: Sequence[Array], captured: dict[int, Array]) -> list[Array]:
        """The outputs for other inputs, operation by operation.

        Args:
            captured: by the id of its node, what to read instead of a captured Array.
        """
        value: dict[int, Any] = {id(x._node): x for x in self.captured} | captured
        value |= {id(a._node): x for a, x in zip(self.arguments, inputs, strict=True)}
        for node in self.nodes:
            if node.op is CONST:
                value[id(node)] = handle(node)
            elif node.op is PICK:
                value[id(node)] = value[id(node.inputs[0])][node.attrs[0]]
            else:
                read = tuple([value[id(x)] for x in node.inputs])
                if node.op.outputs > 1:
                    value[id(node)] = apply_multi(node.op, read, node.attrs, node.results)
                else:
                    value[id(node)] = apply(node.op, read, node.attrs, node.shape, node.dtype)
        return [value[id(y._node)] for y in self.outputs]

    def gradient(self) -> TracedFunction:
        """From the inputs and an upstream gradient for each floating output to the gradients of
        the inputs and of the captured Arrays; `found` tells which of these there are."""
        if self._gradient is None:
            smooth = [y for y in self.outputs if is_smooth(y)]
            upstream = [_argument(y) for y in smooth]
            sources = [*self.arguments, *self.captured]
            tape, tapes = private_tapes(current.tapes)
            tape.records.extend(self.records)

            def run() -> list[Array | None]:
                return backward(self.records, smooth, list(upstream), sources)

            grads, _ = _apart(run, tapes)
            traced = TracedFunction(
                [*self.arguments, *upstream],
                [g for g in grads if g is not None],
                tape.records,
                self.start,
            )
            traced.found = [g is not None for g in grads]
            self._gradient = traced
        return self._gradient

    def call(
        self,
        inputs: Sequence[Array],
        captured: dict[int, Array] | None = None,
        again: bool = False,
        finish: Callable[[Array], Array] | None = None,
        context: Sequence[Array] = (),
    ) -> list[Array]:
        """The outputs for other inputs; active tapes note the call as a whole.

        Tapes keep the inputs only: the derivative computes what is between once more.

        Args:
            captured: by the id of its node, what to read instead of a captured Array.
            again: that computation happens in the backward pass, even if its values are known
                from the forward pass.
            finish: what to do to each gradient before it leaves the function.
            context: what `finish` reads.
        """
        captured = captured or {}
        reads = [captured.get(id(x._node), x) for x in self.captured]
        tapes = current.tapes
        with pause():
            outputs = [stop_gradient(y) for y in self.replay(inputs, captured)]
            known = (*inputs, *reads)
            outputs = as_batched((*known, *context), outputs)
        if tapes and outputs:
            smooth = [is_smooth(y) for y in outputs]

            def vjp(g: tuple[Array, ...], y: Outputs, *arrays: Array) -> Gradients:
                if again:
                    arrays = tuple([apply(BARRIER, (x,), (), x.shape, x.dtype) for x in arrays])
                upstream = [d for d, used in zip(g, smooth, strict=True) if used]
                traced = self.gradient()
                inner = {id(c._node): x for c, x in
                         zip(self.captured, arrays[len(inputs) :], strict=True)}  # fmt: skip
                grads = traced.call([*arrays[: len(inputs)], *upstream], inner)
                made = iter(grads if finish is None else [finish(d) for d in grads])
                return tuple([next(made) if found else None for found in traced.found])

            note(tapes, vjp, known, tuple(outputs))
        return outputs


def is_smooth(x: Array) -> bool:
    """Whether an array can have a gradient, by its dtype."""
    return x.dtype.is_float or x.dtype.is_complex


def _held(node: Node) -> Array | None:
    return node.handle() if node.handle is not None else None


def handle(node: Node) -> Array:
    """The Array of a node: the one in use, if there is one, since tapes know it."""
    array = _held(node)
    return Array(node) if array is None else array


def _argument(like: Array) -> Array:
    node = like._node
    return Array(Node(ARGUMENT, (), ("traced",), node.shape, node.dtype, node.device))


def _apart(
    run: Callable[[], R], private: tuple[Tape, ...], start: int | None = None
) -> tuple[R, dict[int, tuple[State, Array]]]:
    """`run()` in a trace of its own, with tapes of its own, and what it assigned."""
    # elements of batches outside are inputs here
    with current.replaced(tapes=private, tracers=()), Overlay(start) as overlay:
        return run(), overlay.written


def trace(
    function: Callable[[list[Array]], Sequence[Array]], inputs: Sequence[Array]
) -> tuple[TracedFunction, list[State]]:
    """The trace of `function(list of Arrays) -> list of Arrays`, for inputs of these shapes.

    It can be differentiated where tapes are active.

    Returns:
        The `TracedFunction`, whose last outputs are the values that the function assigned to
        States; and these States.

    Raises:
        CaptureError: when the function needs a value on the host.
    """
    start = graph.new_serial()
    arguments = [_argument(x) for x in inputs]
    places = [x._node for x in arguments]
    tape, tapes = private_tapes(current.tapes)
    outputs, written = _apart(lambda: function(arguments), tapes, start)
    arguments = [handle(node) for node in places]  # the function may have assigned their elements
    outputs = [*outputs, *(value for _, value in written.values())]
    traced = TracedFunction(arguments, outputs, tape.records, start)
    return traced, [state for state, _ in written.values()]


def remat(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose intermediate values are not kept for the backward pass, but computed again.

    What it does in between needs memory only while it runs; the backward pass takes the inputs
    and runs the forward computation once more, with the same random numbers. Without a tape it is
    the function itself, and so it is where the function needs a value on the host.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not current.tapes:
            return function(*args, **kwargs)
        leaves: list[Any] = []
        rebuild = flatten((list(args), kwargs), leaves)[1]
        inputs = [x for x in leaves if isinstance(x, Array)]
        structure: list[Any] = []

        def plain(given: Sequence[Array]) -> list[Array]:
            arrays = iter(given)
            new_args, new_kwargs = rebuild(
                iter([next(arrays) if isinstance(x, Array) else x for x in leaves])
            )
            results: list[Any] = []
            structure[:] = [flatten(function(*new_args, **new_kwargs), results)[1], results]
            return [y for y in results if isinstance(y, Array)]

        try:
            traced, states = trace(plain, inputs)
        except CaptureError:
            return function(*args, **kwargs)
        outputs = traced.call(inputs, again=True)
        split = len(outputs) - len(states)
        for state, value in zip(states, outputs[split:], strict=True):
            state.assign(value)
        rebuild_result, results = structure
        found = iter(outputs[:split])
        return rebuild_result(iter([next(found) if isinstance(y, Array) else y for y in results]))

    return wrapped
