"""Values of the array API standard's functions that no other test file has, against NumPy."""

import numpy as np
import pytest

import kerascl as kc

COMPLEX = pytest.mark.parametrize("kind", ["float32", "complex128"])


def draw(rng, shape, kind):
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if kind.startswith("complex") else x).astype(kind)


def agree(found, expected, bound=None):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    bound = bound or (2e-5 if found.dtype in (kc.float32, kc.complex64) else 1e-12)
    assert found.dtype.kind == expected.dtype.kind
    error = np.linalg.norm(found.numpy() - expected)
    assert error <= bound * max(np.linalg.norm(expected), 1e-30)


# -- linalg ---------------------------------------------------------------------------------------
@COMPLEX
def test_systems(kind, rng):
    a, b = draw(rng, (2, 3, 3), kind), draw(rng, (3, 2), kind)
    found = kc.asarray(a)
    agree(kc.linalg.solve(found, kc.asarray(b)), np.linalg.solve(a, b), 1e-4)
    agree(kc.linalg.inv(found), np.linalg.inv(a), 1e-4)
    agree(kc.linalg.det(found), np.linalg.det(a), 1e-4)
    sign, size = kc.linalg.slogdet(found)
    expected = np.linalg.slogdet(a)
    agree(sign, expected.sign)
    agree(size, expected.logabsdet, 1e-4)
    assert kc.linalg.slogdet(found)._fields == ("sign", "logabsdet")


@COMPLEX
def test_cholesky(kind, rng):
    a = draw(rng, (2, 3, 3), kind)
    a = a @ a.conj().swapaxes(-1, -2) + np.eye(3, dtype=kind)
    lower = np.linalg.cholesky(a)
    agree(kc.linalg.cholesky(kc.asarray(a)), lower)
    agree(kc.linalg.cholesky(kc.asarray(a), upper=True), lower.conj().swapaxes(-1, -2))
    assert np.isnan(kc.linalg.cholesky(-kc.eye(2)).numpy()).any()


@COMPLEX
def test_decompositions_rebuild_the_matrix(kind, rng):
    a = draw(rng, (2, 4, 3), kind)
    x = kc.asarray(a)
    for mode, q_shape in (("reduced", (2, 4, 3)), ("complete", (2, 4, 4))):
        q, r = kc.linalg.qr(x, mode=mode)
        assert q.shape == q_shape
        agree(q @ r, a)
    for full in (True, False):
        u, s, vh = kc.linalg.svd(x, full_matrices=full)
        agree((u[..., :3] * s[:, None, :].astype(kind)) @ vh, a)
    agree(kc.linalg.svdvals(x), np.linalg.svd(a, compute_uv=False))
    h = a.conj().swapaxes(-1, -2) @ a
    values, vectors = kc.linalg.eigh(kc.asarray(h))
    agree(vectors * values[:, None, :].astype(kind) @ kc.conj(vectors.mT), h)
    agree(kc.linalg.eigvalsh(kc.asarray(h)), np.linalg.eigvalsh(h))


@COMPLEX
def test_pinv_and_rank(kind, rng):
    a = draw(rng, (2, 4, 2), kind) @ draw(rng, (2, 2, 3), kind)
    x = kc.asarray(a)
    agree(kc.linalg.pinv(x), np.linalg.pinv(a, rcond=1e-5), 1e-3 if kind == "float32" else 1e-11)
    np.testing.assert_array_equal(kc.linalg.matrix_rank(x).numpy(), [2, 2])
    np.testing.assert_array_equal(kc.linalg.matrix_rank(x, rtol=2.0).numpy(), [0, 0])
    with pytest.raises(ValueError, match="exclude"):
        kc.linalg.matrix_rank(x, 1.0, rtol=1.0)


