"""`keras.ops.image` against direct loops and formulas in float64."""

import colorsys
import math

import numpy as np
import pytest
from keras.src import backend

import kerascl as kc
from tests.ops.slopes import check_gradients, relative

image = backend.image

FIRST, LAST = "channels_first", "channels_last"


def pictures(rng, *shape):
    return rng.random(shape or (2, 9, 7, 3)).astype(np.float32)


def both_formats(call, x, **tolerances):
    """The result for channels_last, after checking that channels_first gives the same."""
    found = call(x, LAST).numpy()
    other = call(np.ascontiguousarray(np.moveaxis(x, -1, -3)), FIRST).numpy()
    np.testing.assert_allclose(np.moveaxis(other, -3, -1), found, rtol=1e-5, atol=1e-5)
    return found


# -- colours
def test_grayscale(rng):
    x = pictures(rng)
    y = both_formats(image.rgb_to_grayscale, x)
    assert relative(y[..., 0], x.astype(np.float64) @ [0.2989, 0.5870, 0.1140]) < 1e-6
    assert image.rgb_to_grayscale((x * 255).astype("uint8"), LAST).dtype == "uint8"
    np.testing.assert_array_equal(image.rgb_to_grayscale(y, LAST).numpy(), y)
    with pytest.raises(ValueError, match="channel size"):
        image.rgb_to_grayscale(kc.ones((4, 4, 2)), LAST)


def test_hsv(rng):
    x = pictures(rng, 5, 6, 3)
    x[0] = x[0, :, :1]  # gray
    x[1, 0] = 0
    found = both_formats(image.rgb_to_hsv, x)
    expected = [[colorsys.rgb_to_hsv(*map(float, pixel)) for pixel in row] for row in x]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(both_formats(image.hsv_to_rgb, found), x, atol=1e-5)
    with pytest.raises(ValueError, match="float"):
        image.rgb_to_hsv(np.zeros((2, 2, 3), "uint8"))
    with pytest.raises(ValueError, match="rank"):
        image.hsv_to_rgb(kc.ones((3,)))


# -- resizing
def cubic(x):
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    return np.where(x < 1, near, far) * (x < 2)


def lanczos(radius):
    return lambda x: np.sinc(x) * np.sinc(x / radius) * (x < radius)


KERNELS = {
    "bilinear": lambda x: np.maximum(1 - x, 0),
    "bicubic": cubic,
    "lanczos3": lanczos(3),
    "lanczos5": lanczos(5),
}


def weights(n, size, scale, translation, kernel, antialias):
    """Row o: how much each of n elements adds to result o."""
    stretch = max(1 / scale, 1.0) if antialias else 1.0
    centre = (np.arange(size) + 0.5 - translation) / scale - 0.5
    w = kernel(np.abs(centre[:, None] - np.arange(n)) / stretch)
    sums = w.sum(1, keepdims=True)
    w = np.divide(w, sums, out=np.zeros_like(w), where=np.abs(sums) > 1e-3)
    return w * ((centre >= -0.5) & (centre <= n - 0.5))[:, None]


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("method", KERNELS)
def test_resize(method, antialias, rng):
    x = pictures(rng)
    for size in ((4, 15), (20, 3), (9, 7), (1, 1)):

        def resize(x, f, size=size):
            return image.resize(x, size, method, antialias, data_format=f)

        found = both_formats(resize, x)
        rows = weights(9, size[0], size[0] / 9, 0, KERNELS[method], antialias)
        columns = weights(7, size[1], size[1] / 7, 0, KERNELS[method], antialias)
        expected = np.einsum("nhwc,Hh,Ww->nHWc", x.astype(np.float64), rows, columns)
        assert relative(found, expected) < 1e-5


def test_resize_nearest(rng):
    x = pictures(rng)
    found = both_formats(lambda x, f: image.resize(x, (4, 15), "nearest", data_format=f), x)
    rows = np.floor((np.arange(4) + 0.5) * 9 / 4).astype(int)
    columns = np.floor((np.arange(15) + 0.5) * 7 / 15).astype(int)
    np.testing.assert_array_equal(found, x[:, rows][:, :, columns])
    assert image.resize((x * 255).astype("uint8"), (3, 3), "nearest").dtype == "uint8"


@pytest.mark.parametrize("method", ["lanczos3", "nearest"])
def test_resize_gradients(method, rng):
    def squared(x):
        return image.resize(x, (3, 9), method, True, data_format=LAST) ** 2

    check_gradients(squared, rng.standard_normal((1, 5, 6, 2)), rng=rng, order=2)


