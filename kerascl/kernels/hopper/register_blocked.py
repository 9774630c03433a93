"""Filter gradients of 3 x 3 taps at once with warpgroup matrix instructions, see `ptx`.

A box of x with its margin is read once for nine taps.  Of float32 (as TF32) wgmma takes neither
operand with pixels as rows from shared memory: the left fragments (x) are loaded into registers,
and one warp for 32 filters turns dy in shared memory, which the taps make up for.  Of 16-bit floats
only the left fragments go through registers, so that a tap may begin at any pixel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.conv.problem import FILTER_GRAD, ConvProblem, conv_index, geometry
from kerascl.kernels.hopper import probe
from kerascl.kernels.hopper.kernel import partial
from kerascl.kernels.hopper.ptx import KINDS, REWRITE, register_instruction
from kerascl.kernels.hopper.solver import HopperSolver
from kerascl.kernels.hopper.tiles import SHARED_LIMIT, slice_counts
from kerascl.kernels.hopper.tma import depth_of, map_words
from kerascl.kernels.matmul.split_k import reduction_time, vector_reduction_launch
from kerascl.kernels.selftests import part
from kerascl.kernels.tuning import machine

TAPS = 3  # taps a side that a tile holds
SIDE = 64  # its channels and its filters
WIDTH = 8  # pixels of a box, side by side
THREADS = 512
TILE_CLOCKS = 7920  # to fill the ring and to store a tile


@dataclass(frozen=True)
class RegisterBox:
    """How the four lines of eight pixels of a box lie: `height` in each of 4 / height images.

    `clocks` is what a compute unit takes for the products of a box (measured on an H200).
    """

    height: int
    clocks: float
    lines: ClassVar[int] = 4

    @property
    def name(self) -> str:
        """The height and width of a box in pixels."""
        return f"{self.height}x{WIDTH}"

    @property
    def images(self) -> int:
        """How many images' lines one box holds."""
        return self.lines // self.height

    @property
    def x_rows(self) -> int:
        """Pixels of x with the margin."""
        return (WIDTH + TAPS - 1) * (self.height + TAPS - 1) * self.images

    @property
    def stage(self) -> int:
        """Bytes of a stage of the ring, with its barriers."""
        transposed = 9 * 1024
        return (
            2 * round_up(128 * self.x_rows, 1024) + 2 * WIDTH * self.lines * 128 + transposed + 24
        )

    @property
    def stages(self) -> int:
        """Stages of the ring, as many as fit."""
        return SHARED_LIMIT // self.stage

    def count(self, images: int, height: int, width: int) -> int:
        """How many boxes cover `images` images of height x width pixels."""
        return (
            ceil_div(images, self.images) * ceil_div(height, self.height) * ceil_div(width, WIDTH)
        )


@dataclass(frozen=True)
class RegisterBox16(RegisterBox):
    """Eight lines of 16-bit floats.  `clocks` are counted: those that shared memory is busy."""

    lines: ClassVar[int] = 8

    @property
    def stage(self) -> int:
        return round_up(128 * self.x_rows, 1024) + WIDTH * self.lines * 128 + 16


BOXES = (RegisterBox(4, 1465), RegisterBox(1, 1465))
BOXES16 = (
    RegisterBox16(8, 1742),
    RegisterBox16(4, 1762),
    RegisterBox16(2, 1822),
    RegisterBox16(1, 1901),
)


