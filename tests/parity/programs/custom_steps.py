"""train_step, test_step and loops of users, with the tape where Keras on JAX has none.

Their reference is torch, whose train_step is written the same way but for two lines.
"""

import numpy as np

from tests.parity.kit import mlp, program, regression, seen


def gradients(keras, loss_of, variables):
    """(loss_of(), its gradients), the way the current backend has users write it."""
    if keras.backend.backend() == "kerascl":
        import kerascl

        with kerascl.GradientTape() as tape:
            loss = loss_of()
        return loss, tape.gradient(loss, variables)
    for v in variables:
        v.value.grad = None
    loss = loss_of()
    loss.backward(retain_graph=True)
    return loss.detach(), [v.value.grad for v in variables]


def apply(keras, optimizer, found, variables):
    """One step of an optimizer."""
    if keras.backend.backend() == "torch":
        import torch

        with torch.no_grad():
            optimizer.apply(found, variables)
    else:
        optimizer.apply(found, variables)


@program(reference="torch", several=2)
def train_step_of_the_guide(keras):
    """The guide "Customizing what happens in fit": own trackers, no compiled loss."""

    class Custom(keras.Model):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.loss_mean = keras.metrics.Mean(name="loss")
            self.mae = keras.metrics.MeanAbsoluteError(name="mae")

        def train_step(self, data):
            x, y = data
            found = {}

            def loss_of():
                found["out"] = self(x, training=True)
                return keras.ops.mean(keras.losses.mean_squared_error(y, found["out"]))

            loss, slopes = gradients(keras, loss_of, self.trainable_weights)
            apply(keras, self.optimizer, slopes, self.trainable_weights)
            self.loss_mean.update_state(loss)
            self.mae.update_state(y, found["out"])
            return {m.name: m.result() for m in self.metrics}

        def test_step(self, data):
            x, y = data
            out = self(x, training=False)
            self.loss_mean.update_state(keras.ops.mean((y - out) ** 2))
            self.mae.update_state(y, out)
            return {m.name: m.result() for m in self.metrics}

        @property
        def metrics(self):
            return [self.loss_mean, self.mae]

    x, y = regression()
    base = mlp(keras)
    model = Custom(base.inputs, base.outputs)
    model.compile(optimizer=keras.optimizers.Adam(0.02))
    history = model.fit(
        x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, validation_data=(x[:20], y[:20])
    )
    return seen(
        model, history=history.history, scores=model.evaluate(x, y, verbose=0, return_dict=True)
    )


@program(reference="torch", several=2)
def train_step_with_compiled_parts(keras):
    """compute_loss and compute_metrics inside a step of one's own, with sample weights."""

    class Custom(keras.Model):
        def train_step(self, data):
            x, y, weight = data if len(data) == 3 else (*data, None)
            found = {}

            def loss_of():
                found["out"] = self(x, training=True)
                return self.compute_loss(x, y, found["out"], weight)

            loss, slopes = gradients(keras, loss_of, self.trainable_weights)
            apply(keras, self.optimizer, slopes, self.trainable_weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, found["out"], sample_weight=weight)
            return {m.name: m.result() for m in self.metrics}

    x, y = regression()
    base = mlp(keras)
    model = Custom(base.inputs, base.outputs)
    model.compile(keras.optimizers.SGD(0.1), "mse", weighted_metrics=["mae"])
    weights = np.linspace(0, 2, 40).astype("float32")
    history = model.fit(
        x, y, sample_weight=weights, batch_size=16, epochs=2, shuffle=False, verbose=0
    )
    return seen(model, x, history=history.history)


