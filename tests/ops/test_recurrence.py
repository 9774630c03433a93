"""Recurrences in one launch against loops in NumPy, and their derivatives against differences."""

import numpy as np
import pytest

import kerascl
from kerascl.ops import nn
from kerascl.ops.recurrence import recurrence
from kerascl.ops.recurrent import recurrent


def cell(x, z, states):
    """Two gates, two states, and a comparison; no derivative is zero everywhere."""
    gate = kerascl.sigmoid(x[0] + z[0])
    memory = gate * states[1] + (1 - gate) * kerascl.tanh(x[1] * z[1])
    return [kerascl.where(memory > 0, memory * gate, 0.5 * memory), memory]


def reference(x, h, m, w, b, mask, reverse, memories=None):
    """The outputs (time, batch, units), h and m, in float64; `memories` gets what is compared."""
    x, h, m, w = (a.astype("float64") for a in (x, h, m, w))
    units, outputs = h.shape[1], np.empty((*x.shape[:2], h.shape[1]))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        z = h @ w + (0 if b is None else b)
        gate = 1 / (1 + np.exp(-x[t, :, :units] - z[:, :units]))
        new = gate * m + (1 - gate) * np.tanh(x[t, :, units:] * z[:, units:])
        if memories is not None:
            memories.append(new)
        on = np.ones((len(h), 1), bool) if mask is None else mask[t, :, None]
        h = np.where(on, np.where(new > 0, new * gate, 0.5 * new), h)
        m = np.where(on, new, m)
        outputs[t] = h
    return outputs, h, m


def make(rng, length, batch, units, biased, masked):
    return [
        rng.normal(size=(length, batch, 2 * units)).astype("float32"),
        rng.normal(size=(batch, units)).astype("float32"),
        rng.normal(size=(batch, units)).astype("float32"),
        (rng.normal(size=(units, 2 * units)) / units**0.5).astype("float32"),
        rng.normal(size=2 * units).astype("float32") if biased else None,
        rng.uniform(size=(length, batch)) < 0.7 if masked else None,
    ]


def make_smooth(rng, *sizes):
    """Inputs for finite differences: no comparison of `cell` changes within a small step."""
    while True:
        made, memories = make(rng, *sizes), []
        reference(*made, False, memories)
        reference(*made, True, memories)
        if np.abs(memories).min() > 1e-2:
            return made


def make_rounded(rng, dtype, margin, *sizes):
    """Inputs that the dtype has; no comparison of `cell` is nearer than `margin`."""
    numpy = kerascl.dtypes.as_dtype(dtype).numpy
    while True:
        made, memories = [a.astype(numpy) for a in make(rng, *sizes, True, False)[:5]], []
        reference(*made, None, False, memories)
        if np.abs(memories).min() > margin:
            return made


SIZES = [(1, 1, 1), (4, 3, 5), (3, 19, 16), (6, 2, 70)]


@pytest.mark.every(3)
@pytest.mark.parametrize("length, batch, units", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biased, masked", [(False, True), (True, False)])
@pytest.mark.parametrize("route", [recurrence, recurrent])
def test_values(rng, length, batch, units, reverse, biased, masked, route):
    x, h, m, w, b, mask = make(rng, length, batch, units, biased, masked)
    arrays = [a if a is None else kerascl.array(a) for a in (w, b, mask)]
    found = route(cell, kerascl.array(x), [kerascl.array(h), kerascl.array(m)], *arrays, reverse)
    outputs, (last, memory) = found
    expected = reference(x, h, m, w, b, mask, reverse)
    for a, b in zip((outputs, last, memory), expected, strict=True):
        # a state near 0 is what is left of values near 1, which are rounded by 2**-25
        rounding = 2.0**-25 * np.sqrt(b.size)
        assert np.linalg.norm(a.numpy() - b) <= 1e-5 * np.linalg.norm(b) + rounding


def weighted(parts, weights):
    return sum((p * v).sum() for p, v in zip(parts, weights, strict=True))


@pytest.mark.every(3)
@pytest.mark.parametrize("length, batch, units", [(4, 3, 5), (3, 2, 16)])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biased, masked", [(False, True), (True, False)])
@pytest.mark.parametrize("outside", [False, True])
def test_gradients(rng, length, batch, units, reverse, biased, masked, outside):
    """Every input's, along a random direction; with and without a gradient of the outputs."""
    *smooth, mask = make_smooth(rng, length, batch, units, biased, masked)
    weights = [rng.normal(size=(length, batch, units)) * outside]
    weights += [rng.normal(size=(batch, units)) for _ in range(2)]
    arrays = [None if a is None else kerascl.array(a) for a in smooth]
    valid = None if mask is None else kerascl.array(mask)
    with kerascl.GradientTape() as tape:
        outputs, final = recurrence(
            cell, arrays[0], arrays[1:3], arrays[3], arrays[4], valid, reverse
        )
        parts = [outputs, *final] if outside else final
        used = weights if outside else weights[1:]
        loss = sum(kerascl.sum(p * w.astype("float32")) for p, w in zip(parts, used, strict=True))
    sources = [k for k, a in enumerate(smooth) if a is not None]
    grads = tape.gradient(loss, [arrays[k] for k in sources])
    for k, g in zip(sources, grads, strict=True):
        direction = rng.normal(size=smooth[k].shape)
        ends = []
        for sign in (1e-6, -1e-6):
            moved = list(smooth)
            moved[k] = smooth[k].astype("float64") + sign * direction
            ends.append(weighted(reference(*moved, mask, reverse), weights))
        expected = (ends[0] - ends[1]) / 2e-6
        size = np.linalg.norm(g.numpy()) * np.linalg.norm(direction)
        assert abs((g.numpy() * direction).sum() - expected) <= 1e-4 * size


def test_float64(rng, dev):
    if not dev.info.fp64:
        pytest.skip("the device has no double precision")
    x, h, m, w, b, mask = make(rng, 5, 3, 7, True, True)
    wide = [kerascl.array(a.astype("float64")) for a in (x, h, m, w, b)]
    outputs, final = recurrence(cell, wide[0], wide[1:3], *wide[3:], kerascl.array(mask))
    for a, e in zip((outputs, *final), reference(x, h, m, w, b, mask, False), strict=True):
        np.testing.assert_allclose(a.numpy(), e, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 2**-7), ("float16", 2**-10)])
