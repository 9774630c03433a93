"""fit, evaluate and predict."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
from keras.src import callbacks as callbacks_module
from keras.src import optimizers as optimizers_module
from keras.src import tree
from keras.src.backend import config as keras_config
from keras.src.backend.common.stateless_scope import StatelessScope
from keras.src.trainers import trainer as base_trainer
from keras.src.trainers.data_adapters import array_slicing, data_adapter_utils
from keras.src.utils import traceback_utils

from kerascl import config
from kerascl.backend import (
    interrupts,
    saved_names,  # noqa: F401  (importing it registers them)
)
from kerascl.backend.callbacks import CallbackList, python_logs
from kerascl.backend.epochs import Batches
from kerascl.backend.ops.core import convert_to_numpy
from kerascl.backend.steps import Repeated, Step, prepare, to_array
from kerascl.backend.tracing import ShapeTrace
from kerascl.core import labels
from kerascl.core.array import Array
from kerascl.core.context import steady
from kerascl.core.tape import GradientTape
from kerascl.ops.movement import concatenate

# Predictions of so many batches may wait on the device before the oldest is read.
_PENDING_BATCHES = 16


class Trainer(base_trainer.Trainer):
    """Keras' training loops; each step is captured once and then replayed.

    Steps run eagerly with `run_eagerly=True`, with `jit_compile=False`, with KERASCL_CAPTURE=0,
    or when they need a value on the host.
    """

    def __init__(self):
        super().__init__()
        self.train_function = None
        self.test_function = None
        self.predict_function = None

    # -- steps, which users may override
    def train_step(self, data):
        """One update from a batch; gives the logs."""
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        with GradientTape() as tape:
            y_pred = self._forward(x, training=True)
            loss = self._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True
            )
            scaled = loss if self.optimizer is None else self.optimizer.scale_loss(loss)
        self._loss_tracker.update_state(loss, sample_weight=_batch_size(x))
        variables = self.trainable_weights
        if variables:
            gradients = tape.gradient(scaled, list(variables))
            labels.mark(self.optimizer.name)
            self.optimizer.apply(gradients, variables)
            labels.mark("")
        else:
            warnings.warn("The model does not have any trainable weights.", stacklevel=2)
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def test_step(self, data):
        """Loss and metrics of a batch; gives the logs."""
        x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(data)
        y_pred = self._forward(x, training=False)
        loss = self._compute_loss(
            x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False
        )
        self._loss_tracker.update_state(loss, sample_weight=_batch_size(x))
        return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def predict_step(self, data):
        """The model's outputs for a batch."""
        x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(data)
        return self._forward(x, training=False)

    def _forward(self, x, training: bool):
        return self(x, training=training) if self._call_has_training_arg else self(x)

    # -- step functions: a list of batches in, the last logs (or all outputs) out
    def _make_step(self, name: str, reset: bool = False) -> Step:
        def body(batch):
            if reset:
                self.reset_metrics()
            # looked up at each trace, so that a step replaced later is seen
            result = getattr(self, name)(batch)
            # `model.losses` may not keep what layers added here: captured, it has no value outside
            self._clear_losses()
            return result

        return Step(
            body,
            f"{name} of {self.name}",
            config.capture() and not self.run_eagerly and bool(self.jit_compile),
            self._watched_objects,
            self._assigned_states,
        )

    def _watched_objects(self) -> list:
        return [*self._flatten_layers(), *self.variables]

    def _assigned_states(self) -> list:
        variables = [*self.variables, *self.metrics_variables]
        if self.compiled and self.optimizer is not None:
            variables += self.optimizer.variables
        return [v._value for v in variables if v._value is not None]

    def make_train_function(self, force: bool = False):
        """Make `train_function(batches) -> logs`, unless there is one."""
        if self.train_function is None or force:
            self.train_function = self._make_repeated("train_step")
        return self.train_function

    def make_test_function(self, force: bool = False):
        """Make `test_function(batches) -> logs`, unless there is one."""
        if self.test_function is None or force:
            self.test_function = self._make_repeated("test_step")
        return self.test_function

    def make_predict_function(self, force: bool = False):
        """Make `predict_function(batches) -> outputs`, unless there is one."""
        if self.predict_function is None or force:
            step = self._make_step("predict_step")

            def predict(batches):
                outputs = [step(batch) for batch in batches]
                if len(outputs) == 1:
                    return outputs[0]
                return tree.map_structure(lambda *parts: concatenate(parts, 0), *outputs)

            self.predict_function = predict
        return self.predict_function

    def _make_repeated(self, name: str) -> Repeated:
        return Repeated(self._make_step(name), self._make_step(name, reset=True))

    # -- loops
    @traceback_utils.filter_traceback
    @interrupts.interruptible
    @steady
    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        validation_steps=None,
        validation_batch_size=None,
        validation_freq=1,
    ):
        """Train, each batch by one captured step; arguments, result and errors as in Keras."""
        self._assert_compile_called("fit")
        max_epochs = keras_config.max_epochs()
        if max_epochs and max_epochs < epochs:
            warnings.warn(f"Limiting epochs to {max_epochs}", stacklevel=2)
            epochs = max_epochs
        self._eval_epoch_iterator = None
        if validation_split and validation_data is None:
            (x, y, sample_weight), validation_data = array_slicing.train_validation_split(
                (x, y, sample_weight), validation_split=validation_split
            )
        if validation_data is not None:
            validation = dict(
                zip(
                    ("x", "y", "sample_weight"),
                    data_adapter_utils.unpack_x_y_sample_weight(validation_data),
                    strict=True,
                ),
                batch_size=validation_batch_size or batch_size,
            )
        iterator = Batches(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            shuffle=shuffle,
            class_weight=class_weight,
            steps_per_execution=self.steps_per_execution,
        )
        self._build_for("train_step", iterator)
        iterator.reset()
        callbacks = self._callback_list(
            callbacks, iterator, verbose, epochs=epochs, add_history=True
        )
        self.stop_training = False
        training_logs = {}
        self.make_train_function()
        callbacks.on_train_begin()
        for epoch in range(self._initial_epoch or initial_epoch, epochs):
            self.reset_metrics()
            callbacks.on_epoch_begin(epoch)
            epoch_logs = _train_epoch(self, iterator, callbacks)
            if validation_data is not None and self._should_eval(epoch, validation_freq):
                epoch_logs |= _validate(self, validation, validation_steps, callbacks)
            callbacks.on_epoch_end(epoch, epoch_logs)
            training_logs = epoch_logs
            if self.stop_training:
                break
            interrupts.check()
        if isinstance(self.optimizer, optimizers_module.Optimizer) and epochs > 0:
            self.optimizer.finalize_variable_values(self.trainable_weights)
        self._eval_epoch_iterator = None
        callbacks.on_train_end(logs=training_logs)
        return self.history

    @traceback_utils.filter_traceback
    @interrupts.interruptible
    @steady
    def evaluate(
        self,
        x=None,
        y=None,
        batch_size=None,
        verbose="auto",
        sample_weight=None,
        steps=None,
        callbacks=None,
        return_dict=False,
        **kwargs,
    ):
        """The loss and metrics of data in batches; arguments, result and errors as in Keras."""
        self._assert_compile_called("evaluate")
        use_cached = kwargs.pop("_use_cached_eval_dataset", False)
        if kwargs:
            raise ValueError(f"Arguments not recognized: {kwargs}")
        if use_cached:
            iterator = self._eval_epoch_iterator
        else:
            iterator = Batches(
                x=x,
                y=y,
                sample_weight=sample_weight,
                batch_size=batch_size,
                steps_per_epoch=steps,
                shuffle=False,
                steps_per_execution=self.steps_per_execution,
            )
        self._build_for("test_step", iterator)
        iterator.reset()
        callbacks = self._callback_list(callbacks, iterator, verbose)
        self.make_test_function()
        self.stop_evaluating = False
        callbacks.on_test_begin()
        logs = {}
        self.reset_metrics()
        for begin, end, batches in iterator:
            callbacks.on_test_batch_begin(begin)
            logs = self.test_function(batches)
            callbacks.on_test_batch_end(end, logs)
            if self.stop_evaluating:
                break
            interrupts.check()
        logs = python_logs(self._get_metrics_result_or_logs(logs))
        callbacks.on_test_end(logs)
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @traceback_utils.filter_traceback
    @interrupts.interruptible
    @steady
    def predict(self, x, batch_size=None, verbose="auto", steps=None, callbacks=None):
        """The outputs for data in batches, as NumPy arrays; arguments as in Keras."""
        iterator = Batches(
            x=x,
            batch_size=batch_size,
            steps_per_epoch=steps,
            shuffle=False,
            steps_per_execution=self.steps_per_execution,
        )
        self._build_for_predict(iterator)
        callbacks = self._callback_list(callbacks, iterator, verbose)
        self.make_predict_function()
        self.stop_predicting = False
        callbacks.on_predict_begin()
        results = _Outputs()
        for begin, end, batches in iterator:
            callbacks.on_predict_batch_begin(begin)
            outputs = self.predict_function(batches)
            results.append(outputs)
            callbacks.on_predict_batch_end(end, {"outputs": outputs})
            if self.stop_predicting:
                break
            interrupts.check()
        callbacks.on_predict_end()
        return results.concatenated()

    def _build_for(self, step: str, iterator) -> None:
        """Make all variables before a step is captured.

        A step of the user's own may call parts of the model as it likes, and the model need not
        have a `call` that takes the data: what is missing then is made inside the first step.
        """
        own, batch = self._has_own(step), None
        if own and self._lacks_variables():
            if not self._can_be_called():
                return
            batch = next((batches[0] for _, _, batches in iterator), None)
        try:
            self._symbolic_build(iterator=iterator, data_batch=batch)
        except Exception:
            if not own:
                raise

    def _has_own(self, step: str) -> bool:
        return getattr(type(self), step) is not getattr(Trainer, step)

    def _can_be_called(self) -> bool:
        from keras.src.models.model import Model  # which is a Trainer

        return getattr(self.call, "__func__", None) is not Model.call

    def _is_unbuilt(self) -> bool:
        return not all(layer.built for layer in self._flatten_layers())

    def _lacks_variables(self) -> bool:
        compiled = [x for x in (self._compile_loss, self._compile_metrics) if x is not None]
        return self._is_unbuilt() or not all(x.built for x in compiled)

    def _build_for_predict(self, iterator) -> None:
        own = self._has_own("predict_step")
        if not self._is_unbuilt() or (own and not self._can_be_called()):
            return
        for _, _, batches in iterator:
            try:
                self._build_on(data_adapter_utils.unpack_x_y_sample_weight(batches[0])[0])
            except Exception:
                if not own:
                    raise
            break
        if isinstance(iterator, Batches):
            iterator.reset()

    def _build_on(self, x) -> None:
        with StatelessScope(), ShapeTrace():
            self._forward(tree.map_structure(to_array, tree.map_structure(prepare, x)), False)

    def _callback_list(self, callbacks, iterator, verbose, epochs=1, add_history=False):
        if isinstance(callbacks, callbacks_module.CallbackList):
            return callbacks
        return CallbackList(
            callbacks,
            add_history=add_history,
            add_progbar=verbose != 0,
            verbose=verbose,
            epochs=epochs,
            steps=iterator.num_batches,
            model=self,
        )

    # -- single batches
    @interrupts.interruptible
    @steady
    def train_on_batch(self, x, y=None, sample_weight=None, class_weight=None, return_dict=False):
        """One update from a batch; arguments, result and errors as in Keras."""
        self._assert_compile_called("train_on_batch")
        if class_weight is not None:
            if sample_weight is not None:
                raise ValueError(
                    "Arguments `sample_weight` and `class_weight` cannot be specified at the same "
                    f"time. Received: sample_weight={sample_weight}, class_weight={class_weight}"
                )
            sample_weight = data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
        data = (x, y, sample_weight)
        self._build_for("train_step", [(0, 0, [data])])
        self.make_train_function()
        logs = python_logs(self._run_alone(self.train_function, data))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    @interrupts.interruptible
    @steady
    def test_on_batch(self, x, y=None, sample_weight=None, return_dict=False):
        """The loss and metrics of a batch; arguments, result and errors as in Keras."""
        self._assert_compile_called("test_on_batch")
        data = (x, y, sample_weight)
        self._build_for("test_step", [(0, 0, [data])])
        self.make_test_function()
        logs = python_logs(self._run_alone(self.test_function, data))
        return logs if return_dict else self._flatten_metrics_in_order(logs)

    def _run_alone(self, function, data):
        """The logs of one batch alone, for our own functions and those of users."""
        if isinstance(function, Repeated):
            return function.alone(data)
        self.reset_metrics()
        return function([data])

    @interrupts.interruptible
    @steady
    def predict_on_batch(self, x):
        """The outputs for a batch, as NumPy arrays."""
        self._build_for_predict([(0, 0, [(x,)])])
        self.make_predict_function()
        return tree.map_structure(convert_to_numpy, self.predict_function([(x,)]))


