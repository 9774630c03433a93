"""Keras' list of callbacks, whose logs are read from the device at once, and only for listeners."""

from __future__ import annotations

from keras.src import callbacks as callbacks_module
from keras.src.utils.python_utils import is_default

from kerascl.backend.ops.conversion import convert_to_numpy, is_tensor
from kerascl.core.array import Array
from kerascl.core.context import current


class CallbackList(callbacks_module.CallbackList):
    """Keras' list, with another way to read logs.

    While Keras' own reads a log it catches everything, a KeyboardInterrupt too, and it reads the
    logs of batches where no callback looks at them.
    """

    def on_train_batch_end(self, batch, logs=None):
        """Run the callbacks after a training batch."""
        if self._anybody("on_train_batch_end", "on_batch_end"):
            super().on_train_batch_end(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        """Run the callbacks after a batch of `evaluate`."""
        if self._anybody("on_test_batch_end"):
            super().on_test_batch_end(batch, logs)

    def on_predict_batch_end(self, batch, logs=None):
        """Run the callbacks after a batch of `predict`."""
        if self._anybody("on_predict_batch_end"):
            super().on_predict_batch_end(batch, logs)

    def _anybody(self, *events: str) -> bool:
        return any(not is_default(getattr(c, event)) for c in self.callbacks for event in events)

    def _on_train_batch_end(self, batch, logs=None):
        self._tell("on_train_batch_end", batch, logs=python_logs(logs))

    def _on_test_batch_end(self, batch, logs=None):
        self._tell("on_test_batch_end", batch, logs=python_logs(logs))

    def _on_predict_batch_end(self, batch, logs=None):
        self._tell("on_predict_batch_end", batch, logs=python_logs(logs))

    def on_epoch_end(self, epoch, logs=None):
        """Run the callbacks after an epoch."""
        if self._async_train:
            self._flush_futures()
        self._tell("on_epoch_end", epoch, python_logs(logs))

    def on_train_end(self, logs=None):
        """Run the callbacks after training."""
        if self._async_train:
            self._flush_futures()
        self._tell("on_train_end", python_logs(logs))
        self._on_end()

    def on_test_end(self, logs=None):
        """Run the callbacks after `evaluate`."""
        if self._async_test:
            self._flush_futures()
        self._tell("on_test_end", python_logs(logs))
        self._on_end()

    def _tell(self, event: str, *args, **kwargs) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*args, **kwargs)


def python_logs(logs) -> dict:
    """Logs as callbacks see them: without nesting, by name, arrays of one element as floats.

    All are on their way to the host before one is waited for.
    """
    flat = list(_flat(logs or {}))
    nodes = [value._node for _, value in flat if isinstance(value, Array)]
    read = iter(current.engine.to_hosts(nodes) if nodes else ())
    return {
        name: _number(next(read) if isinstance(value, Array) else value) for name, value in flat
    }


def _flat(logs: dict):
    for name, value in sorted(logs.items()):
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def _number(value):
    """A float, where `value` has one; NumPy's arrays and whatever else stay."""
    if is_tensor(value):
        value = convert_to_numpy(value)
    try:
        return float(value)
    except Exception:  # not a KeyboardInterrupt
        return value
