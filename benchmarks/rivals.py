"""Matrix products, convolutions and attention against PyTorch (cuBLAS, cuDNN, or its CPU kernels).

    python benchmarks/rivals.py                        all on the GPU, or all on the CPU
    python benchmarks/rivals.py --only products --types tf32 bfloat16 --json rates.json

Both libraries get the same fresh random inputs and are timed in turn, one after the other in each
round, many calls between two synchronisations; the medians of the rounds count.  Types: float32
(true float32), tf32 (float32 rounded to TF32, as JAX does) and bfloat16.  The ratio is PyTorch's
time over ours.  The errors are relative norms against the float64 product of the same inputs; with
dropout ours alone, as nobody else can tell what PyTorch dropped.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kerascl as kc
from kerascl.commands.bench import CONVOLUTIONS, PRODUCTS
from kerascl.runtime import device as devices

TYPES = {  # dtype, our precision
    "float32": ("float32", "highest"), "tf32": ("float32", "high"),
    "bfloat16": ("bfloat16", "high"),
}  # fmt: skip
SMALL = ((32, 784, 512), (784, 32, 512), (32, 512, 512), (512, 32, 512), (4096, 512, 1024))
MOST_CPU_FLOPS = 4e10
PARTS = ("forward", "data gradient", "filter gradient")
# batch, queries and keys, heads, features, causal; the first two are of the small suite's networks
ATTENTION = (
    (256, 128, 4, 32, False), (256, 128, 4, 32, True), (16, 512, 8, 64, True),
    (8, 1024, 8, 64, False),
    *(
        (*size, causal)
        for size in (
            (64, 197, 12, 64), (8, 512, 12, 64), (4, 2048, 12, 64), (1, 8192, 8, 64),
            (64, 197, 6, 128), (8, 512, 8, 128), (4, 2048, 8, 128), (1, 8192, 8, 128),
        )
        for causal in (False, True)
    ),
)  # fmt: skip


class Pair:
    """One problem under both libraries.

    Args:
        ours: an operation of kerascl; it is captured.
        args: its arguments, NumPy arrays in float32.
        theirs: makes the call of PyTorch from its tensors.
        dtype: what both cast the arguments to.
        exact: computes what ours should give from PyTorch's tensors of float64; None where theirs
            does.

    Both give an array, or a tuple of them.
    """

    def __init__(
        self, ours: Callable, theirs: Callable, args: list[np.ndarray], dtype: str,
        exact: Callable | None = None,
    ):  # fmt: skip
        self.device = devices.default()
        self.arrays = [kc.cast(kc.array(a), dtype) for a in args]
        self.function = kc.jit(ours)
        self.function(*self.arrays)
        self.replay = self.function.captured(*self.arrays).replay
        place = "cuda" if torch.cuda.is_available() and self.device.info.kind == "gpu" else "cpu"
        self.tensors = [torch.from_numpy(a).to(place, getattr(torch, dtype)) for a in args]
        self.call = theirs(*self.tensors)
        wide = (exact or theirs)(*(t.double() for t in self.tensors))()
        self.errors = [_error(self._found(), wide)]
        self.errors.append(math.nan if exact else _error(self.call(), wide))

    def _found(self) -> list[torch.Tensor]:
        found = (kc.cast(x, "float32") for x in _tuple(self.function(*self.arrays)))
        return [torch.from_numpy(np.array(x)).to(self.tensors[0].device) for x in found]

    def seconds(self, rounds: int, budget: float) -> tuple[float, float]:
        """Median seconds of one call of ours and of theirs."""
        calls = [(self.replay.run, self.device.queue.finish), (self.call, self._finish)]
        counts = []
        for call, finish in calls:
            _time(call, finish, 2)
            counts.append(max(2, int(budget / max(_time(call, finish, 3), 1e-7))))
        times: list[list[float]] = [[], []]
        for _ in range(rounds):
            for k, (call, finish) in enumerate(calls):
                times[k].append(_time(call, finish, counts[k]))
        return statistics.median(times[0]), statistics.median(times[1])

    def _finish(self) -> None:
        if self.tensors[0].is_cuda:
            torch.cuda.synchronize()


def _time(call: Callable, finish: Callable, count: int) -> float:
    finish()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    finish()
    return (time.perf_counter() - begin) / count


def _tuple(x) -> tuple:
    return tuple(x) if isinstance(x, tuple | list) else (x,)


def _error(found, wanted) -> float:
    """The largest of the results' relative norms."""
    pairs = zip(_tuple(found), _tuple(wanted), strict=True)
    return max(float((x.double() - w).norm() / w.norm()) for x, w in pairs)


