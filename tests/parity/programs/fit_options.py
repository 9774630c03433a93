"""Every option of fit, evaluate and predict."""

import numpy as np

from tests.parity.kit import binary, classes, mlp, printed, program, regression, seen


def _fit(keras, compile_options=None, fit_options=None, n=40, **data_options):
    x, y = regression(n, **data_options)
    model = mlp(keras)
    options = dict(optimizer=keras.optimizers.SGD(0.1), loss="mse", metrics=["mae"])
    model.compile(**options | (compile_options or {}))
    options = dict(batch_size=16, epochs=2, shuffle=False, verbose=0)
    history = model.fit(x, y, **options | (fit_options or {}))
    return seen(model, x, history=history.history, epoch=history.epoch, params=history.params)


@program(several=2)
def first_program(keras):
    """The first page of every tutorial: compile, fit, evaluate, predict."""
    x, y = classes(50)
    model = mlp(keras, 3, "softmax")
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, epochs=3, batch_size=16, shuffle=False, verbose=0)
    scores = model.evaluate(x, y, verbose=0)
    probabilities = model.predict(x, verbose=0)
    return seen(
        model, history=history.history, scores=scores, probabilities=probabilities,
        guesses=probabilities.argmax(-1),
    )  # fmt: skip


@program(several=3)
def validation_data(keras):
    return _fit(keras, None, dict(validation_data=regression(20, seed=1), epochs=3))


@program(several=2)
def validation_with_weights(keras):
    x, y = regression(20, seed=1)
    weights = np.linspace(0, 2, 20).astype("float32")
    return _fit(
        keras, dict(weighted_metrics=["mse"]),
        dict(validation_data=(x, y, weights), validation_batch_size=7),
    )  # fmt: skip


@program(several=2)
def validation_split(keras):
    return _fit(keras, None, dict(validation_split=0.3, epochs=3))


@program
def validation_every_second_epoch(keras):
    return _fit(
        keras, None, dict(validation_data=regression(20, seed=1), epochs=5, validation_freq=2)
    )


@program
def validation_in_chosen_epochs(keras):
    return _fit(
        keras, None, dict(validation_data=regression(20, seed=1), epochs=4, validation_freq=[1, 4])
    )


@program(several=2)
def validation_steps(keras):
    return _fit(
        keras, None,
        dict(validation_data=regression(40, seed=1), validation_batch_size=8, validation_steps=3),
    )  # fmt: skip


@program
def initial_epoch(keras):
    return _fit(keras, None, dict(initial_epoch=3, epochs=5))


@program(several=2)
def steps_per_epoch(keras):
    """An epoch of fewer batches than the data have; the next one goes on behind them."""
    return _fit(keras, None, dict(steps_per_epoch=2, epochs=3), n=96)


@program(several=2)
def shuffle_with_a_seed(keras):
    """Keras shuffles with NumPy's generator, which set_random_seed sets."""
    keras.utils.set_random_seed(3)
    return _fit(keras, None, dict(shuffle=True, epochs=3))


@program
def one_batch_larger_than_the_data(keras):
    return _fit(keras, None, dict(batch_size=64))


@program
def no_epochs(keras):
    return _fit(keras, None, dict(epochs=0))


@program(several=2)
def class_weight(keras):
    x, y = classes()
    model = mlp(keras, 3, "softmax")
    model.compile(
        keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy",
        metrics=["accuracy"], weighted_metrics=["accuracy"],
    )  # fmt: skip
    weights = {0: 0.5, 1: 2.0, 2: 1.0}
    history = model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, class_weight=weights, verbose=0
    )
    return seen(model, x, history=history.history, scores=model.evaluate(x, y, verbose=0))


@program(several=2)
def sample_weight(keras):
    weights = np.random.default_rng(2).uniform(0, 2, 40).astype("float32")
    return _fit(keras, dict(weighted_metrics=["mae"]), dict(sample_weight=weights))


@program(several=3)
def weights_of_classes_and_samples(keras):
    """Batches with weights of their own, of a last one that is shorter, and of validation data."""
    x, y = classes(45)
    own = np.random.default_rng(2).uniform(0, 2, 45).astype("float32")

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            part = slice(8 * index, 8 * index + 8)
            return x[part], y[part], own[part]

    model = mlp(keras, 3, "softmax")
    model.compile(
        keras.optimizers.SGD(0.2), "sparse_categorical_crossentropy", metrics=["accuracy"],
        weighted_metrics=["accuracy", "sparse_categorical_crossentropy"],
    )  # fmt: skip
    options = dict(epochs=2, shuffle=False, verbose=0, validation_data=(x[:20], y[:20], own[:20]))
    weighted = model.fit(Batches(), **options).history
    by_class = model.fit(x, y, batch_size=8, class_weight={0: 0.5, 1: 2.0, 2: 0.0}, **options)
    try:
        model.fit(x, y, sample_weight=own, class_weight={0: 1.0, 1: 2.0, 2: 1.0}, **options)
        told = ""
    except ValueError as error:
        told = str(error)
    return seen(model, x, weighted=weighted, by_class=by_class.history, told=told)


