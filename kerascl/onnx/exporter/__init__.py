"""Functions and Keras models as ONNX files.

    trace at several sizes -> merge the graphs into one -> a rule for each node -> check -> write
"""

from kerascl.onnx.exporter.errors import ExportError as ExportError
from kerascl.onnx.exporter.saving import export_model as export_model
from kerascl.onnx.exporter.saving import save as save

__all__ = ["ExportError", "export_model", "save"]
