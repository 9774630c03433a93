"""Whether warpgroup matrix instructions work here: self-tests tell, see `selftests.asked`.

Some kernels have a self-test of their own, so that what fails there leaves the others in use. Each
has parts, so that a program asks for what it uses alone: `PARTS` of its module.
"""

from __future__ import annotations

import pkgutil

from kerascl import config
from kerascl.kernels.selftests import asked, part
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.runtime.device import DeviceInfo

BASE = "wgmma"  # products: what all kernels are made of
CONVOLUTIONS = "wgmma_conv"
MOMENTS = "wgmma_moments"
# Modules by what they are for.
MODULES = {
    name: f"kerascl.kernels.hopper.selftests.{module}"
    for name, module in {
        BASE: "products", CONVOLUTIONS: "convolutions", "wgmma_channel_major": "channel_major",
        "wgmma_stem": "stem", MOMENTS: "moments", "wgmma_transposed": "transposed",
        "wgmma_register_blocked16": "register_blocked16", "wgmma_halo": "halo",
        "wgmma_pingpong": "pingpong", "wgmma_sum": "sums", "wgmma_several": "several",
        "wgmma_dense": "dense",
        "wgmma_attention": "attention",
        "wgmma_attention_gradient": "attention_gradient",
        "wgmma_attention_whole": "attention_gradient_whole",
        "wgmma_attention_stored": "attention_gradient_stored",
    }.items()
}  # fmt: skip


def capable(info: DeviceInfo) -> bool:
    """Whether the device has the instructions at all (sm_90a code runs on 9.0 only)."""
    return info.matrix == "wgmma90" and config.wgmma()


def parts(name: str) -> tuple[str, ...]:
    """All parts of a self-test."""
    found: tuple[str, ...] = pkgutil.resolve_name(f"{MODULES[name]}:PARTS")
    return found


def self_test(name: str, of: str) -> SelfTest:
    """The part `of` of a self-test."""
    return SelfTest(name, MODULES[name], of)


def tests(name: str) -> tuple[SelfTest, ...]:
    """A self-test in all its parts."""
    return tuple(self_test(name, of) for of in parts(name))


def base(of: str) -> str:
    """The part of the products that a part of any self-test is made of."""
    return part.named(*part.parsed(of)[:2])


def available(info: DeviceInfo, name: str = BASE, of: str = "") -> bool:
    """Whether kernels may be used: those that a part of a self-test proves, or all of its parts.

    The products that they are made of must have passed, too.
    """
    if not capable(info):
        return False
    needed = dict.fromkeys(
        test
        for own in ((of,) if of else parts(name))
        for test in (self_test(BASE, base(own)), self_test(name, own))
    )
    return asked.passed(info, *needed)
