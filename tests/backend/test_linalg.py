"""Linear algebra against NumPy, and its gradients against differences."""

import keras
import numpy as np
import pytest
from keras.src.backend import linalg

import kerascl
from kerascl.compiler.run.capture import jit
from kerascl.core.errors import CaptureError
from kerascl.ops import host


def close(found, expected, tolerance=2e-5):
    found = np.asarray(found, "float64")
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= tolerance * max(np.linalg.norm(expected), 1e-3)


def positive(rng, n=4, batch=()):
    a = rng.normal(size=(*batch, n, n))
    return (a @ np.swapaxes(a, -1, -2) + n * np.eye(n)).astype("float32")


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("capture", [False, True])
def test_what_runs_on_the_device(rng, batch, capture):
    a = positive(rng, 5, batch)
    b = rng.normal(size=(*batch, 5, 2)).astype("float32")
    run = (lambda f: jit(f)) if capture else (lambda f: f)
    wide = a.astype("float64")
    before = host.calls.total()
    close(run(linalg.cholesky)(a), np.linalg.cholesky(wide))
    close(run(lambda a: linalg.cholesky(a, True))(a), np.swapaxes(np.linalg.cholesky(wide), -1, -2))
    close(run(linalg.inv)(a), np.linalg.inv(wide))
    close(run(linalg.det)(a), np.linalg.det(wide), 1e-4)
    close(run(linalg.solve)(a, b), np.linalg.solve(wide, b))
    for lower in (False, True):
        half = np.tril(wide) if lower else np.triu(wide)
        found = run(lambda a, b, lower=lower: linalg.solve_triangular(a, b, lower))(a, b)
        close(found, np.linalg.solve(half, b))
    assert host.calls.total() == before


def test_vectors_as_right_sides(rng):
    a, b = positive(rng), rng.normal(size=4).astype("float32")
    close(linalg.solve(a, b), np.linalg.solve(a.astype("float64"), b))
    close(linalg.solve_triangular(a, b, True), np.linalg.solve(np.tril(a).astype("float64"), b))


def test_cholesky_inverse(rng):
    a = positive(rng, 4, (2,))
    y = np.linalg.cholesky(a)
    expected = np.linalg.inv(a.astype("float64"))
    close(linalg.cholesky_inverse(y), expected, 1e-4)
    close(linalg.cholesky_inverse(np.swapaxes(y, 1, 2), True), expected, 1e-4)


def test_cholesky_of_an_indefinite_matrix():
    with pytest.raises(ValueError, match="positive definite"):
        linalg.cholesky(np.array([[1.0, 2.0], [2.0, 1.0]], "float32"))


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 3)])
def test_factors_multiply_to_the_matrix(rng, shape):
    a = rng.normal(size=shape).astype("float32")
    for mode in ("reduced", "complete"):
        q, r = (x.numpy() for x in linalg.qr(a, mode))
        close(q @ r, a.astype("float64"))
    u, s, vt = (x.numpy() for x in linalg.svd(a, full_matrices=False))
    close(u * s[..., None, :] @ vt, a.astype("float64"))
    close(linalg.svd(a, compute_uv=False), np.linalg.svd(a.astype("float64"), compute_uv=False))
    assert linalg.svd(a)[0].shape == (*shape[:-1], shape[-2])
    close(linalg.pinv(a), np.linalg.pinv(a.astype("float64")), 1e-4)


def test_eigenvalues(rng):
    a = positive(rng, 4, (2,))
    w, v = (x.numpy() for x in linalg.eigh(a))
    close(w, np.linalg.eigvalsh(a.astype("float64")))
    close(v * w[:, None] @ np.swapaxes(v, 1, 2), a.astype("float64"))
    turn = np.array([[0.0, -1.0], [1.0, 0.0]], "float32")
    w, v = linalg.eig(turn)
    assert w.dtype == "complex64"
    np.testing.assert_allclose(sorted(w.numpy().imag), [-1, 1], atol=1e-6)
    np.testing.assert_allclose(turn @ v.numpy(), v.numpy() * w.numpy(), atol=1e-6)


def test_lu_factor(rng):
    a = rng.normal(size=(2, 4, 4)).astype("float32")
    lu, swaps = (x.numpy() for x in linalg.lu_factor(a))
    for one, packed, rows in zip(a, lu, swaps, strict=True):
        swapped = one.astype("float64")
        for k, p in enumerate(rows):
            swapped[[k, p]] = swapped[[p, k]]
        close((np.tril(packed, -1) + np.eye(4)) @ np.triu(packed), swapped)


def test_least_squares_and_rank(rng):
    a, b = rng.normal(size=(6, 3)).astype("float32"), rng.normal(size=(6, 2)).astype("float32")
    for side in (b, b[:, 0]):
        expected = np.linalg.lstsq(a.astype("float64"), side, rcond=None)[0]
        close(linalg.lstsq(a, side), expected, 1e-4)
    low = np.outer(a[:, 0], [1, 2, 3]).astype("float32")
    assert int(linalg.matrix_rank(a)) == 3 and int(linalg.matrix_rank(low)) == 1
    with pytest.raises(ValueError, match="rank >= 2"):
        linalg.pinv(a[0])


