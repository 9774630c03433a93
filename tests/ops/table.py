"""Every public operation with its NumPy reference and inputs: the table that `test_table` runs.

A `Case` says how to call an operation, what NumPy gives for the same float64
inputs, and which derivatives exist.  `covered` and `ELSEWHERE` together must
name every public operation; `test_table.test_the_table_is_complete` holds that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

import kerascl as kc


@dataclass
class Case:
    """One call of one operation.

    Attributes:
        name: of the operation in `kerascl`.
        reference: the same on float64 NumPy arrays.
        inputs: makes the inputs; floating ones are differentiated.
        call: the operation on Arrays; by default `kc.<name>` with all inputs.
        slopes: how many derivatives exist and are checked: 0, 1 or 2.
    """

    name: str
    reference: Callable
    inputs: Callable[[np.random.Generator], tuple]
    call: Callable
    slopes: int = 2
    label: str = field(default="")


CASES: list[Case] = []
_NORMAL = NormalDist()


def case(name, reference, *inputs, call=None, slopes=2, label="", **options):
    """Add a case; inputs are (shape, low, high) for floats or arrays, as they are."""
    own = call or getattr(kc, name)
    if options:
        plain, numpy_plain = own, reference

        def own(*xs):
            return plain(*xs, **options)

        def reference(*xs):
            return numpy_plain(*xs, **options)

    def make(rng):
        return tuple(rng.uniform(x[1], x[2], x[0]) if isinstance(x, tuple) else x for x in inputs)

    label = label or name
    count = sum(c.label.split("#")[0] == label for c in CASES)
    CASES.append(Case(name, reference, make, own, slopes, f"{label}#{count}" if count else label))


M = (3, 4)


def _bessel1(x):
    angle = (np.arange(200) + 0.5) * (math.pi / 200)  # the trapezoidal rule is exact here
    x = np.asarray(x)[..., None]
    return np.mean(np.exp(x * np.cos(angle)) * np.cos(angle), -1)


def _digamma(x):
    """By Stirling's series for x + 40, where three terms are exact, and the recurrence."""
    far = x + 40
    y = math.log(far) - 1 / (2 * far) - 1 / (12 * far**2) + 1 / (120 * far**4) - 1 / (252 * far**6)
    return y - math.fsum(1 / (x + k) for k in range(40))


def _logsumexp(x, **options):
    return np.logaddexp.reduce(x.ravel() if not options else x, **options)


def unary(name, low, high, reference=None, **more):
    case(name, reference or getattr(np, name), (M, low, high), **more)


def binary(name, low, high, reference=None, shapes=(M, (4,)), **more):
    reference = reference or getattr(np, name)
    case(name, reference, (shapes[0], low, high), (shapes[1], low, high), **more)


# -- pointwise ----------------------------------------------------------------
for _name in ("sin", "cos", "tanh", "sinh", "cosh", "arctan", "arcsinh", "exp", "exp2", "expm1",
              "square", "negative", "sinc", "deg2rad", "rad2deg", "i0"):  # fmt: skip
    unary(_name, -1.4, 1.4)
unary("tan", -1.2, 1.2)
for _name in ("sqrt", "log", "log2", "log10", "log1p", "cbrt", "reciprocal"):
    unary(_name, 0.3, 3.0)
unary("rsqrt", 0.3, 3.0, lambda x: 1 / np.sqrt(x))
for _name in ("arcsin", "arccos", "arctanh"):
    unary(_name, -0.8, 0.8)
unary("arccosh", 1.3, 3.0)
unary("absolute", 0.2, 2.0)
unary("abs", -2.0, -0.2)
unary("sigmoid", -3, 3, lambda x: 1 / (1 + np.exp(-x)))
unary("erf", -2, 2, np.vectorize(math.erf))
unary("erfc", -2, 2, np.vectorize(math.erfc))
unary("erfinv", -0.95, 0.95, np.vectorize(lambda y: _NORMAL.inv_cdf((y + 1) / 2) / math.sqrt(2)))
unary("i1", -40, 40, _bessel1)
unary("lgamma", 0.4, 30, np.vectorize(math.lgamma), slopes=1)
unary("digamma", 0.4, 30, np.vectorize(_digamma), slopes=0)
case("digamma", np.vectorize(_digamma), np.array([-0.5, -1.3, -2.7, -3.4]), slopes=0)
for _name in ("floor", "ceil", "trunc", "sign", "signbit", "isnan", "isinf", "isfinite", "isreal",
              "isposinf", "isneginf"):  # fmt: skip
    unary(_name, -3, 3, slopes=0)
