"""What the tiled product kernels (GEMM and convolution) share: tile shapes and source pieces."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import NamedTuple

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.matmul.split_k import reduction_time
from kerascl.kernels.tuning import machine
from kerascl.runtime.device import DeviceInfo

DEEP, SHALLOW_DEPTH = 16, 8  # steps along k of accumulators of four bytes


class Loads(NamedTuple):
    """Elements that one load of each operand takes: 1 or 4."""

    a: int
    b: int


@dataclass(frozen=True)
class Tile:
    """One tile shape of gemm_tile.cl: a work-group computes bm x bn in steps of bk along k, each
    work-item tm x tn.  `depth` is bk of accumulators of four bytes."""

    bm: int
    bn: int
    tm: int
    tn: int
    depth: int = DEEP

    @property
    def name(self) -> str:
        """The name of the solver that takes the tile, before the number of splits."""
        # Of square tiles there is another with fewer results a work-item.
        high = f"x{self.tm}" if self.bm == self.bn and self.tm > self.tn else ""
        return f"tiled{self.bm}x{self.bn}{high}" + ("" if self.depth == DEEP else f"d{self.depth}")

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return (self.bm // self.tm) * (self.bn // self.tn)

    def bk(self, acc: DType) -> int:
        """Elements of k in one step: half as many for accumulators of more than four bytes."""
        return self.depth // 2 if acc.itemsize > 4 else self.depth

    def local_bytes(self, acc: DType, table: int = 0) -> int:
        """Bytes of local memory: two tiles of each operand, and `table` bytes per depth."""
        return 2 * self.bk(acc) * ((self.bm + self.bn + 8) * acc.itemsize + table)

    def registers(self, acc: DType, loads: Loads, coordinates: int = 0, held: int = 20) -> int:
        """About how many registers a work-item needs: sums, two rows and columns of the tiles, what
        is on its way to them, an index for each load, of the left operand with `coordinates`, and
        what is `held` throughout."""
        left, right = (n * self.bk(acc) // self.threads for n in (self.bm, self.bn))
        values = self.tm * self.tn + 2 * (self.tm + self.tn) + left + right
        # Products of 64 bits are put together from smaller ones; bytes are taken out of words, and
        # sums of them put back.
        words = ceil_div(acc.itemsize, 4) + (acc.is_integer and acc.itemsize != 4)
        if acc.is_integer and acc.itemsize < 4:
            held += self.tm * self.tn
        indices = ceil_div(left, loads.a) * (1 + coordinates) + ceil_div(right, loads.b)
        return values * words + indices + held

    def fits(self, acc: DType, loads: Loads, info: DeviceInfo, table: int = 0, **more: int) -> bool:
        """Whether work-groups, local memory and registers (see there for `more`) suffice.  Shallow
        tiles are for where the registers of deep ones do not; the smallest are always left."""
        room = info.local_mem_bytes
        if self.tm * self.tn > MANY and (
            not _in_order(info) or self.registers(acc, loads, **more) > MOST_REGISTERS
        ):
            return False
        if self.threads > info.max_work_group_size or self.local_bytes(acc, table) > room:
            return False
        deep = dataclasses.replace(self, depth=DEEP)
        enough = info.registers or math.inf
        if deep.registers(acc, loads, **more) <= enough:
            return self == deep
        smallest = self.tm * self.tn == min(tile.tm * tile.tn for tile in TILES)
        return self != deep and (smallest or self.registers(acc, loads, **more) <= enough)

    def defines(self, acc: DType, av: int, bv: int, a_along_k: bool, b_along_k: bool, info) -> str:
        """The macros of gemm_tile.cl and its like for the size of tiles and how they are read.

        Args:
            av, bv: elements that one load of each operand takes.
            a_along_k, b_along_k: whether neighbouring work-items load an operand along k.
        """
        # CPU drivers gain nothing from an unrolled depth and take seconds to compile it. Most GPUs'
        # compilers put all its loads in front until registers spill, some those of two steps, too.
        whole = '"unroll"' if _in_order(info) else '"unroll 2"'
        crowded = self.registers(acc, Loads(av, bv)) > (info.registers or math.inf)
        unroll = whole if info.kind == "gpu" and not crowded else '"nounroll"'
        names = dict(
            BM=self.bm, BN=self.bn, BK=self.bk(acc), TM=self.tm, TN=self.tn, AV=av, BV=bv,
            A_ALONG_K=int(a_along_k), B_ALONG_K=int(b_along_k), KK_UNROLL=unroll,
            TABLE_LAST=int(info.registers > 0), STORES_ALWAYS=int(_in_order(info)),
        )  # fmt: skip
        return "".join(f"#define {k} {v}\n" for k, v in names.items())

    def time(
        self, m: int, n: int, k: int, batch: int, splits: int, acc: DType, nbytes: float, info,
        copy: tuple[float, float], registers: int,
    ) -> float:  # fmt: skip
        """Microseconds without the first launch: one group's steps along k, as often as a compute
        unit has groups; or the `nbytes` of the operands and the result if memory takes longer; and
        the sum of the slices.

        A step is its multiply-adds, its reads of local memory, fewer for each product where a
        work-item has more of them, and its copies to there, `copy` clocks an element of either
        operand.  Work-items of a group have so many `registers`."""
        rates, units = machine.of(info), info.compute_units
        groups = ceil_div(m, self.bm) * ceil_div(n, self.bn) * batch * splits
        depth, share = ceil_div(k, splits), ceil_div(groups, units)
        cpu = info.kind == "cpu"
        product, read = (PRODUCT_ON_CPU, READ_ON_CPU) if cpu else (1.0, 1.0)
        products = units * self.bm * self.bn * (product + read * (1 / self.tm + 1 / self.tn))
        step = rates.multiplying(products, acc, ON_CPU if cpu else 1.0)
        step += rates.clocks(self.bm * copy[0] + self.bn * copy[1])
        moving = rates.moving(nbytes)
        if cpu:
            time = max(share * step * (depth + LEAD_ON_CPU), moving)
        else:
            most = max(1, rates.registers // (self.threads * round_up(registers, GRAIN)))
            time = self._in_rounds(share, most, step * depth, ceil_div(depth, self.bk(acc)),
                                   moving, rates)  # fmt: skip
        return time + reduction_time(m * n * batch, splits, info)

    def _in_rounds(
        self, share: int, most: int, alone: float, tiles: int, moving: float, rates: machine.Machine
    ) -> float:
        """Microseconds of a GPU's compute unit with a `share` of the groups, of which it holds at
        `most` so many at a time: one takes `alone` to multiply, and waits for so many `tiles` of
        operands, which others hide; meanwhile memory is `moving` what all groups need."""
        whole, rest = divmod(share, most)
        rounds = ceil_div(share, most)

        def together(held: int) -> float:
            hidden = min(held * self.threads * HIDING / rates.resident, 1.0)
            return held * alone * (1 + ALONE * (1 - hidden))

        work = whole * together(most) + together(rest)
        parts = work, rounds * tiles * WAITS * rates.latency, moving
        time = (1 - BESIDE) * max(parts) + BESIDE * sum(parts)
        return time + (rounds + 1) * rates.begin


# Results of a work-item that leave few registers for all else, and how many it has at most.
MANY, MOST_REGISTERS = 64, 255
GRAIN = 8  # registers of a work-item are given out in so many
# Times a read of memory that a tile takes to be in local memory, where nobody hides it.
WAITS = 4
# The part of a unit's work-items that hide all waits at barriers, as one in so many; and the share
# by which a step takes longer without any of them.
HIDING, ALONE = 4, 0.35
BESIDE = 0.2  # of what is shorter, products or memory's time: what the longer one does not hide
# Of a multiply-add's time on a CPU: itself with what goes along, and a read of local memory, a copy
# there; work-items wait for each other at barriers.
PRODUCT_ON_CPU, READ_ON_CPU, ON_CPU = 1.19, 0.82, 0.084
LEAD_ON_CPU = 34  # steps along k that a group's first loads and its stores take as long as there

TILES = (
    # A unit that multiplies four times as many elements in a clock as it reads from local memory
    # needs as long to read as to multiply for 8 x 8 results.
    Tile(128, 128, 16, 8),
    Tile(128, 128, 8, 8),
    Tile(128, 64, 8, 8),
    Tile(64, 128, 8, 8),
    Tile(64, 64, 8, 4),
    Tile(64, 64, 4, 4),
    Tile(128, 32, 8, 4),
    Tile(32, 128, 4, 8),
    Tile(32, 32, 4, 4),
)

SHALLOW = tuple(
    dataclasses.replace(tile, depth=SHALLOW_DEPTH) for tile in TILES if tile.tm * tile.tn <= MANY
)


def _in_order(info: DeviceInfo) -> bool:
    """Whether the compiler keeps an unrolled loop's loads within the registers."""
    return "schedules_for_registers" in info.quirks


