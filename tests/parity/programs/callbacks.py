"""Every callback, and callbacks of users that look at what happens."""

import contextlib
import json
import os

import numpy as np

from tests.parity.kit import binary, h5_content, mlp, printed, program, regression, seen, table


def _train(keras, callbacks, optimizer=None, epochs=4, outputs=None, **options):
    """A regression with validation; `outputs(model)` gives what else is seen."""
    x, y = regression()
    model = mlp(keras)
    model.compile(optimizer or keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    history = model.fit(
        x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=callbacks,
        validation_data=regression(20, seed=1), **options,
    )  # fmt: skip
    more = outputs(model) if outputs else {}
    return seen(model, x, history=history.history, epoch=history.epoch, **more)


@program(several=2)
def all_hooks(keras):
    """LambdaCallback and a Callback note each call with copies of the logs it got."""
    notes = []

    class Note(keras.callbacks.Callback):
        def __getattribute__(self, name):
            if not name.startswith("on_"):
                return super().__getattribute__(name)

            def hook(*args, **options):
                logs = options.get("logs", args[-1] if args else None) or {}
                first = args[0] if len(args) > 1 or (args and isinstance(args[0], int)) else None
                values = {k: v for k, v in logs.items() if k != "outputs"}
                notes.append([name, first, values])

            return hook

    losses = []
    callbacks = [
        Note(),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: losses.append(float(logs["val_loss"])),
            on_train_batch_end=lambda batch, logs: losses.append(float(logs["loss"])),
        ),
    ]
    x, y = regression()
    model = mlp(keras)
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(
        x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=callbacks,
        validation_data=(x[:20], y[:20]),
    )  # fmt: skip
    model.evaluate(x, y, batch_size=16, verbose=0, callbacks=callbacks)
    model.predict(x, batch_size=16, verbose=0, callbacks=callbacks)
    return seen(model, notes=notes, losses=losses)


@program(several=2)
def logs_held_during_training(keras):
    """Logs of early batches and epochs are kept as they came and read after the end."""
    held = []

    class Hold(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            held.append(logs)

        def on_test_batch_end(self, batch, logs=None):
            held.append(logs)

        def on_epoch_end(self, epoch, logs=None):
            held.append(logs)

    return _train(keras, [Hold()], outputs=lambda model: dict(held=held))


@program(several=2)
def early_stopping(keras):
    stop = keras.callbacks.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.03, verbose=1)
    with printed() as text:
        found = _train(keras, [stop], epochs=10)
    return found | dict(text=text(), stopped=stop.stopped_epoch, best=float(stop.best))


@program
def early_stopping_restores(keras):
    """A learning rate that grows too large: the best epoch's weights come back."""
    stop = keras.callbacks.EarlyStopping(
        monitor="val_mae", patience=2, restore_best_weights=True, start_from_epoch=1, verbose=1
    )
    grow = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.05 * (epoch + 1) ** 1.5)
    with printed() as text:
        found = _train(keras, [grow, stop], epochs=8)
    return found | dict(text=text(), best_epoch=stop.best_epoch, best=float(stop.best))


@program
def checkpoint_of_each_epoch(keras):
    """Files named by epoch and figure; the third is loaded again."""

    def files(model):
        names = sorted(os.listdir("."))
        other = keras.models.load_model(names[2])
        return dict(files=names, third=other.get_weights(), iterations=other.optimizer.iterations)

    path = "{epoch:02d}-{val_loss:.2f}.keras"
    return _train(keras, [keras.callbacks.ModelCheckpoint(path)], outputs=files)


@program(several=2)
def checkpoint_of_the_best(keras):
    x, _ = regression()

    def files(model):
        content = h5_content("best.weights.h5")
        last = model.predict(x, verbose=0)
        model.load_weights("best.weights.h5")
        return dict(content=content, last=last, files=os.listdir("."))

    save = keras.callbacks.ModelCheckpoint(
        "best.weights.h5", monitor="val_mae", save_best_only=True, save_weights_only=True, verbose=1
    )
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: [0.1, 0.1, 0.7, 0.7][epoch])
    with printed() as text:
        found = _train(keras, [rates, save], outputs=files)
    return found | dict(text=text())


