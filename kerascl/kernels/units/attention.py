"""Attention on NVIDIA's matrix units by mma.sync in TF32 (compute capability 8.0 and more).

float32 is rounded to TF32, so this serves for precision "high" only; float16 and bfloat16 are exact
in TF32, and their probabilities keep more bits than they would as 16-bit floats.  The way of
probabilities from one product into the next without leaving registers is that of FlashAttention-2
(Dao, 2023).
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, replace
from typing import Any

from kerascl.dtypes import float32
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import STORE_VECTOR, Epilogue, VectorStore
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.selftests import asked, part
from kerascl.kernels.selftests.asked import SelfTest
from kerascl.kernels.tuning import machine
from kerascl.kernels.units.nv_sm80 import FRAGMENTS, MATRIX
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class FragmentBlock:
    """A work-group of `warps` owns 16 * blocks rows for each and takes `bc` columns at a time."""

    warps: int
    blocks: int
    bc: int

    @property
    def br(self) -> int:
        """Rows of a work-group."""
        return 16 * self.blocks * self.warps

    @property
    def threads(self) -> int:
        """Work-items of a work-group: 32 in each warp."""
        return 32 * self.warps

    def local_bytes(self, p: AttentionProblem) -> int:
        """Bytes of local memory of the hungriest kernel: LOCAL_BYTES of attention_mma.cl."""
        width, depth = (4 * round_up(n, 16) + 16 for n in (p.width, p.depth))
        facts = 0 if p.grad is None else 8 + p.kept * 4 * ceil_div(self.br, 32)
        return STAGES * self.bc * (width + depth + facts)

    def fits(self, p: AttentionProblem, info: DeviceInfo) -> bool:
        """Whether a device has the local memory, of which 256 bytes are spared for the driver."""
        return self.local_bytes(p) <= info.local_mem_bytes - 256

    def columns(self, p: AttentionProblem) -> int:
        """Those that a row meets, in whole blocks; forward, or of both gradients' kernels."""
        sides = (p.source,) if p.grad is None else (p.source, p.length)
        return sum(round_up(n, self.bc) for n in sides)


STAGES = 2  # blocks of columns in local memory
# Clocks of a compute unit to draw dropout's numbers of a logit: counted, not measured.
DRAW = 0.25
# (most features, block): larger ones first; registers bound the features.
FORWARD = (
    (64, FragmentBlock(4, 2, 32)), (128, FragmentBlock(4, 1, 32)), (64, FragmentBlock(2, 1, 32)),
    (128, FragmentBlock(4, 1, 16)), (128, FragmentBlock(2, 1, 16)),
)  # fmt: skip
BACKWARD = ((64, FragmentBlock(4, 1, 32)), (64, FragmentBlock(2, 1, 32)))
# Columns instead of 32 where blocks of so many leave fewer idle, and their most features.
WIDER, WIDER_FEATURES = 40, 64


SELF_TEST, MODULE = "attention_mma", "kerascl.kernels.units.attention_selftest"


def tests(info: DeviceInfo) -> list[SelfTest]:
    """The self-test that the device can begin, in all its parts."""
    if info.matrix not in MATRIX:
        return []
    return [SelfTest(SELF_TEST, MODULE, of) for of in pkgutil.resolve_name(f"{MODULE}:PARTS")]


def available(info: DeviceInfo, p: AttentionProblem) -> bool:
    """Whether the device has the units, and kernels for a problem pass their self-test on it."""
    flags = ("causal" if p.causal else "", "dropout" if p.dropout else "")
    way = "forward" if p.grad is None else "gradient"
    test = SelfTest(SELF_TEST, MODULE, part.named(p.q.dtype, "high", *flags, way))
    return info.matrix in MATRIX and asked.passed(info, test)


