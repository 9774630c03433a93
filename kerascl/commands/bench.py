"""Measure a device: peak rates, launches, host copies; products and convolutions against those."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import kerascl as kc
from kerascl.dtypes import BY_NAME, DTypeName, as_dtype
from kerascl.kernels.tuning import machine
from kerascl.runtime import device as devices
from kerascl.runtime import peaks as rates
from kerascl.runtime.device import Device
from kerascl.runtime.peaks import Peaks
from kerascl.runtime.profile import profile
from kerascl.runtime.tables import table as new_table

# (m, k, n): squares, the products inside convolutions, sizes that divide by nothing.
PRODUCTS = (
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096),
    (8192, 8192, 8192), (200704, 576, 64), (50176, 1152, 128), (1000, 333, 129),
)  # fmt: skip
# name, image side, channels, kernel, stride, filters: layers of the networks people train.
CONVOLUTIONS = (
    ("resnet 7x7 /2", 224, 3, 7, 2, 64),
    ("resnet 56 3x3", 56, 64, 3, 1, 64),
    ("resnet 56 1x1", 56, 64, 1, 1, 256),
    ("resnet 28 3x3", 28, 128, 3, 1, 128),
    ("resnet 28 1x1 /2", 56, 256, 1, 2, 512),
    ("resnet 14 3x3", 14, 256, 3, 1, 256),
    ("resnet 7 3x3", 7, 512, 3, 1, 512),
    ("vgg 224 3x3", 224, 64, 3, 1, 64),
    ("vgg 112 3x3", 112, 128, 3, 1, 128),
    ("alexnet 27 5x5", 27, 64, 5, 1, 192),
)
# Work above these would take a small device minutes.
_CPU_FLOPS, _GPU_FLOPS = 2e10, 2e13
_ROWS = 16  # rows of a result compared with float64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--batch", type=int, help="images of the convolutions (GPU 64, CPU 4)")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--only", choices=("peaks", "products", "convolutions"))
    parser.add_argument("--json", metavar="FILE", help="also write all figures")


def known_peaks(device: Device, console: Console) -> Peaks:
    """The device's peaks, measured now if they never were."""
    peaks = rates.load(device)
    if peaks is None or not peaks.whole:
        with console.status("measuring the device's best rates"):
            peaks = rates.measure(device, machine.expected(device.info))
        rates.save(device, peaks)
    return peaks


def run(options: argparse.Namespace, console: Console) -> int:
    """The command; returns the exit status."""
    unknown = [name for name in options.dtypes if name not in BY_NAME]
    if unknown:
        console.print(f"bench: unknown dtype {unknown[0]!r}", style="red", markup=False)
        return 2
    device = devices.default()
    with console.status("measuring the device's best rates"):
        peaks = rates.measure(device, machine.expected(device.info))
    rates.save(device, peaks)
    _print_peaks(device, peaks, console)
    report: dict[str, Any] = {"device": device.info.name, "driver": device.info.driver_version}
    report["peaks"] = dataclasses.asdict(peaks)
    if options.only in (None, "products"):
        report["products"] = _products(device, peaks, options, console)
        _learn(peaks, report["products"])
        rates.save(device, peaks)
        report["peaks"] = dataclasses.asdict(peaks)
    if options.only in (None, "convolutions"):
        report["convolutions"] = _convolutions(device, peaks, options, console)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1))
    return 0


def _print_peaks(device: Device, peaks: Peaks, console: Console) -> None:
    table = new_table(f"{device.info.name}, best rates", ("",), ("",))
    table.show_header = False
    for name, rate in peaks.flops.items():
        table.add_row(f"{name} multiply-adds", f"{rate / 1e12:.2f} TFLOP/s")
    table.add_row("memory, read and written", f"{peaks.bandwidth / 1e9:.0f} GB/s")
    table.add_row("one small launch after another", f"{peaks.launch * 1e6:.1f} us")
    table.add_row("NumPy array to device", f"{peaks.to_device / 1e9:.1f} GB/s")
    table.add_row("device to NumPy array", f"{peaks.from_device / 1e9:.1f} GB/s")
    console.print(table)


def _learn(peaks: Peaks, rows: list) -> None:
    """Matrix units show in the products only."""
    for row in rows:
        rate = row["flops"] / row["seconds"]
        if rate > max(peaks.flops.get(row["dtype"], 0.0), peaks.flops.get("float32", 0.0)):
            name = f"{row['dtype']} products"
            peaks.flops[name] = max(peaks.flops.get(name, 0.0), rate)


def device_seconds(device: Device, call: Callable, repeats: int) -> float:
    """Median seconds of device time of one call, over all its kernels."""
    call()
    device.queue.finish()
    times = []
    for _ in range(repeats):
        with profile(device, show=False) as recorded:
            call()
        kernels = (s for s in recorded.spans if not s.beside and s.name not in ("read", "write"))
        times.append(sum(s.end - s.start for s in kernels))
    return float(np.median(times)) * 1e-9


