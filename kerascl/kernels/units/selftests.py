"""Which self-tests of matrix units a device can begin, by what they are for.

They are asked for together: they mostly wait for the driver's compiler, which builds the programs
of all at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from kerascl.kernels.hopper import probe
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment, known
from kerascl.runtime.device import DeviceInfo

_PRODUCTS = (probe.BASE, "wgmma_transposed", "wgmma_pingpong")
_ATTENTION = "wgmma_attention"


def products(info: DeviceInfo) -> tuple[SelfTest, ...]:
    """Those that products need."""
    return (*_hopper(info, lambda name: name in _PRODUCTS), *known.tests(info))


def convolutions(info: DeviceInfo) -> tuple[SelfTest, ...]:
    """Those that convolutions need, which are products, too."""
    return (*_hopper(info, lambda name: name != _ATTENTION), *known.tests(info))


def attention(info: DeviceInfo) -> tuple[SelfTest, ...]:
    """Those that attention needs, and the products beside it."""
    mma = [unit_attention.SELF_TEST] if info.matrix in unit_attention.MATRIX else []
    return (
        *products(info), *_hopper(info, lambda name: name == _ATTENTION), *mma,
        *attention16.tests(info), *attention_fragment.tests(info),
    )  # fmt: skip


def _hopper(info: DeviceInfo, wanted: Callable[[str], bool]) -> list[SelfTest]:
    if not probe.capable(info):
        return []
    return [test for name, test in probe.SELF_TESTS.items() if wanted(name)]


@functools.cache
def ask(info: DeviceInfo, needed: Callable[[DeviceInfo], tuple[SelfTest, ...]]) -> None:
    """Run those of `products`, `convolutions` or `attention` that have no kept result."""
    asked.results(info, needed(info))


def results(info: DeviceInfo) -> dict[str, str]:
    """Of each self-test, by what it is for: "" when it passed, else why it did not."""
    return asked.results(info, (*convolutions(info), *attention(info)))
