"""Mixed precision: float16 in the middle, float32 weights and outputs, a loss that is scaled."""

import keras
import numpy as np
from keras import layers


def main():
    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    keras.mixed_precision.set_global_policy("mixed_float16")
    inputs = keras.Input((20,))
    hidden = layers.Dense(32, activation="relu")(inputs)
    outputs = layers.Activation("softmax", dtype="float32")(layers.Dense(3)(hidden))
    model = keras.Model(inputs, outputs)
    assert hidden.dtype == "float16" and outputs.dtype == "float32"
    assert {w.dtype for w in model.weights} == {"float32"}
    x = rng.normal(size=(96, 20)).astype("float32")
    y = (x @ rng.normal(size=(20, 3))).argmax(1)
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy")
    assert isinstance(model.optimizer, keras.mixed_precision.LossScaleOptimizer)
    losses = model.fit(x, y, batch_size=32, epochs=6, verbose=2).history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    k1, b1, k2, b2 = model.get_weights()
    logits = np.maximum(x @ k1 + b1, 0) @ k2 + b2
    expected = np.exp(logits - logits.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, atol=0.02)


if __name__ == "__main__":
    main()
