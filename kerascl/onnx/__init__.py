"""ONNX files in and out (extra `onnx`): `load` gives a Keras model, `save` writes a function or a
model."""

from kerascl.onnx import available as available
from kerascl.onnx.exporter import ExportError as ExportError
from kerascl.onnx.exporter import save as save
from kerascl.onnx.importer.errors import OnnxError as OnnxError
from kerascl_hook import chosen as _chosen

if _chosen() is None:  # importing Keras would bring another backend, or fail without one
    from kerascl.onnx.absent import load as load
else:
    from kerascl.onnx.importer.loading import load as load

__all__ = ["ExportError", "OnnxError", "load", "save"]
