"""The matrix units that sub-groups drive."""

from __future__ import annotations

import functools

from kerascl.kernels.units import amd_gfx11, amd_gfx12, amd_mfma, intel_xmx, nv_sm80
from kerascl.kernels.units.fragment import Unit
from kerascl.runtime import device as devices
from kerascl.runtime import selftest, sources
from kerascl.runtime.device import DeviceInfo

UNITS: tuple[Unit, ...] = (
    nv_sm80.UNIT, amd_gfx11.UNIT, amd_gfx12.UNIT, *amd_mfma.UNITS, *intel_xmx.UNITS,
)  # fmt: skip


def available(unit: Unit, info: DeviceInfo) -> bool:
    """Whether the device has such units and, where that decides, the kernels pass their self-test
    on it."""
    return info.matrix in unit.matrix and (not unit.tried or not result(info))


@functools.cache
def result(info: DeviceInfo) -> str:
    """Of the self-test of all units of the device: "" when it passed, else why it did not."""
    module = "kerascl.kernels.units.product_selftest"
    return selftest.kept(
        info, f"product_{info.matrix}", sources.of_module(module),
        lambda: selftest.in_child(module, devices.index_of(info)),
    )  # fmt: skip
