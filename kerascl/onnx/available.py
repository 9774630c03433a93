"""Whether the package `onnx` is there; imported before everything that needs it."""

import importlib.util

if importlib.util.find_spec("onnx") is None:
    raise ImportError("kerascl.onnx needs the package onnx: pip install 'kerascl[onnx]'")