class _FragmentSolver(attention_tiled.TiledSolver):
    """What differs from the portable kernels.

    Args:
        block: what a work-group takes, for tests; by default the best of the tables.
    """

    kernel = "attention_mma"
    keeps = True
    # Share of the instruction's rate: an H200's with dropout. Local memory, of which four bytes a
    # multiply-add of 16 rows must be read, bounds the gradients to twice that.
    EFFICIENCY = 0.19

    def __init__(self, block: FragmentBlock | None = None):
        self.given = block

    def applies(self, problem: AttentionProblem, info: DeviceInfo) -> bool:
        exact = problem.precision == "highest" and problem.q.dtype is float32
        return not exact and super().applies(problem, info) and available(info, problem)

    def cost(self, problem: AttentionProblem, info: DeviceInfo) -> float:
        # TF32 whatever the dtype, in as many launches as the portable kernels.
        p, rates, launches = problem, machine.of(info), 2 if self.backward else 1
        rate = rates.matrix_rate(float32) or rates.rate(float32)
        rate *= MATRIX.get(info.matrix, 1.0) * self.EFFICIENCY
        time = p.products / rate
        if self.backward and p.kept:
            draws = rates.clocks(launches * p.logits * DRAW / info.compute_units)
            time = max(time - draws, time / 2)
        return max(time, rates.moving(p.nbytes)) + launches * rates.launch

    def block(self, p: AttentionProblem, info: DeviceInfo) -> Any:
        if self.given is not None:
            return self.given if self.given.fits(p, info) else None
        block = attention_tiled.block_for(p, info, FORWARD, BACKWARD)
        if block is None or block.bc != 32 or max(p.width, p.depth) > WIDER_FEATURES:
            return block
        wider = replace(block, bc=WIDER)
        return wider if wider.fits(p, info) and wider.columns(p) < block.columns(p) else block

    def source(self, p: AttentionProblem, block: Any, epilogue: Epilogue, **names: int) -> str:
        names |= dict(
            BR=block.br, BC=block.bc, MI=block.blocks, THREADS=block.threads, EB=4,
            X_BYTES=p.q.dtype.itemsize, STAGES=STAGES, OWN_LOCAL=0, LARGE=0, KEPT_BITS=int(p.kept),
            DOWNWARD=int(not p.scale > 0),
        )  # fmt: skip
        text = attention_tiled.head(p, epilogue, "", **names)
        if names.get("KEYS", 0):
            text += STORE_VECTOR + stores("PUT_K", "outK", p) + stores("PUT_V", "outV", p)
        pieces = "".join(cl_source(f"units/{name}.cl") for name in PIECES)
        return text + FRAGMENTS[float32].macro + pieces


# What the text is made of behind the facts of a problem.
PIECES = ("mma_units", "nv_sm80", "mma16_units", "attention_quads", "attention_bits",
          "attention_mma_tiles32", "attention_mma")  # fmt: skip


def stores(name: str, pointer: str, p: AttentionProblem) -> str:
    """The macros <name>(count, values, at), which stores 4 or 8 neighbours as EPILOGUE_VECTOR does,
    and <name>_ONE(value, at); STORE_VECTOR's come before the first."""
    store = VectorStore(pointer, p.dtype, f"(({p.dtype.compute})acc)")
    vectors = Epilogue("", (), "", stores=(store,)).vectors
    block = vectors("##count_", "1", "count_", "float", p.index, "values_", "at_", "0")
    return (
        f"#define {name}(count_, values_, at_) {block}\n"
        f"#define {name}_ONE(value_, at_) OUT_STORE({pointer}, at_, value_);\n"
    )


class FragmentAttention(_FragmentSolver, attention_tiled.TiledAttention):
    """A work-group owns a block of queries."""

    name = "mma"


class FragmentAttentionGradient(_FragmentSolver, attention_tiled.TiledAttentionGradient):
    """One kernel owns blocks of queries, another blocks of keys; both compute the probabilities."""

    name = "mma_grad"


SOLVERS = (FragmentAttention(), FragmentAttentionGradient())
