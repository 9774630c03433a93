"""What goes wrong with a file or a graph."""

from __future__ import annotations

from kerascl.core.errors import KerasclError


class OnnxError(KerasclError, ValueError):
    """A file that is no valid ONNX model, or one that asks for what kerascl does not have."""
