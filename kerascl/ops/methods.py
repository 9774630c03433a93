"""Operators and methods of Array, and what the tape needs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

from kerascl.core import tape
from kerascl.core.array import Array, ArrayLike
from kerascl.core.rows import iterate
from kerascl.core.types import Axes, Device, ShapeLike
from kerascl.dtypes import DType, DTypeLike
from kerascl.ops import (
    assignment,
    batching,
    bits,
    contraction,
    creation,
    dlpack,
    indexing,
    movement,
    numpy_protocol,
    pointwise,
    pyopencl_arrays,
    reduction,
    scan,
    sorting,
)
from kerascl.ops.declare import as_array, is_scalar, scalar
from kerascl.ops.sparse import SparseArray
from kerascl.ops.views import expand_to, sum_to


def _binary(function: Callable[[Any, Any], Any], reflected: bool = False) -> Callable[..., Any]:
    def operator(self: Array, other: Any) -> Any:
        if not (isinstance(other, Array) or is_scalar(other)):
            if isinstance(other, SparseArray):
                return NotImplemented  # its own operators know what stays sparse
            try:
                other = as_array(other)
            except TypeError:
                return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return operator


_OPERATORS: dict[str, Callable[..., Any]] = {
    "add": pointwise.add,
    "sub": pointwise.subtract,
    "mul": pointwise.multiply,
    "truediv": pointwise.divide,
    "floordiv": pointwise.floor_divide,
    "mod": pointwise.mod,
    "pow": pointwise.power,
    "matmul": contraction.matmul,
    "and": bits.bitwise_and,
    "or": bits.bitwise_or,
    "xor": bits.bitwise_xor,
    "lshift": bits.left_shift,
    "rshift": bits.right_shift,
    "divmod": lambda a, b: (pointwise.floor_divide(a, b), pointwise.mod(a, b)),
}
for _name, _function in _OPERATORS.items():
    setattr(Array, f"__{_name}__", _binary(_function))
    setattr(Array, f"__r{_name}__", _binary(_function, reflected=True))
for _name, _function in {
    "eq": pointwise.equal,
    "ne": pointwise.not_equal,
    "lt": pointwise.less,
    "le": pointwise.less_equal,
    "gt": pointwise.greater,
    "ge": pointwise.greater_equal,
}.items():
    setattr(Array, f"__{_name}__", _binary(_function))


def _astype(self: Array, dtype: DTypeLike) -> Array:
    """This array in another dtype."""
    return pointwise.cast(self, dtype)


def _reshape(self: Array, *shape: ShapeLike) -> Array:
    """This array with another shape; one dimension may be -1."""
    new: Any = shape[0] if len(shape) == 1 else shape
    return movement.reshape(self, new)


def _transpose(self: Array, *axes: int | Sequence[int] | None) -> Array:
    """This array with its axes permuted (reversed by default)."""
    order: Any = axes
    if len(axes) == 1 and (axes[0] is None or hasattr(axes[0], "__iter__")):
        order = axes[0]
    return movement.transpose(self, order or None)


def _sort(self: Array, axis: int = -1, descending: bool = False) -> None:
    """Put the elements into order along `axis`, in place."""
    self[...] = sorting.sort(self, axis, descending)


def _fill(self: Array, value: ArrayLike) -> None:
    """Set all elements to one value, in place."""
    self[...] = value


def _reduction(function: Callable[..., Array]) -> Callable[..., Array]:
    def method(
        self: Array,
        axis: Axes = None,
        keepdims: bool = False,
        *,
        dtype: DTypeLike | None = None,
        out: None = None,
        **options: Any,
    ) -> Array:
        # NumPy's own functions call methods with dtype and out
        if out is not None:
            raise TypeError(f"{function.__name__}: arrays never change, so `out` must be None")
        unknown = options.keys() - taken
        if unknown:
            raise TypeError(
                f"{function.__name__} of an array takes no {min(unknown)!r}; it takes "
                f"{', '.join(parameters[1:])}"
            )
        if dtype is not None and function in _SUMS:
            options["dtype"] = dtype
        x = self if dtype is None else pointwise.cast(self, dtype)
        return function(x, axis, keepdims, **options)

    method.__name__ = function.__name__
    method.__doc__ = function.__doc__
    # what `help` and editors show: the function's own parameters, by name
    shown = inspect.signature(method)
    plain = [p for p in shown.parameters.values() if p.kind is not p.VAR_KEYWORD]
    more = [
        p.replace(kind=p.KEYWORD_ONLY)
        for p in list(inspect.signature(function).parameters.values())[1:]
        if p.name not in shown.parameters
    ]
    setattr(method, "__signature__", shown.replace(parameters=[*plain, *more]))  # noqa: B010
    taken = {p.name for p in more}
    parameters = [p.name for p in [*plain, *more]]
    return method


def _array_namespace(self: Array, *, api_version: str | None = None) -> Any:
    """The module `kerascl`, which has the functions of the array API standard.

    Args:
        api_version: None, or a version of the standard up to that of `kerascl`.

    Raises:
        ValueError: for another version.
    """
    namespace = sys.modules["kerascl"]
    known = ("2021.12", "2022.12", "2023.12", namespace.__array_api_version__)
    if api_version is not None and api_version not in known:
        raise ValueError(
            f"kerascl has version {known[-1]} of the array API standard, not {api_version!r}"
        )
    return namespace


def _to_device(self: Array, device: Device | str, /, *, stream: None = None) -> Array:
    """This array on another device; itself where it lies there.

    Args:
        device: a device, or a name such as "gpu:0".
        stream: None; OpenCL has none.
    """
    if stream is not None:
        raise ValueError("to_device: OpenCL has no streams; leave stream out")
    return creation.to_device(self, device)


_METHODS: dict[str, Any] = {
    "__array_namespace__": _array_namespace,
    "__dlpack__": dlpack.dlpack,
    "__dlpack_device__": dlpack.dlpack_device,
    "to_pyopencl": pyopencl_arrays.to_pyopencl,
    "to_device": _to_device,
    "mT": property(movement.matrix_transpose),
    "__neg__": lambda self: pointwise.negative(self),
    "__pos__": movement.positive,
    "__abs__": lambda self: pointwise.absolute(self),
    "__invert__": bits.bitwise_not,
    "__round__": lambda self, digits=0: pointwise.round(self, digits or 0),
    "__getitem__": indexing.getitem,
    "__setitem__": assignment.setitem,
    "__array_ufunc__": numpy_protocol.array_ufunc,
    "__array_function__": numpy_protocol.array_function,
    "__iter__": iterate,
    "astype": _astype,
    "reshape": _reshape,
    "transpose": _transpose,
    "at": property(indexing.At),
    "flatten": movement.ravel,
    "sort": _sort,
    "fill": _fill,
    "conj": pointwise.conjugate,
    "conjugate": pointwise.conjugate,
}
for _name, _method in _METHODS.items():
    setattr(Array, _name, _method)
_SUMS = (reduction.sum, reduction.prod)
_REDUCTIONS = "sum mean max min prod any all argmax argmin var std ptp"
for _name in _REDUCTIONS.split():
    setattr(Array, _name, _reduction(getattr(reduction, _name)))
for _room, _names in (
    (movement, "ravel squeeze swapaxes diagonal copy"),
    (sorting, "argsort repeat"),
    (scan, "cumsum cumprod"),
    (contraction, "dot trace"),
    (indexing, "take nonzero"),
    (pointwise, "round clip"),
):
    for _name in _names.split():
        setattr(Array, _name, getattr(_room, _name))

# What may have nothing to do gives an Array of its own all the same.
_MAY_GIVE_BACK = """
    __getitem__ __pos__ __round__ astype clip conj conjugate copy flatten max min prod ravel
    reshape round squeeze sum transpose"""
for _name in _MAY_GIVE_BACK.split():
    setattr(Array, _name, tape.distinct(getattr(Array, _name)))
for _name, _function in {
    "T": movement.transpose, "real": pointwise.real, "imag": pointwise.imag
}.items():
    setattr(Array, _name, property(tape.distinct(_function), doc=_function.__doc__))

tape.install_arithmetic(
    add=pointwise.add,
    zeros_like=lambda x: expand_to(scalar(0, x.dtype), x.shape),
    ones_like=lambda x: expand_to(scalar(1, x.dtype), x.shape),
    sum_to=sum_to,
    zeros=lambda shape, dtype: expand_to(scalar(0, dtype), shape),
    expand_to=expand_to,
    eye=lambda n, dtype: creation.eye(n, dtype=dtype),
    moveaxis=movement.moveaxis,
    as_array=as_array,
    vmap=batching.vmap,
)


def _of_dtype(self: DType, value: ArrayLike = 0) -> Array:
    """An Array of this dtype, as NumPy's types make scalars."""
    return tape.distinct(creation.array)(value, self)


setattr(DType, "__call__", _of_dtype)  # noqa: B010  (a method that the class declares)
