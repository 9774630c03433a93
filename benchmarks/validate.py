"""Networks of torchvision through ONNX: what kerascl computes and trains, against PyTorch.

    python -m benchmarks.validate                      all networks (extra `validate`)
    python -m benchmarks.validate resnet18 vgg16       some
    python -m benchmarks.validate --size 64 --batch 4 --steps 20

Each network gets random weights, no dropout, and is exported by torch.onnx as it trains. Its
outputs, its loss, the gradient of each parameter and the losses of some steps of SGD are compared
with PyTorch's in float64 on the CPU, by relative norm. Beside each difference stands that of
PyTorch in float32: a network fails where kerascl's is more than four times as large, and exits
with 1. The column "worst" is of the parameter that differs most, by the larger of its gradient's
norm and a thousandth of the largest.
"""

import argparse
import copy
import io
import os
import sys
import time
import warnings

os.environ.setdefault("KERAS_BACKEND", "kerascl")

import keras
import numpy as np
import onnx
import torch
from rich.console import Console
from rich.table import Table

import kerascl as kc
import kerascl.onnx

NETWORKS = (
    "alexnet", "resnet18", "resnet50", "vgg16", "densenet161", "googlenet", "squeezenet1_0",
    "inception_v3", "shufflenet_v2_x1_0", "mobilenet_v2", "mobilenet_v3_large",
    "mobilenet_v3_small", "resnext50_32x4d", "wide_resnet50_2", "mnasnet1_0", "efficientnet_b0",
    "efficientnet_b4", "regnet_y_400mf", "convnext_small", "vit_b_16",
)  # fmt: skip
_AUXILIARY = {"googlenet": {"aux_logits": False, "init_weights": False},
              "inception_v3": {"aux_logits": False, "init_weights": False}}  # fmt: skip
_SMALLEST = {"alexnet": 96, "inception_v3": 96}
_WORSE = 4  # times PyTorch's own difference in float32
_FLOOR = 2e-6  # float32's rounding after a network: no difference is asked to be smaller


def networks_of_torchvision():
    """torchvision.models, also where its wheel was built for another torch.

    Then its own operators cannot be loaded. No network here has one, but two must be known.
    """
    names = ("nms", "qnms")
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        for name in names:
            library.define(f"{name}() -> Tensor")
        import torchvision
    return torchvision.models


def build(name: str, size: int) -> torch.nn.Module:
    """A network with random weights, 10 classes and nothing that is left to chance."""
    options = dict(_AUXILIARY.get(name, {}))
    if name == "vit_b_16":
        options["image_size"] = size
    network = getattr(networks_of_torchvision(), name)(weights=None, num_classes=10, **options)
    for part in network.modules():
        if isinstance(part, torch.nn.Dropout) or type(part).__name__ == "StochasticDepth":
            part.p = 0.0
    return network


def exported(network: torch.nn.Module, size: int) -> onnx.ModelProto:
    """The network as torch.onnx writes it for training."""
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            copy.deepcopy(network), (torch.zeros(2, 3, size, size),), file, dynamo=False,
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


def of_torch(network: torch.nn.Module, x, y, dtype, steps: int, rate: float) -> dict:
    """Outputs without and loss and gradients with batch statistics, and losses of SGD's steps."""
    network = copy.deepcopy(network).to(dtype)
    x, y = torch.tensor(x, dtype=dtype), torch.tensor(y)
    with torch.no_grad():
        outputs = network.eval()(x).numpy()
    network.train()
    optimiser = torch.optim.SGD(network.parameters(), rate)
    losses, gradients = [], {}
    for step in range(steps + 1):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(x), y)
        loss.backward()
        if not step:
            gradients = {n: p.grad.numpy().copy() for n, p in network.named_parameters()}
        losses.append(float(loss.detach()))
        optimiser.step()
    return {"outputs": outputs, "gradients": gradients, "losses": np.array(losses)}


def of_kerascl(made: onnx.ModelProto, x, y, steps: int, rate: float) -> dict:
    """The same of the loaded model."""
    model = kerascl.onnx.load(made)
    held = model.get_layer("graph").weight_by_name
    outputs = model.predict(x, verbose=0)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    names = [n for n, v in held.items() if v.trainable]
    before = [np.array(v) for v in model.non_trainable_variables]
    with kc.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    found = tape.gradient(loss, [held[n].value for n in names])
    gradients = {n: np.asarray(g) for n, g in zip(names, found)}
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


def validate(name: str, size: int, batch: int, steps: int, rate: float) -> dict:
    """kerascl's differences from PyTorch in float64, and those of PyTorch in float32."""
    size = max(size, _SMALLEST.get(name, 0))
    rng = np.random.default_rng()
    network = build(name, size)
    x = rng.normal(size=(batch, 3, size, size)).astype(np.float32)
    y = rng.integers(0, 10, batch)
    start = time.perf_counter()
    ours = of_kerascl(exported(network, size), x, y, steps, rate)
    seconds = time.perf_counter() - start
    wanted = of_torch(network, x, y, torch.float64, steps, rate)
    theirs = of_torch(network, x, y, torch.float32, steps, rate)
    found, known = differences(ours, wanted), differences(theirs, wanted)
    return {
        "found": found, "known": known, "seconds": seconds,
        "bad": [k for k in found if not found[k] <= _WORSE * max(known[k], _FLOOR)],
    }  # fmt: skip


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
    options = parser.parse_args()
    unknown = set(options.networks) - set(NETWORKS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: not among {', '.join(NETWORKS)}")
    console = Console(soft_wrap=True)
    columns = ("outputs", "loss", "gradient", "worst", "steps")
    table = Table("network", *columns, "s", "wrong")
    failed = False
    for name in options.networks or NETWORKS:
        row = validate(name, options.size, options.batch, options.steps, options.rate)
        cells = [f"{row['found'][c]:.1e} ({row['known'][c]:.1e})" for c in columns]
        cells = [name, *cells, f"{row['seconds']:.0f}", ", ".join(row["bad"])]
        console.print("  ".join(cells), highlight=False)
        table.add_row(*cells)
        failed |= bool(row["bad"])
    console.print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