class RegisterBlockedFilterGradient(HopperSolver):
    """Filter gradient of two-dimensional convolutions of float32 with stride one, channels last."""

    prefix = "wgmma_register_blocked"
    self_test = probe.CONVOLUTIONS
    boxes: tuple[RegisterBox, ...] = BOXES

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a, "high", problem.kind)

    def takes(self, p: ConvProblem) -> bool:
        return (
            p.kind == FILTER_GRAD
            and p.a is p.b
            and self._multiplies(p)
            and p.acc is dtypes.float32
            and p.rank == 2
            and p.groups == 1
            and not p.channels_first
            and set(p.dilation) == set(p.strides) == {1}
            and all(low >= 0 for low, _ in p.pads)
            and p.x_shape[-1] * p.a.itemsize % 16 == 0
            and p.y_shape[-1] * p.a.itemsize % 16 == 0
        )

    @staticmethod
    def _multiplies(p: ConvProblem) -> bool:
        return p.a is dtypes.float32 and p.precision == "high"

    def best(self, p: ConvProblem, info) -> tuple[float, RegisterBox, int]:
        choices, rates = [], machine.of(info)
        tiles, units = _tiles(p), info.compute_units
        for box in (self.tile,) if self.tile else self.boxes:
            boxes = box.count(*p.y_shape[:3])
            counts = set(slice_counts(self.splits, p.total, boxes))
            if self.splits is None and tiles < units:
                counts |= set(slice_counts(units // tiles, p.total, boxes))
            for splits in sorted(counts):
                rounds = ceil_div(tiles * splits, units)
                one = ceil_div(boxes, splits) * box.clocks + TILE_CLOCKS
                time = rates.clocks(rounds * one)
                choices.append((time + reduction_time(p.total, splits, info), box, splits))
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
        x_words = _words(p.a, p.x_shape, (WIDTH + margin, box.height + margin, box.images))
        dy_words = _words(p.a, p.y_shape, (WIDTH, box.height, box.images))
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
            inner = partial(p.total, index, "ws1")
        names = dict(BOX_H=box.height, BOX_N=box.images, STAGES=box.stages, BN=SIDE, VECTOR=4)
        source = (
            prelude(index, ACC=dtypes.float32)
            + "".join(f"#define {k} {v}\n" for k, v in names.items())
            + register_instruction(SIDE, KINDS[p.a.name], True)
            + params.source
            + inner.defines
            + cl_source("hopper/wgmma_common.cl")
            + cl_source("hopper/wgmma_store.cl")
            + cl_source("hopper/wgmma_register_blocked_common.cl")
            + cl_source(f"hopper/{self.prefix}.cl")
        )
        args = (
            Ref("a"), Ref("b"), Ref("ws0"), Scalar("ulong8", x_words), Scalar("ulong8", dy_words),
            *params.args, *inner.args,
        )  # fmt: skip
        launches = [
            Launch(source, self.prefix, args, (groups * THREADS,), (THREADS,),
                   (f"--rewrite={REWRITE}",))
        ]  # fmt: skip
        if splits > 1:
            adding = vector_reduction_launch(p.total, splits, p.acc, index, epilogue, info, "ws1")
            launches.append(adding)
        return Plan(launches, workspace)


class RegisterBlockedFilterGradient16(RegisterBlockedFilterGradient):
    """The same of 16-bit floats."""

    prefix = self_test = "wgmma_register_blocked16"
    boxes = BOXES16

    def part(self, problem: ConvProblem) -> str:
        return part.named(problem.a)

    @staticmethod
    def _multiplies(p: ConvProblem) -> bool:
        return p.a.name in KINDS and p.a.itemsize == 2


def _tiles(p: ConvProblem) -> int:
    """Tiles of the gradient: 3 x 3 taps of 64 channels and 64 filters each."""
    rows, columns, channels, filters = p.w_shape
    taps = ceil_div(rows, TAPS) * ceil_div(columns, TAPS)
    return taps * ceil_div(channels, SIDE) * ceil_div(filters, SIDE)


def _words(dtype: DType, shape: tuple[int, ...], box: tuple[int, ...]) -> tuple[int, ...]:
    """The tensor map of images, by boxes of 128 bytes of channels and so many pixels."""
    images, height, width, channels = shape
    pixel = dtype.itemsize * channels
    return map_words(
        dtype, (channels, width, height, images),
        (pixel, width * pixel, height * width * pixel), (depth_of(dtype), *box),
    )  # fmt: skip
