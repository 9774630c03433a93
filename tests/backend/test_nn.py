"""What `keras.ops.nn` adds to the array operations: layouts, CTC, blocks, checks."""

import itertools
import math

import numpy as np
import pytest
from keras.src import backend

import kerascl as kc
from tests.ops.slopes import check_gradients, relative

nn = backend.nn

NAMES = [
    "adaptive_average_pool", "adaptive_max_pool", "average_pool", "batch_normalization",
    "binary_crossentropy", "categorical_crossentropy", "celu", "conv", "conv_transpose",
    "ctc_decode", "ctc_loss", "depth_to_space", "depthwise_conv", "dot_product_attention", "elu",
    "fold", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_tanh", "leaky_relu",
    "log_sigmoid", "log_softmax", "max_pool", "moments", "multi_hot", "one_hot", "psnr", "relu",
    "relu6", "selu", "separable_conv", "sigmoid", "silu", "soft_shrink", "softmax", "softplus",
    "softsign", "space_to_depth", "sparse_categorical_crossentropy", "sparse_plus",
    "sparse_sigmoid", "sparsemax", "squareplus", "tanh", "tanh_shrink", "threshold", "unfold",
]  # fmt: skip


def test_every_name_is_there():
    assert [name for name in NAMES if not callable(getattr(nn, name, None))] == []


# -- layouts
@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_convolutions_follow_the_data_format(data_format, rng):
    x = rng.standard_normal((2, 7, 6, 4)).astype(np.float32)
    kernel = rng.standard_normal((3, 3, 4, 5)).astype(np.float32)
    single = rng.standard_normal((3, 3, 4, 2)).astype(np.float32)
    mix = rng.standard_normal((1, 1, 8, 3)).astype(np.float32)
    back = rng.standard_normal((3, 3, 5, 4)).astype(np.float32)
    calls = [
        lambda x, f: nn.conv(x, kernel, 2, "same", f),
        lambda x, f: nn.depthwise_conv(x, single, 1, "valid", f, 2),
        lambda x, f: nn.separable_conv(x, single, mix, 2, "same", f),
        lambda x, f: nn.conv_transpose(x, back, 2, "same", None, f),
        lambda x, f: nn.max_pool(x, 2, None, "valid", f),
        lambda x, f: nn.average_pool(x, 3, 2, "same", f),
        lambda x, f: nn.adaptive_max_pool(x, (3, 4), f),
        lambda x, f: nn.adaptive_average_pool(x, 3, f),
    ]
    for call in calls:
        expected = call(x, "channels_last").numpy()
        if data_format == "channels_first":
            found = np.moveaxis(call(np.moveaxis(x, -1, 1), data_format).numpy(), 1, -1)
            assert relative(found, expected) < 1e-6
        else:
            assert expected.ndim == 4


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_transposed_sizes(size, stride):
    """As Keras documents them: n * stride (same), (n - 1) * stride + max(size, stride) (valid)."""
    x, kernel = kc.ones((1, 5, 1)), kc.ones((size, 2, 1))
    same = nn.conv_transpose(x, kernel, stride, "same", data_format="channels_last")
    valid = nn.conv_transpose(x, kernel, stride, "valid", data_format="channels_last")
    assert same.shape == (1, 5 * stride, 2)
    assert valid.shape == (1, 4 * stride + max(size, stride), 2)
    # every element of x is spread over `size` results
    np.testing.assert_allclose(valid.numpy().sum(), 5 * size * 2)


