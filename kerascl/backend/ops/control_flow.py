"""Conditions, loops and maps: what `keras.ops` has for control flow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from keras.src import tree
from keras.src.backend.common import KerasVariable

from kerascl.backend import tracing
from kerascl.backend.branches import select
from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core import tape as tapes
from kerascl.core.array import Array, State
from kerascl.core.errors import CaptureError
from kerascl.ops import movement, pointwise
from kerascl.ops.batching import some_element, vmap
from kerascl.ops.control import loop
from kerascl.ops.creation import full
from kerascl.ops.repeat import for_each, repeat_while
from kerascl.ops.views import expand_to, reshape_to

# A scan of at most so many steps is noted step by step, so that neighbours can be fused.
_MOST_UNROLLED_STEPS = 4


def cond(pred, true_fn: Callable, false_fn: Callable):
    """`true_fn()` or `false_fn()`.

    When `pred` is a device value inside a captured step, both run and `pred` selects between
    their results, element by element, between what they assign to variables (so the seed of
    random numbers advances only if its branch is taken), and between their gradients: NaN in the
    branch that is not taken stays there.
    """
    if isinstance(pred, KerasVariable | State):
        pred = pred.value
    if tracing.shapes_only():
        return true_fn()
    if not isinstance(pred, Array) or tracing.is_known(pred):
        return true_fn() if bool(pred) else false_fn()
    return select(_scalar(pred, "cond: pred"), [false_fn, true_fn])


def switch(index, branches: Sequence[Callable], *operands):
    """`branches[index](*operands)`, with `index` clamped to the list; see `cond`."""
    index = convert_to_tensor(index, "int32")
    last = len(branches) - 1
    if tracing.shapes_only():
        return branches[0](*operands)
    if tracing.is_known(index):
        return branches[min(max(int(index), 0), last)](*operands)
    index = pointwise.minimum(pointwise.maximum(_scalar(index, "switch: index"), 0), last)
    return select(index, [lambda f=f: f(*operands) for f in branches])


def _scalar(x: Array, what: str) -> Array:
    if x.size != 1:
        raise ValueError(f"{what} must be a scalar, got shape {x.shape}")
    return reshape_to(x, ())


def while_loop(cond: Callable, body: Callable, loop_vars, maximum_iterations=None):
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)`.

    In eager code the condition is read on the host at each step; inside a vectorized map it goes on
    while one element wants to, and the others keep their values. Inside a captured step the loop is
    traced once, and the device ends it; under a tape it needs `maximum_iterations` there.

    Raises:
        CaptureError: inside a captured step, when the loop needs a value on the host.
        ValueError: inside a captured step, when a value changes its shape or dtype.
    """
    is_sequence = isinstance(loop_vars, list | tuple)
    values = tuple(loop_vars) if is_sequence else (loop_vars,)
    values = tree.map_structure(convert_to_tensor, values)
    most = maximum_iterations
    if isinstance(most, KerasVariable | State):
        most = most.value
    if most is not None and not tracing.shapes_only():
        if not isinstance(most, Array) or tracing.is_known(most):
            most = int(most)
        else:
            most = _scalar(most, "while_loop: maximum_iterations")

    def advance(values):
        new = body(*values)
        new = tuple(new) if isinstance(new, list | tuple) else (new,)
        return tree.map_structure(convert_to_tensor, new)

    if tracing.shapes_only():
        values = advance(values)
    elif isinstance(most, Array):
        values = _traced_while(cond, advance, values, most)
    else:
        step = 0
        while most is None or step < most:
            going = cond(*values)
            if isinstance(going, Array) and not tracing.is_known(going):
                left = None if most is None else most - step
                if tracing.is_known(some_element(going)):
                    values = _lanes_loop(cond, advance, values, left, going)
                else:
                    values = _traced_while(cond, advance, values, left)
                break
            if not bool(going):
                break
            values = advance(values)
            step += 1
    return values if is_sequence else values[0]


def _lanes_loop(cond, advance, values, most: int | None, going: Array):
    step = 0
    while (most is None or step < most) and bool(some_element(going)):
        values = select(
            _scalar(going, "while_loop: cond"), [lambda v=values: v, lambda v=values: advance(v)]
        )
        going = pointwise.logical_and(going, cond(*values))
        step += 1
    return values


def _traced_while(cond, advance, values, most: int | Array | None):
    def function(leaves):
        return tree.flatten(advance(tree.pack_sequence_as(values, leaves)))

    def condition(leaves):
        return convert_to_tensor(cond(*tree.pack_sequence_as(values, leaves)))

    return tree.pack_sequence_as(
        values, repeat_while(condition, function, tree.flatten(values), most)
    )


