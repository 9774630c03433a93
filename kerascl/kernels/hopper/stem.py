"""Convolutions of few channels with warpgroup matrix instructions, see `ptx`.

wgmma wants 128 bytes of depth at a time, which a tap of an image's three channels does not have.
But the taps of one row of the filter read neighbouring pixels, which are contiguous in memory.  So
a row of taps is one tap of as many channels as its pixels have together: a tensor map may step by
a pixel and read several.  Its steps are multiples of 16 bytes, and a row of taps must not reach
into the next row: hence the images are laid out anew (wgmma_stem.cl), with more channels and
with the zeros of the padding left and right.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div, index_type, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.conv.problem import FILTER_GRAD, FORWARD, ConvProblem, conv_index
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.hopper import filter_gradient
from kerascl.kernels.hopper.filter_gradient import BLOCK
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.pack import pack_time
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import HopperSolver, MomentsSolver
from kerascl.kernels.hopper.tiles import (
    PROMOTED,
    SHAPES,
    Shape,
    slice_counts,
    tiles_time,
)
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.matmul.split_k import reduction_time
from kerascl.kernels.selftests import part
from kerascl.kernels.tuning import machine

MAX_STRIDE = 4
MAX_CHANNELS = 16  # the kernel that lays images out anew copies a pixel at a time
IMAGES = 0.33  # of the bandwidth that laying images out anew reaches
GROUP = 256
# Three blocks of rows: the taps of a 3 x 3 filter.
FILTER_SHAPES = (*SHAPES, Shape(64, 1, 3, 6, 1, 0.75, 0.65))


@dataclass(frozen=True)
class StemLayout:
    """The images and weights laid out anew.

    Attributes:
        pixel: channels of a pixel, those past the problem's zero.
        wide: pixels of a row.
        run: elements that a row of taps reads.
        step: elements of a row of weights.
    """

    pixel: int
    wide: int
    run: int
    step: int


@functools.lru_cache(maxsize=4096)
def layout(p: ConvProblem) -> StemLayout:
    """How the images of a first layer are laid out, so that each row of taps begins at a
    multiple of 16 bytes."""
    size, stride, taps = p.a.itemsize, p.strides[1], p.w_shape[1]
    pixel = p.x_shape[-1]
    while stride * pixel * size % 16:
        pixel += 1
    wide = max((p.y_shape[2] - 1) * stride + taps, p.pads[1][0] + p.x_shape[2])
    while wide * pixel * size % 16:
        wide += 1
    return StemLayout(pixel, wide, taps * pixel, round_up(taps * pixel, 16 // size))


class _Stem(HopperSolver):
    """What forward and filter gradient share."""

    self_test = "wgmma_stem"
    kind = ""

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a, problem.precision, problem.kind)

    def takes(self, p: ConvProblem) -> bool:
        stride = p.strides[-1]
        return (
            p.kind == self.kind
            and p.a is p.b
            and p.a.name in KINDS
            and p.acc.name == "float32"
            and p.rank == 2
            and p.groups == 1
            and p.x_shape[-1] <= MAX_CHANNELS
            and not p.channels_first
            and set(p.dilation) == {1}
            and all(low >= 0 for low, _ in p.pads)
            and p.strides == (stride, stride)
            and stride <= min(MAX_STRIDE, p.x_shape[1])
        )

    @staticmethod
    def _image_time(p: ConvProblem, copies: int, info) -> float:
        """Microseconds to lay the images out anew."""
        a, rates = layout(p), machine.of(info)
        written = math.prod(p.x_shape[:2]) * a.wide * a.pixel * copies
        nbytes = (math.prod(p.x_shape) + written) * p.a.itemsize
        return rates.launch + rates.moving(nbytes, IMAGES)

    @staticmethod
    def _flags(p: ConvProblem) -> tuple[tuple[str, int], ...]:
        return (
            ("CONV", 1), ("FILTER_GRAD", int(p.kind == FILTER_GRAD)), ("DATA_GRAD", 0),
            ("IMAGES1", p.strides[0]), ("IMAGES2", 1), ("CLASSES", 1), ("B_TAPS_INNER", 0),
        )  # fmt: skip

    @staticmethod
    def _image_words(p: ConvProblem, box: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor map of the images: of each output pixel the first row of taps."""
        a, size, stride = layout(p), p.a.itemsize, p.strides[0]
        row = a.wide * a.pixel * size
        # Width and height are those of the remainder's image, which the kernel adds.
        return map_words(
            p.a, (a.run, 1, 1, p.x_shape[0]),
            (stride * a.pixel * size, stride * row, p.x_shape[1] * row), box,
        )  # fmt: skip

    @staticmethod
    def _params(p: ConvProblem) -> Params:
        """Geometry as wgmma.cl sees it: rows of taps, and one column of the images for each of
        the output's."""
        a, (_, out_h, out_w, filters) = layout(p), p.y_shape
        return Params().add(
            "int", IN1=p.x_shape[1], IN2=out_w, OUT1=out_h, OUT2=out_w, KER1=p.w_shape[0], KER2=1,
            PAD1=p.pads[0][0], PAD2=0, BATCH=p.x_shape[0], CIN=p.x_shape[-1], COUT=filters,
            ROW_BYTES=a.wide * a.pixel * p.a.itemsize,
        ).add("long", A_OFFSET=0, B_OFFSET=0)  # fmt: skip


