"""The register-blocked product kernel of CPUs (cpu_micro.cl): its shapes and their choice."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Arg, Launch, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.contract.source import cl_source, prelude

# (rows, vectors) that keep sums, one row of columns and a broadcast value in 32 or 16 registers.
_SHAPES_32 = (
    (12, 2),
    (13, 2),
    (8, 3),
    (6, 4),
    (4, 5),
    (3, 6),
    (2, 8),
    (1, 8),
    (16, 1),
    (4, 2),
    (4, 1),
)
_SHAPES_16 = ((6, 2), (4, 3), (3, 3), (2, 4), (1, 6), (8, 1), (3, 2), (4, 1))

EFFICIENCY = 0.7  # share of a CPU's rate that large products reach
LONG = 256  # terms from which sums are made of sums: shorter ones lose no more by themselves


@dataclass(frozen=True)
class Micro:
    """`mr` rows by `nv` vectors of `vl` accumulators."""

    mr: int
    nv: int
    vl: int

    @property
    def nr(self) -> int:
        """Columns of a block: whole vectors."""
        return self.nv * self.vl

    def work(self, m: int, n: int) -> float:
        """Time for each depth of an m x n product, in products of one element at the speed of large
        ones: one and a half vectors a cycle."""
        # Two products of vectors a cycle, but for latency; beside them broadcast rows, and columns
        # from the second-level cache.
        cycles = max(self.mr * self.nv / 2, 4) + self.mr / 4 + self.nv * 2 / 3
        return ceil_div(m, self.mr) * ceil_div(n, self.nr) * cycles * 1.5 * self.vl

    def source(self, acc: DType, info, depth: int = 0) -> str:
        """Macros and text for sums of `depth` terms."""
        lacks = "#define NO_FMA\n" if "no_fma16" in info.quirks else ""
        lacks += "#define NO_PREFETCH\n" if "no_prefetch" in info.quirks else ""
        long = "#define LONG\n" if depth > LONG and acc.is_float else ""
        return (
            f"{lacks}{long}#define MR {self.mr}\n#define NV {self.nv}\n#define VL {self.vl}\n"
            f"#define ACC_FLOAT {int(acc.is_float)}\n" + cl_source("matmul/cpu_micro.cl")
        )


@functools.lru_cache(maxsize=256)
def shapes(acc: DType, simd_width: int) -> tuple[Micro, ...]:
    """The shapes for a CPU whose registers hold `simd_width` floats."""
    lanes = min(16, max(2, (simd_width if simd_width in (4, 8, 16) else 8) * 4 // acc.itemsize))
    table = _SHAPES_32 if simd_width == 16 else _SHAPES_16
    return tuple(Micro(mr, nv, lanes) for mr, nv in table)


def best(
    acc: DType, info, m: int, n: int, most_rows: int | None = None,
    most_columns: int | None = None,
) -> Micro:  # fmt: skip
    """The shape with the least work for an m x n product, within the bounds where possible."""
    every = shapes(acc, info.simd_width)
    fitting = [s for s in every if most_rows is None or s.mr <= most_rows]
    narrow = [s for s in fitting if most_columns is None or s.nr <= most_columns]
    return min(narrow or fitting, key=lambda s: s.work(m, n))


@dataclass(frozen=True)
class Operand:
    """An operand in memory, with strides in elements.

    Attributes:
        source, dtype: its buffer and what that holds.
        count, k: rows (or columns), and depth.
        stride, k_stride: from row to row (or column), and along the depth.
        offset: of its first element.
        batch, batch_strides: sizes and strides of the batch dimensions.
        inner: (length, outer stride) when the depth has two levels; `k_stride` is the inner one.
    """

    source: Ref
    dtype: DType
    count: int
    k: int
    stride: int
    k_stride: int
    offset: int = 0
    batch: tuple[int, ...] = (1, 1, 1)
    batch_strides: tuple[int, ...] = (0, 0, 0)
    inner: tuple[int, int] | None = None


def packing(
    operand: Operand, lanes: int, acc: DType, index: str, target: Ref, zeros: int = 0
) -> tuple[Launch, int, tuple[int, int, int]]:
    """The launch that packs an operand into panels [batch][panel][k][lanes] of accumulators; a last
    partial panel is filled with zeros.

    Args:
        zeros: so many zero accumulators are wanted after the panels of each batch entry.

    Returns:
        The launch, the bytes of `target`, and the strides between batch entries there (0 where
        the operand is repeated: that is packed once).
    """
    m = operand
    panels = ceil_div(m.count, lanes) + (1 if zeros else 0)
    sizes = tuple(n if s else 1 for n, s in zip(m.batch, m.batch_strides))
    one = panels * m.k * lanes
    steps = (sizes[1] * sizes[2] * one, sizes[2] * one, one)
    length, outer = m.inner or (m.k, 0)
    # Lanes that lie side by side are read row by row, as far as they go; others panel by panel.
    block, run = (16, ceil_div(2**14, 16 * lanes)) if m.stride == 1 else (256, 1)
    text = (
        prelude(index, B=m.dtype, ACC=acc)
        + f"#define PACK\n#define LANES {lanes}\n#define VL {math.gcd(lanes, 16)}\n"
        + f"#define SAME_TYPE {int(m.dtype.storage == acc.compute)}\n"
        + cl_source("matmul/gemm_cpu.cl")
    )
    ints = (m.count, m.k, length, zeros, block, panels, run, sizes[1], sizes[2])
    args: tuple[Arg, ...] = (
        m.source, target, *(Scalar("int", v) for v in ints),
        *(Scalar(index, v) for v in (m.offset, m.stride, m.k_stride, outer, *m.batch_strides)),
    )  # fmt: skip
    size = (ceil_div(m.k, block), ceil_div(panels, run), math.prod(sizes))
    launch = Launch(text, "gemm_pack", args, size, (1, 1, 1), role=Role.PACK)
    nbytes = math.prod(sizes) * one * acc.itemsize
    first, second, third = (step if s else 0 for step, s in zip(steps, m.batch_strides))
    return launch, nbytes, (first, second, third)


def chunk(row_panels: int, others: int, info, panel_work: float) -> int:
    """How many row panels one work-item takes: enough work to pay for its start (about
    `panel_work` products each), yet several items for each thread."""
    wanted = max(1, int(2e6 / max(panel_work, 1)))
    return max(1, min(wanted, ceil_div(row_panels * others, info.compute_units * 6), row_panels))
