"""Attention on the matrix units that fragment.py describes, forward and backward, for whichever
vendor: of float16, bfloat16, and float32 where a unit takes it or makes two bfloat16 of it.

The recipe is that of FlashAttention-2 (Dao, 2023), but probabilities go from one product into the
next through local memory, as results and operands lie in the lanes of most units in other orders.
NVIDIA's units, where they need not, have kernels of their own (attention.py, attention16.py).
"""

from __future__ import annotations

import functools
import itertools
import pkgutil
from dataclasses import dataclass, field
from typing import Any

from kerascl.dtypes import DType, bfloat16, float32
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.selftests import asked, part
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import known
from kerascl.kernels.units.fragment import Fragment, Layout, Unit
from kerascl.runtime.device import DeviceInfo

# Of the registers of a lane, as `FragmentBlock.registers` counts them: with more, compilers for
# AMD's and Intel's GPUs began to spill; and those that masks, biases, dropout and numbers as pairs
# take, where a smaller block leaves them.
MOST_REGISTERS, SPARE_REGISTERS = 275, 70
LOGIT = 30  # ordinary instructions that a logit takes, counted
BUSY = 256  # work-items that a compute unit should hold, as each waits at barriers
# Bytes of local memory that may be in use beside the tiles.
SPARE = 256


