"""Whether warpgroup matrix instructions work here: asked once for a device and driver.

A child process computes some products and convolutions; see `runtime.selftest`.
"""

from __future__ import annotations

import functools

from kerascl import config
from kerascl.runtime import device as devices
from kerascl.runtime import selftest
from kerascl.runtime.device import DeviceInfo

#: Part of the verdict's key: raise it when the kernels change in what they rely on.
VERSION = "2"


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


@functools.cache
def verdict(info: DeviceInfo) -> str:
    """ "" when the self-test passed, else why it did not; runs it where no verdict is kept."""
    return selftest.kept(info, "wgmma", VERSION, lambda: _test(info))


def available(info: DeviceInfo) -> bool:
    """Whether the kernels of wgmma.cl may be used."""
    return capable(info) and verdict(info) == ""


def _test(info: DeviceInfo) -> tuple[str, bool]:
    return selftest.in_child("kerascl.kernels.wgmma_selftest", devices.index_of(info))
