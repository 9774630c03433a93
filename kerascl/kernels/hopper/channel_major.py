"""Filter gradients of float32 with warpgroup matrix instructions: products in channel-major layout.

wgmma reads TF32 from shared memory only with k contiguous, and k is the pixels here. So x and dy
are laid out anew (wgmma_channel_major.cl): channels first, then rows, columns and images, with so
many zeros at the end of each row that a tap is one shift of all pixels: dw[tap][c][f] = sum over k
of x[c][k + shift] * dy[f][k]. A stride splits x into phases, each the pixels of one remainder; a
tap reads one of them.

Images come last because TMA faults where a box begins at no multiple of 16 bytes.  A shift is a
number of pixels and so a multiple of the number of images, which is rounded up to one of four.

"highest" multiplies three times (3xTF32), and loads the operands and their low parts only once for
that.  "high" is for strides and dilations, which `wgmma_register_blocked` does not know.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorStore
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Role, Scalar, Workspace
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.conv.problem import FILTER_GRAD, ConvProblem, conv_index, geometry
from kerascl.kernels.hopper.kernel import Run
from kerascl.kernels.hopper.pack import pack_time
from kerascl.kernels.hopper.ptx import KINDS
from kerascl.kernels.hopper.solver import HopperSolver
from kerascl.kernels.hopper.tiles import (
    PROMOTED,
    SHAPES,
    Shape,
    slice_counts,
    tiles_time,
)
from kerascl.kernels.hopper.tma import map_words
from kerascl.kernels.matmul.split_k import reduction_time, vector_reduction_launch
from kerascl.kernels.tuning import machine

SIDE = 64  # SIDE of wgmma_channel_major.cl
DEPTH = 32  # k of one stage: a line of the cache
ALIGNED = 4  # elements: boxes begin at multiples of 16 bytes
MAX_BYTES = 2**30  # of all that is laid out anew at a time
# Rows of one box: channels of one tap.  The fewer, the fewer are wasted, and the more loads.
BLOCKS = (64, 32, 16)
# Where images are no multiple of DEPTH, boxes of x begin in the middle of a cache's line and so
# touch two; three products of one load hide it.  Estimated, as the speeds.
SHIFTED = 1.15


@dataclass(frozen=True)
class Axis:
    """One spatial dimension of the grid.

    Attributes:
        period: taps apart that read the same phase of x.
        phases: phases that any tap reads; tap i reads phase i % period.
        pixels: of a phase or of dy, whichever has more.
        padded: pixels and zeros, such that a tap which leaves x at either end reads zeros: those
            at the end of a row serve the next one's beginning, too.
    """

    period: int
    phases: int
    pixels: int
    padded: int


def axis(size: int, out: int, kernel: int, stride: int, dilation: int, pad: int) -> Axis:
    """The axis of x with `size` pixels, `pad` of padding before them, and dy with `out`."""
    period = stride // math.gcd(stride, dilation)
    phases = min(kernel, period)
    first, last = -pad // stride, ((kernel - 1) * dilation - pad) // stride
    # The phase of the smallest remainder has the most pixels.
    remainder = min((t * dilation - pad) % stride for t in range(phases))
    pixels = ceil_div(max(size - remainder, 0), stride)
    padded = max(pixels + max(-first, 0), out + max(last, 0))
    return Axis(period, phases, max(pixels, out), padded)


@dataclass(frozen=True)
class ChannelMajorLayout:
    """How x and dy are laid out anew: [phase][channel][row][column][image].

    Only columns are padded with zeros: beyond the first and last row TMA gives them.

    Attributes:
        axes: of rows and columns.
        images: at a time, some of them zeros; `parts` times in all.
        step: elements from channel to channel: whole stages, so that dy is read in whole lines.
        depth: elements of a channel that are multiplied: those of dy's rows.
        block: channels of one box.
        taps, channels, filters: of the problem.
    """

    axes: tuple[Axis, Axis]
    images: int
    parts: int
    step: int
    depth: int
    block: int
    taps: int
    channels: int
    filters: int

    @property
    def phases(self) -> int:
        """Into how many parts x falls: by the remainders of both coordinates that taps read."""
        return self.axes[0].phases * self.axes[1].phases

    @property
    def x_rows(self) -> int:
        """Channels of all phases."""
        return self.phases * self.channels

    @property
    def chunks(self) -> int:
        """Stages of the depth."""
        return ceil_div(self.depth, DEPTH)

    @property
    def channel_blocks(self) -> int:
        """Blocks of one tap."""
        return ceil_div(self.channels, self.block)

    def tiles(self, shape: Shape) -> tuple[int, int]:
        """Tiles along rows and columns of the product."""
        blocks = ceil_div(self.taps * self.channel_blocks, shape.bm // self.block)
        return blocks, ceil_div(self.filters, shape.bn)

    @property
    def groups(self) -> tuple[int, int]:
        """Work-groups that lay out x and dy."""
        wide = ceil_div(self.step, SIDE)
        x = wide * ceil_div(self.channels, SIDE) * self.phases
        return x, wide * ceil_div(self.filters, SIDE)


@functools.lru_cache(maxsize=4096)
def layout(p: ConvProblem) -> ChannelMajorLayout | None:
    """The layout with the fewest parts, None where ALIGNED images take more than MAX_BYTES."""
    height, width = (
        axis(n, m, window, stride, dilation, low)
        for n, m, window, stride, dilation, (low, _) in zip(
            p.x_shape[1:3], p.y_shape[1:3], p.w_shape[:2], p.strides, p.dilation, p.pads,
            strict=True,
        )
    )  # fmt: skip
    channels, filters = p.w_shape[-2:]
    rows = height.phases * width.phases * channels + filters
    nbytes = 4 * (2 if _low(p) else 1) * rows
    pixels = height.pixels * width.padded
    most = MAX_BYTES // nbytes // DEPTH * DEPTH // pixels // ALIGNED * ALIGNED
    if not most:
        return None
    images = round_up(ceil_div(p.x_shape[0], ceil_div(p.x_shape[0], most)), ALIGNED)
    step, depth = round_up(images * pixels, DEPTH), images * p.y_shape[1] * width.padded
    block = min(BLOCKS, key=lambda b: round_up(channels, b))
    taps = math.prod(p.w_shape[:2])
    parts = ceil_div(p.x_shape[0], images)
    return ChannelMajorLayout(
        (height, width), images, parts, step, depth, block, taps, channels, filters
    )


class ChannelMajorFilterGradient(HopperSolver):
    """Filter gradient of one- and two-dimensional convolutions of float32, channels last."""

    prefix = self_test = "wgmma_channel_major"

    def takes(self, p: ConvProblem) -> bool:
        return (
            p.kind == FILTER_GRAD
            and p.a is p.b is dtypes.float32
            and p.acc is dtypes.float32
            and p.rank == 2
            and p.groups == 1
            and not p.channels_first
            and layout(p) is not None
            and self.tile in (None, *_shapes(p))
        )

    def best(self, p: ConvProblem, info) -> tuple[float, Shape, int]:
        low, a = _low(p), layout(p)
        assert a is not None
        rates = machine.of(info)
        passes, written = (3, 2) if low else (1, 1)
        # Lanes without a channel take part of the time of those with one.
        rows = a.phases * round_up(a.channels, 32) + round_up(a.filters, 32)
        packing = pack_time(2 * a.step * rows * (1 + written), info)
        reading = rates.moving(4 * a.step * (a.x_rows + a.filters) * written)
        shifted = SHIFTED if not low and a.images % DEPTH else 1.0
        chunks, kind = a.chunks, KINDS["float32"]
        choices = []
        for shape in (self.tile,) if self.tile else _shapes(p):
            tiles, full = math.prod(a.tiles(shape)), info.compute_units * shape.groups
            counts = set(slice_counts(self.splits, p.total * a.parts, chunks))
            if self.splits is None:  # also those that fill all compute units
                for wanted in (*range(2, 17), *(full * rounds // tiles for rounds in (1, 2, 3))):
                    counts |= set(slice_counts(max(wanted, 1), p.total * a.parts, chunks))
            for splits in sorted(counts):
                depth = ceil_div(chunks, splits) * DEPTH
                time = tiles_time(shape, kind, tiles * splits, depth, passes, info)
                time = max(time * shifted, reading)
                fold = reduction_time(p.total, splits * a.parts, info)
                choices.append(((packing + time) * a.parts + fold, shape, splits))
        return min(choices, key=lambda c: c[0])

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p = problem
        _, shape, splits = self.best(p, info)
        low, a, index = _low(p), layout(p), conv_index(p)
        assert a is not None
        workspace = Workspace()
        room = workspace.room
        sizes = (4 * a.step * a.x_rows, 4 * a.step * a.filters)
        highs = room(sizes[0]), room(sizes[1])
        lows = (room(sizes[0]), room(sizes[1])) if low else (None, None)
        slice_ = ceil_div(a.chunks, splits)
        splits = ceil_div(a.chunks, slice_)
        tiles_m, tiles_n = a.tiles(shape)
        tiles = tiles_m * tiles_n * splits
        run = Run(
            shape, p.a, index, highs[0], highs[1],
            map_words(p.a, (a.step, a.x_rows), (4 * a.step,), (DEPTH, a.block)),
            map_words(p.a, (a.step, a.filters), (4 * a.step,), (DEPTH, shape.bn)),
            False, False, lows[0], lows[1], columns=a.filters,
            flags=(
                ("BATCHED", 0), ("PLANES", 1), ("BLOCK_ROWS", a.block),
            ),
        )  # fmt: skip
        params = _grid(p, a).add(
            "int", TILES=tiles, TILES_M=tiles_m, TILES_N=tiles_n, SPLITS=splits, CHUNKS=a.chunks,
            SLICE=slice_, CHANNEL_BLOCKS=a.channel_blocks, PERIOD1=a.axes[0].period,
            PERIOD2=a.axes[1].period,
        )  # fmt: skip
        params.add("long", A_OFFSET=0, B_OFFSET=0)
        maps = room(run.workspace(run.groups(tiles, info)))
        slices = splits * a.parts
        sums = room(4 * slices * p.total) if slices > 1 else ""
        launches = []
        for part in range(a.parts):
            inner = partial(p.total, index, sums, part * splits) if sums else epilogue
            launches.append(pack_launch(p, a, index, part * a.images, highs, lows))
            launches.append(run.launch(tiles, params, inner, maps, info))
        if sums:
            adding = vector_reduction_launch(p.total, slices, p.acc, index, epilogue, info, sums)
            launches.append(adding)
        return Plan(launches, workspace)


def pack_launch(
    p: ConvProblem,
    a: ChannelMajorLayout,
    index: str,
    image: int,
    highs: tuple[str, str],
    lows: tuple[str | None, str | None],
) -> Launch:
    """Lays out `a.images` images of x and dy from `image` on (none where there are no more), and
    what tf32 loses of them where `lows` are slots."""
    x_groups, dy_groups = a.groups
    params = _grid(p, a).add(
        "int", X_GROUPS=x_groups, STEP=a.step, BATCH=p.x_shape[0], IMAGE0=image
    )
    text = (
        f"#define INDEX_T {index}\n#define LOW {int(lows[0] is not None)}\n"
        + params.source
        + cl_source("hopper/wgmma_channel_major.cl")
    )
    slots = ("a", "b", *highs, *(low or high for low, high in zip(lows, highs)))
    args: tuple[Arg, ...] = (*(Ref(slot) for slot in slots), *params.args)
    size = (x_groups + dy_groups) * 256
    return Launch(text, "wgmma_channel_major", args, (size,), (256,), role=Role.PACK)


def partial(total: int, index: str, slot: str, first: int) -> Epilogue:
    """As `wgmma.partial`, from slice `first` on."""
    from_ = "part + (INDEX_T)(first_slice + split) * part_step"
    return Epilogue(
        ", __global float* restrict part, const INDEX_T part_step, const int first_slice",
        (Ref(slot), Scalar(index, total), Scalar("int", first)),
        f"({from_})[i] = acc;",
        stores=(VectorStore(from_, dtypes.float32, "acc"),),
    )


def _grid(p: ConvProblem, a: ChannelMajorLayout) -> Params:
    """What both kernels know of the problem and the grid."""
    return geometry(p).add(
        "int", CIN=a.channels, COUT=a.filters, GRID2=a.axes[1].padded, IMAGES=a.images,
        PHASES2=a.axes[1].phases,
    )  # fmt: skip


def _shapes(p: ConvProblem) -> tuple[Shape, ...]:
    return PROMOTED if _low(p) else SHAPES


def _low(p: ConvProblem) -> bool:
    """Whether float32 inputs are to be multiplied as exactly as float32 allows."""
    return p.precision == "highest"
