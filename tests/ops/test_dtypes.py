"""Integers, bools, 16-bit floats and complex numbers; NumPy is the reference."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from tests.ops.slopes import relative

INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
A = [0, 1, -1, 7, -7, 100, -128, 127, 3, -3, 12, 255]
B = [3, 2, -3, -2, 2, -1, 5, 127, 100, 3, -8, 1]


def pair(dtype):
    return np.array(A).astype(dtype), np.array(B).astype(dtype)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_arithmetic_wraps(dtype):
    a, b = pair(dtype)
    x, y = kc.array(a), kc.array(b)
    with np.errstate(all="ignore"):
        expected = {
            "add": a + b, "subtract": a - b, "multiply": a * b, "negative": -a, "square": a * a,
            "floor_divide": a // b, "mod": a % b, "fmod": np.fmod(a, b), "sign": np.sign(a),
            "absolute": np.abs(a), "maximum": np.maximum(a, b), "minimum": np.minimum(a, b),
            "gcd": np.gcd(a, b), "bitwise_and": a & b, "bitwise_xor": a ^ b, "bitwise_not": ~a,
            "equal": a == b, "less": a < b, "greater_equal": a >= b, "logical_and": (a * b) != 0,
            "clip": np.clip(a, 1, 9), "isnan": np.isnan(a), "signbit": a < 0,
        }  # fmt: skip
    found = {
        name: (
            kc.clip(x, 1, 9) if name == "clip"
            else getattr(kc, name)(*[x, y][: getattr(getattr(kc, name), "count", 1)])
        )
        for name in expected
    }  # fmt: skip
    kc.engine.evaluate([v._node for v in found.values()])
    for name, value in expected.items():
        result = found[name].numpy()
        np.testing.assert_array_equal(result, value, err_msg=name)
        assert result.dtype == value.dtype, name


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_integers_that_wrapped_are_not_taken_for_positive(dtype):
    """Signed overflow is undefined in C: a compiler may drop the second absolute value."""
    info = np.iinfo(dtype)
    a = np.array([info.max, info.max // 2 + 2, info.min, info.min + 1, 5], dtype)
    x = kc.array(a)
    with np.errstate(all="ignore"):
        twice, four = np.abs(a) * a.dtype.type(2), np.abs(a) * np.abs(a)
        expected = [np.abs(twice), np.abs(four), np.abs(np.abs(a) + a.dtype.type(info.max)),
                    np.abs(np.abs(a).sum(dtype=dtype)), np.abs(np.abs(a).prod(dtype=dtype)),
                    np.sign(np.abs(a) ** a.dtype.type(3)), -np.abs(a) < 0]  # fmt: skip
    b = abs(x)
    found = [abs(b * 2), abs(b * b), abs(b + info.max), abs(kc.sum(b, dtype=dtype)),
             abs(kc.prod(b, dtype=dtype)), kc.sign(b ** 3), -b < 0]  # fmt: skip
    for value, reference in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value.numpy(), reference)
    captured = kc.jit(lambda x: abs(abs(x) * 2))
    np.testing.assert_array_equal(captured(x).numpy(), expected[0])


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_power_and_shifts(dtype):
    a, _ = pair(dtype)
    n = np.array([0, 1, 2, 3, 5, 7, 0, 2, 9, 4, 31, 1]).astype(dtype)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal((kc.array(a) ** kc.array(n)).numpy(), a**n)
    bits = 8 * a.dtype.itemsize
    for by in (0, 1, bits - 1, bits, bits + 3):
        by = np.full_like(n, by)
        left = kc.left_shift(kc.array(a), kc.array(by)).numpy()
        np.testing.assert_array_equal(left, np.left_shift(a, by))
        right = kc.right_shift(kc.array(a), kc.array(by)).numpy()
        np.testing.assert_array_equal(right, np.right_shift(a, by))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_division_by_zero_and_at_the_limit(dtype):
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 5, 0], dtype)
    zero = kc.zeros((4,), dtype)
    for name in ("floor_divide", "mod", "fmod"):
        assert not getattr(kc, name)(kc.array(a), zero).numpy().any()
    if info.min:
        minus = kc.full((4,), -1, dtype)
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal((kc.array(a) // minus).numpy(), -a)
        assert not (kc.array(a) % minus).numpy().any()


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_reductions_and_order(dtype):
    a = np.array(A).astype(dtype).reshape(3, 4)
    x = kc.array(a)
    for name in ("max", "min", "argmax", "argmin", "any", "all", "count_nonzero", "ptp"):
        np.testing.assert_array_equal(getattr(kc, name)(x, 1).numpy(), getattr(np, name)(a, 1))
    with np.errstate(all="ignore"):
        for wanted in (None, dtype):
            for name, axis in (("sum", 0), ("prod", 1), ("cumsum", 1)):
                found = getattr(kc, name)(x, axis, dtype=wanted).numpy()
                np.testing.assert_array_equal(found, getattr(a, name)(axis, dtype=wanted))
    np.testing.assert_array_equal(kc.sort(x, 0).numpy(), np.sort(a, 0))
    np.testing.assert_array_equal(kc.argsort(x, 1).numpy(), np.argsort(a, 1, kind="stable"))
    assert kc.mean(x).dtype == "float32"
    np.testing.assert_allclose(float(kc.mean(x)), a.mean(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint8"])
def test_integer_products(dtype, rng):
    a = rng.integers(0, 5, (3, 4)).astype(dtype)
    b = rng.integers(0, 5, (4, 2)).astype(dtype)
    np.testing.assert_array_equal(kc.matmul(a, b).numpy(), a @ b)
    # the result may be wider than the inputs: nothing wraps
    a = (a * 20).astype(dtype)
    wide = kc.matmul(a, b, kc.int32).numpy()
    np.testing.assert_array_equal(wide, a.astype("int32") @ b.astype("int32"))


def test_bools():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    x, y = kc.array(a), kc.array(b)
    for name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or",
                 "bitwise_xor", "maximum", "minimum", "equal", "not_equal"):  # fmt: skip
        result = getattr(kc, name)(x, y).numpy()
        assert result.dtype == bool
        np.testing.assert_array_equal(result, getattr(np, name)(a, b), err_msg=name)
    np.testing.assert_array_equal((~x).numpy(), ~a)
    np.testing.assert_array_equal((x + y).numpy(), a + b)
    np.testing.assert_array_equal((x * y + 1).numpy(), a * b + 1)
    np.testing.assert_array_equal(((x + y) * 2).numpy(), (a + b) * 2)
    assert kc.sum(x).item() == 2
    assert kc.sort(x).tolist() == [False, False, True, True]
    assert kc.matmul(x, y).numpy().dtype == bool
    np.testing.assert_array_equal(kc.diff(x).numpy(), np.diff(a))
    np.testing.assert_array_equal(kc.cumsum(x).numpy(), np.cumsum(a))


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_half_floats_are_computed_in_float32(name, rng):
    dtype = np.float16 if name == "float16" else ml_dtypes.bfloat16
    a = rng.uniform(0.5, 2, (5, 300)).astype(dtype)
    b = rng.uniform(0.5, 2, (5, 300)).astype(dtype)
    wide, other = a.astype(np.float32), b.astype(np.float32)
    x, y = kc.array(a), kc.array(b)
    assert x.dtype == name
    # one operation rounds once
    for function in (np.add, np.multiply, np.divide, np.sqrt, np.maximum):
        inputs = (wide, other)[: function.nin]
        expected = function(*inputs).astype(dtype)
        found = getattr(kc, function.__name__)(*(x, y)[: function.nin])
        assert found.dtype == name
        np.testing.assert_array_equal(found.numpy(), expected)
    # sums neither overflow nor lose small terms
    big = kc.full((100_000,), 3.0, name)
    assert float(kc.mean(big)) == 3.0
    assert float(kc.std(big)) < 1e-6  # OpenCL's float32 division may be off by 2.5 ulp
    np.testing.assert_array_equal(
        kc.sum(x, 1).numpy(), wide.sum(1, dtype=np.float64).astype(np.float32).astype(dtype)
    )
    product = kc.matmul(x, kc.transpose(y)).numpy()
    assert relative(product, wide.astype(float) @ other.T.astype(float)) < 4e-3
    with kc.GradientTape() as tape:
        z = kc.sum(x * x * y)
    assert relative(tape.gradient(z, x).numpy(), 2 * wide * other) < 4e-3


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_next_half_float(name):
    dtype = np.float16 if name == "float16" else ml_dtypes.bfloat16
    values = np.array([0.0, 1.0, -1.0, 2.5, -0.0, 1.0, 6e-8, np.nan], dtype)
    towards = np.array([1.0, 2.0, 2.0, -1.0, -1.0, 1.0, 0.0, 1.0], dtype)
    np.testing.assert_array_equal(
        kc.nextafter(kc.array(values), kc.array(towards)).numpy().astype(np.float32),
        np.nextafter(values, towards).astype(np.float32),
    )


FLOATS = np.array([0.0, -0.0, 1.5, -1.5, 2.5, 1e10, -1e10, np.nan, np.inf, -np.inf], np.float32)


@pytest.mark.parametrize("dtype", [*INTEGERS, "bool"])
def test_casts_from_floats_saturate(dtype):
    found = kc.cast(kc.array(FLOATS), dtype).numpy()
    if dtype == "bool":
        np.testing.assert_array_equal(found, FLOATS != 0)
        return
    info = np.iinfo(dtype)
    finite = np.nan_to_num(FLOATS.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)
    expected = [min(max(int(v), info.min), info.max) for v in finite]
    np.testing.assert_array_equal(found, np.array(expected, dtype))
    # Python scalars, which never reach the device, agree
    for value, want in zip(FLOATS.tolist(), expected, strict=True):
        assert kc.cast(kc.array(value), dtype).item() == want


@pytest.mark.parametrize("old", INTEGERS)
def test_casts_between_integers_wrap(old):
    info = np.iinfo(old)
    a = np.array([info.min, info.max, 0, 1, 100], old)
    for new in INTEGERS:
        np.testing.assert_array_equal(kc.cast(kc.array(a), new).numpy(), a.astype(new))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32"])
def test_bits_of_floats(name):
    dtype = dtypes.as_dtype(name)
    bits = f"uint{8 * dtype.itemsize}"
    values = np.array([0.0, -0.0, 1.0, -2.5, np.inf, 1e-3], dtype.numpy)
    found = kc.bitcast(kc.array(values), bits)
    np.testing.assert_array_equal(found.numpy(), values.view(bits))
    np.testing.assert_array_equal(kc.bitcast(found, name).numpy().view(bits), values.view(bits))


@pytest.mark.parametrize("old, new", [
    ("float32", "uint8"), ("uint8", "float32"), ("int64", "int16"), ("bfloat16", "int32"),
    ("int8", "uint8"), ("float16", "bfloat16"),
])  # fmt: skip
def test_views_of_bytes(old, new, rng):
    old, new = dtypes.as_dtype(old), dtypes.as_dtype(new)
    raw = rng.integers(0, 120, (2, 16)).astype(np.uint8)
    a = raw.view(old.numpy)
    found = kc.view(kc.array(a), new).numpy()
    np.testing.assert_array_equal(found.view(np.uint8), a.view(new.numpy).view(np.uint8))


PROMOTIONS = [
    ("int8", "uint8", "int16"), ("int32", "uint32", "int64"), ("int32", "float16", "float16"),
    ("float16", "bfloat16", "float32"), ("bool", "int8", "int8"), ("uint64", "int8", "float64"),
    ("float32", "complex64", "complex64"), ("int64", "float32", "float32"),
    ("float64", "complex64", "complex128"), ("complex64", "complex128", "complex128"),
    ("int64", "complex64", "complex64"), ("bfloat16", "complex128", "complex128"),
]  # fmt: skip


@pytest.mark.parametrize("a, b, result", PROMOTIONS)
def test_promotion(a, b, result):
    x, y = kc.ones((2,), a), kc.ones((2,), b)
    assert (x + y).dtype == result
    assert kc.where(True, x, y).dtype == result
    assert kc.concatenate([y, x]).dtype == result


def test_python_scalars_are_weak():
    for dtype in ("int8", "uint16", "float16", "bfloat16", "float32"):
        x = kc.ones((2,), dtype)
        assert (x + 2).dtype == dtype
        assert (3 * x).dtype == dtype
        assert kc.maximum(x, 0).dtype == dtype
        assert (x + 0.5).dtype == (dtype if "float" in dtype else "float32")
    assert (kc.ones((2,), "bool") + 1).dtype == "int32"
    assert (kc.ones((2,)) * 1j).dtype == "complex64"
    assert (kc.ones((2,), "float64") * 1j).dtype == "complex128"
    assert (kc.ones((2,), "complex128") * 1.5).dtype == "complex128"
    assert (kc.ones((2,), "float32") * np.float64(2)).dtype == "float64"


ELEMENTARY = [
    "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan", "arcsinh", "arccosh",
    "arctanh", "exp2", "expm1", "log2", "log10", "log1p", "sign",
]  # fmt: skip


@pytest.mark.parametrize("dtype, limit", [("complex64", 1e-6), ("complex128", 2e-15)])
@pytest.mark.parametrize("name", ELEMENTARY)
def test_complex_functions(name, dtype, limit, rng):
    """In all four quadrants, near 0 and far from it; NumPy in complex128 is the reference."""
    size = np.exp(rng.uniform(np.log(0.05), np.log(8), 2000))
    a = (size * np.exp(2j * np.pi * rng.uniform(size=2000))).astype(dtype)
    found = getattr(kc, name)(kc.array(a)).numpy()
    expected = getattr(np, name)(a.astype(np.complex128))
    assert found.dtype == dtype
    error = np.abs(found - expected) / np.abs(expected)
    # inverse functions lose digits beside their branch points and zeros, as NumPy's do
    assert np.median(error) < limit
    assert np.linalg.norm(found - expected) < 2 * limit * np.linalg.norm(expected)


SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan]
OTHERS = "square reciprocal sqrt exp log negative conjugate absolute angle isnan isinf isfinite"
PAIRS = "add subtract multiply divide equal not_equal less less_equal greater greater_equal maximum"


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", [*ELEMENTARY, *OTHERS.split()])
def test_complex_functions_of_special_values(name, dtype):
    """C99's Annex G, which NumPy follows: infinities, NaN and the signs of zeros."""
    grid = _grid(dtype)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(grid)
        if name == "expm1":  # where NumPy has NaN, as the array API standard has it
            far = ~np.isfinite(grid.real)
            expected[far] = np.exp(grid[far]) - 1
        _same_parts(getattr(kc, name)(kc.array(grid)).numpy(), expected)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", [*PAIRS.split(), "minimum", "fmax", "fmin"])
