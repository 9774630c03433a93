"""Devices: what there is, which one to use, and everything that hangs on one.

Importing this module opens nothing; a context is made when a Device's `context`,
`queue` or anything built on them is first used.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import threading
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

from kerascl import config
from kerascl.runtime import addresses, compilers, icd, quirks
from kerascl.runtime.addresses import Addresses
from kerascl.runtime.buffers import Allocator
from kerascl.runtime.errors import DeviceError
from kerascl.runtime.launch import LocalMemory, Queue
from kerascl.runtime.opencl import EXIT, IMPORTED_BEFORE, SETUP, cl, sub_group_sizes
from kerascl.runtime.programs import Programs

__all__ = [
    "Device",
    "DeviceError",
    "DeviceInfo",
    "Found",
    "LocalMemory",
    "choose",
    "default",
    "find_devices",
    "get",
    "set_default",
]

# CL_DEVICE_ATOMIC_ORDER_ACQ_REL and CL_DEVICE_ATOMIC_SCOPE_DEVICE
_DEVICE_ATOMICS = 1 << 1 | 1 << 5

# Quirks of what is only used when asked for by name.
BY_NAME = frozenset({"simulator", "software_rasterizer"})
CUTS_LOOPS = (
    "{}: its compiler ends the loops of a work-item after 65,535 rounds, without an error, so that "
    "what is computed of very large arrays can be wrong; it is for tests only"
)
HINT = 'pip install "kerascl[cpu]" installs a driver that runs on any x86-64 processor'


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about a device, after quirks.

    Attributes:
        kind: "gpu", "cpu" or "accelerator".
        opencl_version, c_version: (major, minor) of the device and of its OpenCL C.
        clock_mhz: highest clock frequency, 0 where unknown.
        mem_align_bytes: what the offset of a view must be a multiple of.
        max_parameter_bytes: room for a kernel's arguments.
        subgroups, int64_atomics, float_atomics: usable in kernels.
        device_atomics: OpenCL C 3.0 atomics with acquire and release at the scope of the device.
        unified_memory: host and device share memory.
        staged_copies: host copies go through pinned staging.
        nvidia_capability: (major, minor) compute capability, or None.
        matrix: matrix units that kernels may use: "" none; through inline PTX "mma80" mma.sync of
            compute capability 8.0 and more, "wgmma90" that and wgmma with bulk tensor copies
            (capability 9.0); through the compiler's builtins "wmma11" and "wmma12" WMMA of
            AMD's gfx11 and gfx12, "mfma90a" and "mfma942" MFMA of gfx90a and gfx942, "xmx8" and
            "xmx16" XMX of Intel's GPUs by sub-groups of so many.
        exact_division: float32 division and square roots can be rounded correctly.
        preferred_vector_float: floats in a vector that suits the device.
        registers: of 32 bits that a work-item should keep to, so that none are spilled and
            work-groups hide each other's waits; 0 where compilers are left to it.
        sub_group_sizes: what kernels may ask for, smallest first; empty where they cannot.
        simd_width: work-items or lanes that run in lockstep (a hint).
        cache_key: changes with platform, device and driver version.
        quirks: names of the rows of `quirks.TABLE` that apply.
        compiler_options: what the driver's compiler must find in its environment; see compilers.py.
        most_reductions: reductions of one kernel of which some read others' results; 0 for any
            number.
    """

    name: str
    vendor: str
    platform: str
    driver_version: str
    kind: str
    opencl_version: tuple[int, int]
    c_version: tuple[int, int]
    compute_units: int
    clock_mhz: int
    max_work_group_size: int
    max_work_item_sizes: tuple[int, ...]
    local_mem_bytes: int
    global_mem_bytes: int
    max_alloc_bytes: int
    mem_align_bytes: int
    max_parameter_bytes: int
    fp64: bool
    fp16: bool
    subgroups: bool
    int64_atomics: bool
    float_atomics: bool
    device_atomics: bool
    unified_memory: bool
    staged_copies: bool
    nvidia_capability: tuple[int, int] | None
    matrix: str
    exact_division: bool
    preferred_vector_float: int
    simd_width: int
    extensions: frozenset[str]
    cache_key: str
    quirks: frozenset[str] = frozenset()
    compiler_options: str = ""
    registers: int = 0
    sub_group_sizes: tuple[int, ...] = ()
    most_reductions: int = 0


