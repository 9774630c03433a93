"""Random numbers: known answers, exact agreement with NumPy, and distributions.

Keys are fixed, so every test has one outcome; bounds are for a chance of failure below 1e-6 were
the keys random.
"""

import math

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import random
from tests.philox import blocks, kept
from tests.threefry import threefry

COUNT = 50_000

# "kat_vectors" of the authors' Random123 library: counter, key, answer.
KNOWN = [
    ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
    ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xC4923A9C, 0x483DF7A0)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter, key, answer):
    assert tuple(int(w) for w in threefry(key, counter)) == answer
    # the same on the device: there the low counter word is an element's place
    words = [np.array([k], np.uint32) for k in (*key, counter[0])]
    for op, expected in ((random.BITS, answer[0]), (random.OTHER_BITS, answer[1])):
        inputs = tuple(kc.array(w) for w in words)
        found = kc.core.array.apply(op, inputs, (counter[1],), (1,), kc.uint32)
        assert int(found[0]) == expected


def test_bits_are_a_function_of_key_and_place():
    key = random.key(0x0123456789ABCDEF)
    np.testing.assert_array_equal(key.numpy(), [0x89ABCDEF, 0x01234567])
    bits = random.random_bits(key, (7, 11)).numpy()
    assert bits.dtype == np.uint32
    place = np.arange(77)
    expected, _ = threefry(key.numpy(), (place, 0 * place))
    np.testing.assert_array_equal(bits.ravel(), expected)
    other = random.random_bits(key, (77,), stream=5).numpy()
    np.testing.assert_array_equal(other, threefry(key.numpy(), (place, 0 * place + 5))[0])
    part = random.random_bits(key, (7, 11))[2:5, 3].numpy()  # computed only where it is read
    np.testing.assert_array_equal(part, bits[2:5, 3])


def test_fold_in():
    key = random.key(3)
    word = np.array([9])
    expected = threefry(key.numpy(), (word, np.array([0xFFFFFFFF])))
    np.testing.assert_array_equal(random.fold_in(key, 9).numpy(), np.concatenate(expected))


def test_keys_must_have_two_words():
    with pytest.raises(ValueError, match="shape"):
        random.uniform(kc.array([1, 2, 3], "uint32"), (2,))


def distance(sample, cdf):
    """Kolmogorov and Smirnov's statistic, times the root of the count; 2.7 has chance 1e-6."""
    x = np.sort(np.asarray(sample, np.float64))
    f = cdf(x)
    n = len(x)
    steps = np.arange(n + 1) / n
    return max((f - steps[:-1]).max(), (steps[1:] - f).max()) * math.sqrt(n)


def normal_cdf(x):
    return 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


