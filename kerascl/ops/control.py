"""Loops over a leading axis, as one node whose body is traced once."""

from __future__ import annotations

from collections.abc import Callable

from kerascl.core import node as graph
from kerascl.core.array import Array, State, apply, apply_multi
from kerascl.core.errors import CaptureError
from kerascl.core.node import Node, topological
from kerascl.core.op import ARGUMENT, CONST, PICK, Kind, Op, register
from kerascl.core.scope import current
from kerascl.core.structure import flatten
from kerascl.core.tape import GradientTape, pause
from kerascl.ops.declare import as_array, expand_to, family, scalar
from kerascl.ops.pointwise import add

# Inside a loop body: the slice of the input array that belongs to the current step.
LOOP_SLICE = register(Op("loop_slice", Kind.VIEW))
# The same value under another identity, for gradients of its own.
FRESH = register(Op("fresh", Kind.VIEW, vjp=lambda g, y, x: (g,)))
# A value that must have memory of its own (a result that is also something else).
KEEP = register(Op("keep", Kind.POINTWISE, "{0}", vjp=lambda g, y, x: (g,)))


class _BodyTrace:
    """The trace of a loop body: reads of States go to the trace outside; writes are refused."""

    def __init__(self):
        self.outer = current.trace
        self.start = graph.new_serial()

    def read(self, state: State) -> Array:
        current.trace = self.outer
        try:
            return state.value
        finally:
            current.trace = self

    def write(self, state: State, value: Array) -> None:
        raise CaptureError(
            f"{state.name} is assigned inside a loop body; return it as part of the carry instead"
        )

    def knows_value(self, node: Node) -> bool:
        return all(n.op is not ARGUMENT for n in topological([node]))


class Body:
    """The traced body of a loop; equal bodies compile to the same program.

    Attributes:
        carry, slices: argument nodes for the carried values and the inputs' slices.
        captured: argument nodes for the values from outside that the body reads.
        next_carry, results: nodes of the new carry and of each step's results.
    """

    def __init__(self, carry, slices, captured, next_carry, results):
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
            else (
                n.op.name,
                tuple(position[id(x)] for x in n.inputs),
                repr(n.attrs),
                n.shape,
                n.dtype.name,
            )
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

    def __eq__(self, other) -> bool:
        return isinstance(other, Body) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<loop body {hash(self._key):x}>"

    def run(self, carry: list[Array], slices: list[Array], captured: list[Array]):
        """The body as array code over other arrays; recorded on the active tapes."""
        value = {}
        for node, array in zip(
            [*self.carry, *self.slices, *self.captured], [*carry, *slices, *captured], strict=True
        ):
            value[id(node)] = array
        for node in self.nodes:
            if id(node) in value:
                continue
            if node.op is CONST or node.op.kind is Kind.LEAF:
                value[id(node)] = _handle(node)
            elif node.op is PICK:
                value[id(node)] = value[id(node.inputs[0])][node.attrs[0]]
            else:
                inputs = tuple(value[id(x)] for x in node.inputs)
                if node.op.outputs > 1:
                    shapes = [(node.shape, node.dtype)] * node.op.outputs
                    for pick in self.nodes:
                        if pick.op is PICK and pick.inputs[0] is node:
                            shapes[pick.attrs[0]] = (pick.shape, pick.dtype)
                    value[id(node)] = apply_multi(node.op, inputs, node.attrs, shapes)
                else:
                    value[id(node)] = apply(node.op, inputs, node.attrs, node.shape, node.dtype)
        return [value[id(n)] for n in self.next_carry], [value[id(n)] for n in self.results]


def _handle(node: Node) -> Array:
    """The Array of a node: the one in use, if there is one, since tapes know it."""
    array = node.handle() if node.handle is not None else None
    return Array(node) if array is None else array