unary("round", -300, 300, slopes=0)
unary("round", -3, 3, slopes=0, decimals=1)
unary("round", -3000, 3000, slopes=0, decimals=-2)
unary("nan_to_num", -3, 3)
unary("clip", -2, 2, lambda x: np.clip(x, -1, 0.5), slopes=1, call=lambda x: kc.clip(x, -1, 0.5))
unary("clip", -2, 2, lambda x: np.minimum(x, 0.5), slopes=1, call=lambda x: kc.clip(x, None, 0.5))
unary("conjugate", -2, 2)
unary("conj", -2, 2)
unary("real", -2, 2)
unary("imag", -2, 2, slopes=0)
unary("angle", -2, 2, slopes=0)
unary("logical_not", -1, 1, lambda x: x == 0, slopes=0)
unary("stop_gradient", -1, 1, lambda x: x, slopes=0)
unary("cast", -9, 9, lambda x: x.astype("int16"), call=lambda x: kc.cast(x, "int16"), slopes=0)

for _name in ("add", "subtract", "multiply"):
    binary(_name, -2, 2)
binary("divide", 0.4, 2)
binary("divide_no_nan", 0.4, 2, np.divide)
binary("hypot", 0.4, 2)
binary("arctan2", 0.4, 2)
binary("logaddexp", -3, 3)
binary("logaddexp2", -3, 3)
binary("power", 0.4, 2)
case("power", lambda x: x**2, (M, -2, 2), call=lambda x: kc.power(x, 2))
case("power", lambda x: x**3, (M, -2, 2), call=lambda x: x**3)
case("power", lambda x: x**-2.5, (M, 0.5, 2), call=lambda x: x**-2.5)
case("power", lambda x: 2.0**x, (M, -2, 2), call=lambda x: 2.0**x)
for _name in ("maximum", "minimum", "fmax", "fmin"):
    binary(_name, -2, 2, slopes=1)
binary("mod", 0.5, 5, slopes=1)
binary("fmod", 0.5, 5, slopes=1)
binary("floor_divide", -5, 5, slopes=0)
binary("heaviside", -2, 2, slopes=0)
binary("nextafter", -2, 2, slopes=0)
binary("copysign", -2, 2)
for _name in ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal",
              "logical_and", "logical_or", "logical_xor", "isclose"):  # fmt: skip
    binary(_name, -2, 2, slopes=0)
_I = np.array([[12, -7, 0, 5], [9, -128, 64, 33]], "int32")
_J = np.array([8, -3, 5, 2], "int32")
for _name in ("gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor"):
    case(_name, getattr(np, _name), _I, _J, slopes=0)
case("left_shift", np.left_shift, _I, np.abs(_J), slopes=0)
case("right_shift", np.right_shift, _I, np.abs(_J), slopes=0)
case("bitwise_not", np.bitwise_not, _I, slopes=0)
case("bitcast", lambda x: x.view("uint32"), _I, call=lambda x: kc.bitcast(x, "uint32"), slopes=0)
case("view", lambda x: x.view("int16"), _I, call=lambda x: kc.view(x, "int16"), slopes=0)
case("ldexp", np.ldexp, (M, -2, 2), np.array([1, -2, 3, 0], "int32"))
case("where", np.where, np.array([True, False, True, True]), (M, -2, 2), (M, -2, 2))
case(
    "select", lambda x, y: np.select([x > 0, y > 0], [x, y], 0.5), (M, -1, 1), (M, -1, 1),
    call=lambda x, y: kc.select([x > 0, y > 0], [x, y], 0.5),
)  # fmt: skip
case("make_complex", lambda x, y: x + 1j * y, (M, -1, 1), (M, -1, 1), slopes=0)

# -- reductions ---------------------------------------------------------------
R = (2, 3, 4)
for _name in ("sum", "mean", "prod", "var", "std", "max", "min", "ptp"):
    _slopes = 1 if _name in ("max", "min", "ptp") else 2
    case(_name, getattr(np, _name), (R, 0.5, 2), slopes=_slopes)
    case(_name, getattr(np, _name), (R, 0.5, 2), slopes=1, axis=1)
    case(_name, getattr(np, _name), (R, 0.5, 2), slopes=1, axis=(0, 2), keepdims=True)
