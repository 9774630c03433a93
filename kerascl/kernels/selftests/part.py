"""How parts of self-tests are named: words, of which a dtype is the first."""

from __future__ import annotations

from kerascl import dtypes
from kerascl.dtypes import DType


def named(dtype: DType, precision: str = "high", *words: str) -> str:
    """The part of what multiplies a dtype in a precision, of which only float32 has several."""
    exact = dtype is dtypes.float32 and precision == "highest"
    return " ".join((dtype.name, *(("highest",) if exact else ()), *filter(None, words)))


def parsed(part: str) -> tuple[DType, str, tuple[str, ...]]:
    """The dtype, the precision and the other words that `named` was given."""
    name, *words = part.split(" ")
    exact = words[:1] == ["highest"]
    return dtypes.as_dtype(name), "highest" if exact else "high", tuple(words[exact:])
