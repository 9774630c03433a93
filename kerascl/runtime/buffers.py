"""A caching allocator of device memory, and pinned host memory for copies.

Memory is stream-ordered: a dropped buffer goes back to the cache at once and
may be handed out again while earlier commands still use it, because every later
use on the same in-order queue comes after them.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerascl import config
from kerascl.runtime.dropped import Dropped
from kerascl.runtime.errors import OutOfDeviceMemory
from kerascl.runtime.opencl import cl

# Of dropped memory: the OpenCL memory object, its key, its address on the device, if known, and
# the reference to what a kernel's argument is set to.
_Block = tuple[cl.Buffer, int, int | None, Any]

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

MINIMUM = 256
_TOUCH_FROM = 1 << 20
_keys = itertools.count(1)

_MEMORY_CODES = (
    cl.status_code.MEM_OBJECT_ALLOCATION_FAILURE,
    cl.status_code.OUT_OF_RESOURCES,
    cl.status_code.OUT_OF_HOST_MEMORY,
    cl.status_code.INVALID_BUFFER_SIZE,
)


def size_class(nbytes: int) -> int:
    """The size really allocated for a request: at most 1/8 more (1/16 from a megabyte on, whole
    units of 2 MiB from 64 MiB on)."""
    if nbytes <= MINIMUM:
        return MINIMUM
    if nbytes >= 64 << 20:
        return -(-nbytes // (2 << 20)) * (2 << 20)
    bits = 4 if nbytes >= 1 << 20 else 3
    step = max(1 << (nbytes.bit_length() - 1 - bits), 32)
    return -(-nbytes // step) * step


_BORROWED = -1  # in place of a size: memory of somebody else
# Dropped sub-buffers to keep before waiting for the queue; launches get slow when many are alive.
_MOST_VIEWS = 64


class Buffer:
    """Device memory.

    Attributes:
        nbytes: the size asked for; the memory behind may be larger.
        key: a number that no other memory of this process ever had.
        arg: reference to what a kernel's argument is set to: the OpenCL memory object or, where
            `address` is given, that.
        address: of the first byte on the device, or None.
    """

    __slots__ = (
        "__weakref__", "_capacity", "_handle", "_home", "_offset", "address", "arg", "key",
        "nbytes",
    )  # fmt: skip

    def __init__(
        self,
        handle: Any,
        nbytes: int,
        capacity: int,
        key: int,
        home: Dropped | Buffer,
        offset: int = 0,
        address: int | None = None,
        owner: object = None,
        arg: Any = None,
    ):
        self._handle = handle
        self.nbytes = nbytes
        self.key = key
        self.address = address
        if arg is None:
            arg = ctypes.byref(ctypes.c_void_p(handle.int_ptr if address is None else address))
        self.arg = arg
        self._capacity = capacity
        self._offset = offset
        # Where dropped blocks go for a whole buffer, the parent Buffer for a view.
        self._home: Any = home
        if type(home) is Dropped:
            held = handle if owner is None else (handle, owner)
            home.watch(self, (capacity, (held, key, address, arg)))
        elif handle is not None and isinstance(home, Buffer):
            home._home.watch(self, (0, (handle,)))

    @property
    def handle(self) -> cl.Buffer:
        """The pyopencl.Buffer."""
        if self._handle is None:
            self._handle = self._home.handle.get_sub_region(self._offset, max(self.nbytes, 1))
            self._home._home.watch(self, (0, (self._handle,)))
        return self._handle

    @property
    def capacity(self) -> int:
        """Bytes really allocated behind this buffer (a view: its own size)."""
        return self._capacity

    def view(self, offset: int, nbytes: int) -> Buffer:
        """`nbytes` bytes from `offset`, sharing and keeping this memory.

        Raises:
            ValueError: out of bounds, or `offset` is no multiple of the device's alignment.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ValueError(
                f"a view of {nbytes} bytes at {offset} leaves a buffer of {self.nbytes} bytes"
            )
        # OpenCL has no sub-buffers of sub-buffers: a view of a view belongs to the root.
        root = self._home if type(self._home) is Buffer else self
        start = self._offset + (offset if nbytes else 0)
        if root.address is not None:
            address = root.address + start
            return Buffer(None, nbytes, max(nbytes, 1), next(_keys), root, start, address)
        try:
            handle = root.handle.get_sub_region(start, max(nbytes, 1))
        except cl.LogicError as error:
            raise ValueError(
                f"a view may not begin at byte {offset}: not a multiple of the device's alignment"
            ) from error
        return Buffer(handle, nbytes, max(nbytes, 1), next(_keys), root, start)

    def __repr__(self) -> str:
        return f"Buffer({self.nbytes} bytes)"