@program
def lines_of_verbose_1(keras):
    x, y = binary()
    model = mlp(keras, 1, "sigmoid")
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
    with printed() as text:
        model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=1, validation_data=(x, y))
        model.evaluate(x, y, verbose=1)
        model.predict(x, verbose=1)
    return seen(model, text=text())


@program(several=2)
def lines_of_verbose_2(keras):
    x, y = binary()
    model = mlp(keras, 1, "sigmoid")
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
    with printed() as text:
        model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=2, validation_split=0.25)
        model.evaluate(x, y, verbose=2)
        model.predict(x, verbose=2)
    return seen(model, text=text())


@program(several=3)
def evaluate_and_predict_options(keras):
    x, y = regression(45)
    model = mlp(keras)
    model.compile("sgd", "mse", metrics=["mae", "mape"], weighted_metrics=["mse"])
    weights = np.linspace(0.5, 1.5, 45).astype("float32")
    return seen(
        model,
        listed=model.evaluate(x, y, verbose=0),
        named=model.evaluate(x, y, batch_size=7, verbose=0, return_dict=True),
        weighted=model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True),
        some=model.evaluate(x, y, batch_size=10, steps=2, verbose=0),
        by_seven=model.predict(x, batch_size=7, verbose=0),
        two_steps=model.predict(x, batch_size=10, steps=2, verbose=0),
        names=model.metrics_names,
    )  # fmt: skip


@program
def single_batches(keras):
    """train_on_batch and test_on_batch, with lists and dicts of results."""
    x, y = regression(64)
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    results = []
    for i in range(0, 64, 16):
        part = slice(i, i + 16)
        results.append(model.train_on_batch(x[part], y[part]))
        results.append(model.train_on_batch(x[part], y[part], return_dict=True))
        results.append(model.test_on_batch(x[part], y[part]))
        results.append(model.test_on_batch(x[part], y[part], return_dict=True))
    weights = np.linspace(0, 1, 16).astype("float32")
    weighted = model.train_on_batch(x[:16], y[:16], sample_weight=weights)
    return seen(
        model, results=results, weighted=weighted, outputs=model.predict_on_batch(x[:5]),
    )  # fmt: skip


@program
def single_batches_by_class(keras):
    x, y = classes()
    model = mlp(keras, 3, "softmax")
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
    results = [model.train_on_batch(x, y, class_weight={0: 1.0, 1: 3.0, 2: 0.2}) for _ in range(3)]
    return seen(model, results=results)


@program(several=2)
def fit_twice(keras):
    """Training goes on where it stopped; batch sizes and lengths may change."""
    x, y = regression(40)
    model = mlp(keras)
    model.compile("adam", "mse", metrics=["mae"])
    first = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    second = model.fit(x[:25], y[:25], batch_size=10, epochs=2, shuffle=False, verbose=0)
    return seen(model, x, first=first.history, second=second.history)


@program(eager=False)
def explicit_execution(keras):
    """The three settings of compile, one after the other."""
    x, y = regression(70)
    model, histories = mlp(keras), []
    for options in (
        dict(run_eagerly=True), dict(jit_compile=False), dict(jit_compile=True),
        dict(steps_per_execution=3), dict(steps_per_execution=10),
    ):  # fmt: skip
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], **options)
        histories.append(
            model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0).history
        )
    return seen(model, x, histories=histories)


@program(several=2)
def without_a_metric(keras):
    return _fit(keras, dict(metrics=None, loss=keras.losses.Huber()))


@program(several=2)
def epochs_end_early(keras):
    """stop_training in the middle of an epoch, and of an evaluation and a prediction."""
    x, y = regression(64)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations >= 6:
                self.model.stop_training = True

        def on_test_batch_end(self, batch, logs=None):
            self.model.stop_evaluating = batch >= 1

        def on_predict_batch_end(self, batch, logs=None):
            self.model.stop_predicting = batch >= 1

    model = mlp(keras)
    model.compile("sgd", "mse")
    options = dict(batch_size=16, verbose=0, callbacks=[Stop()])
    history = model.fit(x, y, epochs=4, shuffle=False, **options)
    return seen(
        model, history=history.history, scores=model.evaluate(x, y, **options),
        outputs=model.predict(x, **options),
    )  # fmt: skip
