"""16-bit floats: every operation's result is rounded, whatever it is computed with."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc

DTYPES = {"float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SHAPE = (6, 35)

# Each takes the module, kerascl or NumPy, and two arrays of SHAPE; both must give the same bits.
STEPS = {
    "add": lambda m, x, y: x + y,
    "subtract": lambda m, x, y: x - y,
    "multiply": lambda m, x, y: x * y,
    "divide": lambda m, x, y: x / y,
    "square": lambda m, x, y: m.square(x),
    "negative": lambda m, x, y: -x,
    "absolute": lambda m, x, y: m.absolute(x),
    "maximum": lambda m, x, y: m.maximum(x, y) if m is kc else _first(x > y, x, y),
    "minimum": lambda m, x, y: m.minimum(x, y) if m is kc else _first(x < y, x, y),
    "where": lambda m, x, y: m.where(x > y, x, y),
    "clip": lambda m, x, y: m.clip(x, _one(m, x, -1.5), _one(m, x, 2)),
    "floor": lambda m, x, y: m.floor(x),
    "trunc": lambda m, x, y: m.trunc(x),
    # that of ml_dtypes keeps the sign of a zero, unlike NumPy's own
    "sign": lambda m, x, y: m.sign(x) if m is kc else np.sign(x.astype("float32")),
    "root": lambda m, x, y: m.sqrt(m.absolute(x)),
    "scalar": lambda m, x, y: x * _one(m, x, 1.1) + _one(m, x, 0.3),
    "wide": lambda m, x, y: _cast(m, _cast(m, x, "float32") + _cast(m, y, "float32"), x.dtype),
    "other": lambda m, x, y: _cast(m, _cast(m, x, "bfloat16"), x.dtype) + y,
    "turned": lambda m, x, y: m.reshape(m.transpose(x * y), SHAPE),
    "joined": lambda m, x, y: m.concatenate([x[:, 5:] + y[:, 5:], y[:, :5]], 1),
    "row": lambda m, x, y: x - y[:1],
    "padded": lambda m, x, y: m.pad((x * y)[:, 1:], ((0, 0), (1, 0))),
}


def _cast(m, x, dtype):
    if m is kc:
        return kc.cast(x, dtype)
    return x.astype(DTYPES.get(str(dtype), dtype))


def _first(better, x, y):
    """Of zeros of both signs the second: which one, NumPy leaves open and varies by dtype."""
    return np.where(better | (x != x), x, y)


def _one(m, x, value):
    """A number beside an array; ml_dtypes' arrays would take a bare one for float64."""
    return value if m is kc else x.dtype.type(value)


