"""Keras' attention in training, where what dropout keeps is left for the gradients."""

import keras
import numpy as np

import kerascl as kc
from kerascl.kernels.attention import kept


def trained():
    keras.utils.set_random_seed(3)
    layer = keras.layers.MultiHeadAttention(4, 8, dropout=0.2)
    x = keras.Input((16, 32))
    model = keras.Model(x, layer(x, x))
    model.compile("sgd", "mse")
    rows = np.random.default_rng(0).normal(size=(8, 16, 32)).astype(np.float32)
    history = model.fit(rows, rows, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), *history["loss"]]


def test_weights_after_training_are_the_same(monkeypatch):
    """MultiHeadAttention writes attention out, which the compiler makes one operation of."""
    wanted, found, plan = trained(), [], kept.plan
    monkeypatch.setattr(kept, "serves", lambda *_: True)
    monkeypatch.setattr(kept, "plan", lambda p, *rest: found.append(p) or plan(p, *rest))
    monkeypatch.setattr(kc.engine, "programs", {})  # which were made before
    for a, b in zip(trained(), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert [(p.kept, p.grad is not None) for p in found] == [(True, False), (True, True)]
