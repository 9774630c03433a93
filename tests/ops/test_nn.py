"""Activations, softmax, losses, normalisation and attention against NumPy in float64."""

import math

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import attention, nn
from kerascl.runtime import device
from tests.ops.slopes import check_gradients, relative

erf = np.vectorize(math.erf)


def _sigmoid(x):
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "softplus": _softplus,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "selu": lambda x: (
        1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))
    ),
    "celu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.2 * x),
    "log_sigmoid": lambda x: -_softplus(-x),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "hard_sigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hard_silu": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_tanh": lambda x: np.clip(x, -1, 1),
    "tanh_shrink": lambda x: x - np.tanh(x),
    "hard_shrink": lambda x: np.where(np.abs(x) > 0.5, x, 0),
    "soft_shrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - 0.5, 0),
    "sparse_plus": lambda x: np.where(x <= -1, 0, np.where(x >= 1, x, (x + 1) ** 2 / 4)),
    "sparse_sigmoid": lambda x: np.clip((x + 1) / 2, 0, 1),
    "squareplus": lambda x: (x + np.sqrt(x * x + 4)) / 2,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name, rng):
    x = np.concatenate([
        rng.standard_normal(200) * 4, [0, 1, -1, 3, -3, 0.5, -0.5, 6, 20, -20, 87, -87]
    ]).astype(np.float32)  # fmt: skip
    y = getattr(nn, name)(x).numpy()
    assert y.dtype == np.float32
    expected = ACTIVATIONS[name](x.astype(np.float64))
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    away = np.array([-7.0, -2.3, -0.7, -0.2, 0.3, 0.8, 2.2, 7.0]) + rng.uniform(-0.1, 0.1, 8)
    check_gradients(getattr(nn, name), away, rng=rng, order=2)


@pytest.mark.parametrize("name", ["relu", "softplus", "silu", "gelu", "elu", "log_sigmoid"])
def test_activation_limits(name):
    y = getattr(nn, name)(np.array([np.inf, -np.inf, np.nan, 200, -200], np.float32)).numpy()
    with np.errstate(all="ignore"):
        large = ACTIVATIONS[name](np.array([200.0, -200.0]))
    assert np.isnan(y[2])
    np.testing.assert_allclose(y[3:], large, rtol=1e-5, atol=1e-6)
    if name != "log_sigmoid":
        assert y[0] == np.inf


def test_relu_gradient_at_zero_and_of_integers():
    x = kc.array(np.zeros(3, np.float32))
    with kc.GradientTape() as tape:
        y = nn.relu(x)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), 0)
    assert nn.relu(kc.array([-1, 2], "int32")).tolist() == [0, 2]


def test_exact_gelu(rng):
    """Every value, those that almost vanish too, and the slope; where float32 underflows, zeros."""
    x = np.concatenate([rng.standard_normal(3000) * 4, rng.uniform(-13, 13, 3000), np.zeros(1)])
    x = x[np.abs(x) < 13].astype(np.float32)
    x64 = x.astype(np.float64)
    below = 0.5 * np.vectorize(math.erfc)(-x64 / math.sqrt(2))
    density = np.exp(-0.5 * x64**2) / math.sqrt(2 * math.pi)
    np.testing.assert_allclose(nn.gelu(x, False).numpy(), x64 * below, rtol=8e-7, atol=1e-37)
    np.testing.assert_allclose(nn.normal_cdf(x).numpy(), below, rtol=8e-7, atol=1e-37)
    inputs = kc.array(x)
    with kc.GradientTape() as tape:
        y = nn.gelu(inputs, False)
    slope = tape.gradient(y, inputs).numpy()
    terms = below + np.abs(x64) * density  # of both signs
    assert (np.abs(slope - below - x64 * density) <= 8e-7 * terms + 1e-37).all()
    far = kc.array([np.nan, np.inf, -np.inf, 20, -20, 1e30, -1e30], "float32")
    np.testing.assert_array_equal(nn.normal_cdf(far).numpy(), [np.nan, 1, 0, 1, 0, 1, 0])
    np.testing.assert_array_equal(nn.gelu(far[3:], False).numpy(), np.float32([20, 0, 1e30, 0]))
    check_gradients(lambda x: nn.gelu(x, False), x[:8], rng=rng, order=2)