FLOATS = ["float32", "float64"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform(dtype, dev):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no float64 on this device")
    x = random.uniform(random.key(1), (COUNT,), dtype=dtype)
    assert x.dtype == dtype
    x = x.numpy()
    assert x.min() >= 0 and x.max() < 1
    assert distance(x, lambda v: v) < 2.7
    y = random.uniform(random.key(1), (COUNT,), -3.0, 7.0, dtype).numpy()
    np.testing.assert_allclose(y, -3 + 10 * x.astype(np.float64), rtol=0, atol=2e-6)


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_uniform_of_halves_stays_below_one(dtype, bits):
    x = random.uniform(random.key(2), (COUNT,), dtype=dtype).numpy().astype(np.float64)
    assert x.min() == 0 and x.max() == 1 - 2.0**-bits
    assert abs(x.mean() - (0.5 - 2.0 ** -(bits + 1))) < 5 * math.sqrt(1 / 12 / COUNT)


def test_uniform_never_reaches_the_high_end():
    # one unit in the last place of the interval: half of all results would round up
    high = float(np.nextafter(np.float32(1000), np.float32(2000)))
    x = random.uniform(random.key(3), (1000,), 1000.0, high).numpy()
    np.testing.assert_array_equal(x, 1000)
    low, high = kc.array([0.0, 10.0]), kc.array([1.0, 20.0])
    x = random.uniform(random.key(3), (500, 2), low, high).numpy()
    assert (x[:, 0] < 1).all() and (x[:, 1] >= 10).all() and (x[:, 1] < 20).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_normal(dtype, dev):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no float64 on this device")
    x = random.normal(random.key(4), (COUNT,), dtype=dtype).numpy()
    assert distance(x, normal_cdf) < 2.7
    y = random.normal(random.key(4), (COUNT,), 5.0, 0.5, dtype).numpy()
    np.testing.assert_allclose(y, 5 + 0.5 * x.astype(np.float64), rtol=1e-6)


def test_normal_agrees_with_numpy():
    key = random.key(5)
    place = np.arange(1000)
    a, b = (w.astype(np.float64) for w in threefry(key.numpy(), (place, 0 * place)))
    expected = np.sqrt(-2 * np.log((a + 0.5) / 2**32)) * np.cos(2 * np.pi * b / 2**32)
    x = random.normal(key, (1000,)).numpy()
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncated_normal(dtype, dev):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no float64 on this device")
    x = random.truncated_normal(random.key(6), (COUNT,), dtype=dtype).numpy()
    assert np.abs(x).max() < 2
    inside = math.erf(math.sqrt(2))
    assert distance(x, lambda v: (normal_cdf(v) - (1 - inside) / 2) / inside) < 2.7
    y = random.truncated_normal(random.key(6), (9,), 1.0, 3.0, dtype).numpy()
    np.testing.assert_allclose(y, 1 + 3 * x[:9].astype(np.float64), rtol=1e-5, atol=1e-6)


def chi_square(counts, expected):
    """Pearson's statistic as deviations of a normal distribution (for 20 or more classes)."""
    counts, expected = np.asarray(counts, np.float64), np.asarray(expected, np.float64)
    freedom = len(counts) - 1
    value = ((counts - expected) ** 2 / expected).sum()
    return (value - freedom) / math.sqrt(2 * freedom)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_randint(dtype):
    x = random.randint(random.key(7), (COUNT,), 5, 55, dtype)
    assert x.dtype == dtype
    x = x.numpy()
    assert x.min() == 5 and x.max() == 54
    assert abs(chi_square(np.bincount(x.astype(np.int64) - 5), np.full(50, COUNT / 50))) < 6


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint32", "int64", "uint64"])
def test_randint_over_the_full_range(dtype):
    info = np.iinfo(dtype)
    x = random.randint(random.key(8), (COUNT,), int(info.min), int(info.max) + 1, dtype).numpy()
    top = (x.astype(np.float64) - float(info.min)) / (float(info.max) - float(info.min) + 1) * 32
    assert abs(chi_square(np.bincount(top.astype(int), minlength=32), np.full(32, COUNT / 32))) < 6


def test_randint_edges():
    key = random.key(9)
    np.testing.assert_array_equal(random.randint(key, (5,), -4, -3).numpy(), -4)
    np.testing.assert_array_equal(random.randint(key, (5,), 3, 3).numpy(), 3)
    np.testing.assert_array_equal(random.randint(key, (5,), 3, 1).numpy(), 3)
    low, high = kc.array([0, 100], "int32"), kc.array([10, 200], "int32")
    x = random.randint(key, (1000, 2), low, high).numpy()
    assert (x[:, 0].min(), x[:, 0].max()) == (0, 9)
    assert x[:, 1].min() >= 100 and x[:, 1].max() < 200
    with pytest.raises(TypeError, match="integer"):
        random.randint(key, (5,), 0, 1, "float32")


def test_bernoulli_and_dropout():
    key = random.key(10)
    hits = random.bernoulli(key, (COUNT,), 0.3)
    assert hits.dtype == "bool"
    assert abs(hits.numpy().mean() - 0.3) < 5 * math.sqrt(0.21 / COUNT)
    assert random.bernoulli(key, (9,), 1.0).numpy().all()
    assert not random.bernoulli(key, (9,), 0.0).numpy().any()
    x = kc.ones((100, 500))
    with kc.GradientTape() as tape:
        y = random.dropout(key, x, 0.4)
    values = y.numpy()
    np.testing.assert_allclose(np.unique(values), [0, 1 / 0.6], rtol=1e-6)
    assert abs((values == 0).mean() - 0.4) < 5 * math.sqrt(0.24 / COUNT)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), values)
    np.testing.assert_array_equal(random.dropout(key, x, 0.4).numpy(), values)
    assert random.dropout(key, x, 0) is x
    np.testing.assert_array_equal(random.dropout(key, x, 1).numpy(), 0)


