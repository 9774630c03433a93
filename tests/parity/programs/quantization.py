"""Models quantised after training, training in float8, and adapters beside int8 kernels."""

import numpy as np

from tests.parity.kit import mlp, program, regression, seen, stack


def _trained(keras, model, x, y, epochs=1):
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return history.history


def _words(keras):
    """A classifier of words with each kind of layer that can be quantised, and its data."""
    layers = keras.layers
    rng = np.random.default_rng(0)
    x = rng.integers(0, 12, (40, 4)).astype("int32")
    model = stack(
        keras, (4,), layers.Embedding(12, 8, name="words"),
        layers.EinsumDense("abc,cd->abd", (4, 6), bias_axes="d", activation="tanh", name="each"),
        layers.Flatten(), layers.Dense(8, "tanh", name="hidden"), layers.Dense(2, name="out"),
        dtype="int32",
    )  # fmt: skip
    return model, x, rng.normal(size=(40, 2)).astype("float32")


def _told(keras, model, x, y):
    """What a quantised model shows, before and after it went through a file."""
    model.compile("sgd", "mse", metrics=["mae"])
    model.save("small.keras")
    other = keras.models.load_model("small.keras")
    return seen(
        model, x, types=[str(w.dtype) for w in model.weights],
        policies=[layer.dtype_policy.name for layer in model.layers],
        scores=model.evaluate(x, y, batch_size=16, verbose=0), loaded=other.predict(x, verbose=0),
    )  # fmt: skip


@program(eager=False)
def int8_after_training(keras):
    model, x, y = _words(keras)
    history = _trained(keras, model, x, y)
    before = model.predict(x, verbose=0)
    model.quantize("int8")
    return _told(keras, model, x, y) | dict(history=history, before=before)


@program(eager=False)
def int4_after_training(keras):
    model, x, y = _words(keras)
    history = _trained(keras, model, x, y)
    model.quantize("int4")
    return _told(keras, model, x, y) | dict(history=history)


@program(eager=False)
def chosen_layers_quantized(keras):
    """Layers by a pattern and by a function; then the rest in another way."""
    model, x, _ = _words(keras)
    model.quantize("int8", filters="hidden|each")
    first = [model.predict(x, verbose=0), *[layer.quantization_mode for layer in model.layers
                                            if hasattr(layer, "quantization_mode")]]  # fmt: skip
    config = keras.quantizers.Int8QuantizationConfig(
        weight_quantizer=keras.quantizers.AbsMaxQuantizer(axis=0, value_range=(-63, 63)),
        activation_quantizer=None,
    )
    model.quantize(config=config, filters=lambda layer: layer.name == "out")
    return seen(model, x, first=first)


@program(several=2)
def float8_training(keras):
    """Scales follow the largest values of the steps before; optimizers write them as they are."""
    x, y = regression()
    model = mlp(keras)
    model.quantize("float8")
    history = _trained(keras, model, x, y, epochs=2)
    return seen(model, x, history=history)


@program
def adapters_beside_int8(keras):
    """LoRA on a quantised layer: only the adapters train; then they are merged into a file."""
    x, y = regression()
    model = stack(keras, (8,), keras.layers.Dense(8, "tanh", name="hidden"),
                  keras.layers.Dense(1, name="out"))  # fmt: skip
    model.quantize("int8")
    model.get_layer("hidden").enable_lora(2)
    model.get_layer("hidden").lora_kernel_a.assign(
        np.random.default_rng(2).normal(size=(8, 2)).astype("float32")
    )
    history = _trained(keras, model, x, y, epochs=2)
    model.save("adapted.keras")
    other = keras.models.load_model("adapted.keras")
    return seen(model, x, history=history, loaded=other.predict(x, verbose=0))
