"""Keras' dtype promotion, remembered: `keras.backend.result_type` costs more than an operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from keras.src.backend import config
from keras.src.backend.common import dtypes

from kerascl.backend.ops.core import convert_to_tensor
from kerascl.core import scope
from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME, DType, float32, float64
from kerascl.ops.declare import cast_to

_known: dict[tuple, DType] = {}


def floatx() -> DType:
    """Keras' default float dtype."""
    return BY_NAME[config.floatx()]


def resolve(*kinds) -> DType:
    """`keras.backend.result_type` of dtype records, names and the weak Python types."""
    key = (config.floatx(), *kinds)
    found = _known.get(key)
    if found is None:
        names = [k.name if isinstance(k, DType) else k for k in kinds]
        found = _known[key] = BY_NAME[dtypes.result_type(*names)]
    return found


def float_dtype(dtype: DType) -> DType:
    """The dtype that most functions on real numbers compute in."""
    return floatx() if dtype.name == "int64" else resolve(dtype, float)


def as_float(x) -> Array:
    """A tensor in its `float_dtype`."""
    x = convert_to_tensor(x)
    return cast_to(x, float_dtype(x.dtype))


def at_least_float(x) -> Array:
    """A tensor that keeps a floating dtype; others become floatx."""
    x = convert_to_tensor(x)
    return x if x.dtype.is_float or x.dtype.is_complex else cast_to(x, floatx())


def statistics_dtype(dtype: DType) -> DType:
    """float64 for 64-bit numbers (float32 on devices without it), 16-bit floats as they are."""
    if dtype.name in ("int64", "float64"):
        return float64 if scope.device().info.fp64 else float32
    return dtype if dtype.name in ("float16", "bfloat16") else floatx()


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


def several(xs: Sequence) -> list[Array]:
    """Tensors in their common dtype."""
    arrays = [convert_to_tensor(x) for x in xs]
    kinds = {x._node.dtype for x in arrays}
    if len(kinds) < 2:
        return arrays
    dtype = resolve(*sorted(kinds, key=lambda d: d.name))
    return [cast_to(x, dtype) for x in arrays]


def named(name: str, function: Callable, doc: str | None) -> Callable:
    """Give a generated function its name and documentation."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
