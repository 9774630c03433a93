"""Patterns that a driver's compiler has made wrong code of, and how that is kept from it."""

import dataclasses
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import compilers, device

NUMBERS = ["int32", "int64", "uint32", "uint64", "int16", "float32"]


@pytest.mark.parametrize("dtype", [n for n in NUMBERS if "u" not in n])
def test_sums_of_negatives(dtype, rng):
    """Loops that subtract: their vectors' lanes must be added."""
    for n in [*range(1, 36), 47, 63, 64, 65, 130]:
        x = rng.integers(-3, 4, n).astype(dtype)
        for host, axis in ((x, None), (np.tile(x, (3, 1)), 1), (np.tile(x[:, None], 3), 0)):
            a = kc.array(host)
            # not within the assertion, where pytest would hold what is negated
            found = kc.sum(-a, axis).numpy(), kc.sum(1 - a, axis).numpy()
            expected = -x.sum(), n - x.sum()
            assert np.all(found[0] == expected[0]) and np.all(found[1] == expected[1]), (n, axis)


@pytest.mark.parametrize("dtype", [n for n in NUMBERS if n != "float32"])
def test_not_of_extremes(dtype, rng):
    """NOT and a maximum in one expression, in what vectors leave of the elements."""
    info = np.iinfo(dtype)
    for n in (*range(1, 36), 47, 63, 65):
        a, b = (rng.integers(info.min, info.max, n, dtype, endpoint=True) for _ in range(2))
        x, y = kc.array(a), kc.array(b)
        for found, expected in (
            (~kc.maximum(x, y), ~np.maximum(a, b)),
            (~kc.minimum(x, y), ~np.minimum(a, b)),
            (~kc.where(x < y, y, x), ~np.maximum(a, b)),
            (kc.maximum(~x, x), np.maximum(~a, a)),
            (kc.maximum(x, y) ^ ~x, np.maximum(a, b) ^ ~a),
            (-1 - kc.maximum(x, y) if info.min else ~kc.maximum(x, y), ~np.maximum(a, b)),
        ):
            np.testing.assert_array_equal(found.numpy(), expected, err_msg=str(n))


def test_not_of_extremes_in_a_captured_function(rng):
    for n in (5, 17, 31):
        a, b = rng.integers(-9, 9, (2, n)).astype("int32")
        run = kc.jit(lambda x, y: (~kc.maximum(x, y), -kc.minimum(x, y) - 1))
        for found, expected in zip(run(kc.array(a), kc.array(b)), (np.maximum, np.minimum)):
            np.testing.assert_array_equal(found.numpy(), ~expected(a, b))


def test_the_environment_is_as_before(dev, monkeypatch):
    name = "CL_CONFIG_LLVM_OPTIONS"
    assert not dev.info.compiler_options or dev.info.compiler_options not in os.environ.get(
        name, ""
    )
    info = dataclasses.replace(dev.info, compiler_options="-b")
    monkeypatch.setenv(name, "-a")
    with compilers.told(info):
        assert os.environ[name] == "-a -b"
    assert os.environ[name] == "-a"
    monkeypatch.delenv(name)
    with compilers.told(info):
        assert os.environ[name] == "-b"
    assert name not in os.environ


def test_programs_of_a_compiler_told_otherwise_are_not_loaded(dev, monkeypatch):
    if dev.programs._disk is None:
        pytest.skip("no program of this device is kept")
    key = dev.programs._key("source", ())
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, compiler_options="-other"))
    assert dev.programs._key("source", ()) != key