def _trace(function: Callable, carry: list[Array], xs: list[Array], device) -> tuple[Body, list]:
    trace = _BodyTrace()

    def argument(shape, dtype, k: int) -> Array:
        return Array(Node(ARGUMENT, (), ("loop", k), shape, dtype, device))

    carry_in = [argument(c.shape, c.dtype, k) for k, c in enumerate(carry)]
    whole = [argument(x.shape, x.dtype, len(carry) + k) for k, x in enumerate(xs)]
    slices = [Array(Node(LOOP_SLICE, (x._node,), (), x.shape[1:], x.dtype, device)) for x in whole]
    current.trace = trace
    try:
        with pause():
            carry_out, results = function(carry_in, slices)
            carry_out = [as_array(c) for c in carry_out]
            results = [as_array(y) for y in results]
            for k, (c, d) in enumerate(zip(carry, carry_out, strict=True)):
                if c.shape != d.shape or c.dtype is not d.dtype:
                    raise ValueError(
                        f"loop: carried value {k} changes from {c.dtype.name}{list(c.shape)} "
                        f"to {d.dtype.name}{list(d.shape)}"
                    )
            # every result has memory of its own, so that one kernel may write several
            carry_out = [apply(KEEP, (c,), (), c.shape, c.dtype) for c in carry_out]
            results = [apply(KEEP, (y,), (), y.shape, y.dtype) for y in results]
    finally:
        current.trace = trace.outer
    roots = [c._node for c in carry_out] + [y._node for y in results]
    own = {id(x._node) for x in [*carry_in, *whole, *slices]}
    captured: dict[int, Node] = {}
    stack = list(roots)
    seen: set[int] = set()
    while stack:
        node = stack.pop()
        if id(node) in seen or id(node) in own or node.op is CONST:
            continue
        seen.add(id(node))
        if node.serial < trace.start or node.op.kind is Kind.LEAF:
            captured[id(node)] = node
        else:
            stack.extend(node.inputs)
    nodes = sorted(captured.values(), key=lambda n: n.serial)
    # the body stands alone: what it reads from outside becomes an argument
    stand_in = {
        id(n): Node(ARGUMENT, (), ("captured", k), n.shape, n.dtype, n.device)
        for k, n in enumerate(nodes)
    }
    for n in nodes:
        stand_in[id(n)].serial = n.serial  # it comes before its readers
    for node in topological(roots):
        if id(node) in seen and id(node) not in captured:
            node.inputs = tuple(stand_in.get(id(x), x) for x in node.inputs)
    body = Body(
        [x._node for x in carry_in],
        [x._node for x in slices],
        list(stand_in.values()),
        roots[: len(carry)],
        roots[len(carry) :],
    )
    return body, [_handle(node) for node in nodes]


def _loop_vjp(gs, ys, *rest):
    *inputs, body, length, reverse, history = rest
    if not history:
        raise ValueError("loop: this loop was traced without its history; it has no gradient")
    carries, slices = len(body.carry), len(body.slices)
    results = len(body.results)
    xs = inputs[carries : carries + slices]
    captured = list(inputs[carries + slices :])
    saved = list(ys[carries + results :])
    g_carry = list(gs[:carries])
    g_results = list(gs[carries : carries + results])
    # the saved carries are results too: second derivatives flow through them
    g_saved = list(gs[carries + results :])
    g_saved = [] if all(_is_zero(g) for g in g_saved) else g_saved
    smooth = [k for k, c in enumerate(captured) if c.dtype.is_float]
    sums = [expand_to(scalar(0, captured[k].dtype), captured[k].shape) for k in smooth]

    def step(carry, now):
        g_next, partial = carry[:carries], carry[carries:]
        x_now = now[:slices]
        c_now = now[slices : slices + carries]
        g_now = now[slices + carries : slices + carries + results]
        extra = now[slices + carries + results :]
        with GradientTape() as tape:
            leaves = (
                [fresh(c) for c in c_now],
                [fresh(x) for x in x_now],
                [fresh(c) for c in captured],
            )
            new, out = body.run(*leaves)
        pairs = [
            (t, g) for t, g in zip([*new, *out], [*g_next, *g_now], strict=True) if t.dtype.is_float
        ]
        grads = tape.gradient(
            [t for t, _ in pairs], [leaf for part in leaves for leaf in part], [g for _, g in pairs]
        )
        d_carry = [_or_zero(g, c) for g, c in zip(grads[:carries], c_now, strict=True)]
        if extra:
            d_carry = [add(d, g) for d, g in zip(d_carry, extra, strict=True)]
        d_x = [
            _or_zero(g, x) for g, x in zip(grads[carries : carries + slices], x_now, strict=True)
        ]
        d_captured = grads[carries + slices :]
        partial = [
            p if d_captured[k] is None else add(p, d_captured[k])
            for p, k in zip(partial, smooth, strict=True)
        ]
        return d_carry + partial, d_x

    carry, d_xs = loop(
        step, g_carry + sums, [*xs, *saved, *g_results, *g_saved], length, not reverse
    )
    d_captured = [None] * len(captured)
    for k, value in zip(smooth, carry[carries:], strict=True):
        d_captured[k] = value
    d_inputs = [
        g if c.dtype.is_float else None for g, c in zip(carry[:carries], inputs, strict=False)
    ]
    return (*d_inputs, *d_xs, *d_captured)