def test_resize_keeps_the_aspect_ratio(rng):
    x = pictures(rng, 8, 12, 3)
    cropped = image.resize(x, (4, 4), crop_to_aspect_ratio=True, data_format=LAST)
    expected = image.resize(x[:, 2:10], (4, 4), data_format=LAST)
    np.testing.assert_allclose(cropped.numpy(), expected.numpy(), atol=1e-6)
    padded = image.resize(x, (6, 6), pad_to_aspect_ratio=True, fill_value=0.5, data_format=LAST)
    wide = np.pad(x, [(2, 2), (0, 0), (0, 0)], constant_values=0.5)
    expected = image.resize(wide, (6, 6), data_format=LAST)
    np.testing.assert_allclose(padded.numpy(), expected.numpy(), atol=1e-6)
    for wrong in (
        {"interpolation": "area"}, {"fill_mode": "wrap"}, {"size": (3, 3, 3)},
        {"crop_to_aspect_ratio": True, "pad_to_aspect_ratio": True},
    ):  # fmt: skip
        with pytest.raises(ValueError):
            image.resize(x, **{"size": (4, 4)} | wrong)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("method", ["linear", "cubic", "lanczos3", "lanczos5"])
def test_scale_and_translate(method, antialias, rng):
    x = pictures(rng)
    scale, shift = np.array([0.6, 1.5], np.float32), np.array([-1.0, 2.0], np.float32)
    found = image.scale_and_translate(x, (2, 6, 14, 3), scale, shift, (1, 2), method, antialias)
    kernel = KERNELS[{"linear": "bilinear", "cubic": "bicubic"}.get(method, method)]
    rows = weights(9, 6, 0.6, -1.0, kernel, antialias)
    columns = weights(7, 14, 1.5, 2.0, kernel, antialias)
    expected = np.einsum("nhwc,Hh,Ww->nHWc", x.astype(np.float64), rows, columns)
    assert relative(found.numpy(), expected) < 1e-5


def test_scale_and_translate_gradients(rng):
    def move(x, scale, shift):
        return image.scale_and_translate(x, (1, 4, 9, 1), scale, shift, (1, 2), "cubic") ** 2

    check_gradients(
        move, rng.standard_normal((1, 5, 6, 1)), np.array([0.83, 1.47]), np.array([0.31, -0.42]),
        rng=rng,
    )  # fmt: skip


# -- warping
def outside(index, n, mode):
    """Where an index beyond the ends reads; None for nowhere."""
    if 0 <= index < n:
        return index
    if mode == "constant":
        return None
    if mode == "nearest":
        return min(max(index, 0), n - 1)
    if mode == "wrap":
        return index % n
    if mode == "mirror":
        period = 2 * (n - 1)
        index %= period
        return min(index, period - index)
    index %= 2 * n  # reflect
    return min(index, 2 * n - 1 - index)


def sample(x, row, column, order, mode, fill):
    """The value of x (height, width, …) at a fractional position."""
    if order == 0:
        places = [(math.floor(abs(p) + 0.5) * (1 if p >= 0 else -1), 1.0) for p in (row, column)]
        corners = [(places[0][0], places[1][0], 1.0)]
    else:
        r, c = math.floor(row), math.floor(column)
        corners = [
            (r + i, c + j, abs(1 - i - (row - r)) * abs(1 - j - (column - c)))
            for i in (0, 1)
            for j in (0, 1)
        ]
    total = 0.0
    for i, j, weight in corners:
        i, j = outside(i, x.shape[0], mode), outside(j, x.shape[1], mode)
        total = total + weight * (fill if i is None or j is None else x[i, j])
    return total


MODES = ["constant", "nearest", "wrap", "mirror", "reflect"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_affine_transform(interpolation, mode, rng):
    x = pictures(rng, 2, 6, 5, 2)
    transforms = np.array(
        [[1.1, 0.23, -1.3, 0.12, 0.9, 2.1, 0, 0], [0.8, -0.31, 3.3, 0.21, 1.2, -2.2, 0, 0]],
        np.float32,
    )
    found = both_formats(
        lambda x, f: image.affine_transform(x, transforms, interpolation, mode, 0.7, f), x
    )
    order = ["nearest", "bilinear"].index(interpolation)
    for n, (a0, a1, a2, b0, b1, b2, _, _) in enumerate(transforms.astype(np.float64)):
        for r in range(6):
            for c in range(5):
                row, column = b0 * c + b1 * r + b2, a0 * c + a1 * r + a2
                expected = sample(x[n].astype(np.float64), row, column, order, mode, 0.7)
                np.testing.assert_allclose(found[n, r, c], expected, atol=2e-5)
    alone = image.affine_transform(x[0], transforms[0], interpolation, mode, 0.7, LAST)
    np.testing.assert_allclose(alone.numpy(), found[0], atol=1e-6)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [0, 1])
