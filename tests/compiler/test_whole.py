"""Whole numbers of a known range: not rounded, computed in ints, and the same bits."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import whole
from kerascl.core.op import REGISTRY
from kerascl.dtypes import BY_NAME

HALVES = {"float16": np.dtype("float16"), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
SMALL = {
    "int8": np.arange(-128, 128, dtype=np.int8), "uint8": np.arange(256, dtype=np.uint8),
    "int16": np.arange(-1200, 1200, 5, dtype=np.int16), "bool": np.arange(256) % 3 == 0,
}  # fmt: skip
ONE = "negative", "absolute"  # of one input


def bits(x) -> np.ndarray:
    x = np.asarray(x)
    x = np.where(x != x, np.array(np.nan, x.dtype), x)  # NaNs count as one
    return x.view(f"u{x.dtype.itemsize}")


def same(function, *host):
    """One kernel gives the bits that operations give one by one, on the device and in NumPy."""
    args = [kc.array(x) for x in host]
    alone = function(Apart(), *args)
    wanted = bits(function(Host(), *host))
    assert np.array_equal(bits(alone), wanted)
    fused = kc.jit(lambda *args: function(kc, *args))
    for _ in range(2):
        assert np.array_equal(bits(fused(*args)), wanted)
    assert np.array_equal(bits(function(kc, *args)), wanted)


class Apart:
    """kerascl's functions, each of which ends before the next begins."""

    def __getattr__(self, name):
        def run(*args):
            result = getattr(kc, name)(*args)
            np.asarray(result)
            return result

        return run


class Host:
    """NumPy's: ml_dtypes rounds the result of each."""

    def cast(self, x, dtype):
        if dtype == "bfloat16" and x.dtype.kind in "iu":  # NumPy goes by float32
            assert np.abs(x.astype(np.int64)).max(initial=0) < 1 << 24
        with np.errstate(all="ignore"):
            return x.astype(HALVES.get(dtype, dtype))

    def __getattr__(self, name):
        def run(*args):
            with np.errstate(all="ignore"):
                result = getattr(np, name)(*args)
            halves = [a.dtype for a in args if getattr(a, "dtype", None) in HALVES.values()]
            return result.astype(halves[0]) if halves and name != "astype" else result

        return run


def nibbles(m, packed, half):
    """The signed numbers in the low and in the high bits."""
    one = np.int8 if str(packed.dtype) == "int8" else np.uint8
    low = m.bitwise_and(packed, one(15))
    high = m.bitwise_and(m.right_shift(packed, one(4)), one(15))
    both = (m.subtract(m.bitwise_xor(n, one(8)), one(8)) for n in (low, high))
    if one is np.uint8:  # as they are
        both = (low, high)
    return [m.cast(n, half) for n in both]


@pytest.mark.parametrize("zeros", ["int8", "uint8"])
@pytest.mark.parametrize("packed", ["int8", "uint8"])
@pytest.mark.parametrize("half", HALVES)
def test_every_byte_with_every_zero_point_and_scales(half, packed, zeros, rng):
    scales = rng.standard_normal((256, 256)) * 10.0 ** rng.integers(-6, 5, (256, 256))
    scales = scales.astype(HALVES[half])
    scales[:, :4] = np.array([np.nan, np.inf, -0.0, 0], HALVES[half])
    host = SMALL[packed][:, None], SMALL[zeros][None], scales

    def shifted(m, w, z, s, k):
        return m.multiply(m.subtract(nibbles(m, w, half)[k], m.cast(z, half)), s)

    for k in range(2):
        same(lambda m, w, z, s, k=k: shifted(m, w, z, s, k), *host)


PAIRS = list(itertools.product(["int8", "uint8", "int16"], ["int8", "uint8"]))


@pytest.mark.parametrize("one, other", PAIRS)
@pytest.mark.parametrize("half", HALVES)
def test_ranges_that_leave_what_a_dtype_holds_are_rounded(half, one, other):
    a, b = SMALL[one][:, None], SMALL[other][None]

    def chain(m, a, b):
        x, y = m.cast(a, half), m.cast(b, half)
        total, less, product = m.add(x, y), m.subtract(x, y), m.multiply(x, y)
        twice = m.add(m.subtract(total, less), m.subtract(y, total))
        return m.subtract(m.add(m.multiply(product, x), twice), less)

    for part in (chain, lambda m, a, b: m.multiply(m.cast(a, half), m.cast(b, half)),
                 lambda m, a, b: m.add(m.cast(a, half), m.cast(b, half)),
                 lambda m, a, b: m.subtract(m.cast(a, half), m.cast(b, half))):  # fmt: skip
        same(part, a, b)


@pytest.mark.parametrize("half", HALVES)
def test_sums_of_many_are_rounded(half, rng):
    host = [rng.choice(SMALL["int8"], 2000) for _ in range(40)]

    def sums(m, *parts):
        total = m.cast(parts[0], half)
        for part in parts[1:]:
            total = m.add(total, m.cast(part, half))
        return total

    same(sums, *host)


@pytest.mark.parametrize("half", HALVES)
def test_random_programs_of_small_numbers(half, rng):
    """Of ints that wrap around, and floats that round."""
    for _ in range(6):
        steps = [
            (rng.choice(["add", "subtract", "multiply", "maximum", "bitwise_xor", "bitwise_and",
                         "right_shift", "negative"]), *rng.integers(0, 4, 2))
            for _ in range(6)
        ]  # fmt: skip
        floats = rng.choice(["add", "subtract", "multiply", "negative", "absolute"], 5)
        host = [rng.integers(-128, 128, 500).astype(np.int8) for _ in range(2)]

        def program(m, a, b, steps=steps, floats=floats):
            values = [a, b, m.bitwise_and(a, np.int8(7)), m.bitwise_and(b, np.int8(3))]
            for name, j, k in steps:
                pair = values[-1 - j], values[-1 - k]
                values.append(getattr(m, name)(*pair[: 1 if name in ONE else 2]))
            results = [m.cast(v, half) for v in values]
            for name in floats:
                pair = results[-1], results[-3]
                results.append(getattr(m, name)(*pair[: 1 if name in ONE else 2]))
            return results[-1]

        same(program, *host)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("made", ["negative", "subtract", "multiply", "of a sum"])
