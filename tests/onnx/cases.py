"""The ONNX project's test cases as one list, and how one is run and judged."""

from __future__ import annotations

import fnmatch
import os
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

import kerascl.onnx
from kerascl.onnx.importer import types

KINDS = ("node", "simple", "real", "pytorch-converted", "pytorch-operator")


@dataclass
class Case:
    """One test: a model, and sets of inputs with the outputs that are asked for."""

    kind: str
    name: str
    rtol: float
    atol: float
    source: Any

    def model(self) -> onnx.ModelProto | Path:
        """The model, or its file."""
        if self.source.model is not None:
            return self.source.model
        if self.source.model_dir is None:  # a file of its own, with constants for weights
            return Path(DATA_DIR) / "light" / os.path.basename(self.source.url)
        return Path(self.source.model_dir) / "model.onnx"

    def data(self) -> Iterator[tuple[Sequence[Any], Sequence[Any]]]:
        """(inputs, outputs) of each set."""
        if self.source.data_sets is not None:
            for inputs, outputs in self.source.data_sets:
                yield [_plain(v) for v in inputs], [_plain(v) for v in outputs]
            return
        path = self.model()
        model = onnx.load(path)
        if self.source.model_dir is None:
            stem = str(path).removesuffix(".onnx")
            given = {tensor.name for tensor in model.graph.initializer}
            inputs = [v for v in model.graph.input if v.name not in given]
            values = [Runner.generate_dummy_data(value) for value in inputs]
            yield values, [_tensor(Path(f"{stem}_output_0.pb"))]
            return
        for folder in sorted(Path(self.source.model_dir).glob("test_data_set_*")):
            yield _values(folder, "input", model.graph.input), _values(
                folder, "output", model.graph.output
            )


def cases(kinds: Sequence[str] = KINDS) -> list[Case]:
    """All cases of some kinds."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return [
            Case(kind, found.name, found.rtol, found.atol, found)
            for kind in kinds
            for found in sorted(load_model_tests(kind=kind), key=lambda c: c.name)
        ]


def _plain(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _tensor(path: Path) -> np.ndarray:
    made = onnx.TensorProto()
    made.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(made)


def _values(folder: Path, stem: str, known: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    values: list[Any] = []
    for place, info in enumerate(known):
        path = folder / f"{stem}_{place}.pb"
        if not path.exists():
            break
        kind = info.type.WhichOneof("value")
        if kind == "sequence_type":
            made = onnx.SequenceProto()
            made.ParseFromString(path.read_bytes())
            values.append(numpy_helper.to_list(made))
        elif kind == "optional_type":
            made = onnx.OptionalProto()
            made.ParseFromString(path.read_bytes())
            values.append(numpy_helper.to_optional(made))
        else:
            values.append(_tensor(path))
    return values


def check(found: Any, wanted: Any, rtol: float, atol: float) -> None:
    """Compare as onnx's own runner does.

    Raises:
        AssertionError: when the outputs differ.
    """
    if wanted is None:
        assert found is None
        return
    if isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), f"{len(found)} elements, not {len(wanted)}"
        for a, b in zip(found, wanted):
            check(a, b, rtol, atol)
        return
    found = np.asarray(found.numpy() if hasattr(found, "numpy") else found)
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape, f"shape {found.shape}, not {wanted.shape}"
    if wanted.dtype.kind in "OUST":
        np.testing.assert_array_equal(found.astype(object), wanted.astype(object))
        return
    if _has_device_form(wanted.dtype):
        assert found.dtype == wanted.dtype, f"dtype {found.dtype}, not {wanted.dtype}"
    if wanted.dtype == ml_dtypes.bfloat16:
        rtol = max(rtol, 2**-6)
    if wanted.dtype.kind not in "fciub":
        found, wanted = found.astype(np.float32), wanted.astype(np.float32)
    np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol, equal_nan=True)


def _carried(value: Any) -> Any:
    """Types that no array has are given in wider ones."""
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OUST":
        return types.to_carrier(value)
    return value


def _has_device_form(dtype: np.dtype) -> bool:
    own = (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
    return dtype.type.__module__ == "numpy" or dtype in own


# -- running ------------------------------------------------------------------
REASONS = Path(__file__).parent / "reasons.txt"


def reasons() -> list[tuple[str, str]]:
    """(pattern of kind/name, why it may fail) of each line of the reasons file."""
    lines = REASONS.read_text(encoding="utf-8").splitlines()
    pairs = [line.split(maxsplit=1) for line in lines if line and not line.startswith("#")]
    return [(pattern, why) for pattern, why in pairs]


def reason(case: Case, known: Sequence[tuple[str, str]]) -> str | None:
    """Why a case may fail, or None."""
    name = f"{case.kind}/{case.name}"
    return next((why for pattern, why in known if fnmatch.fnmatch(name, pattern)), None)


def run(case: Case) -> str:
    """What is wrong, or "" where a case passes."""
    try:
        model = kerascl.onnx.load(case.model())
        for inputs, wanted in case.data():
            inputs = [_carried(value) for value in inputs]
            found = model(inputs if len(inputs) != 1 else inputs[0])
            found = [found] if len(wanted) == 1 else found
            check(found, wanted, case.rtol, case.atol)
    except Exception as error:
        text = str(error).strip() or traceback.format_exc().strip().splitlines()[-2]
        return f"{type(error).__name__}: {' '.join(text.split())[:400]}"
    return ""