@program
def checkpoint_every_few_batches(keras):
    save = keras.callbacks.ModelCheckpoint("b{batch:02d}.weights.h5", save_weights_only=True,
                                           save_freq=2)  # fmt: skip
    return _train(
        keras, [save],
        outputs=lambda model: {name: h5_content(name) for name in sorted(os.listdir("."))},
    )  # fmt: skip


@program
def reduce_on_plateau(keras):
    rates = []
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(
            monitor="val_loss", factor=0.5, patience=1, min_delta=0.02, min_lr=0.01, cooldown=1,
            verbose=1,
        ),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(dict(logs))
        ),
    ]  # fmt: skip
    with printed() as text:
        found = _train(keras, callbacks, epochs=8)
    return found | dict(text=text(), rates=rates)


@program(several=2)
def learning_rate_scheduler(keras):
    schedule = keras.callbacks.LearningRateScheduler(
        lambda epoch, rate: rate * 0.5 if epoch else rate, verbose=1
    )
    with printed() as text:
        found = _train(keras, [schedule], keras.optimizers.Adam(0.02))
    return found | dict(text=text())


@program(several=3)
def csv_logger(keras):
    """Two fits into one file, the second one appended."""
    x, y = binary()
    model = mlp(keras, 1, "sigmoid")
    area = keras.metrics.AUC(name="auc")
    model.compile("adam", "binary_crossentropy", metrics=["accuracy", area])
    for append in (False, True):
        logger = keras.callbacks.CSVLogger("log.csv", append=append)
        model.fit(
            x, y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=[logger],
            validation_split=0.25,
        )  # fmt: skip
    return seen(model, rows=table("log.csv"))


@program
def terminate_on_nan(keras):
    x, y = regression()
    y[20] = np.nan
    model = mlp(keras)
    model.compile("sgd", "mse")
    with printed() as text:
        history = model.fit(
            x, y, batch_size=8, epochs=3, shuffle=False, verbose=0,
            callbacks=[keras.callbacks.TerminateOnNaN()],
        )  # fmt: skip
    return seen(model, text=text(), history=history.history)


@program
def backup_and_restore(keras):
    """Training breaks off in its third epoch and goes on in a second run, with Adam's state."""
    x, y = regression()

    class Break(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("power failure")

    def fresh():
        keras.utils.clear_session(free_memory=False)
        model = mlp(keras)
        model.compile("adam", "mse", metrics=["mae"])
        return model

    options = dict(batch_size=16, epochs=4, shuffle=False, verbose=0)
    model = fresh()
    try:
        model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("backup"), Break()], **options)
    except RuntimeError as error:
        message = str(error)
    files = sorted(os.listdir("backup"))
    with open("backup/training_metadata.json") as file:
        metadata = json.load(file)
    model = fresh()
    history = model.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("backup")], **options)
    return seen(
        model, x, message=message, files=files, metadata=metadata, history=history.history,
        epoch=history.epoch, left=os.path.exists("backup"),
    )  # fmt: skip


@program(reference="torch")  # JAX: see optimizers.py
def swap_ema_weights(keras):
    """Validation with the averages; training goes on with the weights."""
    optimizer = keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.8)
    return _train(keras, [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], optimizer)


@program(reference="torch")  # JAX: see optimizers.py
def ema_written_over(keras):
    optimizer = keras.optimizers.Adam(
        0.05, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=4
    )
    return _train(keras, None, optimizer)


