"""What stands for `load` where Keras does not run on kerascl."""

from __future__ import annotations

import os
from typing import Any

from onnx import ModelProto


def load(model: str | os.PathLike[str] | ModelProto, name: str | None = None) -> Any:
    """A Keras model that computes what an ONNX model does; not here.

    Raises:
        RuntimeError: always, with what to do.
    """
    raise RuntimeError(
        "kerascl.onnx.load makes Keras models, and needs KERAS_BACKEND=kerascl (or "
        '"backend": "kerascl" in keras.json) before kerascl.onnx is imported'
    )
