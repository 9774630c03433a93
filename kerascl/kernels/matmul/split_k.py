"""Split-k: sums over k that several work-groups share, and the launch that adds their parts."""

from __future__ import annotations

from dataclasses import replace

from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorStore
from kerascl.kernels.contract.loaded import LOADED
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type, round_up
from kerascl.kernels.contract.source import Source, cl_source, prelude, unit
from kerascl.kernels.tuning import machine
from kerascl.runtime.device import DeviceInfo

GROUP = 64
MAX_PARTIAL_BYTES = 128 * 2**20
# Slices that a work-item of a GPU reads at once: as few kinds of text as can be, so that launches
# become one; where there are few slices, registers for more work-items.
TURNS = (4, 12)
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)


def most_slices(total: int, acc: DType) -> int:
    """How many slices' partial sums, `total` accumulators each, fit MAX_PARTIAL_BYTES."""
    return max(1, MAX_PARTIAL_BYTES // (total * acc.itemsize))


def slice_counts(
    wanted: int | None, total: int, acc: DType, depth: int, step: int
) -> tuple[int, ...]:
    """Numbers of slices to consider for a sum over `depth` in steps of a tile's: where none is
    `wanted`, those of at least eight steps each."""
    most = min(most_slices(total, acc), ceil_div(depth, step), COUNTS[-1])
    if wanted is not None:
        return (max(1, min(wanted, most)),)
    return tuple(s for s in COUNTS if s == 1 or (s <= most and depth // s >= 8 * step))


def partial_epilogue(acc: DType, offset: str, slot: str = "ws0", aligned: bool = False) -> Epilogue:
    """Stores partial sums (accumulators), `offset` (a C expression) elements further on, which is
    `aligned` where it is a multiple of four."""
    stores = (VectorStore(f"(part + ({offset}))", acc, "acc"),) if aligned else ()
    return Epilogue(
        f", __global {acc.compute}* restrict part", (Ref(slot),), f"part[({offset}) + i] = acc;",
        stores=stores,
    )  # fmt: skip


def reduction_launch(
    total: int, splits: int, acc: DType, index: str, epilogue: Epilogue, slot: str = "ws0"
) -> Launch:
    """Sums `splits` slices of `total` accumulators, in order so that results repeat exactly, and
    hands each sum to the epilogue."""
    ctype = acc.compute
    lines = (
        f"const {index} i = get_global_id(0);",
        "if (i < total) {",
        f"  {ctype} sum = 0;",
        f"  for (int s = 0; s < splits; ++s) sum += part[({index})s * total + i];",
        f"  const {ctype} acc = sum;",
        *(f"  {line}" for line in epilogue.body.splitlines()),
        "}",
    )
    size = round_up(total, GROUP)
    return _reduction("gemm_reduce", lines, total, splits, acc, index, epilogue, slot, size, GROUP)


def reduction_wait(splits: int, info) -> float:
    """Microseconds of a launch that sums so many slices if caches still hold them: each work-item
    reads as many at once as in a turn, then waits twice for memory."""
    rates = machine.of(info)
    if splits == 1:
        return 0.0
    return rates.launch + 2 * rates.latency * ((splits - 1) // TURNS[-1])


def reduction_time(total: int, splits: int, info) -> float:
    """The same with slices of `total` accumulators that go through memory."""
    if splits == 1:
        return 0.0
    moved = machine.of(info).moving(4 * total * (2 * splits + 1))
    return reduction_wait(splits, info) + moved


def vector_reduction_launch(
    total: int, splits: int, acc: DType, index: str, epilogue: Epilogue, info: DeviceInfo,
    slot: str = "ws0",
) -> Launch:  # fmt: skip
    """The same with four sums a work-item where the epilogue allows that: a GPU's memory is busy
    only while several reads of each work-item are under way."""
    ctype = acc.compute
    if total % 4 or ctype not in ("float", "int") or not epilogue.has_vectors:
        return reduction_launch(total, splits, acc, index, epilogue, slot)
    adding = [
        f"{ctype}4 sum = 0;",
        *_adding(splits, ctype, index, info),
        f"const {ctype} sums[4] = {{sum.x, sum.y, sum.z, sum.w}};",
    ]
    lines = (
        f"const {index} at = ({index})get_global_id(0) * 4;",
        "if (at < total) {",
        "  " + epilogue.vectors("4", "1", "4", ctype, index, "sums", "at", "0", made=adding),
        "}",
    )
    group = 2 * GROUP if info.kind == "cpu" else GROUP
    size = round_up(total // 4, group)
    made = _reduction("gemm_reduce4", lines, total, splits, acc, index, epilogue, slot, size, group)
    if info.kind == "cpu":
        return made
    assert made.text is not None
    # reads of what nobody else may write, by `restrict`, pass KCL_LOADED
    params = (made.text.params[0].replace("restrict ", ""), *made.text.params[1:])
    text = replace(made.text, params=params, helpers=(LOADED, *made.text.helpers))
    return replace(made, source=unit([text]), text=text)


def _adding(splits: int, ctype: str, index: str, info: DeviceInfo) -> list[str]:
    """Statements that add the vectors of all slices to `sum`, in order."""
    read = f"*(__global const {ctype}4*)(part + ({index})(%s) * total + at)"
    if info.kind == "cpu":
        loop = '_Pragma("unroll 16") for (int s = 0; s < splits; ++s)'
        return [f"{loop} sum += {read % 's'};"]
    # All reads of a turn are under way before the first is added; what is not there is 0.
    count = next((count for count in TURNS if count >= splits), TURNS[-1])
    reads, sums = [], []
    for first in range(0, count, 4):
        own = [(k, f"s + {k}" if k else "s") for k in range(first, first + 4)]
        here = [f"if ({at} < splits) p{k} = {read % at};" for k, at in own]
        reads += _where(first, here)
        sums += _where(first, [f"sum += p{k};" for k, _ in own])
    zeros = ", ".join(f"p{k} = 0" for k in range(count))
    return [
        f"for (int s = 0; s < splits; s += {count}) {{ {ctype}4 {zeros};",
        *reads, "KCL_LOADED {", *sums, "} }",
    ]  # fmt: skip


def _where(first: int, lines: list[str]) -> list[str]:
    """The lines where slice `first` of a turn is there."""
    return [f"if (s + {first} < splits) {{", *lines, "}"] if first else lines


def _reduction(name, lines, total, splits, acc, index, epilogue, slot, size, group) -> Launch:
    params = (
        f"__global const {acc.compute}* restrict part",
        f"const {index} total",
        "const int splits",
        *epilogue.param_list,
    )
    helpers = (*epilogue.helpers, *epilogue.vector_helpers)
    body = "".join(f"  {line}\n" for line in lines)
    text = Source(name, params, body, helpers, acc.is_double or epilogue.uses_double)
    args = (Ref(slot), Scalar(index, total), Scalar("int", splits), *epilogue.args)
    return Launch(unit([text]), name, args, (size,), (group,), text=text, role=Role.REDUCE)


def zero_plan(total: int, acc: DType, epilogue: Epilogue) -> Plan:
    """Sends zero to the epilogue, which has no moments, for every output element (the sum over
    nothing)."""
    if total == 0:
        return Plan([])
    index = index_type(total + GROUP)
    source = (
        prelude(index, ACC=acc)
        + epilogue.defines
        + "#define ZERO\n"
        + cl_source("matmul/gemm_small.cl")
    )
    args = (Scalar(index, total), *epilogue.args)
    size = round_up(total, GROUP)
    return Plan([Launch(source, "gemm_zero", args, (size,), (GROUP,))])
