"""`keras.distribution` on one device: meshes of one place, where every layout is the whole array.

Keras' layouts and distributions work, so that code written for several devices runs on one.
A mesh of more devices, or more processes, is refused when it is first used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras.src.utils import rng_utils

from kerascl.core import context
from kerascl.core.array import Array
from kerascl.runtime.device import BY_NAME, Device, find_devices

_MANY = (
    "kerascl computes on one device in one process: {what}. Use a mesh of one device, for "
    "example keras.distribution.DeviceMesh((1,), ['batch'], [{name!r}])."
)


@dataclass(frozen=True)
class Mesh:
    """A mesh of one device.

    Attributes:
        device: the device.
        axis_names: as many as the mesh has axes; all are 1 long.
    """

    device: Device
    axis_names: tuple[str, ...]


@dataclass(frozen=True)
class Layout:
    """Where an array lies: whole, on the one device of a mesh.

    Attributes:
        mesh: the mesh.
        axes: for each dimension of the array the mesh axis that it is divided over, or None.
    """

    mesh: Mesh
    axes: tuple[str | None, ...]


def _of_kind(kind: str) -> list[Device]:
    devices = [found.device for found in find_devices() if found.device is not None]
    return [d for d in devices if d.info.kind == kind and not d.info.quirks & BY_NAME]


def _name(device: Device) -> str:
    same = _of_kind(device.info.kind)
    return f"{device.info.kind}:{same.index(device) if device in same else 0}"


def list_devices(device_type: str | None = None) -> list[str]:
    """Names ("gpu:0", …) of the devices of a type; by default the one in use."""
    if device_type is None:
        return [_name(context.device())]
    kind = device_type.lower()
    return [f"{kind}:{k}" for k in range(len(_of_kind(kind)))]


def get_device_count(device_type: str | None = None) -> int:
    """How many devices of a type there are; by default 1, the one in use."""
    return len(list_devices(device_type))


def initialize(job_addresses=None, num_processes=None, process_id=None) -> None:
    """Join a job of one process; makes the random seed that all parts of it share.

    Raises:
        NotImplementedError: for more processes.
    """
    addresses = [a for a in str(job_addresses or "").split(",") if a]
    if num_processes is None:
        num_processes = max(1, len(addresses))
    if num_processes != 1 or len(addresses) > 1 or process_id not in (None, 0):
        what = f"it cannot be process {process_id} of {num_processes} ({job_addresses})"
        raise NotImplementedError(_MANY.format(what=what, name=_name(context.device())))
    initialize_rng()


def initialize_rng() -> None:
    """Set Keras' global seed, unless it is set."""
    if rng_utils.get_random_seed() is None:
        rng_utils.set_random_seed(int(np.random.SeedSequence().generate_state(1)[0]))


def num_processes() -> int:
    """1."""
    return 1


def process_id() -> int:
    """0."""
    return 0


def distribute_tensor(tensor, layout):
    """`tensor`, which already lies as `layout` asks.

    Args:
        tensor: an Array, or what becomes one.
        layout: a Keras `TensorLayout` or a `Layout`, on a mesh of one device.

    Raises:
        NotImplementedError: for a mesh of more devices, or of another device than the tensor's.
    """
    layout = getattr(layout, "backend_layout", layout)
    if isinstance(tensor, Array) and isinstance(layout, Layout):
        if tensor.device is not layout.mesh.device:
            what = f"an array on {tensor.device} cannot move to {layout.mesh.device}"
            raise NotImplementedError(_MANY.format(what=what, name=_name(tensor.device)))
    return tensor


def distribute_variable(value, layout):
    """The same for the value of a variable."""
    return distribute_tensor(value, layout)


def distribute_data_input(per_process_batch, layout, batch_dim_name):
    """The same for a batch of data; it stays whole."""
    return distribute_tensor(per_process_batch, layout)


def _to_backend_device(device_name) -> Device:
    """The device in use, if that is its name.

    Raises:
        NotImplementedError: for the name of another device.
    """
    device = context.device()
    if isinstance(device_name, Device):
        found: Any = device_name
        text = _name(device_name)
    else:
        text = str(device_name).lower()
        kind, _, number = text.partition(":")
        same = _of_kind(kind)
        index = int(number) if number.isdigit() else 0
        found = same[index] if index < len(same) else None
    if found is not device:
        what = f"{text} is not the device in use, which KERASCL_DEVICE chooses"
        raise NotImplementedError(_MANY.format(what=what, name=_name(device)))
    return device


def _to_backend_mesh(device_mesh) -> Mesh:
    shape = tuple(device_mesh.devices.shape)
    if math.prod(shape) != 1:
        what = f"a mesh of shape {shape} needs {math.prod(shape)} devices"
        raise NotImplementedError(_MANY.format(what=what, name=_name(context.device())))
    return Mesh(_to_backend_device(device_mesh.devices.flat[0]), tuple(device_mesh.axis_names))


def _to_backend_layout(tensor_layout) -> Layout:
    if tensor_layout.device_mesh is None:
        raise ValueError("Cannot create sharding when device mesh is not set for TensorLayout.")
    return Layout(tensor_layout.device_mesh.backend_mesh, tuple(tensor_layout.axes))
