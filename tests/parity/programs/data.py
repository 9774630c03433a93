"""Where batches come from: generators, PyDatasets, dicts, other arrays, uneven ends."""

import numpy as np

from tests.parity.kit import binary, classes, draw, mlp, program, regression, seen


def _compiled(keras, optimizer=None):
    model = mlp(keras)
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


@program(several=2)
def endless_generator(keras):
    x, y = regression(40)

    def batches(size=8):
        at = 0
        while True:
            rows = np.arange(at, at + size) % 40
            at += size
            yield x[rows], y[rows]

    model = _compiled(keras)
    history = model.fit(
        batches(), steps_per_epoch=3, epochs=3, verbose=0, validation_data=batches(5),
        validation_steps=2,
    )  # fmt: skip
    return seen(
        model, history=history.history, scores=model.evaluate(batches(), steps=4, verbose=0),
        outputs=model.predict(((x[i : i + 7],) for i in range(0, 21, 7)), verbose=0),
    )  # fmt: skip


@program(several=2)
def generator_that_ends(keras):
    """One epoch from a finite generator, with a shorter last batch and weights."""
    x, y = regression(37)
    w = np.linspace(0, 2, 37).astype("float32")

    def batches():
        for i in range(0, 37, 8):
            yield x[i : i + 8], y[i : i + 8], w[i : i + 8]

    model = _compiled(keras)
    history = model.fit(batches(), epochs=1, verbose=0)
    return seen(model, history=history.history, scores=model.evaluate(batches(), verbose=0))


@program(several=2)
def py_dataset(keras):
    """A PyDataset that changes at the end of each epoch."""
    x, y = regression(40)

    class Batches(keras.utils.PyDataset):
        def __init__(self, **options):
            super().__init__(**options)
            self.turn = 0

        def __len__(self):
            return 5

        def __getitem__(self, index):
            rows = (np.arange(8) + 8 * index + 3 * self.turn) % 40
            return x[rows], y[rows]

        def on_epoch_end(self):
            self.turn += 1

    model = _compiled(keras)
    history = model.fit(
        Batches(), epochs=3, shuffle=False, verbose=0, validation_data=Batches()
    )
    return seen(model, history=history.history, outputs=model.predict(Batches(), verbose=0))


@program(several=3)
def ragged_last_batches(keras):
    """Lengths that no batch size divides, in every loop."""
    model = _compiled(keras, keras.optimizers.Adam(0.01))
    notes = []
    for n, batch in ((33, 16), (17, 8), (5, 3), (1, 4)):
        x, y = regression(n)
        history = model.fit(x, y, batch_size=batch, epochs=1, shuffle=False, verbose=0)
        notes.append([history.history, model.evaluate(x, y, batch_size=batch, verbose=0)])
        notes.append([model.predict(x, batch_size=batch, verbose=0)])
    return seen(model, notes=notes)


@program
def types_of_arrays(keras):
    """float64, integers, booleans, Fortran order, views, lists and backend tensors as data."""
    x, y = regression(32)
    model = _compiled(keras)
    whole = np.arange(256).reshape(32, 8) % 7
    notes = []
    for data in (
        x.astype("float64"), np.asfortranarray(x), x[::-1], whole, whole > 3,
        whole.astype("uint8"), whole.astype("int64"), x.astype("float16"),
        keras.ops.convert_to_tensor(x), np.concatenate([x, x], 1)[:, ::2],
    ):  # fmt: skip
        history = model.fit(data, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
        notes.append([history.history["loss"], model.predict(data, batch_size=16, verbose=0)])
    return seen(model, notes=notes)


@program
def labels_of_many_forms(keras):
    """Labels as (n,), (n, 1), booleans, bytes and floats."""
    x, y = classes(32)
    notes = []
    for labels in (y, y[:, None], y.astype("int64"), y.astype("uint8"), y.astype("float32")):
        model = mlp(keras, 3, "softmax")
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        notes.append(model.fit(x, labels, batch_size=16, shuffle=False, verbose=0).history)
    x, y = binary(32)
    for labels in (y, y[:, 0], y > 0.5, y.astype("int32")):
        model = mlp(keras, 1, "sigmoid")
        model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
        notes.append(model.fit(x, labels, batch_size=16, shuffle=False, verbose=0).history)
    return {"notes": notes}


@program(several=2)
def dicts_of_columns(keras):
    """Structured data: a dict of columns, some of which are categories."""
    rng = np.random.default_rng(0)
    columns = {
        "age": rng.normal(size=(40, 1)).astype("float32"),
        "kind": rng.integers(0, 5, (40, 1)).astype("int32"),
        "size": rng.normal(size=(40, 2)).astype("float32"),
    }
    y = (columns["age"] * 0.5 + columns["size"][:, :1]).astype("float32")
    layers = keras.layers
    inputs = {
        "age": keras.Input((1,), name="age"), "kind": keras.Input((1,), dtype="int32", name="kind"),
        "size": keras.Input((2,), name="size"),
    }  # fmt: skip
    kind = layers.Flatten()(layers.Embedding(5, 3, name="e")(inputs["kind"]))
    hidden = layers.Concatenate()([inputs["age"], kind, inputs["size"]])
    model = draw(keras.Model(inputs, layers.Dense(1, name="out")(hidden)))
    model.compile("adam", "mse")
    history = model.fit(
        columns, y, batch_size=16, epochs=2, shuffle=False, verbose=0, validation_split=0.25
    )
    return seen(model, columns, history=history.history)


@program
def weights_of_time_steps(keras):
    """Weights of each step and sample, (n, steps), with a loss per step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 5, 4)).astype("float32")
    y = np.tanh(x[..., :1])
    weights = rng.uniform(0, 1, (20, 5)).astype("float32")
    model = keras.Sequential([keras.Input((5, 4)), keras.layers.Dense(1, name="out")])
    draw(model)
    model.compile("sgd", "mse", weighted_metrics=["mae"])
    history = model.fit(
        x, y, sample_weight=weights, batch_size=8, epochs=2, shuffle=False, verbose=0
    )
    return seen(model, x, history=history.history)


@program
def data_adapters_of_folders(keras):
    """k-fold validation and early subsets, as scripts without a framework do."""
    x, y = regression(45)
    scores = []
    for fold in np.array_split(np.arange(45), 3):
        rest = np.setdiff1d(np.arange(45), fold)
        keras.utils.clear_session(free_memory=False)
        model = _compiled(keras)
        model.fit(x[rest], y[rest], batch_size=10, epochs=2, shuffle=False, verbose=0)
        scores.append(model.evaluate(x[fold], y[fold], verbose=0))
    return {"scores": scores, "mean": np.mean(scores, 0)}
