"""Arrays without dimensions, and NumPy's integers, where an integer is asked for."""

import numpy as np
import pytest

import kerascl as kc

M = np.arange(20.0, dtype=np.float32).reshape(4, 5)
V = np.arange(6.0, dtype=np.float32)
CALLS = {
    "linspace": lambda xp, n: xp.linspace(0.0, 1.0, n),
    "logspace": lambda xp, n: xp.logspace(0.0, 1.0, n),
    "geomspace": lambda xp, n: xp.geomspace(1.0, 9.0, n),
    "zeros": lambda xp, n: xp.zeros(n),
    "full": lambda xp, n: xp.full((n, 2), 3.0),
    "arange": lambda xp, n: xp.arange(n),
    "eye": lambda xp, n: xp.eye(n, n + 1, n - 2),
    "tri": lambda xp, n: xp.tri(n, n + 1, n - 2),
    "vander": lambda xp, n: xp.vander(xp.asarray(V), n),
    "reshape": lambda xp, n: xp.reshape(xp.asarray(V), (n, -1)),
    "flat": lambda xp, n: xp.reshape(xp.asarray(V[:3]), n),
    "tile": lambda xp, n: xp.tile(xp.asarray(V), n),
    "roll": lambda xp, n: xp.roll(xp.asarray(V), n),
    "roll of two axes": lambda xp, n: xp.roll(xp.asarray(M), (n, -n), (0, 1)),
    "pad": lambda xp, n: xp.pad(xp.asarray(V), n),
    "diag": lambda xp, n: xp.diag(xp.asarray(V), n),
    "diagflat": lambda xp, n: xp.diagflat(xp.asarray(M), n),
    "diagonal": lambda xp, n: xp.diagonal(xp.asarray(M), n),
    "trace": lambda xp, n: xp.trace(xp.asarray(M), n),
    "tensordot": lambda xp, n: xp.tensordot(xp.ones((2, 3, 4, 5)), xp.ones((3, 4, 5, 2)), n),
    "tensordot of axes": lambda xp, n: xp.tensordot(
        xp.ones((2, 3, 4)), xp.ones((4, 3)), np.array([[n - 1, n - 2], [0, 1]])
    ),
    "partition": lambda xp, n: xp.partition(xp.asarray(V), n)[n],
    "bincount": lambda xp, n: xp.bincount(xp.asarray([1, 1]), minlength=n),
    "fft": lambda xp, n: xp.fft.fft(xp.asarray(V), n),
    "irfft": lambda xp, n: xp.fft.irfft(xp.asarray(V), n),
    "sum": lambda xp, n: xp.sum(xp.asarray(M), n - 3),
    "repeat": lambda xp, n: xp.repeat(xp.asarray(V), n),
    "split": lambda xp, n: xp.split(xp.asarray(V), n)[1],
}


@pytest.mark.parametrize("make", [np.int64, np.int32, kc.array], ids=["int64", "int32", "array"])
@pytest.mark.parametrize("name", CALLS)
def test_results_have_plain_shapes(name, make):
    found = CALLS[name](kc, make(3))
    wanted = CALLS[name](np, 3)
    assert found.shape == wanted.shape and all(type(n) is int for n in found.shape)
    np.testing.assert_allclose((found * 1).numpy(), wanted, 1e-5, 1e-5)
    joined = kc.concatenate([kc.ravel(found), kc.zeros(2, found.dtype)])  # shapes are reckoned with
    np.testing.assert_allclose(joined.numpy()[:-2], np.ravel(wanted), 1e-5, 1e-5)


@pytest.mark.parametrize("bad", [kc.array(2.5), kc.array([1, 2]), 2.5])
def test_others_are_refused(bad):
    for call in ("linspace", "vander", "diag", "fft"):
        with pytest.raises(TypeError):
            CALLS[call](kc, bad)


def test_sizes_that_a_captured_function_does_not_know_are_named():
    with pytest.raises(kc.CaptureError):
        kc.jit(lambda n: kc.linspace(0.0, 1.0, n))(kc.array(3))


def test_one_hot_and_keys():
    assert kc.one_hot([0, 2], kc.array(3)).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert kc.random.key(kc.array(7)).tolist() == kc.random.key(7).tolist()
    assert kc.random.split(kc.random.key(1), kc.array(3)).shape == (3, 2)
