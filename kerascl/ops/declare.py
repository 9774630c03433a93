"""How operations are declared: `pointwise`, `fold` and `family`, and argument conversion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from kerascl import dtypes
from kerascl.core import node as graph
from kerascl.core import rules
from kerascl.core.array import Array, State, apply, from_host
from kerascl.core.op import FoldSpec, Kind, Op, register
from kerascl.dtypes import DType, bool_, float32, int32

ArrayLike = Array | State | np.ndarray | bool | int | float | complex | Sequence

EXPAND = register(
    Op("expand", Kind.VIEW, vjp=lambda g, y, x, shape: (sum_to(g, x.shape),)),
)
RESHAPE = register(
    Op("reshape", Kind.VIEW, vjp=lambda g, y, x, shape: (reshape_to(g, x.shape),)),
)


def as_array(value, dtype: DType | None = None) -> Array:
    """An Array from an Array, State, variable, NumPy array, Python scalar or nested list.

    Python floats become float32 and ints int32 (int64 when they do not fit).
    """
    if isinstance(value, Array):
        array = value
    elif isinstance(value, bool | int | float):
        return scalar(value, dtype or python_dtype(value))
    elif isinstance(value, State):
        array = value.value
    elif isinstance(getattr(value, "value", None), Array):
        array = value.value  # a Keras variable
    else:
        host = np.asarray(value)
        if host.dtype == object:
            host = np.asarray(_to_host(value))
        if host.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
            host = host.astype(np.float32)
        elif host.dtype == np.int64 and not isinstance(value, np.ndarray | np.generic):
            if host.size == 0 or np.abs(host).max() < 2**31:
                host = host.astype(np.int32)
        if dtype is not None:
            host = host.astype(dtype.numpy)
        array = from_host(host)
    return array if dtype is None else cast_to(array, dtype)


def _to_host(value):
    if isinstance(value, list | tuple):
        return [_to_host(v) for v in value]
    return np.asarray(value)


def python_dtype(value) -> DType:
    """The dtype that a bare Python scalar gets."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return int32
        return dtypes.int64 if value < 2**63 else dtypes.uint64
    return float32


def scalar(value, dtype: DType) -> Array:
    """A constant of shape ()."""
    if dtype.is_bool:
        value = bool(value)
    elif dtype.is_integer:
        value = int(value)
        bits = 8 * dtype.itemsize
        value &= (1 << bits) - 1
        if dtype.kind == "i" and value >> (bits - 1):
            value -= 1 << bits
    else:
        value = float(dtype.numpy.type(value)) if dtype.itemsize < 4 else float(value)
    return Array(graph.const(value, dtype))


def is_scalar(value) -> bool:
    """Whether a value is a Python scalar, whose dtype is weak."""
    return isinstance(value, bool | int | float) and not isinstance(value, np.generic)


def cast_to(x: Array, dtype: DType) -> Array:
    """`x` in another dtype."""
    if x._node.dtype is dtype:
        return x
    if x._node.op is graph.CONST:
        value = x._node.attrs[0]
        if not (dtype.is_integer and isinstance(value, float) and not math.isfinite(value)):
            return scalar(value, dtype)
    return apply(CAST, (x,), (), x.shape, dtype)


def _cast_vjp(g, y, x):
    return (cast_to(g, x.dtype) if x.dtype.is_float else None,)


CAST = register(Op("cast", Kind.POINTWISE, "{0}", vjp=_cast_vjp))


