"""`keras.random`, on the counter-based generator of `kerascl.ops.random`."""

from __future__ import annotations

from keras.src.backend.config import floatx
from keras.src.random.seed_generator import SeedGenerator, draw_seed, make_default_seed

from kerascl.backend.ops.conversion import convert_to_tensor, find_dtype
from kerascl.core.array import Array
from kerascl.ops import random as generator
from kerascl.ops.gather import take
from kerascl.ops.sorting import argsort

__all__ = [
    "SeedGenerator", "beta", "binomial", "categorical", "draw_seed", "dropout", "gamma",
    "make_default_seed", "normal", "randint", "shuffle", "truncated_normal", "uniform",
]  # fmt: skip


def _key(seed) -> Array:
    return seed if isinstance(seed, Array) else draw_seed(seed)


def _scalar_or_array(x):
    return x if isinstance(x, int | float) else convert_to_tensor(x)


def normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None) -> Array:
    """Floats of a normal distribution."""
    mean, stddev = _scalar_or_array(mean), _scalar_or_array(stddev)
    return generator.normal(_key(seed), shape, mean, stddev, find_dtype(dtype or floatx()))


def truncated_normal(shape, mean=0.0, stddev=1.0, dtype=None, seed=None) -> Array:
    """Floats of a normal distribution, all within two standard deviations of the mean."""
    mean, stddev = _scalar_or_array(mean), _scalar_or_array(stddev)
    dtype = find_dtype(dtype or floatx())
    return generator.truncated_normal(_key(seed), shape, mean, stddev, dtype)


def uniform(shape, minval=0.0, maxval=1.0, dtype=None, seed=None) -> Array:
    """Floats uniform over [minval, maxval)."""
    minval, maxval = _scalar_or_array(minval), _scalar_or_array(maxval)
    return generator.uniform(_key(seed), shape, minval, maxval, find_dtype(dtype or floatx()))


def randint(shape, minval, maxval, dtype="int32", seed=None) -> Array:
    """Integers uniform over [minval, maxval)."""
    minval, maxval = _scalar_or_array(minval), _scalar_or_array(maxval)
    return generator.randint(_key(seed), shape, minval, maxval, find_dtype(dtype))


def categorical(logits, num_samples, dtype="int32", seed=None) -> Array:
    """(rows, num_samples) classes drawn with probability softmax(logits)."""
    logits = convert_to_tensor(logits)
    return generator.categorical(_key(seed), logits, num_samples, find_dtype(dtype))


def dropout(inputs, rate, noise_shape=None, seed=None) -> Array:
    """`inputs / (1 - rate)` with elements zeroed at random, at the given rate."""
    inputs = convert_to_tensor(inputs)
    if rate == 0.0:
        return inputs
    return generator.dropout(_key(seed), inputs, rate, noise_shape)


def shuffle(x, axis=0, seed=None) -> Array:
    """The slices of `x` along `axis` in a random order."""
    x = convert_to_tensor(x)
    return take(x, argsort(generator.random_bits(_key(seed), (x.shape[axis],))), axis)


def gamma(shape, alpha, dtype=None, seed=None) -> Array:
    """Floats of a gamma distribution of shape `alpha` and scale 1."""
    alpha = convert_to_tensor(alpha)
    return generator.gamma(_key(seed), shape, alpha, find_dtype(dtype or floatx()))


def binomial(shape, counts, probabilities, dtype=None, seed=None) -> Array:
    """Numbers of successes in `counts` trials of chance `probabilities`."""
    counts, probabilities = convert_to_tensor(counts), convert_to_tensor(probabilities)
    dtype = find_dtype(dtype or floatx())
    return generator.binomial(_key(seed), shape, counts, probabilities, dtype)


def beta(shape, alpha, beta, dtype=None, seed=None) -> Array:
    """Floats of a beta distribution."""
    alpha, beta = convert_to_tensor(alpha), convert_to_tensor(beta)
    return generator.beta(_key(seed), shape, alpha, beta, find_dtype(dtype or floatx()))
