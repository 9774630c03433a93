"""Files of one backend load under another: weights bit for bit, equal outputs, equal training."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

WORKER = Path(__file__).with_name("worker.py")
ROOT = WORKER.parent.parent.parent
OTHERS = ("jax", "torch")
PAIRS = [pair for other in OTHERS for pair in ((other, "kerascl"), ("kerascl", other))]
# Relative norm of the difference. Half floats are rounded at other places; one int8 activation
# that lies between two steps may go the other way.
BOUNDS = {"mixed_bfloat16": 2e-2, "bfloat16": 2e-2, "mixed_float16": 2e-3, "int8": 2e-2}
BOUND = 1e-5


def _cases() -> list[str]:
    """CASES of the worker, read from its source: importing it would import Keras here."""
    tree = ast.parse(WORKER.read_text(encoding="utf-8"))
    lists = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    models = [name.id for name in lists["MODELS"].elts]
    return models + [f"training_{c.value}" for c in lists["OPTIMIZERS"].elts]


def _run(backend: str, *arguments) -> None:
    environment = os.environ | {
        "KERAS_BACKEND": backend,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, str(WORKER), *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """`folders(writer, reader)`: where the written files and what the reader found lie."""
    made = {}

    def get(writer, reader):
        for key, task in ((writer, "write"), ((writer, reader), "read")):
            if key not in made:
                folder = tmp_path_factory.mktemp(task)
                given = [made[writer]] if task == "read" else []
                _run(key[1] if task == "read" else key, task, *given, folder)
                made[key] = folder
        return made[writer], made[writer, reader]

    return get


@pytest.mark.parametrize("case", _cases())
@pytest.mark.parametrize("writer, reader", PAIRS)
def test_files_load_elsewhere(folders, writer, reader, case):
    other = writer if reader == "kerascl" else reader
    if importlib.util.find_spec(other) is None:
        pytest.skip(f"{other} is not installed")
    written, read = folders(writer, reader)
    failure = read / f"{case}.txt"
    assert not failure.exists(), failure.read_text()[-3000:]
    expected, found = np.load(written / f"{case}.npz"), np.load(read / f"{case}.npz")
    compared = 0
    for key in found.files:
        value, reference = found[key], expected[key.removeprefix("again_")]
        assert value.shape == reference.shape
        if "weight" in key:
            np.testing.assert_array_equal(value, reference, err_msg=key)
        else:
            distance = np.linalg.norm(value - reference) / np.linalg.norm(reference)
            assert distance <= BOUNDS.get(case, BOUND), (key, distance)
        compared += 1
    assert compared >= (1 if case.startswith("training") else 6)
