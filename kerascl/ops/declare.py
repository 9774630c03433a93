"""How operations are declared: `pointwise`, `reduction`, `library_operation`; their arguments."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeGuard, cast

import numpy as np

from kerascl import dtypes
from kerascl.core import node as graph
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, State, apply, from_host
from kerascl.core.batch import Rule
from kerascl.core.context import current, device
from kerascl.core.op import CONST, Kind, Op, ReductionSpec, register
from kerascl.core.types import Axes, Gradients, Vjp
from kerascl.dtypes import DType, bool_, float32, int32
from kerascl.ops import clibrary
from kerascl.ops.views import SUM_OP, concat, expand_to, reshape_to

DTypeRule: TypeAlias = Callable[[DType], tuple[DType, DType]]  # see the dtype rules below


class Elementwise(Protocol):
    """An elementwise function, which broadcasts and promotes its arguments."""

    op: Op
    count: int

    def __call__(self, *args: ArrayLike) -> Array: ...


def elementwise(function: Callable[..., Array], op: Op, count: int) -> Elementwise:
    """A function of `count` arrays, which applies `op` or one like it to them."""
    names = ("x",) if count == 1 else (f"x{k + 1}" for k in range(count))
    plain = inspect.Parameter.POSITIONAL_ONLY
    function.__dict__["__signature__"] = inspect.Signature(
        [inspect.Parameter(name, plain, annotation="ArrayLike") for name in names],
        return_annotation="Array",
    )
    made = cast(Elementwise, function)
    made.op, made.count = op, count
    return made


class Reduction(Protocol):
    """A function that reduces axes."""

    op: Op

    def __call__(self, x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array: ...


def as_array(value: Any, dtype: DType | None = None) -> Array:
    """An Array from an Array, State, variable, NumPy array, Python scalar or nested list.

    Python floats become float32 and ints int32 (int64 when they do not fit);
    lists that hold arrays are stacked on the device.
    """
    if isinstance(value, Array):
        array = value
    elif is_scalar(value):
        return scalar(value, dtype or python_dtype(value))
    elif (inner := _held(value)) is not None:
        array = inner
    elif isinstance(value, list | tuple) and _holds_array(value):
        arrays, _ = convert(value)
        arrays, shape = broadcast(arrays)
        arrays = [reshape_to(expand_to(x, shape), (1, *shape)) for x in arrays]
        array = concat(arrays, 0)
    else:
        array = from_host(_host(value, dtype))
    return array if dtype is None else cast_to(array, dtype)


def _held(value: Any) -> Array | None:
    """The Array in a State or a Keras variable."""
    if isinstance(value, State):
        return value.value
    if isinstance(value, np.ndarray | list | tuple):
        return None
    inner = getattr(value, "value", None)
    return inner if isinstance(inner, Array) else None


def _holds_array(values: Iterable[Any]) -> bool:
    return any(
        isinstance(v, Array)
        or (_holds_array(v) if isinstance(v, list | tuple) else _held(v) is not None)
        for v in values
    )


def _saturated(host: np.ndarray, dtype: DType) -> np.ndarray:
    """Floats as integers, as a device with float64 converts them."""
    ends = np.iinfo(dtype.numpy)
    whole = np.where((host > ends.min) & (host < ends.max), host, 0).astype(dtype.numpy)
    whole[host >= ends.max], whole[host <= ends.min] = ends.max, ends.min
    return whole


def _host(value: Any, dtype: DType | None) -> np.ndarray:
    """A NumPy array; Python's numbers get kerascl's default dtypes.

    With `dtype`, of that one, but for what the device converts: floats to integers.

    Raises:
        OverflowError: for Python integers that `dtype`, or any dtype, cannot hold.
    """
    typed = isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__")
    if not typed and not isinstance(value, list | tuple) and _has_buffer(value):
        value, typed = np.asarray(memoryview(value)), True
    if dtype is not None and not typed:
        return np.asarray(value, dtype.numpy)
    host = dtypes.host_array(value) if typed else _of_numbers(value)
    if dtype is not None:
        floats = dtypes.as_dtype(host.dtype)
        saturates = floats.is_float and dtype.is_integer
        if saturates and (device().info.fp64 or not floats.is_double):
            return host
        return _saturated(host, dtype) if saturates else host.astype(dtype.numpy)
    if host.dtype == np.complex128 and not typed:
        host = host.astype(np.complex64)
    elif host.dtype == np.float64 and not typed:
        host = host.astype(np.float32)
    elif host.dtype == np.int64 and not typed:
        if host.size == 0 or (host.min() >= -(2**31) and host.max() < 2**31):
            host = host.astype(np.int32)
    return host


def _has_buffer(value: Any) -> bool:
    """Whether a value has memory with a dtype of its own, as an `array.array` has."""
    try:
        return bool(memoryview(value).format)
    except TypeError:
        return False


def _of_numbers(value: Any) -> np.ndarray:
    """NumPy's array of nested lists of numbers."""
    host = np.asarray(value)
    large = host.dtype == np.float64 and host.size and np.abs(host).max() >= 2**63
    if large or host.dtype == object:
        # integers that no dtype holds become objects or floats
        numbers = np.asarray(value, object)
        if numbers.size and all(type(x) in (int, bool) for x in numbers.flat):
            span = f"{min(numbers.flat)} to {max(numbers.flat)}"
            raise OverflowError(f"no integer dtype holds Python integers from {span}")
    return host


