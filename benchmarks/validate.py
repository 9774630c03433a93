"""PyTorch's networks through ONNX: what kerascl computes and trains, against PyTorch.

    python -m benchmarks.validate                      all networks (extra `validate`)
    python -m benchmarks.validate resnet18 vgg16       some
    python -m benchmarks.validate --size 64 --batch 4 --steps 20
    python -m benchmarks.validate --jobs 4 --torch cuda

They are torchvision's (alexnet and vgg16 with two images of 224 pixels, which torch.onnx needs for
them), and small ones of fixed sizes: of transformers BERT, GPT-2, Llama and Whisper's encoder; a
U-Net of diffusion, LSTM and GRU. Each network gets random weights, no dropout, and is exported by
torch.onnx as it trains. Its outputs, its loss, the gradient of each parameter and the losses of
some steps of SGD are compared with PyTorch's in float64 (on the CPU, unless --torch says cuda), by
relative norm. Beside each difference stands that of PyTorch in true float32; where kerascl's is
more than four times as large the network is tried again, with other weights and inputs, up to three
times: where rounding turns the sign of an input of ReLU, the gradient jumps in one of the two, by
chance, but what is wrong is wrong each time. A network fails with what was too large each time, and
the program exits with 1; the column "earlier" has the worst of the draws before the last. What
comes and goes as a race does would pass so: kerascl runs a draw that was too large once more, and
where that differs by more than PyTorch's rounding the network fails, whatever the next draw shows.
The column "worst" is of the parameter that differs most, by the larger of
its gradient's norm and a thousandth of the largest.
"""

import argparse
import copy
import io
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "kerascl")
os.environ.setdefault("KERASCL_PRECISION", "highest")

import keras
import numpy as np
import onnx
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import kerascl as kc
import kerascl.onnx
from benchmarks.draws import COLUMNS, earlier_text, judged, not_rounding, too_large, wrong_text
from benchmarks.torch_networks import OTHERS, VISION, build, example, images_of

NETWORKS = VISION + OTHERS
_DRAWS = 3  # of weights and inputs, of which one must do


def exported(network: torch.nn.Module, x: np.ndarray) -> onnx.ModelProto:
    """The network as torch.onnx writes it for training, traced with two rows of x."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            copy.deepcopy(network), (torch.from_numpy(x[:2]),), file, dynamo=False,
            opset_version=17, training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
            input_names=["x"], output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}},
        )  # fmt: skip
    made = onnx.load_model_from_string(file.getvalue())
    # tracing trains: the running statistics in the file are those after a step
    buffers = dict(network.named_buffers())
    for tensor in made.graph.initializer:
        if tensor.name in buffers:
            value = onnx.numpy_helper.from_array(buffers[tensor.name].numpy(), tensor.name)
            tensor.CopyFrom(value)
    return made


def of_torch(network: torch.nn.Module, x, y, dtype, steps: int, rate: float, place: str) -> dict:
    """Outputs without and loss and gradients with batch statistics, and losses of SGD's steps."""
    network = copy.deepcopy(network).to(place, dtype)
    x, y = torch.tensor(x, device=place), torch.tensor(y, device=place)
    x = x.to(dtype) if x.is_floating_point() else x
    with torch.no_grad():
        outputs = network.eval()(x).cpu().numpy()
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), rate)
    losses, gradients = [], {}
    for step in range(steps + 1):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        if not step:
            gradients = {n: p.grad.cpu().numpy().copy() for n, p in network.named_parameters()}
        losses.append(float(loss.detach()))
        optimiser.step()
    return {"outputs": outputs, "gradients": gradients, "losses": np.array(losses)}


