"""Files that are made and run at once."""

from __future__ import annotations

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from kerascl.onnx import save


def run(path, *inputs, function=None, **options) -> list[np.ndarray]:
    """Save a function (or take the file that is there) and run the file on NumPy arrays."""
    if function is not None:
        save(function, path, inputs, **options)
    model = onnx.load(path)
    session = ReferenceEvaluator(model)
    names = [put.name for put in model.graph.input]
    return session.run(None, dict(zip(names, map(np.asarray, inputs), strict=True)))


def agree(found: np.ndarray, wanted: np.ndarray, bound: float = 2e-6) -> None:
    """Assert equality, of floats by the norm of the difference."""
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    if found.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    known = np.isfinite(wanted)
    np.testing.assert_array_equal(np.where(known, 0, found), np.where(known, 0, wanted))
    found, wanted = np.where(known, found, 0), np.where(known, wanted, 0)
    assert np.linalg.norm(found - wanted) <= bound * max(np.linalg.norm(wanted), 1e-30)
