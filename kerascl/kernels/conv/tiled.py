"""Convolutions on any device: the tiles of products, with operands gathered."""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, narrow, prelude
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    gemm_shape,
    kind_defines,
    product_params,
    usable,
)
from kerascl.kernels.matmul.split_k import partial_epilogue, slice_counts, vector_reduction_launch
from kerascl.kernels.matmul.tiles import Loads, Tile, ends, load4
from kerascl.kernels.tuning import machine

# Clocks of a compute unit that copying an element of either operand to local memory takes beside
# products: four at once, and one by one.  What is gathered takes longer, most of all where pixels
# are the depth, as each has a place of its own to be found (measured on sm_90).
COPY = {FORWARD: (0.07, 0.015), DATA_GRAD: (0.07, 0.06), FILTER_GRAD: (0.2, 0.0)}
GATHER = 1.1


class TiledConv(Solver):
    """The tiles of gemm_tile.cl with gathered left operand, the depth split when groups are few."""

    TABLE = 32  # bytes of local memory for one depth

    def __init__(self, tile: Tile, split: int | None = None):
        self.tile = tile
        self.split = split
        self.name = tile.name + (f"s{split}" if split else "")

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        _, av, _, bv = _loads(p)
        loads, kept = Loads(av, bv), _registers(p)
        if p.kind == FILTER_GRAD and bv == 1:
            # Gradients that are gathered one by one have places, too: beyond eight they are kept.
            kept["held"] += max(0, self.tile.bn * self.tile.bk(p.acc) // self.tile.threads - 8)
        return usable(p, info) and self.tile.fits(p.acc, loads, info, self.TABLE, **kept)

    def _time(self, p: ConvProblem, info, splits: int) -> float:
        g = gemm_shape(p)
        single = GATHER * (2 if p.a.itemsize == 2 else 1)
        left, right = COPY[p.kind]
        channels, filters = p.x_shape[-1], p.w_shape[-1]
        copies = left if channels % 4 == 0 else single, right if filters % 4 == 0 else single
        _, av, _, bv = _loads(p)
        registers = self.tile.registers(p.acc, Loads(av, bv), **_registers(p))
        return self.tile.time(
            g.m, g.n, g.k, g.classes * p.groups, splits, p.acc, p.nbytes, info, copies, registers
        )  # fmt: skip

    def _splits(self, p: ConvProblem, info) -> int:
        depth, step = gemm_shape(p).k, self.tile.bk(p.acc)
        counts = slice_counts(self.split, p.total, p.acc, depth, step)
        return min(counts, key=lambda s: self._time(p, info, s))

    def cost(self, problem: ConvProblem, info) -> float:
        p = problem
        return machine.of(info).launch + self._time(p, info, self._splits(p, info))

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.tile
        shape, index = gemm_shape(p), conv_index(p)
        bk = tile.bk(p.acc)
        splits = self._splits(p, info)
        slice_ = round_up(ceil_div(shape.k, splits), bk)
        splits = ceil_div(shape.k, slice_)
        a_along_k, av, b_along_k, bv = _loads(p)
        tiles_m = ceil_div(shape.m, tile.bm)
        params = product_params(p, index, tiles_m, splits, slice_)
        # Neighbours along the columns of four results lie side by side, aligned.
        whole = shape.n % 4 == 0 and (p.kind == FILTER_GRAD or not p.channels_first)
        slices = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", aligned=whole)
        inner = epilogue if splits == 1 else slices
        one_tap = p.kind != FILTER_GRAD and shape.channels % bk == 0
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + load4("A", p.a, p.acc)
            + load4("B", p.b, p.acc)
            + narrow(info)
            + tile.defines(p.acc, av, bv, a_along_k, b_along_k, info)
            + kind_defines(p)
            + f"#define M_FAST {int(p.channels_first and p.kind != FILTER_GRAD)}\n"
            + ends(inner, whole, info, tile)
            + f"#define K_WHOLE {int(one_tap)}\n"
            + params.source
            + inner.defines
            + cl_source("conv/conv_axis.cl")
            + cl_source("conv/conv_simt.cl")
            + cl_source("matmul/gemm_tile.cl")
        )
        args = (Ref("a"), Ref("b"), *params.args, *inner.args)
        groups = tiles_m * ceil_div(shape.n, tile.bn) * splits * p.groups * shape.classes
        launch = Launch(source, "gemm_tile", args, (groups * tile.threads,), (tile.threads,))
        if splits == 1:
            return Plan([launch])
        reduction = vector_reduction_launch(p.total, splits, p.acc, index, epilogue, info)
        return Plan([launch, reduction], [splits * p.total * p.acc.itemsize])


def _registers(p: ConvProblem) -> dict[str, int]:
    """What a work-item keeps of places: see `Tile.registers`."""
    # Strided gradients hold the taps and pixels of their class.
    return {"coordinates": max(2, p.rank), "held": 46 if p.kind == DATA_GRAD else 20}


def _loads(p: ConvProblem) -> tuple[bool, int, bool, int]:
    """Whether loads of a, and of b, should run along k, each with how many elements they take."""
    shape = gemm_shape(p)
    channels, filters = p.x_shape[-1], p.w_shape[-1]
    whole_c = channels % 4 == 0 and p.w_shape[-2] % 4 == 0
    whole_f = filters % 4 == 0 and shape.n % 4 == 0
    last = not p.channels_first
    if p.kind == FORWARD:
        return last, 4 if last and whole_c else 1, False, 4 if whole_f else 1
    if p.kind == DATA_GRAD:
        whole_f = filters % 4 == 0 and shape.channels % 4 == 0
        return last, 4 if last and whole_f else 1, True, 4 if whole_f else 1
    return not last, 4 if last and whole_c else 1, not last, 4 if last and whole_f else 1
