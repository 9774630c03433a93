"""Sums of very many terms keep their digits, however a reduction is laid out."""

import numpy as np
import pytest

import kerascl as kc

# Equal terms round alike, so that errors add up: what one long sum loses is in the fourth digit.
TERM = np.float32(0.1)
MANY = 2**20 + 37
PLACES = {
    "all": ((MANY,), (0,)),
    "rows": ((3, MANY // 2), (1,)),
    "columns": ((MANY // 4, 5), (0,)),
    "whole groups of columns": ((MANY // 32, 64), (0,)),
    "middle": ((2, MANY // 12, 7), (1,)),
}


@pytest.fixture(params=["as it is", "small gpu", "large gpu"])
def layout(request, as_gpu):
    """What runs a function: eagerly, or captured for what passes for a GPU."""
    if request.param == "as it is":
        return lambda function: function
    as_gpu(1 if request.param == "small gpu" else 200)
    return kc.jit


@pytest.mark.parametrize("place", PLACES)
def test_sums_of_equal_terms(layout, place):
    shape, axes = PLACES[place]
    x = kc.array(np.full(shape, TERM))

    def figures(x):
        return kc.sum(x, axes), kc.mean(x, axes), kc.logsumexp(x, axes), kc.mean(x * x, axes)

    sums, means, logs, squares = layout(figures)(x)
    count, term = np.prod([shape[a] for a in axes]), np.float64(TERM)
    np.testing.assert_allclose(sums.numpy(), count * term, rtol=6e-7)
    np.testing.assert_allclose(means.numpy(), term, rtol=6e-7)
    np.testing.assert_allclose(logs.numpy(), term + np.log(count), rtol=6e-7)
    np.testing.assert_allclose(squares.numpy(), term * term, rtol=6e-7)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_summed_in_float32(layout, dtype):
    x = kc.full((MANY // 8,), 1 / 32, dtype)  # 4096.14, far beyond 2048 ones of float16
    assert float(kc.sum(x)) == pytest.approx(MANY // 8 / 32, rel=2**-8)
    assert float(kc.mean(x)) == 1 / 32


@pytest.mark.parametrize("place", PLACES)
def test_variances_far_from_zero(layout, rng, place):
    shape, axes = PLACES[place]
    host = rng.normal(12345.678, 1, shape).astype(np.float32)
    expected = host.astype(np.float64).var(axes)
    x = kc.array(host)
    np.testing.assert_allclose(kc.var(x, axes).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(kc.nn.moments(x, axes)[1].numpy(), expected, rtol=1e-5)


def test_equal_elements_do_not_vary(layout):
    x = kc.full((1_000_003,), 12345.678)
    # the mean may be off by what it rounds to
    assert float(kc.std(x)) <= 12345.678 * 2**-22
    assert float(kc.nn.moments(x, (0,))[1]) == 0


def test_infinities_and_nan_in_long_sums(layout):
    host = np.ones(MANY, np.float32)
    host[MANY // 3] = np.inf
    assert float(kc.sum(kc.array(host))) == np.inf
    host[MANY // 2] = -np.inf
    assert np.isnan(float(kc.sum(kc.array(host))))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(MANY,), (MANY // 8, 8)])
def test_cumulative_sums_of_equal_terms(layout, shape, reverse):
    x = kc.array(np.full(shape, TERM))
    found = layout(lambda x: kc.cumsum(x, 0, reverse=reverse))(x).numpy()
    expected = np.arange(1, shape[0] + 1) * np.float64(TERM)
    expected = expected[::-1] if reverse else expected
    np.testing.assert_allclose(found.T, np.broadcast_to(expected, shape[::-1]), rtol=1.5e-6)


def test_cumulative_sums_go_on_past_the_last_whole_float(layout):
    assert float(layout(lambda: kc.cumsum(kc.ones((2**25,)))[-1])()) == 2**25


def test_long_cumulative_log_sums(layout):
    found = layout(kc.logcumsumexp)(kc.zeros((2**18,))).numpy()
    np.testing.assert_allclose(found, np.log(np.arange(1, 2**18 + 1)), rtol=0, atol=2e-5)


def test_very_many_terms_to_one_place(layout):
    count = 2**21 + 3
    x, to = kc.full((count,), TERM), kc.zeros((count,), "int32")
    expected = count * np.float64(TERM)
    assert float(kc.segment_sum(x, to, 2)[0]) == pytest.approx(expected, rel=4e-6)
    assert float(kc.bincount(to, x, length=2)[0]) == pytest.approx(expected, rel=4e-6)