def _chain(rng):
    """A random program over two arrays: its name, and a function of a module and the arrays that
    gives every value on the way."""
    names = [str(n) for n in rng.choice(list(STEPS), 10)]
    which = rng.integers(0, 1 << 30, (len(names), 2))

    def run(m, x, y, settle=lambda v: v):
        values = [x, y]
        for name, (a, b) in zip(names, which, strict=True):
            # the latest values are read most
            pair = [values[-1 - min(int(k) % 4, int(k) // 4 % len(values))] for k in (a, b)]
            value = STEPS[name](m, *pair)
            # NumPy has some functions of ml_dtypes' arrays in float32 only
            values.append(settle(value if m is kc else value.astype(x.dtype)))
        return values[2:]

    return ",".join(names), run


def _bits(x) -> np.ndarray:
    x = np.asarray(x)
    x = np.where(x != x, np.array(np.nan, x.dtype), x)  # NaNs count as one
    return x.view(np.uint16)


def _inputs(rng, dtype):
    return [(rng.normal(size=SHAPE) * 3).astype(dtype) for _ in range(2)]


@pytest.mark.parametrize("name", DTYPES)
def test_results_do_not_depend_on_what_is_fused(rng, name):
    """All at once, each by itself, captured, with other results kept: NumPy's bits every time."""
    for _ in range(5):
        text, run = _chain(rng)
        host = _inputs(rng, DTYPES[name])
        with np.errstate(all="ignore"):
            wanted = [_bits(v) for v in run(np, *host)]
        x, y = map(kc.array, host)

        def alone(v):
            np.asarray(v)
            return v

        first = kc.jit(lambda x, y, run=run: run(kc, x, y)[-1])
        every = kc.jit(lambda x, y, run=run: run(kc, x, y))
        pairs = [
            (run(kc, x, y)[-1:], wanted[-1:]),
            (run(kc, x, y, alone), wanted),
            (run(kc, x, y), wanted),
            ([first(x, y)], wanted[-1:]),
            ([first(x, y)], wanted[-1:]),
            (every(x, y), wanted),
        ]
        for k, (found, right) in enumerate(pairs):
            for j, (f, r) in enumerate(zip(found, right, strict=True)):
                assert f.dtype == name
                assert np.array_equal(_bits(f), r), f"way {k}, value {j} of {text}"


@pytest.mark.parametrize("name", DTYPES)
def test_products_folds_and_what_follows_them(rng, name):
    """A product's result is rounded before its bias, a reduction's before what reads it."""
    dtype = DTYPES[name]
    x = kc.array(rng.integers(-8, 9, (24, 40)).astype(dtype))
    w = kc.array(rng.integers(-8, 9, (40, 32)).astype(dtype))
    b = kc.array(rng.normal(size=32).astype(dtype))
    k = kc.array(rng.integers(-4, 5, (3, 3, 8, 16)).astype(dtype))
    image = kc.array(rng.integers(-4, 5, (2, 8, 8, 8)).astype(dtype))

    def dense(settle):
        return settle(kc.nn.relu(settle(settle(kc.matmul(x, w)) + b) * 1.1))

    def conv(settle):
        y = settle(kc.conv(image, k, padding=((1, 1), (1, 1))))
        return settle(settle(y * settle(y + 0.3)) - y)

    def row(settle):
        total = settle(kc.sum(settle(x * 0.3), 1, keepdims=True))
        return settle(settle(x - total) * settle(total * 1.7))

    for function in (dense, conv, row):
        steps = function(lambda v: (np.asarray(v), v)[1])
        for found in (function(lambda v: v), kc.jit(lambda f=function: f(lambda v: v))()):
            assert np.array_equal(_bits(found), _bits(steps)), function.__name__
    # sums of whole numbers are exact in float32: what float32 holds, rounded once, then the bias
    exact = np.asarray(x, "float64") @ np.asarray(w, "float64")
    right = (exact.astype("float32").astype(dtype) + np.asarray(b)).astype(dtype)
    assert np.array_equal(_bits(kc.matmul(x, w) + b), _bits(right))


@pytest.mark.parametrize("name", DTYPES)
def test_composites_round_once(rng, name):
    """Functions of several operations, and derivatives, are as exact as one operation."""
    dtype, size = DTYPES[name], (16, 48)
    x = (rng.normal(size=size) * 4).astype(dtype)
    place = rng.integers(0, size[1], size[0])
    wide = kc.array(x.astype("float32"))
    narrow = kc.array(x)
    functions = {
        "softmax": kc.nn.softmax,
        "log_softmax": kc.nn.log_softmax,
        "logsumexp": lambda v: kc.logsumexp(v, 1),
        "squareplus": lambda v: kc.nn.squareplus(v * 64),
        "hard_silu": kc.nn.hard_silu,
        "entropy": lambda v: kc.nn.sparse_categorical_crossentropy(place, v, from_logits=True),
        "var": lambda v: kc.var(v, 1),
        "gelu": kc.nn.gelu,
    }
    ulp = float(np.finfo(np.float16).eps) if name == "float16" else 2.0**-7
    for label, function in functions.items():
        found, right = np.asarray(function(narrow)), np.asarray(function(wide))
        assert found.dtype == dtype
        # one rounding, after float32's own in another order
        near = np.abs(found.astype("float32") - right) <= 0.51 * ulp * np.abs(right) + 1e-7
        assert near.all(), label
    # x * x * x overflows float16 from 41 on; the slope of gelu there is 1
    big = kc.array(np.array([-300, -50, 50, 300], dtype))
    slope = kc.grad(lambda v: kc.sum(kc.nn.gelu(v)))(big)
    assert np.asarray(slope).astype("float32").tolist() == [0, 0, 1, 1]
