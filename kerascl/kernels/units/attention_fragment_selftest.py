"""Attention with attention_fragment.cl: a self-test for that alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Trial
from kerascl.kernels.units import attention_fragment, attention_selftest
from kerascl.kernels.units.attention_selftest import WAYS
from kerascl.kernels.units.fragment import Unit
from kerascl.runtime.device import DeviceInfo

# As attention_selftest.CASES: between them whole and partial blocks, causal masks, dropout, and
# features that are no multiple of an instruction's.
CASES = (
    (1, 150, 170, 2, 36, 64, True, 0.75), (2, 140, 75, 1, 64, 20, False, 1.0),
)  # fmt: skip
BOUNDS = {dtypes.bfloat16: 1e-2, dtypes.float16: 2e-3}


def _taken(info: DeviceInfo) -> list[tuple[Unit, DType]]:
    """The device's units with each dtype that they take."""
    units = [unit for unit in attention_fragment.UNITS if info.matrix in unit.matrix]
    return [(unit, dtype) for unit in units for dtype in unit.floats]


def _bound(unit: Unit, dtype: DType) -> float:
    """Of relative errors: operands of float32 lose up to 13 bits, or 8, or none."""
    rounded = unit.fragments[dtype].dtype is dtypes.float32 and not unit.exact
    return BOUNDS.get(dtype, 4e-3 if rounded else 5e-5)


PARTS = tuple(f"{name} {way}" for name in ("float32", "bfloat16", "float16") for way in WAYS)


def parts(info: DeviceInfo) -> tuple[str, ...]:
    """Those that the device's units have kernels of."""
    taken = {dtype.name for _, dtype in _taken(info)}
    return tuple(of for of in PARTS if of.split()[0] in taken)


def _solvers(unit: Unit, dtype: DType, case: tuple, info: DeviceInfo) -> tuple:
    """Both, with the blocks that large problems have."""
    kinds = attention_fragment.FragmentAttention, attention_fragment.FragmentAttentionGradient
    large = [
        dataclasses.replace(p, batch=64, length=2048, source=2048)
        for p in attention_selftest.problems(case, dtype)
    ]
    return tuple(
        kind(unit, kind(unit).block(p, info)) for kind, p in zip(kinds, large, strict=True)
    )


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """A case for each unit that takes a dtype; of different ones for the dtypes."""
    dtype, _, (way,) = part.parsed(of)
    cases = []
    for i, (unit, taken) in enumerate(_taken(info)):
        if taken is dtype:
            case = CASES[i % len(CASES)]
            solvers = attention_selftest.one_way(way, _solvers(unit, dtype, case, info))
            cases.append((case, dtype, _bound(unit, dtype), solvers))
    return attention_selftest.attentions(info, cases)
