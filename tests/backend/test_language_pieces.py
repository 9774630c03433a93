"""Language models whose logits are computed in pieces of rows train as with all at once."""

import keras
import numpy as np
import pytest

from kerascl.compiler.graph import pieces


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(pieces, "LEAST_ROWS", 32)


@pytest.fixture
def found(monkeypatch):
    """The rows of the pieces of each product that was taken apart."""
    seen = []
    inner = pieces.sizes

    def noted(product, most):
        seen.append(inner(product, most))
        return seen[-1]

    monkeypatch.setattr(pieces, "sizes", noted)
    return seen


def model_of(words, length, tied):
    inputs = keras.Input((length,), dtype="int32")
    if tied:
        embedding = keras.layers.ReversibleEmbedding(words, 16)
    else:
        embedding = keras.layers.Embedding(words, 16)
    h = keras.layers.Dense(16, activation="relu")(embedding(inputs))
    if not tied:  # an operation of several results outside
        attention = keras.layers.MultiHeadAttention(2, 8, use_bias=False)
        h = h + attention(h, h, use_causal_mask=True)
    z = embedding(h, reverse=True) if tied else keras.layers.Dense(words)(h)
    return keras.Model(inputs, z)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_training_with_keras(policy, tied, found, rng, monkeypatch):
    words, length, batch = 515, 33, 8
    x, y = (rng.integers(0, words, (16, length)) for _ in range(2))
    weights = (rng.random((16, length)) < 0.7).astype(np.float32)
    seed, seen = int(rng.integers(1 << 30)), []
    keras.config.set_dtype_policy(policy)
    for nbytes in (0, batch * length * words * 2 // 4):
        monkeypatch.setenv("KERASCL_PIECE_BYTES", str(nbytes))
        keras.utils.set_random_seed(seed)
        model = model_of(words, length, tied)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5), loss, weighted_metrics=["accuracy"])
        own = dict(sample_weight=weights, batch_size=batch, verbose=0)
        history = model.fit(x, y, epochs=3, shuffle=False, **own).history
        trained = len(found)
        result = model.evaluate(x, y, **own)
        assert (trained > 0, len(found) > trained) == (nbytes > 0, nbytes > 0)
        seen.append((history["loss"], history["accuracy"], result, model.get_weights()))
    tolerance = 1e-5 if policy == "float32" else 2e-3
    for one, other in zip(*(s[:3] for s in seen)):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=2e-3 * (one is seen[0][1]))
    for one, other in zip(seen[0][3], seen[1][3], strict=True):
        assert np.linalg.norm(one - other) <= tolerance * np.linalg.norm(one)
