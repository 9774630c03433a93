"""Fourier transforms against NumPy in float64."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.dtypes import as_dtype
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.fft.problem import FftProblem
from kerascl.kernels.fft.solvers import SOLVERS
from kerascl.kernels.fft.stages import LARGEST, passes, radices, smooth
from tests.kernels.harness import poisoned, run_outputs, small_gpu

LINES, LOCAL = SOLVERS
KINDS = {"lines": LINES, "local": LOCAL, "small": LOCAL, "few registers": LOCAL}


def table(length, acc, two_levels):
    fine = 1 << ((length - 1).bit_length() + 1) // 2 if two_levels else length
    steps = [np.arange(fine), np.arange(fine) * fine][: 2 if two_levels else 1]
    turns = np.exp(-2j * np.pi * (np.stack(steps) % length) / length)
    return np.stack([turns.real, turns.imag], -1).astype(acc.numpy), fine


def check(dev, kind, shape, rng, sign=-1, dtype="float32", given="pair", wanted=("re", "im"),
          scale=1.0, two_levels=False):  # fmt: skip
    info = small_gpu(dev.info, 32768) if kind == "small" else dev.info
    info = dataclasses.replace(info, registers=64 if kind == "few registers" else 0)
    outer, length, inner = shape
    dtype = as_dtype(dtype)
    acc = dtypes.float64 if dtype.is_double else dtypes.float32
    roots, fine = table(length, acc, two_levels)
    problem = FftProblem(
        outer, length, inner, sign, dtype, acc, fine, given, wanted, scale, 1 + two_levels
    )
    re = rng.standard_normal(shape).astype(dtype.numpy)
    im = rng.standard_normal(shape).astype(dtype.numpy)
    x = re.astype(np.float64) + (1j * im.astype(np.float64) if given != "real" else 0)
    inputs = {"a": roots, "b": re, "c": im}
    if given == "complex":
        inputs = {"a": roots, "b": np.stack([re, im], -1)}
    elif given == "real":
        del inputs["c"]
    want = scale * (np.fft.fft(x, axis=1) if sign < 0 else np.fft.ifft(x, axis=1) * length)
    if wanted == ("complex",):
        joined = dtypes.complex128 if dtype.is_double else dtypes.complex64
        outs, epilogue = {"out": poisoned(shape, joined)}, store_epilogue(joined)
    else:
        outs = {name: poisoned(shape, dtype) for name in wanted}
        epilogue = store_epilogue(dtype)
    plan = KINDS[kind].plan(problem, info, epilogue)
    found = run_outputs(plan, inputs, outs, dev)
    bound = {"float64": 1e-15, "float32": 3e-7, "float16": 6e-4, "bfloat16": 5e-3}[dtype.name]
    for name, got in found.items():
        part = {"re": want.real, "im": want.imag, "out": want}[name]
        wide = got.astype(np.complex128 if name == "out" else np.float64)
        assert np.isfinite(wide).all(), "poison or overflow in the output"
        # a real or an imaginary part may be 0: both are measured against the whole
        size = np.linalg.norm(want.ravel()) or 1.0
        assert np.linalg.norm((wide - part).ravel()) / size <= bound, (problem, name)


@pytest.mark.every(11)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", range(1, 71))
def test_every_short_length(length, kind, dev, rng):
    if not smooth(length):
        pytest.skip("prime factors above 64 are a convolution's")
    sign, given = rng.choice([-1, 1]), rng.choice(["pair", "real", "complex"])
    shape = (int(rng.integers(1, 20)), length, int(rng.choice([1, 1, 3, 9, 17])))
    check(dev, kind, shape, rng, int(sign), given=str(given))
    shape = (int(rng.integers(1, 20)), length, 1)
    check(dev, kind, shape, rng, int(sign), given=str(given), wanted=("complex",))


LONG = (
    128, 256, 512, 1000, 1024, 1331, 2048, 2500, 3600, 3721, 4096, 6859, 8192, 10000, 30030, 65536,
    226981,
)  # fmt: skip


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LONG)
def test_long_lengths(length, kind, dev, rng):
    shape = (int(rng.integers(1, 4)), length, int(rng.choice([1, 1, 3, 8])))
    check(dev, kind, shape, rng, two_levels=True, wanted=("complex",))


AXES = ((1, 1, 1), (1, 5, 200), (3, 12, 33), (300, 16, 1), (7, 360, 1), (2, 1024, 40))


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", AXES, ids=str)
def test_any_axis(shape, kind, dev, rng):
    check(dev, kind, shape, rng, 1, scale=0.25)


@pytest.mark.every(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(5, 60, 1), (2, 60, 24), (1, 6000, 1)], ids=str)
def test_dtypes(shape, dtype, kind, dev, rng):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no double precision")
    check(dev, kind, shape, rng, dtype=dtype)


@pytest.mark.every(5)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wanted", [("re",), ("im",), ("re", "im"), ("complex",)], ids=str)
@pytest.mark.parametrize("given", ["pair", "real", "complex"])
def test_forms(given, wanted, kind, dev, rng):
    for shape in ((9, 45, 1), (2, 48, 24), (1, 3000, 1), (2, 61, 1)):
        check(dev, kind, shape, rng, given=given, wanted=wanted)


def test_lengths_taken_apart():
    for n in (1, 2, 60, 4096, 30030, 61**3, 2**20 * 3):
        assert np.prod(radices(n)) == n and max(radices(n)) <= LARGEST
        for most in (64, 500, 2048):
            assert np.prod(passes(n, most)) == n and max(passes(n, most)) <= most
    assert len(passes(10**6, 1024)) == 2 and passes(1000, 1024) == (1000,)
    assert not smooth(67) and smooth(61 * 64)


def test_choice(dev):
    """Vectors of lines on CPUs, local memory on GPUs."""
    problem = FftProblem(64, 1024, 1, -1, dtypes.float32, dtypes.float32, 1024)
    gpu = dataclasses.replace(dev.info, kind="gpu", max_work_group_size=256, compute_units=32)
    cpu = dataclasses.replace(dev.info, kind="cpu")
    for info, best in ((cpu, LINES), (gpu, LOCAL)):
        assert min(SOLVERS, key=lambda s, info=info: s.cost(problem, info)) is best