def python_dtype(value: object) -> DType:
    """The dtype that a bare Python scalar gets.

    Raises:
        OverflowError: for an integer that no dtype holds.
    """
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        if -(2**31) <= value < 2**31:
            return int32
        if not -(2**63) <= value < 2**64:
            raise OverflowError(f"no integer dtype holds the Python integer {value}")
        return dtypes.int64 if value < 2**63 else dtypes.uint64
    return dtypes.complex64 if isinstance(value, complex) else float32


def holds(dtype: DType, value: int) -> bool:
    """Whether an integer dtype has a value."""
    bits = 8 * dtype.itemsize
    if dtype.kind == "i":
        return -(1 << (bits - 1)) <= value < 1 << (bits - 1)
    return 0 <= value < 1 << bits


def scalar(value: Any, dtype: DType) -> Array:
    """A constant of shape ().

    Raises:
        OverflowError: for an integer that `dtype` cannot hold.
    """
    if dtype is float32:
        value = float(value)
    elif dtype.is_bool:
        value = bool(value)
    elif dtype.is_complex:
        value = complex(value)
    elif dtype.is_integer:
        value = int(value)
        if not holds(dtype, value):
            raise OverflowError(f"Python integer {value} is out of bounds for {dtype.name}")
    else:
        value = float(value)
        if dtype.itemsize < 4:
            with np.errstate(all="ignore"):
                value = float(dtype.numpy.type(value))
    return Array(graph.const(value, dtype))


def wrapped(value: Any, dtype: DType) -> Array:
    """A constant of shape (): an integer modulo what its dtype can tell apart."""
    bits = 8 * dtype.itemsize
    value = int(value) & (1 << bits) - 1
    if dtype.kind == "i" and value >> (bits - 1):
        value -= 1 << bits
    return scalar(value, dtype)


_P = ParamSpec("_P")
_SCALARS = (bool, int, float, complex)


def is_scalar(value: object) -> TypeGuard[Any]:
    """Whether a value is a Python scalar, whose dtype is weak."""
    return isinstance(value, _SCALARS) and not isinstance(value, np.generic)


def cast_to(x: Array, dtype: DType) -> Array:
    """`x` in another dtype."""
    if x._node.dtype is dtype:
        return x
    if x._node.op is CONST and not current.tapes:
        return _cast_constant(x._node.attrs[0], dtype)
    return apply(CAST, (x,), (), x.shape, dtype)


