"""Files that are wrong, or mean harm: one clear error each, before anything is built."""

import os
import subprocess
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

import kerascl.onnx
from kerascl.onnx import OnnxError
from tests.onnx import models

node = helper.make_node


def load(made, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return kerascl.onnx.load(path)


def relu(weights=(), opset=17):
    return models.model(
        [node("Add", ["x", "w"], ["y"])], [models.info("x", [2])], [models.info("y", [2])],
        weights or [models.tensor("w", np.zeros(2, np.float32))], opset,
    )  # fmt: skip


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no file"):
        kerascl.onnx.load(tmp_path / "none.onnx")


@pytest.mark.parametrize("content", [b"", b"not a model", os.urandom(3000), b"\x08\x08"])
def test_no_model(tmp_path, content):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(OnnxError, match="not an ONNX model"):
        kerascl.onnx.load(path)


def test_cut_off(rng, tmp_path):
    whole = models.classifier(rng).SerializeToString()
    path = tmp_path / "m.onnx"
    for _ in range(5):
        path.write_bytes(whole[: rng.integers(1, len(whole) - 1)])
        with pytest.raises(OnnxError):
            kerascl.onnx.load(path)


@pytest.mark.parametrize(
    "location", ["../secret", "/etc/passwd", "link", "folder/../../secret", "", "nothing", "folder"]
)
def test_external_data_stays_in_the_folder(tmp_path, location):
    folder = tmp_path / "model"
    (folder / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_bytes(bytes(8))
    (folder / "link").symlink_to(tmp_path / "secret")
    made = relu()
    w = made.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value=location)
    with pytest.raises(OnnxError, match=r"does not lie in the folder|is not there"):
        load(made, folder)


@pytest.mark.parametrize("entry", [("offset", "4"), ("length", "800"), ("offset", "-8"),
                                   ("offset", "x")])  # fmt: skip
def test_external_data_within_its_file(tmp_path, entry):
    (tmp_path / "data").write_bytes(bytes(8))
    made = relu()
    w = made.graph.initializer[0]
    w.ClearField("raw_data")
    w.data_location = TensorProto.EXTERNAL
    w.external_data.add(key="location", value="data")
    w.external_data.add(key=entry[0], value=entry[1])
    with pytest.raises(OnnxError, match=r"takes 8|must be numbers"):
        load(made, tmp_path)


@pytest.mark.parametrize("dims", [[3], [1 << 40, 1 << 40], [-2], [2, 0]])
def test_sizes_that_lie(tmp_path, dims):
    made = relu()
    del made.graph.initializer[0].dims[:]
    made.graph.initializer[0].dims.extend(dims)
    with pytest.raises(OnnxError, match=r"takes|negative"):
        load(made, tmp_path)


def test_types_that_do_not_exist(tmp_path):
    made = relu()
    made.graph.initializer[0].data_type = 77
    with pytest.raises(OnnxError, match="number 77"):
        load(made, tmp_path)


def test_unknown_operators_are_all_named(tmp_path):
    made = relu()
    made.graph.node.add(op_type="Frobnicate", domain="my.domain", input=["y"], output=["z"])
    made.graph.node.add(op_type="ImageDecoder", input=["y"], output=["q"])
    made.opset_import.add(domain="my.domain", version=3)
    made.opset_import[0].version = 20
    with pytest.raises(OnnxError, match=r"ImageDecoder.*Frobnicate of my.domain \(opset 3\)"):
        load(made, tmp_path)


def test_operators_that_nobody_has(tmp_path):
    made = relu()
    made.graph.node[0].op_type = "Ad"
    with pytest.raises(OnnxError, match="Ad"):
        load(made, tmp_path)


def test_opsets_of_the_future(tmp_path):
    with pytest.raises(OnnxError, match="install a newer one"):
        load(relu(opset=999), tmp_path)


def test_cycles(tmp_path):
    made = models.model(
        [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])],
        [models.info("x", [2])], [models.info("b", [2])],
    )  # fmt: skip
    with pytest.raises(OnnxError, match="topologically sorted"):
        load(made, tmp_path)


def with_functions(functions, call):
    made = relu()
    made.graph.node[0].CopyFrom(node(call, ["x"], ["y"], domain="f"))
    made.functions.extend(functions)
    made.opset_import.add(domain="f", version=1)
    return made


def function(name, nodes, output="y"):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, ["x"], [output], nodes, opsets)


def test_functions_that_call_each_other(tmp_path):
    pair = [
        function("A", [node("B", ["x"], ["y"], domain="f")]),
        function("B", [node("A", ["x"], ["y"], domain="f")]),
    ]
    with pytest.raises(OnnxError, match="calls itself"):
        load(with_functions(pair, "A"), tmp_path)


def test_functions_that_grow_without_end(tmp_path):
    chain = [function("F0", [node("Relu", ["x"], ["y"])])]
    for k in range(1, 40):
        twice = [node(f"F{k - 1}", ["x"], ["m"], domain="f"),
                 node(f"F{k - 1}", ["m"], ["y"], domain="f")]  # fmt: skip
        chain.append(function(f"F{k}", twice))
    with pytest.raises(OnnxError, match="grow to more than"):
        load(with_functions(chain, "F39"), tmp_path)


def test_deep_nesting(tmp_path):
    """In a process of its own, which must end by itself."""
    def field(number: int, value: bytes) -> bytes:  # as protocol buffers lie in files
        size, length = len(value), b""
        while size > 127:
            length, size = length + bytes([size & 127 | 128]), size >> 7
        key = number << 3 | 2
        return (bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])) + length + bytes(
            [size]
        ) + value

    graph = models.model([node("Relu", ["x"], ["y"])], [], [models.info("y", [2])]).graph
    content = graph.SerializeToString()
    for k in range(2000):
        attribute = field(1, b"then_branch") + field(6, content) + b"\xa0\x01\x05"
        inner = field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute)
        content = field(1, inner) + field(2, b"g%d" % k)
    path = tmp_path / "deep.onnx"
    path.write_bytes(b"\x08\x08" + field(7, content) + field(8, b"\x10\x11"))
    code = (
        "import sys, kerascl.onnx\n"
        "try: kerascl.onnx.load(sys.argv[1])\n"
        "except kerascl.onnx.OnnxError as e: print('refused', e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "KERAS_BACKEND": "kerascl"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.startswith("refused"), done.stderr[-2000:]


def test_shapes_that_do_not_fit_name_the_node(rng, tmp_path):
    made = models.model(
        [node("MatMul", ["x", "w"], ["y"], "product")], [models.info("x", ["n", 4])],
        [models.info("y", ["n", 3])], [models.tensor("w", np.ones((5, 3), np.float32))],
    )  # fmt: skip
    with pytest.raises(ValueError, match="node 'product'"):
        load(made, tmp_path)


def test_shapes_on_the_host_stay_small(tmp_path):
    """What would be larger than a shape ever is does not become a NumPy array."""
    made = models.model(
        [node("Expand", ["one", "sizes"], ["e"]), node("Shape", ["e"], ["y"])],
        [models.info("x", [1])], [models.info("y", [2], TensorProto.INT64)],
        [models.tensor("one", np.int64(1)), models.tensor("sizes", np.array([1 << 30, 1 << 9]))],
    )  # fmt: skip
    y = load(made, tmp_path)(np.zeros(1, np.float32))
    assert np.asarray(y).tolist() == [1 << 30, 1 << 9]
