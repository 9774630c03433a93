"""The in-order queue of a device: launches, copies, waits."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from kerascl import config
from kerascl.runtime.buffers import Buffer
from kerascl.runtime.errors import (
    LOST,
    ContextLost,
    DeviceError,
    LaunchError,
    OutOfDeviceMemory,
)
from kerascl.runtime.opencl import POINTER_SIZE, RAW, SIZES, cl, code_name
from kerascl.runtime.programs import Kernel
from kerascl.runtime.progress_thread import ProgressThread
from kerascl.runtime.staging import Slot, Staging

if TYPE_CHECKING:
    from kerascl.runtime.device import Device
    from kerascl.runtime.profile import Profile
    from kerascl.runtime.replay import Note

# Up to here a second copy in host memory costs less than waiting for the queue.
_SNAPSHOT_LIMIT = 1 << 20
WRITE_BESIDE = "write beside"  # in profiles: a copy of `write_beside`
_MARK_EVERY = 256
_MARKS = 3

_status = cl.status_code
_MEMORY = (_status.MEM_OBJECT_ALLOCATION_FAILURE, _status.OUT_OF_HOST_MEMORY)
_ARGUMENTS = (
    _status.INVALID_ARG_INDEX,
    _status.INVALID_ARG_VALUE,
    _status.INVALID_ARG_SIZE,
    _status.INVALID_MEM_OBJECT,
    _status.INVALID_KERNEL_ARGS,
)


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """A __local kernel argument of `nbytes` bytes."""

    nbytes: int


# What a kernel can be given.
Argument: TypeAlias = Buffer | np.generic | bytes | LocalMemory


@functools.lru_cache(maxsize=4096)
def size_array(size: tuple[int, ...]) -> ctypes.Array[ctypes.c_size_t]:
    """One to three work sizes as an array for the driver.

    Raises:
        ValueError: no or too many dimensions, or one that is not positive.
    """
    if not 1 <= len(size) <= 3:
        raise ValueError(f"a launch has 1 to 3 dimensions, not {size}")
    if min(size) < 1:
        raise ValueError(f"work sizes must be positive, got {size}")
    return (ctypes.c_size_t * len(size))(*map(int, size))


class Pending:
    """A read under way; `wait` may be called from any thread, more than once."""

    def __init__(
        self,
        queue: Queue,
        events: list[cl.Event],
        pieces: Sequence[tuple[np.ndarray, Slot]] = (),
        before: Sequence[cl.Event | None] = (),
    ):
        self._slots = [slot for _, slot in pieces]
        if queue.staging is not None and pieces:
            queue.staging.give_back_after(self, self._slots)
        self._queue = queue
        self._events = events
        self._pieces = pieces
        self._before: Sequence[cl.Event | None] = before
        self._lock = threading.Lock()
        self._error: Exception | None = None

    def wait(self) -> None:
        """Return when the array holds the data.

        Raises:
            DeviceError: a command before or of the read failed.
        """
        with self._lock:
            staging = self._queue.staging
            try:
                copies = []
                for n, event in enumerate(self._events):
                    event.wait()
                    if staging is not None and self._pieces:
                        target, slot = self._pieces[n]
                        source = slot.array[: target.size]
                        if len(self._pieces) == 1:
                            target[:] = source
                        else:
                            copies.append(staging.copy(target, source))
                for one in copies:
                    one.result()
            except cl.Error as error:
                self._error = self._queue.failure(error.code, "a read")
            self._events = []
            self._before = []
            self._pieces = ()
            if staging is not None and self._slots:
                staging.give_back(self._slots)
            if self._error is not None:
                raise self._error

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return all(
            e.command_execution_status == cl.command_execution_status.COMPLETE
            for e in tuple(self._events)
        )


class Queue:
    """`device.queue`: every command of a device in one order.

    Attributes:
        lock: the device's lock; held while commands are enqueued, never while waiting for them.
        handle: the pyopencl.CommandQueue (another one while profiling).
        arg: the same as a ctypes pointer whose value follows `handle`.
        copies_beside: whether `write_beside` may be used: on devices with memory of their own.
        batches_beside: how often it was.
    """

    def __init__(self, device: Device):
        self._device = device
        self.lock = device.lock
        self.handle = cl.CommandQueue(device.context, device.handle)
        self.arg = ctypes.c_void_p(self.handle.int_ptr)
        self.wait_each = config.debug() >= 3
        self.recorder: Profile | None = None
        self.staging = Staging(device) if device.info.staged_copies else None
        self.copies_beside = (
            self.staging is not None
            and config.copy_queue()
            and "copies_in_turn" not in device.info.quirks
        )
        self.batches_beside = 0
        self._beside: cl.CommandQueue | None = None  # the queue of `write_beside`
        self._progress_thread = ProgressThread() if "host_must_wait" in device.info.quirks else None
        self._since = 0
        self._marks: collections.deque[cl.Event] = collections.deque()
        self._held: collections.deque[cl.Event] = collections.deque()

    # Launches

    def launch(
        self,
        kernel: Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        args: Sequence[Argument],
    ) -> None:
        """Enqueue one kernel.

        Args:
            kernel: from `device.programs.kernel`.
            global_size, local_size: work-items in one to three dimensions; `local_size` None
                lets the driver choose.
            args: Buffer, NumPy scalar (or bytes of a struct), or LocalMemory, one for each
                parameter.

        Raises:
            TypeError: the number or type of arguments is wrong.
            ValueError: a size is not positive.
            LaunchError: the driver refuses the sizes or arguments.
            OutOfDeviceMemory: the driver finds no memory, even after trimming the cache.
            ContextLost: the device is dead because of an earlier kernel.
        """
        global_array = size_array(global_size)
        local_array = None if local_size is None else size_array(local_size)
        if local_array is not None and len(local_array) != len(global_array):
            raise ValueError(f"global {global_size} and local {local_size} differ in dimensions")
        with self.lock:
            bind(kernel, args)
            if self.recorder is None and RAW is not None:
                call = (self.arg, kernel.arg, len(global_array), None, global_array, local_array)
                status = RAW.enqueue(*call, 0, None, None)
                if status in _MEMORY:
                    self._device.buffers.relieve()
                    status = RAW.enqueue(*call, 0, None, None)
                if status:
                    raise self.failure(status, kernel.name, kernel, global_size, local_size)
            else:
                self.enqueue_slowly(kernel, global_size, local_size)
            self._since += 1
            if self._since >= _MARK_EVERY:
                self.pace(0)
            if self.wait_each:
                self.finish_after(kernel.name)

    def enqueue_slowly(
        self,
        kernel: Kernel,
        global_size: tuple[int, ...],
        local_size: tuple[int, ...] | None,
        note: Note | None = None,
    ) -> None:
        """Enqueue a bound kernel through pyopencl: for profiling, or where ctypes cannot."""
        try:
            event = cl.enqueue_nd_range_kernel(self.handle, kernel.handle, global_size, local_size)
        except cl.Error as error:
            raise self.failure(error.code, kernel.name, kernel, global_size, local_size) from error
        if self.recorder is not None:
            self.recorder.record(kernel.name, event, note)

    def pace(self, launches: int) -> None:
        """Count launches and keep the host at most about 1000 of them ahead.

        Drivers either block inside an enqueue (holding the GIL) or queue without bound.
        """
        self._since += launches
        if self._since < _MARK_EVERY:
            return
        self._since = 0
        if len(self._marks) >= _MARKS:
            try:
                self._marks.popleft().wait()
            except cl.Error as error:
                raise self.failure(error.code, "a kernel") from error
        try:
            self._marks.append(cl.enqueue_marker(self.handle))
            self.handle.flush()
        except cl.Error as error:
            raise self.failure(error.code, "a kernel") from error

    def drive_progress(self) -> None:
        """Have the progress thread, where there is one, wait for everything enqueued so far."""
        if self._progress_thread is not None:
            self._progress_thread.wait_for(self.mark())

    def end(self) -> None:
        """Finish, and wait for the threads that use this queue.

        Raises:
            ContextLost, DeviceError: a command failed.
        """
        try:
            self.finish()
        finally:
            if self._progress_thread is not None:
                self._progress_thread.end()

    # Copies

    def write(self, buffer: Buffer, array: np.ndarray, offset: int = 0) -> None:
        """Copy an array into a buffer at byte `offset`; returns when the array may be reused.

        Raises:
            ValueError: the array is larger than the buffer.
        """
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._check(buffer, data.size, offset)
        if data.size == 0:
            return
        event = None
        try:
            with self.lock:
                if self.staging is not None:
                    self.staging.write(self.handle, buffer, data, offset, self._note_write)
                    return
                snapshot = data.size <= _SNAPSHOT_LIMIT
                event = cl.enqueue_copy(
                    self.handle,
                    buffer.handle,
                    data.copy() if snapshot else data,
                    is_blocking=False,
                    dst_offset=offset,
                )
                self._note_write(event)
                if snapshot:
                    self._hold(event)
                    return
            event.wait()
        except cl.Error as error:
            raise self.failure(error.code, "a write") from error

    def write_beside(self, copies: Sequence[tuple[Buffer, np.ndarray]], after: cl.Event) -> None:
        """Copy arrays into buffers beside the commands enqueued so far; later ones wait for it.

        Needs `copies_beside`.

        Args:
            copies: buffers and contiguous arrays, which may be changed when this returns.
            after: an event of `mark`; no command enqueued behind it uses the buffers.

        Raises:
            ValueError: an array is larger than its buffer.
            ContextLost, DeviceError, OutOfDeviceMemory: a command failed.
        """
        pieces = [(buffer, array.reshape(-1).view(np.uint8)) for buffer, array in copies]
        for buffer, data in pieces:
            self._check(buffer, data.size, 0)
        staging = self.staging
        assert staging is not None
        with self.lock:
            beside = self._beside
            if beside is None:
                profiling = cl.command_queue_properties.PROFILING_ENABLE
                beside = self._beside = cl.CommandQueue(
                    self._device.context,
                    self._device.handle,
                    properties=0 if self.recorder is None else profiling,
                )
            last = None
            try:
                cl.enqueue_barrier(beside, wait_for=[after])
                for buffer, data in pieces:
                    last = staging.write(beside, buffer, data, 0, self._note_beside) or last
                if last is not None:
                    cl.enqueue_barrier(self.handle, wait_for=[last])
            except BaseException as error:
                # Nothing waits for copies under way, and others may get the buffers' memory.
                with contextlib.suppress(cl.Error):
                    beside.finish()
                if isinstance(error, cl.Error):
                    raise self.failure(error.code, "a write") from error
                raise
            self.batches_beside += 1

    def mark(self) -> cl.Event:
        """An event that is complete when everything enqueued so far is."""
        try:
            with self.lock:
                event = cl.enqueue_marker(self.handle)
                self.handle.flush()
                return event
        except cl.Error as error:
            raise self.failure(error.code, "a marker") from error

    def read(self, buffer: Buffer, array: np.ndarray, offset: int = 0) -> np.ndarray:
        """Copy a buffer's bytes from `offset` on into a writable array, and wait; returns it.

        Raises:
            ValueError: the array is larger than the buffer, or cannot be written.
        """
        if not array.flags.c_contiguous:
            whole = np.empty(array.shape, array.dtype)
            self.read_async(buffer, whole, offset).wait()
            array[...] = whole
            return array
        if self.staging is not None and array.nbytes > self.staging.window:
            self._read_in_windows(self.staging.window, buffer, array, offset)
        else:
            self.read_async(buffer, array, offset).wait()
        return array

    def _read_in_windows(self, window: int, buffer: Buffer, array: np.ndarray, offset: int) -> None:
        data = array.reshape(-1).view(np.uint8)
        self._check(buffer, data.size, offset)
        # Locked, so that the parts are of one moment.
        with self.lock:
            before: Pending | None = None
            for start in range(0, data.size, window):
                part = self.read_async(buffer, data[start : start + window], offset + start)
                if before is not None:
                    before.wait()
                before = part
            if before is not None:
                before.wait()

    def read_async(self, buffer: Buffer, array: np.ndarray, offset: int = 0) -> Pending:
        """Begin a read into a contiguous writable array; the array holds it after `.wait()`.

        The buffer may be dropped or overwritten by later commands right after this call.
        """
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError("a read needs a contiguous, writable array")
        data = array.reshape(-1).view(np.uint8)
        self._check(buffer, data.size, offset)
        if data.size == 0:
            return Pending(self, [])
        try:
            with self.lock:
                staging = self.staging
                slots = staging.take(data.size) if staging is not None else []
                if staging is not None and slots:
                    pending = self._read_staged(staging, buffer, data, offset, slots)
                else:
                    event = cl.enqueue_copy(
                        self.handle, data, buffer.handle, is_blocking=False, src_offset=offset
                    )
                    self._note("read", event)
                    pending = Pending(self, [event])
                self.handle.flush()
                return pending
        except cl.Error as error:
            raise self.failure(error.code, "a read") from error

    def copy(
        self,
        src: Buffer,
        dst: Buffer,
        nbytes: int | None = None,
        src_offset: int = 0,
        dst_offset: int = 0,
    ) -> None:
        """Enqueue a copy of `nbytes` bytes (default: all of `src`) between buffers."""
        nbytes = src.nbytes - src_offset if nbytes is None else int(nbytes)
        self._check(src, nbytes, src_offset)
        self._check(dst, nbytes, dst_offset)
        if nbytes == 0:
            return
        try:
            with self.lock:
                event = cl.enqueue_copy(
                    self.handle,
                    dst.handle,
                    src.handle,
                    byte_count=nbytes,
                    src_offset=src_offset,
                    dst_offset=dst_offset,
                )
                self._note("copy", event)
                self.pace(1)
        except cl.Error as error:
            raise self.failure(error.code, "a copy") from error

    def fill(
        self,
        buffer: Buffer,
        pattern: bytes | np.generic,
        offset: int = 0,
        nbytes: int | None = None,
    ) -> None:
        """Enqueue a fill with a pattern of 1, 2, 4, … 128 bytes (or a NumPy scalar).

        Raises:
            ValueError: the size is no multiple of the pattern, or leaves the buffer.
        """
        if not isinstance(pattern, bytes):
            pattern = pattern.tobytes()
        nbytes = buffer.nbytes - offset if nbytes is None else int(nbytes)
        self._check(buffer, nbytes, offset)
        if len(pattern) not in SIZES or nbytes % len(pattern) or offset % len(pattern):
            raise ValueError(
                f"a pattern of {len(pattern)} bytes cannot fill {nbytes} bytes at {offset}"
            )
        if nbytes == 0:
            return
        try:
            with self.lock:
                event = cl.enqueue_fill_buffer(
                    self.handle, buffer.handle, np.frombuffer(pattern, np.uint8), offset, nbytes
                )
                self._note("fill", event)
                self.pace(1)
        except cl.Error as error:
            raise self.failure(error.code, "a fill") from error

    def flush(self) -> None:
        """See to it that everything enqueued begins."""
        with self.lock:
            self.handle.flush()

    def finish(self) -> None:
        """Wait for everything enqueued so far.

        Raises:
            ContextLost, DeviceError: a command failed.
        """
        self.finish_after("a kernel")

    def finish_after(self, what: str) -> None:
        """Wait for everything enqueued so far; errors name what came last.

        Raises:
            ContextLost, DeviceError: a command failed."""
        try:
            self.handle.finish()
        except cl.Error as error:
            raise self.failure(error.code, what) from error
        self._marks.clear()
        self._held.clear()

    # Helpers

    def use(self, handle: cl.CommandQueue, recorder: Profile | None) -> None:
        """Go on with another command queue of the same context, after everything on this one."""
        with self.lock:
            self.finish_after("a kernel")
            self.handle = handle
            self.arg.value = handle.int_ptr
            self.recorder = recorder
            self._beside = None  # is made again as this recorder needs it

    def failure(
        self,
        code: int,
        what: str,
        kernel: Kernel | None = None,
        global_size: tuple[int, ...] | None = None,
        local_size: tuple[int, ...] | None = None,
    ) -> Exception:
        """The exception for a status code."""
        info = self._device.info
        name = code_name(code)
        lost = code in LOST or (
            code == _status.OUT_OF_RESOURCES and kernel is None and info.platform == "NVIDIA CUDA"
        )
        if lost:
            return ContextLost(
                f"{info.name} stopped working at {what} ({name}). An earlier kernel faulted, most "
                "often by reading or writing out of bounds; nothing more can run on this device "
                "in this process. KERASCL_DEBUG=3 waits after each launch and so names the kernel"
            )
        if code in _MEMORY:
            stats = self._device.buffers.stats()
            return OutOfDeviceMemory(
                f"{what} on {info.name} failed ({name}): in use {stats.in_use / 2**20:,.1f} MiB, "
                f"cached {stats.cached / 2**20:,.1f} MiB"
            )
        if kernel is None:
            return DeviceError(f"{what} on {info.name} failed ({name})")
        text = f"{what} could not be launched on {info.name} ({name}): global size {global_size}, "
        text += f"local size {local_size}"
        if code in _ARGUMENTS:
            text += "; an argument is missing or wrong"
        else:
            work_group = kernel.handle.get_work_group_info
            try:
                most = work_group(cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device.handle)
                local = work_group(cl.kernel_work_group_info.LOCAL_MEM_SIZE, self._device.handle)
                text += (
                    f"; this kernel allows work-groups of up to {most} and takes {local} bytes of "
                    f"local memory of the device's {info.local_mem_bytes}"
                )
            except cl.Error:
                pass
        return LaunchError(text)

    def _check(self, buffer: Buffer, nbytes: int, offset: int) -> None:
        if offset < 0 or nbytes < 0 or offset + nbytes > buffer.nbytes:
            raise ValueError(
                f"{nbytes} bytes at {offset} do not lie in a buffer of {buffer.nbytes} bytes"
            )

    def _note(self, name: str, event: cl.Event) -> None:
        if self.recorder is not None:
            self.recorder.record(name, event)

    def _note_write(self, event: cl.Event) -> None:
        self._note("write", event)

    def _note_beside(self, event: cl.Event) -> None:
        self._note(WRITE_BESIDE, event)

    def _hold(self, event: cl.Event) -> None:
        # Dropping the event of a write waits for it, so events are kept until they are done.
        held = self._held
        held.append(event)
        done = cl.command_execution_status.COMPLETE
        while held and (len(held) > 64 or held[0].command_execution_status == done):
            held.popleft()

    def _read_staged(
        self, staging: Staging, buffer: Buffer, data: np.ndarray, offset: int, slots: list[Slot]
    ) -> Pending:
        size = staging.CHUNK
        events, pieces, before = [], [], []
        for slot, start in zip(slots, range(0, data.size, size), strict=True):
            piece = data[start : start + size]
            before.append(slot.event)
            slot.event = cl.enqueue_copy(
                self.handle,
                slot.array[: piece.size],
                buffer.handle,
                is_blocking=False,
                src_offset=offset + start,
            )
            self._note("read", slot.event)
            events.append(slot.event)
            pieces.append((piece, slot))
        # Dropping an event waits for it, so those of earlier copies are kept until the wait.
        return Pending(self, events, pieces, before)


def bind(kernel: Kernel, args: Sequence[Argument]) -> None:
    """Set a kernel's arguments, skipping those it has already.

    Raises:
        TypeError: wrong number or type.
        LaunchError: the driver refuses one; the text says which.
    """
    if len(args) != kernel.num_args:
        raise TypeError(f"{kernel.name} takes {kernel.num_args} arguments, got {len(args)}")
    bound = kernel.bound
    for index, arg in enumerate(args):
        if type(arg) is Buffer:
            if bound[index] != arg.key:
                bind_buffer(kernel, index, arg)
        else:
            bind_value(kernel, index, arg)


def bind_buffer(kernel: Kernel, index: int, buffer: Buffer) -> None:
    """Set an argument that is a Buffer."""
    slow_value = buffer.handle if RAW is None else None
    set_argument(kernel, index, POINTER_SIZE, buffer.arg, slow_value, buffer.key)


def bind_value(kernel: Kernel, index: int, arg: Argument) -> None:
    """Set an argument that is no Buffer."""
    if type(arg) is LocalMemory:
        if kernel.bound[index] != arg:
            size = ctypes.c_size_t(arg.nbytes)
            set_argument(kernel, index, size, None, cl.LocalMemory(arg.nbytes), arg)
        return
    if isinstance(arg, np.generic):
        data = arg.tobytes()
    elif isinstance(arg, bytes):
        data = arg
    else:
        raise TypeError(
            f"argument {index} of {kernel.name} is a {type(arg).__name__}; give a Buffer, a NumPy "
            "scalar, bytes or LocalMemory"
        )
    if kernel.bound[index] != data:
        size = SIZES.get(len(data)) or ctypes.c_size_t(len(data))
        set_argument(kernel, index, size, data, data, data)


def set_argument(
    kernel: Kernel,
    index: int,
    size: ctypes.c_size_t,
    pointer: Any,
    slow_value: Any,
    key: Hashable,
) -> None:
    """clSetKernelArg, and remember `key` as what is bound."""
    bound = kernel.bound
    bound[index] = None
    if RAW is not None:
        status = RAW.set_arg(kernel.arg, index, size, pointer)
    else:
        try:
            kernel.handle.set_arg(index, slow_value)
            status = 0
        except cl.Error as error:
            status = error.code
    if status:
        raise LaunchError(
            f"argument {index} of {kernel.name} is refused ({code_name(status)}): "
            f"{size.value} bytes given"
        )
    bound[index] = key
