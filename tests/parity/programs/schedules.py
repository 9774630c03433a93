"""Every learning-rate schedule."""

from tests.parity.kit import mlp, program, regression, seen


def _fit(keras, schedule, optimizer="SGD", epochs=3):
    x, y = regression()
    model = mlp(keras)
    model.compile(getattr(keras.optimizers, optimizer)(schedule), "mse")
    rates = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

    history = model.fit(
        x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=[Note()]
    )
    alone = [float(schedule(step)) for step in (0, 1, 5, 11, 40)]
    return seen(
        model, history=history.history, rates=rates, alone=alone, config=schedule.get_config()
    )


@program(several=2)
def exponential_decay(keras):
    return _fit(keras, keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.7))


@program
def exponential_decay_in_stairs(keras):
    return _fit(keras, keras.optimizers.schedules.ExponentialDecay(0.1, 4, 0.5, staircase=True))


@program(several=2)
def piecewise_constant(keras):
    return _fit(
        keras, keras.optimizers.schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.05, 0.01])
    )


@program
def polynomial_decay(keras):
    schedule = keras.optimizers.schedules.PolynomialDecay
    first = _fit(keras, schedule(0.1, 6, 0.01, power=2.0))
    keras.utils.clear_session(free_memory=False)
    return {"once": first, "cycled": _fit(keras, schedule(0.1, 4, 0.02, cycle=True))}


@program
def inverse_time_decay(keras):
    return _fit(keras, keras.optimizers.schedules.InverseTimeDecay(0.02, 3, 0.5), "RMSprop")


@program
def cosine_decay(keras):
    schedule = keras.optimizers.schedules.CosineDecay(
        0.01, 6, alpha=0.1, warmup_target=0.1, warmup_steps=3
    )
    return _fit(keras, schedule, "Adam", 4)


@program
def cosine_decay_restarts(keras):
    # It restarts after 3, 7.5 and 14.25 steps: at one of these, from the second on, a rounding of
    # two logarithms would decide in which period a step is, under every backend.
    schedule = keras.optimizers.schedules.CosineDecayRestarts(0.1, 3, 1.5, 0.8, 0.05)
    return _fit(keras, schedule, epochs=4)


@program(several=2)
def a_schedule_of_ones_own(keras):
    """The transformer tutorial's schedule."""

    class Warmup(keras.optimizers.schedules.LearningRateSchedule):
        def __init__(self, size=64, steps=4):
            self.size, self.steps = size, steps

        def __call__(self, step):
            step = keras.ops.cast(step, "float32") + 1.0
            rising = step * self.steps**-1.5
            return self.size**-0.5 * keras.ops.minimum(keras.ops.rsqrt(step), rising)

        def get_config(self):
            return {"size": self.size, "steps": self.steps}

    return _fit(keras, Warmup(), "Adam")
