"""Models saved and loaded: whole, as weights, as config, with objects of one's own."""

import keras
import numpy as np
from keras import layers, ops


@keras.saving.register_keras_serializable(package="guides", name="scaled")
class Scaled(layers.Layer):
    """A dense layer with a factor, and an activation of one's own."""

    def __init__(self, units, factor, **kwargs):
        super().__init__(**kwargs)
        self.factor, self.dense = factor, layers.Dense(units)

    def call(self, x):
        return bent(self.dense(x) * self.factor)

    def get_config(self):
        return {**super().get_config(), "units": self.dense.units, "factor": self.factor}


@keras.saving.register_keras_serializable(package="guides")
def bent(x):
    return ops.tanh(x) ** 2


def main():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 5)).astype("float32"), rng.normal(size=(32, 2)).astype("float32")
    inputs = keras.Input((5,))
    model = keras.Model(inputs, layers.Dense(2)(Scaled(6, 0.5)(inputs)))
    model.compile(keras.optimizers.Adam(0.01), "mse")
    model.fit(x, y, verbose=0)
    model.save("model.keras")
    loaded = keras.saving.load_model("model.keras")
    expected = model.predict(x, verbose=0)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), expected)
    # the optimizer's state is in the file: both go on in the same way
    for each in (model, loaded):
        each.fit(x, y, epochs=2, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    assert int(loaded.optimizer.iterations) == int(model.optimizer.iterations) == 3

    model.save_weights("m.weights.h5")
    twin = keras.Model.from_config(model.get_config())
    twin.load_weights("m.weights.h5")
    np.testing.assert_array_equal(twin.predict(x, verbose=0), model.predict(x, verbose=0))
    text = keras.models.model_from_json(model.to_json())
    text.set_weights(model.get_weights())
    np.testing.assert_array_equal(text(x).numpy(), model(x).numpy())
    clone = keras.models.clone_model(model)
    assert (clone.get_weights()[0] != model.get_weights()[0]).any()


if __name__ == "__main__":
    main()
