"""Loops with a condition, as one node whose body is traced once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl.core.array import Array, ArrayLike, State, apply, apply_multi
from kerascl.core.batch import BatchTracer, note
from kerascl.core.context import current
from kerascl.core.node import Node
from kerascl.core.op import ARGUMENT, Op
from kerascl.core.structure import flatten
from kerascl.core.tape import another, pause
from kerascl.core.traced import TracedFunction, handle, is_smooth
from kerascl.core.types import Attrs, Gradients, Results, Shape
from kerascl.dtypes import DType
from kerascl.ops.batched import as_batches
from kerascl.ops.branches import as_condition, select
from kerascl.ops.control import KEEP, Body, StatesTrace, loop, standing_alone
from kerascl.ops.declare import as_array, cast_to, library_operation, scalar
from kerascl.ops.invariants import hoisted
from kerascl.ops.movement import iota
from kerascl.ops.pointwise import logical_and, where
from kerascl.ops.reduction import any as any_of

__all__ = ["fori_loop", "while_loop"]

# One iteration: from the carried values to new ones, and whether there is another.
Iteration: TypeAlias = Callable[[list[Array]], tuple[Sequence[ArrayLike], ArrayLike]]


class IterationTrace(StatesTrace):
    """The trace of an iteration: a State stands for its value when the iteration begins.

    Attributes:
        stand_ins: of each State that was used, it and the argument for its first value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stand_ins: dict[int, tuple[State, Node]] = {}

    def read(self, state: State) -> Array:
        """The value of a State inside."""
        if id(state) not in self.values:
            value = self.values[id(state)] = _argument(state.shape, state.dtype, state.device)
            self.stand_ins[id(state)] = state, value._node
        return self.values[id(state)]

    def write(self, state: State, value: Array) -> None:
        """Note an assignment."""
        self.read(state)
        super().write(state, value)


def _argument(shape: Shape, dtype: DType, device: Any) -> Array:
    return Array(Node(ARGUMENT, (), ("repeat",), shape, dtype, device))


def _trace(
    function: Iteration, carry: list[Array], device: Any
) -> tuple[Body, list[int], list[State], list[Array]]:
    """The traced iteration.

    Returns:
        The body; which of the given values it carries: others stay as they are; the States that it
        assigns, whose values it carries after these; and the values from outside that it reads.
    """
    trace = IterationTrace()
    given = [_argument(c.shape, c.dtype, device) for c in carry]
    places = [x._node for x in given]
    with current.replaced(trace=trace, tracers=(), tapes=()):
        found, going = function(given)
        new = [as_array(c) for c in found]
        for k, (c, d) in enumerate(zip(carry, new, strict=True)):
            if c.shape != d.shape or c.dtype is not d.dtype:
                raise ValueError(
                    f"while_loop: carried value {k} changes from {c.dtype.name}{list(c.shape)} "
                    f"to {d.dtype.name}{list(d.shape)}"
                )
        carried = [k for k, c in enumerate(new) if c._node is not places[k]]
        last = [trace.values[key] for key in trace.written]
        results = [*(new[k] for k in carried), *last, as_condition(going, "while_loop: cond")]
        results = [apply(KEEP, (y,), (), y.shape, y.dtype) for y in results]
    inputs = [places[k] for k in carried] + [trace.stand_ins[key][1] for key in trace.written]
    # not `given`: the function may have assigned elements of them
    traced = TracedFunction([handle(node) for node in inputs], results, [], trace.start)
    outside = {id(node): c for node, c in zip(places, carry, strict=True)}
    outside |= {id(node): state.value for state, node in trace.stand_ins.values()}
    traced, captured = hoisted(traced, outside)
    body = standing_alone(traced, len(inputs), len(inputs))
    return body, carried, list(trace.written.values()), captured


def _no_gradient(gs: Any, ys: Any, *rest: Any) -> Gradients:
    raise ValueError(
        "a while_loop has no gradient where the number of its iterations is not known: give "
        "maximum_iterations, or use scan or fori_loop"
    )


