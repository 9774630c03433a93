"""Inference of imported ONNX models beside PyTorch's compiler and onnxruntime on the same device.

    python -m benchmarks.onnx_speed --json rows.jsonl
    python -m benchmarks.onnx_speed resnet50 bert --batch 1 --precision highest

Networks of torchvision and BERT-base have random weights, are exported by torch.onnx and loaded by
kerascl.onnx.load. torch.compile has the same network (images with channels last), and onnxruntime
the same file, where it has a provider for the device. ResNet50 and MobileNetV2 of
keras.applications run as they are and, as "imported", from the file that kerascl.onnx.save makes of
them. Inputs lie on the device; engines are timed in turn, many calls between two
synchronisations, and medians of the rounds count. "error" is the relative norm against float64
(of PyTorch on the CPU; of keras.applications, against the Keras model). A ratio is an engine's time
over that of kerascl's imported model: above 1 kerascl is faster. With the precision "high", float32
is multiplied as TF32 where matrix units do so, by all.

Each case runs in a process of its own; with --jobs several prepare at once, and are timed one at a
time when all are ready. A file of --json gets a line for each; cases that it has, but for errors,
are not run again. The exit status is 1 where a case failed, or kerascl's error is more than four
times PyTorch's and more than 1e-5.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

TORCH = ("resnet50", "mobilenet_v2", "vit_b_16", "bert")
KERAS = ("ResNet50", "MobileNetV2")  # of keras.applications
LENGTH, VOCABULARY = 128, 30522  # of BERT-base
CASE = ("network", "batch", "precision", "size")
_WORSE, _FLOOR = 4, 1e-5
_REFERENCE_ROWS = 2  # rows of a batch that float64 is computed for
_READY = "ready"  # what a case's process says before it waits for its turn to be timed

Engine = tuple[Callable[[], object], Callable[[], object], Callable[[], np.ndarray]]
Case = tuple[dict[str, Engine], dict, np.ndarray]


# -- engines: what runs once, what waits for it, and what gives its output


def ours(model, x: np.ndarray) -> Engine:
    """A Keras model under kerascl, captured."""
    import kerascl as kc
    from kerascl.runtime import device

    given = kc.array(x)
    function = kc.jit(lambda x: model(x, training=False))
    function(given)
    replay = function.captured(given).replay
    return replay.run, device.default().queue.finish, lambda: np.array(function(given))


def compiled(network, x: np.ndarray, place: str) -> Engine:
    """A network of PyTorch by torch.compile."""
    import torch

    network = network.to(place)
    given = torch.from_numpy(x).to(place)
    if given.ndim == 4:
        network = network.to(memory_format=torch.channels_last)
        given = given.to(memory_format=torch.channels_last)
    function = torch.compile(network)

    def run():
        with torch.no_grad():
            return function(given)

    wait = torch.cuda.synchronize if place == "cuda" else lambda: None
    return run, wait, lambda: run().cpu().numpy()


def runtime(file: bytes, x: np.ndarray, place: str, tf32: bool) -> Engine:
    """onnxruntime, its input and output on the device."""
    import onnxruntime

    provider = "CUDAExecutionProvider" if place == "cuda" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise RuntimeError(f"this onnxruntime has no {provider}")
    if place == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        onnxruntime.preload_dlls()
    providers = [(provider, {"use_tf32": int(tf32)} if place == "cuda" else {})]
    session = onnxruntime.InferenceSession(file, providers=providers)
    if session.get_providers()[0] != provider:
        raise RuntimeError(f"onnxruntime could not begin its {provider}")
    binding = session.io_binding()
    name = session.get_inputs()[0].name
    binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(x, place, 0))
    binding.bind_output(session.get_outputs()[0].name, place)

    def run():
        session.run_with_iobinding(binding)

    def output():
        run()
        return binding.copy_outputs_to_cpu()[0]

    return run, binding.synchronize_outputs, output


# -- networks


def torch_network(name: str, size: int):
    """A network of TORCH in inference."""
    import torch

    from benchmarks import torch_networks

    torch.manual_seed(0)
    if name != "bert":
        return torch_networks.vision(name, size, 1000).eval()
    return torch_networks.transformer(
        "Bert", 2, vocab_size=VOCABULARY, hidden_size=768, num_hidden_layers=12,
        num_attention_heads=12, intermediate_size=3072, max_position_embeddings=512,
        attention="sdpa",
    ).eval()  # fmt: skip


def exported(network, x: np.ndarray) -> tuple[bytes, str]:
    """The network's file for this batch, and which of torch's exporters wrote it: the one that
    it prefers, else the older one."""
    import torch

    example = (torch.from_numpy(x),)
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")
        try:
            file = io.BytesIO()
            torch.onnx.export(network, example, dynamo=True, verbose=False).save(file)
            return file.getvalue(), "dynamo"
        except Exception as error:
            print(f"torch.onnx.export(dynamo=True): {error}"[:500], file=sys.stderr)
        file = io.BytesIO()
        torch.onnx.export(network, example, file, dynamo=False, opset_version=17)
    return file.getvalue(), "TorchScript"


def images(batch: int, size: int, last: bool) -> np.ndarray:
    """Random pixels, with channels last or first."""
    shape = (batch, size, size, 3) if last else (batch, 3, size, size)
    return np.random.default_rng().normal(size=shape).astype(np.float32)


# -- a case


def seconds(engines: dict[str, Engine], rounds: int, budget: float) -> dict[str, float]:
    """Median seconds of a call of each engine, timed in turn."""

    def timed(engine: Engine, count: int) -> float:
        call, wait, _ = engine
        wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        return (time.perf_counter() - begin) / count

    counts = {}
    for name, engine in engines.items():
        timed(engine, 2)
        counts[name] = max(2, min(1000, int(budget / max(timed(engine, 2), 1e-7))))
    times = [{n: timed(e, counts[n]) for n, e in engines.items()} for _ in range(rounds)]
    return {n: statistics.median(t[n] for t in times) for n in engines}


def case_of_torch(case: dict, wanted_engines: list[str]) -> Case:
    """Engines that began, notes (errors of those that did not), and outputs in float64."""
    import onnx
    import torch

    import kerascl.onnx
    from kerascl.runtime import device

    name, batch, tf32 = case["network"], case["batch"], case["precision"] == "high"
    gpu = torch.cuda.is_available() and device.default().info.kind == "gpu"
    place = "cuda" if gpu else "cpu"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    network = torch_network(name, case["size"])
    if name == "bert":
        x = np.random.default_rng().integers(0, VOCABULARY, (batch, LENGTH))
    else:
        x = images(batch, case["size"], last=False)
    file, exporter = exported(network, x)
    with torch.no_grad():
        wide = torch.from_numpy(x[:_REFERENCE_ROWS])
        wide = wide.double() if wide.is_floating_point() else wide
        wanted = network.double()(wide).numpy()
    network.float()
    notes: dict = {"exporter": exporter}
    engines: dict[str, Engine] = {}
    makers = {
        "imported": lambda: ours(kerascl.onnx.load(onnx.load_model_from_string(file)), x),
        "torch": lambda: compiled(network, x, place),
        "onnxruntime": lambda: runtime(file, x, place, tf32),
    }
    for engine in wanted_engines:
        print(f"{engine} begins", file=sys.stderr, flush=True)
        try:
            begin = time.perf_counter()
            made = makers[engine]()
            made[2]()
            notes[f"{engine} first"] = time.perf_counter() - begin
            engines[engine] = made
        except Exception as error:  # the others are timed all the same
            notes[f"{engine} error"] = f"{type(error).__name__}: {error}"[:300]
    return engines, notes, wanted


def case_of_keras(case: dict) -> Case:
    """The same of a network of keras.applications and its own file; outputs in float32."""
    import keras

    import kerascl.onnx

    size = case["size"]
    # no softmax: of random weights' small outputs it makes equal numbers, which hide what is wrong
    model = getattr(keras.applications, case["network"])(
        weights=None, input_shape=(size, size, 3), classifier_activation=None
    )
    x = images(case["batch"], size, last=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        kerascl.onnx.save(model, path)
        loaded = kerascl.onnx.load(path)
    engines = {"imported": ours(loaded, x), "keras": ours(model, x)}
    return engines, {}, engines["keras"][2]()[:_REFERENCE_ROWS]


def measured(case: dict, options) -> dict:
    """What is found of a case."""
    if case["network"] in KERAS:
        engines, row, wanted = case_of_keras(case)
    else:
        engines, row, wanted = case_of_torch(case, options.engines.split(","))
    for engine, (_, _, output) in engines.items():
        found = np.asarray(output(), np.float64)[: len(wanted)]
        difference = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
        row[f"{engine} difference"] = float(difference)
    print(_READY, flush=True)
    sys.stdin.read()
    times = seconds(engines, options.rounds, options.budget)
    return row | {engine: 1e3 * taken for engine, taken in times.items()}


def run_case(case: dict, options, together: threading.Barrier, turn: threading.Lock) -> dict:
    """A row: the case and what a process found, or its error.

    The process prepares while those of other cases do, and is timed when all are ready, alone.
    """
    environment = {
        **os.environ, "KERAS_BACKEND": "kerascl", "KERASCL_PRECISION": case["precision"],
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.onnx_speed", "--rounds", str(options.rounds),
               "--budget", str(options.budget), "--engines", options.engines,
               "--only", json.dumps(case)]  # fmt: skip
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    found = ""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=said,
        )  # fmt: skip
        with process:
            assert process.stdin and process.stdout
            limit = threading.Timer(options.limit, stop)
            limit.start()
            ready = any(line.strip() == _READY for line in process.stdout)
            limit.cancel()
            together.wait()
            if ready:
                with turn:
                    process.stdin.close()
                    found = process.stdout.read().strip()
        said.seek(0)
        words = [text.strip() for text in said if text.strip()]
    if process.returncode == 0 and found:
        return case | json.loads(found.splitlines()[-1])
    last = words[-1] if words else f"exit status {process.returncode}"
    return case | {"error": (f"not done in {options.limit:g} s; " * late.is_set() + last)[:300]}


def run_cases(cases: list[dict], options) -> list[dict]:
    """Rows of cases that prepare at once."""
    if not cases:
        return []
    together, turn = threading.Barrier(len(cases)), threading.Lock()
    with ThreadPoolExecutor(len(cases)) as pool:
        return list(pool.map(lambda case: run_case(case, options, together, turn), cases))


# -- the table

OTHERS = ("torch", "onnxruntime", "keras")


def wrong(row: dict) -> str:
    """What is not right in a row, or nothing."""
    error = row.get("error") or row.get("imported error") or ""
    if not error:
        allowed = max(_FLOOR, _WORSE * row.get("torch difference", 0.0))
        if not row["imported difference"] <= allowed:
            error = f"differs by {row['imported difference']:.1e}"
    return error


def lines(row: dict) -> list[str]:
    """The table's lines of a row: kerascl's own, then the other engines'."""
    start = f"{row['network']:14}{row['batch']:>5}  {row['precision']:8}"
    if "imported" not in row:
        return [f"{start}{wrong(row)}"]
    found = []
    for engine in ("imported", *OTHERS):
        if engine in row:
            ratio = f"{row[engine] / row['imported']:8.2f}"
            found.append(f"{start}{engine:12}{row[engine]:10.3f} ms{ratio}"
                         f"{row[engine + ' difference']:10.1e}")  # fmt: skip
        elif f"{engine} error" in row:
            found.append(f"{start}{engine:12}{row[engine + ' error']}")
    return [f"{found[0]}  {wrong(row)}".rstrip(), *found[1:]]


