"""Forms of generated kernels, each with what NumPy gives: an operation before, a core, one after.

Elements are small integers, so that every dtype holds sums and products of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

import kerascl as kc
from tests.fuzz.rules import SCANS, SUMS
from tests.fuzz.values import EPS, FLOATS, INTEGERS, numpy_dtype

DTYPES = ["bool", *INTEGERS, *FLOATS]
# Every length to 70, and those around multiples of every vector's width.
LENGTHS = [*range(1, 71), *(w * k + d for w, k in ((16, 5), (16, 6), (32, 4), (64, 3), (64, 4))
           for d in (-1, 0, 1)), 511, 512, 513, 1023, 1025]  # fmt: skip


class Reference:
    """NumPy under kerascl's names; sums of integers have the dtype that kerascl gives them."""

    def __getattr__(self, name: str):
        return getattr(np, name)

    @staticmethod
    def sum(x, axis=None, keepdims=False):
        dtype = SUMS.get(x.dtype.name)
        return np.sum(x, axis, dtype=dtype, keepdims=keepdims)

    @staticmethod
    def cumsum(x, axis):
        return np.cumsum(x, axis, dtype=SCANS.get(x.dtype.name))

    @staticmethod
    def cummax(x, axis):
        return np.maximum.accumulate(x, axis)

    @staticmethod
    def softmax(x, axis):
        p = np.exp(x - np.max(x, axis, keepdims=True))
        return p / np.sum(p, axis, keepdims=True)

    @staticmethod
    def logsumexp(x, axis):
        return np.logaddexp.reduce(x.astype(np.float64), axis)

    @staticmethod
    def segment_sum(x, ids, count):
        y = np.zeros((count, *x.shape[1:]), x.dtype)
        np.add.at(y, ids, x)
        return y

    @staticmethod
    def cast(x, dtype):
        return x.astype(np.float64 if dtype in EPS else dtype)


class Library:
    """kerascl, with all names in one place."""

    def __getattr__(self, name: str):
        return getattr(kc.nn if name == "softmax" else kc, name)


@dataclass(frozen=True)
class Part:
    """`call(library, x, y, …)` for the dtypes in `kinds` (b, i, u, f)."""

    name: str
    call: Callable
    kinds: str = "biuf"


def _parts(table: dict, kinds: str = "biuf") -> list[Part]:
    return [Part(name, call, kinds) for name, call in table.items()]


BEFORE = [
    *_parts({"": lambda xp, x, y: x}),
    *_parts({"-x": lambda xp, x, y: -x, "x*-1": lambda xp, x, y: xp.subtract(y, x + x)}, "if"),
    *_parts({"~x": lambda xp, x, y: ~x, "~max": lambda xp, x, y: ~xp.maximum(x, y),
             "max(~x,y)": lambda xp, x, y: xp.maximum(~x, y)}, "biu"),
    *_parts({"where<": lambda xp, x, y: xp.where(x < y, y, x),
             "min": lambda xp, x, y: xp.minimum(x, y)}),
    *_parts({"x+1": lambda xp, x, y: x + 1, "x*y": lambda xp, x, y: x * y}, "iuf"),
    *_parts({"abs": lambda xp, x, y: xp.abs(x), "sign": lambda xp, x, y: -xp.sign(x)}, "if"),
    *_parts({"x==y": lambda xp, x, y: xp.cast(x == y, "int32"),
             "!": lambda xp, x, y: xp.logical_not(x)}),
]  # fmt: skip
AFTER = [
    *_parts({"": lambda xp, x: x, "==": lambda xp, x: x == 1}),
    *_parts({"-": lambda xp, x: -x, "-1-": lambda xp, x: -1 - x}, "if"),
    *_parts({"~": lambda xp, x: ~x}, "biu"),
    *_parts({"max": lambda xp, x: xp.maximum(x, 1), "+1": lambda xp, x: x + 1,
             "where": lambda xp, x: xp.where(x > 1, x, x * 2)}, "iuf"),
]  # fmt: skip


def _reductions():
    for name in ("sum", "max", "min", "any", "all", "count_nonzero", "argmax", "argmin"):
        kinds = "iuf" if name in ("max", "min", "argmax", "argmin") else "biuf"
        for axis in (0, -1, 1):
            call = lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis)  # noqa: E731
            yield Part(f"{name} over {axis}", call, kinds)
    for name in ("mean", "var"):
        for axis in (0, -1, 1):
            call = lambda xp, x, name=name, axis=axis: getattr(xp, name)(x, axis)  # noqa: E731
            yield Part(f"{name} over {axis}", call, "f")


def _rows():
    yield Part("x - mean", lambda xp, x: x - xp.mean(x, -1, keepdims=True), "f")
    yield Part("x - max", lambda xp, x: x - xp.max(x, -1, keepdims=True), "if")
    yield Part("x - sum", lambda xp, x: x - xp.sum(x, -1, keepdims=True), "if")
    yield Part("softmax", lambda xp, x: xp.softmax(x, -1), "f")
    yield Part("logsumexp", lambda xp, x: xp.logsumexp(x, -1), "f")
    yield Part("normalise", lambda xp, x: (x - xp.mean(x, -1, keepdims=True))
               / xp.sqrt(xp.var(x, -1, keepdims=True) + 1), "f")  # fmt: skip