def _batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    """Goes on while one element wants to; the others keep their values."""
    body, most = attrs
    count = len(body.carry)
    captured, flags = inputs[count + 1 :], batched[count + 1 :]
    first = as_batches(size, inputs[: count + 1], batched[: count + 1])

    def iteration(carry: list[Array]) -> tuple[list[Array], Array]:
        values, going = carry[:count], carry[count]
        tracer = BatchTracer(size)
        with tracer.active():
            lane = tracer.wrap(going)
            before = [tracer.wrap(c) for c in values]
            reads = [tracer.wrap(x) if b else x for x, b in zip(captured, flags, strict=True)]
            new, (again,) = body.run(before, [], reads)
            kept = [where(lane, n, c) for n, c in zip(new, before, strict=True)]
            again = logical_and(lane, again)
        return [*(tracer.broadcast(c) for c in kept), tracer.broadcast(again)], any_of(
            tracer.broadcast(again)
        )

    return repeat(iteration, first, any_of(first[count]), most)[:count]


WHILE = library_operation("while", outputs=2, batch=_batch)


def repeat(
    function: Iteration, carry: Sequence[ArrayLike], going: ArrayLike, most: int | None = None
) -> list[Array]:
    """`while going: carry, going = function(carry)`.

    The function is traced once. The device decides when the loop ends; the host looks now and then,
    and what it has enqueued too much does nothing.

    Args:
        function: takes a list of carried Arrays; returns a list of Arrays of the same shapes and
            dtypes, and a scalar. It may assign States.
        carry: initial values.
        going: a scalar: whether there is a first iteration.
        most: iterations at most, or None.

    Returns:
        The last carry.

    Raises:
        CaptureError: the function needs a value on the host.
        ValueError: a carried value changes its shape or dtype.
    """
    first = [as_array(c) for c in carry]
    start = as_condition(going, "while_loop: cond")
    device = next((x._node.device for x in first if x._node.device is not None), None)
    body, carried, states, captured = _trace(function, first, device)
    initial = [*(first[k] for k in carried), *(state.value for state in states)]
    if not initial:
        return first
    inputs, attrs = (*initial, start, *captured), (body, most)
    with pause():
        outputs = apply_multi(WHILE, inputs, attrs, [(c.shape, c.dtype) for c in initial])
    if current.tapes:
        note(current.tapes, _no_gradient, inputs, outputs, attrs)
    last = first.copy()
    for k, value in zip(carried, outputs, strict=False):
        last[k] = value
    for state, value in zip(states, outputs[len(carried) :], strict=True):
        state.assign(value)
    return last


def repeat_while(
    condition: Callable[[list[Array]], ArrayLike],
    function: Callable[[list[Array]], Sequence[ArrayLike]],
    carry: Sequence[ArrayLike],
    most: Array | int | None,
) -> list[Array]:
    """`while condition(carry): carry = function(carry)`, at most `most` times.

    Active tapes get a derivative where `most` is no Array: the loop then runs that often, and
    iterations behind its end change nothing.
    """
    first = [as_array(c) for c in carry]
    if isinstance(most, int) and most <= 0:
        return first
    if isinstance(most, int) and current.tapes and any(map(is_smooth, first)):
        return _masked(condition, function, first, most)
    if not isinstance(most, Array):

        def iteration(carry: list[Array]) -> tuple[Sequence[ArrayLike], ArrayLike]:
            new = [as_array(c) for c in function(carry)]
            return new, condition(new)

        return repeat(iteration, first, condition(first), most)
    limit = most

    def counted(carry: list[Array]) -> tuple[Sequence[ArrayLike], ArrayLike]:
        new = [as_array(c) for c in function(carry[1:])]
        count = carry[0] + 1
        return [count, *new], logical_and(count < limit, _scalar(condition(new)))

    count = scalar(0, limit.dtype)
    going = logical_and(count < limit, _scalar(condition(first)))
    return repeat(counted, [count, *first], going)[1:]


def _scalar(value: ArrayLike) -> Array:
    return as_condition(value, "while_loop: cond")


def _masked(
    condition: Callable[[list[Array]], ArrayLike],
    function: Callable[[list[Array]], Sequence[ArrayLike]],
    first: list[Array],
    most: int,
) -> list[Array]:
    def step(carry: list[Array], _: list[Array]) -> tuple[list[Array], list[Array]]:
        going, *values = carry

        def once_more() -> list[Array]:  # with Arrays of its own, whose elements it may assign
            return [as_array(c) for c in function([another(c) for c in values])]

        new = select(going, [lambda: values, once_more])
        return [logical_and(going, _scalar(condition(new))), *new], []

    return loop(step, [_scalar(condition(first)), *first], [], most)[0][1:]


