"""Attention for GPUs, in portable OpenCL C: tiles of queries and keys in local memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kerascl.dtypes import float32
from kerascl.kernels.attention.problem import (
    LOG2_E,
    AttentionProblem,
    Tensor,
    extra_refs,
    extra_scalars,
    kept_words,
    prelude_types,
    shared_defines,
)
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import bounded, cl_source, few_loads, narrow, prelude
from kerascl.kernels.matmul.tiles import load4
from kerascl.kernels.tuning import machine


@dataclass(frozen=True)
class Block:
    """A work-group of tx x ty work-items owns `br` rows and takes `bc` columns at a time."""

    br: int
    bc: int
    tx: int
    ty: int

    @property
    def threads(self) -> int:
        """Work-items of a work-group."""
        return self.tx * self.ty

    def _stride(self, features: int) -> int:
        return round_up(features, 4 * self.tx) + 4

    def local_bytes(self, p: AttentionProblem) -> int:
        """Bytes of local memory of the hungriest kernel."""
        width, depth, line = self._stride(p.width), self._stride(p.depth), self.bc + 4
        if p.grad is None:
            tiles = self.br * width + self.bc * max(width, depth)
            return 4 * (tiles + self.br * (line + self.tx) + 4)
        return 4 * ((self.br + self.bc) * (width + depth) + 2 * self.br * line + 2 * self.bc + 4)

    def fits(self, p: AttentionProblem, info) -> bool:
        """Whether a device has the work-items, the local memory and the registers.

        Registers do not matter where their number is unknown, or work-items have one logit each.
        """
        # constants and the driver may need a little, too
        room = info.local_mem_bytes - 256
        if self.threads > info.max_work_group_size or self.local_bytes(p) > room:
            return False
        rows, columns = self.br // self.ty, self.bc // self.tx
        if info.registers == 0 or rows * columns == 1:
            return True
        return self.registers(p) <= info.registers

    def registers(self, p: AttentionProblem) -> int:
        """About those of a work-item of the hungriest kernel: logits and results, and what four
        features of each take."""
        rows, columns = self.br // self.ty, self.bc // self.tx
        width, depth = self._stride(p.width) // self.tx, self._stride(p.depth) // self.tx
        if p.grad is None:
            return rows * (columns + depth) + 4 * (rows + columns + min(depth, 4)) + 24
        return rows * (2 * columns + width + depth) + 4 * (rows + columns) + 30

    def crowds(self, p: AttentionProblem, info) -> bool:
        """Whether there may be too few of them for a bias, a mask or dropout, which `registers`
        leaves out, or, of gradients, for half of what a second step along the features reads while
        the first one's is still there, where lanes of a sub-group share a thread's."""
        most = info.registers or math.inf
        if p.grad is not None and info.sub_group_sizes:
            ahead = 2 * (self.br // self.ty + self.bc // self.tx)
            if self.registers(p) + ahead > most:
                return True
        more = p.bias is not None or p.mask is not None or p.dropout is not None
        return more and 3 * self.registers(p) > 2 * most


# (most features, block), measured on an H200: for each head size the fastest first, then smaller
# ones for little work or little local memory.
FORWARD = (
    (32, Block(128, 32, 8, 16)),
    (64, Block(64, 32, 8, 8)),
    (128, Block(64, 16, 4, 16)),
    (256, Block(32, 32, 8, 8)),
    (256, Block(16, 16, 8, 8)),
    (256, Block(8, 8, 8, 8)),
    (256, Block(4, 4, 4, 4)),
)
BACKWARD = (
    (32, Block(64, 32, 8, 16)),
    (64, Block(32, 32, 8, 8)),
    (64, Block(16, 32, 8, 8)),  # not measured; for fewer registers or less local memory
    (256, Block(16, 16, 8, 8)),
    (256, Block(8, 8, 8, 8)),
    (256, Block(4, 4, 4, 4)),
)


def block_for(p: AttentionProblem, info, forward=FORWARD, backward=BACKWARD):
    """The first block of a table that the device has room for and that keeps it busy."""
    features = max(p.width, p.depth)
    table = forward if p.grad is None else backward
    fitting = [b for most, b in table if features <= most and b.fits(p, info)]
    rows, owners = (p.length, p.heads) if p.grad is None else (p.source, p.groups)

    def busy(b) -> bool:
        return p.batch * owners * ceil_div(rows, b.br) >= info.compute_units

    return next((b for b in fitting if busy(b) or b.br <= 32), next(iter(fitting), None))


def in_vectors(p: AttentionProblem) -> bool:
    """Whether all rows of features may be read four neighbours at a time."""
    pairs = [(p.q, p.width), (p.k, p.width), (p.v, p.depth)]
    pairs += [(p.grad, p.depth)] if p.grad is not None else []
    return all(_in_fours(x, n) for x, n in pairs)


def _in_fours(x: Tensor, features: int) -> bool:
    """Whether rows may be read four neighbours at a time."""
    whole = all(n % 4 == 0 for n in (*x.strides[:3], x.offset, features))
    return whole and x.strides[3] == 1


def head(p: AttentionProblem, epilogue: Epilogue, units: str = "", **names: int) -> str:
    """What the text of every kernel begins with: macros, `units`, what the kernels share."""
    names |= dict(VECTORS=int(in_vectors(p)))
    return (
        prelude(p.index, X=p.q.dtype, OUT=p.dtype, **prelude_types(p))
        + load4("X", p.q.dtype, float32)
        + shared_defines(p)
        + "".join(f"#define {k} {v}\n" for k, v in names.items())
        + epilogue.defines
        + units
        + cl_source("attention/attention_dropout.cl")
        + cl_source("attention/attention_common.cl")
    )


def strides(p: AttentionProblem, *tensors: Tensor) -> list[Arg]:
    """Start and strides of each."""
    return [Scalar(p.index, n) for x in tensors for n in (x.offset, *x.strides)]


def _loops(p: AttentionProblem, block: Any, info) -> str:
    """How wide a device's sub-groups are to be, and how far loops may be unrolled."""
    crowded = isinstance(block, Block) and block.crowds(p, info)  # others have no such loops
    return narrow(info) + bounded(info, crowded) + few_loads(info)