def product(m: int, k: int, n: int, dtype: str, rng) -> tuple[Pair, float]:
    """a @ b, and its floating point operations."""
    args = [rng.standard_normal(shape, np.float32) for shape in ((m, k), (k, n))]
    return Pair(kc.matmul, lambda a, b: lambda: a @ b, args, dtype), 2.0 * m * k * n


def convolution(layer: tuple, part: str, batch: int, dtype: str, rng) -> tuple[Pair, float]:
    """One of PARTS of a layer of bench.CONVOLUTIONS, and its floating point operations.

    Padding is (taps - 1) / 2 on every side, which both libraries know.
    """
    _, side, channels, taps, stride, filters = layer
    pad = (taps - 1) // 2
    out = (side + 2 * pad - taps) // stride + 1
    shapes = (batch, side, side, channels), (taps, taps, channels, filters)
    x, w = (rng.standard_normal(shape, np.float32) for shape in shapes)
    dy = rng.standard_normal((batch, out, out, filters), np.float32)

    def forward(x, w):
        return kc.conv(x, w, strides=stride, padding=((pad, pad), (pad, pad)))

    def gradient(x, w, dy):
        with kc.GradientTape() as tape:
            y = forward(x, w)
        return tape.gradient(y, x if part == PARTS[1] else w, dy)

    def theirs(x, w, dy=None):
        # channels last in memory, as ours; PyTorch names the axes in its own order
        x, w = (
            x.permute(0, 3, 1, 2),
            w.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last),
        )
        if dy is None:
            return lambda: torch.nn.functional.conv2d(x, w, None, stride, pad).permute(0, 2, 3, 1)
        dy = dy.permute(0, 3, 1, 2)
        mask = [part == PARTS[1], part == PARTS[2], False]

        def call():
            found = torch.ops.aten.convolution_backward(
                dy, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask
            )
            return found[0].permute(0, 2, 3, 1) if mask[0] else found[1].permute(2, 3, 1, 0)

        return call

    pair = (
        Pair(forward, theirs, [x, w], dtype)
        if part == PARTS[0]
        else Pair(gradient, theirs, [x, w, dy], dtype)
    )
    return pair, 2.0 * taps * taps * channels * dy.size


def attention(size: tuple, training: bool, rate: float, dtype: str, rng) -> tuple[Pair, float]:
    """Dot-product attention, with the gradients of its three inputs if `training`, and with dropout
    of this rate.

    The operations are those of the formula's products; half of them where causality hides half.
    """
    batch, length, heads, features, causal = size
    args = [rng.standard_normal((batch, length, heads, features), np.float32) for _ in "qkvg"]

    drawn = kc.random.key(int(rng.integers(2**31)))

    def forward(q, k, v):
        return kc.dot_product_attention(
            q, k, v, is_causal=causal, dropout_rate=rate, dropout_key=drawn if rate else None
        )

    def gradients(q, k, v, g):
        with kc.GradientTape() as tape:
            y = forward(q, k, v)
        return (y, *tape.gradient(y, [q, k, v], g))

    def calls(attend, q, k, v, g=None):
        heads_first = [x.transpose(1, 2) for x in (q, k, v)]
        if g is None:
            return lambda: attend(*heads_first).transpose(1, 2)
        leaves = [x.detach().requires_grad_() for x in heads_first]

        def call():
            y = attend(*leaves)
            found = (y.detach(), *torch.autograd.grad(y, leaves, g.transpose(1, 2)))
            return tuple(x.transpose(1, 2) for x in found)

        return call

    def theirs(*tensors):
        attend = functools.partial(
            torch.nn.functional.scaled_dot_product_attention, is_causal=causal, dropout_p=rate
        )
        return calls(attend, *tensors)

    def exact(*tensors):
        ones = kc.ones((batch, heads, length, length))
        factors = torch.from_numpy(np.array(kc.random.dropout(drawn, ones, rate)))
        factors = factors.to(tensors[0].device)

        def attend(q, k, v):
            logits = q @ k.transpose(2, 3) / features**0.5
            if causal:
                future = torch.ones_like(logits, dtype=torch.bool).triu(1)
                logits = logits.masked_fill(future, -math.inf)
            return (torch.softmax(logits, -1) * factors) @ v

        return calls(attend, *tensors)

    flops = (6 if training else 2) * 2.0 * batch * heads * length**2 * features
    ours, args = (gradients, args) if training else (forward, args[:3])
    pair = Pair(ours, theirs, args, dtype, exact if rate else None)
    return pair, flops / 2 if causal else flops


