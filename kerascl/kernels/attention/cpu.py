"""Attention for CPUs: tiles in private memory, vectors over queries, no barriers."""

from __future__ import annotations

from kerascl import philox
from kerascl.dtypes import float32
from kerascl.kernels.attention.problem import (
    LOG2_E,
    AttentionProblem,
    Tensor,
    extra_refs,
    extra_scalars,
    prelude_types,
    shared_defines,
)
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.matmul import cpu
from kerascl.kernels.matmul.cpu import Micro
from kerascl.kernels.matmul.split_k import partial_epilogue, reduction_launch
from kerascl.kernels.tuning import machine

# (rows, vectors of queries) by how many floats a register holds.
_SHAPES = {16: ((8, 2), (8, 1)), 8: ((4, 3), (8, 1)), 4: ((4, 2), (4, 1))}
MOST_CHUNKS = 16
# Rows so many bytes apart fall into the same few cache sets; with so many of them, copies that lie
# side by side pay.
APART_BYTES = 1024
MANY_ROWS = 256


def shape_for(p: AttentionProblem, info) -> Micro:
    """The register block with the least padding of queries and features."""
    lanes = info.simd_width if info.simd_width in _SHAPES else 8
    every = [Micro(mr, nv, lanes) for mr, nv in _SHAPES[lanes]]

    def work(m: Micro) -> float:
        return round_up(p.length, m.nr) * (1 + 0.4 * (m.nv == 1))

    return min(every, key=work)


def _apart(stride: int, rows: int, features: int) -> bool:
    """Whether float32 rows should be copied to lie side by side."""
    return stride != features and stride * 4 >= APART_BYTES and rows >= MANY_ROWS


class _Launches:
    """Collects launches and the workspace they share."""

    def __init__(self, p: AttentionProblem):
        self.p = p
        self.launches: list[Launch] = []
        self.workspace: list[int] = []

    def work(self, nbytes: int) -> Ref:
        self.workspace.append(nbytes)
        return Ref(f"ws{len(self.workspace) - 1}")

    def panels(self, slot: str, x: Tensor, lanes: int, rows: int, features: int, heads: int):
        """Panels [batch][head][panel][feature][lanes] of rows: buffer, strides of batch, head."""
        b, t, h, d = x.strides
        return self._pack(slot, x, lanes, rows, features, t, d, (b, h), heads)

    def rows(self, slot: str, x: Tensor, rows: int, features: int, heads: int, lanes: int):
        """Rows of float32 whose length is a multiple of `lanes`: buffer, (start, strides).

        The strides are those of batch, row and head; the memory itself serves where it can.
        """
        b, t, h, d = x.strides
        near = not _apart(t, rows, features)
        if near and x.dtype is float32 and (d == 1 or features == 1) and features % lanes == 0:
            return Ref(slot), (x.offset, b, t, h)
        length = round_up(features, lanes)
        buffer, (sb, sh) = self._pack(slot, x, length, features, rows, d, t, (b, h), heads)
        return buffer, (0, sb, length, sh)

    def _pack(self, slot, x, lanes, count, k, lane_stride, k_stride, outer, heads):
        buffer = Ref(f"ws{len(self.workspace)}")
        operand = cpu.Operand(
            Ref(slot), x.dtype, count, k, lane_stride, k_stride, x.offset,
            (self.p.batch, heads, 1), (*outer, 0),
        )  # fmt: skip
        launch, nbytes, steps = cpu.packing(operand, lanes, float32, self.p.index, buffer)
        self.launches.append(launch)
        self.workspace.append(nbytes)
        return buffer, steps[:2]


def _source(p: AttentionProblem, micro: Micro, info, epilogue: Epilogue, part: str) -> str:
    def group(vectors: int) -> int:
        return next(n for n in (2, 3, 1) if vectors % n == 0)

    width, depth = (ceil_div(n, micro.vl) for n in (p.width, p.depth))
    names = dict(
        BK=8 * micro.mr, ROUND_WIDTH=round_up(p.width, micro.mr),
        ROUND_DEPTH=round_up(p.depth, micro.mr), WIDTH_VECTORS=width, DEPTH_VECTORS=depth,
        WIDTH_GROUP=group(width), DEPTH_GROUP=group(depth),
    )  # fmt: skip
    return (
        prelude(p.index, **prelude_types(p))
        + shared_defines(p)
        + ("" if p.dropout is None else philox.vectors(micro.vl))
        + "".join(f"#define {k} {v}\n" for k, v in names.items())
        + micro.source(float32, info)
        + epilogue.defines
        + f"#define {part}\n"
        + cl_source("attention/attention_cpu.cl")
    )


def _store(p: AttentionProblem, sums: Ref, out: Ref, width: int, padded: int) -> Launch:
    source = prelude(p.index, OUT=p.dtype, ACC=float32) + cl_source("attention/attention_store.cl")
    ints = (p.groups, p.source, width, padded)
    args: tuple[Arg, ...] = (sums, out, *(Scalar("int", n) for n in ints))
    size = (p.batch * p.groups, p.source)
    return Launch(source, "attention_store", args, size, None, role=Role.STORE)