def _cast_constant(value: Any, dtype: DType) -> Array:
    """What the device's conversion gives: floats saturate in integers, NaN becomes 0."""
    if isinstance(value, complex) and not (dtype.is_complex or dtype.is_bool):
        value = value.real
    if dtype.is_integer and isinstance(value, float):
        info = np.iinfo(dtype.numpy)
        if math.isnan(value):
            value = 0
        else:
            value = info.min if value <= info.min else info.max if value >= info.max else int(value)
    return wrapped(value, dtype) if dtype.is_integer else scalar(value, dtype)


def _cast_vjp(g: Array, y: Array, x: Array) -> Gradients:
    return (cast_to(g, x.dtype) if x.dtype.is_float or x.dtype.is_complex else None,)


CAST = register(Op("cast", Kind.POINTWISE, "{0}", vjp=_cast_vjp, cost=0))


def broadcast(arrays: Sequence[Array]) -> tuple[list[Array], tuple[int, ...]]:
    """Broadcast arrays against each other; constants stay scalars."""
    first = arrays[0]._node.shape
    if all(x._node.shape == first for x in arrays):
        return list(arrays), first
    shape = rules.broadcast(*(x._node.shape for x in arrays))
    return [x if x._node.op is CONST else expand_to(x, shape) for x in arrays], shape


# dtype rules: from the dtypes of all inputs to (dtype of the inputs, dtype of the result)
def same(dtype: DType) -> tuple[DType, DType]:
    """The result has the inputs' dtype."""
    return dtype, dtype


def floating(dtype: DType) -> tuple[DType, DType]:
    """Integers and bools are computed in float32."""
    dtype = dtype if dtype.is_float or dtype.is_complex else float32
    return dtype, dtype


def comparison(dtype: DType) -> tuple[DType, DType]:
    """The result is bool."""
    return dtype, bool_


def logical(dtype: DType) -> tuple[DType, DType]:
    """Inputs and result are bool."""
    return bool_, bool_


def numeric(dtype: DType) -> tuple[DType, DType]:
    """The result has the inputs' dtype; bools are computed in int32."""
    dtype = int32 if dtype.is_bool else dtype
    return dtype, dtype


def bitwise(dtype: DType) -> tuple[DType, DType]:
    """The dtype rule of bitwise operations: integers and bools stay as they are.

    Raises:
        TypeError: for any other dtype.
    """
    if not (dtype.is_integer or dtype.is_bool):
        raise TypeError(f"bitwise operations need integers or bools, not {dtype.name}")
    return dtype, dtype


def convert(
    args: Sequence[ArrayLike], work: Callable[[DType], DType] = lambda common: common
) -> tuple[list[Array], DType]:
    """Arrays in `work` of their common dtype, and that; Python scalars take it, too (weak)."""
    arrays = [None if is_scalar(a) else as_array(a) for a in args]
    strong = [x._node.dtype for x in arrays if x is not None]
    if strong:
        dtype = strong[0] if len(strong) == 1 else dtypes.promote(*strong)
        for a, x in zip(args, arrays, strict=True):
            if x is None:
                dtype = dtypes.weak_result(a, dtype)
    else:
        dtype = dtypes.promote(*(python_dtype(a) for a in args))
    wanted = work(dtype)
    return [
        scalar(a, wanted) if x is None else cast_to(x, wanted)
        for a, x in zip(args, arrays, strict=True)
    ], dtype


def rounded_once(vjp: Vjp) -> Vjp:
    """A derivative of several operations as if it were one: 16-bit floats are computed in float32
    and rounded at the end, as their own operation's result is."""

    def wrapped(g: Array, y: Array, *rest: Any) -> Gradients:
        narrow, wide = y.dtype, y.dtype.accumulator
        if narrow is wide:
            return vjp(g, y, *rest)
        inputs = (
            cast_to(x, wide) if isinstance(x, Array) and x.dtype is narrow else x for x in rest
        )
        found = vjp(cast_to(g, wide), cast_to(y, wide), *inputs)
        return tuple(None if d is None else cast_to(d, narrow) for d in found)

    return wrapped


