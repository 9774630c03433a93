"""Variables read and written at any time, and values held while others change."""

import numpy as np

from tests.parity.kit import mlp, program, regression, seen


def _copied(keras, value):
    """A value as an array that later steps leave alone, on JAX too, which deletes its own."""
    return value.value.copy() if keras.backend.backend() == "jax" else value.value


@program(several=2)
def values_held_across_fits(keras):
    """Arrays taken between fits, and numbers made of them, still say what they said."""
    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.Adam(0.02), "mse")
    held, copies = [], []
    for _ in range(4):
        for w in model.weights:
            held += [_copied(keras, w), w * 2, keras.ops.reshape(w, (1, -1)), keras.ops.sum(w)]
            copies.append(np.array(w))
        model.fit(x, y, batch_size=16, epochs=1, shuffle=False, verbose=0)
        held.append(model(x[:3]))
    return seen(model, held=held, copies=copies)


@program
def values_held_across_assigns(keras):
    """assign, assign_add and assign_sub between steps, of values, of themselves and of parts."""
    x, y = regression()
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    kernel, held = model.layers[0].kernel, []
    for step in range(4):
        model.train_on_batch(x, y)
        held.append(_copied(keras, kernel))
        kernel.assign(kernel * 0.5 if step % 2 else np.ones((8, 8), "float32") * 0.1)
        held.append(_copied(keras, kernel))
        kernel.assign_add(held[0])
        held.append(kernel + 1)
        kernel.assign_sub(keras.ops.transpose(kernel))
        held.append(keras.ops.mean(kernel, axis=0))
    return seen(model, x, held=held)


@program(several=2)
def assigned_to_themselves(keras):
    """w.assign(w), w.assign(w.value), learning_rate = learning_rate; then training goes on."""
    x, y = regression()
    model = mlp(keras)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, "mse")
    options = dict(batch_size=16, epochs=1, shuffle=False, verbose=0)
    notes = []
    for turn in range(3):
        notes.append(model.fit(x, y, **options).history)
        for w in model.weights:
            w.assign(w) if turn else w.assign(w.value)
        optimizer.learning_rate = optimizer.learning_rate
        a, b = model.layers[0].bias, model.layers[0].kernel
        a.assign(b[0])
    return seen(model, x, notes=notes)


@program
def variables_swapped(keras):
    """Two variables exchange their values, and a third takes one of theirs."""
    x, y = regression()
    first, second = mlp(keras), mlp(keras, seed=1)
    for model in (first, second):
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=16, verbose=0, shuffle=False)
    for a, b in zip(first.weights, second.weights):
        old = a * 1
        a.assign(b)
        b.assign(old)
    histories = [
        m.fit(x, y, batch_size=16, verbose=0, shuffle=False).history for m in (first, second)
    ]
    return {
        "first": first.get_weights(), "second": second.get_weights(), "histories": histories,
    }  # fmt: skip


@program
def iterations_and_metrics_at_any_time(keras):
    """Counters and metrics between batches; results are held and asked for again."""
    x, y = regression(64)
    model = mlp(keras)
    model.compile("adam", "mse", metrics=["mae"])
    notes, held = [], []
    for i in range(0, 64, 16):
        logs = model.train_on_batch(x[i : i + 16], y[i : i + 16], return_dict=True)
        held += [m.result() for m in model.metrics]
        notes.append([logs, int(model.optimizer.iterations), model.get_metrics_result()])
        notes.append([{m.name: m.result() for m in model.metrics}])
        if i == 32:
            model.reset_metrics()
            held += [m.result() for m in model.metrics]
    return seen(model, notes=notes, held=held)


@program(eager=False)
def variables_alone(keras):
    """Variables as numbers: operators, slices, comparisons, conversions, dtypes, printing."""
    v = keras.Variable(np.arange(6, dtype="float32").reshape(2, 3), name="v")
    whole = keras.Variable(3, dtype="int32", name="whole", trainable=False)
    before = v * 1
    results = [v + 1, 2 - v, v * v, v / 2, v**2, -v, abs(v), v @ keras.ops.transpose(v)]
    results += [v[1], v[:, 1:], v > 2, v == 3, v % 2, v // 2, 7 / (v + 1), whole + 2, whole * v]
    v.assign(np.ones((2, 3)))
    v.assign_add(np.full((2, 3), 0.5))
    text = [str(v.shape), v.dtype, v.name, str(v.trainable), str(len(v.shape)), str(v.ndim)]
    try:
        v.assign(np.ones((3, 2)))
    except ValueError:
        text.append("another shape is refused")
    return {
        "results": results, "before": before, "after": v, "text": text, "whole": int(whole.value),
        "array": np.array(v), "sum": float(keras.ops.sum(v)),
    }  # fmt: skip


@program(several=2)
def old_predictions_stay(keras):
    """Predictions, calls and evaluations from before training are looked at after it."""
    x, y = regression()
    model = mlp(keras)
    model.compile("adam", "mse")
    held = [model.predict(x, verbose=0), model(x), model(x[:5]) * 2]
    held.append(model.evaluate(x, y, verbose=0))
    model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    held += [model.predict(x, verbose=0), model(x), model.predict_on_batch(x[:6])]
    model.set_weights([w * 0 for w in model.get_weights()])
    held.append(model(x))
    return seen(model, held=held)


@program
def stateless_calls(keras):
    """stateless_call, stateless_apply and metrics' stateless functions leave the model alone."""
    x, y = regression(16)
    model = mlp(keras)
    optimizer = keras.optimizers.Adam(0.02)
    optimizer.build(model.trainable_variables)
    doubled = [v * 2 for v in model.trainable_variables]
    outputs, _ = model.stateless_call(doubled, model.non_trainable_variables, x)
    slopes = [v * 0 + 0.1 for v in model.trainable_variables]
    values, state = optimizer.stateless_apply(
        optimizer.variables, slopes, [v * 1 for v in model.trainable_variables]
    )
    metric = keras.metrics.MeanSquaredError()
    new = metric.stateless_update_state([v * 1 for v in metric.variables], y, outputs)
    return {
        "outputs": outputs, "values": values, "state": state, "metric": new,
        "result": metric.stateless_result(new), "untouched": metric.result(),
        "weights": model.get_weights(), "optimizer": optimizer.variables,
    }  # fmt: skip