def test_elu_near_zero_and_far_below(rng):
    x = np.concatenate([-(10.0 ** rng.uniform(-6, 2, 3000)), rng.uniform(-2, 1, 3000)])
    x = x.astype(np.float32)
    wide = x.astype(np.float64)
    expected = np.where(x > 0, wide, 1.5 * np.expm1(np.minimum(wide, 0)))
    np.testing.assert_allclose(nn.elu(x, 1.5).numpy(), expected, rtol=5e-7)
    far = kc.array([np.inf, -np.inf, np.nan, 0, -1e30], "float32")
    np.testing.assert_array_equal(nn.elu(far).numpy(), [np.inf, -1, np.nan, 0, -1])
    wide = rng.uniform(-3, 1, 100)
    expected = np.where(wide > 0, wide, np.expm1(wide))
    np.testing.assert_allclose(nn.elu(kc.array(wide, "float64")).numpy(), expected, rtol=1e-14)


def test_parameters_of_activations(rng):
    x = rng.standard_normal(50).astype(np.float32)
    x64 = x.astype(np.float64)
    low = np.minimum(x64, 0)
    assert relative(nn.elu(x, 0.3).numpy(), np.where(x > 0, x64, 0.3 * np.expm1(low))) < 1e-6
    assert relative(nn.celu(x, 0.3).numpy(), np.where(x > 0, x64, 0.3 * np.expm1(low / 0.3))) < 1e-6
    assert relative(nn.leaky_relu(x, 0.1).numpy(), np.where(x > 0, x64, 0.1 * x64)) < 1e-6
    assert relative(nn.threshold(x, 0.2, 7.0).numpy(), np.where(x > 0.2, x64, 7)) < 1e-6
    assert relative(nn.squareplus(x, 2).numpy(), (x64 + np.sqrt(x64**2 + 2)) / 2) < 1e-6
    slope = kc.array(rng.random(50).astype(np.float32))
    with kc.GradientTape() as tape:
        y = nn.leaky_relu(x, slope)
    np.testing.assert_allclose(tape.gradient(y, slope).numpy(), np.minimum(x, 0), rtol=1e-6)


def test_glu(rng):
    x = rng.standard_normal((3, 8, 2)).astype(np.float32)
    x64 = x.astype(np.float64)
    assert relative(nn.glu(x, 1).numpy(), x64[:, :4] * _sigmoid(x64[:, 4:])) < 1e-6
    check_gradients(lambda x: nn.glu(x, 1), x, rng=rng)
    with pytest.raises(ValueError, match="odd"):
        nn.glu(kc.ones((3, 5)))


