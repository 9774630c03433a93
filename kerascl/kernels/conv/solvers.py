"""Convolutions of one to three spatial dimensions: forward, data gradient, filter gradient.

Nearly all are implicit GEMMs: neither an im2col buffer nor a padded copy is made.  1x1 convolutions
go to the GEMM solvers, patches that do not overlap are laid out for those; depthwise ones go
to depthwise.py.
"""

from __future__ import annotations

from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.solver import Solver, avoided
from kerascl.kernels.conv import depthwise, winograd
from kerascl.kernels.conv.panels import PanelConv
from kerascl.kernels.conv.patches import PatchConv
from kerascl.kernels.conv.pointwise import PointwiseConv
from kerascl.kernels.conv.problem import FILTER_GRAD, ConvProblem, normalise_conv
from kerascl.kernels.conv.tiled import TiledConv
from kerascl.kernels.hopper import (
    channel_major,
    filter_gradient,
    halo,
    register_blocked,
    stem,
    tiles,
)
from kerascl.kernels.hopper import conv as hopper_conv
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.split_k import zero_plan
from kerascl.kernels.matmul.tiles import SHALLOW, TILES
from kerascl.kernels.tuning import database
from kerascl.kernels.units import tile as unit_tile
from kerascl.kernels.units.conv import CONV_SOLVERS, FragmentConv

POINTWISE = PointwiseConv()
SOLVERS: tuple[Solver, ...] = (
    POINTWISE,
    *depthwise.SOLVERS,
    PanelConv(),
    PatchConv(),
    *winograd.SOLVERS,
    hopper_conv.HopperConv(),
    halo.HaloConv(),
    filter_gradient.FilterGradient(),
    register_blocked.RegisterBlockedFilterGradient(),
    register_blocked.RegisterBlockedFilterGradient16(),
    stem.StemConv(),
    stem.StemFilterGradient(),
    channel_major.ChannelMajorFilterGradient(),
    *(TiledConv(tile) for tile in (*TILES, *SHALLOW)),
    *CONV_SOLVERS,
)


# Plain solvers that the tuner checks all others against.
REFERENCES: tuple[Solver, ...] = (PanelConv(), *(TiledConv(tile) for tile in TILES))
# What only the tuner tries: the same tiles with another number of slices.
VARIANTS: tuple[Solver, ...] = (
    *(TiledConv(tile, split) for tile in TILES for split in matmul.SLICES),
    *unit_tile.solvers(FragmentConv, *matmul.SLICES),
    *(
        solver(shape, split)
        for solver in (
            hopper_conv.HopperConv,
            filter_gradient.FilterGradient,
            stem.StemConv,
            stem.StemFilterGradient,
        )
        for shape in tiles.SHAPES
        for split in matmul.SLICES
    ),
    *(filter_gradient.FilterGradient(filter_gradient.SHAPES[-1], split) for split in matmul.SLICES),
    *(halo.HaloConv(tile, 1) for tile in halo.SHAPES),
    *(
        register_blocked.RegisterBlockedFilterGradient(box, split)
        for box in register_blocked.BOXES
        for split in matmul.SLICES
    ),
    *(
        register_blocked.RegisterBlockedFilterGradient16(box, split)
        for box in register_blocked.BOXES16
        for split in matmul.SLICES
    ),
    *(
        channel_major.ChannelMajorFilterGradient(shape, split)
        for shape in (*tiles.PROMOTED, *tiles.SHAPES)
        for split in matmul.SLICES
    ),
)


def candidates(problem: ConvProblem, info) -> tuple[tuple[Solver, ...], tuple[Solver, ...]]:
    """Whose costs are compared, and who is taken only where a record names it: a convolution that
    is a product is solved as one, whose kernels need not find out where each pixel lies.  Not so on
    GPUs its filter's gradient, a long sum over pixels, where their estimates are good enough."""
    alone = info.kind == "cpu" or problem.kind != FILTER_GRAD
    if alone and POINTWISE.applies(problem, info) and not avoided(POINTWISE):
        return (POINTWISE,), (*SOLVERS, *VARIANTS)
    return SOLVERS, VARIANTS


def plan(problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem` on the device that `info` describes.

    Raises:
        NotImplementedError: when the device lacks the dtypes (float64 without fp64).
        ValueError: more than three spatial dimensions.
    """
    if problem.rank > 3:
        raise ValueError(f"convolutions have one to three spatial dimensions, not {problem.rank}")
    problem = normalise_conv(problem)
    if _is_empty(problem):
        return zero_plan(problem.total, problem.acc, epilogue)
    found = candidates(problem, info)
    solver = database.choose_for("conv", *found, problem, info, epilogue)
    return solver.plan(problem, info, epilogue)


def takes_moments(problem: ConvProblem, info) -> bool:
    """Whether `plan` takes an epilogue with moments.

    Raises:
        NotImplementedError: as `plan`.
    """
    if problem.rank > 3 or _is_empty(problem := normalise_conv(problem)):
        return False
    found = candidates(problem, info)
    return database.choose_with_moments("conv", *found, problem, info) is not None


def _is_empty(problem: ConvProblem) -> bool:
    """Whether there is nothing to add up."""
    return problem.total == 0 or 0 in (*problem.x_shape, *problem.w_shape, *problem.y_shape)
