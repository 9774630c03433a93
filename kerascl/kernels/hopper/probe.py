"""Whether warpgroup matrix instructions work here: asked once for a device and driver.

Child processes compute some products and convolutions; see `runtime.selftest`.  A family of
kernels may have a verdict of its own, so that what fails there leaves the others in use.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

from kerascl import config
from kerascl.runtime import device as devices
from kerascl.runtime import selftest, sources
from kerascl.runtime.device import DeviceInfo

BASE = "wgmma"  # the family of those that share a verdict
# family -> its self-test, a module of `selftests`
SELF_TESTS = {
    BASE: "basics", "wgmma_channel_major": "channel_major", "wgmma_stem": "stem",
    "wgmma_moments": "moments", "wgmma_register_blocked16": "register_blocked16",
    "wgmma_transposed": "transposed", "wgmma_halo": "halo",
}  # fmt: skip


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


@functools.cache
def verdicts(info: DeviceInfo) -> dict[str, str]:
    """Of each family: "" when its self-test passed, else why it did not.

    Where no verdict is kept the self-tests run, all at once: they mostly wait for the driver's
    compiler.
    """

    def verdict(family: str) -> str:
        digest = sources.of_module(self_test(family))
        return selftest.kept(info, family, digest, lambda: _test(info, family))

    with ThreadPoolExecutor(len(SELF_TESTS)) as pool:
        return dict(zip(SELF_TESTS, pool.map(verdict, SELF_TESTS), strict=True))


def available(info: DeviceInfo, family: str = BASE) -> bool:
    """Whether the kernels of wgmma.cl, and those of a family with its own verdict, may be used."""
    if not capable(info):
        return False
    known = verdicts(info)
    return not known[BASE] and not known[family]


def _test(info: DeviceInfo, family: str) -> tuple[str, bool]:
    return selftest.in_child(self_test(family), devices.index_of(info))


def self_test(family: str) -> str:
    """The module that computes something with the kernels of a family."""
    return f"kerascl.kernels.hopper.selftests.{SELF_TESTS[family]}"
