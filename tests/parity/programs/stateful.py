"""Layers and models that keep a state from batch to batch.

JAX loses the states of stateful layers in fit and predict, as they are not among a model's
variables, and torch cannot train them.
"""

import numpy as np

from tests.parity.kit import draw, program, seen, series


@program(several=2, reference="tensorflow")
def stateful_lstm(keras):
    """States go on from batch to batch, in fit and predict, and are reset between epochs."""
    layers = keras.layers
    x, y = series(24)
    inputs = keras.Input(batch_shape=(8, 6, 4))
    out = layers.Dense(1, name="out")(layers.LSTM(4, stateful=True, name="lstm")(inputs))
    model = keras.Model(inputs, out)
    draw(model)
    model.compile("adam", "mse")
    notes = []
    for _ in range(2):
        history = model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)
        notes.append([history.history, [np.array(s) for s in model.get_layer("lstm").states]])
        model.get_layer("lstm").reset_states()
    first = model.predict(x, batch_size=8, verbose=0)
    second = model.predict(x, batch_size=8, verbose=0)
    states = [np.array(s) for s in model.get_layer("lstm").states]
    found = seen(model, notes=notes, first=first, second=second, states=states)
    del found["optimizer"]["adam/iteration"]  # 64 bits in TensorFlow
    return found


@program(reference="tensorflow")
def stateful_gru_step_by_step(keras):
    """A text generator: one step at a time, with the state kept inside the layer."""
    layers = keras.layers
    inputs = keras.Input(batch_shape=(2, 1, 4))
    gru = layers.GRU(4, stateful=True, return_sequences=True, name="gru")
    model = keras.Model(inputs, gru(inputs))
    draw(model)
    x, told = np.ones((2, 1, 4), "float32"), []
    for step in range(5):
        x = np.array(model.predict(x, verbose=0)) if step % 2 else np.array(model(x))
        told.append(x)
    gru.reset_states()
    return {"told": told, "again": model(np.ones((2, 1, 4), "float32")), "states": gru.states}


@program(several=2)
def a_counter_in_a_model(keras):
    """A model counts its calls, and its learning falls with the count."""

    class Counting(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, name="dense")
            self.count = self.add_weight(
                name="count", shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def call(self, x, training=False):
            if training:
                self.count.assign_add(1)
            return self.dense(x) / (1.0 + keras.ops.cast(self.count, "float32"))

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 4)).astype("float32"), rng.normal(size=(40, 1)).astype("float32")
    model = Counting()
    model(x[:1])
    draw(model)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, x, history=history.history, count=int(model.count))
