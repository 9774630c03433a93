"""Everything that a driver says of a device, for people to read."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any

from kerascl.runtime.opencl import cl

if TYPE_CHECKING:
    from kerascl.runtime.device import Device

# Handles, counts of references, what is told elsewhere, and numbers that name one card of its kind.
_LEFT_OUT = ("PLATFORM", "PARENT_DEVICE", "REFERENCE_COUNT", "EXTENSIONS", "UUID", "LUID", "SERIAL")


def everything(device: Device) -> dict[str, str]:
    """What clGetDeviceInfo answers to each name that pyopencl knows, as text; names that the
    driver does not know are left out."""
    found = {}
    for name in sorted(n for n in dir(cl.device_info) if n.isupper()):
        if any(part in name for part in _LEFT_OUT):
            continue
        try:
            value = device.handle.get_info(getattr(cl.device_info, name))
        except (cl.Error, ValueError, TypeError, NotImplementedError):
            continue
        text = _text(value)
        if text:
            found[name] = text
    return found


def pyopencl_version() -> str:
    """Of pyopencl, and of the OpenCL headers that it was built with."""
    headers = ".".join(map(str, cl.get_cl_header_version()))
    return f"{cl.VERSION_TEXT} (headers of OpenCL {headers})"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return " ".join(value.strip("\0 ").split())
    if isinstance(value, bool | numbers.Number):
        return str(value)
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_text, value)))
    if hasattr(value, "name") and hasattr(value, "version"):
        number = int(value.version)  # cl_version: 10, 10 and 12 bits
        return f"{_text(value.name)} {number >> 22}.{number >> 12 & 1023}.{number & 4095}"
    return ""