def test_pairs_of_special_complex_values(name, dtype):
    grid = _grid(dtype)
    a, b = np.repeat(grid, grid.size), np.tile(grid, grid.size)
    with np.errstate(all="ignore"):
        _same_parts(getattr(kc, name)(kc.array(a), kc.array(b)).numpy(), getattr(np, name)(a, b))


def test_complex_powers_of_zero_and_to_zero():
    grid = _grid("complex128")
    x = kc.array(grid)
    with np.errstate(all="ignore"):
        for value in (0, 1, 0j, 1 + 0j):
            _same_parts(kc.power(x, value).numpy(), np.power(grid, value))
        for exponent in (2, 0.5, 1 + 1j, -1, -1 + 1j):
            _same_parts(
                kc.power(kc.array([0j], "complex128"), exponent).numpy(), np.power([0j], exponent)
            )


def _grid(dtype) -> np.ndarray:
    """All numbers whose parts are special; made of parts, since arithmetic would lose them."""
    grid = np.empty(len(SPECIAL) ** 2, dtype)
    grid.real, grid.imag = np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))
    return grid


def _same_parts(found, expected) -> None:
    assert found.dtype == expected.dtype
    rtol = 4e-6 if found.dtype in (np.complex64, np.float32) else 4e-15
    parts = (np.real, np.imag) if found.dtype.kind == "c" else (np.asarray,)
    for part in parts:
        a, b = part(found), part(expected)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=0)
        if a.dtype.kind == "f":
            number = ~np.isnan(b)
            np.testing.assert_array_equal(np.signbit(a[number]), np.signbit(b[number]))