def in_float32(function: Callable[_P, Array]) -> Callable[_P, Array]:
    """A function of several operations as if it were one: where its arrays are 16-bit floats, or
    float8, it is computed in float32, and its result rounded once."""

    def widened(value: Any) -> Any:
        narrow = isinstance(value, Array) and value.dtype.is_float and value.dtype.itemsize <= 2
        return cast_to(value, float32) if narrow else value

    @functools.wraps(function)
    def wrapped(*given: Any, **named: Any) -> Array:
        args = [a if k and not hasattr(a, "ndim") else as_array(a) for k, a in enumerate(given)]
        kwargs = {k: as_array(a) if hasattr(a, "ndim") else a for k, a in named.items()}
        arrays = [a for a in (*args, *kwargs.values()) if isinstance(a, Array)]
        result = dtypes.promote(*(a.dtype for a in arrays))
        computed = cast(Callable[..., Array], function)
        if not result.is_float or result.itemsize > 2:
            return computed(*args, **kwargs)
        kwargs = {k: widened(a) for k, a in kwargs.items()}
        return cast_to(computed(*map(widened, args), **kwargs), result)

    return cast(Callable[_P, Array], wrapped)


def pointwise(
    name: str,
    code: str,
    dtype: DTypeRule = same,
    vjp: Vjp | None = None,
    *,
    cost: int = 1,
    arity: int | None = None,
    integer: str | None = None,
    unsigned: str | None = None,
    boolean: str | None = None,
    complex: str | None = None,
    exact: bool = False,
    once: bool = False,
    neutral: tuple[float | None, float | None] = (None, None),
    doc: str | None = None,
) -> Elementwise:
    """Declare an elementwise operation; gives the function that applies it.

    The function broadcasts and promotes as NumPy does.

    Args:
        code: a C expression over {0}, {1}, …; {T} is the compute type of the
            result and {U} an unsigned one in which integers wrap, {N} is 1 where the result is
            rounded to 16 bits, else 0.  It may call the functions of `clibrary`.
        dtype: the rule from the common dtype to those of the inputs and the result.
        vjp: `vjp(g, y, *inputs)` gives the gradients.
        integer, unsigned, boolean, complex: other code for such inputs; without
            it, unsigned falls back to integer, integer and boolean to code, and
            complex inputs raise TypeError.  With boolean code, bools stay bools.
        exact, neutral: see `Op`.
        once: whether the vjp is one operation already, which rounds once.
    """
    if vjp is not None and cost > 1 and not once:
        vjp = rounded_once(vjp)

    def declare(suffix: str, text: str) -> Op:
        helpers = clibrary.needed(text)
        return register(Op(
            name + suffix, Kind.POINTWISE, text, helpers, vjp=vjp, cost=cost, exact=exact,
            neutral=neutral,
        ))  # fmt: skip

    table = dict.fromkeys("fbiu", declare("", code))
    if integer is not None:
        table |= dict.fromkeys("biu", declare("_int", integer))
    if boolean is not None:
        table["b"] = declare("_bool", boolean)
    if unsigned is not None:
        table["u"] = declare("_uint", unsigned)
    if complex is not None:
        table["c"] = table["f"] if complex == code else declare("_complex", complex)
    count = arity or 1 + max((k for k in range(4) if "{" + str(k) + "}" in code), default=0)

    plans: dict[str, tuple[Op, DType, DType]] = {}  # by the common dtype's name

    def plan(common: DType) -> tuple[Op, DType, DType]:
        """What serves a common dtype: the operation, and the dtypes it takes and gives."""
        keep = common.is_bool and boolean is not None
        work, result = (common, common) if keep else dtype(common)
        op = table.get(work.kind)
        if op is None:
            raise TypeError(f"{name} has no form for {work.name}")
        plans[common.name] = op, work, result
        return plans[common.name]

    def working(common: DType) -> DType:
        return (plans.get(common.name) or plan(common))[1]

    def quickly(args: Sequence[ArrayLike]) -> Array | None:
        """The usual cases with the least Python: Arrays of one shape and dtype, and floats and
        ints that take this dtype; None for any other."""
        own = common = shape = None
        scalars = False
        for x in args:
            kind = type(x)
            if kind is Array:
                node = x._node  # type: ignore[union-attr]  # checked
                if own is None:
                    own, shape = node.dtype, node.shape
                elif node.dtype is not own or node.shape != shape:
                    return None
            elif kind is float or kind is int:
                scalars = True
            else:
                return None
        if own is None or shape is None:
            return None
        if scalars:
            common = own
            for x in args:
                if type(x) is not Array:
                    common = dtypes.weak_result(x, common)
            if common is not own:
                return None
        op, work, result = plans.get(own.name) or plan(own)
        if work is not own:
            return None
        if scalars:
            args = [x if type(x) is Array else scalar(x, own) for x in args]
        return apply(op, tuple(args), (), shape, result)  # type: ignore[arg-type]  # checked

    def function(*args: ArrayLike) -> Array:
        if len(args) != count:
            raise TypeError(f"{name} takes {count} arrays, got {len(args)}")
        found = quickly(args)
        if found is not None:
            return found
        arrays, common = convert(args, working)
        op, _, result = plans[common.name]
        arrays, shape = broadcast(arrays)
        return apply(op, tuple(arrays), (), shape, result)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc or f"Elementwise {name.replace('_', ' ')}; arguments broadcast."
    return elementwise(function, table["f"], count)


