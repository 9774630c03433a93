"""Filter gradients with warpgroup matrix instructions: products over pixels, see `ptx`.

Rows are the channels of x in blocks of 64 of one tap, columns the filters, and the depth runs over
boxes of 64 pixels, which TMA reads from x (shifted by the tap's place) and from dy.  Both operands
are contiguous along rows and columns, which wgmma takes of 16-bit types only.
"""

from __future__ import annotations

import functools
import math

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan, Workspace
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.conv.problem import FILTER_GRAD, ConvProblem, conv_index, geometry
from kerascl.kernels.hopper import probe, tiles
from kerascl.kernels.hopper.conv import MAX_STRIDE
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import HopperSolver
from kerascl.kernels.hopper.tiles import Shape, slice_counts, tiles_time
from kerascl.kernels.hopper.tma import map_words
from kerascl.kernels.matmul.split_k import reduction_time
from kerascl.kernels.selftests import part

BLOCK = 64  # channels of one block of rows, and pixels of one box
# The last one: more tiles, where 256 rows leave compute units idle.
SHAPES = (*tiles.SHAPES, Shape(128, 1, 3, 5, 1, 1.0, 1.0))
_SIDES = tuple(
    (BLOCK // (h * w), h, w) for w in (1, 2, 4, 8, 16, 32, 64) for h in (1, 2, 4, 8, 16, 32, 64)
    if h * w <= BLOCK
)  # fmt: skip


@functools.lru_cache(maxsize=4096)
def box(images: int, height: int, width: int) -> tuple[int, int, int, int]:
    """(boxes, images, height, width): exactly 64 pixels that cover in the fewest boxes; of equals
    the widest."""
    counts = [
        (ceil_div(images, n) * ceil_div(height, h) * ceil_div(width, w), -w, -h, n)
        for n, h, w in _SIDES
    ]
    count, w, h, n = min(counts)
    return count, n, -h, -w


class FilterGradient(HopperSolver):
    """Filter gradient of two-dimensional convolutions of 16-bit floats, channels last."""

    prefix = "wgmma_filter"
    self_test = probe.CONVOLUTIONS

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a, "high", problem.kind)

    def takes(self, p: ConvProblem) -> bool:
        stride = p.strides[-1]
        return (
            p.kind == FILTER_GRAD
            and p.a is p.b
            and p.a.name in KINDS
            and p.a.itemsize == 2
            and p.acc.name == "float32"
            and p.rank == 2
            and p.groups == 1
            and not p.channels_first
            and set(p.dilation) == {1}
            and all(low >= 0 for low, _ in p.pads)
            and p.strides == (stride, stride)
            and stride <= min(MAX_STRIDE, *p.x_shape[1:3])
            and p.x_shape[-1] % 8 == 0
            and p.y_shape[-1] % 8 == 0
        )

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        boxes = box(*p.y_shape[:3])[0]
        choices = []
        for shape in (self.tile,) if self.tile else SHAPES:
            tiles = ceil_div(_blocks(p), shape.bm // BLOCK) * ceil_div(p.y_shape[-1], shape.bn)
            for splits in slice_counts(self.splits, p.total, boxes):
                depth = ceil_div(boxes, splits) * BLOCK
                kind = KINDS[p.a.name]
                time = tiles_time(shape, kind, tiles * splits, depth, 1, info)
                if shape.groups > 1:
                    time *= 1.15  # measured: short rings wait for boxes of both operands
                choices.append((time + reduction_time(p.total, splits, info), shape, splits))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.best(p, info)
        index = conv_index(p)
        size, images = p.a.itemsize, p.strides[0]
        batch, height, width, channels = p.x_shape
        _, out_h, out_w, filters = p.y_shape
        boxes, bn_, bh, bw = box(batch, out_h, out_w)
        pixel = channels * size
        # Width and height are those of the remainder's image, which the kernel adds.
        a_words = map_words(
            p.a, (channels, 1, 1, batch),
            (images * pixel, images * width * pixel, height * width * pixel), (BLOCK, bw, bh, bn_),
        )  # fmt: skip
        pixel = filters * size
        b_words = map_words(
            p.a, (filters, out_w, out_h, batch), (pixel, out_w * pixel, out_h * out_w * pixel),
            (BLOCK, bw, bh, bn_),
        )  # fmt: skip
        slice_ = ceil_div(boxes, splits)
        splits = ceil_div(boxes, slice_)
        tiles_m = ceil_div(_blocks(p), shape.bm // BLOCK)
        tiles_n = ceil_div(filters, shape.bn)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, "a", "b", a_words, b_words, True, True, a_maps=images**2,
            columns=filters,
            flags=(
                ("CONV", 1), ("FILTER_GRAD", 1), ("DATA_GRAD", 0), ("IMAGES1", images),
                ("IMAGES2", images), ("CLASSES", 1), ("B_TAPS_INNER", 0),
            ),
        )  # fmt: skip
        params = geometry(p).add(
            "int", BATCH=batch, CIN=channels, COUT=filters, TILES=tiles, TILES_M=tiles_m,
            TILES_N=tiles_n, TILES_H=ceil_div(out_h, bh), TILES_W=ceil_div(out_w, bw),
            SPLITS=splits, CHUNKS=boxes, SLICE=slice_, BOX_N=bn_, BOX_H=bh, BOX_W=bw,
            A_BOX_BYTES=shape.bm * 128, CHANNEL_BLOCKS=ceil_div(channels, BLOCK),
            ROW_BYTES=width * channels * size,
        )  # fmt: skip
        params.add("long", A_OFFSET=0, B_OFFSET=0)
        workspace = Workspace()
        launches = run.launches(tiles, splits, p.total, params, epilogue, workspace, info)
        return Plan(launches, workspace)


def _blocks(p: ConvProblem) -> int:
    """Blocks of rows: 64 channels of one tap each."""
    return math.prod(p.w_shape[:2]) * ceil_div(p.x_shape[-1], BLOCK)
