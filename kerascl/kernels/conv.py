"""Convolutions of one to three spatial dimensions: forward, data gradient, filter gradient.

All are implicit GEMMs: neither an im2col buffer nor a padded copy is made.  1x1 convolutions go
to the GEMM solvers, depthwise ones to depthwise.py.
"""

from __future__ import annotations

import math

from kerascl.kernels import (
    cpu,
    database,
    depthwise,
    gemm,
    mma,
    wgmma,
    wgmma_conv,
    wgmma_filter,
    wgmma_halo,
    wgmma_planes,
    wgmma_stem,
    wgmma_taps,
    winograd,
)
from kerascl.kernels.conv_problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    gemm_shape,
    geometry,
    image_strides,
    kind_defines,
    normalise,
    product_params,
    usable,
)
from kerascl.kernels.cpu import Micro
from kerascl.kernels.gemm import MAX_PARTIAL_BYTES, GemmProblem
from kerascl.kernels.solver import (
    Epilogue,
    Launch,
    Plan,
    Ref,
    Solver,
    cl_source,
    prelude,
)
from kerascl.kernels.tiles import (
    TILES,
    Tile,
    ceil_div,
    fold_launch,
    load4,
    partial_epilogue,
    rename_slots,
    round_up,
    zero_plan,
)

__all__ = ["DATA_GRAD", "FILTER_GRAD", "FORWARD", "SOLVERS", "ConvProblem", "plan"]


class Pointwise(Solver):
    """A 1x1 convolution of stride one is a matrix product: whatever solver is best for that."""

    name = "pointwise"

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return (
            usable(p, info)
            and p.groups == 1
            and math.prod(p.w_shape[:-2]) == 1
            and set(p.strides) == {1}
            and not any(v for q in p.pads for v in q)
            and p.x_shape[:-1] == p.y_shape[:-1]
            and not (p.channels_first and p.kind == FILTER_GRAD and p.x_shape[0] > 1)
        )

    def cost(self, problem: ConvProblem, info) -> float:
        return 0.0

    def takes_moments(self, problem: ConvProblem, info) -> bool:
        return not problem.channels_first  # so far; the product's plan is asked, too

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        product, planes = self._product(problem), wgmma_planes.Wgmma()
        # A long sum over rows of both operands may be faster as one of planes.
        if planes.applies(problem, info) and planes.cost(problem, info) < gemm.cost(product, info):
            return planes.plan(problem, info, epilogue)
        plan = gemm.plan(product, info, epilogue)
        swapped = problem.channels_first and problem.kind != FILTER_GRAD
        return rename_slots(plan, {"a": "b", "b": "a"}) if swapped else plan

    @staticmethod
    def _product(p: ConvProblem) -> GemmProblem:
        """The product; channels first, all but filter gradients have b on the left."""
        types = {"a": p.a, "b": p.b, "acc": p.acc, "precision": p.precision}
        images, pixels = p.x_shape[0], math.prod(p.x_shape[1:-1])
        c, f = p.w_shape[-2:]
        if p.channels_first and p.kind == FILTER_GRAD:
            return GemmProblem(c, f, pixels, (), (pixels, 1), (1, pixels), **types)
        if p.channels_first:
            m, k = (f, c) if p.kind == FORWARD else (c, f)
            left = (0, 1, f) if p.kind == FORWARD else (0, f, 1)
            types |= {"a": p.b, "b": p.a}
            return GemmProblem(m, pixels, k, (images,), left, (k * pixels, pixels, 1), **types)
        rows = images * pixels
        m, n, k, left, right = {
            FORWARD: (rows, f, c, (c, 1), (f, 1)),
            DATA_GRAD: (rows, c, f, (f, 1), (1, f)),
            FILTER_GRAD: (c, f, rows, (1, c), (f, 1)),
        }[p.kind]
        return GemmProblem(m, n, k, (), left, right, **types)


