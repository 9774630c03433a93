"""Keras' dtype promotion, remembered: `keras.backend.result_type` costs more than an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras.src.backend import config
from keras.src.backend.common import dtypes

from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core import context
from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME, DType, float32, float64, promote
from kerascl.ops.declare import cast_to, scalar

_known: dict[tuple, DType] = {}


def floatx() -> DType:
    """Keras' default float dtype."""
    return BY_NAME[config.floatx()]


def resolve(*kinds) -> DType:
    """`keras.backend.result_type` of dtype records, names and the weak Python types.

    Beside integers, bools and Python numbers, float8 stays as it is, as with JAX (Keras' function
    itself knows no float8).

    Keras narrows every 64-bit result to 32 bits, JAX's default. Where floatx is float64, floats
    stay in float64, as under JAX with 64-bit numbers enabled.

    Raises:
        TypeError: for float8 beside another floating dtype.
    """
    key = (config.floatx(), *kinds)
    found = _known.get(key)
    if found is None:
        records = [BY_NAME.get(k, k) if isinstance(k, str) else k for k in kinds]
        if any(isinstance(k, DType) and k.is_float8 for k in records):
            found = promote(*(k for k in records if isinstance(k, DType)))
        else:
            names = [k.name if isinstance(k, DType) else k for k in records]
            found = BY_NAME[dtypes.result_type(*names)]
            # float32 from none of these was float64: from float64, or integers beside floatx.
            narrow = {"float32", "float16", "bfloat16"}.isdisjoint(names)
            if found is float32 and key[0] == "float64" and ("float64" in names or narrow):
                found = float64
        _known[key] = found
    return found


def float_dtype(dtype: DType) -> DType:
    """The dtype that most functions on real numbers compute in."""
    return floatx() if dtype.name == "int64" else resolve(dtype, float)


def as_float(x) -> Array:
    """A tensor in its `float_dtype`; complex ones stay."""
    x = convert_to_tensor(x)
    return x if x.dtype.is_complex else cast_to(x, float_dtype(x.dtype))


def at_least_float(x) -> Array:
    """A tensor that keeps a floating dtype; others become floatx."""
    x = convert_to_tensor(x)
    return x if x.dtype.is_float or x.dtype.is_complex else cast_to(x, floatx())


def statistics_dtype(dtype: DType) -> DType:
    """float64 for 64-bit numbers (float32 on devices without it), small floats as they are."""
    if dtype.name in ("int64", "float64"):
        return float64 if context.device().info.fp64 else float32
    keeps = dtype.is_complex or (dtype.is_float and dtype.itemsize < 4)
    return dtype if keeps else floatx()


def summed_dtype(dtype: DType) -> DType:
    """The dtype of sums and products: small integers widen to 32 bits."""
    if dtype.name in ("bool", "int8", "int16"):
        return BY_NAME["int32"]
    return BY_NAME["uint32"] if dtype.name in ("uint8", "uint16") else dtype


def _is_python(x) -> bool:
    return type(x) in (int, float, bool)


def operands(x1, x2, *more) -> tuple:
    """Two tensors in their common dtype; a Python scalar beside a tensor stays one (weak)."""
    weak1, weak2 = _is_python(x1), _is_python(x2)
    if not weak1:
        x1 = convert_to_tensor(x1)
    if not weak2:
        x2 = convert_to_tensor(x2)
    dtype = resolve(
        type(x1) if weak1 else x1._node.dtype, type(x2) if weak2 else x2._node.dtype, *more
    )
    if weak1 and weak2:
        return convert_to_tensor(x1, dtype), convert_to_tensor(x2, dtype)
    if not weak1:
        x1 = cast_to(x1, dtype)
    if not weak2:
        x2 = cast_to(x2, dtype)
    return x1, x2


def tensors(x1, x2, *more) -> tuple[Array, Array]:
    """Two tensors in their common dtype; Python scalars count with the dtype they convert to."""
    x1, x2 = convert_to_tensor(x1), convert_to_tensor(x2)
    dtype = resolve(x1._node.dtype, x2._node.dtype, *more)
    return cast_to(x1, dtype), cast_to(x2, dtype)


def pair(x1, x2) -> tuple[Array, Array]:
    """Two tensors in their common dtype; a Python scalar takes that of the tensor beside it."""
    x1, x2 = operands(x1, x2)
    if _is_python(x1):
        x1 = scalar(x1, x2.dtype)
    return x1, scalar(x2, x1.dtype) if _is_python(x2) else x2


def several(xs: Sequence) -> list[Array]:
    """Tensors in their common dtype; Python scalars take that of the tensors beside them."""
    given = [x if _is_python(x) else convert_to_tensor(x) for x in xs]
    kinds = {type(x) if _is_python(x) else x._node.dtype for x in given}
    if len(kinds) == 1 and isinstance(first := next(iter(kinds)), DType):
        return [cast_to(x, first) for x in given]
    dtype = resolve(*sorted(kinds, key=str)) if kinds else floatx()
    return [convert_to_tensor(x, dtype) for x in given]


def named(name: str, function: Callable, doc: str | None) -> Callable:
    """Give a generated function its name and documentation."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