@dataclass(frozen=True)
class Found:
    """One thing looked at: a device (`info`, `device`), or what was wrong with it (`problem`)."""

    where: str
    info: DeviceInfo | None = None
    device: Device | None = None
    problem: str = ""


def _version(text: str) -> tuple[int, int]:
    for word in text.split():
        parts = word.split(".")
        if len(parts) >= 2 and parts[0].isdigit() and parts[1].isdigit():
            return int(parts[0]), int(parts[1])
    return 1, 0


def _matrix(capability: tuple[int, int] | None) -> str:
    """`DeviceInfo.matrix` for an NVIDIA compute capability."""
    if capability is None or capability < (8, 0):
        return ""
    return "wgmma90" if capability == (9, 0) else "mma80"


# Beginnings of the names of AMD's GPUs, the lanes of their wavefronts and their matrix units.
_AMD_MATRIX = (
    ("gfx11", 32, "wmma11"), ("gfx120", 32, "wmma12"), ("gfx90a", 64, "mfma90a"),
    ("gfx942", 64, "mfma942"),
)  # fmt: skip


def _amd_matrix(name: str, extensions: frozenset[str], width: int) -> str:
    """`DeviceInfo.matrix` for a GPU of AMD's that calls itself `name`."""
    rows = _AMD_MATRIX if "cl_amd_device_attribute_query" in extensions else ()
    return next((row[2] for row in rows if name.startswith(row[0]) and width == row[1]), "")


def _intel_matrix(extensions: frozenset[str], sizes: tuple[int, ...]) -> str:
    """`DeviceInfo.matrix` for a GPU of Intel's whose kernels may ask for these sub-groups."""
    known = "cl_intel_subgroup_matrix_multiply_accumulate" in extensions
    return f"xmx{sizes[0]}" if known and sizes[:1] in ((8,), (16,)) else ""


# CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT
_EXACT_DIVISION = 1 << 7


def _kind(handle: cl.Device) -> str:
    """ "gpu", "cpu" or "accelerator"."""
    types = cl.device_type
    if handle.type & types.GPU:
        return "gpu"
    return "cpu" if handle.type & types.CPU else "accelerator"


