"""Every optimizer and every option of theirs.

With moving averages JAX's fit deletes the weights: their first averages are the same arrays.
"""

import numpy as np

from tests.parity.kit import binary, draw, mlp, program, regression, seen


def _fit(keras, optimizer, epochs=3, model=None, loss="mse", **options):
    x, y = regression()
    model = model or mlp(keras)
    model.compile(optimizer, loss, metrics=["mae"])
    history = model.fit(
        x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, **options
    )
    return seen(
        model, x, history=history.history, config=optimizer.get_config(),
        iterations=optimizer.iterations,
    )  # fmt: skip


@program(several=2)
def sgd(keras):
    return _fit(keras, keras.optimizers.SGD(0.05))


@program
def sgd_momentum(keras):
    return _fit(keras, keras.optimizers.SGD(0.05, momentum=0.9))


@program
def sgd_nesterov(keras):
    return _fit(keras, keras.optimizers.SGD(0.05, momentum=0.8, nesterov=True))


@program(several=3)
def adam(keras):
    return _fit(keras, keras.optimizers.Adam(0.01, beta_1=0.8, beta_2=0.95, epsilon=1e-6))


@program
def adam_amsgrad(keras):
    return _fit(keras, keras.optimizers.Adam(0.01, amsgrad=True))


@program
def adamw(keras):
    """With weight decay that leaves out biases."""
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.05)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return _fit(keras, optimizer)


@program
def adamax(keras):
    return _fit(keras, keras.optimizers.Adamax(0.01))


@program
def nadam(keras):
    return _fit(keras, keras.optimizers.Nadam(0.01))


@program
def rmsprop(keras):
    return _fit(keras, keras.optimizers.RMSprop(0.005))


@program
def rmsprop_centered(keras):
    return _fit(keras, keras.optimizers.RMSprop(0.01, 0.8, 0.7, epsilon=1e-3, centered=True))


@program
def adagrad(keras):
    return _fit(keras, keras.optimizers.Adagrad(0.05))


@program
def adadelta(keras):
    return _fit(keras, keras.optimizers.Adadelta(0.5))


@program
def adafactor(keras):
    return _fit(keras, keras.optimizers.Adafactor(0.02))


@program
def ftrl(keras):
    return _fit(
        keras,
        keras.optimizers.Ftrl(
            0.1, l1_regularization_strength=0.01, l2_regularization_strength=0.02, beta=0.1
        ),
    )


@program
def lion(keras):
    return _fit(keras, keras.optimizers.Lion(0.003))


@program
def lamb(keras):
    return _fit(keras, keras.optimizers.Lamb(0.01))


@program
def muon(keras):
    return _fit(keras, keras.optimizers.Muon(0.01))


@program
def schedule_free(keras):
    return _fit(keras, keras.optimizers.ScheduleFreeAdamW(0.02, warmup_steps=3))


@program
def loss_scale(keras):
    """The scale grows every few steps and scales gradients back."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=1024.0, dynamic_growth_steps=3
    )
    return _fit(keras, optimizer)


@program
def loss_scale_that_overflows(keras):
    """Steps with infinite gradients are left out and halve the scale."""
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05), initial_scale=2.0**127, dynamic_growth_steps=4
    )
    return _fit(keras, optimizer, epochs=4)


@program(several=2)
def clip_norm(keras):
    return _fit(keras, keras.optimizers.SGD(0.1, momentum=0.5, clipnorm=0.2))


@program
def clip_value(keras):
    return _fit(keras, keras.optimizers.Adam(0.01, clipvalue=0.05))


@program
def clip_by_global_norm(keras):
    return _fit(keras, keras.optimizers.RMSprop(0.01, global_clipnorm=0.3))


@program
def weight_decay(keras):
    return _fit(keras, keras.optimizers.SGD(0.1, weight_decay=0.02))


@program(several=2, reference="torch")
def moving_average_of_weights(keras):
    """The averages take the weights' place at the end of fit."""
    return _fit(keras, keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.9))


@program(several=2)
def gradient_accumulation(keras):
    return _fit(keras, keras.optimizers.Adam(0.02, gradient_accumulation_steps=2), epochs=4)


@program(reference="torch")
def accumulation_with_all_options(keras):
    optimizer = keras.optimizers.SGD(
        0.1, momentum=0.9, gradient_accumulation_steps=3, clipnorm=0.5, weight_decay=0.01,
        use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2,
    )  # fmt: skip
    return _fit(keras, optimizer, epochs=5)


@program
def multi_optimizer(keras):
    """One optimizer for kernels, another for biases."""
    x, y = regression()
    model = mlp(keras)
    chosen = keras.optimizers.OptimizerMap(keras.optimizers.Adam(0.01))
    chosen[".*bias"] = keras.optimizers.SGD(0.1, momentum=0.5)
    model.compile(keras.optimizers.MultiOptimizer(chosen), "mse")
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return {"weights": model.get_weights(), "history": history.history}


@program(eager=False)
def an_optimizer_alone(keras):
    """apply and apply_gradients without a model; the optimizer's state is read and set."""
    rng = np.random.default_rng(0)
    variables = [keras.Variable(rng.normal(size=s).astype("float32")) for s in ((4, 3), (3,))]
    optimizer = keras.optimizers.Adam(0.05)
    optimizer.build(variables)
    notes = []
    for step in range(4):
        gradients = [keras.ops.convert_to_tensor(rng.normal(size=v.shape).astype("float32"))
                     for v in variables]  # fmt: skip
        if step % 2:
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(zip(gradients, variables))
        notes.append([variables[0].numpy() if hasattr(variables[0], "numpy") else variables[0]])
        notes.append([int(optimizer.iterations)])
    store = {}
    optimizer.save_own_variables(store)
    optimizer.learning_rate = 0.5
    optimizer.apply(gradients, variables)
    optimizer.load_own_variables(store)
    optimizer.apply(gradients, variables)
    return {
        "variables": variables, "state": optimizer.variables, "store": store,
        "rate": optimizer.learning_rate, "steps": len(notes),
    }  # fmt: skip


@program
def optimizer_from_its_config(keras):
    """Names, configs and shared optimizers, as people write them."""
    x, y = binary()
    config = keras.optimizers.serialize(keras.optimizers.Adam(0.02, clipnorm=1.0))
    model = mlp(keras, 1, "sigmoid")
    model.compile(keras.optimizers.deserialize(config), keras.losses.BinaryCrossentropy())
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(model, x, history=history.history, config=config)


@program
def a_variable_without_gradient(keras):
    """A layer that does not take part in the loss keeps its weights."""
    inputs = keras.Input((8,))
    hidden = keras.layers.Dense(4, "tanh", name="used")(inputs)
    idle = keras.layers.Dense(4, name="idle")(inputs)
    total = keras.layers.Lambda(lambda pair: pair[0] + 0.0 * pair[1])([hidden, idle])
    model = draw(keras.Model(inputs, keras.layers.Dense(1, name="out")(total)))
    return _fit(keras, keras.optimizers.Adam(0.02), model=model)
