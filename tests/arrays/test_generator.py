"""Distributions against SciPy's: the largest distance of distribution functions, whose bound holds
with a chance of 1 - 1e-9 (Dvoretzky, Kiefer, Wolfowitz, Massart)."""

import pickle

import numpy as np
import pytest
from scipy import stats

import kerascl as kc

COUNT = 20000
BOUND = np.sqrt(np.log(2 / 1e-9) / (2 * COUNT))
SIZE = (COUNT // 4, 4)

DISTRIBUTIONS = [
    ("random", (), stats.uniform()),
    ("uniform", (-2.0, 3.0), stats.uniform(-2, 5)),
    ("standard_normal", (), stats.norm()),
    ("normal", (1.0, 2.0), stats.norm(1, 2)),
    ("lognormal", (0.5, 0.7), stats.lognorm(0.7, scale=np.exp(0.5))),
    ("standard_exponential", (), stats.expon()),
    ("exponential", (2.5,), stats.expon(scale=2.5)),
    ("standard_gamma", (0.7,), stats.gamma(0.7)),
    ("gamma", (3.0, 2.0), stats.gamma(3, scale=2)),
    ("beta", (2.0, 0.8), stats.beta(2, 0.8)),
    ("chisquare", (3.0,), stats.chi2(3)),
    ("standard_t", (4.0,), stats.t(4)),
    ("standard_cauchy", (), stats.cauchy()),
    ("laplace", (1.0, 2.0), stats.laplace(1, 2)),
    ("logistic", (1.0, 2.0), stats.logistic(1, 2)),
    ("gumbel", (1.0, 2.0), stats.gumbel_r(1, 2)),
    ("rayleigh", (2.0,), stats.rayleigh(scale=2)),
    ("weibull", (1.5,), stats.weibull_min(1.5)),
    ("pareto", (2.5,), stats.lomax(2.5)),
    ("triangular", (-1.0, 0.5, 2.0), stats.triang(0.5, -1, 3)),
]
COUNTS = [
    ("integers", (-3, 9), stats.randint(-3, 9)),
    ("binomial", (20, 0.3), stats.binom(20, 0.3)),
    ("negative_binomial", (3.0, 0.4), stats.nbinom(3, 0.4)),
    ("poisson", (0.8,), stats.poisson(0.8)),
    ("poisson", (7.0,), stats.poisson(7)),
    ("poisson", (31.0,), stats.poisson(31)),
    ("poisson", (2000.0,), stats.poisson(2000)),
    ("geometric", (0.3,), stats.geom(0.3)),
]


@pytest.mark.parametrize("name, args, expected", DISTRIBUTIONS, ids=lambda x: str(x)[:20])
def test_floats(rng, name, args, expected):
    draws = getattr(kc.random.default_rng(int(rng.integers(2**63))), name)(*args, size=SIZE)
    assert draws.shape == SIZE and draws.dtype == kc.float32
    x = np.sort(draws.numpy().ravel().astype(float))
    places = expected.cdf(x)
    steps = np.arange(COUNT + 1) / COUNT
    assert max((steps[1:] - places).max(), (places - steps[:-1]).max()) < BOUND


@pytest.mark.parametrize("name, args, expected", COUNTS, ids=lambda x: str(x)[:20])
def test_counts(rng, name, args, expected):
    draws = getattr(kc.random.default_rng(int(rng.integers(2**63))), name)(*args, size=SIZE)
    assert draws.shape == SIZE and draws.dtype == kc.int32
    x = np.sort(draws.numpy().ravel())
    values = np.arange(x[0] - 1, x[-1] + 2)
    found = np.searchsorted(x, values, "right") / COUNT
    assert abs(found - expected.cdf(values)).max() < BOUND


def test_dirichlet(rng):
    x = kc.random.default_rng(int(rng.integers(2**63))).dirichlet([1.0, 2.0, 3.0], size=COUNT)
    np.testing.assert_allclose(x.numpy().sum(-1), 1, rtol=1e-5)
    first = np.sort(x.numpy()[:, 0].astype(float))
    assert abs(stats.beta(1, 5).cdf(first) - np.arange(COUNT) / COUNT).max() < BOUND + 1 / COUNT


def test_choice(rng):
    generator = kc.random.default_rng(int(rng.integers(2**63)))
    chances = np.array([0.1, 0.2, 0.0, 0.7], "f")
    values = kc.array(rng.normal(size=(4, 2)).astype("f"))
    drawn = generator.choice(4, size=COUNT, p=chances).numpy()
    frequencies = np.bincount(drawn, minlength=4) / COUNT
    assert abs(np.cumsum(frequencies) - np.cumsum(chances)).max() < BOUND
    rows = generator.choice(values, size=(3, 5))
    assert rows.shape == (3, 5, 2)
    assert np.isin(rows.numpy(), values.numpy()).all()
    assert sorted(generator.choice(6, 6, replace=False).tolist()) == list(range(6))
    few = generator.choice(4, 3, replace=False, p=chances).tolist()
    assert sorted(few) == [0, 1, 3]  # chances of 0 are never drawn
    for wrong in ((3, 4, False), (0, 1), (3, 2, True, [0.5, 0.5])):
        with pytest.raises(ValueError, match="choice"):
            generator.choice(*wrong)


def test_orders(rng):
    generator = kc.random.default_rng(int(rng.integers(2**63)))
    host = rng.normal(size=(50, 3)).astype("f")
    x = kc.array(host)
    found = generator.permutation(x).numpy()
    assert (found != host).any()
    np.testing.assert_array_equal(np.sort(found, 0), np.sort(host, 0))
    np.testing.assert_array_equal(found[np.argsort(found[:, 0])], host[np.argsort(host[:, 0])])
    generator.shuffle(x)
    np.testing.assert_array_equal(np.sort(x.numpy(), 0), np.sort(host, 0))
    columns = generator.permutation(kc.array(host), axis=1).numpy()
    np.testing.assert_array_equal(np.sort(columns, 1), np.sort(host, 1))


def test_seeds_and_keys(rng):
    seed = int(rng.integers(2**63))
    a, b = kc.random.default_rng(seed), kc.random.default_rng(seed)
    first = a.normal(size=8).numpy()
    np.testing.assert_array_equal(first, b.normal(size=8).numpy())
    assert (first != a.normal(size=8).numpy()).all()
    kc.random.seed(seed)
    again = kc.random.randn(8).numpy()
    np.testing.assert_array_equal(first, again)
    assert (kc.random.randn(8).numpy() != again).all() and kc.random.rand(2, 3).shape == (2, 3)
    key = kc.random.key(seed)
    keys = kc.random.split(key, 4).numpy().tolist()
    keys += [kc.random.fold_in(key, k).tolist() for k in range(4)] + [key.tolist()]
    assert len({tuple(k) for k in keys}) == 9
    with pytest.raises(ValueError, match="default_rng"):
        kc.random.normal(0.0, (3,))
    assert kc.random.default_rng(a) is a
    children = [c.random(4).tolist() for c in a.spawn(3)]
    assert len({tuple(c) for c in children}) == 3
    copied = pickle.loads(pickle.dumps(a))
    np.testing.assert_array_equal(copied.random(4).numpy(), a.random(4).numpy())


def test_captured_functions_draw_new_numbers(rng):
    generator = kc.random.default_rng(int(rng.integers(2**63)))
    draw = kc.jit(lambda: generator.normal(size=6))
    assert (draw().numpy() != draw().numpy()).all()


def test_parameters_broadcast(rng):
    means = rng.normal(size=(3, 1)).astype("f") * 100
    found = kc.random.default_rng(1).normal(kc.array(means), kc.ones(4))
    assert found.shape == (3, 4)
    np.testing.assert_allclose(found.numpy(), np.broadcast_to(means, (3, 4)), atol=8)