case("var", np.var, (R, 0.5, 2), axis=-1, ddof=1)
for _name in ("argmax", "argmin", "any", "all", "count_nonzero"):
    case(_name, getattr(np, _name), (R, -2, 2), slopes=0)
    case(_name, getattr(np, _name), (R, -2, 2), slopes=0, axis=1, keepdims=True)
case("logsumexp", _logsumexp, (R, -2, 2))
case("logsumexp", _logsumexp, (R, -2, 2), axis=1, keepdims=True)
case("average", lambda x, w: np.average(x, 1, w), (M, -2, 2), ((4,), 0.5, 2),
     call=lambda x, w: kc.average(x, 1, w))  # fmt: skip
case("allclose", np.allclose, (M, 1, 2), (M, 1, 2), slopes=0)
_HOLES = np.array([[1.5, np.nan, -0.5, 2.0], [np.nan, 0.25, 3.0, -1.0], [0.5, 1.0, 2.5, -2.0]])
for _name in ("nansum", "nanprod", "nanmean", "nanvar", "nanstd", "nanmax", "nanmin", "nanargmax",
              "nanargmin", "nanmedian"):  # fmt: skip
    case(_name, getattr(np, _name), _HOLES, slopes=0)
    case(_name, getattr(np, _name), _HOLES, slopes=0, axis=1)
for _name in ("nancumsum", "nancumprod"):
    case(_name, getattr(np, _name), _HOLES, slopes=0, axis=1)

# -- movement -----------------------------------------------------------------
case("reshape", lambda x: x.reshape(4, 6), (R, -1, 1), call=lambda x: kc.reshape(x, (4, -1)))
for _name in ("ravel", "copy", "fliplr", "flipud", "rot90", "transpose"):
    case(_name, getattr(np, _name), (R, -1, 1))
case("transpose", np.transpose, (R, -1, 1), axes=(1, 2, 0))
case("matrix_transpose", lambda x: np.swapaxes(x, -1, -2), (R, -1, 1))
case("positive", np.positive, (R, -1, 1))
case("rot90", np.rot90, (R, -1, 1), k=3, axes=(2, 0))
case("rot90", np.rot90, (R, -1, 1), k=2)
case("swapaxes", lambda x: np.swapaxes(x, 0, 2), (R, -1, 1), call=lambda x: kc.swapaxes(x, 0, -1))
case("moveaxis", np.moveaxis, (R, -1, 1), source=(0, 1), destination=(-1, 0))
case("broadcast_to", lambda x: np.broadcast_to(x, (3, 2, 4)), ((2, 1), -1, 1),
     call=lambda x: kc.broadcast_to(x, (3, 2, 4)))  # fmt: skip
case("broadcast_arrays", lambda x, y: np.add(*np.broadcast_arrays(x, y)), (M, -1, 1), ((4,), -1, 1),
     call=lambda x, y: kc.add(*kc.broadcast_arrays(x, y)))  # fmt: skip
case("expand_dims", np.expand_dims, (M, -1, 1), axis=(0, -1))
case("squeeze", np.squeeze, ((1, 3, 1, 2), -1, 1))
case("squeeze", np.squeeze, ((1, 3, 1, 2), -1, 1), axis=2)
case("flip", np.flip, (R, -1, 1))
case("flip", np.flip, (R, -1, 1), axis=(0, 2))
case("roll", np.roll, (R, -1, 1), shift=5)
case("roll", np.roll, (R, -1, 1), shift=(1, -2), axis=(0, 2))
case("tile", lambda x: np.tile(x, (2, 1, 3)), (M, -1, 1), call=lambda x: kc.tile(x, (2, 1, 3)))
case("repeat", lambda x: np.repeat(x, 2, 0), (M, -1, 1), call=lambda x: kc.repeat(x, 2, 0))
case("repeat", lambda x: np.repeat(x, [2, 0, 3], 0), (M, -1, 1),
     call=lambda x: kc.repeat(x, [2, 0, 3], 0))  # fmt: skip
for _mode in ("constant", "edge", "reflect", "symmetric", "wrap"):
    case("pad", np.pad, (M, -1, 1), pad_width=((1, 2), (0, 3)), mode=_mode)
case("pad", np.pad, (M, -1, 1), pad_width=((7, 6), (5, 0)), mode="reflect")
case("pad", np.pad, (M, -1, 1), pad_width=2, constant_values=((1, 2), (3, 4)))


def _joined(name):
    for library in (kc, np):
        yield lambda x, y, library=library: getattr(library, name)([x, y])


