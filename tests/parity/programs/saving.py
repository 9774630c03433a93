"""Models and weights written, read and trained on."""

import json
import os
import zipfile

import numpy as np

from tests.parity.kit import draw, h5_content, images, mlp, program, regression, seen, stack


def _fit(model, x, y, epochs=2):
    return model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0).history


@program(several=2)
def saved_and_resumed(keras):
    """A .keras file in the middle of training: Adam's state goes on as if nothing had been."""
    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
    first = _fit(model, x, y)
    model.save("model.keras")
    other = keras.models.load_model("model.keras")
    same = np.array_equal(model.predict(x, verbose=0), other.predict(x, verbose=0))
    return {
        "first": first, "same": same, "there": seen(other, x, history=_fit(other, x, y)),
        "here": seen(model, x, history=_fit(model, x, y)),
    }  # fmt: skip


@program
def what_a_keras_file_holds(keras):
    """Names, shapes and values of everything in it."""
    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.RMSprop(0.01, momentum=0.5), "mse", metrics=["mae"])
    _fit(model, x, y)
    model.save("model.keras")
    with zipfile.ZipFile("model.keras") as file:
        names = sorted(file.namelist())
        config = json.loads(file.read("config.json"))
        file.extract("model.weights.h5")
    return {
        "names": names, "weights": h5_content("model.weights.h5"),
        # but for dtype policies, which are told apart by addresses in memory
        "layers": [
            {k: v for k, v in layer["config"].items() if k != "dtype"}
            for layer in config["config"]["layers"]
        ],
        "compiled": config["compile_config"],
    }  # fmt: skip


@program
def weights_alone(keras):
    """.weights.h5 of a network with convolutions, batch normalisation and an LSTM."""
    layers = keras.layers

    def made(seed):
        keras.utils.clear_session(free_memory=False)
        return stack(
            keras, (8, 8, 3), layers.Conv2D(4, 3), layers.BatchNormalization(),
            layers.Reshape((6, 24)), layers.LSTM(3), layers.Dense(2), seed=seed,
        )  # fmt: skip

    x, _ = images(4)
    model = made(0)
    model.save_weights("net.weights.h5")
    other = made(1)
    before = other.predict(x, verbose=0)
    other.load_weights("net.weights.h5")
    return {
        "content": h5_content("net.weights.h5"), "before": before,
        "after": other.predict(x, verbose=0), "here": model.predict(x, verbose=0),
    }  # fmt: skip


@program
def legacy_h5(keras):
    """A whole model in one .h5 file."""
    x, y = regression()
    model = mlp(keras)
    model.compile("adam", "mse")
    _fit(model, x, y)
    model.save("model.h5")
    other = keras.models.load_model("model.h5", compile=False)
    other.compile("sgd", "mse")
    return {"history": _fit(other, x, y), "content": h5_content("model.h5")}


@program
def objects_of_ones_own(keras):
    """Custom layers, losses and metrics found again by their registered names."""
    register = keras.saving.register_keras_serializable

    @register("parity")
    class Scaled(keras.layers.Layer):
        def __init__(self, factor, **options):
            super().__init__(**options)
            self.factor = factor

        def build(self, shape):
            self.shift = self.add_weight(name="shift", shape=(shape[-1],), initializer="zeros")

        def call(self, x):
            return self.factor * x + self.shift

        def get_config(self):
            return super().get_config() | {"factor": self.factor}

    @register("parity")
    def quartic(y_true, y_pred):
        return keras.ops.mean((y_true - y_pred) ** 4, axis=-1)

    x, y = regression()
    model = stack(keras, (8,), keras.layers.Dense(4, "tanh"), Scaled(1.5), keras.layers.Dense(1))
    model.compile("adam", quartic, metrics=[quartic])
    first = _fit(model, x, y)
    model.save("model.keras")
    other = keras.models.load_model("model.keras")
    return seen(other, x, first=first, history=_fit(other, x, y))


@program
def part_of_the_weights(keras):
    """A trained base taken over by another model; weights by layer; skipped mismatches."""
    x, y = regression()
    model = mlp(keras, 2)
    model.compile("adam", "mse")
    _fit(model, x, np.concatenate([y, -y], 1))
    model.save_weights("base.weights.h5")
    keras.utils.clear_session(free_memory=False)
    other = mlp(keras, 1, seed=5)
    other.load_weights("base.weights.h5", skip_mismatch=True)
    other.get_layer("out").set_weights([w[..., :1] for w in model.get_layer("out").get_weights()])
    return {"weights": other.get_weights(), "predictions": other.predict(x, verbose=0)}


@program
def checkpoints_by_hand(keras):
    """The best weights kept in memory and in files inside a loop of train_on_batch."""
    x, y = regression(64)
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.9), "mse")
    best, losses, kept = np.inf, [], None
    for step in range(6):
        part = slice(8 * step, 8 * step + 8)
        model.train_on_batch(x[part], y[part])
        loss = model.evaluate(x, y, verbose=0)
        losses.append(float(loss))
        if loss < best:
            best, kept = loss, model.get_weights()
            model.save_weights("best.weights.h5")
    last = model.get_weights()
    model.load_weights("best.weights.h5")
    same = all(np.array_equal(a, b) for a, b in zip(kept, model.get_weights()))
    return seen(model, x, losses=losses, last=last, same=same, files=os.listdir("."))


@program
def copies_and_pickles(keras):
    """copy.deepcopy and pickle of models and variables in the middle of training."""
    import copy
    import pickle

    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    _fit(model, x, y)
    bytes_ = pickle.loads(pickle.dumps(model))
    twin = copy.deepcopy(model)
    kernel = copy.deepcopy(model.layers[0].kernel)
    _fit(model, x, y)
    kernel.assign(kernel * 2)
    return {
        "model": model.get_weights(), "pickled": bytes_.predict(x, verbose=0),
        "twin": twin.predict(x, verbose=0), "kernel": kernel,
    }  # fmt: skip


@program
def a_network_saved_in_parts(keras):
    """Layers written by export-like hands: get_weights into .npz and back."""
    x, _ = regression()
    model = mlp(keras)
    np.savez("weights.npz", *model.get_weights())
    other = draw(keras.models.clone_model(model), 9)
    with np.load("weights.npz") as stored:
        other.set_weights([stored[name] for name in stored.files])
    return {"here": model.predict(x, verbose=0), "there": other.predict(x, verbose=0)}