class StemConv(_Stem, MomentsSolver):
    """Forward convolutions of few channels, channels last."""

    prefix = "wgmma_stem"
    kind = FORWARD

    def moments(self, p: ConvProblem) -> bool:
        return True

    def takes(self, p: ConvProblem) -> bool:
        promoted = self.tile is None or not _low(p) or self.tile in PROMOTED
        return super().takes(p) and promoted

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        low, a = _low(p), layout(p)
        deep, out = depth_of(p.a), p.y_shape
        k = p.w_shape[0] * round_up(a.run, deep)
        packing = self._image_time(p, 2 if low else 1, info)
        packing += pack_time(math.prod(p.w_shape) * 4, info)
        choices = []
        for shape in (self.tile,) if self.tile else PROMOTED if low else SHAPES:
            tiles = hopper_conv.box(*out[:3], shape.bm)[0] * ceil_div(out[-1], shape.bn)
            for splits in slice_counts(self.splits, p.total, k // deep):
                time = tiles_time(
                    shape, KINDS[p.a.name], tiles * splits, ceil_div(k, splits), 3 if low else 1,
                    info, more=self.more, reads=self.reads,
                )  # fmt: skip
                stages = ceil_div(k, deep * splits) * (2 if low else 1)
                each = _tile_clocks(shape, stages, min(shape.bn, out[-1]))
                each = machine.of(info).clocks(tiles * splits * each / info.compute_units)
                # Of 3xTF32 the ring is too short for products to hide loads.
                time = time + each if low else max(time, each)
                time += reduction_time(p.total, splits, info) + packing
                choices.append((time, shape, splits))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.choice(p, info, epilogue)
        low, a, index = _low(p), layout(p), _index(p)
        size, deep = p.a.itemsize, depth_of(p.a)
        batch, out_h, out_w, filters = p.y_shape
        workspace = Workspace()
        room = workspace.room
        image_bytes = batch * p.x_shape[1] * a.wide * a.pixel * size
        weight_bytes = p.w_shape[0] * filters * a.step * size
        images, weights = room(image_bytes), room(weight_bytes)
        a_low, b_low = (room(image_bytes), room(weight_bytes)) if low else (None, None)
        launches = [
            images_launch(p, index, images, a_low),
            weights_launch(p, index, weights, b_low),
        ]
        tiles_m, bn_, bh, bw = hopper_conv.box(batch, out_h, out_w, shape.bm)
        b_words = map_words(
            p.a, (a.run, filters, p.w_shape[0]), (a.step * size, filters * a.step * size),
            (deep, shape.bn, 1),
        )  # fmt: skip
        chunks = ceil_div(a.run, deep)
        depth = p.w_shape[0] * chunks
        slice_ = ceil_div(depth, splits)
        splits = ceil_div(depth, slice_)
        tiles_n = ceil_div(filters, shape.bn)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, images, weights, self._image_words(p, (deep, bw, bh, bn_)), b_words,
            False, False, a_low, b_low, a_maps=p.strides[0], columns=filters,
            flags=self._flags(p),
        )  # fmt: skip
        params = self._params(p).add(
            "int", TILES=tiles, TILES_M=tiles_m, TILES_N=tiles_n, TILES_H=ceil_div(out_h, bh),
            TILES_W=ceil_div(out_w, bw), SPLITS=splits, CHUNKS=chunks, SLICE=slice_, BOX_N=bn_,
            BOX_H=bh, BOX_W=bw, A_BOX_BYTES=bn_ * bh * bw * 128,
        )  # fmt: skip
        launches += run.launches(tiles, splits, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


class StemFilterGradient(_Stem):
    """Filter gradients of few channels of 16-bit floats, channels last."""

    prefix = "wgmma_stem_filter"
    kind = FILTER_GRAD

    def takes(self, p: ConvProblem) -> bool:
        return super().takes(p) and p.a.itemsize == 2 and p.y_shape[-1] % 8 == 0

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        boxes = filter_gradient.box(*p.y_shape[:3])[0]
        blocks = p.w_shape[0] * ceil_div(layout(p).run, BLOCK)
        choices = []
        for shape in (self.tile,) if self.tile else FILTER_SHAPES:
            tiles = ceil_div(blocks, shape.bm // BLOCK) * ceil_div(p.y_shape[-1], shape.bn)
            for splits in slice_counts(self.splits, p.total, boxes):
                depth = ceil_div(boxes, splits) * BLOCK
                time = tiles_time(shape, KINDS[p.a.name], tiles * splits, depth, 1, info)
                choices.append((time + reduction_time(p.total, splits, info), shape, splits))
        time, shape, splits = min(choices, key=lambda c: c[0])
        return time + self._image_time(p, 1, info), shape, splits

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.best(p, info)
        a, index, size = layout(p), _index(p), p.a.itemsize
        batch, out_h, out_w, filters = p.y_shape
        workspace = Workspace()
        images = workspace.room(batch * p.x_shape[1] * a.wide * a.pixel * size)
        boxes, bn_, bh, bw = filter_gradient.box(batch, out_h, out_w)
        row = filters * size
        b_words = map_words(
            p.a, (filters, out_w, out_h, batch), (row, out_w * row, out_h * out_w * row),
            (BLOCK, bw, bh, bn_),
        )  # fmt: skip
        slice_ = ceil_div(boxes, splits)
        splits = ceil_div(boxes, slice_)
        channel_blocks = ceil_div(a.run, BLOCK)
        tiles_m = ceil_div(p.w_shape[0] * channel_blocks, shape.bm // BLOCK)
        tiles_n = ceil_div(filters, shape.bn)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, images, "b", self._image_words(p, (BLOCK, bw, bh, bn_)), b_words,
            True, True, a_maps=p.strides[0], columns=filters,
            flags=(*self._flags(p), ("RUN", p.w_shape[1]), ("PIXEL", a.pixel)),
        )  # fmt: skip
        params = self._params(p).add(
            "int", TILES=tiles, TILES_M=tiles_m, TILES_N=tiles_n, TILES_H=ceil_div(out_h, bh),
            TILES_W=ceil_div(out_w, bw), SPLITS=splits, CHUNKS=boxes, SLICE=slice_, BOX_N=bn_,
            BOX_H=bh, BOX_W=bw, A_BOX_BYTES=shape.bm * 128, CHANNEL_BLOCKS=channel_blocks,
        )  # fmt: skip
        launches = [images_launch(p, index, images, None)]
        launches += run.launches(tiles, splits, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


def _tile_clocks(shape: Shape, stages: int, columns: int) -> float:
    """Clocks between two tiles of a compute unit at least, measured on an H200: its boxes begin
    anywhere in lines of the cache, and few stages hide neither that nor the stores."""
    load = 119 + 1.98 * shape.bm + 4.36 * shape.bn
    return 2770 + stages * load + 0.363 * shape.bm * columns


def images_launch(p: ConvProblem, index: str, out: str, low: str | None) -> Launch:
    """Copies slot "a" to [image][row][wide][pixel], and what tf32 loses of it to `low`."""
    a = layout(p)
    pixels = math.prod(p.x_shape[:2]) * a.wide
    args: tuple[Arg, ...] = (
        Ref("a"), Ref(out), Ref(low or out), Scalar(index, pixels),
        *(Scalar("int", n) for n in (a.wide, p.x_shape[2], p.pads[1][0])),
    )  # fmt: skip
    text = "#define IMAGES\n" + _head(p, index, low) + cl_source("hopper/wgmma_stem.cl")
    size = round_up(pixels, GROUP)
    return Launch(text, "stem_images", args, (size,), (GROUP,), role=Role.PACK)


def weights_launch(p: ConvProblem, index: str, out: str, low: str | None) -> Launch:
    """Copies slot "b" to [row of taps][filter][step], and what tf32 loses of it to `low`."""
    a, filters = layout(p), p.w_shape[-1]
    total = p.w_shape[0] * filters * a.step
    args: tuple[Arg, ...] = (
        Ref("b"), Ref(out), Ref(low or out), Scalar(index, total),
        *(Scalar("int", n) for n in (a.step, filters)),
    )  # fmt: skip
    text = _head(p, index, low) + cl_source("hopper/wgmma_stem.cl")
    size = round_up(total, GROUP)
    return Launch(text, "stem_weights", args, (size,), (GROUP,), role=Role.PACK)


def _head(p: ConvProblem, index: str, low: str | None) -> str:
    names = dict(
        INDEX_T=index, WORD="uint" if p.a.itemsize == 4 else "ushort", LOW=int(low is not None),
        PIXEL=layout(p).pixel, CHANNELS=p.x_shape[-1], RUN=p.w_shape[1],
    )  # fmt: skip
    return "".join(f"#define {k} {v}\n" for k, v in names.items())


def _index(p: ConvProblem) -> str:
    a = layout(p)
    copied = math.prod(p.x_shape[:2]) * a.wide * a.pixel
    return "long" if conv_index(p) == "long" else index_type(copied + 2**16)


def _low(p: ConvProblem) -> bool:
    """Whether float32 inputs are to be multiplied as exactly as float32 allows."""
    return p.a.name == "float32" and p.precision == "highest"
