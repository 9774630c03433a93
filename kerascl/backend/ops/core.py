"""Tensors in and out, control flow, slices and scatters: what `keras.ops` has in its core."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence

import numpy as np
from keras.src import tree
from keras.src.backend import config
from keras.src.backend.common import KerasVariable, standardize_dtype
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.backend.common.symbolic_scope import SymbolicScope

from kerascl.backend import tracing
from kerascl.backend.branches import select
from kerascl.core import scope
from kerascl.core import tape as tapes
from kerascl.core.array import Array, State, from_host
from kerascl.core.errors import CaptureError
from kerascl.dtypes import BY_NAME, DType, as_dtype, float32, int32
from kerascl.ops import indexing, movement, pointwise
from kerascl.ops.control import loop
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to, python_dtype, scalar
from kerascl.ops.views import expand_to, reshape_to

SUPPORTS_SPARSE_TENSORS = False
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_COMPLEX_DTYPES = True
IS_THREAD_SAFE = True

# A while loop on a device value can be captured when it runs at most this often.
_MOST_MASKED_STEPS = 128
# A scan of at most so many steps is noted step by step, so that neighbours can be fused.
_MOST_UNROLLED_STEPS = 4


# -- tensors in and out ---------------------------------------------------------------------------
def convert_to_tensor(x, dtype=None, sparse=None, ragged=None) -> Array:
    """An Array from anything that Keras calls a tensor.

    Args:
        x: an Array, Keras variable, NumPy array, Python scalar, nested list of these, or another
            framework's tensor (copied through the host).
        dtype: a Keras dtype; by default that of arrays, floatx for Python floats, int32 for ints.

    Raises:
        TypeError: for strings, objects and dtypes that kerascl does not have.
        ValueError: for symbolic tensors, and when a sparse or ragged result is asked for.
    """
    if sparse:
        raise ValueError("`sparse=True` is not supported with the kerascl backend")
    if ragged:
        raise ValueError("`ragged=True` is not supported with the kerascl backend")
    target = None if dtype is None else find_dtype(dtype)
    if isinstance(x, Array):
        return x if target is None or x._node.dtype is target else cast_to(x, target)
    if isinstance(x, KerasVariable):
        x = x.value
        return x if target is None else cast_to(x, target)
    if isinstance(x, State):
        return x.value if target is None else cast_to(x.value, target)
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return scalar(x, target or _scalar_dtype(x))
    if isinstance(x, list | tuple):
        return _from_sequence(x, target)
    return _from_host(x, target)


def find_dtype(dtype) -> DType:
    """kerascl's record of a Keras dtype.

    Raises:
        TypeError: when kerascl does not have it.
        ValueError: when Keras does not.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype]
    return as_dtype(standardize_dtype(dtype))


def _scalar_dtype(value) -> DType:
    return BY_NAME[config.floatx()] if isinstance(value, float) else python_dtype(value)


def _from_sequence(x, target: DType | None) -> Array:
    leaves = tree.flatten(x)
    if any(isinstance(leaf, Array | KerasVariable | State) for leaf in leaves):
        # without a detour over the host, so that it can be captured
        parts = [convert_to_tensor(part, target) for part in x]
        return movement.stack(parts)
    if target is None and leaves:
        kinds = {type(leaf) for leaf in leaves}
        if kinds <= {bool, int, float}:
            if float in kinds:
                target = BY_NAME[config.floatx()]
            elif int in kinds:
                target = max((python_dtype(leaf) for leaf in leaves), key=lambda d: d.itemsize)
    elif target is None:
        target = BY_NAME[config.floatx()]
    if any(isinstance(leaf, KerasTensor) for leaf in leaves):
        raise ValueError(_SYMBOLIC)
    return _from_host(_host_sequence(x), target)


def _host_sequence(x) -> np.ndarray:
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError, ValueError):
        # tensors of other frameworks that NumPy cannot stack
        return np.stack([
            _host_sequence(part) if isinstance(part, list | tuple) else _foreign(part) for part in x
        ])


_SYMBOLIC = (
    "A KerasTensor is symbolic: it stands for a value that does not exist yet, and cannot be "
    "turned into an array. Use it in layers and in functions of `keras.ops` to build a model."
)


