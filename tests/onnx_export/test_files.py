"""What is in a file, how it gets to its place, and what stops it."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import onnx
import pytest

import kerascl as kc
from kerascl.onnx import ExportError, save
from kerascl.onnx.exporter import writing
from tests.onnx_export.running import agree, run

ROOT = Path(__file__).resolve().parents[2]


def weights(path) -> dict:
    return {t.name: tuple(t.dims) for t in onnx.load(path).graph.initializer}


def test_states_are_named_and_arrays_from_outside_are_constants(rng, tmp_path):
    w = kc.State(kc.array(rng.uniform(-1, 1, (3, 4)).astype("float32")), "layer/kernel")
    shift = kc.exp(kc.array(rng.uniform(-1, 1, (4,)).astype("float32")))  # not computed yet

    def function(x):
        return kc.matmul(x, w.value) + shift

    x = rng.uniform(-1, 1, (2, 3)).astype("float32")
    path = tmp_path / "f.onnx"
    (found,) = run(path, x, function=function)
    agree(found, x @ w.value.numpy() + shift.numpy())
    assert weights(path) == {"layer/kernel": (3, 4), "constant": (4,)}


def test_structures_and_names(rng, tmp_path):
    x, y = (rng.uniform(-1, 1, (2, 3)).astype("float32") for _ in range(2))
    path = tmp_path / "f.onnx"
    save(lambda d, z: {"a": d["x"] + z, "b": [z, z]}, path, [{"x": x}, y],
         output_names=["Add", "same", "again"])  # fmt: skip
    found = run(path, x, y)
    assert [o.name for o in onnx.load(path).graph.output] == ["Add", "same", "again"]
    for y_found, wanted in zip(found, (x + y, y, y), strict=True):
        agree(y_found, wanted)


def test_sizes_of_batches_are_computed(rng, tmp_path):
    """Where the batch's size is a number of the graph: means over it, and reshapes of it."""

    def function(x):
        return x - kc.mean(x, 0), kc.reshape(x, (-1, 2)), kc.flip(kc.cumsum(x, 0), 0)

    path = tmp_path / "f.onnx"
    save(function, path, [np.zeros((2, 4), "float32")])
    for batch in (1, 7):
        x = rng.uniform(-1, 1, (batch, 4)).astype("float32")
        found = run(path, x)
        for y, wanted in zip(
            found, (x - x.mean(0), x.reshape(-1, 2), np.cumsum(x, 0)[::-1]), strict=True
        ):
            agree(y, wanted)


def test_loops(rng, tmp_path):
    def function(x, start):
        return kc.loop(lambda c, now: ([c[0] * now[0] + 1], [c[0]]), [start], [x], reverse=True)

    x = rng.uniform(-1, 1, (5, 3)).astype("float32")
    start = rng.uniform(-1, 1, (3,)).astype("float32")
    final, history = run(tmp_path / "f.onnx", x, start, function=function, dynamic_batch=False)
    carry, wanted = start.astype("float64"), []
    for row in x[::-1]:
        wanted.append(carry)
        carry = carry * row + 1
    agree(final, carry)
    agree(history, np.stack(wanted[::-1]))


def test_loops_with_a_condition(rng, tmp_path):
    def function(x, most):
        def body(k, y):
            return k + 1, y * 2 + x

        return kc.while_loop(lambda k, y: (k < most) & (kc.max(y) < 100), body, (0, x))

    x = rng.uniform(0.5, 1, (3,)).astype("float32")
    path = tmp_path / "f.onnx"
    save(function, path, [x, np.array(3, "int32")], dynamic_batch=False)
    for most, count in ((3, 3), (0, 0), (50, None)):
        k, y = run(path, x, np.array(most, "int32"))
        wanted, steps = x, 0
        while steps < most and wanted.max() < 100:
            wanted, steps = wanted * 2 + x, steps + 1
        assert k == steps and (count is None or steps == count)
        agree(y, wanted)


def test_both_branches_of_a_condition(rng, tmp_path):
    path = tmp_path / "f.onnx"
    x = rng.uniform(0.5, 1, (2, 3)).astype("float32")
    save(lambda x: kc.cond(kc.sum(x) > 0, kc.log, kc.negative, x), path, [x])
    agree(run(path, x)[0], np.log(x))
    agree(run(path, -x)[0], x)