# An epilogue's work, each read counted as one, above which a loop goes round it: about as much as
# it takes to pick a result from a work-item's.
LONG = 16
AT_ENDS = 24  # registers of a work-item for places, when results are stored


def ends(epilogue: Epilogue, whole: bool, info: DeviceInfo, tile: Tile) -> str:
    """The macros of gemm_tile.cl for how results become the output's.

    Compilers leave a loop round what is long as it is, whatever they are told, and then keep the
    sums that it goes through in memory; where they do not, its copies together need registers
    beside the sums.

    Args:
        whole: whether rows of results are whole vectors.
        tile: whose sums are kept; a vector's results, and what is read for them, must fit beside.
    """
    reads = len(epilogue.loads)
    in_turn = info.registers > 0 and epilogue.work + reads > LONG
    room = (info.registers or math.inf) - tile.tm * tile.tn - AT_ENDS
    vectors = whole and epilogue.has_vectors and not (in_turn and 4 * (reads + 2) > room)
    return f"#define VECTOR_OUT {int(vectors)}\n#define IN_TURN {int(in_turn)}\n"


def load4(name: str, dtype: DType, acc: DType, space: str = "__global") -> str:
    """The macro <name>_LOAD4(p, i): four elements at element i (a multiple of four) as ACC_T4."""
    vector = f"*({space} const {dtype.storage}4*)((p) + (i))"
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
