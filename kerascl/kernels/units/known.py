"""The matrix units that sub-groups drive."""

from __future__ import annotations

import functools

from kerascl.kernels.units import amd_gfx11, amd_gfx12, intel_xmx, nv_sm80
from kerascl.kernels.units.fragment import Unit
from kerascl.runtime import device as devices
from kerascl.runtime import selftest, sources
from kerascl.runtime.device import DeviceInfo

UNITS: tuple[Unit, ...] = (nv_sm80.UNIT, amd_gfx11.UNIT, amd_gfx12.UNIT, *intel_xmx.UNITS)


def available(unit: Unit, info: DeviceInfo) -> bool:
    """Whether the device has such units and, where that decides, the kernels pass their self-test
    on it."""
    return info.matrix in unit.matrix and (not unit.tried or _passes(unit, info))


@functools.cache
def _passes(unit: Unit, info: DeviceInfo) -> bool:
    module = "kerascl.kernels.units.product_selftest"
    return not selftest.kept(
        info, f"product_{unit.name}", sources.of_module(module),
        lambda: selftest.in_child(module, devices.index_of(info)),
    )  # fmt: skip
