"""What benchmarks print of rows that they measured or that failed."""

import argparse
import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks import generation, onnx_speed


def case(**other):
    """A case of generation.py."""
    values = ("llama", "2x128", "bfloat16", "none", 8, 128, "greedy", None, "kerascl")
    return dict(zip(generation.CASE, values)) | other


def test_rows_of_a_case_get_their_ratio_and_share_of_the_limit():
    ours = case(ms=2.0, weights=3e9, cache=1e9, bandwidth=4e12)  # 4 GB at 4 TB a second: 1 ms
    theirs = case(ms=5.0, weights=3e9, cache=1e9, backend="jax")
    other = case(ms=1.0, weights=3e9, cache=1e9, batch=1, bandwidth=4e12)
    rows = [other, ours]
    assert generation.completed(dict(ours), rows)["of limit"] == pytest.approx(0.5)
    found = generation.completed(theirs, rows)
    assert found["ratio"] == pytest.approx(2.5)
    assert found["of limit"] == pytest.approx(0.2)


def test_bytes_are_those_of_weights_once_and_of_half_the_cache():
    weights = [
        SimpleNamespace(path="token_embedding/embeddings", shape=(100, 128), dtype="bfloat16"),
        SimpleNamespace(path="position_embedding/embeddings", shape=(99, 128), dtype="bfloat16"),
        SimpleNamespace(path="dense/kernel", shape=(128, 64), dtype="int8"),
        SimpleNamespace(path="dense/scale", shape=(64,), dtype="float32"),
    ]
    found = generation.bytes_read(SimpleNamespace(weights=weights), case())
    # 2 layers, keys and values, 1 head of 64, 2 bytes; 8 rows of (8 + 128) / 2 positions
    assert found == (100 * 128 * 2 + 128 * 64 + 64 * 4, 2 * 2 * 64 * 2 * 8 * 68)


def test_a_case_that_fails_is_a_row_and_those_kept_are_not_run_again(monkeypatch, tmp_path, capsys):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(case(batch=1, first=1.0, ms=3.0, tokens=333.0, weights=1, cache=1,
                                    **{"other length": 0.5})) + "\n")  # fmt: skip
    ran = []

    def run(command, **kwargs):
        ran.append(json.loads(command[-1]))
        return SimpleNamespace(
            returncode=1, stdout="", stderr="Traceback\nMemoryError: none left\n"
        )

    monkeypatch.setattr(generation.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", [
        "generation.py", "--model", "llama", "--size", "2x128", "--dtype", "bfloat16", "--batch",
        "1", "--batch", "8", "--against", "", "--json", str(file)])  # fmt: skip
    assert generation.main() == 1
    assert [found["batch"] for found in ran] == [8]
    kept = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row.get("error") for row in kept] == [None, "MemoryError: none left"]
    assert "333" in capsys.readouterr().out


def test_sizes_by_name_belong_to_their_model():
    options = argparse.Namespace(
        model=["gpt2", "llama"], size=["small", "1b", "1x64"], dtype=None, quantize=None,
        batch=None, length=128, sampler="greedy", vocabulary=None, against="",
    )  # fmt: skip
    found = [(c["model"], c["size"]) for c in generation.cases(options, pytest.fail)]
    assert found == [("gpt2", "small"), ("gpt2", "1x64"), ("llama", "1b"), ("llama", "1x64")]
    assert generation.shape("llama", "1b", None) == (16, 2048, 32, 8, 8192, 128256)


def test_imported_models_are_wrong_where_they_differ_more_than_pytorch():
    row = {"network": "bert", "batch": 1, "precision": "high", "imported": 2.0, "torch": 3.0,
           "imported difference": 3e-3, "torch difference": 1e-3,
           "onnxruntime error": "RuntimeError: no provider"}  # fmt: skip
    assert onnx_speed.wrong(row) == ""
    assert "no provider" in onnx_speed.lines(row)[2]
    assert onnx_speed.wrong(row | {"imported difference": 5e-3}) == "differs by 5.0e-03"
    assert onnx_speed.wrong(row | {"imported difference": float("nan")})
    twice = [row, row | {"imported": 1.0, "torch": 6.0}]  # ratios 1.5 and 6
    assert onnx_speed.means(twice) == ["geometric mean of 2 ratios of torch, batch 1: 3.00"]