# -- softmax
@pytest.mark.parametrize("axis", [-1, 0, (1, 2), None])
def test_softmax(axis, rng):
    x = (rng.standard_normal((4, 3, 50)) * 30 + 100).astype(np.float32)
    x64 = x.astype(np.float64)
    shifted = x64 - x64.max(axis, keepdims=True)
    sums = np.exp(shifted).sum(axis, keepdims=True)
    assert relative(nn.softmax(x, axis).numpy(), np.exp(shifted) / sums) < 1e-5
    np.testing.assert_allclose(
        nn.log_softmax(x, axis).numpy(), shifted - np.log(sums), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("function", [nn.softmax, nn.log_softmax])
def test_softmax_gradients(function, rng):
    check_gradients(lambda x: function(x) ** 2, rng.standard_normal((3, 7)), rng=rng, order=2)
    check_gradients(lambda x: function(x, 0) ** 2, rng.standard_normal((3, 7)), rng=rng)


def test_softmax_extremes():
    x = np.array([[0, -np.inf, 0], [1e30, 0, -1e30]], np.float32)
    np.testing.assert_array_equal(nn.softmax(x).numpy(), [[0.5, 0, 0.5], [1, 0, 0]])
    assert nn.softmax(kc.array([1, 2, 3], "int32")).dtype == "float32"
    assert nn.softmax(kc.ones((2, 3), "bfloat16")).dtype == "bfloat16"


# -- encodings
def test_one_hot():
    x = np.array([[0, 2], [5, -1]])
    expected = np.zeros((2, 2, 4))
    expected[0, 0, 0] = expected[0, 1, 2] = 1
    np.testing.assert_array_equal(nn.one_hot(x, 4).numpy(), expected)
    np.testing.assert_array_equal(nn.one_hot(x, 4, 1, "int32").numpy(), expected.transpose(0, 2, 1))
    np.testing.assert_array_equal(nn.one_hot(np.int32(1), 3).numpy(), [0, 1, 0])


def test_multi_hot():
    x = np.array([[0, 2, 2], [3, -1, 9]])
    np.testing.assert_array_equal(nn.multi_hot(x, 4).numpy(), [[1, 0, 1, 0], [0, 0, 0, 1]])
    np.testing.assert_array_equal(nn.multi_hot(x[0], 4).numpy(), [1, 0, 1, 0])


# -- losses
def _log_softmax(x):
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def test_sparse_categorical_crossentropy(rng):
    x = (rng.standard_normal((5, 4, 9)) * 20 + 1e4).astype(np.float32)
    target = rng.integers(0, 9, (5, 4))
    target[0, 0], target[1, 1] = -1, 9  # out of range: no loss
    log_p = _log_softmax(x.astype(np.float64))
    inside = (target >= 0) & (target < 9)
    expected = -np.take_along_axis(log_p, np.clip(target, 0, 8)[..., None], -1)[..., 0] * inside
    found = nn.sparse_categorical_crossentropy(target, x, True)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)
    again = nn.sparse_categorical_crossentropy(target[..., None], x, True)
    np.testing.assert_array_equal(again.numpy(), found.numpy())
    probabilities = np.exp(log_p).astype(np.float32)
    from_p = nn.sparse_categorical_crossentropy(target, 3 * probabilities).numpy()
    limited = -np.log(np.clip(np.exp(-expected), 1e-7, 1 - 1e-7)) * inside
    np.testing.assert_allclose(from_p, limited, rtol=1e-4, atol=1e-5)
    first = nn.sparse_categorical_crossentropy(target.T, x.transpose(2, 1, 0), True, 0)
    np.testing.assert_allclose(first.numpy(), expected.T, rtol=1e-5, atol=1e-5)


def test_sparse_crossentropy_gradients(rng):
    x, target = rng.standard_normal((4, 5)), np.array([0, 4, 7, -2])
    for from_logits in (True, False):
        values = x if from_logits else rng.uniform(0.1, 0.9, (4, 5))
        check_gradients(
            lambda x: nn.sparse_categorical_crossentropy(target, x, from_logits),  # noqa: B023
            values,
            rng=rng,
            order=2,
        )


@pytest.mark.parametrize("from_logits", [True, False])
def test_categorical_crossentropy(from_logits, rng):
    target = rng.dirichlet(np.ones(6), 5).astype(np.float32)
    output = rng.standard_normal((5, 6)) * 5 if from_logits else rng.uniform(0.1, 1, (5, 6))
    output = output.astype(np.float32)
    o64 = output.astype(np.float64)
    log_p = _log_softmax(o64) if from_logits else np.log(o64 / o64.sum(-1, keepdims=True))
    expected = -(target * log_p).sum(-1)
    found = nn.categorical_crossentropy(target, output, from_logits)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5)
    check_gradients(
        lambda t, o: nn.categorical_crossentropy(t, o, from_logits), target, output, rng=rng
    )


@pytest.mark.parametrize("from_logits", [True, False])
def test_binary_crossentropy(from_logits, rng):
    target = rng.random((5, 6)).astype(np.float32)
    target[0] = [0, 1, 0, 1, 0, 1]
    if from_logits:
        output = (rng.standard_normal((5, 6)) * 10).astype(np.float32)
        output[0] = [40, 40, -40, -40, 100, -100]
        o64 = output.astype(np.float64)
        expected = target * _softplus(-o64) + (1.0 - target) * _softplus(o64)
    else:
        # not nearer to 0 and 1: the step of a difference quotient is small beside these
        output = rng.uniform(0.05, 0.95, (5, 6)).astype(np.float32)
        output[0] = [0, 0, 1, 1, 0.5, 0.5]
        o64 = np.clip(output.astype(np.float64), 1e-7, 1 - 1e-7)
        expected = -(target * np.log(o64) + (1 - target) * np.log1p(-o64))
    found = nn.binary_crossentropy(target, output, from_logits).numpy()
    # 1 - 1e-7 rounds to 1 - 2**-23 in float32
    np.testing.assert_allclose(found, expected, rtol=1e-5 if from_logits else 2e-2, atol=1e-6)
    check_gradients(
        lambda t, o: nn.binary_crossentropy(t, o, from_logits), target[1:], output[1:], rng=rng
    )