def test_map_coordinates(order, mode, rng):
    x = rng.standard_normal((6, 5)).astype(np.float32)
    places = (rng.standard_normal((2, 4, 3)) * 5 + 2).astype(np.float32)
    found = image.map_coordinates(x, places, order, mode, 0.25).numpy()
    whole = image.map_coordinates((x * 50).astype("int32"), places, order, mode, 2)
    assert whole.dtype == "int32"
    for k in np.ndindex(4, 3):
        row, column = (float(p[k]) for p in places)
        expected = sample(x.astype(np.float64), row, column, order, mode, 0.25)
        assert abs(found[k] - expected) < 1e-4
        exact = sample((x * 50).astype("int32").astype(np.float64), row, column, order, mode, 2)
        assert abs(int(whole.numpy()[k]) - exact) <= 0.5 + 1e-3


def test_map_coordinates_in_other_ranks(rng):
    x = rng.standard_normal(7).astype(np.float32)
    found = image.map_coordinates(x, np.array([[0.5, 3.25, 6.0]], np.float32), 1).numpy()
    np.testing.assert_allclose(
        found, [(x[0] + x[1]) / 2, 0.75 * x[3] + 0.25 * x[4], x[6]], rtol=1e-5
    )
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    found = image.map_coordinates(x, np.array([[1.0], [2.5], [3.0]], np.float32), 1).numpy()
    np.testing.assert_allclose(found, [(x[1, 2, 3] + x[1, 3, 3]) / 2], rtol=1e-5)


def test_warping_gradients(rng):
    x = rng.standard_normal((1, 5, 6, 2))
    transform = np.array([[0.9, 0.1, 0.37, -0.2, 1.1, 0.41, 0, 0]])

    def warp(x, transform):
        return image.affine_transform(x, transform, "bilinear", "reflect", data_format=LAST) ** 2

    check_gradients(warp, x, transform, rng=rng)
    places = rng.uniform(0.1, 3.8, (2, 7))

    def pick(x, places):
        return image.map_coordinates(x, places, 1, "constant", 0.3) ** 2

    check_gradients(pick, rng.standard_normal((5, 6)), places, rng=rng)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_perspective(interpolation, rng):
    x = pictures(rng, 2, 8, 9, 2)
    start = np.array([[[0, 0], [8, 0], [0, 7], [8, 7]]] * 2, np.float32)
    end = start + rng.uniform(-1, 1, start.shape).astype(np.float32)
    matrix = image.compute_homography_matrix(start, end).numpy().astype(np.float64)
    assert matrix.shape == (2, 8)
    for n in range(2):
        h = np.append(matrix[n], 1).reshape(3, 3)
        for s, e in zip(start[n], end[n], strict=True):
            u, v, w = h @ [*e, 1]
            np.testing.assert_allclose([u / w, v / w], s, atol=1e-3)
    found = both_formats(
        lambda x, f: image.perspective_transform(x, start, end, interpolation, 0.4, f), x
    )
    order = ["nearest", "bilinear"].index(interpolation)
    wrong = 0
    for n, r, c in np.ndindex(2, 8, 9):
        u, v, w = np.append(matrix[n], 1).reshape(3, 3) @ [c, r, 1]
        expected = sample(x[n].astype(np.float64), v / w, u / w, order, "constant", 0.4)
        wrong += not np.allclose(found[n, r, c], expected, atol=1e-3)
    assert wrong <= (6 if order == 0 else 4)  # positions on an edge may fall on either side


def test_identity_warps(rng):
    x = pictures(rng)
    nothing = np.array([1, 0, 0, 0, 1, 0, 0, 0], np.float32)
    same = image.affine_transform(x, nothing, data_format=LAST)
    np.testing.assert_array_equal(same.numpy(), x)
    corners = np.array([[0, 0], [6, 0], [0, 8], [6, 8]], np.float32)
    same = image.perspective_transform(x, corners, corners, data_format=LAST)
    np.testing.assert_allclose(same.numpy(), x, atol=1e-4)


