"""Operands of wgmma.cl laid out anew, with k contiguous: one matrix a launch, or many."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Arg, Launch, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.tuning import machine

NAME = "wgmma_pack"
SIDE = 64  # SIDE of wgmma_pack.cl


@dataclass(frozen=True)
class Matrix:
    """An operand in memory, or a batch of them, with strides in elements.

    Attributes:
        slot: the buffer that holds it.
        rows, k: its size.
        row, depth: elements from row to row, and along k.
        offset: of its first element.
        batch, steps: sizes and strides of the batch dimensions.
    """

    slot: str
    rows: int
    k: int
    row: int
    depth: int
    offset: int = 0
    batch: tuple[int, ...] = (1, 1, 1)
    steps: tuple[int, int, int] = (0, 0, 0)


def pack_launch(
    matrix: Matrix, dtype: DType, index: str, out: str | None = None, low: str | None = None
) -> Launch:
    """Copies an operand to out[batch][row][k] with rows of `packed_step` elements, and what tf32
    loses of it to `low`; only one of both slots may be None."""
    m, step = matrix, packed_step(dtype, matrix.k)
    along_k = abs(m.depth) <= abs(m.row) or m.rows == 1
    text = (
        f"#define INDEX_T {index}\n#define WORD {'uint' if dtype.itemsize == 4 else 'ushort'}\n"
        f"#define ALONG_K {int(along_k)}\n#define HIGH {int(out is not None)}\n"
        f"#define LOW {int(low is not None)}\n" + cl_source("hopper/wgmma_pack.cl")
    )
    first = out or low or ""
    args: tuple[Arg, ...] = (
        Ref(m.slot), Ref(first), Ref(low or first),
        *(Scalar("int", v) for v in (m.rows, m.k, step, *m.batch[1:])),
        *(Scalar(index, v) for v in (m.offset, m.row, m.depth, *m.steps)),
    )  # fmt: skip
    groups = ceil_div(step, SIDE) * ceil_div(m.rows, SIDE) * math.prod(m.batch)
    return Launch(text, NAME, args, (groups * 256,), (256,), role=Role.PACK)


def packed_step(dtype: DType, k: int) -> int:
    """Elements from row to row of a packed operand: whole units of 16 bytes."""
    return round_up(k, 16 // dtype.itemsize)


def pack_time(nbytes: int, info) -> float:
    """Microseconds to pack an operand of so many bytes."""
    rates = machine.of(info)
    return rates.launch + rates.begin + rates.moving(2 * nbytes)


@dataclass(frozen=True)
class Job:
    """One matrix of a launch of many: the numbers ROWS, K, STEP, ROW and DEPTH of wgmma_pack.cl."""

    rows: int
    k: int
    step: int
    row: int
    depth: int

    @property
    def groups(self) -> int:
        """Work-groups, each of a square of SIDE x SIDE elements."""
        return ceil_div(self.step, SIDE) * ceil_div(self.rows, SIDE)


def job_of(args, global_size: tuple[int, ...]) -> Job | None:
    """The Job of a launch with these arguments (numbers where `pack_launch` has Scalars), or None
    if it is of a batch or of a part of a matrix."""
    rows, k, step, *_, offset, row, depth = (int(a) for a in args[3:11])
    job = Job(rows, k, step, row, depth)
    return job if offset == 0 and global_size == (job.groups * 256,) else None


def many(source: str, jobs: list[Job]) -> tuple[str, str, int]:
    """(source, name, groups) of a kernel that does the jobs of several launches of `source`; its
    arguments are in, out and low of each."""
    params, cases, first = [], [], 0
    for n, job in enumerate(jobs):
        params.append(
            f"__global const WORD* restrict i{n}, __global WORD* restrict o{n}, "
            f"__global WORD* restrict l{n}"
        )
        test = f"if (group < {first + job.groups}) " if n + 1 < len(jobs) else ""
        cases.append(
            f"{test}{{ in = i{n}; out = o{n}; low = l{n}; first = {first}; rows = {job.rows}; "
            f"k = {job.k}; step = {job.step}; row = {job.row}; depth = {job.depth}; }}"
        )
        first += job.groups
    head = f"#define JOB_PARAMS {', '.join(params)}\n#define JOBS {' else '.join(cases)}\n"
    return head + source, NAME + "_many", first