@COMPLEX
def test_norms(kind, rng):
    a = draw(rng, (2, 3, 4), kind)
    x = kc.asarray(a)
    for order in ("fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf):
        found = kc.linalg.matrix_norm(x, ord=order, keepdims=True)
        agree(found, np.linalg.matrix_norm(a, ord=order, keepdims=True))
    for order in (0, 1, 2, 3.5, -1, np.inf, -np.inf):
        for axis in (None, 1, (0, 2)):
            found = kc.linalg.vector_norm(x, axis=axis, ord=order)
            agree(found, np.linalg.vector_norm(a, axis=axis, ord=order))
    assert kc.linalg.vector_norm(x, axis=(0, -1), keepdims=True).shape == (1, 3, 1)


def test_powers_and_products(rng):
    a = rng.normal(size=(2, 3, 3))
    x = kc.asarray(a)
    for n in (0, 1, 5, -2):
        agree(kc.linalg.matrix_power(x, n), np.linalg.matrix_power(a, n), 1e-10)
    agree(kc.linalg.trace(x, offset=1), np.linalg.trace(a, offset=1))
    agree(kc.linalg.diagonal(x, offset=-1), np.linalg.diagonal(a, offset=-1))
    agree(kc.linalg.outer(x[0, 0], x[0, 1]), np.outer(a[0, 0], a[0, 1]))
    agree(kc.linalg.cross(x, x[1, 0]), np.linalg.cross(a, a[1, 0]))
    z, w = draw(rng, (2, 3, 4), "complex128"), draw(rng, (3, 1), "complex128")
    agree(kc.vecdot(kc.asarray(z), kc.asarray(w), axis=-2), np.vecdot(z, w, axis=-2))
    with pytest.raises(ValueError, match="3 components"):
        kc.linalg.cross(x[..., :2], x[..., :2])
    with pytest.raises(ValueError, match="two vectors"):
        kc.linalg.outer(x, x)


# -- fft ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_transforms(norm, rng):
    a = draw(rng, (4, 6, 5), "complex64")
    x = kc.asarray(a)
    for name in ("fft", "ifft", "irfft", "hfft"):
        found = getattr(kc.fft, name)(x, n=7, axis=1, norm=norm)
        agree(found, getattr(np.fft, name)(a, n=7, axis=1, norm=norm))
    for name in ("rfft", "ihfft"):
        agree(getattr(kc.fft, name)(x.real, norm=norm), getattr(np.fft, name)(a.real, norm=norm))
    for name in ("fftn", "ifftn", "irfftn"):
        found = getattr(kc.fft, name)(x, s=(3, 8), axes=(0, 2), norm=norm)
        agree(found, getattr(np.fft, name)(a, s=(3, 8), axes=(0, 2), norm=norm))
    agree(kc.fft.rfftn(x.real, norm=norm), np.fft.rfftn(a.real, norm=norm))
    agree(kc.fft.fft2(x, norm=norm), np.fft.fft2(a, norm=norm))


def test_frequencies(rng):
    for n in (1, 4, 7):
        agree(kc.fft.fftfreq(n, d=0.3), np.fft.fftfreq(n, 0.3))
        agree(kc.fft.rfftfreq(n, d=0.3, dtype=kc.float64), np.fft.rfftfreq(n, 0.3))
    a = rng.normal(size=(3, 4, 5))
    for axes in (None, 1, (0, 2)):
        agree(kc.fft.fftshift(kc.asarray(a), axes=axes), np.fft.fftshift(a, axes))
        agree(kc.fft.ifftshift(kc.asarray(a), axes=axes), np.fft.ifftshift(a, axes))
    with pytest.raises(ValueError, match="ortho"):
        kc.fft.fft(kc.ones(4), norm="unit")


def test_diagonals_far_outside(rng):
    a = rng.normal(size=(3, 4))
    for k in (2**31, -(2**40)):
        for name in ("tril", "triu"):
            agree(getattr(kc, name)(kc.asarray(a), k=k), getattr(np, name)(a, k))
        agree(kc.eye(3, 4, k=k), np.eye(3, 4, k, dtype="float32"))
    for error in (IndexError, ValueError):
        with pytest.raises(error, match="axis 3"):
            kc.expand_dims(kc.asarray(a), 3)


# -- sets, keywords -------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", ["int16", "float32", "complex64"])
def test_sets(kind, rng):
    a = rng.integers(-2, 3, (4, 5)).astype(kind)
    if kind == "complex64":
        a = a + (1j * rng.integers(0, 2, a.shape)).astype(kind)
    found, expected = kc.unique_all(kc.asarray(a)), np.unique_all(a)
    assert found._fields == expected._fields
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one.numpy(), other)
    np.testing.assert_array_equal(kc.unique_values(a).numpy(), np.unique(a))
    np.testing.assert_array_equal(kc.unique_counts(a).counts.numpy(), expected.counts)
    inverse = kc.unique_inverse(a)
    np.testing.assert_array_equal(kc.take(inverse.values, inverse.inverse_indices).numpy(), a)


def test_keywords(rng):
    a = rng.normal(size=(3, 5))
    x = kc.asarray(a)
    agree(kc.var(x, axis=1, correction=1.5), np.var(a, axis=1, correction=1.5))
    agree(kc.std(x, correction=1, keepdims=True), np.std(a, correction=1, keepdims=True))
    agree(kc.clip(x, min=-0.5), np.clip(a, -0.5, None))
    agree(kc.clip(x, max=x[0]), np.clip(a, None, a[0]))
    agree(kc.sort(x, stable=False, descending=True), -np.sort(-a))
    order = np.argsort(a[0])
    found = kc.searchsorted(x[0], x[1], sorter=kc.asarray(order), side="right")
    np.testing.assert_array_equal(found.numpy(), np.searchsorted(a[0], a[1], "right", order))
    with pytest.raises(ValueError, match="two names"):
        kc.var(x, ddof=1, correction=1)
    with pytest.raises(ValueError, match="axis"):
        kc.cumulative_sum(x)
    other = kc.reshape(x, (3, 5), copy=True)
    other[0] = 0
    agree(x, a)
