"""The normal distribution's functions over all ranges of floats, as compiled here and with PTX."""

import math
import re

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import clibrary, nn

# In place of instructions that err by up to an ulp, and give 0 below the least normal number: what
# errs by one, up or down.
OFF = "v < FLT_MIN ? 0 : v > FLT_MAX ? v : as_float(as_uint(v) + (as_uint({0}) >> 2 & 2) - 1)"
TAKEN = "{{ const float v = {2}; {1} = " + OFF + "; }}"
INSTRUCTIONS = {
    r'asm\("ex2\.approx.*?\);': TAKEN.format("x", "y", "exp2(x)"),
    r'asm\("rcp\.approx.*?\);': TAKEN.format("d", "t", "1 / d"),
}
EXACT = np.vectorize(math.erfc)


def with_ptx(name, call):
    """The operation `call` over x as NVIDIA's compiler sees it, but for the instructions."""
    texts = "".join(clibrary.needed(call)).replace("@T", "float")
    for instruction, by in INSTRUCTIONS.items():
        texts = re.sub(instruction, by, texts)
    texts = texts.replace("kcl_", f"ptx_{name}_")
    code = call.replace("{T}", "float").replace("kcl_", f"ptx_{name}_").format("x")
    return kc.elementwise(name, code, helpers="#define KCL_PTX\n" + texts + "#undef KCL_PTX\n")


def values(rng):
    """Floats of all sizes up to where float32 holds the tail, and zeros."""
    small = np.exp(rng.uniform(-100, 0, 20000)) * rng.choice([-1, 1], 20000)
    usual = rng.uniform(-13, 13, 60000), rng.standard_normal(20000)
    x = np.concatenate([*usual, small, [0.0, -0.0]])
    return x[np.abs(x) < 13].astype(np.float32)


def expected(x):
    """P(normal <= x), x times that, and the slope of this, in float64; and the slope's terms."""
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        below = 0.5 * EXACT(-x / math.sqrt(2))
        bell = x * np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return below, x * below, below + bell, below + np.abs(bell)


@pytest.mark.parametrize("ptx", [False, True], ids=["portable", "ptx"])
def test_float32(rng, ptx):
    x = values(rng)
    below, product, slope, terms = expected(x)
    if ptx:
        cdf = with_ptx("cdf", "kcl_normal_cdf_{T}({0}, 0)")(x).numpy()
        gelu = with_ptx("gelu", "kcl_gelu_{T}({0}, 0)")(x).numpy()
        found = with_ptx("slope", "kcl_gelu_slope_{T}({0}, 0)")(x).numpy()
    else:
        cdf, gelu = nn.normal_cdf(x).numpy(), nn.gelu(x, False).numpy()
        found = kc.grad(lambda v: kc.sum(nn.gelu(v, False)))(kc.array(x)).numpy()
    # an instruction's ulp comes to up to three where t is near 1
    rtol = 1.2e-6 if ptx else 8e-7
    np.testing.assert_allclose(cdf, below, rtol=rtol, atol=1e-37)
    np.testing.assert_allclose(gelu, product, rtol=rtol, atol=1e-37)
    np.testing.assert_array_equal(np.sign(gelu), np.sign(x))
    assert (np.abs(found - slope) <= rtol * terms + 1e-37).all()


@pytest.mark.parametrize("ptx", [False, True], ids=["portable", "ptx"])
def test_limits(ptx):
    far = np.array([np.nan, np.inf, -np.inf, 20, -20, 3e38, -3e38], np.float32)
    cdf = with_ptx("cdf", "kcl_normal_cdf_{T}({0}, 0)") if ptx else nn.normal_cdf
    gelu = with_ptx("gelu", "kcl_gelu_{T}({0}, 0)") if ptx else lambda v: nn.gelu(v, False)
    np.testing.assert_array_equal(cdf(far).numpy(), [np.nan, 1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(gelu(far).numpy(), np.maximum(far, 0))


@pytest.mark.parametrize("ptx", [False, True], ids=["portable", "ptx"])
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_every_value_of_16_bits(dtype, ptx):
    """To within a hundredth of a unit in the last place of the nearest."""
    x = np.arange(1 << 16).astype(np.uint16).view(dtype)
    x = x[np.isfinite(x.astype(np.float32))]
    _, product, slope, terms = expected(x)
    if ptx:
        wide = x.astype(np.float32)
        gelu = with_ptx("gelu16", "kcl_gelu_{T}({0}, 1)")(wide).numpy().astype(dtype)
        found = with_ptx("slope16", "kcl_gelu_slope_{T}({0}, 1)")(wide).numpy().astype(dtype)
    else:
        gelu = nn.gelu(kc.array(x), False).numpy()
        found = kc.grad(lambda v: kc.sum(nn.gelu(v, False)))(kc.array(x)).numpy()
    for got, right, size in ((gelu, product, np.abs(product)), (found, slope, terms)):
        last = ml_dtypes.finfo(dtype).eps * 2.0 ** np.floor(np.log2(np.maximum(size, 1e-37)))
        last = np.maximum(last, float(ml_dtypes.finfo(dtype).smallest_subnormal))
        assert (np.abs(got.astype(np.float64) - right) <= 0.51 * last + 2e-37).all()


@pytest.mark.parametrize("ptx", [False, True], ids=["portable", "ptx"])
def test_gelu_by_tanh(rng, ptx):
    x = rng.uniform(-12, 12, 50000).astype(np.float32)
    wide = x.astype(np.float64)
    root, cubic = math.sqrt(2 / math.pi), 0.044715
    s = 1 / (1 + np.exp(-2 * root * (wide + cubic * wide**3)))
    slope = s + wide * s * (1 - s) * 2 * root * (1 + 3 * cubic * wide**2)
    if ptx:
        gelu = with_ptx("lean", "kcl_gelu_tanh_{T}({0})")(x).numpy()
        found = with_ptx("lean_slope", "kcl_gelu_tanh_slope_{T}({0})")(x).numpy()
    else:
        gelu = nn.gelu(x).numpy()
        found = kc.grad(lambda v: kc.sum(nn.gelu(v)))(kc.array(x)).numpy()
    # the exponent is rounded where it is as large as the cube is
    power, w = 2 * root * (wide + cubic * wide**3), 2 * root * (1 + 3 * cubic * wide**2)
    eps = 2 * np.finfo(np.float32).eps * (np.abs(power) + 4)
    assert (np.abs(gelu - wide * s) <= eps * np.abs(wide * s) + 2e-37).all()
    assert (np.abs(found - slope) <= eps * s * (1 + np.abs(wide * w) * (1 - s)) + 1e-34).all()
