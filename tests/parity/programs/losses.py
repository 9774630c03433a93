"""Every loss, with its options, alone and in fit."""

import numpy as np

from tests.parity.kit import binary, classes, mlp, one_hot, program, regression, seen


def _fit(keras, x, y, outputs, activation, losses):
    """The first steps with each loss, from the same weights."""
    found = {}
    for name, loss in losses.items():
        model = mlp(keras, outputs, activation)
        model.compile(keras.optimizers.SGD(0.05), loss)
        history = model.fit(x, y, batch_size=24, epochs=1, shuffle=False, verbose=0)
        found[name] = {"loss": history.history["loss"], "weights": model.get_weights()}
    return found


@program
def losses_of_regressions(keras):
    x, y = regression(48)
    made = keras.losses
    losses = {
        name: name for name in ("mse", "mae", "mape", "msle", "log_cosh", "huber")
    } | {
        "cosine": made.CosineSimilarity(), "wide": made.Huber(delta=0.3),
        "summed": made.MeanSquaredError(reduction="sum"),
    }  # fmt: skip
    return _fit(keras, x, np.abs(y) + 0.1, 1, "softplus", losses)


@program
def losses_of_two_classes(keras):
    x, y = binary(48)
    made = keras.losses
    losses = {
        "plain": "binary_crossentropy", "smooth": made.BinaryCrossentropy(label_smoothing=0.2),
        "focal": made.BinaryFocalCrossentropy(gamma=1.5, apply_class_balancing=True),
        "hinge": "hinge", "squared": "squared_hinge", "dice": made.Dice(), "poisson": "poisson",
        "tversky": made.Tversky(alpha=0.3, beta=0.7),
    }  # fmt: skip
    return _fit(keras, x, y, 1, "sigmoid", losses)


@program
def losses_of_logits(keras):
    x, y = binary(48)
    made = keras.losses
    losses = {
        "plain": made.BinaryCrossentropy(from_logits=True),
        "focal": made.BinaryFocalCrossentropy(from_logits=True),
    }
    found = _fit(keras, x, y, 1, None, losses)
    x, y = classes(48)
    losses = {
        "one_hot": made.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        "focal": made.CategoricalFocalCrossentropy(from_logits=True),
    }
    return found | _fit(keras, x, one_hot(y), 3, None, losses) | _fit(
        keras, x, y, 3, None, {"sparse": made.SparseCategoricalCrossentropy(from_logits=True)}
    )  # fmt: skip


@program
def losses_of_classes(keras):
    x, y = classes(48)
    losses = {
        "plain": "categorical_crossentropy", "focal": keras.losses.CategoricalFocalCrossentropy(),
        "hinge": "categorical_hinge", "kl": "kl_divergence",
    }  # fmt: skip
    found = _fit(keras, x, one_hot(y), 3, "softmax", losses)
    general = {"generalized": keras.losses.CategoricalGeneralizedCrossEntropy(q=0.6)}
    return found | _fit(keras, x, y, 3, "softmax", general)


@program
def ignored_class(keras):
    """Labels of -1 do not count, in the loss of a tagger."""
    x, y = classes(48)
    y[::5] = -1
    loss = keras.losses.SparseCategoricalCrossentropy(ignore_class=-1)
    return _fit(keras, x, y, 3, "softmax", {"ignored": loss})


@program(eager=False)
def losses_alone(keras):
    """Values with weights and each reduction; CTC, triplet-like and circle losses."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0.1, 0.9, (6, 4)).astype("float32")
    b = rng.uniform(0.1, 0.9, (6, 4)).astype("float32")
    weight = rng.uniform(0, 2, 6).astype("float32")
    found = {}
    for name in ("MeanSquaredError", "MeanAbsoluteError", "KLDivergence", "Poisson", "LogCosh"):
        for reduction in ("sum_over_batch_size", "sum", "mean", "mean_with_sample_weight", "none"):
            loss = getattr(keras.losses, name)(reduction=reduction)
            found[f"{name} {reduction}"] = [loss(a, b), loss(a, b, sample_weight=weight)]
    logits = rng.normal(size=(3, 8, 5)).astype("float32")
    targets = np.array([[1, 2, 3, 4], [2, 2, 1, 0], [3, 0, 0, 0]], "int32")
    found["ctc"] = keras.losses.CTC()(targets, logits)
    unit = a / np.linalg.norm(a, axis=1, keepdims=True)
    found["circle"] = keras.losses.Circle()(np.array([0, 1, 0, 1, 2, 2], "int32"), unit)
    return found


@program(several=2)
def a_loss_of_ones_own(keras):
    """A function, and a subclass with get_config."""

    class Pinball(keras.losses.Loss):
        def __init__(self, share=0.8, **options):
            super().__init__(**options)
            self.share = share

        def call(self, y_true, y_pred):
            e = y_true - y_pred
            return keras.ops.mean(keras.ops.maximum(self.share * e, (self.share - 1) * e), -1)

    def cubic(y_true, y_pred):
        return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)

    x, y = regression(48)
    model = mlp(keras)
    notes = []
    for loss in (Pinball(), cubic):
        model.compile("adam", loss, metrics=[cubic])
        history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        notes.append(history.history)
    return seen(model, x, notes=notes)