def test_losses_refuse_other_shapes():
    with pytest.raises(ValueError, match="same shape"):
        nn.categorical_crossentropy(kc.ones((2, 3)), kc.ones((2, 4)))
    with pytest.raises(ValueError, match="same shape"):
        nn.binary_crossentropy(kc.ones((2, 3)), kc.ones((3,)))
    with pytest.raises(ValueError, match="does not fit"):
        nn.sparse_categorical_crossentropy(kc.array([1, 2, 3]), kc.ones((2, 4)))


# -- normalisation
@pytest.mark.parametrize("axes", [0, (0, 1), -1, (1, 2), None])
@pytest.mark.parametrize("keepdims", [True, False])
def test_moments(axes, keepdims, rng):
    x = (rng.standard_normal((6, 7, 8)) + 5000).astype(np.float32)
    mean, variance = nn.moments(x, axes, keepdims)
    x64 = x.astype(np.float64)
    assert relative(mean.numpy(), x64.mean(axes, keepdims=keepdims)) < 1e-6
    # a naive mean of squares would be off by 3 % here
    assert relative(variance.numpy(), x64.var(axes, keepdims=keepdims)) < 1e-5


def test_moments_of_many_elements(rng):
    x = (rng.standard_normal((70000, 3)) * [1, 10, 0.1] + [0, 1e3, 50]).astype(np.float32)
    x64 = x.astype(np.float64)
    for axes in (0, 1, (0, 1)):
        assert relative(nn.moments(x, axes)[1].numpy(), x64.var(axes)) < 1e-5


@pytest.mark.parametrize("shape", [(4, 64), (10, 64), (128, 64), (5000, 16)])
@pytest.mark.parametrize("kind", ["normal", "rectified", "late"])
def test_variance_is_as_exact_as_in_two_passes(shape, kind, rng):
    x = rng.standard_normal((20, *shape))
    if kind == "rectified":
        x = np.maximum(x - 0.5, 0) + 1e-3 * rng.standard_normal(x.shape)
    elif kind == "late":  # the first elements are far from the others
        x[:, :3] -= 100
    x = x.astype(np.float32)
    exact = x.astype(np.float64).var(1)
    rows = np.ascontiguousarray(np.moveaxis(x, 1, -1))  # whose sums NumPy makes of pairs
    two_passes = np.square(rows - rows.mean(-1, keepdims=True)).mean(-1)

    def off(found):
        return np.sqrt(np.mean(np.square(found / exact - 1)))

    assert two_passes.dtype == np.float32
    assert off(nn.moments(x, 1)[1].numpy()) < 3 * off(two_passes)


def test_moments_gradients(rng):
    def both(x):
        mean, variance = nn.moments(x, (0, 2))
        return mean * mean + variance * variance

    check_gradients(both, rng.standard_normal((3, 2, 4)), rng=rng, order=2)


def test_moments_of_halves():
    x = kc.array(np.array([[60000, -60000], [1, 3]], np.float16))
    mean, variance = nn.moments(x, 1)
    assert mean.dtype == variance.dtype == "float16"
    np.testing.assert_array_equal(mean.numpy(), [0, 2])
    np.testing.assert_array_equal(variance.numpy(), [65504, 1])


@pytest.mark.parametrize("axis", [1, -1])
def test_batch_normalization(axis, rng):
    x = rng.standard_normal((4, 3, 5, 3)).astype(np.float32)
    mean, offset, scale = (rng.standard_normal(3).astype(np.float32) for _ in range(3))
    variance = rng.uniform(0.5, 2, 3).astype(np.float32)
    shape = [1, 3, 1, 1] if axis == 1 else [1, 1, 1, 3]
    m, v, o, s = (np.float64(a).reshape(shape) for a in (mean, variance, offset, scale))
    y = nn.batch_normalization(x, mean, variance, axis, offset, scale, 1e-2)
    assert relative(y.numpy(), (x - m) / np.sqrt(v + 1e-2) * s + o) < 1e-6
    y = nn.batch_normalization(x, mean, variance, axis)
    assert relative(y.numpy(), (x - m) / np.sqrt(v + 1e-3)) < 1e-6


