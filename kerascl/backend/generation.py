"""keras-hub's `generate()`, captured whole: its loop, samplers and caches are one program."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

from keras.src import tree

from kerascl.backend.ops.conversion import convert_to_tensor, is_tensor
from kerascl.compiler.run.capture import jit
from kerascl.core.errors import CaptureError


def teach(module: Any) -> None:
    """Let the classes of a keras-hub module capture their `generate_step`, and its models take
    `keras.ops.dot_product_attention`.

    A module of another form than expected does without, and says so once.
    """
    if hasattr(module, "fused_attention_op_available"):
        module.fused_attention_op_available = lambda: True
        return
    found = False
    kinds: list[Any] = [x for x in vars(module).values() if isinstance(x, type)]
    for kind in kinds:
        make = vars(kind).get("make_generate_function")
        if make is None or kind.__module__ != module.__name__:
            continue
        if hasattr(kind, "generate_step"):
            kind.make_generate_function = _capturing(make)
            found = True
    if not found:
        warnings.warn(
            f"kerascl does not know the form of {module.__name__} in this keras-hub: what it "
            "generates runs uncaptured, which is much slower",
            stacklevel=2,
        )


def _capturing(make: Callable[[Any], Callable]) -> Callable[[Any], Callable]:
    @functools.wraps(make)
    def make_generate_function(self):
        missing = object()
        now = getattr(self, "generate_function", missing)
        if now is missing or (now is None and self.run_eagerly):
            return make(self)
        if now is None:
            self.generate_function = GenerateFunction(self)
        return self.generate_function

    return make_generate_function


class GenerateFunction:
    """`model.generate_step` as one captured program for each batch size and length.

    A step that needs values on the host, as a sampler of one's own may, runs uncaptured.
    """

    def __init__(self, model):
        self._step = model.generate_step
        self._model = model
        self._captured: Any = jit(self._run)

    def _run(self, variables, args, kwargs):
        return self._step(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        args, kwargs = tree.map_structure(_argument, (args, kwargs))
        if self._captured is not None:
            # what was traced holds for these variables: quantize and LoRA replace some
            variables = tuple([id(v) for v in self._model.variables])
            try:
                return self._captured(variables, args, kwargs)
            except CaptureError as error:
                self._captured = None
                warnings.warn(
                    f"{type(self._model).__name__}.generate() runs uncaptured, which is much "
                    f"slower: {error}",
                    stacklevel=3,
                )
        return self._step(*args, **kwargs)


def _argument(value):
    """Arrays of every kind as ours; numbers, which are traced as they are, too."""
    if is_tensor(value) or not hasattr(value, "__array__"):
        return value
    return convert_to_tensor(value)
