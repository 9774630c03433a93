"""Convolutions against direct sums in float64."""

import itertools

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import convolution, nn
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


def reference_gradients(x, w, g, strides, pads):
    """Of sum(g * reference(x, w)) by x and w, one group and no dilation."""
    padded = np.pad(x.astype(np.float64), [(0, 0), *pads, (0, 0)])
    dx, dw = np.zeros_like(padded), np.zeros(w.shape)
    for tap in itertools.product(*[range(k) for k in w.shape[:-2]]):
        reads = tuple(
            slice(t, t + (n - 1) * s + 1, s) for t, n, s in zip(tap, g.shape[1:-1], strides)
        )
        dx[(slice(None), *reads)] += g @ w[tap].T
        dw[tap] = np.tensordot(padded[(slice(None), *reads)], g, (range(g.ndim - 1),) * 2)
    inside = tuple(slice(low, low + n) for (low, _), n in zip(pads, x.shape[1:-1]))
    return dx[(slice(None), *inside)], dw


# sizes, channels, filters, kernel, stride
LAYERS = [
    ((19, 22), 3, 32, 7, 2), ((12, 11), 32, 40, 3, 1), ((10, 9), 24, 64, 3, 2),
    ((9, 10), 16, 24, 5, 1), ((8, 9), 64, 32, 1, 1), ((9, 8), 32, 48, 1, 2),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_as_networks_have_them(layer, dtype, rng):
    """Numbers of channels that matrix units take, a bias and relu behind, and both gradients."""
    sizes, channels, filters, kernel, stride = layer
    shapes = (2, *sizes, channels), (kernel, kernel, channels, filters), (filters,)
    x, w, b = (kc.array(rng.standard_normal(s), dtype) for s in shapes)
    x64, w64, b64 = (a.numpy().astype(np.float64) for a in (x, w, b))
    strides, kernels = (stride, stride), (kernel, kernel)
    pads = convolution.window_pads("same", sizes, kernels, strides)
    plain = reference(x64, w64, strides, pads, (1, 1), 1)
    with kc.GradientTape() as tape:
        z = convolution.conv(x, w, stride, "same")
        y = nn.relu(z + b)
    g = kc.array(rng.standard_normal(y.shape), dtype)
    dx, dw = tape.gradient(y, [x, w], g)
    # what is cut off, is cut off of the rounded sum
    live = np.where(y.numpy() > 0, g.numpy().astype(np.float64), 0)
    close = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    assert relative(y.numpy(), np.maximum(plain + b64, 0)) < close
    for got, want in zip((dx, dw), reference_gradients(x64, w64, live, strides, pads)):
        assert relative(got.numpy(), want) < close


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
