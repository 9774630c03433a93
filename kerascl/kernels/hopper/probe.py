"""Whether warpgroup matrix instructions work here: self-tests tell, see `selftests.asked`.

Some kernels have a self-test of their own, so that what fails there leaves the others in use.
"""

from __future__ import annotations

from kerascl import config
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.runtime.device import DeviceInfo

BASE = "wgmma"  # products: what all kernels are made of
CONVOLUTIONS = "wgmma_conv"
MOMENTS = "wgmma_moments"
# by what they are for
SELF_TESTS = {
    name: SelfTest(name, f"kerascl.kernels.hopper.selftests.{module}")
    for name, module in {
        BASE: "products", CONVOLUTIONS: "convolutions", "wgmma_channel_major": "channel_major",
        "wgmma_stem": "stem", MOMENTS: "moments", "wgmma_transposed": "transposed",
        "wgmma_register_blocked16": "register_blocked16", "wgmma_halo": "halo",
        "wgmma_pingpong": "pingpong", "wgmma_attention": "attention",
    }.items()
}  # fmt: skip


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


def available(info: DeviceInfo, name: str = BASE) -> bool:
    """Whether the kernels of wgmma.cl, and those with the self-test `name`, may be used."""
    if not capable(info):
        return False
    tests = dict.fromkeys((SELF_TESTS[BASE], SELF_TESTS[name]))
    return not any(asked.results(info, tests).values())