def _cut(name, places):
    """All parts in one vector, each with its own weight."""
    for library in (kc, np):
        yield lambda x, library=library: library.concatenate(
            [library.ravel(p) * (k + 1) for k, p in enumerate(getattr(library, name)(x, places))]
        )


for _name in ("concatenate", "stack", "hstack", "vstack", "dstack"):
    _ours, _numpys = _joined(_name)
    case(_name, _numpys, (M, -1, 1), (M, -1, 1), call=_ours)
case("append", np.append, (M, -1, 1), (M, -1, 1), axis=1)
for _name, _places in (("split", 3), ("array_split", 2), ("vsplit", [1, 2]), ("hsplit", 2)):
    _ours, _numpys = _cut(_name, _places)
    case(_name, _numpys, (M, -1, 1), call=_ours)
case("dsplit", lambda x: np.dsplit(x, 2)[1], (R, -1, 1), call=lambda x: kc.dsplit(x, 2)[1])
case("unstack", lambda x: x[:, 1], (R, -1, 1), call=lambda x: kc.unstack(x, 1)[1])
case("meshgrid", lambda x, y: np.multiply(*np.meshgrid(x, y)), ((3,), -1, 1), ((4,), -1, 1),
     call=lambda x, y: kc.multiply(*kc.meshgrid(x, y)))  # fmt: skip
for _name in ("tril", "triu"):
    case(_name, getattr(np, _name), (R, -1, 1))
    case(_name, getattr(np, _name), (R, -1, 1), k=1)
for _k in (-2, 0, 1):
    case("diag", np.diag, ((3,), -1, 1), k=_k)
    case("diag", np.diag, (M, -1, 1), k=_k)
    case("diagonal", np.diagonal, (R, -1, 1), offset=_k, axis1=2, axis2=0)
    case("trace", np.trace, (R, -1, 1), offset=_k)
case("diagflat", np.diagflat, ((2, 2), -1, 1), k=1)

# -- indexing -----------------------------------------------------------------
_AT = np.array([[2, 0], [-1, 1]], "int32")
case("take", lambda x: np.take(x, _AT, 1), (R, -1, 1), call=lambda x: kc.take(x, _AT, 1))
case("take", lambda x: np.take(x, _AT), (R, -1, 1), call=lambda x: kc.take(x, _AT))
case("take_along_axis", lambda x: np.take_along_axis(x, _AT, 1), ((2, 3), -1, 1),
     call=lambda x: kc.take_along_axis(x, _AT, 1))  # fmt: skip
_KEY = (1, slice(None, None, -1), [0, 3])
case("getitem", lambda x: x[_KEY], (R, -1, 1), call=lambda x: kc.getitem(x, _KEY))

# -- products -----------------------------------------------------------------
case("matmul", np.matmul, ((2, 3, 4), -1, 1), ((4, 5), -1, 1))
case("matmul", np.matmul, ((4,), -1, 1), ((2, 4, 3), -1, 1))
case("dot", np.dot, ((2, 3, 4), -1, 1), ((5, 4, 2), -1, 1))
case("inner", np.inner, (M, -1, 1), ((2, 4), -1, 1))
case("outer", np.outer, ((3,), -1, 1), ((2, 2), -1, 1))
case("vdot", np.vdot, (M, 0.1, 1), (M, 0.1, 1))  # one number, whose terms do not cancel
case("vecdot", lambda a, b, axis: np.sum(a * b, axis), ((3, 4), -1, 1), ((3, 1), -1, 1), axis=0)
case("kron", np.kron, ((2, 3), -1, 1), ((2,), -1, 1))
case("tensordot", np.tensordot, (R, -1, 1), ((4, 2, 5), -1, 1), axes=([2, 0], [0, 1]))
case("einsum", lambda a, b: np.einsum("bij,jk->bik", a, b), (R, -1, 1), ((4, 2), -1, 1),
     call=lambda a, b: kc.einsum("bij,jk->bik", a, b))  # fmt: skip
case("cross", np.cross, ((2, 3), -1, 1), ((2, 3), -1, 1))
for _mode in ("valid", "same", "full"):
    case("correlate", np.correlate, ((6,), -1, 1), ((3,), -1, 1), mode=_mode)
case("correlate", np.correlate, ((3,), -1, 1), ((6,), -1, 1), mode="same")