@dataclass(frozen=True)
class FragmentBlock:
    """A work-group of `subgroups`, each of which owns `blocks` fragments of rows, takes `bc`
    columns at a time, by instructions on `f`."""

    f: Fragment = field(repr=False)
    subgroups: int
    blocks: int
    bc: int

    @property
    def br(self) -> int:
        """Rows of a work-group."""
        return self.subgroups * self.rows

    @property
    def rows(self) -> int:
        """Of a sub-group."""
        return self.blocks * self.f.m

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.subgroups * self.f.lanes

    def padded(self, features: int) -> int:
        """Features of a head, rounded up to whole fragments."""
        return round_up(features, max(self.f.k, self.f.n))

    def tile(self, layout: Layout, rows: int, depth: int) -> int:
        """Bytes of a tile: TILE of attention_fragment_tiles.cl."""
        size = self.f.dtype.itemsize
        lines = 16 // ((layout.run or 16 // size) * size)
        return rows // lines * (depth * size * lines + 16) * (2 if self.f.products > 1 else 1)

    def local_bytes(self, p: AttentionProblem, keys: bool) -> int:
        """Bytes of local memory of one kernel: LOCAL_BYTES of attention_fragment.cl and what is
        kept of rows."""
        a, b, width, depth = self.f.a, self.f.b, self.padded(p.width), self.padded(p.depth)
        tiles = self.tile(a, self.br, width) + self.tile(b, self.bc, width)
        if p.grad is None or keys:
            tiles += self.tile(b, depth, self.bc)
        if p.grad is not None:
            tiles += self.tile(a, self.br, depth) + self.tile(b, width, self.bc)
            tiles += self.tile(b, self.bc, depth)
        facts = self.rows * (self.f.d.size + 1) * 4
        hands = self.subgroups * max(self.tile(a, self.rows, self.bc), facts)
        return tiles + hands + 8 * (self.bc if keys else self.br) + 4 * _extras(p)

    def registers(self, p: AttentionProblem, keys: bool) -> float:
        """About those of a lane: its sums, the logits of a block with their addresses, operands of
        two steps, and what it knows of rows."""
        f, width, depth = self.f, self.padded(p.width), self.padded(p.depth)
        sums = depth if p.grad is None else width + depth if keys else width
        logits = 3.5 * self.bc * (1 if p.grad is None else 2)
        facts = f.n * (4 if p.grad is None else 0)
        operands = 2 * (self.blocks * len(f.a.elements) + len(f.b.elements)) / f.wide
        return self.rows * (sums + logits + facts) / f.lanes + operands

    def fits(self, p: AttentionProblem, info: DeviceInfo, keys: bool) -> bool:
        """Whether columns are whole fragments, and a device has the local memory, registers and
        work-items."""
        room = self.local_bytes(p, keys) <= info.local_mem_bytes - SPARE
        whole = self.bc % max(self.f.k, self.f.n) == 0
        held = self.registers(p, keys) <= MOST_REGISTERS
        return room and whole and held and self.threads <= info.max_work_group_size

    def time(self, p: AttentionProblem, info: DeviceInfo, keys: bool, rate: float) -> float:
        """Microseconds of one kernel, without its launch, where the units do `rate` multiply-adds
        in one: products, reads of local memory and what each logit takes, one after the other; rows
        and columns count in whole blocks, work-groups in whole rounds of all compute units."""
        rates, f = machine.of(info), self.f
        owned, owners = (p.source, p.groups) if keys else (p.length, p.heads)
        others = (p.length if keys else p.source) * (p.heads // owners)
        seen = p.logits / (p.batch * p.heads * p.length * p.source)
        groups = round_up(p.batch * owners * ceil_div(owned, self.br), info.compute_units)
        blocks = groups * ceil_div(others, self.bc) * seen
        width, depth = self.padded(p.width), self.padded(p.depth)
        near = [width] if p.grad is None else [width, depth]  # whose sums are logits
        far = [depth] if p.grad is None else [width, depth] if keys else [width]
        products = self.br * self.bc * (sum(near) + sum(far))
        # Fragments of operands that a sub-group reads.
        deep, rows = self.bc // f.k, self.blocks
        lefts = rows * (sum(n // f.k for n in near) + deep * len(far))
        rights = self.bc // f.n * sum(n // f.k for n in near) + deep * sum(n // f.n for n in far)
        words = lefts * len(f.a.elements) + rights * len(f.b.elements)
        nbytes = f.lanes * words * f.dtype.itemsize * f.products * self.subgroups
        turned = 2 * self.bc * (width + depth) * f.dtype.itemsize
        logits = self.br * self.bc * LOGIT
        one = products * f.products / rate + (nbytes + turned) / rates.local_bandwidth
        resident = self.threads * (info.local_mem_bytes // self.local_bytes(p, keys))
        return blocks * (one + logits / rates.rate(float32)) * max(1, BUSY / resident)


def _extras(p: AttentionProblem) -> bool:
    """Whether logits or probabilities meet more than each other."""
    return any(x is not None for x in (p.bias, p.mask, p.dropout))


@functools.cache
def _blocks(f: Fragment) -> tuple[FragmentBlock, ...]:
    """All blocks of an instruction."""
    return tuple(
        FragmentBlock(f, *sizes)
        for sizes in itertools.product((8, 4, 2, 1), (2, 1), (64, 32, 16))
    )  # fmt: skip


SELF_TEST, MODULE = "attention", "kerascl.kernels.units.attention_fragment_selftest"


def available(unit: Unit, info: DeviceInfo, dtype: DType, way: str) -> bool:
    """Whether the device has such units and the kernels for a dtype pass their self-test on it.

    Args:
        way: "forward" or "gradient".
    """
    test = SelfTest(SELF_TEST, MODULE, part.named(dtype, "high", way))
    return info.matrix in unit.matrix and asked.passed(info, test)


def tests(info: DeviceInfo) -> list[SelfTest]:
    """The self-test of these kernels on the device's units in all its parts, where it has any."""
    if not any(info.matrix in unit.matrix for unit in UNITS):
        return []
    return [SelfTest(SELF_TEST, MODULE, of) for of in pkgutil.resolve_name(f"{MODULE}:parts")(info)]


class _FragmentSolver(attention_tiled.TiledSolver):
    """What differs from the portable kernels, on one unit.

    Args:
        blocks: of each kernel, instead of those that are counted to be fastest, for tests and
            tuning.
    """

    kernel = "attention_fragment"

    def __init__(self, unit: Unit, blocks: tuple[FragmentBlock, ...] | None = None):
        self.unit, self.given = unit, blocks
        self.name = unit.name.rstrip("_") + ("_grad" if self.backward else "")

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        p, unit = problem, self.unit
        taken = info.matrix in unit.matrix and unit.takes(
            p.q.dtype, p.q.dtype, float32, p.precision
        )
        way = "gradient" if self.backward else "forward"
        return taken and super().applies(p, info) and available(unit, info, p.q.dtype, way)

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        p, rates, blocks = problem, machine.of(info), self.block(problem, info)
        time = sum(b.time(p, info, k > 0, self._rate(p, info)) for k, b in enumerate(blocks))
        return max(time, rates.moving(p.nbytes)) + len(blocks) * rates.launch

    def block(self, p: AttentionProblem, info: DeviceInfo) -> Any:
        """What a work-group of each kernel takes, None where the device has no room for one."""
        f, rate, found = self.unit.fragments[p.q.dtype], self._rate(p, info), []
        for keys in (False, True)[: 1 + self.backward]:
            every = self.given[keys : keys + 1] if self.given else _blocks(f)
            fitting = [b for b in every if b.fits(p, info, keys)]
            if not fitting:
                return None
            most = MOST_REGISTERS - SPARE_REGISTERS * ((f.products > 1) + _extras(p))
            roomy = [b for b in fitting if b.registers(p, keys) <= most]
            found.append(min(roomy or fitting, key=lambda b: b.time(p, info, keys, rate)))
        return tuple(found)

    def _rate(self, p: AttentionProblem, info: DeviceInfo) -> float:
        """Multiply-adds of the instruction that all units do in a microsecond."""
        rates, f = machine.of(info), self.unit.fragments[p.q.dtype]
        if self.unit.rate:
            rate = self.unit.rate * info.compute_units * rates.clock
        else:  # CPUs, on which tests run the kernels, have no such units
            operands = bfloat16 if f.products > 1 else p.q.dtype
            rate = rates.matrix_rate(operands) or rates.rate(p.q.dtype)
        return rate * self.unit.matrix.get(info.matrix, 1.0)

    def part(self, block: Any, keys: bool) -> FragmentBlock:
        return block[keys]

    def options(self, p: AttentionProblem, block: Any, keys: bool) -> tuple[str, ...]:
        return self.unit.options

    def source(self, p: AttentionProblem, block: Any, epilogue: Epilogue, **names: int) -> str:
        names |= dict(
            BR=block.br, BC=block.bc, MI=block.blocks, THREADS=block.threads,
            EB=p.q.dtype.itemsize,
        )  # fmt: skip
        tiles = block.f.defines + cl_source("units/attention_fragment_tiles.cl")
        text = attention_tiled.head(p, epilogue, tiles, **names)
        return text + cl_source("units/attention_fragment.cl")


class FragmentAttention(_FragmentSolver, attention_tiled.TiledAttention):
    """A work-group owns a block of queries."""


class FragmentAttentionGradient(_FragmentSolver, attention_tiled.TiledAttentionGradient):
    """One kernel owns blocks of queries, another blocks of keys; both compute the probabilities."""


# NVIDIA's are the ones whose lanes hold several results of a row.
UNITS = tuple(unit for unit in known.UNITS if unit.tried)
SOLVERS: tuple[Solver, ...] = tuple(
    kind(unit) for unit in UNITS for kind in (FragmentAttention, FragmentAttentionGradient)
)  # fmt: skip