def _train_epoch(model: Trainer, iterator: Batches, callbacks) -> dict[str, Any]:
    """Train on all batches, or until `stop_training`; the logs of the epoch."""
    logs: dict[str, Any] = {}
    for begin, end, batches in iterator:
        callbacks.on_train_batch_begin(begin)
        logs = model.train_function(batches)
        callbacks.on_train_batch_end(end, logs)
        if model.stop_training:
            break
        interrupts.check()
    return dict(model._get_metrics_result_or_logs(logs))


def _validate(model: Trainer, data: dict[str, Any], steps: int | None, callbacks) -> dict[str, Any]:
    """Evaluate on `data` (arguments of `evaluate`), whose batches are kept for the epochs to
    come; the logs, with names that begin with "val_"."""
    if model._eval_epoch_iterator is None:
        model._eval_epoch_iterator = Batches(
            **data,
            steps_per_execution=model.steps_per_execution,
            steps_per_epoch=steps,
            shuffle=False,
        )
    logs = model.evaluate(
        **data, steps=steps, callbacks=callbacks, return_dict=True,
        _use_cached_eval_dataset=True,
    )  # fmt: skip
    return {f"val_{name}": value for name, value in logs.items()}


def _batch_size(x) -> int:
    return next(i for i in tree.flatten(x) if i is not None).shape[0]


class _Outputs:
    """The predictions of many batches: first on the device, then, oldest first, on the host."""

    def __init__(self):
        self._structure = None
        self._host: list[list[np.ndarray]] = []
        self._device: deque[list[Array]] = deque()

    def append(self, outputs) -> None:
        self._structure = outputs
        self._device.append(tree.flatten(outputs))
        if len(self._device) > _PENDING_BATCHES:
            self._read()

    def _read(self) -> None:
        self._host.append([convert_to_numpy(x) for x in self._device.popleft()])

    def concatenated(self):
        while self._device:
            self._read()
        parts = [np.concatenate(leaf) for leaf in zip(*self._host, strict=True)]
        return tree.pack_sequence_as(self._structure, parts)