# -- cumulative, sorting, samples ---------------------------------------------
for _first, _name in enumerate(("cumulative_sum", "cumulative_prod")):
    _plain = (np.cumsum, np.cumprod)[_first]
    case(_name, lambda x, axis, f=_plain: f(x, axis), (M, -1, 1), axis=1)
    case(
        _name,
        lambda x, axis, include_initial, f=_plain, first=_first: np.concatenate(
            [np.full((1, x.shape[1]), first), f(x, axis)]
        ),
        (M, -1, 1), axis=0, include_initial=True,
    )  # fmt: skip
for _name in ("cumsum", "cumprod"):
    case(_name, getattr(np, _name), (R, 0.5, 2), axis=1)
    case(_name, getattr(np, _name), (R, 0.5, 2), slopes=1)
case("cummax", np.maximum.accumulate, (M, -1, 1), axis=1, slopes=1)
case("cummin", np.minimum.accumulate, (M, -1, 1), axis=0, slopes=1)
case("logcumsumexp", np.logaddexp.accumulate, (M, -1, 1), axis=1)
case("sort", np.sort, (R, -1, 1))
case("sort", np.sort, (R, -1, 1), axis=1, slopes=1)
case("sort", lambda x: -np.sort(-x), (M, -1, 1), slopes=1,
     call=lambda x: kc.sort(x, descending=True))  # fmt: skip
case("argsort", np.argsort, (R, -1, 1), axis=0, slopes=0)
case("argpartition", lambda x: np.sort(x)[..., 1], (M, -1, 1), slopes=0,
     call=lambda x: kc.take_along_axis(x, kc.argpartition(x, 1), -1)[..., 1])  # fmt: skip
case("top_k", lambda x: -np.sort(-x)[..., :2], (M, -1, 1), slopes=1,
     call=lambda x: kc.top_k(x, 2)[0])  # fmt: skip
case("in_top_k", lambda p: np.array([True, False]), np.array([[0.1, 0.9, 0.5], [0.2, 0.3, 0.1]]),
     slopes=0, call=lambda p: kc.in_top_k(np.array([2, 2]), p, 2))  # fmt: skip
_STEPS = np.array([-1.0, 0.0, 0.5, 0.5, 2.0], np.float32)
case("searchsorted", lambda v: np.searchsorted(_STEPS, v), (M, -2, 3), slopes=0,
     call=lambda v: kc.searchsorted(_STEPS, v))  # fmt: skip
case("digitize", lambda v: np.digitize(v, _STEPS), (M, -2, 3), slopes=0,
     call=lambda v: kc.digitize(v, _STEPS))  # fmt: skip
case("isin", np.isin, _I, _J, slopes=0)
for _name in ("median", "quantile", "percentile"):
    _q = {} if _name == "median" else {"q": [0.1, 0.5] if _name == "quantile" else [10, 75]}
    case(_name, getattr(np, _name), (R, -1, 1), slopes=1, **_q)
    case(_name, getattr(np, _name), (R, -1, 1), slopes=1, axis=(0, 2), keepdims=True, **_q)
for _method in ("lower", "higher", "midpoint", "nearest"):
    case("quantile", np.quantile, (M, -1, 1), slopes=0, q=[0.0, 0.4, 1.0], axis=1, method=_method)
case("nanquantile", np.nanquantile, _HOLES, slopes=0, q=[0.2, 0.6], axis=1)
case("nanpercentile", np.nanpercentile, _HOLES, slopes=0, q=30, axis=0)
case("diff", np.diff, (R, -1, 1), n=2, axis=1)
case("ediff1d", np.ediff1d, (R, -1, 1))
case("unwrap", np.unwrap, (R, -9, 9), slopes=1)
case("matvec", lambda a, x: np.einsum("bij,bj->bi", a, x), ((2, 3, 4), -1, 1), ((2, 4), -1, 1))
case("vecmat", lambda x, a: np.einsum("bi,bij->bj", x, a), ((2, 3), -1, 1), ((2, 3, 4), -1, 1))
case("trapezoid", np.trapezoid, (M, -1, 1), dx=0.5)
case("trapezoid", np.trapezoid, (M, -1, 1), ((4,), -1, 1))
case("convolve", np.convolve, ((5,), -1, 1), ((3,), -1, 1))
case("gradient", np.gradient, ((6,), -1, 1))
case("interp", lambda x, y: np.interp(x, [0, 0.5, 1, 2], y), (M, -0.4, 2.4), ((4,), -1, 1),
     slopes=0, call=lambda x, y: kc.interp(x, [0, 0.5, 1, 2], y))  # fmt: skip
