"""The rates a device reaches at best, measured once and kept: what profiles compare with, and what
solvers' costs are counted with (`kernels/tuning/machine.py`)."""

from __future__ import annotations

import dataclasses
import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kerascl import config
from kerascl.runtime.diskcache import DiskCache

if TYPE_CHECKING:
    from kerascl.runtime.device import Device
    from kerascl.runtime.programs import Kernel

# Independent chains of multiply-adds, enough to hide their latency.
_ARITHMETIC = """\
{pragma}
#undef T
#define T {ctype}
__kernel void {name}(__global T* out, const float x, const float y, const int n) {{
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
# Each work-item reads vectors of local memory that its neighbours do not read at the time.
_LOCAL = """\
__kernel void peak_local(__global float4* out, const int n) {
  __local float4 tile[512];
  const int me = get_local_id(0);
  for (int i = me; i < 512; i += get_local_size(0)) tile[i] = (float4)(i);
  barrier(CLK_LOCAL_MEM_FENCE);
  float4 a = 0, b = 0, c = 0, d = 0;
  for (int i = 0; i < n; ++i) {
    const int at = me + 64 * i;
    a += tile[at & 511];
    b += tile[(at + 128) & 511];
    c += tile[(at + 256) & 511];
    d += tile[(at + 384) & 511];
  }
  out[get_global_id(0)] = a + b + c + d;
}
"""
# A chain of reads, each of which says where the next is: numbers of a full cycle (Knuth, The Art of
# Computer Programming, volume 2, 3.2.1.2), which no cache foresees.
_CHAIN = """\
__kernel void peak_links(__global uint* next, const uint mask) {
  const uint i = get_global_id(0);
  next[i * 16] = (i * 1664525u + 1013904223u) & mask;
}
__kernel void peak_chain(__global const uint* next, __global uint* out, const int n) {
  uint at = 0;
  for (int i = 0; i < n; ++i) at = next[at * 16];
  out[0] = at;
}
"""
_TYPES = {
    "float32": ("float", ""),
    "float64": ("double", "cl_khr_fp64"),
    "float16": ("half", "cl_khr_fp16"),
}
_REPEATS = 10
_SETTLED = 0.1  # seconds without a better rate
# The share of what its driver's facts suggest that a GPU which is awake reaches, and the seconds
# that are waited for that.
_AWAKE, _LONGEST = 0.6, 2.0
# Seconds without a better one for each rate of a GPU: other processes of ours, which check its
# driver, use it, too.
_QUIET = 0.04
_LOCAL_ITEMS = 128
_SHORTEST = 0.5  # of the seconds that a run is meant to take
_PROPORTIONAL = 0.7  # of a round's seconds in a run of fewer
# Those that were kept before might be of a device that slept, or that children measured, too.
KEY = "peaks of a device that is awake, by one process"


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
        local_bandwidth: bytes a second that all compute units together read from local memory.
        latency: seconds until a read of global memory that no cache holds is there.

    A rate that was not measured is 0.
    """

    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    launch: float = 0.0
    to_device: float = 0.0
    from_device: float = 0.0
    local_bandwidth: float = 0.0
    latency: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether it is of `measure`, not of `measure_rates`."""
        return self.to_device > 0

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
    return None if cache is None else cache.load(cache.key(KEY), _parse)


def _parse(data: bytes) -> Peaks:
    """What `save` wrote; ValueError, TypeError and the like of anything else."""
    found = dict(json.loads(data))
    flops = {str(name): float(rate) for name, rate in dict(found.pop("flops")).items()}
    return Peaks(flops, **{name: float(rate) for name, rate in found.items()})


def save(device: Device, peaks: Peaks) -> None:
    """Keep what was measured, where caching is on."""
    cache = DiskCache.open("peaks", device.info.cache_key)
    if cache is not None:
        cache.put(cache.key(KEY), json.dumps(dataclasses.asdict(peaks)).encode())


def measure(device: Device, expected: float = 0.0) -> Peaks:
    """Measure everything; takes some seconds.

    Args:
        expected: see `wake`.
    """
    wake(device, expected)
    flops = {name: rate for name in _TYPES if (rate := arithmetic(device, name))}
    to_device, from_device = host_copies(device)
    return Peaks(
        flops, bandwidth(device), launch_cost(device), to_device, from_device,
        local_bandwidth(device), latency(device),
    )  # fmt: skip


def measure_rates(device: Device, expected: float = 0.0) -> Peaks:
    """Measure what solvers' costs need (float32 of the ordinary units, memory, launches), in some
    tenths of a second.

    Args:
        expected: see `wake`.
    """
    best = wake(device, expected)
    return Peaks(
        {"float32": max(best, arithmetic(device, "float32", 0.001))},
        bandwidth(device, 1 << 26 if device.info.kind == "cpu" else 1 << 28),
        launch_cost(device, 100),
        local_bandwidth=local_bandwidth(device),
        latency=latency(device),
    )


def known(device: Device, expected: float = 0.0) -> Peaks | None:
    """What was measured on this device before, else `measure_rates`, which is kept; None in a child
    that tests the driver, where others use the device at the same time."""
    with device.lock:
        found = load(device)
        if found is not None and found.local_bandwidth and found.latency:
            return found
        if not config.measures():
            return None
        queue = device.queue
        recorder, queue.recorder = queue.recorder, None  # no profile is of this
        try:
            found = measure_rates(device, expected)
        finally:
            queue.recorder = recorder
        device.buffers.trim()  # buffers of that size are not asked for again
        save(device, found)
        return found


def wake(device: Device, expected: float = 0.0) -> float:
    """Keep a GPU busy until its clock rises no more: one that idles runs at a fraction of it (an
    H100 at 345 of 1980 MHz, sometimes for some tenths of a second), and every rate would be that of
    a poorer card.

    Args:
        expected: float32 operations a second that its driver's facts suggest, 0 if they do not.

    Returns:
        The best rate of such operations, 0 of other devices than GPUs.
    """
    if device.info.kind != "gpu":
        return 0.0
    best = 0.0
    begun = risen = now = time.perf_counter()
    while now - risen < _SETTLED or (best < _AWAKE * expected and now - begun < _LONGEST):
        rate = arithmetic(device, "float32", 0.001)
        now = time.perf_counter()
        if rate > best * 1.02:
            best, risen = rate, now
    return best


def _fastest(device: Device, run: Callable[[], None], quiet: float = 0.0) -> float:
    """Seconds of the fastest of some runs, launch and wait counted; on a GPU until none was faster
    for so many seconds."""
    run()
    best, runs = float("inf"), 0
    found = now = time.perf_counter()
    while runs < _REPEATS or (now - found < quiet and device.info.kind == "gpu"):
        device.queue.finish()
        start = time.perf_counter()
        run()
        device.queue.finish()
        now, runs = time.perf_counter(), runs + 1
        if now - start < 0.98 * best:
            found = now
        best = min(best, now - start)
    return best


def _of_rounds(
    device: Device, run: Callable[[int], None], seconds: float, most: int, quiet: float = 0.0
) -> tuple[int, float]:
    """So many rounds of a loop in a kernel that a run takes about so many seconds, and the seconds
    of the fastest such run.

    In shorter runs the launch counts.  And where runs of fewer rounds take as long, others who use
    the device take the time.
    """
    n, before, fewer = 4, 0.0, 0
    while True:
        taken = _fastest(device, functools.partial(run, n), quiet)
        by_rounds = fewer and taken / n >= _PROPORTIONAL * before / fewer
        if n == most or (by_rounds and taken >= _SHORTEST * seconds):
            return n, taken
        before, fewer = taken, n
        n = int(np.clip(n * seconds / max(taken, 1e-7), 2 * n, most))


def _widths(device: Device, dtype: str) -> tuple[int, ...]:
    """Numbers of the vectors that may suit the device.  Some CPU drivers make vectors of
    neighbouring work-items, others take those that they are given."""
    if device.info.kind == "cpu":
        lanes = device.info.simd_width * 4 // np.dtype(dtype).itemsize
        return 1, min(max(lanes, 2), 16)  # OpenCL C has no larger vectors
    return (2 if dtype == "float16" else 1,)


def _arithmetic_source(dtype: str, width: int) -> str:
    scalar, extension = _TYPES[dtype]
    ctype = scalar if width == 1 else f"{scalar}{width}"
    steps = " ".join(f"v[{k}] = fma(v[{k}], a, b);" for k in range(8)) * 4
    pragma = f"#pragma OPENCL EXTENSION {extension} : enable" if extension else ""
    return _ARITHMETIC.format(
        pragma=pragma, ctype=ctype, scalar=scalar, steps=steps, name=_name(dtype, width)
    )


def _name(dtype: str, width: int) -> str:
    return f"peak_{dtype}_{width}"


def _kernel(device: Device, name: str) -> Kernel:
    """One of those that need no dtype but float32: all of them are one program."""
    arithmetic = "".join(_arithmetic_source("float32", n) for n in _widths(device, "float32"))
    return device.programs.kernel(arithmetic + _COPY + _EMPTY + _LOCAL + _CHAIN, name)


def arithmetic(device: Device, dtype: str, seconds: float = 0.02) -> float:
    """Multiply-adds as operations a second, in runs of about so many seconds; 0 where the device
    lacks the dtype."""
    info = device.info
    if (dtype == "float64" and not info.fp64) or (dtype == "float16" and not info.fp16):
        return 0.0
    return max(_arithmetic(device, dtype, n, seconds) for n in _widths(device, dtype))


def _arithmetic(device: Device, dtype: str, width: int, seconds: float) -> float:
    info, name = device.info, _name(dtype, width)
    if dtype == "float32":
        kernel = _kernel(device, name)
    else:
        kernel = device.programs.kernel(_arithmetic_source(dtype, width), name)
    group = min(256, info.max_work_group_size)
    items = info.compute_units * group * (8 if info.kind == "cpu" else 64)
    out = device.buffers.allocate(items * np.dtype(dtype).itemsize * width)

    def run(n: int) -> None:
        args = (out, np.float32(0.999), np.float32(0.001), np.int32(n))
        device.queue.launch(kernel, (items,), (group,), args)

    n, taken = _of_rounds(device, run, seconds, 1 << 20)
    return items * width * n * 8 * 4 * 2 / taken


def bandwidth(device: Device, most: int = 1 << 30) -> float:
    """Bytes read and written a second by a copy of at most so many bytes, too many for a cache."""
    info = device.info
    nbytes = min(most, info.global_mem_bytes // 16, info.max_alloc_bytes) // 4096 * 4096
    a, b = device.buffers.allocate(nbytes), device.buffers.allocate(nbytes)
    device.queue.fill(a, np.float32(1.5))
    kernel = _kernel(device, "peak_copy")

    def run() -> None:
        device.queue.launch(kernel, (nbytes // 16,), (256,), (a, b))

    return 2 * nbytes / _fastest(device, run, _QUIET)


def local_bandwidth(device: Device) -> float:
    """Bytes a second that work-groups read from local memory, on all compute units."""
    info = device.info
    group = min(_LOCAL_ITEMS, info.max_work_group_size)
    items = group * info.compute_units * 16
    out = device.buffers.allocate(16 * items)
    kernel = _kernel(device, "peak_local")

    def run(n: int) -> None:
        device.queue.launch(kernel, (items,), (group,), (out, np.int32(n)))

    n, taken = _of_rounds(device, run, 0.001, 1 << 16, _QUIET)
    return 4 * 16 * items * n / taken


def latency(device: Device) -> float:
    """Seconds until one read of global memory that no cache holds is there."""
    count = 1 << 20
    while count * 64 > min(device.info.max_alloc_bytes, device.info.global_mem_bytes // 16):
        count //= 2
    links, out = device.buffers.allocate(count * 64), device.buffers.allocate(64)
    fill = _kernel(device, "peak_links")
    device.queue.launch(fill, (count,), None, (links, np.uint32(count - 1)))
    kernel = _kernel(device, "peak_chain")
    steps = 4096

    def run() -> None:
        device.queue.launch(kernel, (1,), (1,), (links, out, np.int32(steps)))

    return _fastest(device, run, _QUIET) / steps


def launch_cost(device: Device, count: int = 500) -> float:
    """Seconds a launch when many small ones follow each other."""
    kernel = _kernel(device, "peak_launch")
    a = device.buffers.allocate(256)

    def run() -> None:
        for _ in range(count):
            device.queue.launch(kernel, (32,), (32,), (a,))

    return _fastest(device, run, _QUIET) / count


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
