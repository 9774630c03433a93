"""Filter gradients of float32 (as TF32) with warpgroup matrix instructions, see `wgmma`.

TF32's wgmma takes neither operand with pixels as rows from shared memory.  So the left fragments
(x) are loaded into registers, and one warp for 32 filters turns dy in shared memory.  Three by
three taps share both: a box of x with its margin is read once, which makes up for the turning.
"""

from __future__ import annotations

from dataclasses import dataclass

from kerascl import dtypes
from kerascl.kernels import wgmma
from kerascl.kernels.conv_problem import FILTER_GRAD, ConvProblem, conv_index, geometry
from kerascl.kernels.solver import Epilogue, Launch, Plan, Ref, Scalar, cl_source, prelude
from kerascl.kernels.tiles import ceil_div, fold_vectors_launch, round_up
from kerascl.kernels.wgmma import SHARED_LIMIT

TAPS = 3  # taps a side that a tile holds
SIDE = 64  # its channels and its filters
WIDTH = 8  # pixels of a box, side by side
LINES = 4  # lines of a box
THREADS = 512
TILE_TIME = 4.0  # microseconds to fill the ring and to store a tile


@dataclass(frozen=True)
class Box:
    """How the four lines of eight pixels of a box lie: `height` in each of 4 / height images.

    `time` is what a compute unit takes for the products of a box, in microseconds (measured on an
    H200).
    """

    height: int
    time: float

    @property
    def name(self) -> str:
        return f"{self.height}x{WIDTH}"

    @property
    def images(self) -> int:
        return LINES // self.height

    @property
    def x_rows(self) -> int:
        """Pixels of x with the margin."""
        return (WIDTH + TAPS - 1) * (self.height + TAPS - 1) * self.images

    @property
    def stages(self) -> int:
        """Stages of the ring, as many as fit."""
        stage = 2 * round_up(128 * self.x_rows, 1024) + 2 * WIDTH * LINES * 128 + 9 * 1024
        return SHARED_LIMIT // (stage + 24)

    def count(self, images: int, height: int, width: int) -> int:
        return (
            ceil_div(images, self.images) * ceil_div(height, self.height) * ceil_div(width, WIDTH)
        )


BOXES = (Box(4, 0.74), Box(1, 0.74))


class Wgmma(wgmma.WgmmaSolver):
    """Filter gradient of two-dimensional convolutions of float32 with stride one, channels last."""

    family = "wgmma_taps"

    def takes(self, p: ConvProblem) -> bool:
        return (
            p.kind == FILTER_GRAD
            and p.a is p.b is dtypes.float32
            and p.acc is dtypes.float32
            and p.precision == "high"
            and p.rank == 2
            and p.groups == 1
            and not p.channels_first
            and set(p.dilation) == set(p.strides) == {1}
            and all(low >= 0 for low, _ in p.pads)
            and p.x_shape[-1] % 4 == 0
            and p.y_shape[-1] % 4 == 0
        )

    def best(self, p: ConvProblem, info) -> tuple[float, Box, int]:
        choices = []
        tiles, units = _tiles(p), info.compute_units
        for box in (self.tile,) if self.tile else BOXES:
            boxes = box.count(*p.y_shape[:3])
            counts = set(wgmma.slice_counts(self.splits, p.total, boxes))
            if self.splits is None and tiles < units:
                counts |= set(wgmma.slice_counts(units // tiles, p.total, boxes))
            for splits in sorted(counts):
                rounds = ceil_div(tiles * splits, units)
                time = rounds * (ceil_div(boxes, splits) * box.time + TILE_TIME)
                choices.append(
                    (time + wgmma.fold_time(p.total, splits) + wgmma.LAUNCH, box, splits)
                )
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, box, splits = self.best(p, info)
        index = conv_index(p)
        batch, out_h, out_w, filters = p.y_shape
        boxes = box.count(batch, out_h, out_w)
        slice_ = ceil_div(boxes, splits)
        splits = ceil_div(boxes, slice_)
        margin = TAPS - 1
        x_words = _words(p.x_shape, (32, WIDTH + margin, box.height + margin, box.images))
        dy_words = _words(p.y_shape, (32, WIDTH, box.height, box.images))
        tiles = _tiles(p) * splits
        groups = min(tiles, info.compute_units)
        params = geometry(p).add(
            "int", CIN=p.x_shape[-1], COUT=filters, TILES=tiles,
            TILES_M=ceil_div(p.x_shape[-1], SIDE), TILES_N=ceil_div(filters, SIDE),
            GROUPS_H=ceil_div(p.w_shape[0], TAPS), GROUPS_W=ceil_div(p.w_shape[1], TAPS),
            TILES_H=ceil_div(out_h, box.height), TILES_W=ceil_div(out_w, WIDTH), BOXES=boxes,
            SLICE=slice_,
        )  # fmt: skip
        workspace = [128 * (2 * groups + 1)]
        inner = epilogue
        if splits > 1:
            workspace.append(4 * splits * p.total)
            inner = wgmma.partial(p.total, index, "ws1")
        names = dict(BOX_H=box.height, BOX_N=box.images, STAGES=box.stages)
        source = (
            prelude(index, ACC=dtypes.float32)
            + "".join(f"#define {k} {v}\n" for k, v in names.items())
            + wgmma.register_instruction(SIDE)
            + params.source
            + inner.defines
            + cl_source("wgmma_common.cl")
            + cl_source("wgmma_taps.cl")
        )
        args = (
            Ref("a"), Ref("b"), Ref("ws0"), Scalar("ulong8", x_words), Scalar("ulong8", dy_words),
            *params.args, *inner.args,
        )  # fmt: skip
        launches = [
            Launch(source, "wgmma_taps", args, (groups * THREADS,), (THREADS,),
                   (f"--rewrite={wgmma.REWRITE}",))
        ]  # fmt: skip
        if splits > 1:
            launches.append(fold_vectors_launch(p.total, splits, p.acc, index, epilogue, "ws1"))
        return Plan(launches, workspace)


def _tiles(p: ConvProblem) -> int:
    """Tiles of the gradient: 3 x 3 taps of 64 channels and 64 filters each."""
    rows, columns, channels, filters = p.w_shape
    taps = ceil_div(rows, TAPS) * ceil_div(columns, TAPS)
    return taps * ceil_div(channels, SIDE) * ceil_div(filters, SIDE)


def _words(shape: tuple[int, ...], box: tuple[int, ...]) -> tuple[int, ...]:
    """The tensor map of images in float32."""
    images, height, width, channels = shape
    pixel = 4 * channels
    return wgmma.map_words(
        dtypes.float32, (channels, width, height, images),
        (pixel, width * pixel, height * width * pixel), box,
    )  # fmt: skip