def _random(rng, shape, dtype: str):
    return kc.cast(kc.array(rng.standard_normal(shape, np.float32)), as_dtype(dtype))


def _error(found, wanted: np.ndarray) -> float:
    found = np.asarray(found, np.float64)
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def _table(title: str) -> Table:
    return new_table(title, ("problem", "dtype"), ("us", "TFLOP/s", "GB/s", "of peak", "error"))


def _add(table, rows, peaks, name: str, dtype: str, seconds, flops, nbytes, error) -> None:
    share = peaks.share(flops, nbytes, seconds)
    table.add_row(
        name,
        dtype,
        f"{seconds * 1e6:.1f}",
        f"{flops / seconds / 1e12:.2f}",
        f"{nbytes / seconds / 1e9:.0f}",
        f"{100 * share:.0f} %",
        f"{error:.1e}",
    )
    rows.append(
        dict(problem=name, dtype=dtype, seconds=seconds, flops=flops, nbytes=nbytes, error=error)
    )


def _products(device: Device, peaks: Peaks, options, console: Console) -> list:
    limit = _CPU_FLOPS if device.info.kind == "cpu" else _GPU_FLOPS
    sizes = [s for s in PRODUCTS if 2 * np.prod(s, dtype=float) <= limit]
    table = _table("Matrix products (m x k x n), share of the better bound")
    rows: list = []
    rng = np.random.default_rng()
    product = kc.jit(kc.matmul)
    with Progress(console=console, transient=True) as progress:
        for m, k, n in progress.track(sizes, description="products"):
            for dtype in options.dtypes:
                a, b = _random(rng, (m, k), dtype), _random(rng, (k, n), dtype)
                seconds = device_seconds(device, lambda a=a, b=b: product(a, b), options.repeats)
                picked = rng.integers(0, m, _ROWS)
                wanted = _wide(a)[picked] @ _wide(b)
                error = _error(_wide(product(a, b))[picked], wanted)
                nbytes = (m * k + k * n + m * n) * BY_NAME[dtype].itemsize
                name = f"{m} x {k} x {n}"
                _add(table, rows, peaks, name, dtype, seconds, 2.0 * m * k * n, nbytes, error)
    console.print(table)
    return rows


def _wide(x) -> np.ndarray:
    exact = x.dtype.name in ("float32", "float64")
    return np.asarray(x if exact else kc.cast(x, "float32")).astype(np.float64)


def _convolutions(device: Device, peaks: Peaks, options, console: Console) -> list:
    batch = options.batch or (4 if device.info.kind == "cpu" else 64)
    table = _table(f"Convolutions, {batch} images")
    exact: DTypeName = "float64" if device.info.fp64 else "float32"
    rows: list = []
    rng = np.random.default_rng()
    with Progress(console=console, transient=True) as progress:
        for name, side, channels, kernel, stride, filters in progress.track(
            CONVOLUTIONS, description="convolutions"
        ):
            for dtype in options.dtypes:
                x = _random(rng, (batch, side, side, channels), dtype)
                w = _random(rng, (kernel, kernel, channels, filters), dtype)

                def forward(x, w, stride=stride):
                    return kc.conv(x, w, strides=stride, padding="same")

                def gradient(x, w, dy, which, forward=forward):
                    with kc.GradientTape() as tape:
                        y = forward(x, w)
                    return tape.gradient(y, x if which == "data" else w, dy)

                y = forward(x, w)
                dy = _random(rng, y.shape, dtype)
                flops = 2.0 * kernel * kernel * channels * np.prod(y.shape, dtype=float)
                nbytes = x.nbytes + w.nbytes + y.nbytes
                jobs: dict[str, tuple[Callable[..., Any], tuple]] = {
                    "forward": (kc.jit(forward), (x, w)),
                    "data gradient": (kc.jit(gradient), (x, w, dy, "data")),
                    "filter gradient": (kc.jit(gradient), (x, w, dy, "filter")),
                }
                for part, (function, args) in jobs.items():
                    seconds = device_seconds(
                        device, lambda f=function, a=args: f(*a), options.repeats
                    )
                    with kc.precision_scope("highest"):
                        wide = [kc.cast(v, exact) if hasattr(v, "dtype") else v for v in args]
                        reference = forward(*wide) if part == "forward" else gradient(*wide)
                        error = _error(_wide(function(*args)), _wide(reference))
                    _add(table, rows, peaks, f"{name} {part}", dtype, seconds, flops, nbytes, error)
    table.caption = f"error: against {exact}"
    console.print(table)
    return rows
