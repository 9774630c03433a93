"""The matrix units that sub-groups drive."""

from __future__ import annotations

import pkgutil

from kerascl.dtypes import DType
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import amd_gfx11, amd_gfx12, amd_mfma, intel_xmx, nv_sm80
from kerascl.kernels.units.fragment import Unit
from kerascl.runtime.device import DeviceInfo

SELF_TEST, MODULE = "products and convolutions", "kerascl.kernels.units.product_selftest"
UNITS: tuple[Unit, ...] = (
    nv_sm80.UNIT, amd_gfx11.UNIT, amd_gfx12.UNIT, *amd_mfma.UNITS, *intel_xmx.UNITS,
)  # fmt: skip


def available(unit: Unit, info: DeviceInfo, dtype: DType, kind: str) -> bool:
    """Whether the device has such units and, where that decides, the kernels for a dtype pass their
    self-test on it.

    Args:
        kind: "product", or a convolution's.
    """
    if info.matrix not in unit.matrix:
        return False
    of = f"{dtype.name} {kind}"
    return not unit.tried or asked.passed(info, SelfTest(SELF_TEST, MODULE, of))


def tests(info: DeviceInfo) -> list[SelfTest]:
    """The self-test of products and convolutions by all units of the device in all its parts, where
    that decides whether they are used."""
    if not any(info.matrix in unit.matrix for unit in UNITS if unit.tried):
        return []
    return [SelfTest(SELF_TEST, MODULE, of) for of in pkgutil.resolve_name(f"{MODULE}:parts")(info)]