@pytest.mark.parametrize("name", [n for n in ELEMENTARY if n != "sign"])
def test_complex_functions_have_derivatives(name, rng):
    """A holomorphic function's derivative, from a difference quotient of NumPy's function."""
    a = rng.uniform(0.2, 0.9, 50) + 1j * rng.uniform(0.2, 0.9, 50)
    with kc.GradientTape() as tape:
        x = kc.array(a)
        y = kc.real(kc.sum(getattr(kc, name)(x)))
    function = getattr(np, name)
    slope = (function(a + 1e-6) - function(a - 1e-6)) / 2e-6
    assert relative_complex(tape.gradient(y, x), slope) < 1e-8


@pytest.mark.parametrize("dtype, limit", [("complex64", 2e-6), ("complex128", 2e-15)])
def test_complex(dtype, limit, rng):
    a = (rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))).astype(dtype)
    b = (rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))).astype(dtype)
    x, y = kc.array(a), kc.array(b)
    assert x.dtype == dtype and x.dtype.real == a.real.dtype
    for name in ("add", "subtract", "multiply", "divide", "power"):
        assert relative_complex(getattr(kc, name)(x, y), getattr(np, name)(a, b)) < limit, name
    for name in ("negative", "square", "reciprocal", "sqrt", "exp", "log", "conjugate", "absolute",
                 "angle", "real", "imag", "sum", "mean", "prod", "var", "std"):  # fmt: skip
        assert relative_complex(getattr(kc, name)(x), getattr(np, name)(a)) < limit, name
    assert relative_complex(kc.matmul(x, kc.transpose(y)), a @ b.T) < limit
    assert relative_complex(kc.vdot(x, y), np.vdot(a, b)) < limit
    np.testing.assert_array_equal(kc.equal(x, y).numpy(), a == b)
    chosen = kc.where(kc.real(x) > 0, x, y).numpy()
    np.testing.assert_array_equal(chosen, np.where(a.real > 0, a, b))
    np.testing.assert_array_equal(kc.pad(x, 1).numpy(), np.pad(a, 1))
    assert kc.cast(x, "bool").numpy().all()
    assert relative_complex(kc.cumsum(x, 1), np.cumsum(a, 1)) < limit
    assert relative_complex(kc.cumprod(x, 1), np.cumprod(a, 1)) < limit
    assert relative_complex(kc.fft.fft(x), np.fft.fft(a)) < limit
    assert relative_complex(x[1:, ::2].T * (2 + 1j), a[1:, ::2].T * (2 + 1j)) < limit
    other = "complex128" if dtype == "complex64" else "complex64"
    np.testing.assert_array_equal(kc.cast(x, other).numpy(), a.astype(other))
    np.testing.assert_array_equal(kc.cast(x, "float32").numpy(), a.real.astype("float32"))
    np.testing.assert_array_equal(kc.cast(kc.real(x), dtype).numpy(), a.real.astype(dtype))
    big = kc.array(np.repeat(a[:, :1], 5000, 1))
    assert relative_complex(kc.sum(big), 5000 * a[:, :1].sum()) < 10 * limit
    c = np.where(a.real > 0, a, a.real + 2j).astype(dtype)
    for name in ("maximum", "minimum", "fmax", "fmin", "less", "less_equal", "greater"):
        expected = getattr(np, name)(c, c[::-1])
        np.testing.assert_array_equal(getattr(kc, name)(c, c[::-1]).numpy(), expected, name)
    for name in ("floor", "mod", "erf"):
        with pytest.raises(TypeError):
            getattr(kc, name)(*[x, y][: getattr(kc, name).count])


