"""Convolutions against direct sums in float64."""

import itertools

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import convolution
from tests.ops.slopes import check_gradients, relative


def reference(x, w, strides, pads, dilation, groups):
    """Sum over taps, channels last, in float64."""
    x = np.pad(np.asarray(x, np.float64), [(0, 0), *pads, (0, 0)])
    w = np.asarray(w, np.float64)
    *kernel, depth, filters = w.shape
    counts = [
        (n - ((k - 1) * d + 1)) // s + 1
        for n, k, d, s in zip(x.shape[1:-1], kernel, dilation, strides)
    ]
    y = np.zeros((x.shape[0], *counts, filters))
    part = filters // groups
    for tap in itertools.product(*[range(k) for k in kernel]):
        reads = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, dilation, counts, strides)
        )
        seen = x[(slice(None), *reads)]
        for g in range(groups):
            y[..., g * part : (g + 1) * part] += (
                seen[..., g * depth : (g + 1) * depth] @ w[tap][:, g * part : (g + 1) * part]
            )
    return y


def place(x, first):
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if first else x


# sizes, channels, filters, kernel, strides, padding, dilation, groups
CASES = [
    ((9,), 4, 6, (3,), (2,), "same", (1,), 1),
    ((8,), 3, 5, (4,), (1,), "valid", (2,), 1),
    ((9, 8), 4, 6, (3, 2), (2, 1), "same", (1, 2), 2),
    ((7, 6), 5, 3, (1, 1), (2, 3), "same", (1, 1), 1),
    ((6, 7), 3, 4, (5, 5), (3, 3), ((2, 1), (0, 3)), (1, 1), 1),
    ((9, 8), 4, 8, (3, 3), (1, 1), "same", (1, 1), 4),
    ((5, 6, 7), 4, 6, (3, 2, 3), (1, 2, 1), "valid", (1, 1, 2), 1),
    ((4, 5, 4), 2, 4, (2, 2, 2), (2, 2, 2), "same", (1, 1, 1), 2),
]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_conv_and_gradients(case, first, rng):
    sizes, channels, filters, kernel, strides, padding, dilation, groups = case
    x = rng.standard_normal((2, *sizes, channels)).astype(np.float32)
    w = rng.standard_normal((*kernel, channels // groups, filters)).astype(np.float32)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    pads = convolution.window_pads(padding, sizes, extents, strides)
    expected = reference(x, w, strides, pads, dilation, groups)
    xa, wa = kc.array(place(x, first)), kc.array(w)
    with kc.GradientTape() as tape:
        y = convolution.conv(xa, wa, strides, padding, dilation, first)
    assert relative(y.numpy(), place(expected, first)) < 1e-6
    g = rng.standard_normal(y.shape).astype(np.float32)
    dx, dw = tape.gradient(y, [xa, wa], kc.array(g))
    # convolution is linear in each argument: <g, conv(u, w)> == <dx, u>
    u, v = rng.standard_normal(x.shape), rng.standard_normal(w.shape)
    g64 = np.moveaxis(g, 1, -1) if first else g
    along_x = (g64 * reference(u, w, strides, pads, dilation, groups)).sum()
    along_w = (g64 * reference(x, v, strides, pads, dilation, groups)).sum()
    size = np.linalg.norm(g) * np.linalg.norm(expected)
    assert abs((dx.numpy() * place(u, first)).sum() - along_x) < 1e-5 * size
    assert abs((dw.numpy() * v).sum() - along_w) < 1e-5 * size


def test_second_derivatives(rng):
    x, w = rng.standard_normal((2, 5, 6, 2)), rng.standard_normal((3, 2, 2, 3))

    def cubed(x, w):
        y = convolution.conv(x, w, 2, "same")
        return y * y * y

    check_gradients(cubed, x, w, rng=rng, order=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_sums_in_float(dtype, rng):
    x = kc.array(rng.standard_normal((2, 8, 8, 64)).astype(np.float32), dtype)
    w = kc.array(rng.standard_normal((3, 3, 64, 16)).astype(np.float32), dtype)
    y = convolution.conv(x, w, 1, "same")
    assert y.dtype == dtype
    expected = reference(
        x.numpy().astype(np.float64), w.numpy().astype(np.float64), (1, 1), [(1, 1)] * 2, (1, 1), 1
    )
    # one rounding of the result
    assert relative(y.numpy(), expected) < {"float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dilation", [1, 2])
def test_depthwise(first, dilation, rng):
    x = rng.standard_normal((2, 9, 8, 3)).astype(np.float32)
    w = rng.standard_normal((3, 2, 3, 2)).astype(np.float32)
    y = convolution.depthwise_conv(place(x, first), w, 2, "valid", dilation, first).numpy()
    y = np.moveaxis(y, 1, -1) if first else y
    for c in range(3):
        for m in range(2):
            alone = reference(
                x[..., c : c + 1], w[:, :, c : c + 1, m : m + 1], (2, 2), [(0, 0)] * 2,
                (dilation, dilation), 1,
            )  # fmt: skip
            assert relative(y[..., 2 * c + m : 2 * c + m + 1], alone) < 1e-6


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(
    ("strides", "dilation", "pads"),
    [((1, 1), (1, 1), ((2, 2), (1, 1))), ((2, 3), (1, 1), ((2, 2), (1, 3))),
     ((2, 1), (2, 1), ((3, 1), (0, 0)))],
)  # fmt: skip
def test_transpose(strides, dilation, pads, first, rng):
    x = rng.standard_normal((2, 4, 5, 3)).astype(np.float32)
    w = rng.standard_normal((3, 2, 4, 3)).astype(np.float32)  # (*kernel, filters, channels)
    y = convolution.conv_transpose(place(x, first), w, strides, pads, dilation, first)
    # the definition: zeros between the elements, then a convolution with the mirrored kernel
    spread = np.zeros((2, *[(n - 1) * s + 1 for n, s in zip((4, 5), strides)], 3))
    spread[:, :: strides[0], :: strides[1]] = x
    mirrored = np.swapaxes(w[::-1, ::-1], 2, 3)
    expected = reference(spread, mirrored, (1, 1), pads, dilation, 1)
    assert relative(y.numpy(), place(expected, first)) < 1e-6


def test_transpose_gradients(rng):
    x, w = rng.standard_normal((1, 3, 4, 2)), rng.standard_normal((3, 3, 3, 2))

    def squared(x, w):
        y = convolution.conv_transpose(x, w, 2, ((1, 2), (1, 2)))
        return y * y

    check_gradients(squared, x, w, rng=rng, order=2)


def test_same_padding_puts_the_odd_element_last():
    assert convolution.window_pads("same", (5, 6), (2, 3), (1, 2)) == ((0, 1), (0, 1))
    assert convolution.window_pads("SAME", (4,), (1,), (3,)) == ((0, 0),)


def test_empty_results():
    x, w = kc.ones((2, 2, 2, 1)), kc.ones((3, 3, 1, 4))
    assert convolution.conv(x, w).shape == (2, 0, 0, 4)


@pytest.mark.parametrize(
    ("x", "w", "message"),
    [
        ((1, 4, 4, 3), (3, 3, 2, 4), "groups"),
        ((1, 4, 4, 4), (3, 3, 2, 3), "groups"),
        ((1, 4, 4, 3), (3, 3, 4), "does not fit"),
        ((4, 3), (3, 3, 4), "spatial dimensions"),
    ],
)
def test_shapes_that_do_not_fit(x, w, message):
    with pytest.raises(ValueError, match=message):
        convolution.conv(kc.ones(x), kc.ones(w))


def test_bad_arguments():
    x, w = kc.ones((1, 4, 4, 3)), kc.ones((3, 3, 3, 2))
    for wrong in ({"strides": 0}, {"strides": (1, 2, 3)}, {"padding": "full"}, {"dilation": -1}):
        with pytest.raises(ValueError):
            convolution.conv(x, w, **wrong)
