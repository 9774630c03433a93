"""The exception of the exporter."""

from kerascl.core.errors import KerasclError


class ExportError(KerasclError):
    """A function or model cannot be written as an ONNX file; nothing was written."""