def test_conv_casts_inputs_to_the_kernel():
    x, kernel = np.ones((1, 4, 1)), np.ones((2, 1, 1), np.float32)
    assert nn.conv(x, kernel, data_format="channels_last").dtype == "float32"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.conv(np.ones((1, 4, 3)), np.ones((2, 2, 4), "float32")), "evenly divisible"),
        (lambda: nn.conv(np.ones((1, 2, 3)), np.ones((3, 3, 4), "float32")), "empty output"),
        (lambda: nn.depthwise_conv(kc.ones((1, 4, 3)), kc.ones((2, 2, 1))), "must match"),
        (lambda: nn.conv_transpose(kc.ones((1, 4, 3)), kc.ones((2, 2, 1))), "must match"),
        (lambda: nn.max_pool(kc.ones((1, 4, 3)), 2, padding="full"), "padding"),
        (lambda: nn.categorical_crossentropy(kc.ones((2, 3)), kc.ones((3, 2))), "same shape"),
        (lambda: nn.categorical_crossentropy(1.0, 1.0), "rank 1"),
        (lambda: nn.sparse_categorical_crossentropy([1], kc.ones((3, 2))), "same shape"),
        (lambda: nn.binary_crossentropy(kc.ones((2, 3)), kc.ones((3, 2))), "same shape"),
        (lambda: nn.dot_product_attention(*[kc.ones((2, 3))] * 3), "4D"),
        (lambda: nn.psnr(kc.ones((2,)), kc.ones((3,)), 1), "must match"),
        (lambda: nn.ctc_decode(kc.ones((1, 2, 3)), [2], "best"), "strategy"),
        (lambda: nn.fold(kc.ones((1, 8, 5)), 4, 2), "do not fit"),
    ],
)
def test_messages(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- smaller operations
def test_sparsemax(rng):
    x = (rng.standard_normal((5, 8)) * 2).astype(np.float32)
    found = nn.sparsemax(x).numpy()
    # the projection onto the simplex is x - t, cut at 0, with the t that makes the sum 1
    for row, expected in zip(x.astype(np.float64), found, strict=True):
        low, high = row.min() - 1, row.max()
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if np.maximum(row - middle, 0).sum() > 1 else (low, middle)
        np.testing.assert_allclose(np.maximum(row - low, 0), expected, atol=1e-6)
    np.testing.assert_allclose(nn.sparsemax(x.T, 0).numpy(), found.T, atol=1e-6)
    check_gradients(nn.sparsemax, rng.standard_normal((3, 5)), rng=rng)
    with pytest.raises(TypeError, match="complex64"):
        nn.sparsemax(x.astype(np.complex64))


def test_psnr(rng):
    a, b = rng.random((2, 3, 4)).astype(np.float32)
    expected = 20 * math.log10(255) - 10 * math.log10(np.mean((a - b).astype(np.float64) ** 2))
    np.testing.assert_allclose(float(nn.psnr(a, b, 255)), expected, rtol=1e-5)


def test_moments_of_lists_of_axes(rng):
    x = rng.standard_normal((4, 5, 6)).astype(np.float32)
    mean, variance = nn.moments(x, [0, -1], keepdims=True)
    np.testing.assert_allclose(mean.numpy(), x.mean((0, 2), keepdims=True), atol=1e-6)
    np.testing.assert_allclose(variance.numpy(), x.var((0, 2), keepdims=True), rtol=1e-5)
    with pytest.raises(NotImplementedError):
        nn.moments(x, [0], synchronized=True)


@pytest.mark.parametrize("attrs", [(3, 1, 0, 1), ((3, 2), (2, 1), (1, 0), (2, 3)), (2, 1, 1, 2)])
def test_unfold_and_fold(attrs, rng):
    kernel, dilation, padding, stride = attrs
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (
        (v, v) if isinstance(v, int) else v for v in attrs
    )
    x = rng.standard_normal((2, 3, 9, 8)).astype(np.float32)
    wide = np.pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)])
    oh = (wide.shape[2] - dh * (kh - 1) - 1) // sh + 1
    ow = (wide.shape[3] - dw * (kw - 1) - 1) // sw + 1
    columns = np.empty((2, 3, kh, kw, oh, ow), np.float32)
    back = np.zeros_like(wide)
    for i, j, p, q in itertools.product(range(kh), range(kw), range(oh), range(ow)):
        row, column = p * sh + i * dh, q * sw + j * dw
        columns[:, :, i, j, p, q] = wide[:, :, row, column]
        back[:, :, row, column] += columns[:, :, i, j, p, q]
    columns = columns.reshape(2, 3 * kh * kw, oh * ow)
    back = back[:, :, ph : ph + 9, pw : pw + 8]
    np.testing.assert_array_equal(nn.unfold(x, kernel, dilation, padding, stride).numpy(), columns)
    merged = nn.fold(columns, (9, 8), kernel, dilation, padding, stride)
    np.testing.assert_allclose(merged.numpy(), back, rtol=1e-5, atol=1e-5)
    check_gradients(lambda x: nn.unfold(x, *attrs) ** 2, x, rng=rng)
    check_gradients(lambda x: nn.fold(x, (9, 8), *attrs) ** 2, columns, rng=rng)


@pytest.mark.parametrize("data_format", ["channels_last", "channels_first"])
def test_depth_and_space(data_format, rng):
    x = rng.standard_normal((2, 3, 4, 8)).astype(np.float32)
    expected = np.empty((2, 6, 8, 2), np.float32)
    for i, j, c in itertools.product(range(2), range(2), range(2)):
        # channels_first counts a channel's block elements first
        channel = (i * 2 + j) * 2 + c if data_format == "channels_last" else c * 4 + i * 2 + j
        expected[:, i::2, j::2, c] = x[..., channel]
    if data_format == "channels_first":
        x, expected = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, expected))
    found = nn.depth_to_space(x, 2, data_format)
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_array_equal(nn.space_to_depth(found, 2, data_format).numpy(), x)


