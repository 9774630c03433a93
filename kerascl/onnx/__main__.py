"""`python -m kerascl onnx MODEL`: what is in a file, whether it is right, and how fast it is."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import statistics
import sys
import time
from collections import Counter
from typing import Any

import keras
import numpy as np
import onnx
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from rich.console import Console

from kerascl.onnx.importer import types
from kerascl.onnx.importer.errors import OnnxError
from kerascl.onnx.importer.layer import OnnxGraph, shape_of
from kerascl.onnx.importer.loading import load
from kerascl.runtime import device
from kerascl.runtime.tables import console, table

# Largest difference, by relative norm, of two computations in float32 of a deep network.
_LIMIT = 1e-3
_REPEATS = 5


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kerascl onnx", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--size", type=int, default=32)
    options = parser.parse_args()
    out = console()
    try:
        model = load(options.model)
    except (OnnxError, OSError) as error:
        out.print(f"onnx: {error}", style="red", markup=False)
        return 2
    except Exception as error:  # what Keras puts around them
        out.print(f"onnx: the model cannot be built: {error}", style="red", markup=False)
        return 2
    proto = onnx.load(options.model)
    graph = graph_of(model)
    try:
        inputs = random_inputs(graph, 2, options.size)
        graph.seen = []
        found = flat(model(inputs if len(inputs) != 1 else inputs[0]))
        seen, graph.seen = graph.seen, None
    except (OnnxError, ValueError) as error:
        text = f"onnx: the model does not take random inputs (--size {options.size}): {error}"
        out.print(text, style="red", markup=False)
        return 2
    describe(proto, model, graph, seen, out)
    status = 0
    feeds = dict(zip(graph.input_names, inputs))
    if options.check:
        wanted: Any = ReferenceEvaluator(proto).run(None, feeds)
        status |= report("onnx's reference", found, wanted, out)
    if options.compare:
        status |= against_runtime(options.model, found, feeds, out)
    if options.bench:
        status |= bench(model, graph, options, out)
    return status


def graph_of(model: keras.Model) -> OnnxGraph:
    """The layer that runs a loaded model's graph."""
    return next(part for part in model._flatten_layers() if isinstance(part, OnnxGraph))


def flat(outputs: Any) -> list[np.ndarray]:
    """Outputs as a list of NumPy arrays."""
    return [np.asarray(v) for v in (outputs if isinstance(outputs, list) else [outputs])]


def random_inputs(graph: OnnxGraph, batch: int, size: int) -> list[np.ndarray]:
    """Normal floats, and integers that are 0 or 1; open dimensions get `batch`, then `size`."""
    rng = np.random.default_rng()
    made = []
    known = {value.name: value.type for value in graph.proto.graph.input}
    for name in graph.input_names:
        sizes = shape_of(known[name])
        if sizes is None or known[name].WhichOneof("value") != "tensor_type":
            raise OnnxError(f"input {name!r} has no shape in the file")
        shape = tuple((batch if not k else size) if n is None else n for k, n in enumerate(sizes))
        dtype = types.device_type(known[name].tensor_type.elem_type)
        floats = rng.normal(size=shape) if dtype.is_float else rng.integers(0, 2, shape)
        made.append(np.asarray(floats).astype(dtype.numpy))
    return made