def relative_complex(found, expected) -> float:
    found = found.numpy()
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


def test_complex_gradients(rng):
    """d/dx of a real loss through complex values, against central differences."""
    values = rng.uniform(0.5, 1.5, (2, 5)).astype(np.float32)

    def loss(re, im):
        z = kc.make_complex(re, im)
        z = kc.exp(z) * z / (z + 2) + kc.sqrt(z) * kc.conjugate(kc.log(z))
        return kc.sum(kc.absolute(z) + kc.real(z * z) - kc.imag(z))

    def reference(re, im):
        z = re + 1j * im
        z = np.exp(z) * z / (z + 2) + np.sqrt(z) * np.conjugate(np.log(z))
        return np.sum(np.abs(z) + np.real(z * z) - np.imag(z))

    with kc.GradientTape() as tape:
        xs = [kc.array(v) for v in values]
        y = loss(*xs)
    found = np.stack([g.numpy() for g in tape.gradient(y, xs)])
    expected = np.zeros_like(values, dtype=float)
    for place in np.ndindex(values.shape):
        ends = []
        for step in (1e-6, -1e-6):
            moved = values.astype(float)
            moved[place] += step
            ends.append(reference(*moved))
        expected[place] = (ends[0] - ends[1]) / 2e-6
    assert relative(found, expected) < 1e-5
