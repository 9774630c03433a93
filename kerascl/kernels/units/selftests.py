"""All self-tests of matrix units that a device can begin.

Programs ask for the parts that they use (`selftests.asked`); who wants to know of all asks here.
"""

from __future__ import annotations

from kerascl.kernels.hopper import probe
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment, known
from kerascl.runtime.device import DeviceInfo

# Of attention's many parts, those that say something of every kernel and most of what differs: who
# looks at a device need not wait for each mask with each dtype.
_SIXTEEN = "bfloat16 64 dropout", "float16 128 causal"
_WAYS = "forward", "gradient"
SHOWN = {
    "wgmma_attention": (*_SIXTEEN, "bfloat16 128 causal", "float16 64 causal dropout"),
    "wgmma_attention_gradient": _SIXTEEN,
    "wgmma_attention_whole": ("bfloat16 64 dropout", "float16 64 causal"),
    "wgmma_attention_stored": ("bfloat16 128 dropout", "float16 128 causal"),
    attention16.BASE: tuple(f"{of} {way}" for of in _SIXTEEN for way in _WAYS),
    attention16.BEYOND: tuple(f"{of} {way}" for of in _SIXTEEN for way in _WAYS),
    unit_attention.SELF_TEST: tuple(
        f"{of} {way}" for of in ("float32", "float32 causal", "float32 dropout", "bfloat16")
        for way in _WAYS
    ),
}  # fmt: skip


def tests(info: DeviceInfo) -> tuple[SelfTest, ...]:
    """Each self-test in all its parts."""
    hopper = probe.MODULES if probe.capable(info) else ()
    return (
        *(test for name in hopper for test in probe.tests(name)), *known.tests(info),
        *unit_attention.tests(info), *attention16.tests(info), *attention_fragment.tests(info),
    )  # fmt: skip


def results(info: DeviceInfo) -> dict[str, str]:
    """Of each self-test, by what it is for: "" when all its parts (of attention those of SHOWN)
    passed, else why one did not, and which where others did."""
    every = [test for test in tests(info) if test.part in SHOWN.get(test.name, (test.part,))]
    known, found = asked.results(info, every), {}
    for name in dict.fromkeys(test.name for test in every):
        of = {test.part: known[test.title] for test in every if test.name == name}
        part, problem = next(((k, v) for k, v in of.items() if v), ("", ""))
        found[name] = problem if all(of.values()) or not problem else f"{part}: {problem}"
    return found