def test_results_are_right_where_opencl_was_in_use_before(tmp_path):
    """The compiler listens no more then: kernels are right all the same, and a warning says why."""
    program = """
        import numpy as np, pyopencl as cl
        import kerascl as kc
        for platform in cl.get_platforms():
            if not platform.get_devices():  # Mesa's, where RUSTICL_ENABLE names no driver
                continue
            context = cl.Context(platform.get_devices()[:1])
            cl.Program(context, "__kernel void f(__global int* a) { *a = 1; }").build()
        for n in (5, 17, 20, 31):
            a, b = np.arange(n, dtype="i4"), np.arange(n, dtype="i4")[::-1].copy()
            assert np.all((~kc.maximum(kc.array(a), kc.array(b))).numpy() == ~np.maximum(a, b)), n
            assert kc.sum(-kc.array(np.ones(n, "f4"))).numpy() == -n
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True,
        env=os.environ | {"KERASCL_CACHE_DIR": str(tmp_path), "PYOPENCL_NO_CACHE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # processors without vectors of 16 need no precaution, so that none is taken there
    warned = "built without optimisation" in done.stderr
    assert not warned or "miscompiles" in device.default().info.quirks


def test_a_value_read_by_several_loops_behind_a_barrier(rng):
    """Intel's compiler died of this one, and the process with it."""

    def run(x):
        mean, total = kc.mean(x), kc.logsumexp(x)
        low = kc.minimum(kc.isnan(x).astype("float32"), total)
        weights = kc.exp(low - kc.max(low))
        return mean, weights / kc.sum(weights)

    x = rng.standard_normal(45).astype("f4")
    low = np.minimum(0.0, np.log(np.sum(np.exp(x.astype("f8")))))
    mean, weights = kc.jit(run)(kc.array(x))
    assert low <= 0 and abs(mean.numpy() - x.mean(dtype="f8")) < 1e-6
    np.testing.assert_allclose(weights.numpy(), np.full(45, 1 / 45), 1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_comparisons_kept_behind_barriers(dtype, rng):
    """Rows in registers, whose values were chosen before a barrier and are read behind it."""

    def normalised(x):
        centred = x - kc.mean(x, -1, keepdims=True)
        return -centred / kc.sqrt(kc.var(x, -1, keepdims=True) + 1)

    for n in (15, 31, 57, 100, 200):
        host = rng.integers(-3, 4, (20, n)).astype(dtype)
        for choose, expected in (
            (lambda x: -kc.sign(x), -np.sign(host)),
            (lambda x: kc.where(x > 0, x, 2 * x), np.where(host > 0, host, 2 * host)),
            (lambda x: kc.maximum(x, 1) - kc.abs(x), np.maximum(host, 1) - np.abs(host)),
        ):
            spread = np.sqrt(expected.var(-1, keepdims=True) + 1)
            right = -(expected - expected.mean(-1, keepdims=True)) / spread
            found = kc.jit(lambda x, f=choose: normalised(f(x)))(kc.array(host)).numpy()
            np.testing.assert_allclose(found, right, rtol=0, atol=2e-6, err_msg=str(n))


NEGATIONS = {
    "-x": lambda xp, x: -x,
    "times -1": lambda xp, x: x * -1.0,
    "difference": lambda xp, x: -(x - x * x / 4),
    "bell": lambda xp, x: xp.exp(-x * x),
    "sigmoid": lambda xp, x: xp.sigmoid(x) if xp is kc else 1 / (1 + np.exp(-x)),
    "log1p": lambda xp, x: xp.log1p(-xp.abs(x) / 9),
    "own": lambda xp, x: OWN(x) if xp is kc else -x,
    "own with a helper": lambda xp, x: OWN_HELPER(x) if xp is kc else np.exp(-x),
}
OWN = kc.elementwise("own", "- x")
OWN_HELPER = kc.elementwise(
    "own_helper", "turned(x)", helpers="inline T turned(T a) { return exp(0 - a); }"
)


def _from_most(xp, x):
    return x - xp.max(x, -1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NEGATIONS)
def test_negations_kept_behind_barriers(name, dtype, rng):
    """A compiler took a negated float for the same in all work-items, and what it made of it."""
    for n in (15, 20, 57, 100, 200):
        host = rng.standard_normal((40, n)).astype(dtype)
        for rows in (_from_most, _softmax, _normalised):
            found = kc.jit(lambda x, f=rows: f(kc, NEGATIONS[name](kc, x)))(kc.array(host))
            wanted = rows(np, NEGATIONS[name](np, host.astype("float64")))
            np.testing.assert_allclose(found.numpy(), wanted, 1e-6, 2e-6, err_msg=str(n))


@pytest.mark.parametrize("columns", [2, 4, 5, 7])
@pytest.mark.parametrize("join", ["edge", "constant", "concatenate"])
def test_choices_of_one_loop_and_the_next(join, columns, rng):
    """What a padded row holds where, in the loops of a softmax, which the compiler unrolled."""

    def joined(xp, x):
        if join == "concatenate":
            return xp.concatenate([x, x[:2] * 2])
        return xp.pad(x, [(0, 2), (0, 0), (0, 2)], join)

    def log_softmax(xp, x):
        x = x - xp.max(x, -1, keepdims=True)
        return x - xp.log(xp.sum(xp.exp(x), -1, keepdims=True))

    left = rng.standard_normal((33, 4, 1), "float32")
    right = rng.standard_normal((33, 1, columns), "float32")
    f = kc.jit(lambda x, y: kc.nn.log_softmax(joined(kc, x @ y), -1))
    wanted = log_softmax(np, joined(np, left.astype("float64") @ right))
    np.testing.assert_allclose(f(kc.array(left), kc.array(right)).numpy(), wanted, 0, 2e-6)


JOINED = {
    "three": lambda xp, x: xp.concatenate([x, x, x]),
    "two": lambda xp, x: xp.concatenate([x, x * 2]),
    "columns": lambda xp, x: xp.concatenate([x, x + 1, x * 3], 2),
    "padded": lambda xp, x: xp.pad(x, [(1, 1), (1, 1), (1, 1)]),
    "rolled": lambda xp, x: xp.roll(x, 2, 1),
    "rolled rows": lambda xp, x: xp.roll(x, 1, 0),
}


def _softmax(xp, x):
    x = xp.exp(x - xp.max(x, -1, keepdims=True))
    return x / xp.sum(x, -1, keepdims=True)


def _normalised(xp, x):
    return (x - xp.mean(x, -1, keepdims=True)) / xp.sqrt(xp.var(x, -1, keepdims=True) + 1)


def _signs(xp, x):
    return -xp.sign(x) / xp.sqrt(xp.var(x, -1, keepdims=True) + 1)


@pytest.mark.parametrize("shape", [(3, 7, 4), (2, 5, 8), (4, 9, 2), (5, 24, 3)], ids=str)
@pytest.mark.parametrize("rows", [_softmax, _normalised, _signs])
@pytest.mark.parametrize("join", JOINED)
def test_choices_of_a_row_in_loop_after_loop(join, rows, shape, rng):
    """Where a row is of something joined, which the compiler chose wrongly in a later loop."""
    x = rng.standard_normal(shape, "float32")
    f = kc.jit(lambda x: rows(kc, JOINED[join](kc, x)))
    wanted = rows(np, JOINED[join](np, x.astype("float64")))
    np.testing.assert_allclose(f(kc.array(x)).numpy(), wanted, 0, 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_choices_of_a_row_behind_barriers(dtype, rng):
    """What comparisons made of a row's result, read in later stages: a compiler died of it."""

    def positive(xp, x):
        c = (xp.min(x, -1, keepdims=True) > 0).astype("int32")
        t = xp.all(x - c, -1, keepdims=True).astype("int32")
        return c, x * c - t

    def without_any(xp, x):
        c = xp.logical_not(xp.any(x, -1, keepdims=True)).astype("int32")
        t = xp.max((x == c).astype("int32"), -1, keepdims=True)
        return (xp.where(t > c, x, c),)

    def turned(xp, x):
        c = xp.where(xp.sum(x, -1, keepdims=True) > 0, 1, -1).astype("int32")
        m = xp.max(x * c, -1, keepdims=True)
        d = xp.where(m == 3, m, -m)
        t = xp.sum((x < c).astype("int32") * d, -1, keepdims=True)
        return c * t, xp.where(t > 0, x * c, d)

    for n in (39, 53):
        host = rng.integers(-3, 4, (20, n)).astype(dtype)
        host[:5] = abs(host[:5]) + 1
        host[5:7] = 0
        for run in (positive, without_any, turned):
            results = kc.jit(lambda x, f=run: f(kc, x))(kc.array(host))
            for found, expected in zip(results, run(np, host), strict=True):
                np.testing.assert_array_equal(found.numpy(), expected, err_msg=run.__name__)
