"""What the tiled product kernels (GEMM and convolution) share: tile shapes and source pieces."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.solver import (
    Epilogue,
    Launch,
    NoMoments,
    Plan,
    Ref,
    Role,
    Scalar,
    cl_source,
    prelude,
)
from kerascl.kernels.source import Source, unit

FOLD_GROUP = 64
COST_PER_MICROSECOND = 1.8e5  # of an H200, in the unit of Tile.time
LAUNCH = 6.5  # microseconds that one more launch takes


@dataclass(frozen=True)
class Tile:
    """One tile shape of gemm_tile.cl: a work-group computes bm x bn in steps of bk along k, each
    work-item tm x tn.  `speed` is the share of peak a large problem reaches, for choosing."""

    bm: int
    bn: int
    tm: int
    tn: int
    speed: float

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    def bk(self, acc: DType) -> int:
        return 8 if acc.itemsize > 4 else 16

    def local_bytes(self, acc: DType, table: int = 0) -> int:
        """Bytes of local memory: two tiles of each operand, and `table` bytes per depth."""
        return 2 * self.bk(acc) * ((self.bm + self.bn + 8) * acc.itemsize + table)

    def fits(self, acc: DType, info, table: int = 0) -> bool:
        room = info.local_mem_bytes
        return self.threads <= info.max_work_group_size and self.local_bytes(acc, table) <= room

    def defines(self, acc: DType, av: int, bv: int, a_along_k: bool, b_along_k: bool, info) -> str:
        # CPU drivers gain nothing from an unrolled depth and take seconds to compile it.
        unroll = '"unroll"' if info.kind == "gpu" else '"nounroll"'
        names = dict(
            BM=self.bm, BN=self.bn, BK=self.bk(acc), TM=self.tm, TN=self.tn, AV=av, BV=bv,
            A_ALONG_K=int(a_along_k), B_ALONG_K=int(b_along_k), KK_UNROLL=unroll,
        )  # fmt: skip
        return "".join(f"#define {k} {v}\n" for k, v in names.items())

    def time(self, m: int, n: int, k: int, batch: int, splits: int, info) -> float:
        """A relative time: rounds of work-groups over the compute units, times one group's work."""
        units = info.compute_units
        groups = ceil_div(m, self.bm) * ceil_div(n, self.bn) * batch * splits
        depth = ceil_div(k, splits) + 32
        fold = m * n * batch * (splits + 2) / units + fixed_time(LAUNCH, info)
        time = ceil_div(groups, units) * self.bm * self.bn * depth / self.speed
        return time + (fold if splits > 1 else 0.0)


def fixed_time(microseconds: float, info) -> float:
    """What takes so long on any GPU, in the unit of Tile.time: one product of one compute unit,
    about 5.5 ps on an H200.  Compute units without matrix units are slower."""
    return microseconds * (COST_PER_MICROSECOND if info.matrix else 6.15e3)


TILES = (
    Tile(128, 128, 8, 8, 1.0),
    Tile(128, 64, 8, 8, 0.85),
    Tile(64, 128, 8, 8, 0.85),
    Tile(64, 64, 4, 4, 0.65),
    Tile(128, 32, 8, 4, 0.6),
    Tile(32, 128, 4, 8, 0.6),
    Tile(32, 32, 4, 4, 0.35),
)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    return -(-a // b) * b


def index_type(*largest: int) -> str:
    """ "int" if every index below the given bounds fits, else "long"."""
    return "int" if max(largest) < 2**31 else "long"


def load4(name: str, dtype: DType, acc: DType) -> str:
    """The macro <name>_LOAD4(p, i): four elements at element i (a multiple of four) as ACC_T4."""
    vector = f"*(__global const {dtype.storage}4*)((p) + (i))"
    if dtype is dtypes.float16:
        value = f"convert_{acc.compute}4(vload_half4(0, (p) + (i)))"
    elif dtype is dtypes.bfloat16:
        value = f"convert_{acc.compute}4(as_float4(convert_uint4({vector}) << 16))"
    elif dtype.is_float8:
        each = ", ".join(dtype.load.format(p="(p)", i=f"(i) + {k}") for k in range(4))
        value = f"convert_{acc.compute}4((float4)({each}))"
    elif dtype.is_bool:
        value = f"convert_{acc.compute}4(-convert_int4({vector} != (uchar4)0))"
    else:
        value = f"convert_{acc.compute}4({vector})"
    return f"#define {name}_LOAD4(p, i) {value}\n"


def partial_epilogue(acc: DType, offset: str, slot: str = "ws0") -> Epilogue:
    """Stores partial sums (accumulators), `offset` (a C expression) elements further on."""
    return Epilogue(
        f", __global {acc.compute}* restrict part", (Ref(slot),), f"part[({offset}) + i] = acc;"
    )


def fold_launch(
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
    size = round_up(total, FOLD_GROUP)
    return _fold("gemm_fold", lines, total, splits, acc, index, epilogue, slot, size, FOLD_GROUP)


def fold_vectors_latency(splits: int) -> float:
    """Microseconds that `fold_vectors_launch` takes at least: a work-item reads 16 slices at once,
    then waits for them."""
    return LAUNCH + 1.1 * ((splits - 1) // 16)


def fold_vectors_launch(
    total: int, splits: int, acc: DType, index: str, epilogue: Epilogue, slot: str = "ws0"
) -> Launch:
    """The same with four sums a work-item where the epilogue allows that: a GPU's memory is busy
    only while several reads of each work-item are under way."""
    if total % 4 or acc.compute != "float" or not epilogue.has_vectors:
        return fold_launch(total, splits, acc, index, epilogue, slot)
    lines = (
        f"const {index} at = ({index})get_global_id(0) * 4;",
        "if (at < total) {",
        "  float4 sum = 0;",
        # Few work-items, so each needs many loads in flight.
        "  _Pragma(\"unroll 16\") for (int s = 0; s < splits; ++s)",
        f"    sum += *(__global const float4*)(part + ({index})s * total + at);",
        "  const float sums[4] = {sum.x, sum.y, sum.z, sum.w};",
        "  " + epilogue.vectors("4", "1", "4", "float", index, "sums", "at", "0"),
        "}",
    )
    size = round_up(total // 4, 128)
    return _fold("gemm_fold4", lines, total, splits, acc, index, epilogue, slot, size, 128)


def _fold(name, lines, total, splits, acc, index, epilogue, slot, size, group) -> Launch:
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
    """Sends zero to the epilogue for every output element (the sum over nothing).

    Raises:
        NoMoments: the epilogue has moments.
    """
    if epilogue.moments:
        raise NoMoments
    if total == 0:
        return Plan([])
    index = index_type(total + FOLD_GROUP)
    source = (
        prelude(index, ACC=acc) + epilogue.defines + "#define ZERO\n" + cl_source("gemm_small.cl")
    )
    args = (Scalar(index, total), *epilogue.args)
    size = round_up(total, FOLD_GROUP)
    return Plan([Launch(source, "gemm_zero", args, (size,), (FOLD_GROUP,))])


def rename_slots(plan: Plan, names: dict[str, str]) -> Plan:
    """The plan with input slots renamed, for a solver that delegates with its inputs swapped."""

    def rename(arg):
        if isinstance(arg, Ref) and arg.slot in names:
            return dataclasses.replace(arg, slot=names[arg.slot])
        return arg

    launches = [dataclasses.replace(x, args=tuple(map(rename, x.args))) for x in plan.launches]
    return Plan(launches, plan.workspace)
