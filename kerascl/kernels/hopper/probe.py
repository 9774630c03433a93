"""Whether warpgroup matrix instructions work here: asked once for a device and driver.

Child processes compute some products and convolutions; see `runtime.selftest`.  Some
kernels have a self-test of their own, so that what fails there leaves the others in use.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

from kerascl import config
from kerascl.runtime import device as devices
from kerascl.runtime import selftest, sources
from kerascl.runtime.device import DeviceInfo

BASE = "wgmma"  # the self-test of all kernels that have none of their own
# name -> the self-test's module in `selftests`
SELF_TESTS = {
    BASE: "basics", "wgmma_channel_major": "channel_major", "wgmma_stem": "stem",
    "wgmma_moments": "moments", "wgmma_register_blocked16": "register_blocked16",
    "wgmma_transposed": "transposed", "wgmma_halo": "halo", "wgmma_pingpong": "pingpong",
    "wgmma_attention": "attention", "wgmma_attention_gradient": "attention_gradient",
}  # fmt: skip


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


@functools.cache
def results(info: DeviceInfo) -> dict[str, str]:
    """Of each self-test: "" when it passed, else why it did not.

    Where no result is kept the self-tests run, all at once: they mostly wait for the driver's
    compiler.
    """

    def result(name: str) -> str:
        digest = sources.of_module(self_test(name))
        return selftest.kept(info, name, digest, lambda: _test(info, name))

    with ThreadPoolExecutor(len(SELF_TESTS)) as pool:
        return dict(zip(SELF_TESTS, pool.map(result, SELF_TESTS), strict=True))


def available(info: DeviceInfo, name: str = BASE) -> bool:
    """Whether the kernels of wgmma.cl, and those with the self-test `name`, may be used."""
    if not capable(info):
        return False
    known = results(info)
    return not known[BASE] and not known[name]


def _test(info: DeviceInfo, name: str) -> tuple[str, bool]:
    return selftest.in_child(self_test(name), devices.index_of(info))


def self_test(name: str) -> str:
    """The module that computes something with the kernels that a self-test is for."""
    return f"kerascl.kernels.hopper.selftests.{SELF_TESTS[name]}"
