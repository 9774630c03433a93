"""How long generated kernels get: parts of parts must not multiply."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.fuse import rules

SIZE, LEVELS, SCALES, RATIOS = 128, range(3, 8), 3, (0.5, 1.0, 2.0)
WEIGHTS = np.array([0.1, 0.1, 0.2, 0.2], "float32")


def boxes_of(m, level):
    """A level's anchors, as detectors make them: corners of boxes about each cell's centre."""
    stride = 2**level
    grid = (m.arange(SIZE // stride).astype("float32") + np.float32(0.5)) * np.float32(stride)
    y, x = m.meshgrid(grid, grid, indexing="ij")
    parts = []
    for scale in range(SCALES):
        for ratio in RATIOS:
            half = 2 * stride * 2 ** (scale / SCALES)
            h, w = np.float32(half * ratio**0.5), np.float32(half / ratio**0.5)
            parts.append(m.stack([y - h, x - w, y + h, x + w], -1))
    return m.reshape(m.stack(parts, 2), (-1, 4))


def anchors(m):
    return m.concatenate([boxes_of(m, level) for level in LEVELS], 0)


def centred(m, boxes):
    y0, x0, y1, x1 = m.split(boxes, 4, -1)
    return m.concatenate([(y0 + y1) / 2, (x0 + x1) / 2, y1 - y0, x1 - x0], -1)


def decoded(m, deltas):
    """Boxes from a detector's output, cut off at the image's edges."""
    about, deltas = centred(m, anchors(m)), deltas * WEIGHTS
    place = deltas[..., :2] * about[..., 2:] + about[..., :2]
    y, x, h, w = m.split(m.concatenate([place, m.exp(deltas[..., 2:]) * about[..., 2:]], -1), 4, -1)
    corners = m.split(m.concatenate([y - h / 2, x - w / 2, y + h / 2, x + w / 2], -1), 4, -1)
    return m.concatenate([m.minimum(m.maximum(c, 0), SIZE) for c in corners], -1)


def encoded(m, truth):
    """What a detector is trained on: for each anchor the nearest true box, relative to it."""
    a = m.split(m.expand_dims(anchors(m), 1), 4, -1)
    b = m.split(m.expand_dims(truth, 0), 4, -1)
    height = m.maximum(m.minimum(a[2], b[2]) - m.maximum(a[0], b[0]), 0)
    width = m.maximum(m.minimum(a[3], b[3]) - m.maximum(a[1], b[1]), 0)
    both = (height * width)[..., 0]
    area = [((v[2] - v[0]) * (v[3] - v[1]))[..., 0] for v in (a, b)]
    nearest = m.argmax(both / (area[0] + area[1] - both), -1)
    about, wanted = centred(m, anchors(m)), centred(m, m.take(truth, nearest, 0))
    place = (wanted[..., :2] - about[..., :2]) / about[..., 2:]
    return m.concatenate([place, m.log(wanted[..., 2:] / about[..., 2:])], -1) / WEIGHTS


def lines(launches) -> list[int]:
    made = [*launches["map_kernel"], *launches["reduction_kernels"]]
    return [x.source.text.count("\n") for x in made]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_a_detectors_boxes(rng, launches, captured):
    """Anchors of all levels, scales and shapes take a kernel for each level, and few lines."""
    count = anchors(np).shape[0]
    deltas = (rng.normal(size=(2, count, 4)) * 0.1).astype("float32")
    # neither ties nor boxes without area
    low = rng.uniform(0, SIZE / 2, (8, 2))
    truth = np.concatenate([low, low + rng.uniform(8, SIZE / 2, (8, 2))], -1).astype("float32")
    for function, x in ((decoded, deltas), (encoded, truth)):
        for made in launches.values():
            made.clear()
        run = kc.jit(lambda x, f=function: f(kc, x)) if captured else lambda x, f=function: f(kc, x)
        found = np.asarray(run(kc.array(x)))
        right = function(np, x.astype("float64"))
        assert np.abs(found - right).max() <= 1e-4 * np.abs(right).max()
        assert max(lines(launches)) <= rules.KERNEL_LIMIT
        assert sum(lines(launches)) <= 2000
        assert len(lines(launches)) <= len(LEVELS) + 5


def test_parts_of_parts(rng, launches):
    """Concatenations whose readers are concatenated again: text grows with their number only."""
    host = rng.normal(size=(8, 12)).astype("float32")

    def nested(m, x, depth):
        for _ in range(depth):
            parts = m.split(x, 4, -1)
            x = m.concatenate([parts[k] * 0.5 + parts[k - 1] for k in range(4)], -1)
        return x

    total = []
    for depth in (4, 8):
        for made in launches.values():
            made.clear()
        found = kc.jit(lambda x, depth=depth: nested(kc, x, depth))(kc.array(host))
        assert np.allclose(np.asarray(found), nested(np, host.astype("float64"), depth), atol=1e-5)
        total.append(sum(lines(launches)))
    assert total[1] <= 2.5 * total[0]


def test_many_values_over_one_space(rng, launches):
    """A cluster is as long as its limit at most."""
    x = kc.array(rng.normal(size=(64,)).astype("float32"))

    def function(x):
        values = []
        for k in range(40):
            y = x + k
            for _ in range(30):
                y = y * 0.5 + x
            values.append(y)
        return values

    found = kc.jit(function)(x)
    assert max(lines(launches)) <= 1.2 * rules.KERNEL_LIMIT
    host = np.asarray(x, "float64")
    for k, y in enumerate(found):
        right = (host + k) * 0.5**30 + host * 2 * (1 - 0.5**30)
        assert np.allclose(np.asarray(y), right, rtol=1e-5)


def test_folds_of_long_values(rng, as_gpu, launches):
    """Elements of a reduction are written out several times only where they are short."""
    as_gpu(1)
    host = rng.normal(size=(4, 4096)).astype("float32")

    def function(m, x):
        y = x
        for k in range(120):
            y = m.maximum(y * 0.9, x - k)
        return m.sum(y, 1)

    found = kc.jit(lambda x: function(kc, x))(kc.array(host))
    assert max(lines(launches)) <= 1.2 * rules.KERNEL_LIMIT
    right = function(np, host.astype("float64"))
    assert np.allclose(np.asarray(found), right, rtol=1e-5, atol=1e-2)