class Tiled(Solver):
    """The tiles of gemm_tile.cl with gathered left operand, the depth split when groups are few."""

    TABLE = 32  # bytes of local memory for one depth

    def __init__(self, tile: Tile, split: int | None = None):
        self.tile = tile
        self.split = split
        self.name = f"tiled{tile.bm}x{tile.bn}" + (f"s{split}" if split else "")

    def applies(self, problem: ConvProblem, info) -> bool:
        return usable(problem, info) and self.tile.fits(problem.acc, info, self.TABLE)

    def _time(self, p: ConvProblem, info, splits: int) -> float:
        g = gemm_shape(p)
        return self.tile.time(g.m, g.n, g.k, g.classes * p.groups, splits, info)

    def _splits(self, p: ConvProblem, info) -> int:
        bk = self.tile.bk(p.acc)
        k = gemm_shape(p).k
        most = min(max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize)), ceil_div(k, bk), 256)
        if self.split is not None:
            return max(1, min(self.split, most))
        choices = [s for s in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256) if s <= most]
        choices = [s for s in choices if s == 1 or k // s >= 8 * bk]
        return min(choices, key=lambda s: self._time(p, info, s))

    def cost(self, problem: ConvProblem, info) -> float:
        p = problem
        time = self._time(p, info, self._splits(p, info))
        if info.matrix and p.x_shape[-1] % 4:
            time *= 2.0 if p.a.itemsize > 2 else 3.4  # elements gathered one by one (H200)
        return time * 1000 if info.kind == "cpu" else time

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, tile = problem, self.tile
        shape, index = gemm_shape(p), conv_index(p)
        bk = tile.bk(p.acc)
        splits = self._splits(p, info)
        slice_ = round_up(ceil_div(shape.k, splits), bk)
        splits = ceil_div(shape.k, slice_)
        channels, filters = p.x_shape[-1], p.w_shape[-1]
        whole_c = channels % 4 == 0 and p.w_shape[-2] % 4 == 0
        whole_f = filters % 4 == 0 and shape.n % 4 == 0
        last = not p.channels_first
        if p.kind == FORWARD:
            loads = last, 4 if last and whole_c else 1, False, 4 if whole_f else 1
        elif p.kind == DATA_GRAD:
            whole_f = filters % 4 == 0 and shape.channels % 4 == 0
            loads = last, 4 if last and whole_f else 1, True, 4 if whole_f else 1
        else:
            loads = (
                not last, 4 if last and whole_c else 1, not last, 4 if last and whole_f else 1,
            )  # fmt: skip
        a_along_k, av, b_along_k, bv = loads
        tiles_m = ceil_div(shape.m, tile.bm)
        params = product_params(p, index, tiles_m, splits, slice_)
        inner = epilogue if splits == 1 else partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        source = (
            prelude(index, A=p.a, B=p.b, ACC=p.acc)
            + load4("A", p.a, p.acc)
            + load4("B", p.b, p.acc)
            + tile.defines(p.acc, av, bv, a_along_k, b_along_k, info)
            + kind_defines(p)
            + f"#define M_FAST {int(p.channels_first and p.kind != FILTER_GRAD)}\n"
            + params.source
            + inner.defines
            + cl_source("conv_axis.cl")
            + cl_source("conv_simt.cl")
            + cl_source("gemm_tile.cl")
        )
        args = (Ref("a"), Ref("b"), *params.args, *inner.args)
        groups = tiles_m * ceil_div(shape.n, tile.bn) * splits * p.groups * shape.classes
        launch = Launch(source, "gemm_tile", args, (groups * tile.threads,), (tile.threads,))
        if splits == 1:
            return Plan([launch])
        fold = fold_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, fold], [splits * p.total * p.acc.itemsize])


