"""Convolutions, pooling, batch normalisation and resizing in small networks."""

from tests.parity.kit import draw, images, printed, program, seen, stack


def _train(keras, model, x, y, optimizer=None, epochs=2, loss="sparse_categorical_crossentropy"):
    model.compile(optimizer or keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    history = model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)
    return seen(model, x, history=history.history, scores=model.evaluate(x, y, verbose=0))


@program(several=2)
def first_convnet(keras):
    """The convolutional network of the MNIST tutorial, made small."""
    layers = keras.layers
    x, y = images(20, 10, 1)
    model = stack(
        keras, (10, 10, 1), layers.Conv2D(4, 3, activation="tanh"), layers.MaxPooling2D(2),
        layers.Conv2D(6, 3, activation="tanh", padding="same"), layers.Flatten(),
        layers.Dropout(0.0), layers.Dense(3, "softmax"),
    )  # fmt: skip
    return _train(keras, model, x, y, keras.optimizers.Adam(0.01))


@program(several=2)
def residual_block(keras):
    """Convolutions with batch normalisation and a shortcut; moving averages."""
    layers = keras.layers
    x, y = images(20)
    inputs = keras.Input((8, 8, 3))
    a = layers.Conv2D(4, 3, padding="same", use_bias=False)(inputs)
    a = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(a))
    b = layers.Conv2D(4, 3, padding="same", use_bias=False)(a)
    b = layers.BatchNormalization()(b)
    out = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.add([a, b])))
    model = draw(keras.Model(inputs, layers.Dense(3, "softmax")(out)))
    return _train(keras, model, x, y)


@program
def mobile_block(keras):
    """Depthwise and separable convolutions, strides, dilation and groups."""
    layers = keras.layers
    x, y = images(16)
    model = stack(
        keras, (8, 8, 3), layers.ZeroPadding2D(1), layers.DepthwiseConv2D(3, depth_multiplier=2),
        layers.SeparableConv2D(4, 3, padding="same", activation="tanh"),
        layers.Conv2D(4, 3, strides=2, padding="same", groups=2),
        layers.Conv2D(4, 2, dilation_rate=2, activation="swish"), layers.GlobalMaxPooling2D(),
        layers.Dense(3, "softmax"),
    )  # fmt: skip
    return _train(keras, model, x, y)


@program
def convolutional_autoencoder(keras):
    """Down with strides and pooling, up with transposed convolutions and upsampling."""
    layers = keras.layers
    x, _ = images(16)
    model = stack(
        keras, (8, 8, 3), layers.Conv2D(4, 3, strides=2, padding="same", activation="tanh"),
        layers.AveragePooling2D(2), layers.Conv2DTranspose(4, 3, strides=2, padding="same"),
        layers.LeakyReLU(0.1), layers.UpSampling2D(2, interpolation="bilinear"),
        layers.Cropping2D(1), layers.ZeroPadding2D(1), layers.Conv2D(3, 1),
    )  # fmt: skip
    model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(x, x, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return seen(model, x, history=history.history)


@program
def one_and_three_dimensions(keras):
    layers = keras.layers
    x, y = images(8, 6)
    line = stack(
        keras, (6, 18), layers.Conv1D(4, 3, padding="causal", activation="tanh"),
        layers.MaxPooling1D(2), layers.UpSampling1D(2), layers.ZeroPadding1D(1),
        layers.SeparableConv1D(4, 3), layers.Conv1DTranspose(3, 2), layers.AveragePooling1D(2),
        layers.GlobalMaxPooling1D(), layers.Dense(3, "softmax"),
    )  # fmt: skip
    space = stack(
        keras, (6, 6, 3, 1), layers.Conv3D(3, 2, activation="tanh"), layers.MaxPooling3D((2, 2, 1)),
        layers.Conv3DTranspose(2, 2), layers.GlobalAveragePooling3D(), layers.Dense(3, "softmax"),
    )  # fmt: skip
    return {
        "line": _train(keras, line, x.reshape(8, 6, 18), y),
        "space": _train(keras, space, x[..., None], y),
    }


@program(several=2)
def batch_normalisation_in_all_modes(keras):
    """Moving averages after training, by hand, frozen, and in calls with training=True."""
    layers = keras.layers
    x, y = images(20)
    flat = x.reshape(20, -1)[:, :6]
    model = stack(keras, (6,), layers.BatchNormalization(momentum=0.5, name="norm"),
                  layers.Dense(3, "softmax", name="out"))  # fmt: skip
    found = _train(keras, model, flat, y)
    notes = [model(flat[:5], training=True), model.get_layer("norm").moving_mean]
    notes.append(model(flat[:5], training=False))
    model.get_layer("norm").trainable = False
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(flat, y, batch_size=8, verbose=0, shuffle=False)
    notes += [model(flat[:5], training=True), model.get_layer("norm").moving_variance]
    return found | {"notes": [notes], "after": model.get_weights()}


@program(eager=False)
def images_made_ready(keras):
    """Preprocessing without randomness: rescaling, resizing, cropping, normalisation."""
    layers = keras.layers
    x, _ = images(6, 9)
    mean = layers.Normalization()
    mean.adapt(x)
    fixed = layers.Normalization(mean=0.5, variance=2.0, invert=True)
    return {
        "rescaled": layers.Rescaling(1 / 255.0, offset=-1.0)(x * 100),
        "resized": [layers.Resizing(5, 7, interpolation=i)(x) for i in ("bilinear", "nearest")],
        "padded": layers.Resizing(6, 12, pad_to_aspect_ratio=True)(x),
        "cropped": layers.CenterCrop(4, 5)(x),
        "normal": mean(x), "mean": mean.mean, "variance": mean.variance, "fixed": fixed(x),
        "grey": keras.ops.image.rgb_to_grayscale(x),
        "flipped": layers.RandomFlip("horizontal")(x, training=False),
        "dropped": layers.Dropout(0.5)(x, training=False),
    }  # fmt: skip


@program(eager=False)
def summaries(keras):
    """summary() of models of each kind."""
    layers = keras.layers
    inputs = keras.Input((8, 8, 3), name="picture")
    a = layers.Conv2D(4, 3, name="conv")(inputs)
    b = layers.BatchNormalization(name="norm")(a)
    model = keras.Model(inputs, layers.Flatten(name="flat")(layers.add([a, b], name="sum")))
    model.get_layer("norm").trainable = False
    lines = []
    model.summary(line_length=90, print_fn=lambda line, **_: lines.append(line),
                  show_trainable=True)  # fmt: skip
    with printed() as text:
        stack(keras, (4,), layers.Dense(2, name="dense")).summary(line_length=80)
    return {"lines": "\n".join(map(str, lines)), "text": text(), "count": model.count_params()}