def test_the_sign_of_a_negated_least_number(made, dtype):
    """Which is the least number again: one compiler takes the sign from what was negated."""
    kind, info = np.dtype(dtype).type, np.iinfo(dtype)
    least, bits = info.min, info.bits
    negated = {
        "negative": lambda m, x: m.negative(x), "subtract": lambda m, x: m.subtract(kind(0), x),
        "multiply": lambda m, x: m.multiply(x, kind(-1)),
        "of a sum": lambda m, x: m.negative(m.add(x, x)),
    }[made]  # fmt: skip
    host = np.array([least, least // 2, -1, 0, 1, 5, least + 1, -5] * 5, dtype)
    many = np.array([bits - 1, bits, bits + 9, 0, 1, 3, bits - 1, bits - 2] * 5, dtype)
    for function in (
        lambda m, y, s: m.sign(y), lambda m, y, s: m.right_shift(y, kind(bits - 1)),
        lambda m, y, s: m.right_shift(y, s),
    ):  # fmt: skip
        wanted = function(np, negated(np, host), np.minimum(many, bits - 1))
        fused = kc.jit(lambda x, s, f=function: f(kc, negated(kc, x), s))
        np.testing.assert_array_equal(np.asarray(fused(kc.array(host), kc.array(many))), wanted)


def test_a_zero_keeps_its_sign():
    """-0.0 comes from products and negations of whole numbers, which ints do not have."""
    a, b = SMALL["int8"][:, None], SMALL["int8"][None]
    minus = lambda m, x: m.negative(x)  # noqa: E731
    for half in HALVES:
        same(lambda m, a, b, h=half: m.multiply(m.cast(a, h), m.cast(b, h)), a, b)
        same(lambda m, a, b, h=half: m.add(minus(m, m.cast(a, h)), minus(m, m.cast(b, h))), a, b)


def test_ints_become_the_last_digits_of_floats():
    """What `kcl_small` does on NVIDIA's cards, and the numbers that it is asked for."""
    numbers = np.arange(-whole.MOST, whole.MOST + 1, dtype=np.int32)
    floats = (numbers + np.int32(0x4B400000)).view(np.float32) - np.float32(12582912)
    assert np.array_equal(bits(floats), bits(numbers.astype(np.float32)))
    total = (kc.zeros(2, "int32").astype("float32") + kc.ones(2, "int32").astype("float32"))._node
    half = (0, whole.MOST // 2)
    assert whole.int_text(total, ["a", "b"], [half, half], whole.result(total, [half, half]))
    more = [half, (0, whole.MOST)]
    assert whole.int_text(total, ["a", "b"], more, whole.result(total, more)) is None


def test_what_floats_hold():
    for name in ("float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64"):
        dtype = BY_NAME[name]
        low, high = whole._HELD[dtype]
        assert low == -high
        numbers = np.arange(high - 3, high + 1) if high > 16 else np.arange(high + 1)
        assert np.array_equal(numbers.astype(dtype.numpy).astype(np.float64), numbers)
        assert int(np.float64(np.asarray(float(high + 1)).astype(dtype.numpy))) != high + 1


def test_rules_name_operations():
    assert all(name in REGISTRY for name in whole._RULES)
    assert set(whole._SIGNS) <= set(whole._RULES)


@pytest.mark.parametrize("name", whole._RULES)
def test_rules_hold_every_result(name, rng):
    """In Python's own ints, of ranges of all kinds."""
    own = {
        "add": lambda x, y: x + y, "subtract": lambda x, y: x - y, "multiply": lambda x, y: x * y,
        "negative": lambda x: -x, "absolute": abs, "maximum": max, "minimum": min,
        "bitwise_and": lambda x, y: x & y, "bitwise_or": lambda x, y: x | y,
        "bitwise_xor": lambda x, y: x ^ y,
        "right_shift": lambda x, k: x >> k if 0 <= k < 64 else -(x < 0),
    }[name]  # fmt: skip
    count = 1 if name in ONE else 2
    for _ in range(300):
        spans = [tuple(sorted(map(int, rng.integers(-70, 71, 2)))) for _ in range(count)]
        low, high = whole._RULES[name](*spans)
        values = [own(*v) for v in itertools.product(*(range(a, b + 1) for a, b in spans))]
        assert low <= min(values) and max(values) <= high


def test_weights_are_not_rounded_where_they_need_not_be():
    """The text of int4's weights in bfloat16 rounds only the product with the scale."""
    w, z = kc.array(SMALL["int8"][:, None]), kc.array(SMALL["int8"][None])
    s = kc.ones((256, 256), "bfloat16")

    def scaled(w, z, s):
        return (nibbles(kc, w, "bfloat16")[1] - z.astype("bfloat16")) * s

    function = kc.jit(scaled)
    function(w, z, s)
    (step,) = function.captured(w, z, s).program.steps
    body = step.source.rpartition("__kernel")[2]
    assert "kcl_small(" in body
    assert body.count("kcl_round_bf16(") + body.count("kcl_pair_bf16(") <= 1
