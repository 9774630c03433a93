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


def tests(info: DeviceInfo) -> tuple[SelfTest, ...]:
    """Each self-test in all its parts."""
    hopper = probe.MODULES if probe.capable(info) else ()
    return (
        *(test for name in hopper for test in probe.tests(name)), *known.tests(info),
        *unit_attention.tests(info), *attention16.tests(info), *attention_fragment.tests(info),
    )  # fmt: skip


def results(info: DeviceInfo) -> dict[str, str]:
    """Of each self-test, by what it is for: "" when all its parts passed, else why one did not, and
    which where others did."""
    every = tests(info)
    known, found = asked.results(info, every), {}
    for name in dict.fromkeys(test.name for test in every):
        of = {test.part: known[test.title] for test in every if test.name == name}
        part, problem = next(((k, v) for k, v in of.items() if v), ("", ""))
        found[name] = problem if all(of.values()) or not problem else f"{part}: {problem}"
    return found