def problems(args, rng, cpu: bool):
    """(name, maker) of everything asked for."""
    if args.only in (None, "products"):
        for m, k, n in (*PRODUCTS, *SMALL):
            if not cpu or 2.0 * m * k * n <= MOST_CPU_FLOPS:
                yield f"{m} x {k} x {n}", lambda t, s=(m, k, n): product(*s, t, rng)
    if args.only in (None, "convolutions"):
        batch = args.batch or (4 if cpu else 64)
        for layer in CONVOLUTIONS:
            for part in PARTS:
                if part == PARTS[1] and layer[2] == 3:
                    continue  # nobody asks for the gradient of a picture
                make = lambda t, a=layer, p=part: convolution(a, p, batch, t, rng)  # noqa: E731
                yield f"{layer[0]} {part}", make
    if args.only in (None, "attention"):
        for batch, length, *rest in ATTENTION:
            size = (args.batch or (1 if cpu else batch), length, *rest)
            name = "attention {}x{}x{}x{}".format(*size) + " causal" * size[-1]
            name += f" dropout {args.dropout:g}" if args.dropout else ""
            for training in (False, True):
                make = functools.partial(attention, size, training, args.dropout, rng=rng)
                yield name + " training" * training, make


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=("products", "convolutions", "attention"))
    parser.add_argument("--types", nargs="+", choices=TYPES, help="default: all that the GPU has")
    parser.add_argument("--match", default="", help="only problems whose name holds this")
    parser.add_argument("--batch", type=int, help="of convolutions (GPU 64, CPU 4) and attention")
    parser.add_argument("--dropout", type=float, default=0.0, help="rate of attention's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.05, help="seconds of a round")
    parser.add_argument("--json", metavar="FILE", help="also write all figures")
    args = parser.parse_args()
    cpu = devices.default().info.kind == "cpu"
    types = args.types or (["float32"] if cpu else list(TYPES))
    rng = np.random.default_rng()
    torch.backends.cudnn.benchmark = True
    console = Console(width=None if sys.stdout.isatty() else 120)
    title = f"{devices.default().info.name}: kerascl against PyTorch {torch.__version__}"
    table = Table(title=title)
    for name in ("problem", "type", "us", "theirs", "TFLOP/s", "theirs", "ratio", "error", ""):
        table.add_column(name, justify="left" if name == "problem" else "right", no_wrap=True)
    rows: list[dict] = []
    wanted = [p for p in problems(args, rng, cpu) if args.match in p[0]]
    with Progress(console=console, transient=True) as progress:
        for name, make in progress.track(wanted, description="problems"):
            for kind in types:
                dtype, precision = TYPES[kind]
                torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
                torch.backends.cudnn.allow_tf32 = kind == "tf32"
                with kc.precision_scope(precision):
                    pair, flops = make(dtype)
                    ours, theirs = pair.seconds(args.rounds, args.budget)
                row = dict(
                    problem=name, type=kind, seconds=ours, theirs=theirs, flops=flops,
                    error=pair.errors[0], their_error=pair.errors[1],
                )  # fmt: skip
                rows.append(row)
                rates = (flops / s / 1e12 for s in (ours, theirs))
                table.add_row(
                    name, kind, f"{ours * 1e6:.0f}", f"{theirs * 1e6:.0f}",
                    *(f"{rate:.2f}" for rate in rates), f"{theirs / ours:.2f}",
                    *("" if math.isnan(e) else f"{e:.1e}" for e in pair.errors),
                )  # fmt: skip
                if args.json:  # kept after each, in case the next one fails
                    Path(args.json).write_text(json.dumps(rows, indent=1))
    console.print(table)
    for kind in types:
        ratios = [r["theirs"] / r["seconds"] for r in rows if r["type"] == kind]
        if ratios:
            mean = np.exp(np.mean(np.log(ratios)))
            console.print(f"{kind}: geometric mean {mean:.2f}, worst {min(ratios):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
