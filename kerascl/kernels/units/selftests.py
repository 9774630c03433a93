"""Every self-test of matrix units that a device can begin, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kerascl.kernels.hopper import probe
from kerascl.kernels.units import attention, attention16, attention_fragment, known
from kerascl.runtime.device import DeviceInfo


def results(info: DeviceInfo) -> dict[str, str]:
    """Of each self-test, by what it is for: "" when it passed, else why it did not.

    Those without a kept result run now, at once: they mostly wait for the driver's compiler.
    """
    tests: list[Callable[[], dict[str, str]]] = []
    if probe.capable(info):
        tests.append(lambda: probe.results(info))
    if info.matrix in attention.MATRIX:
        tests.append(lambda: {"attention_mma": attention.result(info)})
        tests.append(lambda: attention16.results(info))
    if any(info.matrix in unit.matrix for unit in known.UNITS if unit.tried):
        tests.append(lambda: {"products and convolutions": known.result(info)})
        tests.append(lambda: {"attention": attention_fragment.result(info)})
    found: dict[str, str] = {}
    with ThreadPoolExecutor(max(1, len(tests))) as pool:
        for part in pool.map(lambda test: test(), tests):
            found |= part
    return found