def of_kerascl(made: onnx.ModelProto, x, y, steps: int, rate: float) -> dict:
    """The same of the loaded model."""
    model = kerascl.onnx.load(made)
    graph = model.get_layer("graph")
    held = graph.weight_by_name
    outputs = model.predict(x, verbose=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    names = [n for n, v in held.items() if v.trainable]
    before = [np.array(v) for v in model.non_trainable_variables]
    with kc.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    found = tape.gradient(loss, [held[n].value for n in names])
    gradients = {n: np.asarray(graph.as_in_file(n, g)) for n, g in zip(names, found)}
    for variable, value in zip(model.non_trainable_variables, before):
        variable.assign(value)
    model.compile(keras.optimizers.SGD(rate), loss_of)
    losses = [float(model.train_on_batch(x, y)) for _ in range(steps + 1)]
    return {"outputs": outputs, "gradients": gradients, "losses": np.array(losses)}


def norm(a) -> float:
    """The Euclidean norm, in float64."""
    return float(np.linalg.norm(np.asarray(a, np.float64).reshape(-1)))


def differences(found: dict, wanted: dict) -> dict[str, float]:
    """Relative norms of what differs."""
    names = list(wanted["gradients"])
    missing = [n for n in names if n not in found["gradients"]]
    if missing:
        raise SystemExit(f"no gradients of {missing}")
    errors = {n: norm(found["gradients"][n] - wanted["gradients"][n]) for n in names}
    sizes = {n: norm(wanted["gradients"][n]) for n in names}
    least = 1e-3 * max(sizes.values())
    return {
        "outputs": norm(found["outputs"] - wanted["outputs"]) / norm(wanted["outputs"]),
        "loss": abs(found["losses"][0] / wanted["losses"][0] - 1),
        "gradient": norm(list(errors.values())) / norm(list(sizes.values())),
        "worst": max(errors[n] / max(sizes[n], least) for n in names),
        "steps": float(np.abs(found["losses"] / wanted["losses"] - 1).max()),
    }


def validate(name: str, size: int, batch: int, steps: int, rate: float, place: str) -> dict:
    """What `draws.judged` says of draws up to the first with nothing bad."""
    begin = time.perf_counter()
    draws = []
    while not draws or (draws[-1]["bad"] and len(draws) < _DRAWS):
        draws.append(compared(name, size, batch, steps, rate, place))
    return judged(draws) | {"seconds": time.perf_counter() - begin}


def compared(name: str, size: int, batch: int, steps: int, rate: float, place: str) -> dict:
    """kerascl's differences from PyTorch in float64, those of PyTorch in float32, which are bad
    beside these, and which of kerascl's differ when a bad draw is run a second time."""
    rng = np.random.default_rng()
    network = build(name, images_of(name, size))
    x = example(name, size, batch, rng)
    y = rng.integers(0, 10, len(x))
    made = exported(network, x)
    ours = of_kerascl(made, x, y, steps, rate)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    wanted = of_torch(network, x, y, torch.float64, steps, rate, place)
    theirs = of_torch(network, x, y, torch.float32, steps, rate, place)
    found, known = differences(ours, wanted), differences(theirs, wanted)
    bad, unsteady = too_large(found, known), {}
    if bad:
        again = differences(of_kerascl(made, x, y, steps, rate), ours)
        unsteady = {k: again[k] for k in not_rounding(again, known)}
    return {"found": found, "known": known, "bad": bad, "unsteady": unsteady}


def main() -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=", ".join(NETWORKS))
    parser.add_argument("--size", type=int, default=64, help="pixels along each side")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--torch", default="cpu", metavar="DEVICE", help="where PyTorch computes")
    parser.add_argument("--jobs", type=int, default=1, help="networks at a time, in processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="rows, a line each, as they come")
    parser.add_argument("--only", choices=NETWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(row_of(options.only, options)))
        return 0
    unknown = set(options.networks) - set(NETWORKS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(NETWORKS)}")
    console = Console(soft_wrap=True)
    table = Table("network", *COLUMNS, "draws", "earlier", "s", "wrong")
    failed = False
    for row in rows(options):
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(row) + "\n")
        cells = [row["network"], *[""] * (len(COLUMNS) + 3), row.get("error")]
        if "error" not in row:
            cells[1:-4] = [f"{row['found'][c]:.1e} ({row['known'][c]:.1e})" for c in COLUMNS]
            cells[-4:-2] = str(row["draws"]), earlier_text(row)
            cells[-2:] = f"{row['seconds']:.0f}", wrong_text(row)
        console.print("  ".join(cells), highlight=False, markup=False)
        table.add_row(*map(escape, cells))
        failed |= bool(cells[-1])
    console.print(table)
    return int(failed)


def row_of(name: str, options) -> dict:
    """What `validate` finds of a network, or its error."""
    try:
        found = validate(
            name, options.size, options.batch, options.steps, options.rate, options.torch
        )
    except (Exception, SystemExit) as error:  # shown in the table
        # What Keras puts around a layer's error stands around bold type.
        said = str(error).split("\x1b[1m")[-1].split("\x1b[0m")[0]
        found = {"error": " ".join(f"{type(error).__name__}: {said}".split())[:300]}
    return {"network": name} | found


def rows(options) -> Iterator[dict]:
    """A row for each network as it is done; in a process each where several run at a time."""
    names = options.networks or NETWORKS
    if options.jobs < 2:
        yield from (row_of(name, options) for name in names)
        return
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))

    def apart(name: str) -> dict:
        command = [sys.executable, "-m", "benchmarks.validate", "--only", name]
        for key in ("size", "batch", "steps", "rate", "torch"):
            command += [f"--{key}", str(getattr(options, key))]
        environment = {**os.environ, "OMP_NUM_THREADS": threads}
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        lines = run.stdout.splitlines()
        if run.returncode or not lines:
            said = run.stderr.strip().splitlines() or [f"exit status {run.returncode}"]
            return {"network": name, "error": said[-1]}
        return json.loads(lines[-1])

    with ThreadPoolExecutor(options.jobs) as pool:
        for done in as_completed([pool.submit(apart, name) for name in names]):
            yield done.result()


if __name__ == "__main__":
    sys.exit(main())
