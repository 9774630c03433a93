"""Matrix products."""

from __future__ import annotations

from kerascl.core.array import Array
from kerascl.onnx.importer.graph import Call
from kerascl.onnx.importer.rules import operator
from kerascl.ops import contraction, linalg
from kerascl.ops.declare import cast_to
from kerascl.ops.movement import transpose


@operator("MatMul")
def matmul(call: Call, a: Array, b: Array) -> Array:
    """The matrix product, of stacks of matrices too."""
    return contraction.matmul(a, b)


@operator("Gemm")
def gemm(call: Call, a: Array, b: Array, c: Array | None = None) -> Array:
    """alpha * A B + beta * C, where A and B may be transposed."""
    a = transpose(a) if call["transA"] else a
    b = transpose(b) if call["transB"] else b
    y = contraction.matmul(a, b)
    if call["alpha"] != 1:
        y = y * call["alpha"]
    if c is not None:
        y = y + (c if call["beta"] == 1 else c * call["beta"])
    return cast_to(y, a.dtype)


@operator("Einsum")
def einsum(call: Call, *inputs: Array) -> Array:
    """Products and sums by `equation`."""
    return contraction.einsum(call["equation"].replace(" ", ""), *inputs)


@operator("Det")
def det(call: Call, x: Array) -> Array:
    """Determinants of matrices (…, n, n)."""
    return linalg.det(x)
