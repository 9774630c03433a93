"""Every model of keras.applications: does it build, predict and train as under another backend?

    python benchmarks/applications.py --reference path/to/python/with/keras/and/jax
    python benchmarks/applications.py --reference ... --only 'MobileNet|ResNet50$' --results a.json

Each model is made without pretrained weights, with 10 classes, at the smallest image size that it
takes.  Both backends get the same seeded weights and images, each in a process of its own: one
predicts and does one training step, whose gradients are kept.  The table shows how far kerascl's
logits and gradients lie from the reference's (norm of the difference over norm of the reference,
over all variables), and which operations read on the host.

Batch normalisation over a few values and chains of ReLUs magnify the last bit of float32, so two
right answers may differ by more than a percent in the gradients.  Hence everything runs in float64
too, where they must agree closely, and float32 gradients may lie as far from the float64 ones as
twice the reference's own float32 gradients do.  One ReLU that ends on the other side of zero can
decide that: a model that lies farther off is run with four more seeds, and then the medians count.
With --quick models whose float32 gradients are near the reference's are not run in float64.  A
device without float64 is not for this script.

The results file is kept after each model; models that are in it are not run again.  The exit status
is 1 where a model failed or lies farther off than the limits.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
SMALLEST = {"Inception": 75, "Xception": 71}  # of names that start so; 32 pixels for the others
CLASSES = 10
BATCH = 16
SEEDS = 5  # for a model that lies far off with one
LIMITS = {"logits": 1e-4, "gradients": 1e-3, "logits64": 1e-9, "gradients64": 1e-6}


# -- in a process of its own, under one backend
def constructors(keras) -> dict:
    """name -> function, of every model in keras.applications."""
    found = inspect.getmembers(keras.applications, inspect.isfunction)
    return {n: f for n, f in found if "classes" in inspect.signature(f).parameters}


def image_size(name: str) -> int:
    return next((size for start, size in SMALLEST.items() if name.startswith(start)), 32)


def seeded(model, seed: int) -> None:
    """Gives every floating-point variable seeded values of a plausible size."""
    rng = np.random.default_rng(seed)
    for variable in model.variables:
        shape, kind = tuple(variable.shape), variable.path.split("/")[-1]
        if "float" not in str(variable.dtype):
            continue
        if "var" in kind or kind == "gamma":
            value = rng.uniform(0.5, 1.5, shape)
        elif len(shape) > 1:
            fan_in = np.prod(shape[:2]) if kind == "depthwise_kernel" else np.prod(shape[:-1])
            value = rng.normal(0, np.sqrt(2 / fan_in), shape)
        else:
            value = rng.normal(0, 0.1, shape)
        variable.assign(value.astype("float32").astype(str(variable.dtype)))


def without_chance(model) -> None:
    """Dropout of every kind at rate 0: backends draw other numbers."""
    for layer in model._flatten_layers():
        for name in ("rate", "drop_path_rate"):
            if hasattr(layer, name):
                setattr(layer, name, 0.0)


def run_one(name: str, dtype: str, seed: int, file: str) -> None:
    """Builds, predicts and trains one model in `dtype`; writes what came out to `file`.npz."""
    sys.path.insert(0, str(ROOT))
    ours = os.environ["KERAS_BACKEND"] == "kerascl"
    if ours:
        import kerascl_hook

        kerascl_hook.install()
    import keras
    from keras.src.backend.common import dtypes

    if ours:
        from kerascl.ops import host

    class Gradients(keras.optimizers.Optimizer):
        """Leaves each gradient in its variable."""

        def update_step(self, gradient, variable, learning_rate):
            variable.assign(gradient)

    if dtype == "float64":  # else Keras' mean and others answer in float32
        dtypes.BIT64_TO_BIT32_DTYPE["float64"] = "float64"
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    begin = time.perf_counter()
    size = image_size(name)
    make = constructors(keras)[name]
    model = make(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )
    seeded(model, seed)
    without_chance(model)
    rng = np.random.default_rng(seed)
    preprocesses = any(type(layer).__name__ == "Rescaling" for layer in model.layers)
    images = rng.uniform(-1, 1, (BATCH, size, size, 3))
    images = (images * 127 + 128 if preprocesses else images).astype("float32").astype(dtype)
    classes = rng.integers(0, CLASSES, (BATCH,)).astype("int32")
    built = time.perf_counter()
    logits = model.predict(images, verbose=0)
    predicted = time.perf_counter()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(Gradients(1.0), loss)
    value = model.train_on_batch(images, classes)
    gradients = [np.asarray(v.numpy(), dtype) for v in model.trainable_variables]
    trained = time.perf_counter()
    np.savez(file, *gradients, logits=logits, loss=np.asarray(value))
    report = {
        "parameters": model.count_params(), "size": size, "build_s": built - begin,
        "predict_s": predicted - built, "train_s": trained - predicted,
        "host": dict(host.calls) if ours else {},
    }  # fmt: skip
    Path(file + ".json").write_text(json.dumps(report))


# -- comparing
def relative(found, expected) -> float:
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), 1e-30))


def gradient_distance(found, expected) -> float:
    """Norm of the difference over norm of the expected, over all variables together."""
    squares = np.zeros(2)
    for key in expected.files:
        if key.startswith("arr_"):
            x, y = found[key], expected[key].astype("float64")
            squares += np.sum(np.square(x - y)), np.sum(np.square(y))
    return float(np.sqrt(squares[0] / squares[1]))


def run_backend(python: str, backend: str, name: str, dtype: str, seed: int, file: str) -> dict:
    environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if dtype == "float64":
        environment["JAX_ENABLE_X64"] = "1"
    command = [python, __file__, "--one", name, dtype, str(seed), file]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.strip().splitlines() if line.strip()]
        raise RuntimeError(
            f"{backend} in {dtype}: " + (lines[-1] if lines else f"exit {done.returncode}")
        )
    return json.loads(Path(file + ".json").read_text())


def check(name: str, args) -> dict:
    """The result row of one model."""
    row = check_seed(name, args, args.seed)
    if passed(row) or "error" in row:
        return row
    rows = [row, *(check_seed(name, args, args.seed + k) for k in range(1, SEEDS))]
    failed = [r for r in rows if "error" in r]
    if failed:
        return failed[0]
    row["gradients_by_seed"] = [(r["gradients"], r["reference_gradients"]) for r in rows]
    for key in ("logits", "logits64", "gradients64"):
        row[key] = max(r[key] for r in rows)
    for key in ("gradients", "reference_gradients"):
        row[key] = statistics.median(r[key] for r in rows)
    return row


def check_seed(name: str, args, seed: int) -> dict:
    """The result row of one model with these weights and images."""
    rows, values = {}, {}

    def run(dtype: str) -> None:
        for who, python, backend in (
            ("ours", args.python, "kerascl"), ("theirs", args.reference, args.reference_backend)
        ):  # fmt: skip
            key = who + dtype[-2:]
            file = os.path.join(folder, key)
            rows[key] = run_backend(python, backend, name, dtype, seed, file)
            values[key] = np.load(file + ".npz")

    with tempfile.TemporaryDirectory() as folder:
        try:
            run("float32")
            ours, theirs = values["ours32"], values["theirs32"]
            row = rows["ours32"] | {
                "reference_s": rows["theirs32"]["predict_s"] + rows["theirs32"]["train_s"],
                "logits": relative(ours["logits"], theirs["logits"]),
                "gradients": gradient_distance(ours, theirs),
            }
            if args.quick and seed == args.seed and passed(row):
                return row
            run("float64")
        except RuntimeError as error:
            return {"error": str(error)[:400]}
        truth = values["theirs64"]
        return row | {
            "logits64": relative(values["ours64"]["logits"], truth["logits"]),
            "gradients64": gradient_distance(values["ours64"], truth),
            "gradients": gradient_distance(ours, truth),
            "reference_gradients": gradient_distance(theirs, truth),
        }


def passed(row: dict) -> bool:
    if "error" in row:
        return False
    limits = LIMITS | {"gradients": max(LIMITS["gradients"], 2 * row.get("reference_gradients", 0))}
    return all(row[key] <= limit for key, limit in limits.items() if key in row)


def print_table(results: dict) -> None:
    columns = ("logits", "logits64", "gradients64", "gradients", "reference_gradients")
    table = Table("model", "parameters", "px", "build s", "predict s", "train s", "host",
                  "logits", "logits f64", "gradients f64", "gradients f32", "reference's", "",
                  )  # fmt: skip
    for name, row in results.items():
        if "error" in row:
            table.add_row(name, *[""] * 11, row["error"])
            continue
        table.add_row(
            name, f"{row['parameters']:,}", str(row["size"]),
            *[f"{row[k]:.1f}" for k in ("build_s", "predict_s", "train_s")],
            ", ".join(row["host"]) or "-", *[f"{row[k]:.1e}" if k in row else "-" for k in columns],
            "ok" if passed(row) else "off",
        )  # fmt: skip
    Console(width=150).print(table)


def listed(python: str, backend: str) -> list[str]:
    """Names of all models, without importing Keras here."""
    code = (
        "import inspect, keras; print(*[n for n, f in "
        "inspect.getmembers(keras.applications, inspect.isfunction) "
        "if 'classes' in inspect.signature(f).parameters])"
    )
    environment = os.environ | {"KERAS_BACKEND": backend}
    done = subprocess.run([python, "-c", code], env=environment, capture_output=True, text=True,
                          check=True)  # fmt: skip
    return done.stdout.split()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--one", nargs=4, metavar=("MODEL", "DTYPE", "SEED", "FILE"), help=argparse.SUPPRESS
    )
    parser.add_argument("--reference", default=sys.executable, help="Python with the reference")
    parser.add_argument("--reference-backend", default="jax")
    parser.add_argument("--python", default=sys.executable, help="Python with kerascl")
    parser.add_argument("--seed", type=int, default=1, help="of weights and images")
    parser.add_argument("--only", default="", help="regular expression over model names")
    parser.add_argument("--quick", action="store_true", help="float64 only where float32 differs")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, default 1")
    parser.add_argument("--results", default="applications.json")
    args = parser.parse_args()
    if args.one:
        name, dtype, seed, out = args.one
        run_one(name, dtype, int(seed), out)
        return 0
    file = Path(args.results)
    results = json.loads(file.read_text()) if file.exists() else {}
    names = listed(args.reference, args.reference_backend)
    names = [n for n in names if re.search(args.only, n)]
    wanted = [n for n in names if "error" in results.get(n, {"error": 0})]
    with Progress() as progress, ThreadPoolExecutor(args.jobs) as pool:
        bar = progress.add_task("models", total=len(wanted))
        running = {pool.submit(check, name, args): name for name in wanted}
        for done in as_completed(running):
            results[running[done]] = done.result()
            file.write_text(json.dumps(results, indent=1))
            progress.advance(bar)
    print_table({n: results[n] for n in names})
    return 0 if all(passed(results[n]) for n in names) else 1


if __name__ == "__main__":
    sys.exit(main())
