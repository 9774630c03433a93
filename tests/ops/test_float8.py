"""float8_e4m3fn and float8_e5m2, stored in a byte, computed in float32; as ml_dtypes has them."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes

NAMES = ["float8_e4m3fn", "float8_e5m2"]
OTHERS = [d.name for d in dtypes.ALL if not d.is_float8 and not d.is_complex]


def codes(name: str) -> np.ndarray:
    """Every value of the dtype, in the order of its bits."""
    return np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name))


def agree(found, expected, message="") -> None:
    """Equal values of one dtype, signs of zero and places of NaN included."""
    assert found.dtype == expected.dtype, message
    wide = np.float64
    a, b = found.astype(wide), expected.astype(wide)
    np.testing.assert_array_equal(a, b, err_msg=message)
    numbers = ~np.isnan(b)
    np.testing.assert_array_equal(np.signbit(a[numbers]), np.signbit(b[numbers]), err_msg=message)


def hard_numbers(name: str) -> np.ndarray:
    """Numbers that are dear to rounding: every value, every tie, and their neighbours."""
    values = codes(name).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    step = values[-1] - values[-2]
    values = np.append(values, values[-1] + step * np.arange(1, 9))  # beyond the largest
    middle = (values[1:] + values[:-1]) / 2
    points = np.concatenate([values, middle, -values, -middle])
    return points


def test_every_code_is_read_and_kept():
    for name in NAMES:
        values = codes(name)
        x = kc.array(values)
        assert x.dtype == name and x.dtype.itemsize == 1 and x.nbytes == 256
        np.testing.assert_array_equal(x.numpy().view(np.uint8), np.arange(256))
        agree(kc.cast(x, "float32").numpy(), values.astype(np.float32))
        bits = kc.bitcast(x, "uint8").numpy()
        numbers = ~np.isnan(values.astype(np.float32))
        np.testing.assert_array_equal(bits[numbers], np.arange(256)[numbers])
        again = kc.bitcast(kc.array(np.arange(256, dtype=np.uint8)), name)
        agree(again.numpy(), values)
        agree(kc.reshape(x, (16, 16)).T.numpy(), values.reshape(16, 16).T)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("old", ["float32", "float64", "float16", "bfloat16"])
def test_casts_from_floats_round_like_ml_dtypes(name, old, rng):
    source, target = dtypes.as_dtype(old).numpy, getattr(ml_dtypes, name)
    points = hard_numbers(name)
    with np.errstate(all="ignore"):
        points = points.astype(source)
        up, down = np.array(np.inf, source), np.array(-np.inf, source)
        around = [points, np.nextafter(points, up), np.nextafter(points, down)]
        wide = np.exp2(rng.uniform(-30, 20, 20_000)) * rng.choice([-1, 1], 20_000)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -1e-30, 3e38, 5e-324, 1e300]
        values = np.concatenate([*around, wide.astype(source), np.array(special).astype(source)])
        # ml_dtypes' arrays go from float64 through float32, which rounds twice; its scalars do not
        once = [target(v) for v in values] if old == "float64" else values
        expected = np.asarray(once).astype(target)
    found = kc.cast(kc.array(values), name)
    agree(found.numpy(), expected)
    # the cast rounds even where nothing is stored in between
    agree(kc.cast(kc.cast(kc.array(values), name), "float32").numpy(), expected.astype(np.float32))
    for value in special:  # scalars never reach the device
        agree(kc.cast(kc.array(value), name).numpy(), np.array(target(value)))


@pytest.mark.parametrize("name", NAMES)
def test_casts_from_random_bits_of_float32(name, rng):
    values = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = rng.integers(0x3A000000, 0x48000000, 200_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([values, near, -near])
    with np.errstate(all="ignore"):
        expected = values.astype(getattr(ml_dtypes, name))
    agree(kc.cast(kc.array(values), name).numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("other", OTHERS)
def test_casts_to_and_from_every_dtype(name, other):
    values, target = codes(name), dtypes.as_dtype(other)
    found = kc.cast(kc.array(values), other).numpy()
    wide = values.astype(np.float64)
    if target.is_integer:
        info = np.iinfo(target.numpy)
        whole = [0 if math.isnan(v) else info.min if v < info.min else info.max if v > info.max
                 else int(v) for v in wide]  # fmt: skip
        np.testing.assert_array_equal(found, np.array(whole, target.numpy))
        source = np.array([0, 1, 3, 17, 19, 21, 100, info.max, info.min], target.numpy)
    elif target.is_bool:
        np.testing.assert_array_equal(found, wide != 0)
        source = np.array([True, False])
    else:
        with np.errstate(all="ignore"):
            agree(found, values.astype(target.numpy))
        source = wide.astype(target.numpy)
    with np.errstate(all="ignore"):
        expected = source.astype(np.float32).astype(getattr(ml_dtypes, name))
    agree(kc.cast(kc.array(source), name).numpy(), expected)


@pytest.mark.parametrize("new, old", list(itertools.permutations(NAMES)))
def test_casts_between_the_two(new, old):
    values = codes(old)
    with np.errstate(all="ignore"):
        expected = values.astype(np.float32).astype(getattr(ml_dtypes, new))
    agree(kc.cast(kc.array(values), new).numpy(), expected)


@pytest.mark.parametrize("name", NAMES)
def test_arithmetic_of_every_pair(name):
    values = codes(name)
    a, b = np.meshgrid(values, values)
    x, y = kc.array(a), kc.array(b)
    wide, other = a.astype(np.float32), b.astype(np.float32)
    with np.errstate(all="ignore"):
        for function in (np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum):
            expected = function(wide, other).astype(values.dtype)
            agree(getattr(kc, function.__name__)(x, y).numpy(), expected, function.__name__)
        # what is fused rounds like what is stored
        expected = (wide * other).astype(values.dtype).astype(np.float32) + wide
        agree((x * y + x).numpy(), expected.astype(values.dtype))
        agree(kc.cast(x * y, "float32").numpy(), (wide * other).astype(values.dtype).astype("f4"))
    for function in (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal):
        expected = function(wide, other)
        found = getattr(kc, function.__name__)(x, y).numpy()
        np.testing.assert_array_equal(found, expected, err_msg=function.__name__)
    for function in (np.isnan, np.isinf, np.isfinite, np.signbit):
        found = getattr(kc, function.__name__)(kc.array(values)).numpy()
        np.testing.assert_array_equal(found, function(values.astype("f4")))
    numbers = values[~np.isnan(values.astype("f4"))]
    found = kc.nextafter(kc.array(numbers), kc.array(numbers[::-1].copy())).numpy()
    agree(found, np.nextafter(numbers, numbers[::-1]))


@pytest.mark.parametrize("name", NAMES)
def test_reductions_products_and_order(name, rng):
    target = getattr(ml_dtypes, name)
    a = rng.normal(size=(40, 60)).astype(target)
    b = rng.normal(size=(60, 30)).astype(target)
    x, wide = kc.array(a), a.astype(np.float32)
    # whole numbers of eighths: the sums are exact in float32
    sums = wide.astype(np.float64).sum(0)
    agree(kc.sum(x, 0).numpy(), sums.astype(np.float32).astype(target))
    agree(kc.max(x, 1).numpy(), wide.max(1).astype(target))
    np.testing.assert_array_equal(kc.argmin(x, 1).numpy(), wide.argmin(1))
    # zeros of both signs are equal, and stay in order
    agree(kc.sort(x, 0).numpy(), np.sort(wide, 0, kind="stable").astype(target))
    np.testing.assert_array_equal(kc.argsort(x, 1).numpy(), np.argsort(wide, 1, kind="stable"))
    product = wide.astype(np.float64) @ b.astype(np.float64)
    found = kc.matmul(x, kc.array(b), kc.float32).numpy()
    assert np.linalg.norm(found - product) < 1e-6 * np.linalg.norm(product)
    order = kc.sort(kc.array(codes(name))).numpy().astype(np.float32)
    np.testing.assert_array_equal(order, np.sort(codes(name).astype(np.float32)))


@pytest.mark.parametrize("name", NAMES)
def test_making_and_moving(name, rng):
    target = getattr(ml_dtypes, name)
    agree(kc.full((3, 2), 0.3, name).numpy(), np.full((3, 2), 0.3, target))
    agree(kc.zeros((5,), name).numpy(), np.zeros(5, target))
    agree(kc.ones((2, 2), name).numpy(), np.ones((2, 2), target))
    a = rng.normal(size=(4, 6)).astype(target)
    x = kc.array(a)
    agree(kc.concatenate([x, x * 2], 1).numpy(), np.concatenate([a, a * target(2)], 1))
    agree(x[1:, ::2].numpy(), a[1:, ::2])
    agree(kc.take(x, kc.array([3, 0, 0]), 0).numpy(), a[[3, 0, 0]])
    agree(kc.pad(x, 1).numpy(), np.pad(a, 1))
    agree(kc.where(kc.array(a.astype("f4") > 0), x, 0).numpy(), np.where(a > 0, a, target(0)))
    agree(kc.view(x, "uint16").numpy().view(target), a)
    state = kc.State(x)
    state.assign(x + x)
    agree(state.value.numpy(), a + a)

    @kc.jit
    def twice(v):
        return v + v

    agree(twice(x).numpy(), a + a)


@pytest.mark.parametrize("name", NAMES)
def test_no_implicit_conversion(name):
    x = kc.ones((2,), name)
    for other in dtypes.ALL:
        if other.name != name and not (other.is_integer or other.is_bool):
            with pytest.raises(TypeError, match="float8 must be cast explicitly"):
                x + kc.ones((2,), other)
    for other in ("bool", "int8", "uint64"):
        assert (x + kc.ones((2,), other)).dtype == name
    assert (x + 1).dtype == name
    assert (x * 0.5).dtype == name


def test_gradients_pass_through_casts(rng):
    a = rng.normal(size=(7,)).astype(np.float32)
    with kc.GradientTape() as tape:
        x = kc.array(a)
        y = kc.sum(kc.cast(kc.cast(x, "float8_e5m2"), "float32") * 3)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), np.full(7, 3, np.float32))