def fori_loop(lower, upper, body_fun: Callable, init_val):
    """`for i in range(lower, upper): val = body_fun(i, val)`.

    The body is traced once, with `i` on the device, unless there are few steps, it needs `i` or a
    value on the host, or changes the shape or dtype of `val`. Inside a captured step the bounds may
    be device values.
    """
    value = init_val
    bounds = [x.value if isinstance(x, KerasVariable | State) else x for x in (lower, upper)]
    if not tracing.shapes_only() and not all(_is_known(x) for x in bounds):
        return _counted_for(bounds, body_fun, init_val)
    steps = range(1) if tracing.shapes_only() else range(int(bounds[0]), int(bounds[1]))
    if len(steps) > _MOST_UNROLLED_STEPS:
        with contextlib.suppress(CaptureError):
            return _traced_for(steps, body_fun, init_val)
    for i in steps:
        value = body_fun(i, value)
    return value


def _is_known(x) -> bool:
    return not isinstance(x, Array) or tracing.is_known(x)


def _counted_for(bounds: Sequence, body: Callable, init):
    init = tree.map_structure(convert_to_tensor, init)

    def function(i, leaves):
        new = body(i, tree.pack_sequence_as(init, leaves))
        return tree.flatten(tree.map_structure(convert_to_tensor, new))

    lower, upper = (_scalar(convert_to_tensor(x), "fori_loop: bounds") for x in bounds)
    return tree.pack_sequence_as(init, for_each(lower, upper, function, tree.flatten(init)))


def _traced_for(steps: range, body: Callable, init):
    init = tree.map_structure(convert_to_tensor, init)
    kinds = [(x.shape, x.dtype) for x in tree.flatten(init)]

    def step(value, i):
        new = tree.map_structure(convert_to_tensor, body(i, value))
        if [(x.shape, x.dtype) for x in tree.flatten(new)] != kinds:
            raise CaptureError("fori_loop: the value changes its shape or dtype")
        return new, None

    numbers = movement.iota((len(steps),), 0) + steps.start
    return _traced_loop(step, init, numbers, len(steps), False, True)[0]


def scan(f: Callable, init, xs=None, length: int | None = None, reverse: bool = False, unroll=1):
    """`carry, y = f(carry, x)` along the first axis of `xs`; the last carry and the stacked ys.

    Raises:
        TypeError: when `f` is not callable.
        ValueError: without `xs` and `length`, or when lengths differ.
    """
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    if not isinstance(unroll, bool) and (not isinstance(unroll, int) or unroll < 1):
        raise ValueError(
            f"`unroll` must be an positive integer or boolean. Received: unroll={unroll}"
        )
    if xs is None and length is None:
        raise ValueError("Got no `xs` to scan over and `length` not provided.")
    init = tree.map_structure(convert_to_tensor, init)
    xs = None if xs is None else tree.map_structure(convert_to_tensor, xs)
    if xs is not None:
        sizes = {x.shape[0] for x in tree.flatten(xs)}
        if length is not None:
            sizes.add(int(length))
        if len(sizes) > 1:
            raise ValueError(f"scan: the first axes have different sizes: {sorted(sizes)}")
        length = sizes.pop() if sizes else 0
    return scan_steps(f, init, xs, int(length or 0), reverse)


def scan_steps(f: Callable, init, xs, length: int, reverse: bool = False, collect: bool = True):
    """`scan` on Arrays; without `collect` the last y instead of all.

    The one place where loops over a sequence are carried out: by a loop whose body is traced
    once, or step by step where that cannot be (few steps, or a body that needs the host).
    """
    if length > _MOST_UNROLLED_STEPS and not tracing.shapes_only():
        with contextlib.suppress(CaptureError):
            return _traced_loop(f, init, xs, length, reverse, collect)
    carry, ys = init, []
    steps = range(length)
    if tracing.shapes_only():
        steps = steps[:1]
    for i in reversed(steps) if reverse else steps:
        x = None if xs is None else tree.map_structure(lambda a, i=i: a[i], xs)
        carry, y = f(carry, x)
        ys.append(y)
    if not ys:
        x = tree.map_structure(lambda a: full(a.shape[1:], 0, a.dtype), xs)
        _, y = f(init, x)
        return carry, tree.map_structure(
            lambda a: None if a is None else full((0, *a.shape), 0, a.dtype), y
        )
    if not collect or all(y is None for y in ys):
        return carry, ys[-1]
    if len(ys) < length:  # shapes only
        return carry, tree.map_structure(
            lambda a: None if a is None else expand_to(a, (length, *a.shape)), ys[0]
        )
    if reverse:
        ys.reverse()
    return carry, tree.map_structure(
        lambda *parts: (
            None if parts[0] is None else movement.stack([convert_to_tensor(p) for p in parts])
        ),
        *ys,
    )