def test_large_weights_lie_beside_the_file(rng, tmp_path, monkeypatch):
    monkeypatch.setattr(writing, "MOST_BYTES", 1000)
    w = kc.State(kc.array(rng.uniform(-1, 1, (30, 40)).astype("float32")), "kernel")
    x = rng.uniform(-1, 1, (2, 30)).astype("float32")
    (found,) = run(tmp_path / "f.onnx", x, function=lambda x: kc.matmul(x, w.value))
    agree(found, x @ w.value.numpy())
    assert {p.name for p in tmp_path.iterdir()} == {"f.onnx", "f.onnx.data"}
    assert (tmp_path / "f.onnx").stat().st_size < 1000


def test_a_file_that_is_there_stays_when_export_fails(tmp_path, monkeypatch):
    path = tmp_path / "f.onnx"
    path.write_text("before")
    x = np.zeros((2, 3), "float32")
    with pytest.raises(ExportError, match="erfinv"):
        save(kc.erfinv, path, [x])

    def refuse(*args, **options):
        raise onnx.checker.ValidationError("no")

    monkeypatch.setattr(onnx.checker, "check_model", refuse)
    with pytest.raises(ExportError, match="checker"):
        save(kc.exp, path, [x])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def branching(x):
    return kc.exp(x) if x.shape[0] > 2 else kc.sin(x)


TOTAL = kc.State(kc.array(np.zeros(3, "float32")), "total")


def assigning(x):
    TOTAL.assign(TOTAL.value + kc.sum(x, 0))
    return x


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        (branching, {}, ExportError, "dynamic_batch=False"),
        (assigning, {}, ExportError, "assigns to total"),
        (lambda x: x if float(kc.sum(x)) > 0 else -x, {}, ExportError, "value of an array"),
        (lambda x: kc.reshape(x, (6,)), {}, ExportError, "dynamic_batch=False"),
        (lambda x: kc.random.normal(np.array([1, 2], "uint32"), x.shape), {}, ExportError, "seed"),
        (lambda x: kc.make_complex(x, x), {}, ExportError, "complex"),
        (lambda x: kc.cast(x, "float8_e5m2"), {}, ExportError, "opset 19"),
        (lambda x: 3.0, {}, ExportError, "arrays"),
        (lambda x: ~kc.cast(x, "int32"), {"opset": 17}, ExportError, "operator BitwiseNot"),
        (kc.exp, {"opset": 12}, ValueError, "opset"),
        (kc.exp, {"opset": 999}, ValueError, "opset"),
        (kc.exp, {"inputs": None}, ValueError, "inputs"),
        (kc.exp, {"inputs": ["x"]}, ValueError, "input 0"),
        (kc.exp, {"output_names": ["a", "b"]}, ValueError, "output_names"),
        (kc.exp, {"output_names": ["input_0"]}, ValueError, "output_names"),
    ],
)
def test_what_cannot_be_exported_is_said_and_leaves_nothing(
    function, options, error, message, tmp_path
):
    inputs = options.pop("inputs", [np.ones((2, 3), "float32")])
    with pytest.raises(error, match=message):
        save(function, tmp_path / "f.onnx", inputs, **options)
    assert not list(tmp_path.iterdir())


def test_folders_must_be_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        save(kc.exp, tmp_path / "a" / "f.onnx", [np.ones(3, "float32")])
    with pytest.raises(IsADirectoryError, match="folder"):
        save(kc.exp, tmp_path, [np.ones(3, "float32")])


def test_functions_need_no_keras(tmp_path):
    """Without a chosen backend, Keras would import TensorFlow."""
    code = """
        import sys, numpy as np, kerascl as kc
        from kerascl.onnx import load, save
        save(kc.exp, "f.onnx", [np.ones((2, 3), "float32")])
        assert "keras" not in sys.modules
        try:
            load("f.onnx")
        except RuntimeError as error:
            print(error)
    """
    environment = {k: v for k, v in os.environ.items() if k != "KERAS_BACKEND"}
    environment |= {"KERAS_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "KERAS_BACKEND=kerascl" in done.stdout, done.stderr
    assert (tmp_path / "f.onnx").exists()