# -- CTC
def _collapse(path, blank):
    labels = [k for k, _ in itertools.groupby(path)]
    return tuple(k for k in labels if k != blank)


def _log_softmax(x):
    x = x.astype(np.float64)
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def _label_probabilities(log_p, blank):
    """Every label sequence with its probability, by enumerating all alignments."""
    found: dict[tuple, float] = {}
    steps, classes = log_p.shape
    for path in itertools.product(range(classes), repeat=steps):
        labels = _collapse(path, blank)
        p = math.exp(sum(log_p[t, k] for t, k in enumerate(path)))
        found[labels] = found.get(labels, 0.0) + p
    return found


@pytest.mark.parametrize("blank", [0, 2])
def test_ctc_loss_sums_all_alignments(blank, rng):
    logits = (rng.standard_normal((4, 5, 3)) * 2).astype(np.float32)
    others = [k for k in range(3) if k != blank]
    a, b = others
    targets = np.array([[a, b, a], [a, a, b], [b, 0, 0], [0, 0, 0]])
    lengths, steps = np.array([3, 3, 1, 0]), np.array([5, 5, 4, 2])
    found = nn.ctc_loss(targets, logits, lengths, steps, blank).numpy()
    for row in range(4):
        chances = _label_probabilities(_log_softmax(logits[row, : steps[row]]), blank)
        expected = -math.log(chances[tuple(targets[row, : lengths[row]].tolist())])
        assert abs(found[row] - expected) < 1e-4 * max(1, expected)


def test_ctc_loss_of_impossible_targets_is_huge():
    logits = np.zeros((1, 2, 3), np.float32)
    loss = nn.ctc_loss(np.array([[1, 1]]), logits, np.array([2]), np.array([2])).numpy()
    assert loss[0] > 1e4


def test_ctc_gradients(rng):
    targets, lengths, steps = np.array([[1, 1], [2, 0]]), np.array([2, 1]), np.array([5, 3])
    check_gradients(
        lambda x: nn.ctc_loss(targets, x, lengths, steps), rng.standard_normal((2, 5, 3)), rng=rng
    )


@pytest.mark.parametrize("merge", [True, False])
def test_ctc_greedy(merge, rng):
    logits = rng.standard_normal((3, 9, 4)).astype(np.float32)
    steps = np.array([9, 5, 0])
    (paths,), scores = nn.ctc_decode(logits, steps, merge_repeated=merge, mask_index=1)
    for row in range(3):
        best = logits[row, : steps[row]].argmax(-1).tolist()
        labels = _collapse(best, 1) if merge else tuple(k for k in best if k != 1)
        expected = list(labels) + [-1] * (9 - len(labels))
        assert paths[row].tolist() == expected
        total = -logits[row, : steps[row]].max(-1).sum() if steps[row] else 0
        np.testing.assert_allclose(float(scores[row, 0]), total, rtol=1e-5, atol=1e-6)


def test_ctc_beam_search_is_exact_with_enough_beams(rng):
    logits = (rng.standard_normal((2, 5, 3)) * 2).astype(np.float32)
    steps = np.array([5, 3])
    paths, scores = nn.ctc_decode(logits, steps, "beam_search", 300, 4, mask_index=2)
    assert paths.shape == (4, 2, 5) and scores.shape == (2, 4)
    for row in range(2):
        chances = _label_probabilities(_log_softmax(logits[row, : steps[row]]), 2)
        best = sorted(chances.items(), key=lambda item: -item[1])[:4]
        for place, (labels, p) in enumerate(best):
            assert paths[place, row].tolist() == list(labels) + [-1] * (5 - len(labels))
            assert abs(float(scores[row, place]) - math.log(p)) < 1e-4


def test_ctc_beam_search_with_few_beams(rng):
    logits = (rng.standard_normal((2, 30, 6)) * 3).astype(np.float32)
    paths, scores = nn.ctc_decode(logits, [30, 20], "beam_search", 5, 2, mask_index=0)
    for row, steps in enumerate((30, 20)):
        for place in range(2):
            labels = [k for k in paths[place, row].tolist() if k >= 0]
            loss = nn.ctc_loss(
                np.array([labels]), logits[row : row + 1], [len(labels)], [steps]
            )
            # a beam's score leaves out alignments that were cut on the way
            assert float(scores[row, place]) <= -float(loss[0]) + 1e-3
        assert float(scores[row, 0]) >= float(scores[row, 1])