def reshape_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` with another shape of the same size (no checks)."""
    if x._node.shape == shape:
        return x
    return apply(RESHAPE, (x,), (shape,), shape, x._node.dtype)


def expand_to(x: Array, shape: tuple[int, ...]) -> Array:
    """`x` broadcast to `shape`."""
    own = x._node.shape
    if own == shape:
        return x
    if len(own) < len(shape):
        x = reshape_to(x, (1,) * (len(shape) - len(own)) + own)
        if x._node.shape == shape:
            return x
    return apply(EXPAND, (x,), (shape,), shape, x._node.dtype)


def sum_to(g: Array, shape: tuple[int, ...]) -> Array:
    """The transpose of `expand_to`: sum the axes that were broadcast."""
    axes = tuple(a for a, (n, m) in enumerate(zip(g.shape, shape, strict=True)) if n != m)
    return SUM(g, axes, keepdims=True) if axes else g


def spread(arrays: Sequence[Array]) -> tuple[list[Array], tuple[int, ...]]:
    """Broadcast arrays against each other; constants stay scalars."""
    first = arrays[0]._node.shape
    if all(x._node.shape == first for x in arrays):
        return list(arrays), first
    shape = rules.broadcast(*(x._node.shape for x in arrays))
    return [x if x._node.op is graph.CONST else expand_to(x, shape) for x in arrays], shape


# dtype rules: from the dtypes of all inputs to (dtype of the inputs, dtype of the result)
def same(dtype: DType):
    return dtype, dtype


def floating(dtype: DType):
    dtype = dtype if dtype.is_float or dtype.is_complex else float32
    return dtype, dtype


def comparison(dtype: DType):
    return dtype, bool_


def logical(dtype: DType):
    return bool_, bool_


def predicate(dtype: DType):
    return dtype, bool_


def numeric(dtype: DType):
    dtype = int32 if dtype.is_bool else dtype
    return dtype, dtype


def real_only(dtype: DType):
    if dtype.is_complex:
        raise TypeError("this operation has no complex form")
    return dtype, dtype


def bitwise(dtype: DType):
    if not (dtype.is_integer or dtype.is_bool):
        raise TypeError(f"bitwise operations need integers or bools, not {dtype.name}")
    return dtype, dtype


def convert(args: Sequence) -> tuple[list[Array], DType]:
    """Arrays in their common dtype; Python scalars take the dtype of the arrays (weak)."""
    arrays = [None if is_scalar(a) else as_array(a) for a in args]
    strong = [x._node.dtype for x in arrays if x is not None]
    if strong:
        dtype = strong[0] if len(strong) == 1 else dtypes.promote(*strong)
        for a, x in zip(args, arrays, strict=True):
            if x is None:
                dtype = dtypes.weak_result(a, dtype)
    else:
        dtype = dtypes.promote(*(python_dtype(a) for a in args))
    return [
        scalar(a, dtype) if x is None else cast_to(x, dtype)
        for a, x in zip(args, arrays, strict=True)
    ], dtype


def pointwise(
    name: str,
    code: str,
    dtype: Callable[[DType], tuple[DType, DType]] = same,
    vjp: Callable | None = None,
    helpers: tuple[str, ...] = (),
    cost: int = 1,
    arity: int | None = None,
) -> Callable[..., Array]:
    """Declare an elementwise operation; gives the function that applies it.

    `code` is a C expression over {0}, {1}, …; `vjp(g, y, *inputs)` gives the
    gradients.  The function broadcasts and promotes as NumPy does.
    """
    op = register(Op(name, Kind.POINTWISE, code, helpers, vjp=vjp, cost=cost))
    count = arity or 1 + max((k for k in range(4) if "{" + str(k) + "}" in code), default=0)

    def function(*args: ArrayLike) -> Array:
        if len(args) != count:
            raise TypeError(f"{name} takes {count} arrays, got {len(args)}")
        arrays, common = convert(args)
        work, result = dtype(common)
        if work is not common:
            arrays = [cast_to(x, work) for x in arrays]
        arrays, shape = spread(arrays)
        return apply(op, tuple(arrays), (), shape, result)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Elementwise {name.replace('_', ' ')} of {count} array(s), with broadcasting."
    function.op = op
    return function


def fold(
    name: str,
    spec: Callable[[DType], FoldSpec],
    dtype: Callable[[DType], tuple[DType, DType]] = same,
    vjp: Callable | None = None,
) -> Callable[..., Array]:
    """Declare a reduction; gives `f(x, axis=None, keepdims=False)`.

    `vjp(g, y, x, axes)` sees g and y with the reduced axes kept at size 1.
    """
    op = register(Op(name, Kind.FOLD, fold=spec, vjp=vjp))

    def function(x: ArrayLike, axis=None, keepdims: bool = False) -> Array:
        x = as_array(x)
        work, result = dtype(x.dtype)
        x = cast_to(x, work)
        axes = rules.axes_tuple(axis, x.ndim)
        kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
        y = apply(op, (x,), (axes,), kept, result) if axes else _nothing_to_reduce(x, result, name)
        if keepdims:
            return y
        return reshape_to(y, tuple(n for a, n in enumerate(x.shape) if a not in axes))

    def _nothing_to_reduce(x: Array, result: DType, name: str) -> Array:
        if name in ("argmax", "argmin"):
            return expand_to(scalar(0, result), x.shape)
        return cast_to(x, result)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of `x` over `axis` (None: all axes, an int or a tuple)."
    function.op = op
    return function




SUM = fold(
    "sum",
    lambda d: FoldSpec((("acc", "0"),), "s0 += x;", "s0 += t0;"),
    numeric,
    vjp=lambda g, y, x, axes: (expand_to(g, x.shape),),
)


def family(name: str, vjp: Callable | None = None, outputs: int = 1) -> Op:
    """Declare an operation that a hand-written kernel computes."""
    return register(Op(name, Kind.FAMILY, vjp=vjp, outputs=outputs))
