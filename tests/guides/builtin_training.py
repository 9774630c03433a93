"""fit, evaluate and predict: weights, schedules, metrics, datasets, several inputs and outputs."""

import keras
import numpy as np
from keras import layers, ops


class TruePositives(keras.metrics.Metric):
    """How many were classified rightly."""

    def __init__(self, name="right", **kwargs):
        super().__init__(name=name, **kwargs)
        self.count = self.add_variable(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        hit = ops.cast(ops.equal(ops.argmax(y_pred, 1), ops.cast(y_true, "int32")), "float32")
        self.count.assign_add(ops.sum(hit if sample_weight is None else hit * sample_weight))

    def result(self):
        return self.count.value

    def reset_state(self):
        self.count.assign(0.0)


class Batches(keras.utils.PyDataset):
    """Arrays in batches."""

    def __init__(self, x, y, size, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.size = x, y, size

    def __len__(self):
        return len(self.x) // self.size

    def __getitem__(self, index):
        part = slice(index * self.size, (index + 1) * self.size)
        return self.x[part], self.y[part]


def cross_entropy(logits, labels):
    logits = logits - logits.max(1, keepdims=True)
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return -logs[np.arange(len(labels)), labels]


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 6)).astype("float32")
    y = (x @ rng.normal(size=(6, 3))).argmax(1)

    def make(optimizer="rmsprop"):
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(16, "relu"), layers.Dense(3, name="scores")]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, metrics=["sparse_categorical_accuracy", TruePositives()])
        return model

    schedule = keras.optimizers.schedules.ExponentialDecay(0.05, 10, 0.5, staircase=True)
    model = make(keras.optimizers.Adam(schedule))
    stopper = keras.callbacks.EarlyStopping("val_loss", patience=20, restore_best_weights=True)
    history = model.fit(
        x, y, batch_size=32, epochs=8, validation_split=0.2, callbacks=[stopper], verbose=2
    ).history
    assert history["loss"][-1] < history["loss"][0] != history["val_loss"][0]
    found = model.evaluate(x[128:], y[128:], batch_size=7, verbose=0, return_dict=True)
    logits = model.predict(x[128:], batch_size=5, verbose=0)
    right = (logits.argmax(1) == y[128:]).sum()
    np.testing.assert_allclose(found["loss"], cross_entropy(logits, y[128:]).mean(), rtol=1e-4)
    assert found["right"] == right
    np.testing.assert_allclose(found["sparse_categorical_accuracy"], right / 32, rtol=1e-6)
    np.testing.assert_allclose(found["loss"], min(history["val_loss"]), rtol=1e-4)
    np.testing.assert_allclose(float(model.optimizer.learning_rate), 0.05 * 0.5**3, rtol=1e-5)

    # class weights are sample weights by label
    weights = {0: 1.0, 1: 3.0, 2: 0.5}
    ends = []
    for given in (
        {"class_weight": weights},
        {"sample_weight": np.array([weights[int(k)] for k in y], "float32")},
    ):
        keras.utils.set_random_seed(1)
        model = make("sgd")
        model.fit(x, y, batch_size=40, epochs=2, shuffle=False, verbose=0, **given)
        ends.append(model.get_weights())
    for a, b in zip(*ends, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

    # a dataset of one's own; the same as arrays
    keras.utils.set_random_seed(1)
    model = make("sgd")
    data = Batches(x, y, 40)
    model.fit(data, epochs=1, shuffle=False, verbose=0)
    keras.utils.set_random_seed(1)
    other = make("sgd")
    other.fit(x, y, batch_size=40, shuffle=False, verbose=0)
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.evaluate(data, verbose=0)[0], other.evaluate(
        x, y, batch_size=40, verbose=0)[0], rtol=1e-5)  # fmt: skip

    # two inputs, two outputs
    image, series = keras.Input((8, 8, 3), name="image"), keras.Input((None, 10), name="series")
    joined = layers.concatenate([
        layers.GlobalMaxPooling2D()(layers.Conv2D(3, 3)(image)),
        layers.GlobalMaxPooling1D()(layers.Conv1D(3, 3)(series)),
    ])  # fmt: skip
    outputs = [layers.Dense(1, name="score")(joined), layers.Dense(5, name="kind")(joined)]
    model = keras.Model([image, series], outputs)
    model.compile(
        "adam",
        loss={
            "score": keras.losses.MeanSquaredError(),
            "kind": keras.losses.CategoricalCrossentropy(from_logits=True),
        },
        metrics={"score": ["mape", "mae"], "kind": ["categorical_accuracy"]},
        loss_weights={"score": 2.0, "kind": 1.0},
    )
    xs = [rng.normal(size=(40, 8, 8, 3)), rng.normal(size=(40, 12, 10))]
    ys = [rng.normal(size=(40, 1)), np.eye(5)[rng.integers(0, 5, 40)]]
    model.fit(xs, ys, batch_size=16, epochs=2, verbose=2)
    logs = model.evaluate(xs, ys, batch_size=40, verbose=0, return_dict=True)
    score, kind = model.predict(xs, verbose=0)
    square = ((score - ys[0]) ** 2).mean()
    expected = 2 * square + cross_entropy(kind, ys[1].argmax(1)).mean()
    np.testing.assert_allclose(logs["loss"], expected, rtol=1e-4)
    np.testing.assert_allclose(logs["score_mae"], np.abs(score - ys[0]).mean(), rtol=1e-4)
    accuracy = (kind.argmax(1) == ys[1].argmax(1)).mean()
    np.testing.assert_allclose(logs["kind_categorical_accuracy"], accuracy, rtol=1e-5)


if __name__ == "__main__":
    main()
