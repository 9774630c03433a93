"""Callbacks of one's own: what they see, early stopping, a schedule of rates, saved and resumed."""

import keras
import numpy as np
from keras import layers


class Watcher(keras.callbacks.Callback):
    """Notes every event."""

    def __init__(self):
        super().__init__()
        self.events, self.losses = [], []

    def on_train_begin(self, logs=None):
        self.events.append("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.events.append(f"epoch {epoch}: {', '.join(logs)}")

    def on_train_batch_end(self, batch, logs=None):
        self.losses.append(logs["loss"])

    def on_train_end(self, logs=None):
        self.events.append("end")


class Stopper(keras.callbacks.Callback):
    """Stops when the loss no longer falls, and brings the best weights back."""

    def on_train_begin(self, logs=None):
        self.best, self.weights = np.inf, None

    def on_epoch_end(self, epoch, logs=None):
        if logs["loss"] < self.best:
            self.best, self.weights = logs["loss"], self.model.get_weights()
        else:
            self.stopped = epoch
            self.model.stop_training = True
            self.model.set_weights(self.weights)


class Rates(keras.callbacks.Callback):
    """Another learning rate for each epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.optimizer.learning_rate = self.model.optimizer.learning_rate
        self.model.optimizer.learning_rate = [0.1, 0.01, 10.0, 0.1][epoch]


def make():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.set_weights([np.ones((3, 1), "float32"), np.zeros(1, "float32")])
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def main():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 3)).astype("float32"), rng.normal(size=(32, 1)).astype("float32")
    model, watcher, stopper = make(), Watcher(), Stopper()
    callbacks = [watcher, stopper, Rates()]
    history = model.fit(x, y, batch_size=32, epochs=4, verbose=2, callbacks=callbacks).history
    k, b = np.ones((3, 1)), np.zeros(1)
    losses, states = [], []
    for rate in (0.1, 0.01, 10.0, 0.1):
        error = x @ k + b - y
        losses.append((error**2).mean())
        k, b = k - rate * 2 / 32 * x.T @ error, b - rate * 2 * error.mean(0)
        states.append((k, b))
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-4)
    np.testing.assert_allclose(watcher.losses, losses, rtol=1e-4)
    assert stopper.stopped == 3 and all(type(v) is float for v in watcher.losses)
    for a, b in zip(model.get_weights(), states[2], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert watcher.events[:2] == ["begin", "epoch 0: loss, mae"] and watcher.events[-1] == "end"

    # what is left of an interrupted training goes on where it was
    whole = make()
    whole.fit(x, y, batch_size=8, epochs=4, shuffle=False, verbose=0)

    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise RuntimeError("a crash")

    broken, resumed = make(), make()
    backup = dict(batch_size=8, epochs=4, shuffle=False, verbose=0)
    try:
        broken.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("backup"), Crash()], **backup)
    except RuntimeError:
        print("crashed")
    seen = Watcher()
    resumed.fit(x, y, callbacks=[keras.callbacks.BackupAndRestore("backup"), seen], **backup)
    assert [e.split(":")[0] for e in seen.events] == ["begin", "epoch 2", "epoch 3", "end"]
    for a, b in zip(whole.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


if __name__ == "__main__":
    main()
