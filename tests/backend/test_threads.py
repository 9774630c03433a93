"""Keras runs callbacks of batches on a thread of its own, beside the steps."""

import os
import threading

import keras
import numpy as np

ROUNDS = int(os.environ.get("KERASCL_THREAD_ROUNDS", "6"))


class Reader(keras.callbacks.Callback):
    """Reads what the steps compute, as soon as it is told of it."""

    async_safe = True  # Keras may call it from its threads, in any order

    def __init__(self):
        super().__init__()
        self.train, self.test, self.threads = [], [], set()

    def _read(self, rows, batch, logs):
        self.threads.add(threading.get_ident())
        row = [float(value) for value in logs.values()]
        # work on the device from this thread, between that of the steps
        again = float(keras.ops.sum(keras.ops.stack(list(logs.values())) * 2.0))
        rows.append([batch, *row, again])

    def on_train_batch_end(self, batch, logs=None):
        self._read(self.train, batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        self._read(self.test, batch, logs)


def run(eagerly):
    keras.utils.set_random_seed(5)
    keras.utils.clear_session(free_memory=False)
    rng = np.random.default_rng(2)
    x = rng.standard_normal((96, 6)).astype("f")
    y = (x.sum(1) > 0).astype("f")[:, None]
    model = keras.Sequential([
        keras.Input((6,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1, "sigmoid"),
    ])
    model.compile(
        "adam", "binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(num_thresholds=20)],
        run_eagerly=eagerly,
    )  # fmt: skip
    readers = [Reader(), Reader()]
    history = model.fit(
        x, y, batch_size=8, epochs=2, validation_split=0.25, verbose=0, callbacks=readers
    )
    result = model.evaluate(x, y, batch_size=8, verbose=0, callbacks=readers)
    rows = [[*sorted(r.train), *sorted(r.test)] for r in readers]
    assert rows[0] == rows[1]
    for row in rows[0]:
        np.testing.assert_allclose(row[-1], 2 * sum(row[1:-1]), rtol=1e-5)
    values = [*result, *(v for h in history.history.values() for v in h)]
    return [*values, *np.ravel(rows[0])], readers[0].threads


def test_results_do_not_depend_on_the_callbacks_thread():
    first, threads = run(False)
    assert threading.get_ident() not in threads
    for _ in range(ROUNDS):
        assert run(False)[0] == first


def test_eager_results_do_not_depend_on_it():
    first, _ = run(True)
    for _ in range(max(1, ROUNDS // 6)):
        assert run(True)[0] == first
