"""The rates a device reaches at best, measured once and kept: what profiles compare with."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerascl.runtime.diskcache import DiskCache
from kerascl.runtime.profile import profile

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

# Independent chains of multiply-adds, enough to hide their latency.
_ARITHMETIC = """\
{pragma}
#define T {ctype}
__kernel void peak_arithmetic(__global T* out, const float x, const float y, const int n) {{
  const T a = (T)(({scalar})x), b = (T)(({scalar})y);
  T v[8];
  for (int k = 0; k < 8; ++k) v[k] = (T)(({scalar})(get_global_id(0) % 7 + k));
  for (int i = 0; i < n; ++i) {{
    {steps}
  }}
  T sum = v[0];
  for (int k = 1; k < 8; ++k) sum += v[k];
  out[get_global_id(0)] = sum;
}}
"""
_COPY = """\
__kernel void peak_copy(__global const float4* restrict a, __global float4* restrict b) {
  b[get_global_id(0)] = a[get_global_id(0)];
}
"""
_EMPTY = """\
__kernel void peak_launch(__global float* a) { if (get_global_id(0) == 1u << 30) a[0] = 1; }
"""
_TYPES = {
    "float32": ("float", ""),
    "float64": ("double", "cl_khr_fp64"),
    "float16": ("half", "cl_khr_fp16"),
}
_REPEATS = 5


@dataclass(frozen=True)
class Peaks:
    """Best rates measured on one device.

    Attributes:
        flops: floating point operations a second by dtype name (a multiply-add counts two) of
            the ordinary units; "<dtype> products" is the best matrix product seen, where matrix
            units make it faster.
        bandwidth: bytes a second that a large copy reads and writes together.
        launch: seconds from one small launch to the next.
        to_device, from_device: bytes a second of large copies from and to NumPy arrays.
    """

    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    launch: float = 0.0
    to_device: float = 0.0
    from_device: float = 0.0

    def share(self, flops: float, nbytes: float, seconds: float) -> float:
        """How near work comes to a bound: the larger of its shares of arithmetic and memory."""
        shares = [0.0]
        if self.bandwidth:
            shares.append(nbytes / seconds / self.bandwidth)
        if self.flops:
            shares.append(flops / seconds / max(self.flops.values()))
        return max(shares)


def load(device: Device) -> Peaks | None:
    """What was measured on this device before, or None."""
    cache = DiskCache.open("peaks", device.info.cache_key)
    return None if cache is None else cache.load(cache.key("peaks"), _parse)


def _parse(data: bytes) -> Peaks:
    """What `save` wrote; ValueError, TypeError and the like of anything else."""
    found = dict(json.loads(data))
    flops = {str(name): float(rate) for name, rate in dict(found.pop("flops")).items()}
    return Peaks(flops, **{name: float(rate) for name, rate in found.items()})


def save(device: Device, peaks: Peaks) -> None:
    """Keep what was measured, where caching is on."""
    cache = DiskCache.open("peaks", device.info.cache_key)
    if cache is not None:
        cache.put(cache.key("peaks"), json.dumps(dataclasses.asdict(peaks)).encode())


def measure(device: Device) -> Peaks:
    """Measure the ordinary units, memory, launches and host copies; takes some seconds."""
    flops = {name: rate for name in _TYPES if (rate := arithmetic(device, name))}
    to_device, from_device = host_copies(device)
    return Peaks(flops, bandwidth(device), launch_cost(device), to_device, from_device)


def _shortest(device: Device, run: Callable[[], None], name: str) -> float:
    """Seconds of the fastest of some runs of kernel `name`."""
    run()
    with profile(device, show=False) as recorded:
        for _ in range(_REPEATS):
            run()
    return min(s.end - s.start for s in recorded.spans if s.name == name) * 1e-9


def arithmetic(device: Device, dtype: str) -> float:
    """Multiply-adds as operations a second; 0 where the device lacks the dtype."""
    info = device.info
    scalar, extension = _TYPES[dtype]
    if (dtype == "float64" and not info.fp64) or (dtype == "float16" and not info.fp16):
        return 0.0
    width = 16 if info.kind == "cpu" else 2 if dtype == "float16" else 1
    ctype = scalar if width == 1 else f"{scalar}{width}"
    steps = " ".join(f"v[{k}] = fma(v[{k}], a, b);" for k in range(8)) * 4
    pragma = f"#pragma OPENCL EXTENSION {extension} : enable" if extension else ""
    source = _ARITHMETIC.format(pragma=pragma, ctype=ctype, scalar=scalar, steps=steps)
    kernel = device.programs.kernel(source, "peak_arithmetic")
    group = min(256, info.max_work_group_size)
    items = info.compute_units * group * (8 if info.kind == "cpu" else 64)
    number = np.dtype(dtype)
    out = device.buffers.allocate(items * number.itemsize * width)
    n = 64

    def run() -> None:
        args = (out, np.float32(0.999), np.float32(0.001), np.int32(n))
        device.queue.launch(kernel, (items,), (group,), args)

    seconds = _shortest(device, run, "peak_arithmetic")
    n = int(np.clip(n * 0.02 / max(seconds, 1e-7), 16, 1 << 20))
    return items * width * n * 8 * 4 * 2 / _shortest(device, run, "peak_arithmetic")


def bandwidth(device: Device) -> float:
    """Bytes read and written a second by a copy that fits no cache."""
    info = device.info
    nbytes = min(1 << 30, info.global_mem_bytes // 16, info.max_alloc_bytes) // 4096 * 4096
    a, b = device.buffers.allocate(nbytes), device.buffers.allocate(nbytes)
    device.queue.fill(a, np.float32(1.5))
    kernel = device.programs.kernel(_COPY, "peak_copy")

    def run() -> None:
        device.queue.launch(kernel, (nbytes // 16,), (256,), (a, b))

    return 2 * nbytes / _shortest(device, run, "peak_copy")


def launch_cost(device: Device) -> float:
    """Seconds a launch when many small ones follow each other."""
    kernel = device.programs.kernel(_EMPTY, "peak_launch")
    a = device.buffers.allocate(256)
    count = 500
    best = float("inf")
    for _ in range(_REPEATS):
        device.queue.finish()
        start = time.perf_counter()
        for _ in range(count):
            device.queue.launch(kernel, (32,), (32,), (a,))
        device.queue.finish()
        best = min(best, (time.perf_counter() - start) / count)
    return best


def host_copies(device: Device) -> tuple[float, float]:
    """Bytes a second to and from the device, large NumPy arrays, everything counted."""
    host = np.random.default_rng(0).integers(0, 255, 1 << 27, np.uint8)
    buffer = device.buffers.allocate(host.nbytes)
    rates = []
    for copy in (device.queue.write, device.queue.read):
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            copy(buffer, host)
            device.queue.finish()
            best = min(best, time.perf_counter() - start)
        rates.append(host.nbytes / best)
    return rates[0], rates[1]
