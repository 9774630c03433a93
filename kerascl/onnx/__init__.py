"""ONNX files: `save` writes a function or a model as one (extra `onnx`)."""

from kerascl.onnx import available as available
from kerascl.onnx.exporter import ExportError as ExportError
from kerascl.onnx.exporter import save as save

__all__ = ["ExportError", "save"]