def means(rows: list[dict]) -> list[str]:
    """Geometric means of ratios by engine and batch."""
    found = []
    for engine in OTHERS:
        for batch in sorted({row["batch"] for row in rows}):
            ratios = [math.log(r[engine] / r["imported"]) for r in rows
                      if r["batch"] == batch and engine in r and "imported" in r]  # fmt: skip
            if ratios:
                mean = math.exp(statistics.fmean(ratios))
                found.append(f"geometric mean of {len(ratios)} ratios of {engine}, batch {batch}: "
                             f"{mean:.2f}")  # fmt: skip
    return found


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = (*TORCH, *KERAS)
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(names))
    parser.add_argument("--batch", action="append", type=int, help="default 1 and 64")
    parser.add_argument("--precision", default="high", choices=("high", "highest"))
    parser.add_argument("--size", type=int, default=224, help="pixels along each side")
    parser.add_argument(
        "--engines", default="imported,torch,onnxruntime", help="beside PyTorch's networks"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=0.2, help="seconds of an engine's round")
    parser.add_argument("--limit", type=float, default=300, help="seconds to prepare a case in")
    parser.add_argument("--jobs", type=int, default=1, help="cases that prepare at once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, a line each")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(json.loads(options.only), options)))
        return 0
    unknown = set(options.networks) - set(names)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(names)}")
    kept = []
    if options.json and options.json.exists():
        kept = [json.loads(text) for text in options.json.read_text().splitlines() if text.strip()]
    rows = []
    print(f"{'network':14}{'batch':>5}  {'':8}{'engine':12}{'a call':>13}{'ratio':>8}{'error':>10}")
    pairs = itertools.product(options.networks or names, options.batch or (1, 64))
    cases = [dict(zip(CASE, (*pair, options.precision, options.size))) for pair in pairs]
    for start in range(0, len(cases), options.jobs):
        some = cases[start : start + options.jobs]
        known = [next((r for r in kept if not wrong(r) and all(r[k] == c[k] for k in CASE)), None)
                 for c in some]  # fmt: skip
        made = iter(run_cases([c for c, row in zip(some, known) if row is None], options))
        for row in known:
            if row is None:
                row = next(made)
                if options.json:
                    with options.json.open("a") as file:
                        file.write(json.dumps(row) + "\n")
            rows.append(row)
            print("\n".join(lines(row)), flush=True)
    print("\n".join(means(rows)))
    return int(any(wrong(row) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