# -- filters
def filtered(x, kernel):
    """Cross-correlation with zeros outside, channels last."""
    kh, kw = kernel.shape
    top, left = (kh - 1) // 2, (kw - 1) // 2
    widths = [(0, 0), (top, kh - 1 - top), (left, kw - 1 - left), (0, 0)]
    wide = np.pad(x.astype(np.float64), widths)
    n, h, w, c = x.shape
    y = np.zeros((n, h, w, c))
    for i in range(kh):
        for j in range(kw):
            y += kernel[i, j] * wide[:, i : i + h, j : j + w]
    return y


def test_gaussian_blur(rng):
    x = pictures(rng)
    found = both_formats(lambda x, f: image.gaussian_blur(x, (5, 3), (1.5, 0.7), f), x)
    across = np.exp(-0.5 * (np.arange(-2, 3) / 1.5) ** 2)
    down = np.exp(-0.5 * (np.arange(-1, 2) / 0.7) ** 2)
    kernel = np.outer(down / down.sum(), across / across.sum())
    assert relative(found, filtered(x, kernel)) < 1e-5
    alone = image.gaussian_blur(x[0], (5, 3), (1.5, 0.7), LAST).numpy()
    np.testing.assert_allclose(alone, found[0], atol=1e-6)


def test_sobel(rng):
    x = pictures(rng)
    found = image.sobel_edges(x, LAST).numpy()
    kernel = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]])
    assert found.shape == (*x.shape, 2)
    assert relative(found[..., 0], filtered(x, kernel)) < 1e-5
    assert relative(found[..., 1], filtered(x, kernel.T)) < 1e-5
    first = image.sobel_edges(np.moveaxis(x, -1, 1), FIRST).numpy()
    np.testing.assert_allclose(np.moveaxis(first, 1, -2), found, atol=1e-5)


@pytest.mark.parametrize("data_format", [LAST, FIRST])
def test_elastic_transform(data_format, rng):
    # smooth displacements of a ramp move its values by about alpha times the noise
    ramp = np.broadcast_to(np.arange(32, dtype=np.float32)[:, None, None], (32, 32, 2))
    x = np.stack([ramp, ramp])
    x = x if data_format == LAST else np.ascontiguousarray(np.moveaxis(x, -1, 1))
    y = image.elastic_transform(x, 5.0, 2.0, seed=3, data_format=data_format)
    assert y.shape == x.shape and y.dtype == "float32"
    y = y.numpy() if data_format == LAST else np.moveaxis(y.numpy(), 1, -1)
    moved = y - np.stack([ramp, ramp])
    np.testing.assert_allclose(moved[..., 0], moved[..., 1], atol=1e-4)  # all channels alike
    assert not np.allclose(moved[0], moved[1])
    assert 0.1 < np.abs(moved[:, 8:-8]).mean() < 8
    again = image.elastic_transform(x, 5.0, 2.0, seed=3, data_format=data_format).numpy()
    again = again if data_format == LAST else np.moveaxis(again, 1, -1)
    np.testing.assert_array_equal(again, y)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: image.affine_transform(x, kc.ones((8,)), "bicubic"),
        lambda x: image.affine_transform(x, kc.ones((8,)), "nearest", "edge"),
        lambda x: image.affine_transform(x, kc.ones((1, 1, 8))),
        lambda x: image.perspective_transform(x, kc.ones((3, 2)), kc.ones((3, 2))),
        lambda x: image.perspective_transform(x, kc.ones((4, 2)), kc.ones((1, 4, 2))),
        lambda x: image.map_coordinates(x, kc.ones((2, 5)), 1),
        lambda x: image.map_coordinates(x, kc.ones((3, 5)), 2),
        lambda x: image.map_coordinates(x, kc.ones((3, 5)), 1, "edge"),
        lambda x: image.map_coordinates(x, kc.ones((3,)), 1),
        lambda x: image.elastic_transform(x, interpolation="bicubic"),
        lambda x: image.scale_and_translate(x, (4, 4, 3), [1.0], [0.0], (0,), "nearest"),
        lambda x: image.gaussian_blur(kc.ones((3,))),
    ],
)
def test_bad_arguments(call):
    with pytest.raises(ValueError):
        call(kc.ones((4, 4, 3)))
