"""`kerascl.random`: functions of keys, and NumPy's generator, which keeps its own.

```python
k = kerascl.random.key(0)                       # as JAX: the same key gives the same numbers
a, b = kerascl.random.split(k)
x = kerascl.random.normal(a, (2, 3))

rng = kerascl.random.default_rng(0)             # as NumPy: each call gives new numbers
y = rng.normal(size=(2, 3))
```
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, State
from kerascl.core.types import ShapeLike
from kerascl.dtypes import DTypeLike, float32, int32
from kerascl.ops import distributions
from kerascl.ops import random as functions
from kerascl.ops.contraction import matmul
from kerascl.ops.declare import as_array, cast_to, is_scalar
from kerascl.ops.decompositions import cholesky
from kerascl.ops.distributions import *  # noqa: F403  (its names are these)
from kerascl.ops.movement import swapaxes
from kerascl.ops.random import *  # noqa: F403

__all__ = [
    *functions.__all__, *distributions.__all__, "Generator", "default_rng", "rand", "randn", "seed",
]  # fmt: skip


def _shape(size: ShapeLike | None, *parameters: ArrayLike) -> tuple[int, ...]:
    """What `size` says; else the shape that parameters broadcast to."""
    if size is not None:
        return rules.normalize_shape(size)
    shapes = [as_array(p).shape for p in parameters if not is_scalar(p)]
    return rules.broadcast(*shapes) if shapes else ()


class Generator:
    """Random numbers with NumPy's methods, drawn on the device.

    The numbers are those of the functions of `kerascl.random`, with a key that every call replaces.
    It is kept in a `State`, so that captured functions draw new numbers each time, too.  `size` is
    the result's shape; by default that of the parameters.

    Args:
        seed: an integer; None for one that nobody knows.
    """

    def __init__(self, seed: int | None = None):
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        self._key = State(functions.key(seed), "random generator")

    def key(self) -> Array:
        """A new key, for the functions of `kerascl.random`."""
        keys = functions.split(self._key.value)
        self._key.assign(keys[0])
        return keys[1]

    def spawn(self, n_children: int) -> list[Generator]:
        """Generators that are independent of this one and of each other."""
        made = []
        for key in functions.split(self.key(), n_children):
            child = Generator(0)
            child._key.assign(key)
            made.append(child)
        return made

    def random(self, size: ShapeLike | None = None, dtype: DTypeLike = float32) -> Array:
        """Floats uniform over [0, 1)."""
        return functions.uniform(self.key(), _shape(size), dtype=dtype)

    def uniform(
        self, low: ArrayLike = 0.0, high: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats uniform over [low, high)."""
        return functions.uniform(self.key(), _shape(size, low, high), low, high)

    def integers(
        self,
        low: ArrayLike,
        high: ArrayLike | None = None,
        size: ShapeLike | None = None,
        dtype: DTypeLike = int32,
        endpoint: bool = False,
    ) -> Array:
        """Integers uniform over [low, high), or [0, low) without `high`; `endpoint` includes it."""
        low, high = (0, low) if high is None else (low, high)
        if endpoint:
            high = high + 1 if is_scalar(high) else as_array(high) + 1
        return functions.randint(self.key(), _shape(size, low, high), low, high, dtype)

    def standard_normal(self, size: ShapeLike | None = None, dtype: DTypeLike = float32) -> Array:
        """Floats of the normal distribution of mean 0 and deviation 1."""
        return functions.normal(self.key(), _shape(size), dtype=dtype)

    def normal(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats of a normal distribution of mean `loc` and deviation `scale`."""
        return functions.normal(self.key(), _shape(size, loc, scale), loc, scale)

    def lognormal(
        self, mean: ArrayLike = 0.0, sigma: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats whose logarithms are normal."""
        return distributions.lognormal(self.key(), _shape(size, mean, sigma), mean, sigma)

    def multivariate_normal(
        self, mean: ArrayLike, cov: ArrayLike, size: ShapeLike | None = None
    ) -> Array:
        """Vectors of a normal distribution of mean `mean` (k,) and covariance `cov` (k, k): an
        array of shape `size + (k,)`."""
        mean = as_array(mean, float32)
        noise = functions.normal(self.key(), (*_shape(size), mean.size))
        lower = cholesky(as_array(cov, float32))
        return matmul(noise, swapaxes(lower, 0, 1)) + mean

    def standard_exponential(self, size: ShapeLike | None = None) -> Array:
        """Floats of the exponential distribution of mean 1."""
        return distributions.exponential(self.key(), _shape(size))

    def exponential(self, scale: ArrayLike = 1.0, size: ShapeLike | None = None) -> Array:
        """Floats of an exponential distribution of mean `scale`."""
        return distributions.exponential(self.key(), _shape(size, scale), scale)

    def standard_gamma(self, shape: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of a gamma distribution of scale 1."""
        return functions.gamma(self.key(), _shape(size, shape), shape)

    def gamma(
        self, shape: ArrayLike, scale: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats of a gamma distribution."""
        return functions.gamma(self.key(), _shape(size, shape, scale), shape) * scale

    def beta(self, a: ArrayLike, b: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of a beta distribution."""
        return functions.beta(self.key(), _shape(size, a, b), a, b)

    def chisquare(self, df: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of a chi-square distribution."""
        return distributions.chisquare(self.key(), _shape(size, df), df)

    def standard_t(self, df: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of Student's t distribution."""
        return distributions.student_t(self.key(), _shape(size, df), df)

    def standard_cauchy(self, size: ShapeLike | None = None) -> Array:
        """Floats of the standard Cauchy distribution."""
        return distributions.cauchy(self.key(), _shape(size))

    def laplace(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats of a Laplace distribution."""
        return distributions.laplace(self.key(), _shape(size, loc, scale), loc, scale)

    def logistic(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats of a logistic distribution."""
        return distributions.logistic(self.key(), _shape(size, loc, scale), loc, scale)

    def gumbel(
        self, loc: ArrayLike = 0.0, scale: ArrayLike = 1.0, size: ShapeLike | None = None
    ) -> Array:
        """Floats of a Gumbel distribution."""
        return distributions.gumbel(self.key(), _shape(size, loc, scale), loc, scale)

    def rayleigh(self, scale: ArrayLike = 1.0, size: ShapeLike | None = None) -> Array:
        """Floats of a Rayleigh distribution."""
        return distributions.rayleigh(self.key(), _shape(size, scale), scale)

    def weibull(self, a: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of a Weibull distribution of scale 1."""
        return distributions.weibull(self.key(), _shape(size, a), a)

    def pareto(self, a: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Floats of a Pareto II (Lomax) distribution, from 0 on."""
        return distributions.pareto(self.key(), _shape(size, a), a)

    def triangular(
        self, left: ArrayLike, mode: ArrayLike, right: ArrayLike, size: ShapeLike | None = None
    ) -> Array:
        """Floats over [left, right] whose density rises to `mode` and falls after it."""
        shape = _shape(size, left, mode, right)
        return distributions.triangular(self.key(), shape, left, mode, right)

    def dirichlet(self, alpha: ArrayLike, size: ShapeLike | None = None) -> Array:
        """Vectors of positive numbers whose sum is 1: an array of shape `size + (k,)`."""
        return distributions.dirichlet(self.key(), alpha, _shape(size))

    def binomial(self, n: ArrayLike, p: ArrayLike, size: ShapeLike | None = None) -> Array:
        """int32 numbers of successes in `n` trials of chance `p`."""
        return cast_to(functions.binomial(self.key(), _shape(size, n, p), n, p), int32)

    def negative_binomial(self, n: ArrayLike, p: ArrayLike, size: ShapeLike | None = None) -> Array:
        """int32 numbers of failures before `n` successes in trials of chance `p`."""
        found = distributions.negative_binomial(self.key(), _shape(size, n, p), n, p)
        return cast_to(found, int32)

    def poisson(self, lam: ArrayLike = 1.0, size: ShapeLike | None = None) -> Array:
        """int32 numbers of events of mean `lam`."""
        return cast_to(functions.poisson(self.key(), _shape(size, lam), lam), int32)

    def geometric(self, p: ArrayLike, size: ShapeLike | None = None) -> Array:
        """int32 numbers of trials of chance `p` to the first success."""
        return distributions.geometric(self.key(), _shape(size, p), p)

    def permutation(self, x: ArrayLike, axis: int = 0) -> Array:
        """The slices of `x` along `axis` in a random order; of an integer, the numbers below it."""
        return distributions.permutation(self.key(), x, axis)

    def shuffle(self, x: Array, axis: int = 0) -> None:
        """Put the slices of the Array `x` along `axis` into a random order, in place."""
        x[...] = distributions.permutation(self.key(), x, axis)

    def choice(
        self,
        a: ArrayLike,
        size: ShapeLike | None = None,
        replace: bool = True,
        p: ArrayLike | None = None,
        axis: int = 0,
    ) -> Array:
        """Slices of `a` along `axis`, or numbers below the integer `a`; see `random.choice`."""
        return distributions.choice(self.key(), a, _shape(size), replace, p, axis)

    def __repr__(self) -> str:
        return "<kerascl.random.Generator>"


def default_rng(seed: int | Generator | None = None) -> Generator:
    """A `Generator`: NumPy's way of drawing; of a Generator, that one."""
    return seed if isinstance(seed, Generator) else Generator(seed)


_common: list[Generator] = []


def _of_process() -> Generator:
    if not _common:
        _common.append(Generator())
    return _common[0]


def seed(seed: int) -> None:
    """Begin the numbers of `rand` and `randn` anew; they are other ones than NumPy's."""
    _common[:] = [Generator(seed)]


def rand(*shape: int) -> Array:
    """Floats uniform over [0, 1), each call others; see `seed` and `default_rng`."""
    return _of_process().random(shape)


def randn(*shape: int) -> Array:
    """Floats of the standard normal distribution, each call others; see `seed`, `default_rng`."""
    return _of_process().standard_normal(shape)


def __dir__() -> list[Any]:
    return sorted(__all__)