def while_loop(
    cond: Callable[..., ArrayLike],
    body: Callable[..., Any],
    loop_vars: Any,
    maximum_iterations: ArrayLike | None = None,
) -> Any:
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)`.

    `cond` and `body` are traced once, and the device decides when the loop ends: inside a captured
    function nothing waits for it. They may assign States and contain further loops. Under a tape
    the number of iterations must have a bound that the host knows, and all so many are computed;
    outside captured functions each is then run on its own instead, if there is none.

    Args:
        cond: gives a scalar.
        body: gives values of the shapes and dtypes of `loop_vars`.
        loop_vars: a list or tuple of nested structures of Arrays, or a single one.
        maximum_iterations: a bound, a number or an integer Array.

    Returns:
        The last values, in the structure of `loop_vars`.

    Raises:
        CaptureError: `cond` or `body` needs a value on the host.
        ValueError: `cond` gives no scalar, or a value changes its structure, shape or dtype.
    """
    several = isinstance(loop_vars, list | tuple)
    leaves: list[Any] = []
    structure, rebuild = flatten(loop_vars, leaves)

    def given(carry: Sequence[Array]) -> tuple[Any, ...]:
        values = rebuild(iter(carry))
        return tuple(values) if several else (values,)

    def advance(carry: list[Array]) -> list[Any]:
        new: list[Any] = []
        result = body(*given(carry))
        if several and isinstance(result, list | tuple):
            result = type(loop_vars)(result)
        if flatten(result, new)[0] != structure:
            raise ValueError("while_loop: body returns another structure than loop_vars")
        return new

    most = maximum_iterations
    if most is not None and (not isinstance(most, Array) or _known(most)):
        most = int(most)  # type: ignore[arg-type]  # a number, or an array of one
    if current.tapes and most is None and current.trace is None and not current.tracers:
        carry = [as_array(c) for c in leaves]
        while bool(_scalar(cond(*given(carry)))):
            carry = [as_array(c) for c in advance(carry)]
        return rebuild(iter(carry))
    return rebuild(iter(repeat_while(lambda c: cond(*given(c)), advance, leaves, most)))


def fori_loop(
    lower: ArrayLike, upper: ArrayLike, body_fun: Callable[[Array, Any], Any], init_val: Any
) -> Any:
    """`for i in range(lower, upper): val = body_fun(i, val)`, with `i` on the device.

    The body is traced once. Where the host knows both bounds, tapes get its derivative.

    Args:
        lower, upper: integers, or integer Arrays of shape ().
        body_fun: gives values of the shapes and dtypes of `init_val`; it may assign States.
        init_val: a nested structure of Arrays.

    Raises:
        CaptureError: the body needs a value on the host.
        ValueError: a value changes its structure, shape or dtype.
    """
    leaves: list[Any] = []
    structure, rebuild = flatten(init_val, leaves)

    def advance(i: Array, carry: Sequence[Array]) -> list[Any]:
        new: list[Any] = []
        if flatten(body_fun(i, rebuild(iter(carry))), new)[0] != structure:
            raise ValueError("fori_loop: body_fun returns another structure than init_val")
        return new

    return rebuild(iter(for_each(lower, upper, advance, leaves)))


def for_each(
    lower: ArrayLike,
    upper: ArrayLike,
    function: Callable[[Array, list[Array]], Sequence[ArrayLike]],
    carry: Sequence[ArrayLike],
) -> list[Array]:
    """`for i in range(lower, upper): carry = function(i, carry)`; see `fori_loop`."""
    if all(not isinstance(x, Array) or _known(x) for x in (lower, upper)):
        start, stop = int(lower), int(upper)  # type: ignore[arg-type]  # as above
        numbers = iota((max(stop - start, 0),), 0) + start
        return loop(lambda c, x: (function(x[0], c), []), carry, [numbers])[0]
    first, last = as_array(lower), as_array(upper)

    def iteration(carry: list[Array]) -> tuple[Sequence[ArrayLike], ArrayLike]:
        i, *values = carry
        new = i + 1
        return [new, *function(i, values)], new < last

    return repeat(iteration, [cast_to(first, last.dtype), *carry], first < last)[1:]


def _known(x: Array) -> bool:
    """Whether the host can have a value now."""
    if current.tracers:
        return False
    return current.trace is None or current.trace.knows_value(x._node)