def fresh(x: Array) -> Array:
    """Another handle of the same value, with a gradient of its own."""
    return apply(FRESH, (x,), (), x.shape, x.dtype)


def _is_zero(x: Array) -> bool:
    node = x._node
    while node.op.kind is Kind.VIEW and len(node.inputs) == 1:
        node = node.inputs[0]
    return node.op is CONST and node.attrs[0] == 0


def _or_zero(g, x: Array) -> Array:
    if g is not None:
        return g
    return expand_to(scalar(0, x.dtype), x.shape)


LOOP = family("loop", _loop_vjp, outputs=2)


def loop(function: Callable, carry: list, xs: list, length: int | None = None, reverse=False):
    """Run `carry, results = function(carry, slices)` over the leading axis of `xs`.

    The function is traced once and compiled to a body that is launched
    `length` times, whatever the length.

    Args:
        function: takes a list of carried Arrays and a list of slices of `xs`;
            returns lists of the same carried shapes and dtypes, and of results.
        carry: initial values.
        xs: arrays whose leading axis is `length` long.
        length: number of steps; needed when `xs` is empty.
        reverse: go from the last slice to the first; results keep the order of the slices.

    Returns:
        The final carry, and the results stacked on a new leading axis.

    Raises:
        ValueError: when a carried value changes its shape or dtype, or lengths differ.
    """
    carry = [as_array(c) for c in carry]
    xs = [as_array(x) for x in xs]
    lengths = {x.shape[0] for x in xs} | ({length} if length is not None else set())
    if len(lengths) != 1:
        raise ValueError(f"loop: lengths {sorted(lengths)} of the inputs differ or are missing")
    (length,) = lengths
    device = next((x._node.device for x in [*carry, *xs] if x._node.device is not None), None)
    body, captured = _trace(function, carry, xs, device)
    history = bool(current.tapes)
    shapes = [(c.shape, c.dtype) for c in carry]
    shapes += [((length, *y.shape), y.dtype) for y in body.results]
    if history:
        shapes += [((length, *c.shape), c.dtype) for c in carry]
    outputs = apply_multi(LOOP, (*carry, *xs, *captured), (body, length, reverse, history), shapes)
    count = len(carry)
    return list(outputs[:count]), list(outputs[count : count + len(body.results)])


def scan(function: Callable, init, xs=None, length: int | None = None, reverse: bool = False):
    """JAX's scan over nested structures: `carry, y = function(carry, x)` for each slice of `xs`.

    Returns:
        The final carry and the stacked results, in the structures that the function uses.
    """
    carry_leaves: list = []
    _, rebuild_carry = flatten(init, carry_leaves)
    x_leaves: list = []
    _, rebuild_x = flatten(xs, x_leaves) if xs is not None else ((), lambda items: None)
    shape_of_results: list = []

    def step(carry, slices):
        new, result = function(rebuild_carry(iter(carry)), rebuild_x(iter(slices)))
        leaves: list = []
        flatten(new, leaves)
        results: list = []
        shape_of_results[:] = [flatten(result, results)[1], [r is None for r in results]]
        return leaves, [r for r in results if r is not None]

    carry, results = loop(step, carry_leaves, x_leaves, length, reverse)
    rebuild, empty = shape_of_results
    items = iter(results)
    return rebuild_carry(iter(carry)), rebuild(iter([None if e else next(items) for e in empty]))
