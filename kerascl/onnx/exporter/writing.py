"""The file: checked first, then put in its place at once."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import onnx

from kerascl.onnx.exporter.errors import ExportError

# Protocol buffers hold no more than 2 GiB; nodes and names take the rest.
MOST_BYTES = 2**31 - 2**25
_SMALLEST = 1024  # bytes of a tensor that is worth a place in the file of weights


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a model to `path`, with its weights in a file beside it if they are too large.

    Raises:
        ExportError: when ONNX' checker refuses the model; nothing is written then.
    """
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    folder = Path(tempfile.mkdtemp(prefix=".onnx-", dir=path.parent))
    try:
        draft = folder / path.name
        data = path.name + ".data"
        if size > MOST_BYTES:
            onnx.save_model(
                model, draft, save_as_external_data=True, all_tensors_to_one_file=True,
                location=data, size_threshold=_SMALLEST,
            )  # fmt: skip
        else:
            onnx.save_model(model, draft)
        try:
            onnx.checker.check_model(str(draft), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise ExportError(
                f"the file made for {path} does not pass ONNX' checker, which is a defect of "
                f"kerascl: {error}"
            ) from error
        if size > MOST_BYTES:
            os.replace(folder / data, path.parent / data)
        os.replace(draft, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