@pytest.mark.parametrize("rate, few", [
    (0.1, True), (0.2, True), (0.5, True), (1 / 3, True), (0.75, True), (0.95, False),
    (2.0**-19, False), (1 - 2.0**-18, False),
])  # fmt: skip
def test_sixteen_bits_decide_where_they_are_enough(rate, few):
    """The chance is right to 1e-5 of itself either way, and never 0 or 1."""
    limit = random.keep_limit(1 - rate)
    assert (limit % 2**16 == 0) == few and 0 < limit < 2**32
    assert abs(limit / 2**32 - (1 - rate)) <= max(1e-5 * (1 - rate), 2.0**-32)


# Rows of whole fours and others, a single number, and dimensions that a kernel does not keep apart.
SHAPES = [(), (4,), (1001,), (16, 64), (3, 5, 7), (40, 1), (2, 3, 197), (2, 3, 6, 8)]


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("rate", [0.1, 0.9], ids=["16", "32"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_what_dropout_keeps(shape, rate, captured, rng):
    """The definition in kerascl/philox.py, in NumPy; and so where it is fused with what comes
    before and after, of other types and from beside."""
    key = random.key(int(rng.integers(2**63)))
    wanted = kept(key.numpy(), shape or (1,), random.keep_limit(1 - rate)).reshape(shape)
    x = rng.standard_normal(shape).astype(np.float32)
    beside = rng.standard_normal(shape[-1:]).astype(np.float32)

    def run(key, x, beside):
        y = random.dropout(key, kc.exp(x) + beside, rate)
        return y, kc.array(y * 2, "float16"), random.dropout(key, x, rate) != 0

    run = kc.jit(run) if captured else run
    y, half, mask = (z.numpy() for z in run(key, *map(kc.array, (x, beside))))
    right = np.where(wanted, (np.exp(x.astype(float)) + beside) / (1 - rate), 0)
    np.testing.assert_array_equal(mask, wanted)
    np.testing.assert_allclose(y, right, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(half, 2 * right, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("columns", [64, 50])
def test_dropout_after_a_product(columns, rng):
    """In a product's epilogue, vectors of which share blocks of random bits."""
    key = random.key(int(rng.integers(2**63)))
    a, b = rng.standard_normal((37, 20)), rng.standard_normal((20, columns))
    run = kc.jit(lambda k, a, b: random.dropout(k, a @ b + 9, 0.25))
    y = run(key, kc.array(a, "float32"), kc.array(b, "float32")).numpy()
    wanted = kept(key.numpy(), y.shape, random.keep_limit(0.75))
    np.testing.assert_allclose(y, np.where(wanted, (a @ b + 9) / 0.75, 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_dropout_of_gathered_rows(captured, rng):
    """An embedding's rows: where neighbours lie is read from memory."""
    key = random.key(int(rng.integers(2**63)))
    table, ids = rng.standard_normal((50, 16)).astype(np.float32), rng.integers(0, 50, 30)
    run = lambda k, t, i: random.dropout(k, kc.take(t, i, axis=0), 0.25)  # noqa: E731
    run = kc.jit(run) if captured else run
    y = run(key, kc.array(table), kc.array(ids.astype(np.int32))).numpy()
    wanted = kept(key.numpy(), y.shape, random.keep_limit(0.75))
    np.testing.assert_allclose(y, np.where(wanted, table[ids] / 0.75, 0), rtol=1e-6)


def test_numbers_of_a_block_are_independent():
    """A million draws: the chance of each of four neighbours, and of each two of them together."""
    p, key = 0.3, random.key(0x5EED)
    hits = random.bernoulli(key, (1000, 1000), p).numpy().reshape(-1, 4).astype(float)
    spread = math.sqrt(p * (1 - p) / len(hits))
    assert (abs(hits.mean(0) - p) < 5 * spread).all()
    assert abs(hits.mean() - p) < 5 * spread / 2
    centred = (hits - p) / math.sqrt(p * (1 - p))
    neighbours = np.concatenate([centred[:-1], centred[1:]], 1)  # and with those of the next block
    correlation = neighbours.T @ neighbours / len(neighbours)
    assert abs(correlation - np.eye(8)).max() < 6 / math.sqrt(len(neighbours))


def test_dropout_that_shares_decisions():
    y = random.dropout(random.key(11), kc.ones((50, 7, 3)), 0.5, (None, 1, 3)).numpy()
    assert (y == y[:, :1]).all()
    assert not (y == y[:1]).all() and not (y == y[:, :, :1]).all()


def test_categorical():
    p = np.array([[0.1, 0.2, 0.7], [0.98, 0.02, 0], [0, 0, 1]])
    with np.errstate(divide="ignore"):
        logits = np.log(p).astype(np.float32) + 5
    x = random.categorical(random.key(12), logits, COUNT)
    assert x.shape == (3, COUNT) and x.dtype == "int32"
    for row, chances in zip(x.numpy(), p, strict=True):
        found = np.bincount(row, minlength=3) / COUNT
        assert (np.abs(found - chances) <= 5 * np.sqrt(chances * (1 - chances) / COUNT)).all()
    with pytest.raises(ValueError, match="rows, classes"):
        random.categorical(random.key(12), np.zeros(3, np.float32), 4)


def gamma_cdf(shape):
    """The regularised lower incomplete gamma function, by its series."""

    def cdf(x):
        x = np.asarray(x, np.float64)
        term = np.ones_like(x) / shape
        total = term.copy()
        for k in range(1, 400):
            term = term * x / (shape + k)
            total += term
        with np.errstate(divide="ignore"):
            scale = np.where(x > 0, shape * np.log(x) - x - math.lgamma(shape), -np.inf)
        return np.exp(scale) * total

    return cdf


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [0.3, 1.0, 2.5, 60.0])
def test_gamma(shape, dtype, dev):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no float64 on this device")
    x = random.gamma(random.key(13), (COUNT,), shape, dtype).numpy()
    assert x.min() >= 0
    assert distance(x, gamma_cdf(shape)) < 2.7


def test_gamma_shapes_and_edges():
    alpha = kc.array([[0.5], [4.0]])
    x = random.gamma(random.key(14), (2, COUNT // 2), alpha).numpy()
    for row, a in zip(x, (0.5, 4.0), strict=True):
        assert abs(row.mean() - a) < 5 * math.sqrt(a / (COUNT // 2))
    logs = random.loggamma(random.key(14), (2, COUNT // 2), alpha).numpy()
    np.testing.assert_allclose(logs[1], np.log(x[1]), rtol=1e-4, atol=1e-5)
    tiny = random.loggamma(random.key(15), (1000,), 1e-4).numpy()
    assert np.isfinite(tiny).all() and tiny.min() < -1000  # the variate itself is 0 in float32
    assert np.isnan(random.gamma(random.key(15), (3,), -0.5).numpy()).all()


def test_beta():
    a, b = 2.0, 3.0
    x = random.beta(random.key(16), (COUNT,), a, b).numpy()

    def cdf(v):  # of Beta(2, 3)
        return 6 * v**2 - 8 * v**3 + 3 * v**4

    assert distance(x, cdf) < 2.7
    edge = random.beta(random.key(16), (COUNT,), 0.5, 0.5).numpy()
    assert distance(edge, lambda v: 2 / np.pi * np.arcsin(np.sqrt(v))) < 2.7
    assert np.isfinite(random.beta(random.key(16), (1000,), 1e-3, 1e-3).numpy()).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("n", "p"), [(10, 0.3), (40, 0.2), (100, 0.4), (1000, 0.9), (7, 0.99)])
def test_binomial(n, p, dtype, dev):
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("no float64 on this device")
    x = random.binomial(random.key(17), (COUNT,), n, p, dtype).numpy()
    assert (x == np.round(x)).all() and x.min() >= 0 and x.max() <= n
    k = np.arange(n + 1)
    total = math.lgamma(n + 1)
    log_choose = np.array([total - math.lgamma(i + 1) - math.lgamma(n - i + 1) for i in k])
    chances = np.exp(log_choose + k * math.log(p) + (n - k) * math.log1p(-p))
    found = np.bincount(x.astype(int), minlength=n + 1) / COUNT
    # the largest gap between the distribution functions
    assert np.abs(np.cumsum(found) - np.cumsum(chances)).max() * math.sqrt(COUNT) < 2.7


def test_binomial_edges():
    key = random.key(18)
    counts, chances = kc.array([5.0, 5.0, 0.0]), kc.array([0.0, 1.0, 0.5])
    np.testing.assert_array_equal(random.binomial(key, (3,), counts, chances).numpy(), [0, 5, 0])
    assert np.isnan(random.binomial(key, (2,), 5, kc.array([-0.1, 1.5])).numpy()).all()


def test_scalar_and_empty_shapes():
    assert random.uniform(random.key(19), ()).shape == ()
    assert 0 <= float(random.uniform(random.key(19), ())) < 1
    assert random.normal(random.key(19), (0, 3)).numpy().shape == (0, 3)


def test_integer_dtypes_are_refused():
    with pytest.raises(TypeError, match="floating"):
        random.normal(random.key(20), (3,), dtype="int32")


def test_captured_draws_follow_their_key():
    state = kc.State(random.key(21))

    @kc.jit
    def draw():
        value = random.normal(state.value, (5,))
        state.assign(state.value + kc.array([0, 1], "uint32"))
        return value

    found = [draw().numpy() for _ in range(3)]
    for k, values in enumerate(found):
        expected = random.normal(kc.array([21, k], "uint32"), (5,)).numpy()
        np.testing.assert_array_equal(values, expected)


# -- derivatives of samples -----------------------------------------------------
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def below(x, a):
    """The distribution function by Gauss-Legendre quadrature in float64."""
    if a < 2:  # t = v ** (1 / a) takes the pole away
        v = 0.5 * x**a * (_NODES + 1)
        return 0.5 * x**a * np.sum(_WEIGHTS * np.exp(-(v ** (1 / a)))) / math.gamma(a + 1)
    low = max(0.0, a - 14 * math.sqrt(a))
    t = low + 0.5 * (x - low) * (_NODES + 1)
    density = np.exp((a - 1) * np.log(t) - t - math.lgamma(a))
    return 0.5 * (x - low) * np.sum(_WEIGHTS * density)


@pytest.mark.parametrize("alpha", [0.1, 0.6, 1.0, 3.0, 20.0, 200.0, 3000.0])
def test_gamma_samples_follow_their_quantile(alpha):
    a = kc.array(np.full(40, alpha, "f"))
    key = kc.random.key(11)
    with kc.GradientTape(persistent=True) as tape:
        y = kc.random.gamma(key, (40,), a)
        logs = kc.random.loggamma(key, (40,), a)
    (slopes,), (relative,) = tape.gradient(y, [a]), tape.gradient(logs, [a])
    samples, a64 = y.numpy().astype("f8"), float(a.numpy()[0])
    step = 1e-4 * a64
    for z, slope, log_slope in zip(samples, slopes.numpy(), relative.numpy(), strict=True):
        if z < 1e-12:
            continue
        change = (below(z, a64 + step) - below(z, a64 - step)) / (2 * step)
        density = math.exp((a64 - 1) * math.log(z) - z - math.lgamma(a64))
        np.testing.assert_allclose(slope, -change / density, rtol=2e-4)
        np.testing.assert_allclose(log_slope, -change / density / z, rtol=2e-4)


def test_samples_that_underflow_have_finite_slopes():
    a = kc.array(np.full(2000, 0.01, "f"))
    with kc.GradientTape() as tape:
        y = kc.random.gamma(kc.random.key(3), (2000,), a)
    assert (y.numpy() == 0).any()
    assert np.isfinite(tape.gradient(y, a).numpy()).all()


def test_slopes_of_means():
    """The mean of the samples' slopes is the slope of the mean."""
    a, b = kc.array([2.0, 0.7]), kc.array([3.0, 1.5])
    with kc.GradientTape(persistent=True) as tape:
        gammas = kc.sum(kc.mean(kc.random.gamma(kc.random.key(1), (200_000, 2), a), 0))
        betas = kc.mean(kc.random.beta(kc.random.key(2), (200_000, 2), a, b), 0)
    np.testing.assert_allclose(tape.gradient(gammas, a).numpy(), [1, 1], rtol=0.01)
    da, db = tape.gradient(betas, [a, b])
    total = (a.numpy() + b.numpy()) ** 2
    np.testing.assert_allclose(da.numpy(), b.numpy() / total, rtol=0.02)
    np.testing.assert_allclose(db.numpy(), -a.numpy() / total, rtol=0.02)


def test_samples_of_normal_and_uniform_follow_their_parameters():
    mean, scale = kc.array([1.0, 2.0]), kc.array([1.5, 3.0])
    key = kc.random.key(4)
    with kc.GradientTape() as tape:
        y = kc.random.normal(key, (2,), mean, scale) + kc.random.uniform(key, (2,), mean, scale)
    unit, part = kc.random.normal(key, (2,)).numpy(), kc.random.uniform(key, (2,)).numpy()
    d_mean, d_scale = tape.gradient(y, [mean, scale])
    np.testing.assert_allclose(d_mean.numpy(), 2 - part, rtol=1e-5)
    np.testing.assert_allclose(d_scale.numpy(), unit + part, rtol=1e-5)


def test_gamma_slopes_inside_vmap():
    keys = kc.array(np.arange(6, dtype="u4").reshape(3, 2))
    a = kc.array([1.5, 4.0])

    def draw(key):
        return kc.random.gamma(key, (2,), a)

    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(draw)(keys))
    with kc.GradientTape() as other:
        z = kc.sum(kc.stack([draw(keys[k]) for k in range(3)]))
    np.testing.assert_allclose(tape.gradient(y, a).numpy(), other.gradient(z, a).numpy(), rtol=1e-6)


def test_more_numbers_than_a_word_counts():
    assert random.places((2**30, 4)).dtype is kc.uint32
    assert random.places((2**30, 5)).dtype is kc.uint64  # neither is in memory
    key = random.key(77)
    places = np.array([0, 5, 2**32 - 1, 2**32, 2**32 + 5, 2**33 - 1, 2**33, 2**33 + 5, 2**40 + 7])
    words = [np.broadcast_to(k, places.shape) for k in key.numpy()]
    inputs = tuple(kc.array(x) for x in (*words, places.astype(np.uint64)))
    bits = kc.core.array.apply(random.BITS, inputs, (3,), places.shape, kc.uint32).numpy()
    block, low = places >> 32, places & 0xFFFFFFFF
    keys = threefry(key.numpy(), (block, 0 * block + 0xFFFFFFFE))
    words = [np.where(block == 0, k, other) for k, other in zip(words, keys, strict=True)]
    np.testing.assert_array_equal(bits, threefry(words, (low, 0 * low + 3))[0])
    assert len(set(bits.tolist())) == len(places)
    limit = np.uint32(3 * 2**30)
    x, _ = blocks(key.numpy(), places)
    x4, y4 = blocks(key.numpy(), places // 4)
    quarter = np.choose(places % 4, [x4 << 16, x4, y4 << 16, y4])
    inputs = (*inputs, kc.array(np.full(places.shape, limit)))
    for op, words in ((random.KEEP, x), (random.KEEP_COARSE, quarter)):
        mask = kc.core.array.apply(op, inputs, (), places.shape, kc.bool_).numpy()
        np.testing.assert_array_equal(mask, words < limit)