def reduction(
    name: str,
    spec: Callable[[DType], ReductionSpec],
    dtype: DTypeRule = same,
    vjp: Vjp | None = None,
    *,
    positions: bool = False,
) -> Reduction:
    """Declare a reduction; gives `f(x, axis=None, keepdims=False)`.

    Args:
        vjp: `vjp(g, y, x, axes)` sees g and y with the reduced axes kept at size 1.
        positions: whether it gives an element's position, which is 0 where nothing is reduced.
    """
    vjp = vjp and rounded_once(vjp)
    op = register(Op(name, Kind.REDUCTION, reduction=spec, vjp=vjp))
    return reduction_function(op, dtype, positions=positions)


def reduction_function(op: Op, dtype: DTypeRule, *, positions: bool = False) -> Reduction:
    """The public function of a reduction: `f(x, axis=None, keepdims=False)`; see `reduction`."""
    name = op.name

    def function(x: ArrayLike, axis: Axes = None, keepdims: bool = False) -> Array:
        x = as_array(x)
        work, result = dtype(x.dtype)
        x = cast_to(x, work)
        axes = rules.axes_tuple(axis, x.ndim)
        kept = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
        y = apply(op, (x,), (axes,), kept, result) if axes else _nothing_to_reduce(x, result)
        if keepdims:
            return y
        return reshape_to(y, tuple(n for a, n in enumerate(x.shape) if a not in axes))

    def _nothing_to_reduce(x: Array, result: DType) -> Array:
        if positions:
            return expand_to(scalar(0, result), x.shape)
        return cast_to(x, result)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{name} of `x` over `axis` (None: all axes, an int or a tuple)."
    made = cast(Reduction, function)
    made.op = op
    return made


SUM = reduction_function(SUM_OP, numeric)


def library_operation(
    name: str, vjp: Vjp | None = None, outputs: int = 1, batch: Rule | None = None
) -> Op:
    """Declare an operation that hand-written kernels compute; a record of `compiler/library/` says
    how.

    Args:
        vjp: `vjp(g, y, *inputs, *attrs)` gives the gradients.
        outputs: how many results there are.
        batch: see `Op`; without it batches are taken element by element.
    """
    return register(Op(name, Kind.LIBRARY, vjp=vjp, batch=batch, outputs=outputs))
