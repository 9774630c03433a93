"""Every network of keras.applications, exported and compared with onnxruntime.

    python -m tests.onnx_export                          # needs onnxruntime
    python -m tests.onnx_export --only 'ResNet|VGG16$' --json FILE
    python -m tests.onnx_export --operations         # the table of tests/ops in onnxruntime

Each is made with seeded weights and 10 classes, at the smallest image size that it takes, exported
with a free batch size, and the file is run there on batches of 1 and of 3 images, and loaded here
again (`kerascl.onnx.load`).  The table shows how far the results lie from ours (norm of the
difference over norm of ours), the size of the file's graph, and how long export took.  The exit
status is 1 where a network failed or lies farther off than `LIMIT`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "kerascl"
os.environ.setdefault("KERASCL_PRECISION", "highest")

import keras
import numpy as np
import onnx
from rich.console import Console

import kerascl.onnx
from benchmarks.applications import constructors, image_size, seeded
from tests.onnx_export.running import agree
from tests.onnx_export.test_rules import CASES

LIMIT = 1e-5  # float32 sums in other orders, through up to 200 layers


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """Norm of the difference over norm of what is wanted."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def check(name: str, opset: int, folder: Path) -> dict:
    """One network: how far the file's results lie from ours, for each batch."""
    import onnxruntime

    keras.utils.clear_session()
    size = image_size(name)
    model = constructors(keras)[name](
        weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None
    )
    seeded(model, 1)
    rng = np.random.default_rng(2)
    preprocesses = any(type(layer).__name__ == "Rescaling" for layer in model.layers)
    images = rng.uniform(-1, 1, (4, size, size, 3)).astype("float32")
    images = images * 127 + 128 if preprocesses else images
    wanted = model.predict(images, batch_size=4, verbose=0)
    path = folder / "network.onnx"
    begin = time.perf_counter()
    model.export(path, format="onnx", verbose=False, opset_version=opset)
    seconds = time.perf_counter() - begin
    row = {"network": name, "nodes": len(onnx.load(path).graph.node), "export_s": seconds}
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (put,) = session.get_inputs()
    for batch in (images[:1], images[1:]):
        (found,) = session.run(None, {put.name: batch})
        same = wanted[:1] if len(batch) == 1 else wanted[1:]
        row[f"batch {len(batch)}"] = distance(found, same)
    del session, model
    row["again"] = distance(kerascl.onnx.load(path).predict(images, verbose=0), wanted)
    return row


def operations(opset: int, folder: Path, console: Console) -> int:
    """Every operation that has a form, in onnxruntime; gives how many are wrong."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    rng, wrong = np.random.default_rng(), 0
    for case in CASES:
        inputs = [np.asarray(x) for x in case.inputs(rng)]
        inputs = [x.astype("float32") if x.dtype.kind == "f" else x for x in inputs]
        exact = [x.astype("float64") if x.dtype.kind == "f" else x for x in inputs]
        path = folder / "operation.onnx"
        try:
            kerascl.onnx.save(case.call, path, inputs, opset=opset, dynamic_batch=False)
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            names = [put.name for put in session.get_inputs()]
            (found,) = session.run(None, dict(zip(names, inputs, strict=True)))
            agree(found, case.reference(*exact))
        except Exception as error:
            wrong += 1
            text = f"{case.label}: {type(error).__name__}: {str(error)[:300]}"
            console.print(text, highlight=False, markup=False)
    console.print(f"{len(CASES) - wrong} of {len(CASES)} operations agree")
    return wrong


def main() -> int:
    """Prints the table; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--opset", type=int, default=18)
    parser.add_argument("--json", type=Path, help="where to keep the rows")
    parser.add_argument("--operations", action="store_true", help="operations, not networks")
    args = parser.parse_args()
    console, rows, wrong = Console(), [], 0
    if args.operations:
        with tempfile.TemporaryDirectory() as folder:
            return int(operations(args.opset, Path(folder), console) > 0)
    columns = ("nodes", "export", "batch 1", "batch 3", "again")
    console.print(f"{'network':<20}" + "".join(f"{c:>10}" for c in columns), highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        for name in constructors(keras):
            if not re.search(args.only, name):
                continue
            try:
                row = check(name, args.opset, Path(folder))
            except Exception as error:
                row = {"network": name, "error": f"{type(error).__name__}: {error}"}
            rows.append(row)
            if "error" in row:
                wrong += 1
                console.print(f"{name:<20} {row['error'][:400]}", highlight=False, markup=False)
            else:
                far = [row[c] for c in columns[2:]]
                agrees = max(far) <= LIMIT
                wrong += not agrees
                text = f"{name:<20}{row['nodes']:>10}{row['export_s']:>9.1f}s"
                text += "".join(f"{d:>10.1e}" for d in far) + ("" if agrees else "  FAR")
                console.print(text, highlight=False)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
            gc.collect()
    console.print(f"{len(rows) - wrong} of {len(rows)} networks agree")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