def test_training_batch_normalization_gradients(rng):
    def train(x, scale, offset):
        mean, variance = nn.moments(x, (0, 1))
        return nn.batch_normalization(x, mean, variance, -1, offset, scale) ** 2

    check_gradients(
        train, rng.standard_normal((4, 5, 3)), rng.uniform(0.5, 2, 3), rng.standard_normal(3),
        rng=rng, order=2,
    )  # fmt: skip


# -- attention
def _attention(q, k, v, bias, mask, scale, causal):
    q, k, v = (np.float64(a) for a in (q, k, v))
    heads, groups = q.shape[2], k.shape[2]
    k, v = (np.repeat(a, heads // groups, 2) for a in (k, v))
    logits = np.einsum("btnh,bsnh->bnts", q, k) * scale + bias
    keep = np.broadcast_to(mask, logits.shape).copy()
    if causal:
        keep &= np.tril(np.ones(logits.shape[2:], bool))
    logits = np.where(keep, logits, -1e38)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bnts,bsnh->btnh", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_attention(groups, causal, rng):
    q = rng.standard_normal((2, 5, 4, 8)).astype(np.float32)
    k = rng.standard_normal((2, 7, groups, 8)).astype(np.float32)
    v = rng.standard_normal((2, 7, groups, 3)).astype(np.float32)
    y = attention.dot_product_attention(q, k, v, is_causal=causal)
    expected = _attention(q, k, v, 0, True, 8**-0.5, causal)
    assert relative(y.numpy(), expected) < 1e-6
    bias = rng.standard_normal((4, 5, 7)).astype(np.float32)
    mask = rng.random((2, 1, 1, 7)) > 0.4
    mask[..., 0] = True
    y = attention.dot_product_attention(q, k, v, bias, mask, 0.3, causal)
    expected = _attention(q, k, v, np.float64(bias), mask, 0.3, causal)
    assert relative(y.numpy(), expected) < 1e-6


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [1, 4])
def test_attention_without_logits(groups, causal, rng):
    q = rng.standard_normal((2, 19, 4, 8)).astype(np.float32)
    k = rng.standard_normal((2, 23, groups, 8)).astype(np.float32)
    v = rng.standard_normal((2, 23, groups, 3)).astype(np.float32)
    bias = rng.standard_normal((4, 19, 23)).astype(np.float32)
    mask = rng.random((2, 1, 1, 23)) > 0.4
    mask[1, ..., :4] = False  # with `causal`, rows that see nothing
    y = attention.dot_product_attention(q, k, v, bias, mask, 0.3, causal)
    # a view of a packed projection is read where it lies
    packed = kc.array(np.concatenate([q, q], -1))
    same = attention.dot_product_attention(packed[..., 8:], k, v, bias, mask, 0.3, causal)
    expected = _attention(q, k, v, np.float64(bias), mask, 0.3, causal)
    assert relative(y.numpy(), expected) < 1e-6
    np.testing.assert_array_equal(same.numpy(), y.numpy())


@pytest.mark.slow
def test_attention_gradients_without_logits(rng):
    """Kernels in float32 against the plain formula, differentiated, in float64."""
    shapes = (2, 11, 4, 6), (2, 13, 2, 6), (2, 13, 2, 5), (1, 4, 11, 13), (2, 11, 4, 5)
    q, k, v, bias, g = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    mask = rng.random((2, 1, 11, 13)) > 0.4
    mask[0, 0, 7] = False

    def gradients(dtype):
        sources = [kc.array(x, dtype) for x in (q, k, v, bias)]
        with kc.GradientTape() as outer, kc.GradientTape() as tape:
            y = attention.dot_product_attention(*sources, mask, is_causal=True)
            first = tape.gradient(y, sources, kc.array(g, dtype))
            total = sum(kc.sum(x * x) for x in first)
        return [*first, *outer.gradient(total, sources)]

    def plain(dtype):
        sources = [kc.array(x, dtype) for x in (q, k, v, bias)]
        with kc.GradientTape() as tape:
            y = attention.dot_product_attention(*sources, mask, is_causal=True)
        return tape.gradient(y, sources, kc.array(g, dtype))

    wide = gradients("float64")
    for got, want in zip(plain("float32"), wide, strict=False):
        assert relative(got.numpy(), want.numpy()) < 2e-6
    for got, want in zip(gradients("float32"), wide, strict=True):
        assert relative(got.numpy(), want.numpy()) < 1e-5


@pytest.mark.parametrize("repeated", [False, True], ids=["shared", "repeated"])
@pytest.mark.parametrize("length", [8, 21])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("hidden", ["masked", "causal", "nothing"])
def test_attention_of_16_bit_floats(hidden, dtype, length, repeated, rng):
    """The result and its slopes, of grouped heads whose rows are whole 16-byte chunks, in NumPy;
    groups are shared, or repeated for their heads first."""
    shapes = (2, length, 4, 16), (2, 26, 2, 16), (2, 26, 2, 8), (2, length, 4, 8)
    q, k, v, g = (kc.array(rng.standard_normal(s).astype(np.float32), dtype) for s in shapes)
    mask = rng.random((2, 1, length, 26)) > 0.3
    mask[..., 0] = True
    given = {"mask": mask}
    if hidden != "masked":
        given = {"is_causal": hidden == "causal"}
        mask = np.tri(length, 26) if hidden == "causal" else np.ones((length, 26))

    def run(q, k, v):
        with kc.GradientTape() as tape:
            tape.watch([q, k, v])
            own = (kc.repeat(x, 2, 2) for x in (k, v)) if repeated else (k, v)
            y = attention.dot_product_attention(q, *own, **given)
        return y, *tape.gradient(y, [q, k, v], g)

    a, b, c, d = (x.numpy().astype(np.float64) for x in (q, k, v, g))
    b, c = (np.repeat(x, 2, 2) for x in (b, c))
    p = np.exp(np.einsum("btnh,bsnh->bnts", a, b) / 4) * mask
    p /= p.sum(-1, keepdims=True)
    slope = np.einsum("btnh,bsnh->bnts", d, c)
    slope = p * (slope - (p * slope).sum(-1, keepdims=True)) / 4
    expected = [np.einsum("bnts,bsnh->btnh", p, c), np.einsum("bnts,bsnh->btnh", slope, b)]
    for x in (np.einsum("bnts,btnh->bsnh", slope, a), np.einsum("bnts,btnh->bsnh", p, d)):
        expected.append(x.reshape(2, 26, 2, 2, -1).sum(3))
    plain = attention.dot_product_attention(q, k, v, **given).numpy()
    assert relative(plain, expected[0]) < {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]
    for found, right in zip(kc.jit(run)(q, k, v), expected, strict=True):
        assert relative(found.numpy(), right) < {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]


@pytest.mark.parametrize("captured", [False, True])
def test_attention_with_dropout(captured, rng):
    """The result and all gradients, for the mask that `kc.random.dropout` draws, in NumPy."""
    shapes = (2, 21, 4, 6), (2, 26, 2, 6), (2, 26, 2, 5), (1, 4, 21, 26), (2, 21, 4, 5)
    q, k, v, bias, g = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    mask = rng.random((2, 1, 1, 26)) > 0.3
    seed = int(rng.integers(2**63))
    kept = kc.random.dropout(kc.random.key(seed), kc.ones((2, 4, 21, 26)), 0.2).numpy() / 1.25

    def run(key, *arrays):
        with kc.GradientTape() as tape:
            y = attention.dot_product_attention(
                *arrays, mask, is_causal=True, dropout_rate=0.2, dropout_key=key
            )
        return y, *tape.gradient(y, list(arrays), kc.array(g))

    run = kc.jit(run) if captured else run
    found = run(kc.random.key(seed), *map(kc.array, (q, k, v, bias)))

    def plain(*arrays):
        wide_k, wide_v = (kc.repeat(x, 2, axis=2) for x in arrays[1:3])
        logits = kc.einsum("btnh,bsnh->bnts", arrays[0], wide_k) * 6**-0.5 + arrays[3]
        seen = np.broadcast_to(mask & np.tri(21, 26, dtype=bool), logits.shape)
        p = nn.softmax(kc.where(seen, logits, -1e30)) * (kept * 1.25)
        return kc.einsum("bnts,bsnh->btnh", p, wide_v)

    wide = [kc.array(x, "float64") for x in (q, k, v, bias)]
    with kc.GradientTape() as tape:
        y = plain(*wide)
    assert abs(kept.mean() - 0.8) < 0.05
    for ours, right in zip(
        found, (y, *tape.gradient(y, wide, kc.array(g, "float64"))), strict=True
    ):
        assert relative(ours.numpy(), right.numpy()) < 2e-6


def test_dropout_of_attention_is_random(rng):
    """Of all weights the share kept is right, rows and heads do not repeat each other, and another
    key gives other weights."""
    length, heads = 64, 8
    q = np.zeros((2, length, heads, 4), np.float32)
    v = np.broadcast_to(np.eye(length, dtype=np.float32)[None, :, None], (2, length, heads, length))

    def weights(key):  # all alike, so the result is the mask: (batch, query, head, key)
        y = attention.dot_product_attention(q, q, v, dropout_rate=0.25, dropout_key=key)
        y = y.numpy() * (0.75 * length)
        assert np.all((abs(y) < 1e-5) | (abs(y - 1) < 1e-5))
        return y > 0.5

    seed = int(rng.integers(2**62))
    kept = weights(kc.random.key(seed))
    deviations = kept.size**0.5 / (0.25 * 0.75) ** 0.5
    assert abs(kept.mean() - 0.75) * deviations < 5
    others = [np.roll(kept, 1, axis) for axis in range(4)] + [weights(kc.random.key(seed + 1))]
    for other in others:  # independent of each
        assert abs(((kept - 0.75) * (other - 0.75)).mean()) * kept.size**0.5 / (0.25 * 0.75) < 5


def test_dropout_of_attention_under_vmap(rng):
    """Each element of a batch draws what it draws alone."""
    x = kc.array(rng.standard_normal((3, 1, 9, 2, 4)).astype(np.float32))

    def one(x):
        return attention.dot_product_attention(
            x, x, x, dropout_rate=0.3, dropout_key=kc.random.key(5)
        )

    found = kc.vmap(one)(x).numpy()
    for k in range(3):
        assert relative(found[k], one(x[k]).numpy()) < 1e-6


def test_dropout_of_attention_is_checked():
    x = kc.ones((1, 8, 2, 4))
    with pytest.raises(ValueError, match="dropout_rate must be at least 0 and less than 1, not 1"):
        attention.dot_product_attention(x, x, x, dropout_rate=1, dropout_key=kc.random.key(0))
    with pytest.raises(ValueError, match="dropout_rate needs dropout_key"):
        attention.dot_product_attention(x, x, x, dropout_rate=0.1)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_attention_keeps_no_logits(dropout, rng):
    """At 2048 queries and keys, forward and backward need a small part of the logits' memory."""
    length, heads = 2048, 4
    x = [kc.array(rng.standard_normal((1, length, heads, 8)).astype(np.float32)) for _ in "qkvg"]

    def train(q, k, v, g):
        with kc.GradientTape() as tape:
            y = attention.dot_product_attention(
                q, k, v, is_causal=True, dropout_rate=dropout, dropout_key=kc.random.key(3)
            )
        return tape.gradient(y, [q, k, v], g)

    pool = device.default().buffers
    [d.numpy() for d in train(*x)]
    pool.trim()
    pool.reset_peak()
    before = pool.stats().in_use
    grads = train(*x)
    [d.numpy() for d in grads]
    assert pool.stats().peak - before < heads * length * length * 4 / 8


def test_attention_gradients(rng):
    q, k, v = (rng.standard_normal(s) for s in ((1, 3, 4, 2), (1, 4, 2, 2), (1, 4, 2, 2)))
    mask = np.array([True, False, True, True])

    def squared(q, k, v):
        y = attention.dot_product_attention(q, k, v, mask=mask, is_causal=True)
        return y * y

    check_gradients(squared, q, k, v, rng=rng)


def test_attention_dtypes_and_hidden_rows(rng):
    q = kc.array(rng.standard_normal((1, 3, 2, 4)).astype(np.float32), "bfloat16")
    y = attention.dot_product_attention(q, q, q, mask=np.zeros((3, 3), bool))
    assert y.dtype == "bfloat16"
    mean = q.numpy().astype(np.float64).mean(1, keepdims=True)
    assert relative(y.numpy(), np.broadcast_to(mean, y.shape)) < 2.0**-7
    with pytest.raises(ValueError, match="4 dimensions"):
        attention.dot_product_attention(kc.ones((2, 3)), kc.ones((2, 3)), kc.ones((2, 3)))
    with pytest.raises(ValueError, match="do not fit"):
        attention.dot_product_attention(
            kc.ones((1, 3, 4, 2)), kc.ones((1, 3, 3, 2)), kc.ones((1, 3, 3, 2))
        )