class TiledSolver(Solver):
    """What the solvers with blocks of rows share.

    Attributes:
        backward: whether it computes gradients.
        kernel: what its kernels' names begin with.
        keeps: whether it leaves what dropout keeps, or as gradients reads it: see `KeptProblem`.
    """

    backward: bool
    kernel = "attention_tile"
    keeps = False
    ON_GPU, ON_CPU = 0.35, 0.015  # shares of the rate of multiply-adds

    def applies(self, problem: AttentionProblem, info) -> bool:
        p = problem
        return p.usable and (p.grad is not None) == self.backward and bool(self.block(p, info))

    def cost(self, problem: AttentionProblem, info) -> float:
        p, launches = problem, 2 if self.backward else 1
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        return machine.of(info).roofline(p.products, p.nbytes, float32, efficiency, launches)

    def block(self, p: AttentionProblem, info) -> Any:
        """What a work-group takes, None where the device has no room."""
        return block_for(p, info)

    def part(self, block: Any, keys: bool) -> Any:
        """What a work-group of the forward kernel, or of the queries', or of the keys' takes."""
        return block

    def options(self, p: AttentionProblem, block: Any, keys: bool) -> tuple[str, ...]:
        """Of building that kernel."""
        return ()

    def source(self, p: AttentionProblem, block: Block, epilogue: Epilogue, **names: int) -> str:
        """The text of one kernel, with these macros in front."""
        names |= dict(
            BR=block.br, BC=block.bc, TX=block.tx, TY=block.ty, THREADS=block.threads
        )  # fmt: skip
        return head(p, epilogue, "", **names) + cl_source("attention/attention_tile.cl")

    def kept_args(self, p: AttentionProblem, slot: str) -> tuple[list[Arg], list[Arg]]:
        """Of what lies in memory of dropout: its buffer, and the 16-bit words of its rows."""
        if not (self.keeps and p.kept):
            return [], []
        return [Ref(slot)], [Scalar("int", 2 * kept_words(p.source))]


class TiledAttention(TiledSolver):
    """A work-group owns a block of queries."""

    name = "tile"
    backward = False

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        block = self.part(self.block(p, info), False)
        assert block is not None
        bits, row = self.kept_args(p, "kept")
        args = (
            Ref("a"), Ref("b"), Ref("c"), *extra_refs(p, "d"), Ref("stat"), *bits,
            Scalar("int", p.length), Scalar("int", p.source), Scalar("int", p.heads // p.groups),
            Scalar("float", p.scale * LOG2_E), *strides(p, p.q, p.k, p.v), *extra_scalars(p),
            *row, *epilogue.args,
        )  # fmt: skip
        size = (ceil_div(p.length, block.br) * block.threads, p.heads, p.batch)
        source = _loops(p, block, info) + self.source(p, block, epilogue, FORWARD=1)
        options = self.options(p, block, False)
        return Plan([Launch(source, self.kernel, args, size, (block.threads, 1, 1), options)])


class TiledAttentionGradient(TiledSolver):
    """One kernel owns blocks of queries, another blocks of keys; both compute the probabilities."""

    name = "tile_grad"
    backward = True

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        whole = self.block(p, info)
        assert whole is not None
        launches, extra = [], extra_refs(p, "g")
        bits, row = self.kept_args(p, chr(ord("g") + len(extra)))
        for keys in (False, True):
            block = self.part(whole, keys)
            rows, count = (p.source, p.groups) if keys else (p.length, p.heads)
            args = (
                *(Ref(x) for x in "abcd"), *extra, Ref("e"), Ref("f"), *bits,
                *((Ref("dk"), Ref("dv")) if keys else ()),
                Scalar("int", p.length), Scalar("int", p.source),
                Scalar("int", p.heads // p.groups), Scalar("float", p.scale),
                Scalar("float", p.scale * LOG2_E), Scalar("float", 1 / p.source),
                *strides(p, p.q, p.k, p.v, *filter(None, (p.grad,))), *extra_scalars(p),
                *row, *(() if keys else epilogue.args),
            )  # fmt: skip
            size = (ceil_div(rows, block.br) * block.threads, count, p.batch)
            inner = Epilogue("", (), "") if keys else epilogue
            source = self.source(p, block, inner, BACKWARD=1, KEYS=int(keys))
            source = _loops(p, block, info) + source
            local, options = (block.threads, 1, 1), self.options(p, block, keys)
            launches.append(Launch(source, f"{self.kernel}_grad", args, size, local, options))
        return Plan(launches)


SOLVERS: tuple[Solver, ...] = (TiledAttention(), TiledAttentionGradient())
