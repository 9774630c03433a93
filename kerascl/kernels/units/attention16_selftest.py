"""Attention with 16-bit tiles of attention_mma.cl: a self-test for that alone."""

from __future__ import annotations

from collections.abc import Iterator

from kerascl import dtypes
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention16, attention_selftest
from kerascl.kernels.units.attention_selftest import WAYS
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.Case, by the other words of a part: whole and partial blocks, and features
# that are no multiple of 16.
CASES = {
    "64": (2, 150, 190, 2, 64, 64, False, 1.0),
    "64 causal": (2, 150, 190, 2, 64, 64, True, 1.0),
    "64 dropout": (2, 150, 190, 2, 64, 64, False, 0.75),
    "64 causal dropout": (2, 150, 190, 2, 64, 40, True, 0.75),
    "128": (1, 140, 170, 2, 128, 104, False, 1.0),
    "128 causal": (1, 140, 170, 2, 128, 104, True, 1.0),
    "128 dropout": (1, 140, 170, 2, 104, 128, False, 0.75),
    "128 causal dropout": (1, 140, 170, 2, 128, 128, True, 0.75),
}
BOUNDS = {dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}
PARTS = tuple(
    f"{dtype.name} {case} {way}" for dtype in BOUNDS for case in CASES for way in WAYS
)  # fmt: skip


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case with the first tile of each table that OpenCL's local memory has room for."""
    kinds = attention16.Attention16, attention16.Attention16Gradient
    dtype, _, (*words, way) = part.parsed(of)
    solvers = attention_selftest.one_way(way, [kind(room=attention16.PLAIN) for kind in kinds])
    case = CASES[" ".join(words)]
    cases = [(case, dtype, BOUNDS[dtype], solvers)]
    return attention_selftest.attentions(info, cases, kept=(False, True))
