"""Train, test and predict steps: captured once, replayed; or run eagerly."""

from __future__ import annotations

import linecache
import os
import traceback
import warnings
from collections.abc import Callable

import numpy as np
from keras.src import tree
from keras.src.backend import config as keras_config
from keras.src.backend.common import KerasVariable

from kerascl.backend.ops.conversion import convert_to_numpy, convert_to_tensor, sparse_from
from kerascl.compiler.run.capture import jit
from kerascl.core.array import Array, State, is_evaluated
from kerascl.core.context import current
from kerascl.core.errors import CaptureError
from kerascl.dtypes import BY_NAME, float64
from kerascl.ops.sparse import SparseArray

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_KERAS = os.path.dirname(os.path.dirname(os.path.abspath(keras_config.__file__)))


class Step:
    """A step function of a trainer, `body(batch) -> nested Arrays`.

    It is captured once for each signature of the batch and each set of trainable variables. When
    the body cannot be captured, it runs eagerly from then on, after one warning.

    Args:
        body: the step.
        name: what to call it in a warning.
        capture: whether to capture at all.
        watched: gives the objects whose `trainable` flags the body depends on.
        states: gives the States that the body may assign.
    """

    def __init__(
        self,
        body: Callable,
        name: str,
        capture: bool,
        watched: Callable[[], list],
        states: Callable[[], list[State]],
    ):
        self.body = body
        self.name = name
        self.capture = capture
        self._checked = not capture  # who asked for eager steps wants to know what is wrong
        self._watched = watched
        self._states = states
        self._objects: list = []
        self._flags: list | None = None
        self._jit: Callable | None = None

    def __call__(self, batch):
        batch = tree.map_structure(prepare, batch)
        if self.capture and all(is_numeric(x) for x in tree.flatten(batch)):
            try:
                return self._captured()(batch)
            except CaptureError as error:
                self.capture = False
                self._jit = None
                warnings.warn(self._explain(error), stacklevel=3)
        return self._eager(batch)

    def _captured(self) -> Callable:
        flags = [x.trainable for x in self._objects]
        if self._jit is None or flags != self._flags:
            self._objects = self._watched()
            self._flags = [x.trainable for x in self._objects]
            self._jit = jit(self.body)
        return self._jit

    def _eager(self, batch):
        with current.replaced(checks_indices=self._checked):
            result = self.body(tree.map_structure(to_array, batch))
        # One evaluation for the whole step; otherwise graphs would grow from step to step.
        arrays = [x for x in tree.flatten(result) if isinstance(x, Array)]
        arrays += [state.value for state in self._states()]
        current.engine.evaluate([x._node for x in arrays if not is_evaluated(x)])
        return result

    def _explain(self, error: CaptureError) -> str:
        place = blame(error)
        return (
            f"{self.name} runs eagerly, which is slower, because {place} needs a value on the "
            f"host: {error} Compile the model with run_eagerly=True to run it so without this "
            "warning."
        )


class Repeated:
    """`function(batches) -> logs`: a step for each batch, and the logs of the last.

    Attributes:
        step: runs one batch.
        alone: the same after a reset of the metrics, as one captured program.
    """

    def __init__(self, step: Step, alone: Step):
        self.step = step
        self.alone = alone

    def __call__(self, batches):
        logs = {}
        for batch in batches:
            logs = self.step(batch)
        return logs


def blame(error: BaseException) -> str:
    """The line of user code that raised, in words; else the innermost line outside kerascl."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [f for f in frames if not _within(f.filename, _OURS)]
    user = [f for f in outside if not _within(f.filename, _KERAS)]
    if not outside:
        return "something in it"
    frame = (user or outside)[-1]
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"line {frame.lineno} of {frame.filename}" + (f" ({line})" if line else "")


def _within(filename: str, folder: str) -> bool:
    return os.path.abspath(filename).startswith(folder + os.sep)


def prepare(x):
    """One leaf of a batch: an Array or a NumPy array; what is neither a number nor None stays.

    float64 becomes floatx, as in the arrays that Keras slices itself. Sparse tensors, ours and
    those of SciPy, TensorFlow and JAX, become dense on the device: steps are captured for shapes,
    and how many elements a sparse batch lists differs from batch to batch.
    """
    if x is None or isinstance(x, Array | str | bytes):
        return x
    if isinstance(x, KerasVariable):
        return x.value
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return np.asarray(x, convert_to_tensor(x).dtype.numpy)
    if not isinstance(x, np.ndarray):
        listed = x if isinstance(x, SparseArray) else sparse_from(x)
        if listed is not None:
            floatx = BY_NAME[keras_config.floatx()]
            return (listed.astype(floatx) if listed.dtype is float64 else listed).to_dense()
        if not (hasattr(x, "__array__") or hasattr(x, "detach")):
            return x
        x = convert_to_numpy(x)
    return x.astype(BY_NAME[keras_config.floatx()].numpy) if x.dtype.name == "float64" else x


def is_numeric(x) -> bool:
    """Whether a prepared leaf can be given to a captured step."""
    if isinstance(x, np.ndarray):
        return x.dtype.name in BY_NAME
    return x is None or isinstance(x, Array)


def to_array(x):
    """A prepared leaf as an Array; text stays what it is."""
    return convert_to_tensor(x) if isinstance(x, np.ndarray) and is_numeric(x) else x
