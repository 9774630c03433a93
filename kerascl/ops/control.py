"""Loops over a leading axis, as one node whose body is traced once."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl.core import node as graph
from kerascl.core.array import Array, ArrayLike, State, apply, apply_multi
from kerascl.core.batch import BatchTracer, note
from kerascl.core.context import current
from kerascl.core.holders import enrol
from kerascl.core.node import Node, identity, is_closed, topological
from kerascl.core.op import ARGUMENT, CONST, Kind, Op, register
from kerascl.core.structure import flatten
from kerascl.core.tape import pause, private_tapes
from kerascl.core.traced import TracedFunction, handle, is_smooth
from kerascl.core.types import Attrs, Gradients, Results, Shape
from kerascl.dtypes import DType
from kerascl.ops.batched import as_batches
from kerascl.ops.declare import as_array, library_operation, scalar
from kerascl.ops.invariants import hoisted
from kerascl.ops.movement import moveaxis
from kerascl.ops.pointwise import add
from kerascl.ops.views import expand_to

# Inside a loop body: the slice of the input array that belongs to the current step.
LOOP_SLICE = register(Op("loop_slice", Kind.VIEW))
# A value that must have memory of its own (a result that is also something else).
KEEP = register(Op("keep", Kind.POINTWISE, "{0}", vjp=lambda g, y, x: (g,), exact=True))

# One step of a loop: from the carried values and the slices to new ones and the step's results.
StepFunction: TypeAlias = Callable[
    [list[Array], list[Array]], tuple[Sequence[ArrayLike], Sequence[ArrayLike]]
]


class StatesTrace:
    """What traces of loops share: the values that States have inside.

    Attributes:
        start: nodes of the loop have a larger serial.
        values: of States, by their ids: what is seen inside.
        written: the States that were assigned.
    """

    index_checks: list[tuple[Any, Array, Array]] | None = None

    def __init__(self) -> None:
        self.start = graph.new_serial()
        self.values: dict[int, Array] = {}
        self.written: dict[int, State] = {}
        enrol(self)

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        for key, value in self.values.items():
            if value is array:
                self.values[key] = other

    def write(self, state: State, value: Array) -> None:
        """Note an assignment."""
        self.values[id(state)] = value
        self.written[id(state)] = state

    def knows_value(self, node: Node) -> bool:
        """Whether the host can have a value."""
        return is_closed(node)


class BodyTrace(StatesTrace):
    """The trace of a loop body: reads of States go to the trace outside, but for those that the
    body assigns, whose values are carried."""

    def __init__(self) -> None:
        self.outer = current.trace
        super().__init__()

    def read(self, state: State) -> Array:
        """The value of a State inside."""
        if id(state) in self.values:
            return self.values[id(state)]
        with current.replaced(trace=self.outer):
            return state.value


class Body:
    """The traced body of a loop; equal bodies compile to the same program.

    Attributes:
        carry, slices: argument nodes for the carried values and the inputs' slices.
        captured: argument nodes for the values from outside that the body reads.
        next_carry, results: nodes of the new carry and of each step's results.
    """

    def __init__(
        self,
        carry: list[Node],
        slices: list[Node],
        captured: list[Node],
        next_carry: list[Node],
        results: list[Node],
    ) -> None:
        self.carry = carry
        self.slices = slices
        self.captured = captured
        self.next_carry = next_carry
        self.results = results
        self.nodes = topological([*next_carry, *results, *carry, *slices, *captured])
        position = {id(n): k for k, n in enumerate(self.nodes)}
        # what lies outside is known by its shape only
        inputs = {id(n): k for k, n in enumerate([*carry, *slices, *captured])}
        self._key = tuple(
            ("input", inputs[id(n)], n.shape, n.dtype.name)
            if id(n) in inputs
            else identity(n.op, tuple(position[id(x)] for x in n.inputs), n.attrs, n.shape, n.dtype)
            for n in self.nodes
        ) + (tuple(position[id(n)] for n in [*next_carry, *results]),)

    def graph(self, history: bool) -> tuple[list[Node], list[Node], list[Node]]:
        """Nodes to compile, the roots streamed at each step, and all nodes' roots.

        With `history`, the carry before each step is streamed too.
        """
        streamed = list(self.results)
        if history:
            streamed += [Node(KEEP, (c,), (), c.shape, c.dtype) for c in self.carry]
        roots = [*self.next_carry, *streamed]
        return topological(roots), streamed, roots

    def run(
        self, carry: list[Array], slices: list[Array], captured: list[Array]
    ) -> tuple[list[Array], list[Array]]:
        """The body as array code over other arrays, without derivatives."""
        arguments = [Array(n) for n in (*self.carry, *self.slices, *self.captured)]
        roots = [Array(n) for n in (*self.next_carry, *self.results)]
        found = TracedFunction(arguments, roots, [], -1).replay([*carry, *slices, *captured], {})
        return found[: len(self.next_carry)], found[len(self.next_carry) :]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        # the same in every process, which `hash` is not
        return f"<loop body {hashlib.sha256(repr(self._key).encode()).hexdigest()[:16]}>"


def _trace(
    function: StepFunction,
    carry: list[Array],
    states: list[State],
    xs: list[Array],
    device: Any,
) -> tuple[Body, TracedFunction, list[Array], list[State]]:
    """The body to compile; the body to differentiate, a TracedFunction of carry and slices; the
    values from outside that it reads; and the States that it assigns.

    The last carried values are those of `states`.
    """
    trace = BodyTrace()
    own = len(carry) - len(states)

    def argument(shape: Shape, dtype: DType, k: int) -> Array:
        return Array(Node(ARGUMENT, (), ("loop", k), shape, dtype, device))

    carry_in = [argument(c.shape, c.dtype, k) for k, c in enumerate(carry)]
    whole = [argument(x.shape, x.dtype, len(carry) + k) for k, x in enumerate(xs)]
    slices = [Array(Node(LOOP_SLICE, (x._node,), (), x.shape[1:], x.dtype, device)) for x in whole]
    places = [x._node for x in (*carry_in, *slices)]
    tape, private = private_tapes(current.tapes)
    # what is outside, elements of batches too, is an input here
    with current.replaced(trace=trace, tracers=(), tapes=private):
        trace.values |= {id(s): c for s, c in zip(states, carry_in[own:], strict=True)}
        new, found = function(carry_in[:own], slices)
        carry_out = [*(as_array(c) for c in new), *(trace.values[id(s)] for s in states)]
        results = [as_array(y) for y in found]
        for k, (c, d) in enumerate(zip(carry, carry_out, strict=True)):
            if c.shape != d.shape or c.dtype is not d.dtype:
                raise ValueError(
                    f"loop: carried value {k} changes from {c.dtype.name}{list(c.shape)} "
                    f"to {d.dtype.name}{list(d.shape)}"
                )
        # every result has memory of its own, so that one kernel may write several
        carry_out = [apply(KEEP, (c,), (), c.shape, c.dtype) for c in carry_out]
        results = [apply(KEEP, (y,), (), y.shape, y.dtype) for y in results]
    records = tape.records
    # not `carry_in`: the function may have assigned elements of them
    arguments = [handle(node) for node in places]
    traced = TracedFunction(arguments, [*carry_out, *results], records, trace.start)
    captured = traced.captured
    if not current.tapes:
        traced, captured = hoisted(traced, {})
    body = standing_alone(traced, len(carry), len(carry_out))
    return body, traced, captured, list(trace.written.values())


def standing_alone(traced: TracedFunction, carries: int, outputs: int) -> Body:
    """A copy of the graph in which what it reads from outside are arguments.

    Compiled programs are kept by their body, which must not hold anybody's arrays.  Where layers
    are noted, each copy belongs to that of its original.
    """
    labels = current.labels
    last = "" if labels is None else labels.last
    new = {id(x._node): x._node for x in traced.arguments}
    captured = []
    for k, x in enumerate(traced.captured):
        node = x._node
        new[id(node)] = Node(ARGUMENT, (), ("captured", k), node.shape, node.dtype, node.device)
        captured.append(new[id(node)])
    for node in traced.nodes:
        inputs = tuple([new[id(x)] for x in node.inputs])
        if labels is not None:
            labels.mark(labels.at(node.serial))
        copy = Node(node.op, inputs, node.attrs, node.shape, node.dtype, node.device)
        if node.op.outputs > 1:
            copy.results = node.results
        new[id(node)] = copy
    if labels is not None:
        labels.mark(last)
    roots = [new[id(y._node)] for y in traced.outputs]
    arguments = [x._node for x in traced.arguments]
    return Body(
        arguments[:carries], arguments[carries:], captured, roots[:outputs], roots[outputs:]
    )


def _loop_vjp(
    traced: TracedFunction, gs: tuple[Array, ...], ys: tuple[Array, ...], *rest: Any
) -> Gradients:
    *inputs, body, length, reverse, _ = rest
    carries, slices = len(body.carry), len(body.slices)
    results = len(body.results)
    xs = inputs[carries : carries + slices]
    captured = list(inputs[carries + slices :])
    saved = list(ys[carries + results :])
    g_carry = list(gs[:carries])
    g_results = list(gs[carries : carries + results])
    # the saved carries are results too: second derivatives flow through them
    g_saved = list(gs[carries + results :])
    g_saved = [] if all(is_zero(g) for g in g_saved) else g_saved
    known = [id(x._node) for x in traced.captured]
    gradient = traced.gradient()
    smooth = [k for k, found in enumerate(gradient.found[carries + slices :]) if found]
    sums = [expand_to(scalar(0, captured[k].dtype), captured[k].shape) for k in smooth]

    def step(carry: list[Array], now: list[Array]) -> tuple[list[Array], list[Array]]:
        g_next, partial = carry[:carries], carry[carries:]
        x_now = now[:slices]
        c_now = now[slices : slices + carries]
        g_now = now[slices + carries : slices + carries + results]
        extra = now[slices + carries + results :]
        upstream = [
            g for y, g in zip(traced.outputs, [*g_next, *g_now], strict=True) if is_smooth(y)
        ]
        found = iter(
            gradient.call([*c_now, *x_now, *upstream], dict(zip(known, captured, strict=True)))
        )
        grads = [next(found) if there else None for there in gradient.found]
        d_carry = [_or_zero(g, c) for g, c in zip(grads[:carries], c_now, strict=True)]
        if extra:
            d_carry = [add(d, g) for d, g in zip(d_carry, extra, strict=True)]
        d_x = [
            _or_zero(g, x) for g, x in zip(grads[carries : carries + slices], x_now, strict=True)
        ]
        d_captured = grads[carries + slices :]
        partial = [_plus(p, d_captured[k]) for p, k in zip(partial, smooth, strict=True)]
        return d_carry + partial, d_x

    carry, d_xs = loop(
        step, g_carry + sums, [*xs, *saved, *g_results, *g_saved], length, not reverse
    )
    found: list[Array | None] = [None] * len(captured)
    for k, value in zip(smooth, carry[carries:], strict=True):
        found[k] = value
    d_inputs = [g if is_smooth(c) else None for g, c in zip(carry[:carries], inputs, strict=False)]
    d_slices = [g if is_smooth(x) else None for g, x in zip(d_xs, xs, strict=True)]
    return (*d_inputs, *d_slices, *found)


def is_zero(x: Array) -> bool:
    """Whether an array is known to be all zeros: views of the constant 0."""
    node = x._node
    while node.op.kind is Kind.VIEW and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op is CONST and node.attrs[0] == 0


def _or_zero(g: Array | None, x: Array) -> Array:
    if g is not None:
        return g
    return expand_to(scalar(0, x.dtype), x.shape)


def _plus(total: Array, g: Array | None) -> Array:
    return total if g is None else add(total, g)


def _loop_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    body, length, reverse, history = attrs
    carries, slices = len(body.carry), len(body.slices)
    carry = as_batches(size, inputs[:carries], batched[:carries])
    # slices are taken along the steps, so that these come first
    xs = [moveaxis(x, 1, 0) if b else x
          for x, b in zip(inputs[carries : carries + slices],
                          batched[carries : carries + slices], strict=True)]  # fmt: skip
    flags = batched[carries:]
    captured = inputs[carries + slices :]

    def step(carry: list[Array], now: list[Array]) -> tuple[list[Array], list[Array]]:
        tracer = BatchTracer(size)
        with tracer.active():
            given = zip([*now, *captured], flags, strict=True)
            rest = [tracer.wrap(x) if b else x for x, b in given]
            new, out = body.run([tracer.wrap(c) for c in carry], rest[:slices], rest[slices:])
        streamed = [tracer.broadcast(y) for y in out]
        return [tracer.broadcast(c) for c in new], [*streamed, *(carry if history else ())]

    final, streamed = loop(step, carry, xs, length, reverse)
    return [*final, *(moveaxis(y, 0, 1) for y in streamed)]


# `loop` records its derivative
LOOP = library_operation("loop", outputs=2, batch=_loop_batch)


def loop(
    function: StepFunction,
    carry: Sequence[ArrayLike],
    xs: Sequence[ArrayLike],
    length: int | None = None,
    reverse: bool = False,
) -> tuple[list[Array], list[Array]]:
    """Run `carry, results = function(carry, slices)` over the leading axis of `xs`.

    The function is traced once and compiled to a body that is launched
    `length` times, whatever the length.

    Args:
        function: takes a list of carried Arrays and a list of slices of `xs`;
            returns lists of the same carried shapes and dtypes, and of results.
            It may assign States, and is then traced twice.
        carry: initial values.
        xs: arrays whose leading axis is `length` long.
        length: number of steps; needed when `xs` is empty.
        reverse: go from the last slice to the first; results keep the order of the slices.

    Returns:
        The final carry, and the results stacked on a new leading axis.

    Raises:
        ValueError: when a carried value changes its shape or dtype, or lengths differ.
    """
    first = [as_array(c) for c in carry]
    slices = [as_array(x) for x in xs]
    lengths = {x.shape[0] for x in slices} | ({length} if length is not None else set())
    if len(lengths) != 1:
        raise ValueError(f"loop: lengths {sorted(lengths)} of the inputs differ or are missing")
    (length,) = lengths
    both = [*first, *slices]
    device = next((x._node.device for x in both if x._node.device is not None), None)
    states: list[State] = []
    while True:
        carried = [*first, *(state.value for state in states)]
        body, traced, captured, written = _trace(function, carried, states, slices, device)
        found = [state for state in written if state not in states]
        if not found:
            break
        states += found  # once more, carrying them
    tapes = current.tapes
    history = bool(tapes)
    shapes = [(c.shape, c.dtype) for c in carried]
    shapes += [((length, *y.shape), y.dtype) for y in body.results]
    if history:
        shapes += [((length, *c.shape), c.dtype) for c in carried]
    inputs, attrs = (*carried, *slices, *captured), (body, length, reverse, history)
    with pause():
        outputs = apply_multi(LOOP, inputs, attrs, shapes)
    if tapes:
        note(tapes, functools.partial(_loop_vjp, traced), inputs, outputs, attrs)
    count = len(carried)
    for state, value in zip(states, outputs[len(first) : count], strict=True):
        state.assign(value)
    return list(outputs[: len(first)]), list(outputs[count : count + len(body.results)])


def scan(
    function: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """JAX's scan over nested structures: `carry, y = function(carry, x)` for each slice of `xs`.

    Returns:
        The final carry and the stacked results, in the structures that the function uses.
    """
    carry_leaves: list[Any] = []
    _, rebuild_carry = flatten(init, carry_leaves)
    x_leaves: list[Any] = []
    _, rebuild_x = flatten(xs, x_leaves) if xs is not None else ((), lambda items: None)
    shape_of_results: list[Any] = []

    def step(carry: list[Array], slices: list[Array]) -> tuple[list[Any], list[Any]]:
        new, result = function(rebuild_carry(iter(carry)), rebuild_x(iter(slices)))
        leaves: list[Any] = []
        flatten(new, leaves)
        results: list[Any] = []
        shape_of_results[:] = [flatten(result, results)[1], [r is None for r in results]]
        return leaves, [r for r in results if r is not None]

    carry, results = loop(step, carry_leaves, x_leaves, length, reverse)
    rebuild, empty = shape_of_results
    items = iter(results)
    return rebuild_carry(iter(carry)), rebuild(iter([None if e else next(items) for e in empty]))
