"""Operators and methods of Array, State's reads, and what the tape needs."""

from __future__ import annotations

from kerascl.core import tape
from kerascl.core.array import Array
from kerascl.ops import contraction, creation, indexing, movement, pointwise, reduction
from kerascl.ops.declare import as_array, cast_to, expand_to, is_scalar, scalar


def _binary(function, reflected: bool = False):
    def operator(self, other):
        if not (isinstance(other, Array) or is_scalar(other)):
            try:
                other = as_array(other)
            except TypeError:
                return NotImplemented
        return function(other, self) if reflected else function(self, other)

    return operator


_OPERATORS = {
    "add": pointwise.add,
    "sub": pointwise.subtract,
    "mul": pointwise.multiply,
    "truediv": pointwise.divide,
    "floordiv": pointwise.floor_divide,
    "mod": pointwise.mod,
    "pow": pointwise.power,
    "matmul": contraction.matmul,
    "and": pointwise.bitwise_and,
    "or": pointwise.bitwise_or,
    "xor": pointwise.bitwise_xor,
    "lshift": pointwise.left_shift,
    "rshift": pointwise.right_shift,
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


def _invert(self: Array) -> Array:
    return pointwise.logical_not(self) if self.dtype.is_bool else pointwise.bitwise_not(self)


def _astype(self: Array, dtype) -> Array:
    """This array in another dtype."""
    return pointwise.cast(self, dtype)


def _reshape(self: Array, *shape) -> Array:
    """This array with another shape; one dimension may be -1."""
    return movement.reshape(self, shape[0] if len(shape) == 1 else shape)


def _transpose(self: Array, *axes) -> Array:
    """This array with its axes permuted (reversed by default)."""
    if len(axes) == 1 and hasattr(axes[0], "__iter__"):
        axes = tuple(axes[0])
    return movement.transpose(self, axes or None)


def _iterate(self: Array):
    if not self.shape:
        raise TypeError("iteration over an array of shape ()")
    return (self[k] for k in range(self.shape[0]))


Array.__neg__ = lambda self: pointwise.negative(self)
Array.__pos__ = lambda self: self
Array.__abs__ = lambda self: pointwise.absolute(self)
Array.__invert__ = _invert
Array.__round__ = lambda self, digits=0: pointwise.round(self, digits)
Array.__getitem__ = indexing.getitem
Array.__iter__ = _iterate
Array.astype = _astype
Array.reshape = _reshape
Array.transpose = _transpose
Array.T = property(lambda self: movement.transpose(self))
for _method in ("sum", "mean", "max", "min", "prod", "any", "all", "argmax", "argmin", "var"):
    setattr(Array, _method, getattr(reduction, _method))
Array.flatten = Array.ravel = lambda self: movement.reshape(self, -1)
Array.squeeze = movement.squeeze
Array.at = property(indexing.At)

tape.install_arithmetic(
    add=pointwise.add,
    zeros_like=lambda x: expand_to(scalar(0, x.dtype), x.shape),
    ones_like=lambda x: expand_to(scalar(1, x.dtype), x.shape),
)

__all__ = ["cast_to", "creation"]