def _query(handle: cl.Device) -> DeviceInfo:
    """Ask a pyopencl.Device everything; optional facts get defaults."""

    def ask(name: str, default: Any) -> Any:
        try:
            value = handle.get_info(getattr(cl.device_info, name))
        except (cl.Error, AttributeError):
            return default
        return value.strip("\0 ") if isinstance(value, str) else value

    kind = _kind(handle)
    platform = handle.platform
    extensions = frozenset(ask("EXTENSIONS", "").split())
    name = " ".join(ask("NAME", "unnamed device").split())
    driver = ask("DRIVER_VERSION", "")
    version = ask("VERSION", "")
    capability = None
    if "cl_nv_device_attribute_query" in extensions:
        major = ask("COMPUTE_CAPABILITY_MAJOR_NV", 0)
        capability = (major, ask("COMPUTE_CAPABILITY_MINOR_NV", 0)) if major else None
    native = ask("NATIVE_VECTOR_WIDTH_FLOAT", 1) or 1
    width = ask("WARP_SIZE_NV", 0) or ask("WAVEFRONT_WIDTH_AMD", 0)
    if not width:
        width = native if kind == "cpu" else 16
    unified = kind == "cpu" or bool(ask("HOST_UNIFIED_MEMORY", False))
    subgroups = "cl_khr_subgroups" in extensions or (ask("MAX_NUM_SUB_GROUPS", 0) or 0) > 0
    key = "\0".join((platform.name, platform.version, name, driver, version))
    c_version = _version(ask("OPENCL_C_VERSION", "OpenCL C 1.0"))
    atomics = ask("ATOMIC_MEMORY_CAPABILITIES", 0)
    sizes = _sub_group_sizes(handle, extensions)
    amd = _amd_matrix(name, extensions, width)
    info = DeviceInfo(
        name=name,
        vendor=ask("VENDOR", ""),
        platform=platform.name.strip("\0 "),
        driver_version=driver,
        kind=kind,
        opencl_version=_version(version),
        c_version=c_version,
        compute_units=ask("MAX_COMPUTE_UNITS", 1),
        clock_mhz=ask("MAX_CLOCK_FREQUENCY", 0),
        max_work_group_size=ask("MAX_WORK_GROUP_SIZE", 1),
        max_work_item_sizes=tuple(ask("MAX_WORK_ITEM_SIZES", (1, 1, 1))),
        local_mem_bytes=ask("LOCAL_MEM_SIZE", 0),
        global_mem_bytes=ask("GLOBAL_MEM_SIZE", 0),
        max_alloc_bytes=ask("MAX_MEM_ALLOC_SIZE", 0),
        mem_align_bytes=max(ask("MEM_BASE_ADDR_ALIGN", 1024) // 8, 1),
        max_parameter_bytes=ask("MAX_PARAMETER_SIZE", 256),
        fp64=bool(ask("DOUBLE_FP_CONFIG", 0)),
        fp16="cl_khr_fp16" in extensions,
        subgroups=subgroups,
        int64_atomics="cl_khr_int64_base_atomics" in extensions,
        float_atomics="cl_ext_float_atomics" in extensions,
        device_atomics=c_version >= (3, 0) and atomics & _DEVICE_ATOMICS == _DEVICE_ATOMICS,
        unified_memory=unified,
        staged_copies=not unified,
        nvidia_capability=capability,
        matrix=(_matrix(capability) or amd or _intel_matrix(extensions, sizes))
        if config.matrix()
        else "",
        exact_division=bool(ask("SINGLE_FP_CONFIG", 0) & _EXACT_DIVISION),
        preferred_vector_float=ask("PREFERRED_VECTOR_WIDTH_FLOAT", 1) or native,
        simd_width=width,
        extensions=extensions,
        cache_key=hashlib.sha256(key.encode()).hexdigest(),
        sub_group_sizes=sizes,
    )
    return quirks.apply(info)


def _sub_group_sizes(handle: cl.Device, extensions: frozenset[str]) -> tuple[int, ...]:
    """`DeviceInfo.sub_group_sizes`."""
    if "cl_intel_required_subgroup_size" not in extensions:
        return ()
    return tuple(sorted(sub_group_sizes(handle)))


class Device:
    """One OpenCL device with its context, queue, memory and programs, each made at first use.

    Attributes:
        handle: the pyopencl.Device.
        info: its DeviceInfo.
        lock: guards everything that is enqueued; take it to keep several commands together.
    """

    def __init__(self, handle: cl.Device, info: DeviceInfo):
        self.handle = handle
        self.info = info
        self.lock: AbstractContextManager[object] = threading.RLock()
        self._context: cl.Context | None = None
        self._queue: Queue | None = None
        self._buffers: Allocator | None = None
        self._programs: Programs | None = None

    @property
    def context(self) -> cl.Context:
        """The pyopencl.Context.

        Raises:
            DeviceError: the driver refuses to make one.
        """
        if self._context is None:
            with self.lock:
                if self._context is None:
                    try:
                        with compilers.told(self.info):
                            self._context = cl.Context([self.handle])
                    except cl.Error as error:
                        raise DeviceError(f"{self.info.name} cannot be opened: {error}") from error
                    if "cuts_loops" in self.info.quirks:
                        warnings.warn(CUTS_LOOPS.format(self.info.name), RuntimeWarning, 2)
        return self._context

    @property
    def queue(self) -> Queue:
        """The in-order queue."""
        if self._queue is None:
            with self.lock:
                if self._queue is None:
                    self._queue = Queue(self)
                    _opened.append(self)
        return self._queue

    @functools.cached_property
    def addresses(self) -> Addresses | None:
        """What knows the addresses of memory, where kernels take these as arguments, or None."""
        with self.lock:
            return Addresses(self) if addresses.usable(self.info, self.index) else None

    @property
    def index(self) -> int | None:
        """Its number in the order of `find_devices`, or that of a device just like it."""
        return index_of(self.info)

    @property
    def buffers(self) -> Allocator:
        """The allocator."""
        if self._buffers is None:
            _ = self.programs  # which begin to ask what takes as long as the allocator's questions
            with self.lock:
                if self._buffers is None:
                    self._buffers = Allocator(self)
        return self._buffers

    @property
    def programs(self) -> Programs:
        """The program cache."""
        if self._programs is None:
            with self.lock:
                if self._programs is None:
                    self._programs = Programs(self)
        return self._programs

    def __repr__(self) -> str:
        return f"Device({self.info.name!r}, {self.info.kind}, {self.info.platform})"


_opened: list[Device] = []


def opened() -> tuple[Device, ...]:
    """The devices in use."""
    return tuple(_opened)


_default: Device | None = None
_default_lock = threading.RLock()


class _Forked:
    """Stands in for the lock of a device that a forked child inherited."""

    def __enter__(self) -> NoReturn:
        raise DeviceError(
            "this process was forked from one that uses an OpenCL device, which drivers cannot "
            "bear; start processes with the 'spawn' method"
        )

    def __exit__(self, *exception: object) -> None:
        pass


def _after_fork() -> None:
    for device in _opened:
        device.lock = device.queue.lock = _Forked()
    _opened.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _finish_all() -> None:
    # Drivers crash at unload when work is still running.
    for device in _opened:
        with contextlib.suppress(Exception):
            device.queue.end()
    kept = [(d.context, d.queue, d.buffers) for d in _opened]
    EXIT.begin(*(one for device in kept for one in device))


def _rank(info: DeviceInfo) -> tuple[bool, int, int, int]:
    """Smaller is better: GPUs by strength, then other devices, then CPUs by driver."""
    kinds = {"gpu": 0, "accelerator": 2, "cpu": 1}
    slow = info.kind == "cpu" and info.platform == "Portable Computing Language"
    named = bool(info.quirks & BY_NAME)
    return named, kinds[info.kind], int(slow), -info.compute_units * max(info.clock_mhz, 1)


@functools.lru_cache(maxsize=1)
def find_devices() -> tuple[Found, ...]:
    """Everything that was found, best device first, then what failed and why.

    Looks once per process; opens no context.
    """
    devices: list[tuple[DeviceInfo, Found]] = []
    failures = []
    icd.load_apart(SETUP.drivers)
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        platforms = []
        failures.append(Found("OpenCL loader", problem=f"it found no platform ({error})"))
    for platform in platforms:
        where = platform.name.strip("\0 ")
        try:
            handles = platform.get_devices()
        except cl.Error as error:
            failures.append(Found(where, problem=f"it has no device ({error})"))
            continue
        if not handles:
            failures.append(Found(where, problem="it has no device"))
        for handle in handles:
            try:
                info = _query(handle)
                if not (handle.get_info(cl.device_info.AVAILABLE)):
                    failures.append(Found(where, info, problem="the device is not available"))
                elif not handle.get_info(cl.device_info.COMPILER_AVAILABLE):
                    failures.append(Found(where, info, problem="the device has no compiler"))
                else:
                    devices.append((info, Found(where, info, Device(handle, info))))
            except cl.Error as error:
                failures.append(Found(where, problem=f"a device cannot be queried ({error})"))
    devices.sort(key=lambda pair: _rank(pair[0]))
    for driver in SETUP.drivers:
        problem = driver.problem or icd.load_problem(driver.library)
        if not problem and not _offers(driver.library, platforms):
            problem = f"{driver.library} loads but offers no platform (is its hardware visible?)"
        if problem:
            failures.append(Found(driver.origin, problem=problem))
    failures += [Found("note", problem=remark) for remark in SETUP.remarks]
    return (*(found for _, found in devices), *failures)


_MAKERS = {
    "nvidia": "nvidia",
    "intelocl": "intel",
    "igdrcl": "intel",
    "amdocl": "amd",
    "pocl": "portable computing",
    "rusticl": "rusticl",
}


def _offers(library: str, platforms: list[cl.Platform]) -> bool:
    """Whether a driver library's platform is there; True when the library is not known."""
    names = " ".join(platform.name.lower() for platform in platforms)
    return all(name in names for part, name in _MAKERS.items() if part in library.lower())


def index_of(info: DeviceInfo) -> int | None:
    """The index of a device like this one in the order of `find_devices`, None if there is none."""
    found = [f.device.info for f in find_devices() if f.device]
    return next((k for k, other in enumerate(found) if other.cache_key == info.cache_key), None)


def open_device(info: DeviceInfo) -> Device | None:
    """The device with exactly these facts if its context is open, as where programs are run and not
    only planned."""
    if not find_devices.cache_info().currsize:
        return None
    devices = (found.device for found in find_devices() if found.info == info)
    return next((d for d in devices if d is not None and d._context is not None), None)


def of_context(context: cl.Context) -> Device | None:
    """The device whose context this is, None if it is of nobody here."""
    if not find_devices.cache_info().currsize:
        return None
    devices = (found.device for found in find_devices() if found.device)
    return next((d for d in devices if d._context is not None and d._context == context), None)


def get(name: str) -> Device:
    """A device by index ("1"), kind ("gpu", "cpu:0") or part of its name or platform.

    Indices count in the order of `find_devices`.

    Raises:
        DeviceError: none fits; the text lists what there is.
    """
    devices = [found.device for found in find_devices() if found.device]
    text = name.strip().lower()
    kind, _, number = text.partition(":")
    if text.isdigit():
        fitting = devices[int(text) : int(text) + 1]
    elif kind in ("gpu", "cpu", "accelerator") and (number.isdigit() or not number):
        index = int(number or 0)
        real = [d for d in devices if d.info.kind == kind and not d.info.quirks & BY_NAME]
        fitting = real[index : index + 1]
    else:
        fitting = [
            d
            for d in devices
            if text in f"{d.info.name}\n{d.info.platform}\n{d.info.vendor}".lower()
        ]
    if not fitting:
        raise DeviceError(f"no OpenCL device fits {name!r}.\n{_listing()}")
    return fitting[0]


def choose() -> Device:
    """The device that KERASCL_DEVICE names, else the strongest GPU, else a CPU.

    Opens its context, so that a device whose driver is broken is passed over.

    Raises:
        DeviceError: there is none; the text says what was found and what to do.
    """
    asked = config.device()
    if asked:
        try:
            device = get(asked)
        except DeviceError as error:
            raise DeviceError(f"KERASCL_DEVICE={asked}: {error}") from None
        device.context  # noqa: B018  (opens it)
        return device
    problems = []
    for found in find_devices():
        if found.device is None or found.device.info.quirks & BY_NAME:
            continue
        try:
            found.device.context  # noqa: B018  (opens it)
        except DeviceError as error:
            problems.append(str(error))
            continue
        return found.device
    raise DeviceError("\n".join(["no OpenCL device can be used.", _listing(), *problems, HINT]))


def default() -> Device:
    """The device in use: that of `set_default`, else `choose()`, once per process."""
    global _default
    if _default is None:
        with _default_lock:
            if _default is None:
                _default = choose()
    return _default


def set_default(device: Device | str) -> Device:
    """Make a device (or the one that `get` finds by name) the default; returns it."""
    global _default
    chosen = get(device) if isinstance(device, str) else device
    with _default_lock:
        _default = chosen
    return chosen


def _listing() -> str:
    lines, index = [], 0
    for found in find_devices():
        if found.device:
            info = found.device.info
            lines.append(f"  {index}: {info.kind}  {info.name}  ({info.platform})")
            index += 1
        else:
            lines.append(f"  -: {found.where}: {found.problem}")
    text = "Found:\n" + "\n".join(lines) if lines else "Nothing was found."
    if IMPORTED_BEFORE and index == 0:
        text += (
            "\npyopencl was imported before kerascl, which was too late to show it pip-installed "
            "drivers: import kerascl first"
        )
    return text
