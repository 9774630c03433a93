"""Convolutions with warpgroup matrix instructions: implicit products, see `ptx`.

TMA reads a box of pixels (images x rows x columns) for each tap, shifted by the tap's place;
outside the image it gives the zeros of the padding.  A stride of s makes s * s images of every
s-th pixel (forward), or s * s classes of outputs, each with the taps that reach it (data gradient).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Workspace
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    geometry,
)
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.pack import Matrix, pack_launch, pack_time
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import MomentsSolver
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

MAX_STRIDE = 3


@functools.lru_cache(maxsize=4096)
def box(images: int, height: int, width: int, rows: int) -> tuple[int, int, int, int]:
    """(tiles, images, height, width): the box of at most `rows` pixels that covers with the
    fewest tiles; of equals the widest."""
    best: tuple[int, int, int, int] | None = None
    for w in range(min(width, rows), 0, -1):
        across = ceil_div(width, w)
        for h in range(min(height, rows // w), 0, -1):
            n = min(images, rows // (w * h))
            tiles = across * ceil_div(height, h) * ceil_div(images, n)
            if best is None or tiles < best[0]:
                best = (tiles, n, h, w)
    assert best is not None
    return best


class HopperConv(MomentsSolver):
    """Forward and data gradient of one- and two-dimensional convolutions, channels last."""

    self_test = probe.CONVOLUTIONS

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a, problem.precision, problem.kind)

    def takes(self, p: ConvProblem) -> bool:
        stride = p.strides[-1]
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        return (
            p.a is p.b
            and p.a.name in KINDS
            and p.acc.name == "float32"
            and p.kind != FILTER_GRAD
            and p.rank == 2
            and p.groups == 1
            and not p.channels_first
            and set(p.dilation) == {1}
            and all(low >= 0 for low, _ in p.pads)
            and stride <= MAX_STRIDE
            # A dimension of one pixel has one remainder whatever the stride.
            and p.strides == (stride, stride)
            and (p.kind == DATA_GRAD or min(gathered[1:3]) >= stride)
            and gathered[-1] * p.a.itemsize % 16 == 0
            and (p.kind == DATA_GRAD or packs(p) or p.w_shape[-1] * p.b.itemsize % 16 == 0)
            and (p.kind == FORWARD or p.w_shape[-1] * p.b.itemsize % 16 == 0)
            and not (self.tile and low_parts(p) and self.tile not in PROMOTED)
        )

    def moments(self, p: ConvProblem) -> bool:
        return p.kind == FORWARD

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        exact = low_parts(p)
        gathered, out = sides(p)
        stride = p.strides[0] if p.kind == DATA_GRAD else 1
        classes, deep = stride**2, depth_of(p.a)
        # Channels are read in whole boxes for each tap.
        channels = round_up(gathered[-1], deep)
        k = math.prod(p.w_shape[:2]) * channels
        # The classes of a strided data gradient differ in taps, and those without read a stage of
        # zeros.  Few tiles wait for the deepest.
        idle = classes - math.prod(min(n, stride) for n in p.w_shape[:2])
        mean = ceil_div(k + idle * deep, classes)
        most = math.prod(ceil_div(n, stride) for n in p.w_shape[:2]) * channels
        kind, passes = KINDS[p.a.name], 3 if exact else 1
        packing, rates = 0.0, machine.of(info)
        moving = rates.moving(p.nbytes)
        if exact or packs(p):
            packing += pack_time(math.prod(p.w_shape) * p.a.itemsize * (2 if exact else 1), info)
        if exact:
            nbytes = math.prod(gathered) * p.a.itemsize
            packing += pack_time(nbytes, info)
            # What TF32 loses is read, too.
            moving += rates.moving(nbytes)
        choices = []
        shapes = (self.tile,) if self.tile else PROMOTED if exact else SHAPES
        for shape in shapes:
            tiles = box(*grid(p), shape.bm)[0] * ceil_div(out[-1], shape.bn) * classes
            wanted = 1 if classes > 1 else self.splits
            for splits in slice_counts(wanted, p.total, k // deep):
                time = max(
                    tiles_time(
                        shape, kind, n * splits, ceil_div(d, splits), passes, info, more=self.more,
                        reads=self.reads,
                    )
                    for n, d in ((tiles, mean), (tiles // classes, most))
                )
                time = max(time, moving) + reduction_time(p.total, splits, info) + packing
                choices.append((time, shape, splits))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.choice(p, info, epilogue)
        exact, index = low_parts(p), conv_index(p)
        forward = p.kind == FORWARD
        stride = p.strides[0]
        images, classes = (stride, 1) if forward else (1, stride)
        gathered, out = sides(p)
        batch, height, width, channels = gathered
        taps, columns = math.prod(p.w_shape[:2]), out[-1]
        size, deep = p.a.itemsize, depth_of(p.a)
        launches: list[Launch] = []
        workspace = Workspace()
        a_low = None
        if exact:
            a_low = workspace.room(math.prod(gathered) * size)
            pixels = math.prod(gathered[:-1])
            launches.append(
                pack_launch(Matrix("a", pixels, channels, channels, 1), p.a, index, low=a_low)
            )
        b = weights(p, shape, index, workspace, launches)
        tiles_m, bn_, bh, bw = box(*grid(p), shape.bm)
        # Width and height are those of the remainder's image, which the kernel adds.
        pixel = channels * size
        a_words = map_words(
            p.a, (channels, 1, 1, batch),
            (images * pixel, images * width * pixel, height * width * pixel), (deep, bw, bh, bn_),
        )  # fmt: skip
        chunks = ceil_div(channels, deep)
        depth = taps * chunks
        slice_ = ceil_div(depth, splits)
        splits = ceil_div(depth, slice_)
        tiles_n = ceil_div(columns, shape.bn)
        tiles = tiles_m * tiles_n * splits * classes**2
        run = Run(
            shape, p.a, index, "a", b.slot, a_words, b.words, False, b.transposed, a_low, b.low,
            a_maps=images**2, columns=columns,
            flags=(
                ("CONV", 1), ("FILTER_GRAD", 0), ("DATA_GRAD", int(not forward)),
                ("IMAGES1", images), ("IMAGES2", images), ("CLASSES", classes),
                ("B_TAPS_INNER", int(b.taps_inner)),
            ),
        )  # fmt: skip
        _, grid_h, grid_w = grid(p)
        params = geometry(p).add(
            "int", BATCH=batch, CIN=channels, COUT=columns, TILES=tiles, TILES_M=tiles_m,
            TILES_N=tiles_n, TILES_H=ceil_div(grid_h, bh), TILES_W=ceil_div(grid_w, bw),
            SPLITS=splits, CHUNKS=chunks, SLICE=slice_, BOX_N=bn_, BOX_H=bh, BOX_W=bw,
            A_BOX_BYTES=bn_ * bh * bw * 128, ROW_BYTES=width * pixel,
        )  # fmt: skip
        params.add("long", A_OFFSET=0, B_OFFSET=0)
        launches += run.launches(tiles, splits, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


@dataclass(frozen=True)
class Weights:
    """The right operand of a convolution as TMA reads it.

    Attributes:
        slot, low: where the weights lie, and their low parts for 3xTF32.
        words: of the tensor map.
        transposed: whether columns are contiguous, not k.
        taps_inner: whether the map has the taps between k and the columns.
    """

    slot: str
    low: str | None
    words: tuple[int, ...]
    transposed: bool
    taps_inner: bool


def weights(
    p: ConvProblem, shape: Shape, index: str, workspace: Workspace, launches: list[Launch]
) -> Weights:
    """How the kernels read the weights; what must be packed is, by a launch more."""
    c, f = p.w_shape[-2:]
    taps, size, deep = math.prod(p.w_shape[:2]), p.a.itemsize, depth_of(p.a)
    nbytes, room = math.prod(p.w_shape) * size, workspace.room
    slot, low_slot, taps_inner = "b", None, packs(p)
    if taps_inner:
        # [taps * c][f] -> [f][taps * c]
        slot, low_slot = room(nbytes), room(nbytes) if low_parts(p) else None
        launches.append(pack_launch(Matrix("b", f, taps * c, 1, f), p.a, index, slot, low_slot))
    elif low_parts(p):
        low_slot = room(nbytes)
        launches.append(pack_launch(Matrix("b", taps * c, f, f, 1), p.a, index, low=low_slot))
    transposed = p.kind == FORWARD and not taps_inner
    if taps_inner:
        sizes, steps, b_box = (c, taps, f), (c * size, taps * c * size), (deep, 1, shape.bn)
    else:
        sizes, steps = (f, c, taps), (f * size, c * f * size)
        b_box = (64, deep, 1) if transposed else (deep, shape.bn, 1)
    words = map_words(p.a, sizes, steps, b_box)
    return Weights(slot, low_slot, words, transposed, taps_inner)


def packs(p: ConvProblem) -> bool:
    """Whether the weights are transposed first: tf32 wants k contiguous, forward they are not."""
    return p.kind == FORWARD and p.a.itemsize == 4


def sides(p: ConvProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of what is gathered and of the output."""
    return (p.y_shape, p.x_shape) if p.kind == DATA_GRAD else (p.x_shape, p.y_shape)


def grid(p: ConvProblem) -> tuple[int, int, int]:
    """Images, height and width that boxes cover: the output's, or the largest class's."""
    _, (images, height, width, _) = sides(p)
    stride = p.strides[0] if p.kind == DATA_GRAD else 1
    return images, ceil_div(height, stride), ceil_div(width, stride)


def low_parts(p: ConvProblem) -> bool:
    """Whether float32 inputs are to be multiplied as exactly as float32 allows."""
    return p.a.name == "float32" and p.precision == "highest"
