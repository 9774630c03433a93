"""Small ONNX models, made where a test runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def tensor(name: str, value) -> onnx.TensorProto:
    """An initialiser."""
    return numpy_helper.from_array(np.asarray(value), name)


def info(name: str, shape, code: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """What a graph says of an input or output."""
    return helper.make_tensor_value_info(name, code, shape)


def model(
    nodes: Sequence[onnx.NodeProto], inputs, outputs, weights=(), opset: int = 17, **more
) -> onnx.ModelProto:
    """A model of nodes."""
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], **more)


def classifier(rng: np.random.Generator, dropout: float = 0.0) -> onnx.ModelProto:
    """Convolution, batch normalisation, dropout and a head, for images (n, 3, 8, 8); the flattening
    is by arithmetic of shapes, as exporters write it."""
    node = helper.make_node

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return tensor(name, rng.normal(0, 0.3, shape).astype(np.float32))

    nodes = [
        node("Conv", ["x", "conv.weight", "conv.bias"], ["c"], "conv", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["c", "bn.weight", "bn.bias", "bn.mean", "bn.var"], ["n"],
             momentum=0.8),
        node("Relu", ["n"], ["r"]),
        node("Dropout", ["r", "ratio"], ["d"]),
        node("GlobalAveragePool", ["d"], ["g"]),
        node("Shape", ["g"], ["shape"]),
        node("Gather", ["shape", "first"], ["n0"]),
        node("Unsqueeze", ["n0", "axes"], ["n1"]),
        node("Concat", ["n1", "rest"], ["sizes"], axis=0),
        node("Reshape", ["g", "sizes"], ["f"]),
        node("Gemm", ["f", "fc.weight", "fc.bias"], ["y"], transB=1),
    ]  # fmt: skip
    weights = [
        weight("conv.weight", 6, 3, 3, 3), weight("conv.bias", 6),
        weight("bn.weight", 6), weight("bn.bias", 6), weight("bn.mean", 6),
        tensor("bn.var", rng.uniform(0.5, 2, 6).astype(np.float32)),
        weight("fc.weight", 4, 6), weight("fc.bias", 4),
        tensor("ratio", np.float32(dropout)), tensor("first", np.int64(0)),
        tensor("axes", np.array([0])), tensor("rest", np.array([-1])),
    ]  # fmt: skip
    return model(nodes, [info("x", ["n", 3, 8, 8])], [info("y", ["n", 4])], weights)