@dataclass(frozen=True)
class Stats:
    """Bytes and counts; `reserved` = `in_use` + `cached`."""

    in_use: int
    cached: int
    peak: int
    peak_reserved: int
    allocations: int
    driver_allocations: int
    trims: int

    @property
    def reserved(self) -> int:
        """Bytes that are taken from the driver, in use or cached."""
        return self.in_use + self.cached


class Allocator:
    """`device.buffers`: hands out Buffers, keeps dropped ones by size class."""

    def __init__(self, device: Device):
        self._device = device
        self._free: dict[int, list[_Block]] = {}
        self._dropped = Dropped()
        self._counters: Buffer | None = None
        self._views: list[object] = []  # dropped sub-buffers, which the driver may still need
        self._in_use = self._cached = self._peak = self._peak_reserved = 0
        self._allocations = self._driver_allocations = self._trims = 0
        info = device.info
        self.limit = config.memory_limit()
        if self.limit is None and info.kind == "cpu":
            # A CPU driver hands out more than there is, and the system kills the process later.
            self.limit = int(min(info.global_mem_bytes, _container_limit()) * 0.9)
        self._touch = "lazy_allocation" in info.quirks
        self._addresses = device.addresses

    def allocate(self, nbytes: int) -> Buffer:
        """A buffer of `nbytes` bytes with unspecified contents.

        `nbytes` may be 0.

        Raises:
            ValueError: `nbytes` is negative.
            OutOfDeviceMemory: no room even after trimming, or more than one buffer may hold.
        """
        nbytes = int(nbytes)
        if nbytes < 0:
            raise ValueError(f"a buffer cannot hold {nbytes} bytes")
        size = size_class(nbytes)
        most = self._device.info.max_alloc_bytes
        if size > most:
            if nbytes > most:
                raise OutOfDeviceMemory(
                    f"{_mib(nbytes)} asked for in one buffer, but {self._device.info.name} allows "
                    f"at most {_mib(most)} (CL_DEVICE_MAX_MEM_ALLOC_SIZE)"
                )
            size = nbytes
        with self._device.lock:
            if self._dropped.gone:
                self._collect()
            self._allocations += 1
            blocks = self._free.get(size)
            if blocks:
                handle, key, address, arg = blocks.pop()
                self._cached -= size
                self._in_use += size
            else:
                (handle, address), key, arg = self._from_driver(nbytes, size), next(_keys), None
                self._in_use += size
                reserved = self._in_use + self._cached
                if reserved > self._peak_reserved:  # only here is more taken from the driver
                    self._peak_reserved = reserved
            if self._in_use > self._peak:
                self._peak = self._in_use
            return Buffer(handle, nbytes, size, key, self._dropped, 0, address, None, arg)

    def borrow(self, handle: cl.Buffer, owner: object) -> Buffer:
        """Memory that somebody else made in the device's context.

        Args:
            owner: what must stay alive until no command uses the memory any more.
        """
        with self._device.lock:
            address = None if self._addresses is None else self._addresses.of(handle)
            return Buffer(
                handle, handle.size, _BORROWED, next(_keys), self._dropped, 0, address, owner
            )

    def counters(self, count: int) -> Buffer:
        """At least `count` uints that are zero whenever no kernel runs.

        All kernels share them, one after the other, and each leaves zeros.
        """
        with self._device.lock:
            if self._counters is None or self._counters.nbytes < 4 * count:
                self._counters = self.allocate(4 * max(1024, 2 * count))
                self._device.queue.fill(self._counters, bytes(4))
            return self._counters

    def trim(self) -> int:
        """Give all cached memory back to the driver; returns how many bytes."""
        with self._device.lock:
            self._collect()
            self._release_views()
            if self._addresses is not None:
                self._device.queue.finish()  # the driver does not know which kernels use them
            freed = self._cached
            self._free.clear()
            self._cached = 0
            self._trims += 1
            return freed

    def stats(self) -> Stats:
        """Figures of this moment."""
        with self._device.lock:
            self._collect()
            return Stats(
                self._in_use,
                self._cached,
                self._peak,
                self._peak_reserved,
                self._allocations,
                self._driver_allocations,
                self._trims,
            )

    def reset_peak(self) -> None:
        """Count peaks from now on."""
        with self._device.lock:
            self._collect()
            self._peak = self._in_use
            self._peak_reserved = self._in_use + self._cached

    def relieve(self) -> None:
        """Everything that may free memory: collect garbage, finish the queue, trim."""
        gc.collect()
        self._device.queue.finish()
        self.trim()

    def _collect(self) -> None:
        borrowed = False
        for size, block in self._dropped.take():
            if size <= 0:
                self._views.append(block[0])
                borrowed |= size == _BORROWED
                continue
            blocks = self._free.get(size)
            if blocks is None:
                blocks = self._free[size] = []
            blocks.append(block)
            self._in_use -= size
            self._cached += size
        if borrowed or len(self._views) > _MOST_VIEWS:
            self._release_views()

    def _release_views(self) -> None:
        # NVIDIA's driver crashes when a sub-buffer is released before the kernels that use it
        # are done, although the standard lets the driver keep it until then.
        if self._views:
            self._device.queue.finish()
            self._views.clear()

    def _from_driver(self, nbytes: int, size: int) -> tuple[cl.Buffer, int | None]:
        cause: Exception | None = None
        for attempt in range(2):
            over = self.limit is not None and self._in_use + self._cached + size > self.limit
            if not over:
                try:
                    block = self._create(size)
                    self._driver_allocations += 1
                    return block
                except cl.Error as error:
                    if error.code not in _MEMORY_CODES:
                        queue = self._device.queue
                        raise queue.failure(error.code, "an allocation") from error
                    cause = error
            if attempt == 0:
                self.relieve()
        limit = "" if self.limit is None else f", limit {_mib(self.limit)}"
        raise OutOfDeviceMemory(
            f"{_mib(nbytes)} asked for on {self._device.info.name}: in use {_mib(self._in_use)}, "
            f"cached {_mib(self._cached)}, device has {_mib(self._device.info.global_mem_bytes)}"
            f"{limit}"
        ) from cause

    def _create(self, size: int) -> tuple[cl.Buffer, int | None]:
        """A memory object and its address, None where addresses are not used."""
        handle = cl.Buffer(self._device.context, cl.mem_flags.READ_WRITE, size)
        if self._addresses is not None:
            return handle, self._addresses.of(handle)
        if self._touch and size >= _TOUCH_FROM:
            # Fails here, where it can be retried, and not at the first launch.
            queue = self._device.queue.handle
            cl.enqueue_fill_buffer(queue, handle, b"\0", 0, 16)
            queue.flush()
        return handle, None


def _container_limit() -> float:
    """Bytes that this process' control group allows, or infinity."""
    try:
        return float(Path("/sys/fs/cgroup/memory.max").read_text())
    except (OSError, ValueError):
        return float("inf")


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB" if nbytes >= 1 << 16 else f"{nbytes} bytes"
