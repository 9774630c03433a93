"""Python's operators for sparse arrays: those of `keras.ops`, with their rules."""

from __future__ import annotations

from typing import Any

from kerascl.backend.ops import numpy as knp
from kerascl.core.array import Array
from kerascl.ops.sparse import SparseArray

_BINARY = {
    "add": knp.add,
    "sub": knp.subtract,
    "mul": knp.multiply,
    "truediv": knp.divide,
    "floordiv": knp.floor_divide,
    "mod": knp.mod,
    "pow": knp.power,
    "matmul": knp.matmul,
}
_COMPARISONS = {
    "eq": knp.equal,
    "ne": knp.not_equal,
    "lt": knp.less,
    "le": knp.less_equal,
    "gt": knp.greater,
    "ge": knp.greater_equal,
}


def _operator(function, reflected: bool = False):
    def operator(self, other):
        return function(other, self) if reflected else function(self, other)

    return operator


def _getitem(self, key) -> Array:
    """Elements or parts, dense."""
    return self.to_dense()[key]


def _reshape(self, *shape):
    return knp.reshape(self, shape[0] if len(shape) == 1 else shape)


def install() -> None:
    """Give `SparseArray` its operators."""
    for name, function in _BINARY.items():
        setattr(SparseArray, f"__{name}__", _operator(function))
        setattr(SparseArray, f"__r{name}__", _operator(function, reflected=True))
    for name, function in _COMPARISONS.items():
        setattr(SparseArray, f"__{name}__", _operator(function))
    methods: dict[str, Any] = {
        "__neg__": lambda self: knp.negative(self),
        "__abs__": lambda self: knp.absolute(self),
        "__getitem__": _getitem,
        "T": property(knp.transpose),
        "reshape": _reshape,
    }
    for name, method in methods.items():
        setattr(SparseArray, name, method)


install()