@program(several=2)
def a_learning_rate_set_by_hand(keras):
    """Read and set in batches, as in a learning-rate finder."""
    rates, losses = [], []

    class Finder(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            rates.append(float(self.model.optimizer.learning_rate))

        def on_train_batch_end(self, batch, logs=None):
            losses.append(float(logs["loss"]))
            self.model.optimizer.learning_rate = rates[-1] * 1.3
            self.model.optimizer.learning_rate.assign(
                self.model.optimizer.learning_rate * 1.1
            )

    return _train(
        keras, [Finder()], keras.optimizers.SGD(0.01),
        outputs=lambda model: dict(rates=rates, losses=losses),
    )  # fmt: skip


@program(several=2)
def weights_looked_at_in_batches(keras):
    """Weights, metrics and iterations are read at each batch, and some are held to the end."""
    notes, held, copies = [], [], []
    jax = keras.backend.backend() == "jax"  # whose steps delete the arrays they are given

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            kernel = self.model.layers[0].kernel
            held.append(kernel.value.copy() if jax else kernel.value)
            held.append(keras.ops.transpose(kernel))
            held.append(kernel * 2)
            copies.append(np.array(kernel))
            notes.append([
                int(self.model.optimizer.iterations),
                float(keras.ops.sum(keras.ops.square(kernel))),
                np.array(self.model.get_weights()[-1]),
            ])  # fmt: skip

        def on_epoch_end(self, epoch, logs=None):
            notes.append([{m.name: m.result() for m in self.model.metrics}])

    def outputs(model):
        kept = [np.array_equal(a, c) for a, c in zip(held[::3], copies)]
        return dict(notes=notes, held=held, kept=kept)

    return _train(keras, [Look()], outputs=outputs)


@program(several=2)
def weights_changed_in_epochs(keras):
    """Weights are clipped, set and swapped between epochs, the optimizer's state too."""

    class Change(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.saved = self.model.get_weights()
            if epoch == 3:
                self.model.set_weights(self.saved)

        def on_epoch_end(self, epoch, logs=None):
            for w in self.model.trainable_weights:
                w.assign(keras.ops.clip(w, -0.5, 0.5))
            for v in self.model.optimizer.variables[2:]:
                v.assign(v * 0.5)

    return _train(
        keras, [Change()], keras.optimizers.SGD(0.1, momentum=0.9), epochs=5
    )


@program
def several_callbacks(keras):
    """As people combine them."""

    def files(model):
        return dict(rows=table("log.csv"), files=sorted(os.listdir(".")))

    made = keras.callbacks
    return _train(
        keras,
        [
            made.ReduceLROnPlateau(monitor="loss", factor=0.3, patience=0, min_delta=0.05),
            made.ModelCheckpoint("best.keras", save_best_only=True),
            made.CSVLogger("log.csv", separator=","),
            made.EarlyStopping(patience=3),
        ],
        keras.optimizers.Adam(0.03), epochs=6, outputs=files,
    )  # fmt: skip


@program(several=2)
def a_callback_that_predicts(keras):
    """Predictions and evaluations in the middle of training, as in image-generating scripts."""
    x, y = regression(20, seed=4)
    notes = []

    class Monitor(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch % 2:
                notes.append(self.model(x[:3]))

        def on_epoch_end(self, epoch, logs=None):
            notes.append(self.model.predict(x, verbose=0))
            notes.append(self.model.evaluate(x, y, verbose=0))

    return _train(keras, [Monitor()], epochs=2, outputs=lambda model: dict(notes=notes))


@program
def a_callback_that_freezes(keras):
    """A schedule of freezing: the hidden layer's kernel stays from the second epoch on."""

    class Freeze(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.kept = self.model.layers[0].get_weights()

        def on_train_batch_end(self, batch, logs=None):
            if hasattr(self, "kept"):
                self.model.layers[0].set_weights(self.kept)

    return _train(keras, [Freeze()])


@program
def remote_monitor(keras):
    """What is posted after each epoch, as a form and as JSON, to a stand-in of `requests`."""
    from keras.src.callbacks import remote_monitor as module

    posts = []

    class Requests:
        class exceptions:
            RequestException = OSError

        @staticmethod
        def post(address, data=None, json=None, headers=None):
            posts.append([address, data, json, headers])
            if len(posts) == 4:
                raise OSError("nobody is there")

    original, module.requests = module.requests, Requests
    made = keras.callbacks.RemoteMonitor
    monitors = [made(headers={"key": "1"}), made("http://x", "/y/", send_as_json=True)]
    try:
        found = _train(keras, monitors, epochs=2)
    finally:
        module.requests = original
    told = [
        [address, json.loads(data["data"]) if data else None, sent, headers]
        for address, data, sent, headers in posts
    ]
    return found | dict(posts=told)


@program(several=3)
def schedule_and_plateau(keras):
    """A scheduler warms the rate up and then leaves it to the plateaus; the CSV file has both."""
    callbacks = [
        keras.callbacks.LearningRateScheduler(
            lambda epoch, rate: 0.05 * (epoch + 1) if epoch < 3 else rate
        ),
        keras.callbacks.ReduceLROnPlateau(
            monitor="val_mae", mode="min", factor=0.4, patience=1, min_delta=0.05
        ),
        keras.callbacks.CSVLogger("log.tsv", separator="\t"),
    ]

    def files(model):
        with open("log.tsv") as file:
            lines = [line.rstrip("\n").split("\t") for line in file]
        return dict(head=lines[0], rows=[[float(v) for v in line] for line in lines[1:]])

    return _train(keras, callbacks, epochs=7, outputs=files)


@program
def backup_within_an_epoch(keras):
    """Training breaks off between two batches and goes on at the one after the last backup."""
    x, y = regression(64)

    class Break(keras.callbacks.Callback):
        epoch = 0

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_begin(self, batch, logs=None):
            if (self.epoch, batch) == (1, 3):
                raise RuntimeError("power failure")

    def run(*more):
        keras.utils.clear_session(free_memory=False)
        model = mlp(keras)
        model.compile(keras.optimizers.Adam(0.02), "mse", metrics=["mae"])
        backup = keras.callbacks.BackupAndRestore(
            "backup", save_freq=2, double_checkpoint=True, delete_checkpoint=False
        )
        logger = keras.callbacks.CSVLogger("log.csv", append=True)
        options = dict(batch_size=16, epochs=3, shuffle=False, verbose=0)
        history = None
        with contextlib.suppress(RuntimeError):
            history = model.fit(x, y, callbacks=[backup, logger, *more], **options)
        with open("backup/training_metadata.json") as file:
            return model, history, sorted(os.listdir("backup")), json.load(file)

    _, _, *first = run(Break())
    model, history, *second = run()
    return seen(model, x, first=first, second=second, history=history.history,
                epoch=history.epoch, rows=table("log.csv"))  # fmt: skip


@program(several=2)
def nan_among_other_callbacks(keras):
    """Where training ends for a NaN, what each of the usual companions has kept."""
    x, y = regression(48)
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    made = keras.callbacks

    class Spoil(made.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                self.model.optimizer.learning_rate = np.float32("nan")

    stop = made.EarlyStopping(monitor="loss", patience=2, restore_best_weights=True)
    save = made.ModelCheckpoint("best.weights.h5", "loss", save_best_only=True,
                                save_weights_only=True)  # fmt: skip
    history = model.fit(
        x, y, batch_size=16, epochs=5, shuffle=False, verbose=0,
        callbacks=[Spoil(), made.TerminateOnNaN(), made.CSVLogger("log.csv"), save, stop],
    )  # fmt: skip
    return seen(model, x, history=history.history, rows=table("log.csv"),
                best=h5_content("best.weights.h5"))  # fmt: skip


@program(reference="torch")  # JAX: see optimizers.py
def averages_saved_and_evaluated(keras):
    """SwapEMAWeights before a checkpoint and early stopping; the file has the averages."""
    optimizer = keras.optimizers.Adam(0.05, use_ema=True, ema_momentum=0.6)
    made = keras.callbacks
    save = made.ModelCheckpoint("{epoch}.weights.h5", save_weights_only=True)
    stop = made.EarlyStopping(monitor="val_loss", patience=1, min_delta=0.2)

    def files(model):
        return {name: h5_content(name) for name in sorted(os.listdir("."))}

    callbacks = [made.SwapEMAWeights(swap_on_epoch=True), save, stop]
    return _train(keras, callbacks, optimizer, epochs=4, outputs=files)


@program(eager=False)
def callbacks_in_a_loop_of_ones_own(keras):
    """CallbackList, History and ProgbarLogger driven by hand, with logs from train_on_batch."""
    x, y = regression(48)
    model = mlp(keras)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    with printed() as text:
        listed = keras.callbacks.CallbackList(
            [keras.callbacks.CSVLogger("log.csv")], add_history=True, add_progbar=True,
            model=model, verbose=2, epochs=2, steps=3,
        )  # fmt: skip
        listed.on_train_begin()
        for epoch in range(2):
            model.reset_metrics()
            listed.on_epoch_begin(epoch)
            for batch in range(3):
                listed.on_train_batch_begin(batch)
                part = slice(16 * batch, 16 * batch + 16)
                logs = model.train_on_batch(x[part], y[part], return_dict=True)
                listed.on_train_batch_end(batch, logs)
            listed.on_epoch_end(epoch, logs)
        listed.on_train_end(logs)
    return seen(model, text=text(), history=model.history.history, rows=table("log.csv"))
