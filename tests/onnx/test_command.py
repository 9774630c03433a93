"""`python -m kerascl onnx`."""

import sys

import numpy as np
import onnx
import pytest

from kerascl.onnx import __main__ as command
from tests.onnx import models


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["onnx", *map(str, arguments)])
    status = command.main()
    return status, " ".join(capsys.readouterr().out.split())


def test_shows_and_checks_a_model(rng, tmp_path, monkeypatch, capsys):
    path = tmp_path / "net.onnx"
    onnx.save(models.classifier(rng), path)
    status, text = run(monkeypatch, capsys, path, "--check", "--bench", "--batches", "3")
    assert status == 0
    assert "net: opset ai.onnx 17" in text and "input x ? x 3 x 8 x 8 FLOAT" in text
    assert "208 numbers to train and 12 others in 8 weights" in text
    assert "operator on device on host" in text and "Conv 1 " in text
    assert float(text.split("onnx's reference: ")[1].split()[0]) < 1e-5


def test_a_difference_is_seen(rng, tmp_path, monkeypatch, capsys):
    path, other = tmp_path / "net.onnx", tmp_path / "other.onnx"
    onnx.save(models.classifier(rng), path)
    onnx.save(models.classifier(rng), other)
    real = command.ReferenceEvaluator
    monkeypatch.setattr(command, "ReferenceEvaluator", lambda proto: real(str(other)))
    assert run(monkeypatch, capsys, path, "--check")[0] == 1


@pytest.mark.parametrize("content", [None, b"nonsense"])
def test_wrong_files(tmp_path, monkeypatch, capsys, content):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    status, text = run(monkeypatch, capsys, path)
    assert status == 2 and text.startswith("onnx: ")


def test_a_batch_that_does_not_fit(tmp_path, monkeypatch, capsys):
    """Two rows of 25 numbers are one of 50; three are none."""
    weights = [models.tensor("s", np.array([-1, 50], np.int64))]
    nodes = [onnx.helper.make_node("Reshape", ["x", "s"], ["y"])]
    ends = [models.info("x", ["n", 25])], [models.info("y", ["m", 50])]
    path = tmp_path / "pairs.onnx"
    onnx.save(models.model(nodes, *ends, weights), path)
    status, text = run(monkeypatch, capsys, path, "--bench", "--batches", "3", "2")
    assert status == 2
    assert "onnx: batch 3: " in text and "(3, 25) to (-1, 50)" in text
    assert " 2 " in text.split("inputs/s MiB")[1]