@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms(rng, ord, keepdims):
    x = rng.normal(size=(3, 4, 5)).astype("float32")
    expected = np.linalg.norm(x.astype("float64"), ord, (0, 2), keepdims)
    close(linalg.norm(x, ord, (0, 2), keepdims), expected)


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, -1, 0.5, np.inf, -np.inf])
def test_vector_norms(rng, ord):
    x = rng.normal(size=(3, 4)).astype("float32")
    close(linalg.norm(x, ord, -1), np.linalg.norm(x.astype("float64"), ord, -1))


def test_norm_at_zero_has_no_gradient():
    gradient = kerascl.grad(linalg.norm)(kerascl.zeros((3,)))
    assert gradient.tolist() == [0, 0, 0]


def test_what_runs_on_the_host_is_counted_and_not_captured(rng):
    a = positive(rng)
    before = host.calls["svd"]
    linalg.svd(a)
    assert host.calls["svd"] == before + 1
    with pytest.raises(CaptureError):
        jit(lambda a: linalg.svd(a)[1])(a)


FUNCTIONS = {
    "cholesky": (lambda a: linalg.cholesky(a), lambda a: np.linalg.cholesky(a)),
    "det": (lambda a: linalg.det(a), lambda a: np.linalg.det(a)),
    "inv": (lambda a: linalg.inv(a), lambda a: np.linalg.inv(a)),
    "eigh": (
        lambda a: [linalg.eigh(a)[0], linalg.eigh(a)[1] ** 2],
        lambda a: [np.linalg.eigh(a)[0], np.linalg.eigh(a)[1] ** 2],
    ),
    "svd": (
        lambda a: [linalg.svd(a)[1], linalg.svd(a)[0] ** 2, linalg.svd(a)[2] ** 2],
        lambda a: [np.linalg.svd(a)[1], np.linalg.svd(a)[0] ** 2, np.linalg.svd(a)[2] ** 2],
    ),
    "qr": (
        lambda a: [linalg.qr(a)[0] ** 2, linalg.qr(a)[1] ** 2],
        lambda a: [np.linalg.qr(a)[0] ** 2, np.linalg.qr(a)[1] ** 2],
    ),
    "pinv": (lambda a: linalg.pinv(a[:, :3]), lambda a: np.linalg.pinv(a[:, :3])),
    "lower": (
        lambda a: linalg.solve_triangular(a, a[:, :2], True),
        lambda a: np.linalg.solve(np.tril(a), a[:, :2]),
    ),
    "solve": (lambda a: linalg.solve(a, a[0]), lambda a: np.linalg.solve(a, a[0])),
    "lu": (lambda a: linalg.lu_factor(a[::-1])[0], lambda a: lu_by_hand(a[::-1])),
}


def lu_by_hand(a):
    a = a.copy()
    for k in range(len(a)):
        p = k + np.abs(a[k:, k]).argmax()
        a[[k, p]] = a[[p, k]]
        a[k + 1 :, k] /= a[k, k]
        a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return a


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(rng, name):
    ours, numpys = FUNCTIONS[name]
    a = positive(rng)
    weights = []

    def total(results, multiply):
        results = results if isinstance(results, list) else [results]
        for k, r in enumerate(results):
            if len(weights) <= k:
                weights.append(rng.normal(size=tuple(r.shape)).astype("float32"))
        return [multiply(r, w) for r, w in zip(results, weights, strict=True)]

    symmetric = name in ("cholesky", "eigh")  # only one triangle is read

    def loss(a):
        if symmetric:
            a = (a + keras.ops.transpose(a)) * 0.5
        parts = total(ours(a), lambda r, w: keras.ops.sum(r * w))
        return sum(parts[1:], parts[0])

    def reference(a):
        a = (a + a.T) / 2 if symmetric else a
        return sum(total(numpys(a), lambda r, w: (r * w).sum()))

    found = kerascl.grad(loss)(kerascl.array(a))
    expected, eps = np.zeros(a.shape), 1e-5
    for index in np.ndindex(a.shape):
        high, low = a.astype("float64"), a.astype("float64")
        high[index] += eps
        low[index] -= eps
        expected[index] = (reference(high) - reference(low)) / (2 * eps)
    close(found, expected, 2e-3)


def test_jvp(rng):
    x, t = rng.normal(size=(2, 3)).astype("float32")

    def function(x):
        return keras.ops.sin(x) * keras.ops.sum(x), "more"

    y, derivative, more = linalg.jvp(function, (x,), (t,), has_aux=True)
    close(y, np.sin(x) * x.sum())
    close(derivative, np.cos(x) * t * x.sum() + np.sin(x) * t.sum())
    assert more == "more"
    assert linalg.jvp(lambda x: (x * 2, x), (x,), (t,))[1][0].tolist() == (2 * t).tolist()
