"""NumPy's value of each step of a random program, with a bound on the error that is allowed.

Integers and bools are held in their own dtype, floats in float64 with a running bound on what
rounding to their dtype may cause.  Where the bound is 0 a value is known exactly, and only then is
it compared, truncated or used as a condition.
"""

from __future__ import annotations

import contextlib
import random
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from kerascl import dtypes
from kerascl.runtime import device

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
FLOATS = ["float16", "bfloat16", "float32"] + ["float64"] * device.default().info.fp64
EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-52}
TINY = {"float16": 2.0**-24, "bfloat16": 1e-37, "float32": 1e-37, "float64": 1e-300}
LARGEST = 1000.0  # floats beyond it are not followed: float16 ends at 65504
SMALL = 256  # integers that every float dtype holds


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


class Draw(random.Random):
    """Random choices that one number brings again."""

    def boolean(self, chance: float = 0.5) -> bool:
        return self.random() < chance

    def shuffled(self, items) -> list:
        return self.sample(list(items), len(items))

    def several(self, items, most: int, least: int = 0) -> list:
        return self.choices(list(items), k=self.randint(least, most))


class _Following:
    inexact = False


@contextlib.contextmanager
def inexactly():
    """Within, values that are known with an error only are compared and truncated all the same:
    for the differences of programs, of which those across a step are left out."""
    _Following.inexact = True
    try:
        yield
    finally:
        _Following.inexact = False


@dataclass
class Value:
    """What NumPy says: a float64 array with a bound for floats, else the array itself."""

    dtype: str
    array: np.ndarray
    error: np.ndarray | float = 0.0

    def __post_init__(self):
        self.array = np.asarray(self.array)
        if self.is_float:
            self.error = np.broadcast_to(self.error, self.array.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in EPS

    @property
    def exact(self) -> bool:
        return not self.is_float or _Following.inexact or not np.any(self.error)

    @property
    def finite(self) -> bool:
        return not self.is_float or bool(np.all(np.isfinite(self.array)))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def held(self) -> np.ndarray:
        """As an array of the dtype."""
        with np.errstate(all="ignore"):
            return self.array.astype(numpy_dtype(self.dtype))

    def wrong(self, found: np.ndarray, dtype: str) -> str:
        """What is wrong with `found`, in words, or ""."""
        if found.shape != self.shape or dtype != self.dtype:
            return f"is {dtype}{list(found.shape)} instead of {self.dtype}{list(self.shape)}"
        if self.is_float:
            found = found.astype(np.float64)
            same = (found == self.array) | (np.isnan(found) & np.isnan(self.array))
            with np.errstate(all="ignore"):
                bad = ~(same | (np.abs(found - self.array) <= 2 * self.error))
        else:
            bad = found != self.array
        if not bad.any():
            return ""
        places = np.argwhere(bad)
        first = tuple(map(int, places[0]))
        bound = f" within {2 * self.error[first]:.2g}" if self.is_float else ""
        return (
            f"{len(places)} of {bad.size} elements are wrong, the first at {list(first)}: "
            f"{found[first]} instead of {self.array[first]}{bound}"
        )


class Unfit(Exception):
    """This step does not fit these operands."""


def require(condition) -> None:
    if not condition:
        raise Unfit


def rounded(dtype: str, array, error=0.0, units: float = 1.0) -> Value:
    """A float result: exact if its dtype holds it and the operation rounds correctly (units 1)."""
    array = np.asarray(array, np.float64)
    with np.errstate(all="ignore"):
        error = np.asarray(error, np.float64) + np.zeros_like(array)
        # What float64 rounded itself does not show in float64; few bits say that it did not.
        narrow = np.dtype(np.float32) if dtype == "float64" else numpy_dtype(dtype)
        held = array.astype(narrow).astype(np.float64) == array
        own = units * EPS[dtype] * (np.abs(array) + error) + TINY[dtype]
    exact = held & (error == 0) if units <= 1 else np.zeros(array.shape, bool)
    return Value(dtype, array, np.where(exact, 0.0, error + own))


def converted(value: Value, dtype: str) -> Value:
    """`value` cast to `dtype`, where that is well defined."""
    if value.dtype == dtype:
        return value
    if dtype in EPS:
        if value.is_float:
            return rounded(dtype, value.array, value.error)
        require(value.dtype == "bool" or np.all(np.abs(value.array.astype(np.float64)) <= SMALL))
        return rounded(dtype, value.array.astype(np.float64))
    require(value.exact and value.finite)
    if value.is_float and dtype != "bool":
        info = np.iinfo(dtype)
        require(np.all((value.array >= max(info.min, -1e6)) & (value.array <= min(info.max, 1e6))))
    with np.errstate(all="ignore"):
        return Value(dtype, value.array.astype(dtype))


def common(*values: Value) -> list[Value]:
    dtype = dtypes.promote(*(dtypes.BY_NAME[v.dtype] for v in values)).name
    return [converted(v, dtype) for v in values]
