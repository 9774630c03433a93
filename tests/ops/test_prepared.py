"""Functions whose results have a shape that depends on values: their steps are prepared once for
shapes and dtypes, whatever the counts are."""

import numpy as np
import pytest

import kerascl as kc

FUNCTIONS = {
    "nonzero": (lambda xp, x, m: xp.nonzero(m)),
    "argwhere": (lambda xp, x, m: xp.argwhere(m)),
    "flatnonzero": (lambda xp, x, m: xp.flatnonzero(m)),
    "mask": (lambda xp, x, m: x[m]),
    "mask of rows": (lambda xp, x, m: x[m[:, 1]]),
    "mask not computed yet": (lambda xp, x, m: x[(x > 7) & m]),
    "array not computed yet": (lambda xp, x, m: (x * x + 1)[m]),
    "compress": (lambda xp, x, m: xp.compress(m[0], x.T, axis=0)),
    "extract": (lambda xp, x, m: xp.extract(m, x)),
    "unique": (lambda xp, x, m: xp.unique(xp.where(m, x, 0), True, True, True)),
    "unique integers": (lambda xp, x, m: xp.unique(xp.where(m, x, 3).astype("int32"))),
    "unique rows": (lambda xp, x, m: xp.unique(m, axis=0)),
}


def assert_same(got, want):
    if not isinstance(got, tuple):
        got, want = (got,), (want,)
    for y, expected in zip(got, want, strict=True):
        assert y.shape == expected.shape
        np.testing.assert_array_equal(y.numpy().reshape(expected.shape), expected)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_programs_for_all_counts(name, rng):
    function = FUNCTIONS[name]
    shape, compiled = (60, 40), []
    for share in (*rng.random(30), 0, 1):
        before = kc.engine.compiled
        x = rng.integers(-20, 20, shape).astype(np.float32)
        m = rng.random(shape) < 0.5 + share / 8 if 0 < share < 1 else np.full(shape, bool(share))
        got = function(kc, kc.array(x), kc.array(m))
        compiled.append(kc.engine.compiled - before)
        assert_same(got, function(np, x, m))
    assert sum(compiled[8:-2]) <= 6  # a new power of two, or a quarter between two


def test_long_vectors(rng):
    """Integers whose values are counted, from different least values on."""
    for low in (0, 5, -7, 10**9, -(2**31)):
        n = int(rng.integers(1 << 16, 1 << 17))
        x = (rng.integers(0, int(rng.integers(1, 3000)), n) + low).astype(np.int32)
        for options in ({}, {"return_counts": True}, {"return_inverse": True}):
            assert_same(kc.unique(kc.array(x), **options), np.unique(x, **options))
    for dtype in ("int8", "uint8", "bool", "int16", "uint64"):
        x = rng.integers(0, 100, 70000).astype(dtype)
        options = {"return_inverse": True, "return_counts": True}
        assert_same(kc.unique(kc.array(x), **options), np.unique(x, **options))


def test_what_is_held_is_kept(rng):
    """A mask that somebody holds is computed once, with what follows from it."""
    for _ in range(3):
        host = rng.standard_normal(300).astype(np.float32)
        x = kc.array(host)
        mask = x > 0.25
        chosen = x[mask]
        launches = kc.engine.launches
        np.testing.assert_array_equal(mask.numpy(), host > 0.25)
        assert kc.engine.launches == launches
        np.testing.assert_array_equal(chosen.numpy(), host[host > 0.25])


def test_one_array_twice(rng):
    """A program for an array beside itself is no program for two arrays."""
    for _ in range(2):
        m = rng.random(50) < 0.5
        a, b = kc.array(m), kc.array(~m)
        np.testing.assert_array_equal(a[a].numpy(), m[m])
        np.testing.assert_array_equal(b[a].numpy(), ~m[m])


def test_results_are_independent(rng):
    """Of a result that is shorter than the room for it, States and assignments see its own size."""
    host = rng.standard_normal(1000).astype(np.float32)
    x = kc.array(host)
    first = x[x > 0]
    state = kc.State(first)
    step = kc.jit(lambda: state.assign(state.value * 2))
    step()
    second = x[x > 0]
    second[0] = 5.0
    wanted = host[host > 0]
    np.testing.assert_array_equal(first.numpy(), wanted)
    np.testing.assert_array_equal(state.value.numpy(), wanted * 2)
    np.testing.assert_array_equal(second.numpy()[1:], wanted[1:])
    state.assign(x[x > 0])
    step()
    np.testing.assert_array_equal(state.value.numpy(), wanted * 2)


def test_gradients(rng):
    host = rng.standard_normal(40).astype(np.float32)
    gradient = kc.grad(lambda x: kc.sum(x[x > 0] ** 2) + kc.sum(kc.unique(x)))(kc.array(host))
    np.testing.assert_allclose(gradient.numpy(), np.where(host > 0, 2 * host, 0) + 1, rtol=1e-6)


def test_captured_functions_refuse(rng):
    x = kc.array(rng.random(10).astype(np.float32))
    for function in (lambda x: x[x > 0.5], kc.nonzero, kc.unique):
        with pytest.raises(kc.CaptureError):
            kc.jit(function)(x)
