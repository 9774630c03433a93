"""What a device does in a microsecond: the rates that solvers' costs are counted with.

A solver counts its multiply-adds, bytes, launches and whatever else bounds it, and divides by these
rates and by an efficiency of its own (a roofline: S. Williams, A. Waterman and D. Patterson, 2009).
Rates are those that were measured: of a known card by whoever tuned for it (beside its tuning
records), else on the device itself (`runtime/peaks.py`), once.  A process that only plans, for
devices that need not be there, takes what drivers say and tables of what they do not say.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.tuning import shipped
from kerascl.runtime import device as devices
from kerascl.runtime import peaks
from kerascl.runtime.device import DeviceInfo
from kerascl.runtime.errors import CompileError, DeviceError

# What the driver does not say, by compute capability: float32 multiply-adds a clock of a compute
# unit's ordinary units, and those of float32 (as TF32), of 16-bit floats and of int8 of its matrix
# units; of 8.6 GeForce's, whose 16-bit floats other cards' are twice as fast as, but not int8.
# NVIDIA, "CUDA C++ Programming Guide" (arithmetic instructions) and the architectures' whitepapers;
# the first row at or below a capability holds.
_NVIDIA: tuple[tuple[tuple[int, int], int, int, int, int], ...] = (
    ((9, 0), 128, 1024, 2048, 4096),
    ((8, 6), 128, 128, 256, 1024),
    ((8, 0), 64, 512, 1024, 2048),
    ((6, 1), 128, 0, 0, 0),
    ((6, 0), 64, 0, 0, 0),
    ((0, 0), 128, 0, 0, 0),
)
_MATRIX = {"mma80": (8, 0), "wgmma90": (9, 0)}  # capabilities of units whose device says none
# Of what AMD's OpenCL calls a compute unit (two on RDNA), where matrix units do far more than
# ordinary ones, by the dtype of operands.  AMD, "How to accelerate AI applications on RDNA 3 using
# WMMA", the specifications of the Radeon RX 9070 XT, and the white papers of CDNA 2 and CDNA 3.
_AMD = {
    "wmma11": {"bfloat16": 512, "float16": 512, "int8": 512},
    "wmma12": {"bfloat16": 1024, "float16": 1024, "int8": 2048},
    "mfma90a": {"bfloat16": 512, "int8": 512},
    "mfma942": {"float32": 512, "bfloat16": 1024, "float16": 1024, "int8": 2048},
}
# The same of a vector engine of Intel's, which its OpenCL calls a compute unit; of 16 lanes, as
# Arc B's: Max has twice as many.  Intel, "oneAPI GPU Optimization Guide" (Xe architecture).
_XMX = {
    "xmx8": {"bfloat16": 64, "float16": 64, "int8": 128},
    "xmx16": {"bfloat16": 128, "float16": 128, "int8": 256},
}
# Of other GPUs: (part of the vendor's name, multiply-adds a clock, work-items and registers held).
_VENDORS = (("advanced micro", 64, 2048, 65536), ("intel", 8, 128, 8192))
_OTHERS = 64, 1024, 32768
_HELD = 2048, 65536  # work-items and registers that a compute unit of NVIDIA's holds
# Where neither was measured: bytes of memory for each multiply-add, bytes of local memory a clock
# of a compute unit, microseconds of a launch and of a read of memory; of GPUs and of CPUs.
_GUESSES = {"gpu": (0.06, 128, 6.5, 0.56), "cpu": (0.1, 32, 4.0, 0.08)}
_BEGIN = 15  # reads of memory, one after another, that all groups' first ones take as long as
_CLOCK = 1000  # MHz, where the driver does not know


@dataclass(frozen=True)
class Machine:
    """Rates of one device.

    Attributes:
        units: compute units.
        clock: cycles of one in a microsecond.
        resident: work-items that one holds at a time.
        registers: of 32 bits, that all these share.
        simt: multiply-adds that all ordinary units together do in a microsecond, by the name of the
            dtype they are done in.
        matrix: the same of matrix units, by the name of the operands' dtype; empty without.
        bandwidth: bytes of global memory read and written in a microsecond.
        local_bandwidth: bytes that all compute units together read from local memory in one.
        launch: microseconds that one more launch takes.
        latency: microseconds until a read of global memory is there.
    """

    units: int
    clock: float
    resident: int
    registers: int
    simt: tuple[tuple[str, float], ...]
    matrix: tuple[tuple[str, float], ...]
    bandwidth: float
    local_bandwidth: float
    launch: float
    latency: float

    @property
    def begin(self) -> float:
        """Microseconds until work-groups that a GPU starts at once have read what they begin with,
        or have stored what they end with: all wait for memory, of which caches hold nothing yet."""
        return _BEGIN * self.latency

    def rate(self, dtype: DType) -> float:
        """Multiply-adds in a microsecond by ordinary units; of integers as of floats."""
        known = dict(self.simt)
        return known.get(dtype.name, known["float32"])

    def matrix_rate(self, dtype: DType) -> float:
        """Multiply-adds of operands of this dtype in a microsecond by matrix units, or 0."""
        return dict(self.matrix).get(dtype.name, 0.0)

    def clocks(self, count: float) -> float:
        """Microseconds of so many cycles."""
        return count / self.clock

    def moving(self, nbytes: float, efficiency: float = 0.94) -> float:
        """Microseconds to read and write so many bytes of global memory in all."""
        return nbytes / (self.bandwidth * efficiency)

    def multiplying(self, count: float, dtype: DType, efficiency: float = 1.0) -> float:
        """Microseconds of so many multiply-adds by all ordinary units."""
        return count / (self.rate(dtype) * efficiency)

    def roofline(
        self, count: float, nbytes: float, dtype: DType, efficiency: float = 1.0,
        launches: int = 1,
    ) -> float:  # fmt: skip
        """Microseconds of work that multiply-adds or memory bound, with its launches."""
        work = max(self.multiplying(count, dtype, efficiency), self.moving(nbytes))
        return work + launches * self.launch

    def rounds(self, items: int) -> int:
        """How often all compute units are filled with work-items until all have run."""
        return ceil_div(items, self.units * self.resident)


@functools.lru_cache(maxsize=64)
def of_facts(info: DeviceInfo) -> Machine:
    """The rates as what the driver says suggests; nothing is measured."""
    kind = "cpu" if info.kind == "cpu" else "gpu"
    per_product, local, launch, latency = _GUESSES[kind]
    clock = float(info.clock_mhz or _CLOCK)
    capability = info.nvidia_capability or _MATRIX.get(info.matrix)
    matrix: tuple[tuple[str, float], ...] = ()
    if info.kind == "cpu":
        lanes, resident, registers = 2 * info.simd_width, 1, 0
    elif capability is not None:
        _, lanes, *rates = next(row for row in _NVIDIA if row[0] <= capability)
        resident, registers = _HELD
        if info.matrix:
            scale = info.compute_units * clock
            matrix = tuple((n, r * scale) for n, r in _by_name(*rates).items())
    else:
        vendor = info.vendor.lower()
        rows = (row[1:] for row in _VENDORS if row[0] in vendor)
        lanes, resident, registers = next(rows, _OTHERS)
        scale = info.compute_units * clock
        matrix = tuple((n, r * scale) for n, r in (_AMD | _XMX).get(info.matrix, {}).items())
    simt = info.compute_units * clock * lanes
    return Machine(
        info.compute_units, clock, resident, registers, (("float32", simt),), matrix,
        simt * per_product, local * info.compute_units * clock, launch, latency,
    )  # fmt: skip


def expected(info: DeviceInfo) -> float:
    """Float32 operations a second that ordinary units should reach by what the driver says."""
    return 2e6 * dict(of_facts(info).simt)["float32"]


def _by_name(tf32: float, half: float, int8: float) -> dict[str, float]:
    return {"float32": tf32, "bfloat16": half, "float16": half, "int8": int8}


def of_peaks(info: DeviceInfo, found: peaks.Peaks) -> Machine:
    """The rates that were measured on a device, and of `of_facts` what was not."""
    facts = of_facts(info)
    simt = {n: r * 0.5e-6 for n, r in found.flops.items() if "products" not in n and r > 0}
    return dataclasses.replace(
        facts,
        simt=tuple((dict(facts.simt) | simt).items()),
        bandwidth=found.bandwidth * 1e-6 or facts.bandwidth,
        local_bandwidth=found.local_bandwidth * 1e-6 or facts.local_bandwidth,
        launch=found.launch * 1e6 or facts.launch,
        latency=found.latency * 1e6 or facts.latency,
    )


def of_card(info: DeviceInfo, rates: Mapping[str, float]) -> Machine:
    """The rates that are shipped for a card, and of `of_facts` what is not.

    Args:
        rates: "clock" in MHz, "float32" in multiply-adds a microsecond, and "bandwidth",
            "local_bandwidth", "launch" and "latency" as attributes of a Machine.
    """
    facts = of_facts(dataclasses.replace(info, clock_mhz=int(rates.get("clock", info.clock_mhz))))
    simt = (("float32", rates["float32"]),) if "float32" in rates else facts.simt
    return dataclasses.replace(
        facts,
        simt=simt,
        bandwidth=rates.get("bandwidth", facts.bandwidth),
        local_bandwidth=rates.get("local_bandwidth", facts.local_bandwidth),
        launch=rates.get("launch", facts.launch),
        latency=rates.get("latency", facts.latency),
    )


def _shipped(info: DeviceInfo) -> Machine | None:
    rates = shipped.rates(info)
    return of_card(info, rates) if rates else None


def _measured(info: DeviceInfo) -> Machine | None:
    """That of a device in use."""
    device = devices.open_device(info)
    if device is None:
        return None
    try:
        found = peaks.known(device, expected(info))
        return of_facts(info) if found is None else of_peaks(info, found)
    except (CompileError, DeviceError, MemoryError):
        return of_facts(info)


# By the identity of their facts, which costs ask for many times.
_known: dict[int, tuple[DeviceInfo, Machine]] = {}
_MOST_KNOWN = 64


def of(info: DeviceInfo) -> Machine:
    """The machine that a device is: what is shipped for the card, else what was measured on the
    device, now if it never was and the device is in use, else what its driver says."""
    known = _known.get(id(info))
    if known is not None and known[0] is info:
        return known[1]
    found = _shipped(info) or _measured(info)
    if found is None:
        return of_facts(info)
    if len(_known) >= _MOST_KNOWN:
        _known.clear()
    _known[id(info)] = info, found
    return found
