"""Attention of float16 and bfloat16 on NVIDIA's matrix units by mma.sync, tiles and probabilities
in 16 bits (compute capability 8.0 and more).

The forward pass and the structure of the backward pass are those of FlashAttention-2 (Dao, 2023),
but for dq, which has a kernel of its own: sums by atomics would vary from run to run.  Others than
the problems taken here (rows that are no whole 16-byte chunks) are left to attention.py.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any

from kerascl.dtypes import bfloat16, float16
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.contract.epilogue import STORE_VECTOR, Epilogue
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.ptx import REWRITE
from kerascl.kernels.hopper.tiles import SHARED_LIMIT
from kerascl.kernels.selftests import asked
from kerascl.kernels.selftests import part as parts
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.tuning import machine
from kerascl.kernels.units.attention import DRAW, stores
from kerascl.kernels.units.nv_sm80 import FRAGMENTS, MATRIX
from kerascl.runtime.device import DeviceInfo

NAMES = {bfloat16: "bf16", float16: "f16"}  # of the dtypes in PTX
CHUNK = 8  # elements of 16 bytes
PLAIN = 49152 - 256  # bytes of local memory without a rewrite
LARGE = SHARED_LIMIT // 2  # with one, where a compute unit is to hold two work-groups
# What a work-group does but once takes as long as so many columns.
START = 250
# The self-tests, by name: of tiles of up to PLAIN bytes, and of those beyond.
BASE, BEYOND = "attention_mma16", "attention_mma16_large"
MODULES = {
    BASE: "kerascl.kernels.units.attention16_selftest",
    BEYOND: "kerascl.kernels.units.attention16_large_selftest",
}


@dataclass(frozen=True)
class Tile:
    """A work-group of `warps` owns 16 * blocks rows for each and takes `bc` columns at a time.

    Attributes:
        held: whether the rows' operands stay in registers; else they are read again and again from
            local memory.
        stages: blocks of columns in local memory.
        resident: work-groups that a compute unit should hold, where PTX can ask for it.
        share: of the instruction's rate, that many columns reach.
        drops: whether it serves with dropout, too, whose draws take registers.
    """

    warps: int
    blocks: int
    bc: int
    held: bool = True
    stages: int = 2
    resident: int = 2
    share: float = 0.5
    drops: bool = True

    @property
    def br(self) -> int:
        """Rows of a work-group."""
        return 16 * self.blocks * self.warps

    @property
    def threads(self) -> int:
        """Work-items of a work-group: 32 in each warp."""
        return 32 * self.warps

    def local_bytes(self, p: AttentionProblem, keys: bool) -> int:
        """Bytes of local memory: LOCAL_BYTES of attention_mma.cl."""
        width, depth = (2 * round_up(n, 16) + 16 for n in (p.width, p.depth))
        own = width if p.grad is None else width + depth
        facts = 8 + 4 * p.kept * ceil_div(self.br, 32) if keys else 0
        ring = self.stages * self.bc * (width + depth + facts)
        return ring + (0 if self.held else self.br * own)

    def large(self, p: AttentionProblem, keys: bool) -> bool:
        """Whether it takes more local memory than OpenCL gives."""
        return self.local_bytes(p, keys) > PLAIN

    def fits(self, p: AttentionProblem, info: DeviceInfo, keys: bool, room: int) -> bool:
        """Whether a device has the work-items and the registers, and so many bytes of local memory
        are enough."""
        held = self.threads <= info.max_work_group_size and (self.drops or p.dropout is None)
        return held and self.local_bytes(p, keys) <= room

    def work(self, p: AttentionProblem, info: DeviceInfo, keys: bool) -> float:
        """Multiply-adds that the instruction could do in the time of one kernel: rows and columns
        count in whole blocks, and work-groups in whole rounds of all compute units."""
        owned, owners = (p.source, p.groups) if keys else (p.length, p.heads)
        others = (p.length if keys else p.source) * (p.heads // owners)
        columns = round_up(others, self.bc) * p.logits / (p.batch * p.heads * p.length * p.source)
        groups = round_up(p.batch * owners * ceil_div(owned, self.br), info.compute_units)
        if p.grad is None:
            features = p.width + p.depth
        else:
            features = 2 * (p.width + p.depth) if keys else 2 * p.width + p.depth
        return groups * self.br * (columns + START) * features / self.share


Table = tuple[tuple[int, Tile], ...]
# (most features, tile) of the three kernels.  Measured on an H100 with 64 and 128 features, 512 to
# 8192 rows, causal or not, each beside 4 to 7 others: those that never were the fastest are left
# out.  Those whose operands do not stay in registers are large; two of them spill up to 56 bytes,
# and are faster by a sixth than what fits.
FORWARD = (
    (64, Tile(4, 2, 64, share=0.57)), (64, Tile(4, 1, 64, share=0.5)),
    (128, Tile(4, 2, 64, held=False, share=0.6, drops=False)),
    (128, Tile(4, 2, 32, held=False, share=0.55)), (128, Tile(4, 1, 32, share=0.5)),
)  # fmt: skip
QUERIES = (
    (64, Tile(4, 2, 32, share=0.61)), (64, Tile(4, 1, 32, share=0.6)),
    (128, Tile(4, 2, 32, held=False, share=0.68)), (128, Tile(4, 1, 32, share=0.58)),
)  # fmt: skip
KEYS = (
    (64, Tile(4, 2, 32, held=False, share=0.63)), (64, Tile(4, 1, 64, share=0.52)),
    (128, Tile(4, 1, 32, held=False, share=0.53)),
    (128, Tile(4, 1, 32, share=0.52, drops=False)), (128, Tile(4, 1, 16, share=0.49)),
)  # fmt: skip


def part(p: AttentionProblem) -> str:
    """The part of a self-test that proves kernels for a problem, but for their direction."""
    features = "64" if max(p.width, p.depth) <= 64 else "128"
    flags = ("causal" if p.causal else "", "dropout" if p.dropout else "")
    return parts.named(p.q.dtype, "high", features, *flags)


def tests(info: DeviceInfo) -> list[SelfTest]:
    """The self-tests that the device can begin, in all their parts."""
    names = (BASE, BEYOND) if probe.capable(info) else (BASE,)
    if info.matrix not in MATRIX:
        return []
    return [
        SelfTest(name, MODULES[name], of)
        for name in names for of in pkgutil.resolve_name(f"{MODULES[name]}:PARTS")
    ]  # fmt: skip


def available(info: DeviceInfo, p: AttentionProblem, name: str = BASE) -> bool:
    """Whether the device has the units, and kernels for a problem pass a self-test on it."""
    if info.matrix not in MATRIX or (name == BEYOND and not probe.capable(info)):
        return False
    of = f"{part(p)} {'forward' if p.grad is None else 'gradient'}"
    return asked.passed(info, SelfTest(name, MODULES[name], of))


def room_of(p: AttentionProblem, info: DeviceInfo) -> int:
    """Bytes of local memory that a tile may have."""
    with asked.comparing():
        large = probe.capable(info) and available(info, p, BEYOND)
    return LARGE if large else min(info.local_mem_bytes, PLAIN)


def takes(p: AttentionProblem) -> bool:
    """Whether the kernels can compute it, on a device with the units: rows of features must be
    whole 16-byte chunks, and products grow with logits."""
    if p.q.dtype not in NAMES or p.scale <= 0:
        return False
    tensors = [(p.q, p.width), (p.k, p.width), (p.v, p.depth)]
    tensors += [(p.grad, p.depth)] if p.grad is not None else []
    return all(_in_chunks(x, n, p) for x, n in tensors)


def _in_chunks(x: Tensor, features: int, p: AttentionProblem) -> bool:
    whole = not any(n % CHUNK for n in (*x.strides[:3], x.offset, features))
    return whole and x.strides[3] == 1 and x.dtype is p.q.dtype


def rows_of(table: Table, features: int) -> Table:
    """Those of a table for so many features: with the least bound that holds."""
    bound = min((most for most, _ in table if features <= most), default=0)
    return tuple(row for row in table if row[0] == bound)


def tile_for(
    p: AttentionProblem, info: DeviceInfo, table: Table, keys: bool, room: int
) -> Tile | None:
    """The tile of a table that is fastest among those that fit."""
    rows = rows_of(table, max(p.width, p.depth))
    fitting = [t for _, t in rows if t.fits(p, info, keys, room)]
    return min(fitting, key=lambda t: t.work(p, info, keys), default=None)


class _Solver16(attention_tiled.TiledSolver):
    """What differs from the portable kernels.

    Args:
        tables: of tiles for each kernel, for tests and tuning.
        room: bytes of local memory that a tile may have, by default what the device can give.
    """

    kernel = "attention_mma16"
    keeps = True
    tables: tuple[Table, ...]

    def __init__(self, tables: tuple[Table, ...] | None = None, room: int | None = None):
        self.tables = tables or self.tables
        self.room = room

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        if info.matrix not in MATRIX or not takes(problem):
            return False
        while super().applies(problem, info):
            # Tiles that need more memory than OpenCL gives have a self-test of their own.
            found = self.block(problem, info)
            large = {tile.large(problem, k > 0) for k, tile in enumerate(found)}
            if False in large and not available(info, problem):
                return False
            if True not in large or available(info, problem, BEYOND):
                return True
            if self.room is not None:
                return False
        return False

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        p, rates = problem, machine.of(info)
        rate = rates.matrix_rate(p.q.dtype) or rates.rate(p.q.dtype)
        rate *= MATRIX.get(info.matrix, 1.0)
        tiles = self.block(p, info)
        assert tiles is not None
        work = sum(tile.work(p, info, keys=k > 0) for k, tile in enumerate(tiles))
        drawing = p.dropout and not (self.backward and p.kept)
        draws = len(tiles) * p.logits * DRAW / info.compute_units if drawing else 0.0
        time = work / rate + rates.clocks(draws)
        return max(time, rates.moving(p.nbytes)) + len(tiles) * rates.launch

    def block(self, p: AttentionProblem, info: DeviceInfo) -> Any:
        """A tile for each kernel, None where the device has no room for one."""
        room = room_of(p, info) if self.room is None else self.room
        tiles = tuple(tile_for(p, info, t, k > 0, room) for k, t in enumerate(self.tables))
        return tiles if all(tiles) else None

    def part(self, block: Any, keys: bool) -> Tile:
        return block[keys]

    def source(self, p: AttentionProblem, block: Any, epilogue: Epilogue, **names: int) -> str:
        keys, dtype = bool(names.get("KEYS", 0)), p.q.dtype
        names |= dict(
            BR=block.br, BC=block.bc, MI=block.blocks, THREADS=block.threads, EB=2,
            X_BYTES=dtype.itemsize, STAGES=block.stages, OWN_LOCAL=int(not block.held),
            LARGE=int(block.large(p, keys)), RESIDENT=block.resident, DOWNWARD=0,
            KEPT_BITS=int(p.kept),
        )  # fmt: skip
        text = attention_tiled.head(p, epilogue, "", **names)
        if keys:
            text += STORE_VECTOR + stores("PUT_K", "outK", p) + stores("PUT_V", "outV", p)
        return (
            text + f'#define ELEMENT_NAME "{NAMES[dtype]}"\n' + FRAGMENTS[dtype].macro
            + "".join(cl_source(f"units/{name}.cl") for name in PIECES)
        )  # fmt: skip

    def options(self, p: AttentionProblem, block: Any, keys: bool) -> tuple[str, ...]:
        return (f"--rewrite={REWRITE}",) if block.large(p, keys) else ()


# What the text is made of behind the facts of a problem.
PIECES = ("mma_units", "nv_sm80", "mma16_units", "attention_quads", "attention_bits",
          "attention_mma_tiles16", "attention_mma")  # fmt: skip


class Attention16(_Solver16, attention_tiled.TiledAttention):
    """A work-group owns a block of queries."""

    name = "mma16"
    tables = (FORWARD,)


class Attention16Gradient(_Solver16, attention_tiled.TiledAttentionGradient):
    """One kernel owns blocks of queries, another blocks of keys; both compute the probabilities."""

    name = "mma16_grad"
    tables = (QUERIES, KEYS)


SOLVERS = (Attention16(), Attention16Gradient())