def describe(
    proto: ModelProto, model: keras.Model, graph: OnnxGraph, seen: list[Any], out: Console
) -> None:
    """Print what is in a model."""
    opsets = ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in proto.opset_import)
    producer = f"{proto.producer_name} {proto.producer_version}".strip() or "an unnamed producer"
    out.print(f"{model.name}: opset {opsets}, by {producer}", markup=False, highlight=False)
    rows = table(None, ["", "name", "shape", "dtype"])
    for kind, values in (("input", graph.proto.graph.input), ("output", graph.proto.graph.output)):
        for value in values:
            if value.name in graph.weight_by_name:
                continue
            sizes = shape_of(value.type) or ()
            shape = " x ".join("?" if n is None else str(n) for n in sizes)
            rows.add_row(kind, value.name, shape, types.name_of(value.type.tensor_type.elem_type))
    out.print(rows)
    held = graph.weight_by_name.values()
    trained = sum(int(np.prod(v.shape)) for v in held if v.trainable)
    rest = sum(int(np.prod(v.shape)) for v in held if not v.trainable)
    out.print(f"{trained:,} numbers to train and {rest:,} others in {len(held)} weights")
    counts = Counter((node.op, where) for node, where in seen)
    rows = table(None, ["operator"], ["on device", "on host"])
    for op in sorted({op for op, _ in counts}):
        rows.add_row(op, *(str(counts[op, where] or "") for where in (False, True)))
    out.print(rows)


def report(name: str, found: list[np.ndarray], wanted: list[Any], out: Console) -> int:
    """Print how outputs differ; 1 where one differs by more than rounding."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if a.shape != b.shape:
            out.print(f"{name}: shapes {a.shape} and {b.shape} differ", style="red", markup=False)
            return 1
        error = float(np.linalg.norm(a - b)) / max(float(np.linalg.norm(b)), 1e-30)
        worst = error if not error <= worst else worst  # NaN stays
    bad = not worst <= _LIMIT
    out.print(f"relative difference from {name}: {worst:.1e}", style="red" if bad else None)
    return int(bad)


def against_runtime(
    path: str, found: list[np.ndarray], feeds: dict[str, np.ndarray], out: Console
) -> int:
    """Compare with onnxruntime on the CPU, where it is installed."""
    try:
        session = runtime_session(path)
    except Exception as error:  # of onnxruntime's own classes
        out.print(f"onnxruntime cannot run the file: {error}", style="red", markup=False)
        return 2
    if session is None:
        out.print("onnxruntime is not installed: pip install onnxruntime", style="red")
        return 2
    return report("onnxruntime", found, session.run(None, feeds), out)


def runtime_session(path: str) -> Any:
    """The file in onnxruntime on the CPU; None where that is not installed."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    import onnxruntime  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def milliseconds(function: Any) -> float:
    """The median time of some calls, after one."""
    function()
    times = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def bench(model: keras.Model, graph: OnnxGraph, options: argparse.Namespace, out: Console) -> int:
    """Print time and device memory of predictions, with --compare beside onnxruntime's time on the
    CPU; 2 where a batch does not fit the model."""
    session = None
    if options.compare:
        with contextlib.suppress(Exception):  # `against_runtime` said why
            session = runtime_session(options.model)
    rows = table(None, ["batch"], ["ms", "inputs/s", "MiB"] + ["onnxruntime, ms"] * bool(session))
    buffers = device.default().buffers
    status = 0
    for batch in options.batches:
        inputs = random_inputs(graph, batch, options.size)
        size = inputs[0].shape[0] if inputs[0].ndim else 1
        if size != batch:
            out.print(f"the file has a batch size of {size}", style="yellow")
        given = inputs if len(inputs) != 1 else inputs[0]
        buffers.reset_peak()
        try:
            took = milliseconds(lambda given=given: model.predict_on_batch(given))
        except (OnnxError, ValueError) as error:
            out.print(f"onnx: batch {size}: {error}", style="red", markup=False)
            status = 2
            continue
        memory = buffers.stats().peak / 2**20
        cells = [str(size), f"{took:.2f}", f"{size / took * 1e3:.0f}", f"{memory:.0f}"]
        if session:
            feeds = dict(zip(graph.input_names, inputs))
            theirs = milliseconds(lambda feeds=feeds: session.run(None, feeds))
            cells.append(f"{theirs:.2f}")
        rows.add_row(*cells)
        if size != batch:
            break
    if rows.row_count:
        out.print(rows)
    return status


if __name__ == "__main__":
    keras.config.disable_traceback_filtering()  # errors say what is wrong, not where in Keras
    sys.exit(main())
