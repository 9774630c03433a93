"""Convolutions of one to three spatial dimensions: forward, data gradient, filter gradient.

All are implicit GEMMs: neither an im2col buffer nor a padded copy is made.  1x1 convolutions go
to the GEMM solvers, depthwise ones to depthwise.py.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels import cpu, gemm
from kerascl.kernels.cpu import Micro
from kerascl.kernels.gemm import MAX_PARTIAL_BYTES, GemmProblem
from kerascl.kernels.solver import (
    Epilogue,
    Launch,
    Plan,
    Ref,
    Scalar,
    Solver,
    choose,
    cl_source,
    prelude,
)
from kerascl.kernels.tiles import (
    TILES,
    Tile,
    ceil_div,
    fold_launch,
    index_type,
    load4,
    partial_epilogue,
    rename_slots,
    round_up,
    zero_plan,
)

FORWARD, DATA_GRAD, FILTER_GRAD = "forward", "data_grad", "filter_grad"


@dataclass(frozen=True)
class ConvProblem:
    """One convolution or one of its gradients.

    y[n, o, f] = sum over taps j and channels c of x[n, o * stride + j * dilation - pad_lo, c]
    * w[j, c, f], with zeros outside x.  Group g joins channels c of x with filters f of the same
    g-th part.  Slots "a" and "b" are, aligned to at least 16 bytes each:

        forward      a = x, b = w,  output y
        data_grad    a = dy, b = w, output dx of shape x (also the transposed convolution)
        filter_grad  a = x, b = dy, output dw of shape w

    Attributes:
        kind: "forward", "data_grad" or "filter_grad".
        x_shape: (images, *spatial, channels), whatever the memory layout.
        w_shape: (*kernel, channels // groups, filters); always laid out so.
        y_shape: (images, *out, filters).
        strides, dilation: one positive int a dimension.
        pads: (low, high) a dimension; either may be negative (cropping).  Only `low` and y_shape
            enter the arithmetic.
        groups: number of groups.
        channels_first: x and y lie in memory as (images, channels, *spatial).
        a, b: dtypes of the inputs; acc: dtype in which products are summed.
    """

    kind: str
    x_shape: tuple[int, ...]
    w_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    dilation: tuple[int, ...]
    groups: int
    channels_first: bool
    a: DType
    b: DType
    acc: DType

    @property
    def rank(self) -> int:
        """Number of spatial dimensions."""
        return len(self.w_shape) - 2

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The logical shape of the output (channels last for x and y)."""
        shapes = {FORWARD: self.y_shape, DATA_GRAD: self.x_shape, FILTER_GRAD: self.w_shape}
        return shapes[self.kind]

    @property
    def total(self) -> int:
        """Number of output elements."""
        return math.prod(self.out_shape)

    @property
    def terms(self) -> int:
        """The most products in one output element's sum."""
        taps = math.prod(self.w_shape[:-2])
        if self.kind == FORWARD:
            return taps * self.w_shape[-2]
        if self.kind == DATA_GRAD:
            return taps * self.w_shape[-1] // self.groups
        return math.prod(self.y_shape[:-1])


def normalise(p: ConvProblem) -> ConvProblem:
    """The same convolution with two spatial dimensions (three if there are three).

    Leading dimensions of one tap that change nothing are dropped or merged into the images
    where the layout allows it.
    """
    missing = 2 - p.rank
    if missing <= 0:
        return p
    ones = (1,) * missing
    return dataclasses.replace(
        p,
        x_shape=(p.x_shape[0], *ones, *p.x_shape[1:]),
        w_shape=(*ones, *p.w_shape),
        y_shape=(p.y_shape[0], *ones, *p.y_shape[1:]),
        strides=(*ones, *p.strides),
        pads=(*((0, 0),) * missing, *p.pads),
        dilation=(*ones, *p.dilation),
    )


def image_strides(shape: tuple[int, ...], channels_first: bool) -> tuple[int, int, int]:
    """Element strides (image, pixel, channel) of a contiguous array of logical `shape`."""
    pixels, channels = math.prod(shape[1:-1]), shape[-1]
    if channels_first:
        return pixels * channels, 1, pixels
    return pixels * channels, channels, 1


def usable(p: ConvProblem, info) -> bool:
    return info.fp64 or "float64" not in (p.a.name, p.b.name, p.acc.name)


def conv_index(p: ConvProblem) -> str:
    """The index type: coordinates may overhang by a padded or dilated kernel."""
    sizes = [math.prod(s) for s in (p.x_shape, p.y_shape, p.w_shape)]
    overhang = max(k * d for k, d in zip(p.w_shape, p.dilation)) + max(
        abs(v) for q in p.pads for v in q
    )
    row = math.prod(p.x_shape[2:]) + math.prod(p.y_shape[2:])
    return index_type(max(sizes) + 2**16 + overhang * row * 2)


class Params:
    """Kernel parameters collected once as declarations (the PARAMS macro) and as arguments."""

    def __init__(self):
        self._items: list[tuple[str, str, int]] = []

    def add(self, ctype: str, **values: int) -> Params:
        self._items += [(ctype, name, value) for name, value in values.items()]
        return self

    def axes(self, rank: int, **values: tuple[int, ...]) -> Params:
        """name=tuple makes int parameters name0, name1, name2, ones in front where rank is 2."""
        for name, numbers in values.items():
            numbers = (*((0,) if name == "PAD" else (1,)) * (3 - rank), *numbers)
            self.add("int", **{f"{name}{n}": v for n, v in enumerate(numbers)})
        return self

    @property
    def source(self) -> str:
        return "#define PARAMS " + "".join(f", const {t} {n}" for t, n, _ in self._items) + "\n"

    @property
    def args(self) -> tuple[Scalar, ...]:
        return tuple(Scalar(t, v) for t, _, v in self._items)


def geometry(p: ConvProblem) -> Params:
    """Spatial parameters: IN is the gathered side (x, or dy for a data gradient), OUT the other
    (the iterated output pixels; dy's for a filter gradient)."""
    gathered, other = (p.y_shape, p.x_shape) if p.kind == DATA_GRAD else (p.x_shape, p.y_shape)
    return Params().axes(
        p.rank, IN=gathered[1:-1], OUT=other[1:-1], KER=p.w_shape[:-2], STRIDE=p.strides,
        DIL=p.dilation, PAD=tuple(low for low, _ in p.pads),
    )  # fmt: skip


def kind_defines(p: ConvProblem) -> str:
    return (
        f"#define DIMS {p.rank}\n"
        f"#define DATA_GRAD {int(p.kind == DATA_GRAD)}\n"
        f"#define FILTER_GRAD {int(p.kind == FILTER_GRAD)}\n"
        f"#define CHANNELS_FIRST {int(p.channels_first)}\n"
    )


@dataclass(frozen=True)
class GemmShape:
    """Sizes of the implicit GEMM of one group and one class."""

    m: int
    n: int
    k: int
    classes: int
    channels: int  # depth channels (forward, data_grad) or row channels (filter_grad) of a group


def gemm_shape(p: ConvProblem) -> GemmShape:
    channels, filters = p.w_shape[-2], p.w_shape[-1] // p.groups
    taps, images = math.prod(p.w_shape[:-2]), p.x_shape[0]
    if p.kind == FORWARD:
        return GemmShape(math.prod(p.y_shape[:-1]), filters, taps * channels, 1, channels)
    if p.kind == FILTER_GRAD:
        return GemmShape(taps * channels, filters, math.prod(p.y_shape[:-1]), 1, channels)
    rows = images * math.prod(ceil_div(s, t) for s, t in zip(p.x_shape[1:-1], p.strides))
    deep = math.prod(
        ceil_div(k, t // math.gcd(t, d)) for k, t, d in zip(p.w_shape, p.strides, p.dilation)
    )
    return GemmShape(rows, channels, deep * filters, math.prod(p.strides), filters)


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

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        images, pixels = p.x_shape[0], math.prod(p.x_shape[1:-1])
        c, f = p.w_shape[-2:]
        if p.channels_first:
            if p.kind == FILTER_GRAD:
                g = GemmProblem(c, f, pixels, (), (pixels, 1), (1, pixels), p.a, p.b, p.acc)
                return gemm.plan(g, info, epilogue)
            m, k = (f, c) if p.kind == FORWARD else (c, f)
            left = (0, 1, f) if p.kind == FORWARD else (0, f, 1)
            right = (k * pixels, pixels, 1)
            g = GemmProblem(m, pixels, k, (images,), left, right, p.b, p.a, p.acc)
            return rename_slots(gemm.plan(g, info, epilogue), {"a": "b", "b": "a"})
        rows = images * pixels
        m, n, k, left, right = {
            FORWARD: (rows, f, c, (c, 1), (f, 1)),
            DATA_GRAD: (rows, c, f, (f, 1), (1, f)),
            FILTER_GRAD: (c, f, rows, (1, c), (f, 1)),
        }[p.kind]
        return gemm.plan(GemmProblem(m, n, k, (), left, right, p.a, p.b, p.acc), info, epilogue)


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
        return self.tile.time(g.m, g.n, g.k, g.classes * p.groups, splits, info.compute_units)

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
        time = self._time(problem, info, self._splits(problem, info))
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
        params = geometry(p).add(
            "int", BATCH=p.x_shape[0], CIN=shape.channels, COUT=shape.n, GROUPS=p.groups,
            SPLITS=splits, KSLICE=slice_, TILES_M=tiles_m,
        )  # fmt: skip
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        names = zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first))
        params.add(index, **dict(names))
        if p.kind == FILTER_GRAD:
            names = zip(("bN", "bP", "bC"), image_strides(p.y_shape, p.channels_first))
            params.add(index, **dict(names))
        else:
            names = zip(("oN", "oP", "oC"), image_strides(p.out_shape, p.channels_first))
            params.add(index, **dict(names))
            depth, column = (filters, 1) if p.kind == FORWARD else (1, filters)
            wide = filters // p.groups
            params.add(index, wTap=p.w_shape[-2] * filters, wC=depth, wN=column, wG=wide)
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
    gradient); x is read where it lies."""

    name = "panels"
    DEPTH = 2048  # pixels in one slice of a filter gradient, about

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
        micro = self.micro or cpu.best(p.acc, info, channels, g.n, most_rows=channels)
        images, pixels, width = p.x_shape[0], math.prod(p.y_shape[1:-1]), p.y_shape[-2]
        image_step, pixel_step, filter_step = image_strides(p.y_shape, p.channels_first)
        pack, nbytes, _ = cpu.packing(
            index, micro.nr, g.n, images * pixels, Ref("b"), Ref("ws0"), p.b, p.acc, 0, filter_step,
            pixel_step, (1, 1, p.groups), (0, 0, g.n * filter_step), (pixels, image_step),
        )  # fmt: skip
        workspace = [nbytes]
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
        inner = epilogue
        if splits > 1:
            inner = partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}", "ws1")
            workspace.append(splits * p.total * p.acc.itemsize)
        launch = self._launch(p, index, micro, params, inner, info, ceil_div(tiles * splits, per))
        launches = [pack, launch]
        if splits > 1:
            launches.append(fold_launch(p.total, splits, p.acc, index, epilogue, "ws1"))
        return Plan(launches, workspace)

    @staticmethod
    def _launch(p, index, micro, params, epilogue, info, items) -> Launch:
        source = (
            prelude(index, A=p.a, ACC=p.acc)
            + kind_defines(p)
            + params.source
            + micro.source(p.acc, info)
            + epilogue.defines
            + cl_source("conv_axis.cl")
            + cl_source("conv_cpu.cl")
        )
        args = (Ref("a"), Ref("ws0"), *params.args, *epilogue.args)
        return Launch(source, "conv_cpu", args, (items,), (1,))


class Depthwise(Solver):
    """groups == channels: every output channel sees one input channel."""

    name = "depthwise"

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return usable(p, info) and p.w_shape[-2] == 1 and p.groups == p.x_shape[-1]

    def cost(self, problem: ConvProblem, info) -> float:
        # With one group it is an ordinary convolution of one channel.
        return 0.0 if problem.groups > 1 else math.inf

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        filters = p.w_shape[-1]
        params = geometry(p).add(
            "int", FILTERS=filters, MULT=filters // p.groups, BATCH=p.x_shape[0]
        )
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        names = zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first))
        params.add(index, **dict(names))
        head = prelude(index, A=p.a, B=p.b, ACC=p.acc) + kind_defines(p)
        if p.kind != FILTER_GRAD:
            params.add("int", CHANNELS=p.out_shape[-1]).add(index, TOTAL=p.total)
            source = head + params.source + epilogue.defines + cl_source("depthwise.cl")
            args = (Ref("a"), Ref("b"), *params.args, *epilogue.args)
            return Plan([Launch(source, "depthwise_gather", args, (round_up(p.total, 64),), (64,))])
        names = zip(("bN", "bP", "bC"), image_strides(p.y_shape, p.channels_first))
        params.add(index, **dict(names))
        lanes_c, lanes_p = (1, 64) if p.channels_first else (16, 4)
        pixels = math.prod(p.y_shape[:-1])
        groups = ceil_div(filters, lanes_c) * math.prod(p.w_shape[:-2])
        wanted = ceil_div(info.compute_units * 16, groups)
        splits = max(1, min(wanted, pixels // (lanes_p * 16), 256))
        slice_ = ceil_div(pixels, splits)
        splits = ceil_div(pixels, slice_)
        params.add("int", SLICE=slice_)
        inner = epilogue if splits == 1 else partial_epilogue(p.acc, f"(INDEX_T)split * {p.total}")
        source = (
            head + f"#define LC {lanes_c}\n#define LP {lanes_p}\n" + params.source
            + inner.defines + cl_source("depthwise.cl")
        )  # fmt: skip
        args = (Ref("a"), Ref("b"), *params.args, *inner.args)
        threads = lanes_c * lanes_p
        launch = Launch(source, "depthwise_filter", args, (groups * splits * threads,), (threads,))
        if splits == 1:
            return Plan([launch])
        fold = fold_launch(p.total, splits, p.acc, index, epilogue)
        return Plan([launch, fold], [splits * p.total * p.acc.itemsize])


SOLVERS: tuple[Solver, ...] = (Pointwise(), Depthwise(), Panels(), *(Tiled(tile) for tile in TILES))


@functools.lru_cache(maxsize=4096)
def _choose(problem: ConvProblem, info) -> Solver:
    return choose(SOLVERS, problem, info)


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
    return _choose(problem, info).plan(problem, info, epilogue)
