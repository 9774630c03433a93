"""Exported ONNX files compared with what is computed here."""