@program(reference="torch")
def adversarial_pair(keras):
    """A GAN in two optimizers and one train_step, on given noise."""

    class Pair(keras.Model):
        def __init__(self, maker, critic):
            super().__init__()
            self.maker, self.critic = maker, critic

        def compile(self, maker_optimizer, critic_optimizer):
            super().compile()
            self.maker_optimizer, self.critic_optimizer = maker_optimizer, critic_optimizer
            self.bce = keras.losses.BinaryCrossentropy(from_logits=True)

        def call(self, noise):
            return self.maker(noise)

        def train_step(self, data):
            noise, real = data
            ones, zeros = keras.ops.ones((real.shape[0], 1)), keras.ops.zeros((real.shape[0], 1))
            fake = keras.ops.stop_gradient(self.maker(noise))
            variables = self.critic.trainable_weights
            critic_loss, slopes = gradients(
                keras,
                lambda: self.bce(ones, self.critic(real)) + self.bce(zeros, self.critic(fake)),
                variables,
            )
            apply(keras, self.critic_optimizer, slopes, variables)
            variables = self.maker.trainable_weights
            maker_loss, slopes = gradients(
                keras, lambda: self.bce(ones, self.critic(self.maker(noise))), variables
            )
            apply(keras, self.maker_optimizer, slopes, variables)
            return {"critic": critic_loss, "maker": maker_loss}

    rng = np.random.default_rng(0)
    real = rng.normal(1, 0.5, (32, 8)).astype("float32")
    noise = rng.normal(size=(32, 4)).astype("float32")
    pair = Pair(mlp(keras, 8, features=4), mlp(keras, 1, seed=1))
    pair.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    history = pair.fit(noise, real, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return {
        "history": history.history, "weights": pair.get_weights(),
        "made": pair.maker.predict(noise[:5], verbose=0),
        "states": pair.critic_optimizer.variables,
    }  # fmt: skip


@program(reference="torch", eager=False)
def a_loop_of_ones_own(keras):
    """The guide "Writing a training loop from scratch": no fit, metrics read as one goes."""
    x, y = regression(48)
    model = mlp(keras)
    optimizer = keras.optimizers.Adam(0.02)
    loss_of = keras.losses.MeanSquaredError()
    metric = keras.metrics.MeanAbsoluteError()
    notes = []
    for epoch in range(2):
        for i in range(0, 48, 16):
            found = {}

            def value(part=slice(i, i + 16), found=found):
                found["out"] = model(x[part], training=True)
                return loss_of(y[part], found["out"])

            loss, slopes = gradients(keras, value, model.trainable_weights)
            apply(keras, optimizer, slopes, model.trainable_weights)
            metric.update_state(y[i : i + 16], found["out"])
            notes.append([float(loss), float(metric.result()), int(optimizer.iterations)])
        if epoch == 0:
            metric.reset_state()
    return {"notes": notes, "weights": model.get_weights(), "state": optimizer.variables}


@program(several=2)
def compute_loss_of_ones_own(keras):
    """compute_loss and compute_metrics replaced; the rest of fit is Keras'."""

    class Custom(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            near = keras.ops.mean(keras.ops.square(y - y_pred))
            return near + 0.01 * sum(keras.ops.sum(w * w) for w in self.trainable_weights)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            found = super().compute_metrics(x, y, y_pred, sample_weight)
            return found | {"largest": keras.ops.max(y_pred)}

    x, y = regression()
    base = mlp(keras)
    model = Custom(base.inputs, base.outputs)
    model.compile(keras.optimizers.SGD(0.1), metrics=["mae"])
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return seen(
        model, x, history=history.history, scores=model.evaluate(x, y, verbose=0, return_dict=True)
    )


@program(several=2)
def predict_with_a_method_of_ones_own(keras):
    """An autoencoder that encodes and decodes outside of fit, between epochs."""

    class Auto(keras.Model):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = mlp(keras, 2, "tanh"), mlp(keras, 8, features=2, seed=1)

        def call(self, x):
            return self.decoder(self.encoder(x))

    x, _ = regression()
    model, notes = Auto(), []
    model.compile("adam", "mse")
    for _ in range(2):
        history = model.fit(x, x, batch_size=16, epochs=1, shuffle=False, verbose=0)
        codes = model.encoder.predict(x[:4], verbose=0)
        notes.append([history.history, codes, model.decoder(codes)])
    return seen(model, x, notes=notes)


@program(reference="torch", several=2)
def gradient_penalty(keras):
    """A step whose loss holds the norm of a first derivative, by finite steps along noise."""

    class Smooth(keras.Model):
        def train_step(self, data):
            x, y = data

            def loss_of():
                out, near = self(x, training=True), self(x + 0.1, training=True)
                return keras.ops.mean((out - y) ** 2) + keras.ops.mean((out - near) ** 2)

            loss, slopes = gradients(keras, loss_of, self.trainable_weights)
            slopes = [keras.ops.clip(g, -0.1, 0.1) for g in slopes]
            apply(keras, self.optimizer, slopes, self.trainable_weights)
            size = sum(keras.ops.sum(g * g) for g in slopes)
            return {"loss": loss, "size": keras.ops.sqrt(size)}

    x, y = regression()
    base = mlp(keras)
    model = Smooth(base.inputs, base.outputs)
    model.compile(keras.optimizers.SGD(0.5, momentum=0.9))
    history = model.fit(x, y, batch_size=16, epochs=3, shuffle=False, verbose=0)
    return seen(model, history=history.history)


@program(reference="torch")
def teacher_and_student(keras):
    """Distillation, with a teacher that does not train and a moving average of the student."""

    class Distiller(keras.Model):
        def __init__(self, student, teacher, average):
            super().__init__()
            self.student, self.teacher, self.average = student, teacher, average
            self.teacher.trainable = self.average.trainable = False

        def call(self, x):
            return self.student(x)

        def train_step(self, data):
            x, y = data
            goal = self.teacher(x, training=False)

            def loss_of():
                out = self.student(x, training=True)
                return keras.ops.mean((out - y) ** 2) + 0.5 * keras.ops.mean((out - goal) ** 2)

            variables = self.student.trainable_weights
            loss, slopes = gradients(keras, loss_of, variables)
            apply(keras, self.optimizer, slopes, variables)
            for a, w in zip(self.average.weights, self.student.weights):
                a.assign(0.9 * a + 0.1 * w)
            return {"loss": loss}

    x, y = regression()
    model = Distiller(mlp(keras), mlp(keras, seed=1), mlp(keras))
    model.build((None, 8))
    model.compile(keras.optimizers.SGD(0.1))
    history = model.fit(x, y, batch_size=16, epochs=2, shuffle=False, verbose=0)
    return {"history": history.history, "weights": {w.path: w for w in draw_order(model)}}


def draw_order(model):
    """All weights, the student's first."""
    return [*model.student.weights, *model.teacher.weights, *model.average.weights]
