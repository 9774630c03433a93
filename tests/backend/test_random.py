"""`keras.random`: seeds, shapes and dtypes (distributions are tested with the generator)."""

import keras
import numpy as np
import pytest
from keras.src import backend

import kerascl as kc

LOGITS = np.zeros((3, 50), "float32")
CALLS = {
    "normal": lambda seed: keras.random.normal((3, 4), seed=seed),
    "uniform": lambda seed: keras.random.uniform((3, 4), seed=seed),
    "randint": lambda seed: keras.random.randint((3, 4), 0, 1000, seed=seed),
    "truncated_normal": lambda seed: keras.random.truncated_normal((3, 4), seed=seed),
    "categorical": lambda seed: keras.random.categorical(LOGITS, 8, seed=seed),
    "dropout": lambda seed: keras.random.dropout(np.ones((8, 8), "float32"), 0.5, seed=seed),
    "shuffle": lambda seed: keras.random.shuffle(np.arange(30), seed=seed),
    "gamma": lambda seed: keras.random.gamma((3, 4), 2.0, seed=seed),
    "beta": lambda seed: keras.random.beta((3, 4), 2.0, 3.0, seed=seed),
    "binomial": lambda seed: keras.random.binomial((3, 40), 50, 0.5, seed=seed),
}


@pytest.mark.parametrize("name", CALLS)
def test_seeds(name):
    call = CALLS[name]
    first = np.asarray(call(1337))
    np.testing.assert_array_equal(first, np.asarray(call(1337)))
    assert not np.array_equal(first, np.asarray(call(1338)))
    generator = keras.random.SeedGenerator(1337)
    drawn = [np.asarray(call(generator)) for _ in range(2)]
    assert not np.array_equal(*drawn)
    np.testing.assert_array_equal(drawn[0], first)
    np.testing.assert_array_equal(generator.state.value.numpy(), [1337, 2])


def test_global_seed():
    keras.utils.set_random_seed(5)
    a = np.asarray(keras.random.normal((6,)))
    b = np.asarray(keras.random.normal((6,)))
    keras.utils.set_random_seed(5)
    np.testing.assert_array_equal(np.asarray(keras.random.normal((6,))), a)
    assert not np.array_equal(a, b)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtypes(dtype):
    for function in (keras.random.normal, keras.random.uniform, keras.random.truncated_normal):
        assert backend.standardize_dtype(function((2,), dtype=dtype, seed=1).dtype) == dtype
    assert backend.standardize_dtype(keras.random.gamma((2,), 1.5, dtype, seed=1).dtype) == dtype


def test_parameters_may_be_tensors():
    mean = keras.ops.convert_to_tensor([0.0, 100.0])
    x = backend.random.normal((500, 2), mean, 2.0, seed=3).numpy()
    np.testing.assert_allclose(x.mean(0), [0, 100], atol=0.5)
    x = backend.random.uniform((500, 2), mean, mean + 1, seed=3).numpy()
    assert ((x >= [0, 100]) & (x <= [1, 101])).all()


def test_shuffle_moves_whole_slices():
    x = np.arange(60).reshape(4, 15)
    y = np.asarray(keras.random.shuffle(x, axis=1, seed=2))
    order = y[0] - x[0, 0]
    assert sorted(order) == list(range(15)) and (order != np.arange(15)).any()
    np.testing.assert_array_equal(y, x[:, order])


def test_shuffle_reaches_every_order():
    seen = {tuple(np.asarray(keras.random.shuffle(np.arange(3), seed=k))) for k in range(60)}
    assert len(seen) == 6


def test_dropout_edges():
    x = kc.ones((4, 4))
    assert keras.random.dropout(x, 0.0, seed=1) is x
    np.testing.assert_array_equal(np.asarray(keras.random.dropout(x, 1.0, seed=1)), 0)
    y = np.asarray(keras.random.dropout(np.ones((6, 5, 4), "float32"), 0.5, (6, 1, 4), seed=1))
    assert (y == y[:, :1]).all()


def test_a_seed_may_be_a_key():
    key = kc.array([7, 0], "uint32")
    np.testing.assert_array_equal(
        backend.random.normal((4,), seed=key).numpy(), np.asarray(keras.random.normal((4,), seed=7))
    )