class _CpuSolver(Solver):
    backward: bool
    EFFICIENCY: float  # share of the rate of multiply-adds

    def applies(self, problem: AttentionProblem, info) -> bool:
        p = problem
        return info.kind == "cpu" and p.usable and (p.grad is not None) == self.backward

    def cost(self, problem: AttentionProblem, info) -> float:
        p, launches = problem, 6 if self.backward else 3
        return machine.of(info).roofline(p.products, p.nbytes, float32, self.EFFICIENCY, launches)


class CpuAttention(_CpuSolver):
    """A work-item takes panels of queries through all keys."""

    name = "cpu"
    backward = False
    EFFICIENCY = 0.11

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p, micro = problem, shape_for(problem, info)
        work = _Launches(p)
        q, q_steps = work.panels("a", p.q, micro.nr, p.length, p.width, p.heads)
        k, k_steps = work.rows("b", p.k, p.source, p.width, p.groups, 1)
        v, v_steps = work.rows("c", p.v, p.source, p.depth, p.groups, 1)
        units = p.batch * p.heads * ceil_div(p.length, micro.nr)
        per = cpu.chunk(units, 1, info, p.logits / units * (p.width + p.depth + 16))
        ints = (p.heads, p.groups, p.length, p.source, units, per)
        args = (
            q, k, v, *extra_refs(p, "d"), Ref("stat"), *(Scalar("int", n) for n in ints),
            Scalar("float", p.scale * LOG2_E),
            *(Scalar(p.index, n) for n in (*q_steps, *k_steps, *v_steps)),
            *extra_scalars(p), *epilogue.args,
        )  # fmt: skip
        source = _source(p, micro, info, epilogue, "FORWARD")
        work.launches.append(Launch(source, "attention_cpu", args, (ceil_div(units, per),), (1,)))
        return Plan(work.launches, work.workspace)


class CpuAttentionGradient(_CpuSolver):
    """A work-item owns a chunk of keys of one batch entry and group of heads, and their gradients;
    gradients of queries are summed over chunks afterwards."""

    name = "cpu_grad"
    backward = True
    EFFICIENCY = 0.16

    def __init__(self, chunks: int | None = None):
        self.chunks = chunks

    def _chunks(self, p: AttentionProblem, info, block: int) -> tuple[int, int]:
        """(number of chunks, keys of one)."""
        owners = p.batch * p.groups
        wanted = self.chunks or ceil_div(4 * info.compute_units, owners)
        chunk = round_up(ceil_div(p.source, min(wanted, MOST_CHUNKS)), block)
        return ceil_div(p.source, chunk), chunk

    def plan(self, problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
        p, micro = problem, shape_for(problem, info)
        work = _Launches(p)
        vl = micro.vl
        assert p.grad is not None
        q, q_steps = work.panels("a", p.q, micro.nr, p.length, p.width, p.heads)
        g, g_steps = work.panels("d", p.grad, micro.nr, p.length, p.depth, p.heads)
        q_rows, rq_steps = work.rows("a", p.q, p.length, p.width, p.heads, vl)
        g_rows, rg_steps = work.rows("d", p.grad, p.length, p.depth, p.heads, vl)
        k, k_steps = work.rows("b", p.k, p.source, p.width, p.groups, 1)
        v, v_steps = work.rows("c", p.v, p.source, p.depth, p.groups, 1)
        sums, steps, stores = [], [], []
        for slot, features in (("dk", p.width), ("dv", p.depth)):
            padded = round_up(features, vl)
            near = not _apart(p.groups * features, p.source, features)
            if near and p.dtype is float32 and padded == features:
                sums.append(Ref(slot))
                steps += [p.source * p.groups * features, p.groups * features, features]
            else:
                buffer = work.work(p.batch * p.groups * p.source * padded * 4)
                sums.append(buffer)
                steps += [p.groups * p.source * padded, padded, p.source * padded]
                stores.append(_store(p, buffer, Ref(slot), features, padded))
        chunks, chunk = self._chunks(p, info, 8 * micro.mr)
        total = p.batch * p.length * p.heads * p.width
        inner = epilogue
        if chunks > 1:
            part = work.work(chunks * total * 4)
            inner = partial_epilogue(float32, "0", part.slot)
            stores.append(reduction_launch(total, chunks, float32, p.index, epilogue, part.slot))
        units = p.batch * p.groups * chunks
        ints = (p.heads, p.groups, p.length, p.source, units, chunks, chunk)
        args = (
            q, g, q_rows, g_rows, k, v, *extra_refs(p, "g"), Ref("e"), Ref("f"), *sums,
            *(Scalar("int", n) for n in ints), Scalar(p.index, total), Scalar("float", p.scale),
            Scalar("float", p.scale * LOG2_E), Scalar("float", 1 / p.source),
            *(
                Scalar(p.index, n)
                for n in (*q_steps, *g_steps, *rq_steps, *rg_steps, *k_steps, *v_steps, *steps)
            ),
            *extra_scalars(p), *inner.args,
        )  # fmt: skip
        source = _source(p, micro, info, inner, "BACKWARD")
        work.launches.append(Launch(source, "attention_cpu_grad", args, (units,), (1,)))
        return Plan(work.launches + stores, work.workspace)


SOLVERS: tuple[Solver, ...] = (CpuAttention(), CpuAttentionGradient())