class Panels(Solver):
    """CPUs: register blocks without barriers over packed weights (packed dy for the filter
    gradient unless it is channels-last); x is read where it lies."""

    name = "panels"
    DEPTH = 512  # pixels in one slice of a filter gradient, about: its operands stay cached

    def __init__(self, micro: Micro | None = None, lines: int | None = None):
        self.micro = micro
        self.lines = lines
        if micro:
            self.name = f"panels{micro.mr}x{micro.nv}"

    def applies(self, problem: ConvProblem, info) -> bool:
        return info.kind == "cpu" and usable(problem, info)

    def cost(self, problem: ConvProblem, info) -> float:
        g = gemm_shape(problem)
        work = cpu.best(problem.acc, info, g.m, g.n).work(g.m, g.n) * g.k / 16
        return work * g.classes * problem.groups / info.compute_units + 3e4

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        if problem.kind == FILTER_GRAD:
            return self._filter_grad(problem, info, epilogue)
        p = problem
        g, index = gemm_shape(p), conv_index(p)
        micro = self.micro or cpu.best(p.acc, info, g.m, g.n)
        filters, taps = p.w_shape[-1], math.prod(p.w_shape[:-2])
        # Weights as (tap, depth channel) by columns, whichever of the two is contiguous.
        depth_stride, column_stride = (filters, 1) if p.kind == FORWARD else (1, filters)
        zeros = (
            0
            if p.channels_first
            else p.w_shape[-3] * g.channels * max(1, p.a.itemsize // p.acc.itemsize)
        )
        pack, nbytes, _ = cpu.packing(
            index, micro.nr, g.n, taps * g.channels, Ref("b"), Ref("ws0"), p.b, p.acc, 0,
            column_stride, depth_stride, (1, 1, p.groups), (0, 0, filters // p.groups),
            (g.channels, p.w_shape[-2] * filters), zeros or 1,
        )  # fmt: skip
        row_panels = ceil_div(g.m, micro.mr)
        others = ceil_div(g.n, micro.nr) * p.groups * g.classes
        work = micro.mr * micro.nr * g.k
        chunk = cpu.chunk(row_panels, others, info, work)
        chunks = ceil_div(row_panels, chunk)
        per = cpu.chunk(chunks * others, 1, info, work * chunk)
        params = geometry(p).add(
            "int", BATCH=p.x_shape[0], CIN=g.channels, COUT=g.n, GROUPS=p.groups, CHUNK=chunk,
            CHUNKS=chunks, UNITS=chunks * others, PER=per,
        )  # fmt: skip
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        strides = zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first))
        params.add(index, **dict(strides))
        strides = zip(("oN", "oP", "oC"), image_strides(p.out_shape, p.channels_first))
        params.add(index, **dict(strides))
        launch = self._launch(
            p, index, micro, params, epilogue, info, ceil_div(chunks * others, per)
        )
        return Plan([pack, launch], [nbytes])

    def _filter_grad(self, p: ConvProblem, info, epilogue: Epilogue) -> Plan:
        g, index = gemm_shape(p), conv_index(p)
        channels = g.channels
        micro = self.micro or cpu.best(p.acc, info, channels, g.n, channels, g.n)
        images, pixels, width = p.x_shape[0], math.prod(p.y_shape[1:-1]), p.y_shape[-2]
        direct = not p.channels_first and p.b.storage == p.acc.compute and g.n >= micro.nr
        launches, workspace, operand = [], [], "b"
        if not direct:
            image_step, pixel_step, filter_step = image_strides(p.y_shape, p.channels_first)
            operand = "ws0"
            pack, nbytes, _ = cpu.packing(
                index, micro.nr, g.n, images * pixels, Ref("b"), Ref(operand), p.b, p.acc, 0,
                filter_step, pixel_step, (1, 1, p.groups), (0, 0, g.n * filter_step),
                (pixels, image_step),
            )  # fmt: skip
            launches.append(pack)
            workspace.append(nbytes)
        tiles = math.prod(p.w_shape[:-2]) * ceil_div(channels, micro.mr)
        tiles *= ceil_div(g.n, micro.nr) * p.groups
        all_lines = images * pixels // width
        most = max(1, MAX_PARTIAL_BYTES // (p.total * p.acc.itemsize))
        wanted = max(
            ceil_div(all_lines * width, self.DEPTH), ceil_div(info.compute_units * 4, tiles)
        )
        lines = self.lines or ceil_div(all_lines, min(wanted, most, all_lines))
        splits = ceil_div(all_lines, lines)
        per = cpu.chunk(tiles * splits, 1, info, micro.mr * micro.nr * lines * width)
        params = geometry(p).add(
            "int", BATCH=images, CIN=channels, COUT=g.n, GROUPS=p.groups, LINES=lines,
            UNITS=tiles * splits, PER=per,
        )  # fmt: skip
        strides = zip(("aN", "aP", "aC"), image_strides(p.x_shape, p.channels_first))
        params.add(index, **dict(strides))
        inner, slot = epilogue, f"ws{len(workspace)}"
        if splits > 1:
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", slot)
            workspace.append(splits * p.total * p.acc.itemsize)
        items = ceil_div(tiles * splits, per)
        launches.append(self._launch(p, index, micro, params, inner, info, items, operand, direct))
        if splits > 1:
            launches.append(fold_launch(p.total, splits, p.acc, index, epilogue, slot))
        return Plan(launches, workspace)

    @staticmethod
    def _launch(
        p, index, micro, params, epilogue, info, items, operand="ws0", direct=False
    ) -> Launch:
        source = (
            prelude(index, A=p.a, ACC=p.acc)
            + kind_defines(p)
            + f"#define B_DIRECT {int(direct)}\n"
            + params.source
            + micro.source(p.acc, info, 0 if p.kind == FILTER_GRAD else gemm_shape(p).k)
            + epilogue.defines
            + cl_source("conv_axis.cl")
            + cl_source("conv_cpu.cl")
        )
        args = (Ref("a"), Ref(operand), *params.args, *epilogue.args)
        return Launch(source, "conv_cpu", args, (items,), (1,))


SOLVERS: tuple[Solver, ...] = (
    Pointwise(),
    *depthwise.SOLVERS,
    Panels(),
    *winograd.SOLVERS,
    wgmma_conv.Wgmma(),
    wgmma_halo.Wgmma(),
    wgmma_filter.Wgmma(),
    wgmma_taps.Wgmma(),
    wgmma_taps.Wgmma16(),
    wgmma_stem.Forward(),
    wgmma_stem.FilterGrad(),
    wgmma_planes.Wgmma(),
    *(Tiled(tile) for tile in TILES),
    *mma.CONV_SOLVERS,
)


# Plain solvers that the tuner checks all others against.
REFERENCES: tuple[Solver, ...] = (Panels(), *(Tiled(tile) for tile in TILES))
# What only the tuner tries: the same tiles with another number of slices.
VARIANTS: tuple[Solver, ...] = (
    *(Tiled(tile, split) for tile in TILES for split in gemm.SLICES),
    *(mma.MmaConv(tile, split) for tile in mma.TILES for split in gemm.SLICES),
    *(
        solver(shape, split)
        for solver in (
            wgmma_conv.Wgmma, wgmma_filter.Wgmma, wgmma_stem.Forward, wgmma_stem.FilterGrad,
        )
        for shape in wgmma.SHAPES
        for split in gemm.SLICES
    ),
    *(wgmma_filter.Wgmma(wgmma_filter.SHAPES[-1], split) for split in gemm.SLICES),
    *(wgmma_halo.Wgmma(tile, 1) for tile in wgmma_halo.SHAPES),
    *(wgmma_taps.Wgmma(box, split) for box in wgmma_taps.BOXES for split in gemm.SLICES),
    *(wgmma_taps.Wgmma16(box, split) for box in wgmma_taps.BOXES16 for split in gemm.SLICES),
    *(
        wgmma_planes.Wgmma(shape, split)
        for shape in (*wgmma.PROMOTED, *wgmma.SHAPES)
        for split in gemm.SLICES
    ),
)


def plan(problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem` on the device that `info` describes.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
        ValueError: more than three spatial dimensions.
    """
    if problem.rank > 3:
        raise ValueError(f"convolutions have one to three spatial dimensions, not {problem.rank}")
    problem = normalise(problem)
    if problem.total == 0 or 0 in (*problem.x_shape, *problem.w_shape, *problem.y_shape):
        return zero_plan(problem.total, problem.acc, epilogue)
    solver = database.choose_for("conv", SOLVERS, VARIANTS, problem, info, epilogue)
    return solver.plan(problem, info, epilogue)
