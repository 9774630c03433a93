"""Layers that draw: backends draw other numbers, so what is told is what is certain of any draw."""

import numpy as np

from tests.parity.kit import program, stack


@program(eager=False)
def random_layers_by_their_statistics(keras):
    """Backends draw different numbers: what is certain of Dropout, noise and augmentation."""
    layers = keras.layers
    x = np.ones((2000, 8), "float32")
    dropped = np.asarray(layers.Dropout(0.25, seed=1)(x, training=True))
    values = np.unique(dropped).tolist()
    noisy = np.asarray(layers.GaussianNoise(0.5, seed=1)(x, training=True)) - 1
    flipped = np.asarray(
        layers.RandomFlip("horizontal", seed=1)(
            np.broadcast_to(np.arange(4.0, dtype="float32")[:, None], (50, 4, 4, 1)).copy(),
            training=True,
        )
    )
    model = stack(keras, (8,), layers.Dropout(0.5, seed=3), layers.Dense(1))
    first = np.asarray(model(x[:50], training=True))
    second = np.asarray(model(x[:50], training=True))
    return {
        "values": values,
        "kept": bool(abs((dropped > 0).mean() - 0.75) < 0.02),
        "noise": bool(abs(noisy.std() - 0.5) < 0.02 and abs(noisy.mean()) < 0.02),
        "columns": np.sort(flipped[..., 0], axis=2), "drawn_anew": bool((first != second).any()),
        "predictions": model.predict(x[:5], verbose=0),
    }  # fmt: skip


@program(eager=False)
def dropouts_by_their_statistics(keras):
    """Which values each kind of dropout leaves, what it drops together, and its moments."""
    layers = keras.layers

    def called(layer, shape):
        return np.asarray(layer(np.ones(shape, "float32"), training=True))

    def near(value, expected, error):
        return bool(abs(value - expected) < error)

    found = {}
    for name, layer, shape in (
        ("line", layers.SpatialDropout1D(0.4, seed=1), (500, 5, 8)),
        ("plane", layers.SpatialDropout2D(0.4, seed=1), (500, 3, 3, 8)),
        ("space", layers.SpatialDropout3D(0.4, seed=1), (500, 2, 2, 2, 8)),
        ("shared", layers.Dropout(0.4, noise_shape=(500, 1, 8), seed=1), (500, 5, 8)),
    ):
        values = called(layer, shape).reshape(500, -1, 8)
        found[name] = [
            np.unique(values), bool((values == values[:, :1]).all()),
            near((values > 0).mean(), 0.6, 0.04),
        ]  # fmt: skip
    alpha = called(layers.AlphaDropout(0.3, seed=2), (500, 40))
    noise = np.random.default_rng(0).normal(size=(500, 40)).astype("float32")
    kept = np.asarray(layers.AlphaDropout(0.3, seed=2)(noise, training=True))
    found["alpha"] = [np.unique(alpha), near(kept.mean(), 0, 0.04), near(kept.std(), 1, 0.04)]
    gauss = called(layers.GaussianDropout(0.2, seed=3), (500, 40))
    found["gaussian"] = [near(gauss.mean(), 1, 0.02), near(gauss.std(), 0.5, 0.02)]
    same = [called(layers.Dropout(0.5, seed=4), (20, 20)) for _ in range(2)]
    found["a seed again"] = bool((same[0] == same[1]).all())
    for rate in (0.0, 0.999):
        found[f"rate {rate}"] = bool(called(layers.Dropout(rate, seed=5), (10, 10)).any())
    return found


@program(several=2)
def dropout_in_training(keras):
    """Each step draws anew, and gradients pass where the step's own draw let values through."""
    losses, changes = [], []
    model = stack(keras, (40,), keras.layers.Dropout(0.5, seed=1), keras.layers.Dense(
        1, use_bias=False, name="out"))  # fmt: skip
    class Note(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.get_layer("out").kernel.assign(np.ones((40, 1), "float32"))

        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            changes.append(1 - np.array(self.model.get_layer("out").kernel)[:, 0])

    model.compile(keras.optimizers.SGD(1.0), lambda y, p: p)
    x = np.ones((1, 40), "float32")
    for _ in range(6):
        model.fit(x, x[:, :1], batch_size=1, epochs=2, verbose=0, callbacks=[Note()])
    evaluated = model.evaluate(x, x[:, :1], verbose=0)
    changes = np.stack(changes)
    return {
        "values": np.unique(changes.round(4)),
        "evaluated": bool(np.isclose(evaluated, 40 - changes[-1].sum(), atol=1e-3)),
        "the loss' own": bool(np.allclose(changes.sum(1), losses, atol=1e-3)),
        "anew": len({c.tobytes() for c in changes}) == len(changes),
        "kept": bool(abs((changes > 0).mean() - 0.5) < 0.1),
    }  # fmt: skip


@program(eager=False)
def augmentations_by_their_bounds(keras):
    """Random layers whose range leaves no choice, or whose results can be told from the input."""
    layers = keras.layers
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3)).astype("float32")
    found = {}
    for name, layer in (
        ("rotation", layers.RandomRotation((0.25, 0.25), seed=1)),
        ("translation", layers.RandomTranslation((0.25, 0.25), (0.5, 0.5), "wrap", seed=1)),
        ("brightness", layers.RandomBrightness((0.1, 0.1), seed=1)),
        ("grayscale", layers.RandomGrayscale(1.0, seed=1)),
        ("invert", layers.RandomInvert((1.0, 1.0), seed=1)),
        ("posterization", layers.RandomPosterization((3, 3), seed=1)),
    ):
        found[name] = layer(x, training=True)
        found[f"{name} in inference"] = bool(
            np.allclose(np.asarray(layer(x, training=False)), np.asarray(found[name]))
        )
    cropped = np.asarray(layers.RandomCrop(5, 5, seed=1)(x, training=True))
    places = [
        [(i, j) for i in range(4) for j in range(4) if (a[i : i + 5, j : j + 5] == b).all()]
        for a, b in zip(x, cropped)
    ]
    flipped = np.asarray(layers.RandomFlip(seed=1)(x, training=True))
    turns = [a[::i, ::j] for a in x for i in (1, -1) for j in (1, -1)]
    erased = np.asarray(layers.RandomErasing(1.0, fill_value=7.0, seed=1)(x, training=True))
    return found | {
        "a place of each crop": [len(place) > 0 for place in places],
        "a turn of each": bool(all(any((f == t).all() for t in turns) for f in flipped)),
        "erased or left": bool(((erased == 7) | (erased == x)).all() and (erased == 7).any()),
    }  # fmt: skip
