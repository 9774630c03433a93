"""Every normalisation layer and its options, in small networks that train."""

import numpy as np

from tests.parity.kit import classes, draw, images, program, regression, seen, series, stack


def _train(keras, model, x, y, epochs=2, **more):
    model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse", metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0)
    return seen(model, x, history=history.history, **more)


@program(several=2)
def rms_normalization(keras):
    """Over the last axis and over two, with a large epsilon; beside the older rms_scaling."""
    layers = keras.layers
    x, y = series(32, 4, 6)
    model = stack(
        keras, (4, 6), layers.RMSNormalization(name="last"), layers.Dense(5, "tanh", name="hidden"),
        layers.RMSNormalization(axis=[1, 2], epsilon=0.1, name="two"),
        layers.LayerNormalization(rms_scaling=True, name="scaled"), layers.Flatten(),
        layers.Dense(1, name="out"),
    )  # fmt: skip
    return _train(keras, model, x, y, again=model.get_layer("two")(x[:2, :, :5]))


@program(several=2)
def layer_normalization_options(keras):
    """Axes, without centre or scale, constraints and regularizers, 16 bits beneath 32."""
    layers = keras.layers
    x, y = series(32, 4, 6)
    model = stack(
        keras, (4, 6), layers.LayerNormalization(axis=1, epsilon=0.2, name="first"),
        layers.LayerNormalization(axis=[-2, -1], center=False, name="both"),
        layers.LayerNormalization(
            scale=False, beta_regularizer="l2", beta_constraint="non_neg", name="shifted"
        ),
        layers.LayerNormalization(gamma_regularizer=keras.regularizers.L1(0.1), name="last"),
        layers.Flatten(), layers.Dense(1, name="out"),
    )  # fmt: skip
    half = layers.LayerNormalization(dtype="float16", name="half")(1000 * x[:2].astype("float16"))
    return _train(keras, model, x, y, half=half)


@program(several=2)
def group_normalization(keras):
    """Groups of two, one group, a group for each channel; channels in front of pictures."""
    layers = keras.layers
    x, y = images(32, 4, 4)
    y = y[:, None].astype("float32")
    model = stack(
        keras, (4, 4, 4), layers.GroupNormalization(2, name="two"), layers.Activation("tanh"),
        layers.GroupNormalization(-1, scale=False, name="each"), layers.Activation("tanh"),
        layers.GroupNormalization(1, center=False, epsilon=0.1, name="one"),
        layers.Activation("tanh"), layers.GroupNormalization(2, axis=1, name="rows"),
        layers.Flatten(), layers.Dense(1, name="out"),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program
def unit_normalization(keras):
    layers = keras.layers
    x, y = series(32, 4, 6)
    x[3, 2] = 0  # a vector without a direction
    model = stack(
        keras, (4, 6), layers.UnitNormalization(), layers.Dense(5, "tanh", name="hidden"),
        layers.UnitNormalization(axis=[1, 2]), layers.Flatten(), layers.Dense(1, name="out"),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program(reference="torch", several=2)
def spectral_normalization(keras):
    """Around a convolution, a dense layer of two iterations and an embedding, step by step.

    The layer assigns its kernel in each training step. In JAX trainable weights that are assigned
    there go back to what they were, and gradients pass through the assignment; in torch and
    TensorFlow the kernel stays normalised, and is what the gradient is of.
    """
    layers, wrap = keras.layers, keras.layers.SpectralNormalization
    picture, word = keras.Input((6, 6, 2)), keras.Input((3,), dtype="int32")
    a = wrap(layers.Conv2D(3, 3, activation="tanh", name="conv"), name="around_conv")(picture)
    a = layers.Flatten()(a)
    b = wrap(layers.Embedding(7, 4, name="words"), name="around_words")(word)
    merged = layers.concatenate([a, layers.Flatten()(b)])
    merged = wrap(layers.Dense(4, "tanh", name="hidden"), 2, name="around_hidden")(merged)
    model = draw(keras.Model([picture, word], layers.Dense(1, name="out")(merged)))
    pictures, y = images(40, 6, 2)
    words = np.random.default_rng(1).integers(0, 7, (40, 3)).astype("int32")
    x, y = [pictures, words], y[:, None].astype("float32")
    before = model(x, training=False)
    model.compile(keras.optimizers.SGD(0.05), "mse")
    steps = []
    for i in range(0, 40, 16):
        loss = model.train_on_batch([pictures[i : i + 16], words[i : i + 16]], y[i : i + 16])
        steps.append([float(loss), *model.get_weights()])
    found = _train(keras, model, x, y, steps=steps, before=before)
    model.layers[1].trainable = False
    called = model(x, training=True)  # one more iteration, in a call alone
    return found | {"called": called, "after": model.get_weights()}


@program(several=2)
def batch_normalization_with_a_mask(keras):
    """Steps behind a text's end count neither in batch nor in moving statistics."""
    layers = keras.layers
    x, y = series(40, 5, 4)
    x[np.arange(5)[None] >= np.random.default_rng(3).integers(1, 6, 40)[:, None]] = 0
    model = stack(
        keras, (5, 4), layers.Masking(name="mask"),
        layers.BatchNormalization(momentum=0.6, name="norm"),
        layers.GlobalAveragePooling1D(name="pool"), layers.Dense(1, name="out"),
    )  # fmt: skip
    mask = np.array([[True, False, True, True, False], [False] * 5])
    norm = model.get_layer("norm")
    found = _train(keras, model, x, y)
    none = norm(x[:2], training=True, mask=mask[1:].repeat(2, 0))
    return found | {"called": norm(x[:2], training=True, mask=mask), "none": none,
                    "moving": norm.moving_mean}  # fmt: skip


@program(several=2)
def batch_renormalization(keras):
    """With and without clipping, beside batch normalisation over the first axis behind it."""
    layers = keras.layers
    x, y = classes(48, 6)
    y = y[:, None].astype("float32")
    clipping = {"rmin": 0.8, "rmax": 1.3, "dmax": 0.4}
    model = stack(
        keras, (6,), layers.BatchNormalization(renorm=True, renorm_momentum=0.7, name="free"),
        layers.Dense(4, "tanh", name="hidden"),
        layers.BatchNormalization(
            renorm=True, renorm_clipping=clipping, momentum=0.5, center=False, name="clipped"
        ),
        layers.Reshape((2, 2)), layers.Activation("tanh"),
        layers.BatchNormalization(axis=1, scale=False, name="axis"),
        layers.Flatten(), layers.Dense(1, name="out"),
    )  # fmt: skip
    return _train(keras, model, x, y, clipping=model.get_layer("clipped").renorm_clipping)


@program(eager=False)
def normalizations_refused(keras):
    """What Keras says of axes, groups and options that do not fit."""
    layers = keras.layers
    x, _ = regression(4, 6)
    told = []
    for make in (
        lambda: layers.BatchNormalization(synchronized=True),
        lambda: layers.BatchNormalization(axis=3)(x),
        lambda: layers.BatchNormalization(renorm=True, renorm_clipping={"rmin": 2, "rmax": 1}),
        lambda: layers.GroupNormalization(4)(x),
        lambda: layers.GroupNormalization(12)(x),
        lambda: layers.LayerNormalization(axis=7)(x),
        lambda: layers.UnitNormalization(axis="last"),
        lambda: layers.SpectralNormalization(layers.ReLU())(x),
        lambda: layers.SpectralNormalization(layers.Dense(2), power_iterations=0),
    ):
        try:
            make()
            told.append("nothing")
        except Exception as error:
            told.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return {"told": told}
