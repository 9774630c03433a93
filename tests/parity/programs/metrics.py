"""Every metric, inside fit and by itself."""

import numpy as np

from tests.parity.kit import binary, classes, mlp, one_hot, program, regression, seen


def _fit(keras, x, y, model, loss, metrics, **options):
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=metrics, **options)
    history = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_split=0.25
    )
    scores = model.evaluate(x, y, verbose=0, return_dict=True)
    return seen(
        model, history=history.history, scores=scores,
        variables=[{v.path: v for m in model.metrics for v in m.variables}],
        names=[m.name for m in model.metrics],
    )  # fmt: skip


@program(several=2)
def metrics_of_regressions(keras):
    m = keras.metrics
    x, y = regression(48)
    model = mlp(keras)
    metrics = [
        "mae", "mse", "mape", "msle", m.RootMeanSquaredError(), m.CosineSimilarity(axis=0),
        m.LogCoshError(), m.R2Score(), m.MeanAbsoluteError(name="mine"),
    ]  # fmt: skip
    return _fit(keras, x, np.abs(y) + 0.1, model, "mse", metrics)


@program(several=2)
def metrics_of_two_classes(keras):
    m = keras.metrics
    x, y = binary(48)
    metrics = [
        "accuracy", m.BinaryAccuracy(threshold=0.4, name="at_4"), m.BinaryCrossentropy(),
        m.Precision(), m.Recall(thresholds=[0.3, 0.6]), m.TruePositives(), m.FalsePositives(),
        m.TrueNegatives(), m.FalseNegatives(), m.BinaryIoU(),
    ]  # fmt: skip
    return _fit(keras, x, y, mlp(keras, 1, "sigmoid"), "binary_crossentropy", metrics)


@program
def areas_under_curves(keras):
    m = keras.metrics
    x, y = binary(48)
    metrics = [
        m.AUC(num_thresholds=50), m.AUC(curve="PR", num_thresholds=50, name="pr"),
        m.AUC(num_thresholds=20, from_logits=False, summation_method="majoring", name="major"),
        m.SensitivityAtSpecificity(0.5, num_thresholds=50),
        m.SpecificityAtSensitivity(0.5, num_thresholds=50),
        m.PrecisionAtRecall(0.5, num_thresholds=50), m.RecallAtPrecision(0.5, num_thresholds=50),
    ]  # fmt: skip
    return _fit(keras, x, y, mlp(keras, 1, "sigmoid"), "binary_crossentropy", metrics)


@program(several=2)
def metrics_of_classes(keras):
    m = keras.metrics
    x, y = classes(48)
    metrics = [
        "accuracy", m.SparseCategoricalCrossentropy(), m.SparseTopKCategoricalAccuracy(2),
        m.SparseCategoricalAccuracy(name="again"),
    ]  # fmt: skip
    loss = "sparse_categorical_crossentropy"
    return _fit(keras, x, y, mlp(keras, 3, "softmax"), loss, metrics)


@program
def metrics_of_one_hot_classes(keras):
    m = keras.metrics
    x, y = classes(48)
    metrics = [
        "acc", m.CategoricalCrossentropy(), m.TopKCategoricalAccuracy(2), m.CategoricalHinge(),
        m.KLDivergence(), m.Poisson(), m.F1Score(average="macro"), m.FBetaScore(beta=2.0),
        m.OneHotIoU(num_classes=3, target_class_ids=[0, 2]), m.OneHotMeanIoU(num_classes=3),
        m.AUC(multi_label=True, num_thresholds=20), m.CosineSimilarity(),
    ]  # fmt: skip
    loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)
    return _fit(keras, x, one_hot(y), mlp(keras, 3, "softmax"), loss, metrics)


@program
def metrics_of_hinges(keras):
    x, y = binary(48)
    return _fit(
        keras, x, 2 * y - 1, mlp(keras, 1, "tanh"), "hinge",
        [keras.metrics.Hinge(), keras.metrics.SquaredHinge(), "binary_accuracy"],
    )  # fmt: skip


@program(eager=False)
def metrics_alone(keras):
    """update_state, result and reset_state in loops of one's own, with weights."""
    m = keras.metrics
    rng = np.random.default_rng(0)
    made = {
        "mean": m.Mean(), "sum": m.Sum(), "iou": m.MeanIoU(num_classes=4),
        "some": m.IoU(num_classes=4, target_class_ids=[1, 3]), "exact": m.Accuracy(),
        "wrapped": m.MeanMetricWrapper(keras.losses.mean_absolute_error, name="wrapped"),
        "pearson": m.PearsonCorrelation(axis=0), "concordance": m.ConcordanceCorrelation(axis=0),
    }  # fmt: skip
    notes = []
    for step in range(3):
        y, p = rng.integers(0, 4, (2, 12))
        weight = rng.uniform(0, 2, 12).astype("float32")
        a, b = rng.normal(size=(2, 12, 2)).astype("float32")
        made["mean"].update_state(a, sample_weight=weight)
        made["sum"].update_state(b)
        for name in ("iou", "some", "exact"):
            made[name].update_state(y, p, sample_weight=weight)
        for name in ("wrapped", "pearson", "concordance"):
            made[name].update_state(a, b)
        notes.append({name: metric.result() for name, metric in made.items()})
        if step == 1:
            made["mean"].reset_state()
            made["iou"].reset_state()
    return {"notes": notes, "states": {n: metric.variables for n, metric in made.items()}}


@program(several=2)
def a_metric_of_ones_own(keras):
    """A subclass with two variables, and a plain function."""

    class Range(keras.metrics.Metric):
        def __init__(self, name="range", **options):
            super().__init__(name=name, **options)
            self.low = self.add_variable((), "zeros", name="low")
            self.high = self.add_variable((), "zeros", name="high")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.low.assign(keras.ops.minimum(self.low, keras.ops.min(y_pred)))
            self.high.assign(keras.ops.maximum(self.high, keras.ops.max(y_pred)))

        def result(self):
            return self.high - self.low

        def reset_state(self):
            self.low.assign(0.0)
            self.high.assign(0.0)

    def bias(y_true, y_pred):
        return keras.ops.mean(y_pred - y_true, axis=-1)

    x, y = regression(48)
    return _fit(keras, x, y, mlp(keras), "mse", [Range(), bias])


@program
def a_metric_of_several_results(keras):
    """A metric whose result is a dict."""

    class Both(keras.metrics.Metric):
        def __init__(self, **options):
            super().__init__(**options)
            self.a = keras.metrics.Mean(name="a")
            self.b = keras.metrics.Sum(name="b")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.a.update_state(y_pred)
            self.b.update_state(y_true)

        def result(self):
            return {"mean_out": self.a.result(), "sum_in": self.b.result()}

        def reset_state(self):
            self.a.reset_state()
            self.b.reset_state()

    x, y = regression(48)
    return _fit(keras, x, y, mlp(keras), "mse", [Both(name="both")])


@program
def weighted_metrics(keras):
    x, y = classes(48)
    model = mlp(keras, 3, "softmax")
    model.compile(
        "sgd", "sparse_categorical_crossentropy", metrics=["accuracy"],
        weighted_metrics=["accuracy", keras.metrics.SparseCategoricalCrossentropy(name="ce")],
    )  # fmt: skip
    weights = np.random.default_rng(3).uniform(0, 3, 48).astype("float32")
    history = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, sample_weight=weights,
        validation_data=(x[:10], y[:10], weights[:10]),
    )  # fmt: skip
    return seen(
        model, history=history.history,
        weighted=model.evaluate(x, y, sample_weight=weights, verbose=0),
    )  # fmt: skip