def _from_host(x, target: DType | None) -> Array:
    if isinstance(x, KerasTensor):
        raise ValueError(_SYMBOLIC)
    host = x if isinstance(x, np.ndarray) else _foreign(x)
    if host.dtype.kind in "OSUVmM" and host.dtype.name not in BY_NAME:
        if host.dtype.kind == "V" and target is not None and host.dtype.itemsize == target.itemsize:
            host = host.view(target.numpy)  # h5py stores bfloat16 as two plain bytes
        else:
            raise TypeError(
                f"cannot convert {_describe(x)} to a kerascl array: its dtype {host.dtype} has no "
                "place on the device. Strings and objects must become numbers first, for example "
                "with keras.layers.StringLookup or TextVectorization."
            )
    if target is None and host.dtype == np.float64 and not _has_fp64():
        target = float32
    elif host.dtype == np.complex128:
        host = host.astype(np.complex64)
    if target is not None and host.dtype != target.numpy:
        with np.errstate(invalid="ignore", over="ignore"):
            host = host.astype(target.numpy)
    return from_host(host)


def _has_fp64() -> bool:
    return scope.device().info.fp64


def _foreign(x) -> np.ndarray:
    """The value of another framework's tensor, or of anything with `__array__`."""
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu()
        if "bfloat16" in str(x.dtype):
            return x.float().numpy().astype(BY_NAME["bfloat16"].numpy)
    return np.asarray(x)


def _describe(x) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def convert_to_numpy(x) -> np.ndarray:
    """The value on the host, in the same dtype (bfloat16 as `ml_dtypes.bfloat16`)."""
    if isinstance(x, Array):
        return x.numpy()
    if isinstance(x, KerasVariable | State):
        return x.value.numpy()
    if isinstance(x, KerasTensor):
        raise ValueError(_SYMBOLIC)
    if isinstance(x, list | tuple) and any(
        isinstance(leaf, Array | KerasVariable) for leaf in tree.flatten(x)
    ):
        return np.array([convert_to_numpy(part) for part in x])
    return np.array(_foreign(x))


def is_tensor(x) -> bool:
    """Whether `x` is an Array."""
    return isinstance(x, Array)


def shape(x) -> tuple[int, ...]:
    """The shape; always known."""
    return tuple(x.shape)


def cast(x, dtype) -> Array:
    """`x` in another dtype."""
    return convert_to_tensor(x, dtype)


def random_seed_dtype() -> str:
    """The dtype of random seeds."""
    return "uint32"


def device_scope(device_name):
    """Create arrays on a device such as "gpu:0" or "cpu:0" inside the `with` block."""
    return contextlib.nullcontext() if device_name is None else scope.device_scope(device_name)


def get_device() -> str:
    """The name of the device that new arrays are made on."""
    return scope.device().info.name


# -- shape inference ------------------------------------------------------------------------------
def compute_output_spec(fn: Callable, *args, **kwargs):
    """Shapes and dtypes of what `fn` returns, as KerasTensors; nothing is computed.

    Unknown dimensions are tried with two sizes; where the results differ, the result's dimension
    is unknown too.
    """
    with StatelessScope(), SymbolicScope():
        first = _symbolic_call(fn, args, kwargs, 83)
        if not any(
            isinstance(x, KerasTensor) and None in x.shape for x in tree.flatten((args, kwargs))
        ):
            return tree.map_structure(_spec, first)
        second = _symbolic_call(fn, args, kwargs, 89)
        merged = [_merge(a, b) for a, b in zip(tree.flatten(first), tree.flatten(second))]
        return tree.pack_sequence_as(first, merged)


def _symbolic_call(fn: Callable, args, kwargs, size: int):
    def stand_in(make):
        def convert(x):
            if not isinstance(x, KerasTensor):
                return x
            sizes = tuple(size if n is None else n for n in x.shape)
            return make(sizes, find_dtype(x.dtype))

        return tree.map_structure(convert, (args, kwargs))

    try:
        with tracing.ShapeTrace(), tapes.pause():
            arrays, named = stand_in(tracing.placeholder)
            return fn(*arrays, **named)
    except CaptureError:
        # the function looks at values: give it some
        arrays, named = stand_in(lambda sizes, dtype: full(sizes, 1, dtype))
        return fn(*arrays, **named)


def _spec(x):
    return KerasTensor(x.shape, x.dtype.name) if isinstance(x, Array) else x


def _merge(a, b):
    if not isinstance(a, Array):
        return a
    sizes = [m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)]
    return KerasTensor(sizes, a.dtype.name)