case("polyval", np.polyval, ((4,), -1, 1), (M, -1, 1))
case("cov", np.cov, (M, -1, 1))
case("corrcoef", np.corrcoef, (M, -1, 1))

# -- sizes from the data ------------------------------------------------------
_WORDS = np.array([3, 1, 3, 0, 1, 3], "int32")
case("nonzero", lambda x: np.stack(np.nonzero(x)), _I, slopes=0,
     call=lambda x: kc.stack(kc.nonzero(x)))  # fmt: skip
case("argwhere", np.argwhere, _I, slopes=0)
case("bincount", np.bincount, _WORDS, slopes=0)
case("bincount", lambda x, w: np.bincount(x, w, 6), _WORDS, ((6,), -1, 1), slopes=1,
     call=lambda x, w: kc.bincount(x, w, 6))  # fmt: skip
for _part in (0, 1):
    case("histogram", lambda x, k=_part: np.histogram(x, 5)[k], (R, -1, 1), slopes=0,
         call=lambda x, k=_part: kc.histogram(x, 5)[k])  # fmt: skip
case("unique", np.unique, _WORDS, slopes=0)
_OTHERS = np.array([5, 1, 0, 1, 7], "int32")
for _name in ("intersect1d", "setdiff1d", "setxor1d", "union1d"):
    case(_name, getattr(np, _name), _WORDS, _OTHERS, slopes=0)
case("lexsort", lambda x, y: np.lexsort((x, y)), ((6,), -1, 1), _WORDS, slopes=0,
     call=lambda x, y: kc.lexsort((x, y)))  # fmt: skip
case("partition", lambda x: np.partition(x, 2)[..., 2], (M, -1, 1), slopes=0,
     call=lambda x: kc.partition(x, 2)[..., 2])  # fmt: skip
case("sort_complex", np.sort_complex, (R, -1, 1), slopes=0)
case("unravel_index", lambda x: np.stack(np.unravel_index(x, (2, 3, 4))),
     np.array([0, 5, 23], "int32"), slopes=0,
     call=lambda x: kc.stack(kc.unravel_index(x, (2, 3, 4))))  # fmt: skip
_IDS = np.array([2, 0, 2], "int32")


def _segments(ufunc, start):
    def reference(x):
        y = np.full((4, *x.shape[1:]), start)
        ufunc.at(y, _IDS, x)
        return y

    return reference


for _name, _ufunc, _start in (
    ("segment_sum", np.add, 0.0), ("segment_prod", np.multiply, 1.0),
    ("segment_max", np.maximum, -np.inf), ("segment_min", np.minimum, np.inf),
):  # fmt: skip
    case(_name, _segments(_ufunc, _start), (M, 0.5, 2), slopes=int(np.isfinite(_start)),
         call=lambda x, name=_name: getattr(kc, name)(x, _IDS, 4))  # fmt: skip

# -- creation -----------------------------------------------------------------
for _name in ("linspace", "logspace", "geomspace"):
    case(_name, getattr(np, _name), ((2,), 1, 2), ((2,), 3, 4), num=5)
case("vander", np.vander, ((4,), 0.5, 2), slopes=1)
case("full", lambda x: np.full((2, 3), x), ((), -1, 1), call=lambda x: kc.full((2, 3), x))
case("full_like", lambda x: np.full_like(x, 2.5), (M, -1, 1), slopes=0,
     call=lambda x: kc.full_like(x, 2.5))  # fmt: skip
for _name in ("zeros_like", "ones_like"):
    unary(_name, -1, 1, slopes=0)
case("array", np.array, (M, -1, 1))

# Operations tested in other files of this folder, or that only make arrays (test_creation).
ELSEWHERE = {
    "arange", "asarray", "bartlett", "blackman", "empty", "empty_like", "eye", "hamming", "hanning",
    "identity", "kaiser", "ones", "to_device", "tri", "unique_all", "unique_counts",
    "unique_inverse", "unique_values", "zeros",
}  # fmt: skip

# Operations whose cases read a size on the host.
READ_THE_HOST = {
    "argwhere", "bincount", "intersect1d", "nonzero", "setdiff1d", "setxor1d", "union1d", "unique",
}  # fmt: skip


def covered() -> set[str]:
    """Names of operations that the table or another test file runs."""
    return {c.name for c in CASES} | ELSEWHERE