def test_half_precision(rng, dtype, tolerance):
    """As near to float64, on the rounded inputs, as one rounding of each result allows."""
    rounded = [kerascl.array(a) for a in make_rounded(rng, dtype, 4 * tolerance, 4, 2, 8)]
    plain = [a.astype("float32").numpy() for a in rounded]
    with kerascl.GradientTape() as tape:
        outputs, final = recurrence(cell, rounded[0], rounded[1:3], *rounded[3:])
        loss = kerascl.sum(final[0].astype("float32"))
    expected = reference(*plain, None, False)
    for a, e in zip((outputs, *final), expected, strict=True):
        assert a.dtype.name == dtype
        found = a.astype("float32").numpy()
        assert np.linalg.norm(found - e) <= tolerance * np.linalg.norm(e)
    wide = [kerascl.array(a) for a in plain]
    with kerascl.GradientTape() as exact:
        _, final = recurrence(cell, wide[0], wide[1:3], *wide[3:])
        total = kerascl.sum(final[0])
    pairs = zip(tape.gradient(loss, rounded), exact.gradient(total, wide), strict=True)
    for a, e in pairs:
        found, e = a.astype("float32").numpy(), e.numpy()
        assert np.linalg.norm(found - e) <= 2 * tolerance * np.linalg.norm(e)


def test_what_it_does_not_serve(rng):
    """Cells that mix units, cells that read other arrays, and large weights go to the loop."""
    x, h, m, w, *_ = map(kerascl.array, make(rng, 3, 2, 4, True, True))
    scale = kerascl.array(rng.normal(size=(2, 4)).astype("float32"))
    state = kerascl.State(kerascl.array(np.full((2, 4), 2, "float32")))
    cells = {
        "softmax": lambda x, z, s: [nn.softmax(x[0] + z[0]), s[1]],
        "flip": lambda x, z, s: [kerascl.flip(x[0] + z[0], -1), s[1]],
        "array": lambda x, z, s: [x[0] + z[0] * scale, s[1]],
        "state": lambda x, z, s: [x[0] + z[0] * state.value, s[1]],
    }
    for name, one in cells.items():
        assert recurrence(one, x, [h, m], w) is None, name
        outputs, _ = recurrent(one, x, [h, m], w)
        want = one([x[0, :, :4], x[0, :, 4:]], kerascl.split(h @ w, 2, -1), [h, m])[0]
        np.testing.assert_allclose(outputs[0].numpy(), want.numpy(), rtol=1e-4, atol=1e-6)
    large = kerascl.zeros((600, 1200))
    assert (
        recurrence(cell, kerascl.zeros((1, 1, 1200)), [kerascl.zeros((1, 600))] * 2, large) is None
    )


def test_second_derivative(rng):
    """Two tapes take the loop, whose derivative has one too."""
    x, h, m, w, *_ = make_smooth(rng, 3, 2, 4, False, False)
    direction = rng.normal(size=w.shape).astype("float32")

    def slope(w):
        def loss(w):
            outputs, _ = recurrent(cell, kerascl.array(x), [kerascl.array(h), kerascl.array(m)], w)
            return kerascl.sum(outputs * outputs)

        return kerascl.sum(kerascl.grad(loss)(w) * direction)

    found = kerascl.grad(slope)(kerascl.array(w)).numpy()

    def value(w):
        return (reference(x, h, m, w, None, None, False)[0] ** 2).sum()

    other, e = rng.normal(size=w.shape), 1e-4
    corners = [
        i * j * value(w.astype("float64") + e * (i * direction + j * other))
        for i in (1, -1)
        for j in (1, -1)
    ]
    expected = sum(corners) / (4 * e * e)
    size = np.linalg.norm(found) * np.linalg.norm(other)
    assert abs((found * other).sum() - expected) <= 1e-3 * size