def _traced_loop(f: Callable, init, xs, length: int, reverse: bool, collect: bool):
    structure: list = []

    def body(carry, slices):
        state = carry if collect else carry[: len(leaves)]
        x = None if xs is None else tree.pack_sequence_as(xs, slices)
        new, y = f(tree.pack_sequence_as(init, state), x)
        structure[:] = [y]
        new = [convert_to_tensor(c) for c in tree.flatten(new)]
        ys = [convert_to_tensor(part) for part in tree.flatten(y) if part is not None]
        return (new, ys) if collect else (new + ys, [])

    def restored(ys):
        ys = iter(ys)
        parts = [None if part is None else next(ys) for part in tree.flatten(structure[0])]
        return tree.pack_sequence_as(structure[0], parts)

    leaves = tree.flatten(init)
    inputs = [] if xs is None else tree.flatten(xs)
    if collect:
        carry, ys = loop(body, leaves, inputs, length, reverse)
        return tree.pack_sequence_as(init, carry), restored(ys)
    # the last results are carried along; their first values only give the shapes
    with tracing.ShapeTrace(), tapes.pause():
        _, y = f(init, None if xs is None else tree.map_structure(lambda a: a[0], xs))
        shapes = [(a.shape, a.dtype) for a in tree.flatten(y) if a is not None]
    carry, _ = loop(body, leaves + [full(s, 0, d) for s, d in shapes], inputs, length, reverse)
    return tree.pack_sequence_as(init, carry[: len(leaves)]), restored(carry[len(leaves) :])


def associative_scan(f: Callable, elems, reverse: bool = False, axis: int = 0):
    """Running combination by an associative `f`, in a logarithmic number of steps.

    Raises:
        TypeError: when `f` is not callable.
        ValueError: when sizes along `axis` differ.
    """
    if not callable(f):
        raise TypeError(f"`f` should be a callable. Received: f={f}")
    flat = [convert_to_tensor(x) for x in tree.flatten(elems)]
    axis = axis % flat[0].ndim if flat[0].ndim else 0
    size = flat[0].shape[axis]
    if any(x.shape[axis] != size for x in flat):
        raise ValueError(
            "Array inputs to associative_scan must have the same first dimension. "
            f"(saw: {[x.shape for x in flat]})"
        )
    if reverse:
        flat = [movement.flip(x, axis) for x in flat]

    def combine(a, b):
        return tree.flatten(f(tree.pack_sequence_as(elems, a), tree.pack_sequence_as(elems, b)))

    def part(xs, start, stop, step=1):
        return [_along(x, axis, start, stop, step) for x in xs]

    def run(xs):
        n = xs[0].shape[axis]
        if n < 2:
            return xs
        odd = run(combine(part(xs, 0, n - 1, 2), part(xs, 1, n, 2)))
        if n == 2:
            even = part(xs, 0, 1)
        else:
            before = part(odd, 0, (n - 1) // 2)
            rest = combine(before, part(xs, 2, n, 2))
            even = [
                movement.concatenate([a, b], axis)
                for a, b in zip(part(xs, 0, 1), rest, strict=True)
            ]
        return [_interleave(a, b, axis) for a, b in zip(even, odd, strict=True)]

    flat = run(flat)
    if reverse:
        flat = [movement.flip(x, axis) for x in flat]
    return tree.pack_sequence_as(elems, flat)


def _along(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    starts, stops, steps = [0] * x.ndim, list(x.shape), [1] * x.ndim
    starts[axis], stops[axis], steps[axis] = start, stop, step
    return movement.strided(x, starts, stops, steps)


def _interleave(a: Array, b: Array, axis: int) -> Array:
    """a0 b0 a1 b1 …; `a` may be longer by one."""
    n = b.shape[axis]
    mixed = movement.stack([_along(a, axis, 0, n), b], axis + 1)
    mixed = reshape_to(mixed, (*b.shape[:axis], 2 * n, *b.shape[axis + 1 :]))
    if a.shape[axis] == n:
        return mixed
    return movement.concatenate([mixed, _along(a, axis, n, n + 1)], axis)


def map(f: Callable, xs):
    """`f` of each slice along the first axis, stacked."""
    return scan(lambda _, x: ((), f(x)), (), xs)[1]


def vectorized_map(function: Callable, elements):
    """`function` of each slice along the first axis of `elements`, stacked.

    It runs once, on whole batches (`kerascl.vmap`). Only where it needs the value of an element on
    the host, assigns variables by element, or `elements` is empty, it runs element by element.
    """
    elements = tree.map_structure(convert_to_tensor, elements)
    if all(x.shape[0] for x in tree.flatten(elements)):
        with contextlib.suppress(CaptureError):
            return vmap(function)(elements)
    return map(function, elements)
