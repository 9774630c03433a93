"""How each operation becomes operators of ONNX: one rule for each, in a table by operation."""

from kerascl.onnx.exporter.rules import (
    folds as folds,
)
from kerascl.onnx.exporter.rules import gathers as gathers
from kerascl.onnx.exporter.rules import loops as loops
from kerascl.onnx.exporter.rules import patterns as patterns
from kerascl.onnx.exporter.rules import pointwise as pointwise
from kerascl.onnx.exporter.rules import products as products
from kerascl.onnx.exporter.rules import rows as rows
from kerascl.onnx.exporter.rules import transforms as transforms
from kerascl.onnx.exporter.rules import views as views
from kerascl.onnx.exporter.rules import windows as windows
from kerascl.onnx.exporter.rules.table import check as check
from kerascl.onnx.exporter.rules.table import emit as emit
