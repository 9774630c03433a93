"""Arrays handed to other libraries and taken from them by DLPack (dmlc.github.io/dlpack)."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from kerascl.core import context
from kerascl.core.array import Array, from_host
from kerascl.core.types import Device
from kerascl.ops.creation import asarray, to_device

__all__ = ["from_dlpack"]


class DeviceType(IntEnum):
    """The kinds of devices that DLPack numbers, as far as they are known here."""

    CPU = 1
    OPENCL = 4


def from_dlpack(x: Any, device: Device | str | None = None, copy: bool | None = None) -> Array:
    """An Array with the values of another library's array.

    Arrays of kerascl are given back as they are, others in host memory (NumPy, PyTorch on the CPU)
    are copied to the device.

    Args:
        x: what has `__dlpack__` and `__dlpack_device__`.
        device: where the result lies; by default where `x` lies, or the current device.
        copy: as for `asarray`.

    Raises:
        BufferError: for memory of other devices, and for `copy=False` where a copy is needed.
        TypeError: for what does not know DLPack, and dtypes that kerascl does not have.
    """
    if isinstance(x, Array):
        if device is None:
            return asarray(x, copy=copy)
        target = context.current.engine.find_device(device) if isinstance(device, str) else device
        if copy is False and target is not x.device:
            raise BufferError("from_dlpack: another device takes a copy; leave copy=False out")
        return asarray(to_device(x, target), copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack needs an array that knows DLPack, not {type(x).__name__}")
    if copy is False:
        raise BufferError("from_dlpack: memory of the host is copied; leave copy=False out")
    kind, _ = x.__dlpack_device__()
    if int(kind) != DeviceType.CPU:
        raise BufferError(
            f"from_dlpack: memory of DLPack's device type {int(kind)} cannot be read; "
            "move the array to the CPU first"
        )
    try:
        host = np.from_dlpack(x)
    except RuntimeError as error:
        raise TypeError(
            f"from_dlpack: {type(x).__name__} of a dtype that NumPy does not know; "
            "convert it first, to float32 for example"
        ) from error
    made = from_host(host)
    return made if device is None else to_device(made, device)


def dlpack_device(x: Array) -> tuple[DeviceType, int]:
    """DLPack's number of the kind of device, and of the device among these.

    A device that is the host's own processor counts as CPU: its memory is the host's.
    """
    if x.device.info.kind == "cpu":
        return DeviceType.CPU, 0
    opencl = [d for d in context.current.engine.devices() if d.info.kind != "cpu"]
    return DeviceType.OPENCL, opencl.index(x.device) if x.device in opencl else 0


def dlpack(
    x: Array,
    *,
    stream: None = None,
    max_version: tuple[int, int] | None = None,
    dl_device: tuple[int, int] | None = None,
    copy: bool | None = None,
) -> Any:
    """A DLPack capsule with the values in host memory.

    They are shared where the device computes in the host's memory, and must not be written to then,
    else copied.

    Args:
        stream: None; the values are there when this returns.
        max_version: the highest version of DLPack that the caller understands.
        dl_device: (1, 0), the CPU, or None for the array's own.
        copy: True for memory of its own, False for shared memory.

    Raises:
        BufferError: for other devices, and for `copy=False` where memory cannot be shared.
        CaptureError: inside a captured function, where there is no value yet.
    """
    if stream is not None:
        raise BufferError("__dlpack__: OpenCL has no streams; leave stream out")
    wanted = dlpack_device(x) if dl_device is None else dl_device
    if int(wanted[0]) != DeviceType.CPU:
        raise BufferError(
            "__dlpack__ gives host memory only: ask for dl_device=(1, 0), or use x.numpy()"
        )
    versioned = max_version is not None and max_version[0] >= 1
    host = None
    if copy is False or (copy is None and versioned):
        host = x._shared_with_host()
        if host is None and copy is False:
            raise BufferError(
                "__dlpack__: this device does not share its memory with the host; "
                "leave copy=False out"
            )
    if host is None:
        host = x._on_host()
    elif versioned:
        host.flags.writeable = False
    return host.__dlpack__(max_version=max_version) if versioned else host.__dlpack__()