def _others():
    for axis in (0, -1):
        yield Part(f"cumsum {axis}", lambda xp, x, a=axis: xp.cumsum(x, a), "biuf")
        yield Part(f"cummax {axis}", lambda xp, x, a=axis: xp.cummax(x, a), "iuf")
        yield Part(f"sort {axis}", lambda xp, x, a=axis: xp.sort(x, a), "iuf")
        yield Part(f"flip {axis}", lambda xp, x, a=axis: xp.flip(x, a))
        yield Part(f"roll {axis}", lambda xp, x, a=axis: xp.roll(x, 3, a))
        yield Part(f"concatenate {axis}", lambda xp, x, a=axis: xp.concatenate([x, x], a))
    yield Part("map", lambda xp, x: x)
    yield Part("transpose", lambda xp, x: xp.transpose(x))
    yield Part("pad", lambda xp, x: xp.pad(x, [(1, 2)] * len(x.shape)))
    yield Part("every second", lambda xp, x: x[..., ::-2])
    yield Part("take", lambda xp, x: xp.take(x, np.arange(20) * 7 % x.shape[-1], -1))
    yield Part("index", lambda xp, x: x[np.arange(5) % x.shape[0]])
    yield Part("segment_sum", lambda xp, x: xp.segment_sum(
        x, np.arange(x.shape[0], dtype="int32") % 3, 3), "if")  # fmt: skip
    yield Part("matmul", lambda xp, x: xp.matmul(x, xp.swapaxes(xp.atleast_2d(x), -1, -2))
               if xp is not LIBRARY else kc.matmul(x, kc.swapaxes(
                   x if x.ndim > 1 else kc.expand_dims(x, 0), -1, -2)), "iuf")  # fmt: skip


LIBRARY, REFERENCE = Library(), Reference()
CORES = [*_reductions(), *_rows(), *_others()]
# Of one axis; of few and of many rows and columns; and of an axis between others.
SHAPES = {
    "n": lambda n: (n,), "3n": lambda n: (3, n), "20n": lambda n: (20, n), "n3": lambda n: (n, 3),
    "n20": lambda n: (n, 20), "2n3": lambda n: (2, n, 3),
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A core over arrays of a shape, with an operation before it and one after it."""

    before: Part
    core: Part
    after: Part
    shape: str

    def fits(self, dtype: str) -> bool:
        if self.core.name.endswith("over 1") and self.shape != "2n3":
            return False
        return _kind(dtype) in self.before.kinds

    def run(self, library, x, y):
        """The result, or None where the dtype in between has no such operation."""
        x = self.before.call(library, x, y)
        if _kind(str(x.dtype)) not in self.core.kinds:
            return None
        x = self.core.call(library, x)
        return self.after.call(library, x) if _kind(str(x.dtype)) in self.after.kinds else x

    def __str__(self) -> str:
        steps = (self.before.name, self.core.name, self.after.name)
        return f"{' | '.join(filter(None, steps))} of {self.shape}"


def _kind(dtype: str) -> str:
    return "f" if "float" in dtype else dtype[0]


def forms(dtype: str, share: float, rng: np.random.Generator) -> list[Form]:
    """Every core over every shape for a dtype, each with some share of the operations around it."""
    chosen = []
    for core in CORES:
        for shape in SHAPES:
            made = [Form(b, core, a, shape) for b in BEFORE for a in AFTER]
            made = [form for form in made if form.fits(dtype)]
            count = rng.binomial(len(made), min(share, 1.0)) if share < 1 else len(made)
            chosen += [made[k] for k in rng.permutation(len(made))[:count]]
    return chosen


def inputs(form: Form, dtype: str, n: int, rng: np.random.Generator) -> list[np.ndarray]:
    low = 0 if _kind(dtype) in "bu" else -3
    shape = SHAPES[form.shape](n)
    return [rng.integers(low, 2 if dtype == "bool" else 4, shape).astype(numpy_dtype(dtype))
            for _ in range(2)]  # fmt: skip


def expected(form: Form, arrays: list[np.ndarray], dtype: str):
    """NumPy's result, or None where there is none, or where rounding decides a comparison."""
    floats = _kind(dtype) == "f"
    arrays = [a.astype(np.float64) if floats else a for a in arrays]
    with np.errstate(all="ignore"):
        if floats and form.after.name == "==":
            x = replace(form, after=AFTER[0]).run(REFERENCE, *arrays)
            if x is not None and np.any((x != 1) & (np.abs(x - 1.0) < 16 * EPS[dtype])):
                return None
        return form.run(REFERENCE, *arrays)


def wrong(found: np.ndarray, right: np.ndarray, n: int) -> str:
    """What is wrong with `found`, in words, or ""."""
    if found.shape != np.shape(right):
        return f"has the shape {found.shape} instead of {np.shape(right)}"
    if found.dtype.kind in "biu":
        bad = found != np.asarray(right).astype(found.dtype)
    else:
        eps = EPS["bfloat16" if found.dtype.name == "bfloat16" else found.dtype.name]
        found = found.astype(np.float64)
        scale = 1 + np.max(np.abs(right), initial=0)
        bad = ~(np.abs(found - right) <= (16 * eps + n * min(eps, EPS["float32"])) * scale)
    if not np.any(bad):
        return ""
    first = tuple(map(int, np.argwhere(bad)[0]))
    total = np.count_nonzero(bad)
    return (
        f"{total} of {bad.size} elements are wrong, the first at {list(first)}: "
        f"{found[first]} instead of {np.asarray(right)[first]}"
    )
