"""What can go wrong on a device, as exceptions whose text says what to do."""

from __future__ import annotations

#: Status codes of a dead context: INVALID_COMMAND_QUEUE, INVALID_CONTEXT, and what NVIDIA's driver
#: answers to everything after a fault.
LOST = (-36, -34, -9999)


class DeviceError(RuntimeError):
    """No device fits the request, or a device failed."""


class ContextLost(DeviceError):
    """The device's context died, usually after a kernel that read or wrote out of bounds."""


class LaunchError(DeviceError):
    """A kernel could not be launched with these sizes or arguments."""


class CompileError(DeviceError):
    """An OpenCL program did not build.

    Attributes:
        log: the driver's build log.
        source: the program's text.
    """

    def __init__(self, message: str, log: str = "", source: str = ""):
        super().__init__(message)
        self.log = log
        self.source = source


class OutOfDeviceMemory(MemoryError):
    """The device (or KERASCL_MEMORY_LIMIT) has no room for a buffer, even after trimming."""
