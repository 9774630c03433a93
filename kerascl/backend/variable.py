"""Keras variables on kerascl States."""

from __future__ import annotations

import copy

import numpy as np
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.global_state import get_global_attribute
from keras.src.backend.common.stateless_scope import get_stateless_scope

from kerascl.backend import tracing
from kerascl.backend.distribution_lib import distribute_tensor
from kerascl.backend.ops.conversion import convert_to_tensor
from kerascl.core.array import Array, State
from kerascl.core.errors import CaptureError
from kerascl.core.foreign import Differentiable


class Variable(Differentiable, KerasVariable):
    """A Keras variable; its value lies in a `State`, a stable place in device memory.

    Arrays read from `value` keep what they had when the variable is assigned later, and captured
    steps update it in place.
    """

    _layout = None  # of a distribution; Keras sets it since 3.15

    def _initialize(self, value) -> None:
        value = convert_to_tensor(value, dtype=self._dtype)
        if not tracing.is_known(value):
            raise CaptureError(
                f"variable {self._path} was created inside a captured step from a value that is "
                "computed there; create it before the step"
            )
        self._shape = value.shape
        distribution = get_global_attribute("distribution")
        if distribution is not None and self._layout is None:
            self._layout = distribution.get_variable_layout(self)
        if self._layout is not None:
            value = distribute_tensor(value, self._layout)
        self._value = State(value, self._path)

    def _initialize_with_initializer(self, initializer) -> None:
        # a variable may be made in the middle of a captured step; its first value is real
        with tracing.untraced():
            value = convert_to_tensor(initializer(self._shape, dtype=self._dtype), self._dtype)
            self._initialize(value)

    def _direct_assign(self, value) -> None:
        value = convert_to_tensor(value, dtype=self._dtype)
        if self._layout is not None:
            value = distribute_tensor(value, self._layout)
        self._value.assign(value)

    def _convert_to_tensor(self, value, dtype=None) -> Array:
        return convert_to_tensor(value, dtype=dtype)

    @property
    def value(self) -> Array:
        """The current value as an Array, in the autocast dtype inside an autocast scope."""
        scope = get_stateless_scope()
        if scope is not None:
            value = scope.get_current_value(self)
            if value is not None:
                return self._maybe_autocast(value)
        state: State | None = self._value
        if state is None:  # not initialised yet: only shapes can matter here
            return self._maybe_autocast(self._initializer(self._shape, dtype=self._dtype))
        return self._maybe_autocast(state.value)

    def numpy(self) -> np.ndarray:
        """The value on the host."""
        return self.value.numpy()

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return self.value.__array__(dtype, copy)

    def __deepcopy__(self, memo) -> Variable:
        other = self.__class__.__new__(self.__class__)
        memo[id(self)] = other
        for name, value in self.__dict__.items():
            if name == "_value" and value is not None:
                value = State(value.value, value.name)
            else:
                value = copy.deepcopy(value, memo)
            other.__dict__[name] = value
        return other

    def __getstate__(self) -> dict:
        state = dict(self.__dict__)
        if state.get("_value") is not None:
            state["_value"] = state["_value"].value.numpy()
        return state

    def __setstate__(self, state: dict) -> None:
        state = dict(state)
        value = state.get("_value")
        if value is not None:
            state["_value"] = State(convert_to_tensor(value), state["_path"])
        self.__dict__.update(state)
