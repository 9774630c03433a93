"""What `keras.ops` has in its core: names from here and from its neighbours."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.keras_tensor import KerasTensor
from keras.src.backend.common.stateless_scope import StatelessScope, get_stateless_scope
from keras.src.backend.common.symbolic_scope import SymbolicScope

from kerascl.backend import tracing
from kerascl.backend.branches import noted_updates
from kerascl.backend.ops import conversion, sparse
from kerascl.backend.ops.control_flow import (
    associative_scan,
    cond,
    fori_loop,
    map,
    scan,
    scan_steps,
    switch,
    vectorized_map,
    while_loop,
)
from kerascl.backend.ops.conversion import (
    convert_to_numpy,
    device_scope,
    find_dtype,
    get_device,
    is_tensor,
    random_seed_dtype,
    shape,
)
from kerascl.core import tape as tapes
from kerascl.core import traced
from kerascl.core.array import Array
from kerascl.core.errors import CaptureError
from kerascl.core.overlay import placeholder
from kerascl.dtypes import int32
from kerascl.ops import gather, movement, pointwise
from kerascl.ops.creation import full
from kerascl.ops.declare import cast_to, scalar
from kerascl.ops.sparse import SparseArray
from kerascl.ops.updates import update
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "IS_THREAD_SAFE",
    "SUPPORTS_COMPLEX_DTYPES",
    "SUPPORTS_RAGGED_TENSORS",
    "SUPPORTS_SPARSE_TENSORS",
    "associative_scan",
    "cast",
    "compute_output_spec",
    "cond",
    "convert_to_numpy",
    "convert_to_tensor",
    "custom_gradient",
    "device_scope",
    "find_dtype",
    "fori_loop",
    "get_device",
    "is_tensor",
    "map",
    "random_seed_dtype",
    "remat",
    "scan",
    "scan_steps",
    "scatter",
    "scatter_update",
    "shape",
    "slice",
    "slice_update",
    "stop_gradient",
    "switch",
    "unstack",
    "vectorized_map",
    "while_loop",
]

SUPPORTS_SPARSE_TENSORS = True
SUPPORTS_RAGGED_TENSORS = False
SUPPORTS_COMPLEX_DTYPES = True
IS_THREAD_SAFE = True


# -- tensors --------------------------------------------------------------------------------------
def convert_to_tensor(x, dtype=None, sparse=None, ragged=None) -> Array | SparseArray:
    """An Array from anything that Keras calls a tensor; see `conversion.convert_to_tensor`.

    Args:
        sparse: whether sparse arrays stay sparse; they do unless it is False. Dense values are
            never made sparse.
    """
    if type(x) is SparseArray and sparse is not False and not ragged:
        return x if dtype is None else x.astype(find_dtype(dtype))
    return conversion.convert_to_tensor(x, dtype, sparse, ragged)


def cast(x, dtype) -> Array | SparseArray:
    """`x` in another dtype."""
    return convert_to_tensor(x, dtype)


# -- shape inference ------------------------------------------------------------------------------
def compute_output_spec(fn: Callable, *args, **kwargs):
    """Shapes and dtypes of what `fn` returns, as KerasTensors; nothing is computed.

    Unknown dimensions are tried with two sizes; where the results differ, the result's dimension
    is unknown too. A reshape may then ask for any number of elements.
    """
    with StatelessScope(), SymbolicScope():
        guessed = any(
            isinstance(x, KerasTensor) and None in x.shape for x in tree.flatten((args, kwargs))
        )
        first = _symbolic_call(fn, args, kwargs, 83, guessed)
        if not guessed:
            return tree.map_structure(_spec, first)
        second = _symbolic_call(fn, args, kwargs, 89, guessed)
        merged = [_merge(a, b) for a, b in zip(tree.flatten(first), tree.flatten(second))]
        return tree.pack_sequence_as(first, merged)


def _symbolic_call(fn: Callable, args, kwargs, size: int, guessed: bool):
    def stand_in(make):
        def convert(x):
            if not isinstance(x, KerasTensor):
                return x
            sizes = tuple(size if n is None else n for n in x.shape)
            made = sparse.stand_in if x.sparse else make
            return made(sizes, find_dtype(x.dtype))

        return tree.map_structure(convert, (args, kwargs))

    try:
        with tracing.ShapeTrace(guessed), tapes.pause():
            arrays, named = stand_in(placeholder)
            return fn(*arrays, **named)
    except CaptureError:
        # the function looks at values: give it some
        arrays, named = stand_in(lambda sizes, dtype: full(sizes, 1, dtype))
        return fn(*arrays, **named)


def _spec(x):
    if not isinstance(x, Array | SparseArray):
        return x
    return KerasTensor(x.shape, x.dtype.name, sparse=type(x) is SparseArray)


def _merge(a, b):
    if not isinstance(a, Array | SparseArray):
        return a
    sizes = [m if m == n else None for m, n in zip(a.shape, b.shape, strict=True)]
    return KerasTensor(sizes, a.dtype.name, sparse=type(a) is SparseArray)


# -- slices and scatters --------------------------------------------------------------------------
_MODES = {None: "set", "add": "add", "max": "max", "min": "min", "mul": "mul"}


def scatter(indices, values, shape) -> Array:
    """Zeros of `shape` with `values` added at `indices` (…, k): row numbers of the first k axes."""
    values = conversion.convert_to_tensor(values)
    shape = tuple(int(n) for n in shape)
    return _scatter(
        full(shape, 0, values.dtype), conversion.convert_to_tensor(indices), values, "add"
    )


def scatter_update(inputs, indices, updates, reduction: str | None = None) -> Array:
    """`inputs` with `updates` put at `indices` (…, k), or combined by "add", "max", "min", "mul".

    Raises:
        ValueError: for another `reduction`.
    """
    if reduction not in _MODES:
        raise ValueError(f"Unsupported reduction: {reduction}")
    inputs, updates = conversion.convert_to_tensor(inputs), conversion.convert_to_tensor(updates)
    return _scatter(inputs, conversion.convert_to_tensor(indices), updates, _MODES[reduction])


def _scatter(base: Array, indices: Array, updates: Array, mode: str) -> Array:
    k = indices.shape[-1]
    lead, tail = base.shape[:k], base.shape[k:]
    count, width = math.prod(indices.shape[:-1]), math.prod(tail)
    indices = cast_to(reshape_to(indices, (count, k)), int32)
    position, outside = scalar(0, int32), None
    for axis, size in enumerate(lead):
        index = gather.wrap_negative(indices[:, axis], size)
        wrong = pointwise.logical_or(index < 0, index >= size)
        outside = wrong if outside is None else pointwise.logical_or(outside, wrong)
        position = position + index * math.prod(lead[axis + 1 :])
    if outside is not None:  # out of range in one axis: drop it, do not hit another row
        position = pointwise.where(outside, -1, position)
    updates = expand_to(updates, (*indices.shape[:1], *tail)) if updates.ndim == 0 else updates
    flat = gather.scatter_rows(
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
    x = conversion.convert_to_tensor(inputs)
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
        y = gather.take(y, start + movement.iota((size,), 0), axis)
    return y


def slice_update(inputs, start_indices, updates) -> Array:
    """`inputs` with `updates` put at `start_indices`, which may be device values."""
    x, updates = conversion.convert_to_tensor(inputs), conversion.convert_to_tensor(updates)
    starts = []
    for start, m, n in zip(_starts(start_indices), updates.shape, x.shape, strict=True):
        if m > n:
            raise ValueError(
                f"slice_update: updates of shape {updates.shape} do not fit in {x.shape}"
            )
        if isinstance(start, int):
            starts.append(min(max(start, 0), n - m))
        else:
            starts.append(pointwise.minimum(pointwise.maximum(start, 0), n - m))
    return update(x, updates, starts)


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
    x = conversion.convert_to_tensor(x)
    axis = axis % x.ndim
    key = (np.s_[:],) * axis
    return [x[(*key, i)] for i in range(x.shape[axis])]


# -- gradients ------------------------------------------------------------------------------------
def stop_gradient(variable) -> Array:
    """The value as a constant for differentiation."""
    return tapes.stop_gradient(conversion.convert_to_tensor(variable))


def custom_gradient(fun: Callable) -> Callable:
    """Replace the derivative of `fun(*args) -> (output, grad)`; see `kerascl.custom_gradient`."""
    return tapes.custom_gradient(fun)


def remat(f: Callable) -> Callable:
    """`f` without its intermediate values kept for the backward pass; see `kerascl.remat`."""

    @functools.wraps(f)
    def wrapped(*args, **kwargs):
        if get_stateless_scope() is None:
            return traced.remat(f)(*args, **kwargs)
        variables = []

        def pure(*args, **kwargs):
            with noted_updates() as updates:
                result = f(*args, **kwargs)
            variables[:] = [variable for variable, _ in updates.values()]
            return result, [value for _, value in updates.values()]

        result, values = traced.remat(pure)(*args, **kwargs)
        for variable, value in zip(variables, values, strict=True):
            get_stateless_scope().add_update((variable, value))
        return result

    return wrapped
