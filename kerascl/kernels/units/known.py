"""The matrix units that sub-groups drive."""

from __future__ import annotations

from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import amd_gfx11, amd_gfx12, amd_mfma, intel_xmx, nv_sm80
from kerascl.kernels.units.fragment import Unit
from kerascl.runtime.device import DeviceInfo

UNITS: tuple[Unit, ...] = (
    nv_sm80.UNIT, amd_gfx11.UNIT, amd_gfx12.UNIT, *amd_mfma.UNITS, *intel_xmx.UNITS,
)  # fmt: skip


def available(unit: Unit, info: DeviceInfo) -> bool:
    """Whether the device has such units and, where that decides, the kernels pass their self-test
    on it."""
    if info.matrix not in unit.matrix:
        return False
    return not unit.tried or all(asked.passed(info, test) for test in tests(info))


def tests(info: DeviceInfo) -> list[SelfTest]:
    """The self-test of products and convolutions by all units of the device, where that decides
    whether they are used."""
    if not any(info.matrix in unit.matrix for unit in UNITS if unit.tried):
        return []
    return [SelfTest("products and convolutions", "kerascl.kernels.units.product_selftest")]