# -- control flow ---------------------------------------------------------------------------------
def cond(pred, true_fn: Callable, false_fn: Callable):
    """`true_fn()` or `false_fn()`.

    When `pred` is a device value inside a captured step, both run and `pred` selects between
    their results, element by element, and between what they assign to variables.
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


def while_loop(cond: Callable, body: Callable, loop_vars, maximum_iterations: int | None = None):
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)`.

    The condition is read on the host at each step. Inside a captured step, where it cannot be
    read, `maximum_iterations` (at most 128) steps are noted, each applied only while it holds.

    Raises:
        CaptureError: inside a captured step, without such a bound.
    """
    is_sequence = isinstance(loop_vars, list | tuple)
    values = tuple(loop_vars) if is_sequence else (loop_vars,)
    values = tree.map_structure(convert_to_tensor, values)
    if maximum_iterations is not None:
        maximum_iterations = int(maximum_iterations)

    def advance(values):
        new = body(*values)
        new = tuple(new) if isinstance(new, list | tuple) else (new,)
        return tree.map_structure(convert_to_tensor, new)

    step = 0
    if tracing.shapes_only():
        values = advance(values)
    else:
        while maximum_iterations is None or step < maximum_iterations:
            going = cond(*values)
            if isinstance(going, Array) and not tracing.is_known(going):
                values = _masked_loop(cond, advance, values, maximum_iterations, step)
                break
            if not bool(going):
                break
            values = advance(values)
            step += 1
    return values if is_sequence else values[0]


def _masked_loop(cond, advance, values, most: int | None, step: int):
    if most is None or most - step > _MOST_MASKED_STEPS:
        raise CaptureError(
            "while_loop: a captured step cannot read the loop's condition on the host; give "
            f"maximum_iterations (at most {_MOST_MASKED_STEPS}), or run the step eagerly"
        )
    going = scalar(True, BY_NAME["bool"])
    for _ in range(step, most):
        going = pointwise.logical_and(going, _scalar(cond(*values), "while_loop: cond"))
        values = select(going, [lambda v=values: v, lambda v=values: advance(v)])
    return values


def fori_loop(lower, upper, body_fun: Callable, init_val):
    """`for i in range(lower, upper): val = body_fun(i, val)`."""
    value = init_val
    steps = range(int(lower), int(upper))
    if tracing.shapes_only():
        steps = steps[:1]
    for i in steps:
        value = body_fun(i, value)
    return value


def scan(
    f: Callable, init, xs=None, length: int | None = None, reverse: bool = False, unroll=1
):
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
    return scan_steps(f, init, xs, int(length), reverse)


