"""Elimination and Fourier transforms on the device, against NumPy."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import device
from tests.ops.slopes import check_gradients, relative

REAL = np.float64 if device.default().info.fp64 else np.float32
BOUND = 1e-12 if REAL is np.float64 else 1e-4


def draw(rng, shape):
    """Matrices with singular values from one to three: no rounding and no step of finite
    differences moves their inverses far."""
    left, right = np.linalg.qr(rng.standard_normal((2, *shape)))[0]
    return left * rng.uniform(1, 3, (*shape[:-2], 1, shape[-1])) @ right


@pytest.fixture(params=[(1, 1), (4, 4), (3, 7, 7), (2, 2, 5, 5)], ids=str)
def matrices(request, rng):
    return draw(rng, request.param).astype(REAL)


def test_systems(matrices, rng):
    right = rng.standard_normal((*matrices.shape[:-1], 3)).astype(REAL)
    found = kc.linalg.solve(matrices, right).numpy()
    assert relative(found, np.linalg.solve(matrices, right)) < BOUND
    vector = right[(0,) * (right.ndim - 2)][:, 0]
    found = kc.linalg.solve(matrices, vector).numpy()
    assert relative(found, np.linalg.solve(matrices, vector)) < BOUND
    assert relative(kc.linalg.inv(matrices).numpy(), np.linalg.inv(matrices)) < BOUND


def test_determinants(matrices):
    matrices = matrices[..., ::-1].copy()  # many exchanges
    signs, logs = kc.linalg.slogdet(matrices)
    expected = np.linalg.slogdet(matrices)
    np.testing.assert_array_equal(signs.numpy(), expected.sign)
    assert relative(logs.numpy(), expected.logabsdet) < 10 * BOUND
    assert relative(kc.linalg.det(matrices).numpy(), np.linalg.det(matrices)) < 10 * BOUND


def test_zero_pivots_and_singular_matrices():
    a = np.array([[0, 1, 2], [3, 0, 1], [0, 0, 4]], REAL)
    assert relative(kc.linalg.inv(a).numpy(), np.linalg.inv(a)) < BOUND
    np.testing.assert_allclose(kc.linalg.det(a).item(), -12, rtol=1e-6)
    singular = np.array([[1, 2], [2, 4]], REAL)
    sign, log = kc.linalg.slogdet(singular)
    assert (sign.item(), log.item()) == (0.0, -np.inf)
    assert not np.isfinite(kc.linalg.inv(singular).numpy()).all()


def test_gradients(rng):
    a = draw(rng, (2, 3, 3))
    b = rng.standard_normal((2, 3, 2))
    check_gradients(kc.linalg.solve, a, b, rng=rng, order=2)
    check_gradients(lambda a: kc.linalg.slogdet(a)[1], a, rng=rng, order=2)
    check_gradients(kc.linalg.inv, a, rng=rng)


def test_refused():
    with pytest.raises(ValueError, match="square"):
        kc.linalg.inv(kc.ones((2, 3)))
    with pytest.raises(ValueError, match="square"):
        kc.linalg.cholesky(kc.ones((2, 3)))


# -- Fourier ------------------------------------------------------------------
@pytest.mark.parametrize("n", [1, 2, 7, 16, 24, 61, 71, 210])
def test_transforms(n, rng):
    x = (rng.standard_normal((2, n)) + 1j * rng.standard_normal((2, n))).astype(np.complex64)
    for name in ("fft", "ifft"):
        expected = getattr(np.fft, name)(x)
        found = getattr(kc.fft, name)(x).numpy()
        assert np.linalg.norm(found - expected) <= 1e-6 * np.linalg.norm(expected)
    half = np.fft.rfft(x.real)
    found = kc.fft.rfft(x.real).numpy()
    assert np.linalg.norm(found - half) <= 1e-6 * np.linalg.norm(half)
    np.testing.assert_allclose(kc.fft.irfft(found, n).numpy(), x.real, atol=2e-6)


def test_axes_and_lengths(rng):
    x = (rng.standard_normal((4, 6, 3)) + 1j * rng.standard_normal((4, 6, 3))).astype(np.complex64)
    for found, expected in (
        (kc.fft.fft(x, axis=0), np.fft.fft(x, axis=0)),
        (kc.fft.fft(x, 4, 1), np.fft.fft(x, 4, 1)),
        (kc.fft.fft(x, 9, 1), np.fft.fft(x, 9, 1)),
        (kc.fft.fft2(x, (0, 1)), np.fft.fft2(x, axes=(0, 1))),
        (kc.fft.ifft2(x), np.fft.ifft2(x)),
        (kc.fft.rfft(x.real, 8, 0), np.fft.rfft(x.real, 8, 0)),
        (kc.fft.irfft(x, axis=1), np.fft.irfft(x, axis=1)),
        (kc.fft.irfft(x, 7, 1), np.fft.irfft(x, 7, 1)),
    ):
        found = found.numpy()
        assert found.shape == expected.shape
        assert np.linalg.norm(found - expected) <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_transforms_of_pairs(axis, rng):
    for shape in ((5, 6, 7), (4, 67, 3), (67, 2, 71)):
        re, im = rng.standard_normal((2, *shape))
        wanted = np.fft.fft(re + 1j * im, axis=axis)
        found = kc.fft.dft(kc.array(re), kc.array(im), axis=axis)
        back = kc.fft.dft(*found, inverse=True, axis=axis)
        for got, exact in zip((*found, *back), (wanted.real, wanted.imag, re, im), strict=True):
            assert np.linalg.norm(got.numpy() - exact) <= 1e-6 * np.linalg.norm(exact)
        real = kc.fft.dft(kc.array(re), axis=axis)[1].numpy()
        wanted = np.fft.fft(re, axis=axis).imag
        assert np.linalg.norm(real - wanted) <= 1e-6 * np.linalg.norm(re) * len(shape) ** 2


@pytest.mark.parametrize("n", [12, 67])
def test_transforms_of_batches(n, rng):
    x = rng.standard_normal((3, n, 2)).astype(np.float32)
    for function, exact in (
        (lambda v: kc.fft.fft(v, axis=0), np.fft.fft(x, axis=1)),
        (lambda v: kc.fft.dft(v, v * 2, axis=0)[1], np.fft.fft(x + 2j * x, axis=1).imag),
        (lambda v: kc.grad(lambda u: kc.sum(kc.fft.dft(u, axis=0)[0] * 0.5 * u))(v),
         np.fft.fft(x, axis=1).real),
    ):  # fmt: skip
        found = kc.vmap(function)(kc.array(x)).numpy()
        assert np.linalg.norm(found - exact) <= 2e-6 * np.linalg.norm(exact)


def test_complex_transform_gradients(rng):
    x, y = rng.standard_normal((2, 3, 10))

    def spectrum(x, y):
        z = kc.fft.fft(kc.make_complex(x, y), axis=0, norm="ortho")
        return kc.abs(kc.fft.ifft(z * z)) + kc.real(kc.fft.rfft(x, axis=0, n=3))[:1]

    check_gradients(spectrum, x, y, rng=rng, order=2)


def test_captured_transforms(rng):
    x = rng.standard_normal((4, 30)).astype(np.float32)
    power = lambda v: kc.sum(kc.square(kc.abs(kc.fft.rfft(v - 1))), 0) + 1  # noqa: E731
    wanted = np.sum(np.abs(np.fft.rfft(x.astype(float) - 1)) ** 2, 0) + 1
    for function in (power, kc.jit(power)):
        found = function(kc.array(x)).numpy()
        assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)


def test_transform_gradients(rng):
    x, y = rng.standard_normal((2, 2, 12))
    check_gradients(lambda x, y: kc.stack(kc.fft.dft(x, y, axis=0)), x, y, rng=rng, order=2)
    check_gradients(lambda x: kc.fft.dft(x, axis=0)[1], x, rng=rng, order=2)
    check_gradients(lambda x, y: kc.stack(kc.fft.dft(x, y)), x, y, rng=rng, order=2)
    check_gradients(lambda x, y: kc.fft.hermitian_inverse(x, y, 21), x[:, :11], y[:, :11], rng=rng)