def scan_steps(
    f: Callable, init, xs, length: int, reverse: bool = False, collect: bool = True
):
    """`scan` on Arrays; without `collect` the last y instead of all.

    The one place where loops over a sequence are carried out: by a loop whose body is traced
    once, or step by step where that cannot be (few steps, or a body that assigns variables).
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
        lambda *parts: None
        if parts[0] is None
        else movement.stack([convert_to_tensor(p) for p in parts]),
        *ys,
    )


def _traced_loop(f: Callable, init, xs, length: int, reverse: bool, collect: bool):
    structure = []

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
    """`function` of each slice along the first axis of `elements`, stacked."""
    return map(function, elements)


# -- slices and scatters --------------------------------------------------------------------------
_MODES = {None: "set", "add": "add", "max": "max", "min": "min", "mul": "mul"}


def scatter(indices, values, shape) -> Array:
    """Zeros of `shape` with `values` added at `indices` (…, k): row numbers of the first k axes."""
    values = convert_to_tensor(values)
    shape = tuple(int(n) for n in shape)
    return _scatter(full(shape, 0, values.dtype), convert_to_tensor(indices), values, "add")


def scatter_update(inputs, indices, updates, reduction: str | None = None) -> Array:
    """`inputs` with `updates` put at `indices` (…, k), or combined by "add", "max", "min", "mul".

    Raises:
        ValueError: for another `reduction`.
    """
    if reduction not in _MODES:
        raise ValueError(f"Unsupported reduction: {reduction}")
    inputs, updates = convert_to_tensor(inputs), convert_to_tensor(updates)
    return _scatter(inputs, convert_to_tensor(indices), updates, _MODES[reduction])


def _scatter(base: Array, indices: Array, updates: Array, mode: str) -> Array:
    k = indices.shape[-1]
    lead, tail = base.shape[:k], base.shape[k:]
    count, width = math.prod(indices.shape[:-1]), math.prod(tail)
    indices = cast_to(reshape_to(indices, (count, k)), int32)
    position, outside = scalar(0, int32), None
    for axis, size in enumerate(lead):
        index = indexing.wrap_negative(indices[:, axis], size)
        wrong = pointwise.logical_or(index < 0, index >= size)
        outside = wrong if outside is None else pointwise.logical_or(outside, wrong)
        position = position + index * math.prod(lead[axis + 1 :])
    if outside is not None:  # out of range in one axis: drop it, do not hit another row
        position = pointwise.where(outside, -1, position)
    updates = expand_to(updates, (*indices.shape[:1], *tail)) if updates.ndim == 0 else updates
    flat = indexing.scatter_rows(
        reshape_to(base, (math.prod(lead), width)),
        expand_to(position, (count,)),
        reshape_to(updates, (count, width)),
        mode,
    )
    return reshape_to(flat, base.shape)


def slice(inputs, start_indices, shape) -> Array:
    """The part of `inputs` of `shape` (-1: to the end) that begins at `start_indices`.

    Starts may be device values; the part is then kept inside `inputs`.
    """
    x = convert_to_tensor(inputs)
    starts = _starts(start_indices)
    if len(starts) != len(shape):
        raise ValueError(
            "Length of `start_indices` must match length of `shape`. "
            f"Received: start_indices={start_indices}, shape={shape}"
        )
    sizes = [int(n) for n in shape]
    fixed = [s if isinstance(s, int) else 0 for s in starts]
    sizes = [n - s if m == -1 else m for n, s, m in zip(x.shape, fixed, sizes, strict=True)]
    stops = [s + m if isinstance(start, int) else n
             for s, m, n, start in zip(fixed, sizes, x.shape, starts, strict=True)]  # fmt: skip
    for s, e, n in zip(fixed, stops, x.shape, strict=True):
        if s < 0 or e > n:
            raise ValueError(
                f"slice: start {start_indices} and shape {shape} leave an array of shape {x.shape}"
            )
    y = movement.strided(x, fixed, stops, [1] * x.ndim)
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if isinstance(start, int):
            continue
        start = pointwise.minimum(pointwise.maximum(start, 0), x.shape[axis] - size)
        y = indexing.take(y, start + movement.iota((size,), 0), axis)
    return y


def slice_update(inputs, start_indices, updates) -> Array:
    """`inputs` with `updates` put at `start_indices`, which may be device values."""
    x, updates = convert_to_tensor(inputs), convert_to_tensor(updates)
    starts = _starts(start_indices)
    inside, part = None, cast_to(updates, x.dtype)
    low = [s if isinstance(s, int) else 0 for s in starts]
    for axis, (start, m, n) in enumerate(zip(starts, updates.shape, x.shape, strict=True)):
        if m > n:
            raise ValueError(
                f"slice_update: updates of shape {updates.shape} do not fit in {x.shape}"
            )
        if isinstance(start, int):
            start = low[axis] = min(max(start, 0), n - m)
            if m == n:
                continue
        else:
            start = pointwise.minimum(pointwise.maximum(start, 0), n - m)
        place = movement.iota(x.shape, axis) - start
        here = pointwise.logical_and(place >= 0, place < m)
        inside = here if inside is None else pointwise.logical_and(inside, here)
        if not isinstance(starts[axis], int):
            line = pointwise.minimum(
                pointwise.maximum(movement.iota((n,), 0) - start, 0), m - 1
            )
            part = indexing.take(part, line, axis)
    if inside is None:
        return part
    high = [n - s - k for n, s, k in zip(x.shape, low, part.shape, strict=True)]
    part = movement.pad_with(part, low, high, [0] * x.ndim, 0)
    return pointwise.where(inside, part, x)


def _starts(start_indices) -> list:
    """Python ints, and int32 Arrays of shape (): values on the device stay there."""
    if isinstance(start_indices, KerasVariable):
        start_indices = start_indices.value
    if isinstance(start_indices, Array):
        start_indices = [start_indices[k] for k in range(start_indices.shape[0])]
    starts = []
    for s in start_indices:
        if isinstance(s, KerasVariable):
            s = s.value
        starts.append(cast_to(reshape_to(s, ()), int32) if isinstance(s, Array) else int(s))
    return starts


def unstack(x, num: int | None = None, axis: int = 0) -> list[Array]:
    """The slices along `axis`."""
    x = convert_to_tensor(x)
    axis = axis % x.ndim
    key = (np.s_[:],) * axis
    return [x[(*key, i)] for i in range(x.shape[axis])]


# -- gradients ------------------------------------------------------------------------------------
def stop_gradient(variable) -> Array:
    """The value as a constant for differentiation."""
    return tapes.stop_gradient(convert_to_tensor(variable))


def custom_gradient(fun: Callable) -> Callable:
    """Replace the derivative of `fun(*args) -> (output, grad)`; see `kerascl.custom_gradient`."""
    return tapes.custom_gradient(fun)


def remat(f: Callable) -> Callable:
    """`f` itself: intermediate values are kept, since fused kernels leave few of them."""
    return f
