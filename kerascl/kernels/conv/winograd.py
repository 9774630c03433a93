"""Winograd's minimal filtering: 3 x 3 convolutions with fewer products, for devices without matrix
units (A. Lavin and S. Gray, "Fast algorithms for convolutional neural networks", 2016,
https://arxiv.org/abs/1509.09308).

Tiles of 2 x 2 (4 x 4) outputs take 16 (36) products for each channel instead of 36 (144).  The
pixels and the weights are transformed, places of the tile are multiplied by whatever solver is best
for the products, and the sums are transformed back.  A batch is done in parts, so that what lies
between stays small.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

from kerascl.dtypes import float32
from kerascl.kernels.contract.epilogue import Epilogue, store_epilogue
from kerascl.kernels.contract.parameters import Params
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role, Scalar, rename_slots
from kerascl.kernels.contract.sizes import ceil_div, index_type, round_up
from kerascl.kernels.contract.solver import Solver, choose
from kerascl.kernels.contract.source import cl_source, defines, narrow, prelude
from kerascl.kernels.contract.vectors import group_size, vector_macros, vector_width
from kerascl.kernels.conv.problem import (
    DATA_GRAD,
    FILTER_GRAD,
    FORWARD,
    ConvProblem,
    conv_index,
    image_strides,
    usable,
)
from kerascl.kernels.hopper import probe
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests import asked, part
from kerascl.kernels.tuning import machine
from kerascl.kernels.units import known

# Bytes of transformed pixels and sums that lie between two launches.
_CPU_BYTES_PER_UNIT = 4 * 2**20
_GPU_BYTES = 128 * 2**20
_ALIGNED = 4096  # bytes that offsets of slices are multiples of: at least what devices demand
# Transforms write and read each value once; what they compute and look up takes as long as so many
# multiply-adds a byte (an H200 took 1 to 10 times as long), and memory leaves them this share of
# its bandwidth.
_MULTIPLY_ADDS = 8.0
_EFFICIENCY = 0.8


class WinogradConv(Solver):
    """Forward and data gradient with tiles of `tile` x `tile` outputs.

    Tiles of 4 lose about a digit of float32 (a relative error near 1e-6), so precision "highest"
    has tiles of 2 only.
    """

    kinds: tuple[str, ...] = (FORWARD, DATA_GRAD)

    def __init__(self, tile: int):
        self.tile = tile
        self.name = f"winograd{tile}"

    @property
    def places(self) -> int:
        """Places of a tile, each a matrix product."""
        return (self.tile + 2) ** 2

    def applies(self, problem: ConvProblem, info) -> bool:
        p = problem
        return (
            usable(p, info)
            and not _on_matrix_units(p, info)
            and p.kind in self.kinds
            and p.rank == 2
            and p.w_shape[:2] == (3, 3)
            and set(p.strides) == set(p.dilation) == {1}
            and p.groups == 1
            and p.acc.is_float
            and p.a.compute == p.b.compute == p.acc.compute
            and (self.tile == 2 or p.precision == "high" or p.a.itemsize < 4)
        )

    def cost(self, problem: ConvProblem, info) -> float:
        if info.kind == "cpu":
            # Measured: the transforms take what the products save (0.8 to 1.4 times the speed of
            # panels), for a digit less.  The tuner may find otherwise.
            return math.inf
        product = self._product(problem, self._tiles(problem))
        rates, parts = machine.of(info), self._parts(problem, info)
        with asked.comparing():
            time = choose(matmul.SOLVERS, product, info).cost(product, info)
        values = self._tiles(problem) * sum(problem.w_shape[2:]) + math.prod(problem.w_shape[2:])
        nbytes = 2 * self.places * values * problem.acc.itemsize
        computing = rates.multiplying(_MULTIPLY_ADDS * nbytes, problem.acc)
        moving = rates.moving(nbytes, _EFFICIENCY)
        return time + max(computing, moving) + 3 * parts * rates.launch

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        channels, filters = _sides(p)
        value = p.acc.itemsize
        tiles = self._tiles(p)
        most = ceil_div(tiles, self._parts(p, info))
        index = "long" if self.places * most * max(channels, filters) >= 2**31 else index
        workspace = [self.places * channels * filters * value]
        workspace += [self.places * most * n * value for n in (channels, filters)]
        spare: list[int] = []  # the products' own, the same for every part
        launches = [self._weights(p, info)]
        names = {"a": "ws1", "b": "ws0"} if not p.channels_first else {"a": "ws0", "b": "ws1"}
        for first in range(0, tiles, most):
            part = min(most, tiles - first)
            launches.append(self._input(p, info, index, first, part))
            product = matmul.plan(self._product(p, part), info, store_epilogue(p.acc, "sums"))
            launches += rename_slots(product, names | {"sums": "ws2"}, before=3).launches
            pairs = itertools.zip_longest(spare, product.workspace, fillvalue=0)
            spare = [max(pair) for pair in pairs]
            launches.append(self._output(p, info, index, first, part, epilogue))
        return Plan(launches, workspace + spare)

    def _tiles(self, p: ConvProblem) -> int:
        images, height, width, _ = _plane(p)
        return images * ceil_div(height, self.tile) * ceil_div(width, self.tile)

    def _parts(self, p: ConvProblem, info) -> int:
        """In how many parts the tiles are done."""
        cpu = info.kind == "cpu"
        room = _CPU_BYTES_PER_UNIT * info.compute_units if cpu else _GPU_BYTES
        most = max(64, room // (self.places * sum(p.w_shape[2:]) * p.acc.itemsize))
        return ceil_div(self._tiles(p), most)

    def _product(self, p: ConvProblem, tiles: int) -> MatmulProblem:
        """For each place: sums[tile, filter] of pixels[tile, channel] and weights."""
        channels, filters = _sides(p)
        c, f = p.w_shape[2:]
        row, column = (f, 1) if p.kind != DATA_GRAD else (1, f)
        weights, types = (c * f, row, column), (p.acc, p.acc, p.acc)
        pixels = (tiles * channels, channels, 1)
        if p.channels_first:
            weights = (c * f, column, row)
            pixels = (tiles * channels, tiles, 1)
            problem = MatmulProblem(
                filters, tiles, channels, (self.places,), weights, pixels, *types
            )
        else:
            problem = MatmulProblem(
                tiles, filters, channels, (self.places,), pixels, weights, *types
            )
        return normalise_matmul(dataclasses.replace(problem, precision=p.precision))

    def _weights(self, p: ConvProblem, info) -> Launch:
        count = math.prod(p.w_shape[2:])
        source = (
            prelude(index_type(self.places * count), B=p.b, ACC=p.acc, P=p.acc)
            + vector_macros(1, P=p.acc)
            + narrow(info)
            + defines(TILE=self.tile, WEIGHTS=1, FLIP=int(p.kind == DATA_GRAD))
            + cl_source("conv/winograd.cl")
        )
        group = group_size(info, 64)
        args = (Ref("b"), Ref("ws0"), Scalar("int", count))
        size = round_up(count, group)
        return Launch(source, "winograd_weights", args, (size,), (group,), role=Role.PACK)

    def _input(self, p: ConvProblem, info, index: str, first: int, tiles: int) -> Launch:
        gathered = p.y_shape if p.kind == DATA_GRAD else p.x_shape
        pads = [low for low, _ in p.pads]
        if p.kind == DATA_GRAD:
            pads = [2 - low for low in pads]
        steps = dict(zip(("aN", "aP", "aC"), image_strides(gathered, p.channels_first)))
        params = Params().add(
            "int", CIN=gathered[-1], IN1=gathered[1], IN2=gathered[2], PAD1=pads[0], PAD2=pads[1]
        )
        params.add(index, **steps)
        args = (Ref("a"), Ref("ws1"))
        return self._launch("input", p, info, index, first, tiles, gathered[-1], params, args)

    def _output(
        self, p: ConvProblem, info, index: str, first: int, tiles: int, epilogue: Epilogue
    ) -> Launch:
        _, height, width, filters = p.out_shape
        steps = dict(zip(("oN", "oP", "oC"), image_strides(p.out_shape, p.channels_first)))
        params = Params().add("int", COUT=filters, OUT1=height, OUT2=width).add(index, **steps)
        args = (Ref("ws2"),)
        return self._launch("output", p, info, index, first, tiles, filters, params, args, epilogue)

    def _launch(
        self, what, p, info, index, first, tiles, channels, params, args, epilogue=None
    ) -> Launch:  # fmt: skip
        """One transform of the tiles [first, first + tiles)."""
        cpu = info.kind == "cpu"
        lanes = 1 if p.channels_first else vector_width(info, channels, p.acc)
        items = tiles * (channels // lanes)
        per = max(1, ceil_div(items, info.compute_units * 16)) if cpu else 1
        _, height, width, _ = _plane(p)
        params.add(
            "int", TILES=tiles, FIRST=first, TILES_H=ceil_div(height, self.tile),
            TILES_W=ceil_div(width, self.tile), COUNT=items, PER=per,
        )  # fmt: skip
        save = f"vstore{lanes}((v_), 0, (p_) + (i_))" if lanes > 1 else "(p_)[i_] = (v_)"
        source = (
            prelude(index, A=p.a, B=p.b, P=p.acc, ACC=p.acc)
            + vector_macros(lanes, A=p.a, B=p.b, P=p.acc)
            + narrow(info)
            + params.source
            + defines(
                **{"SAVE(v_, p_, i_)": save, what.upper(): 1},
                TILE=self.tile,
                CHANNELS_FIRST=int(p.channels_first),
                GROUP="__attribute__((reqd_work_group_size(1, 1, 1)))" if cpu else "",
            )
            + (epilogue.defines if epilogue else "")
            + cl_source("conv/winograd.cl")
        )
        args = (*args, *params.args, *(epilogue.args if epilogue else ()))
        group = 1 if cpu else group_size(info, 128)
        size = round_up(ceil_div(items, per), group)
        role = Role.STORE if what == "output" else Role.PACK
        return Launch(source, f"winograd_{what}", args, (size,), (group,), role=role)


class WinogradFilterGradient(WinogradConv):
    """Filter gradient by the adjoint of the forward pass: 16 (36) products for each tile of 2 x 2
    (4 x 4) pixels of dy where the definition takes 36 (144).

    Each part of the tiles leaves its sums in a slice of its own; the last launch adds them.
    """

    kinds = (FILTER_GRAD,)

    def __init__(self, tile: int):
        super().__init__(tile)
        self.name = f"winograd_filter{tile}"

    def plan(self, problem: ConvProblem, info, epilogue: Epilogue) -> Plan:
        p, index = problem, conv_index(problem)
        channels, filters = _sides(p)
        value, tiles = p.acc.itemsize, self._tiles(p)
        most = ceil_div(tiles, self._parts(p, info))
        parts = ceil_div(tiles, most)
        slice_ = round_up(self.places * channels * filters * value, _ALIGNED)
        if max(self.places * most * max(channels, filters), parts * slice_ // value) >= 2**31:
            index = "long"
        workspace = [parts * slice_]
        workspace += [self.places * most * n * value for n in (channels, filters)]
        spare: list[int] = []
        launches = []
        for piece, first in enumerate(range(0, tiles, most)):
            count = min(most, tiles - first)
            launches.append(self._input(p, info, index, first, count))
            launches.append(self._gradient(p, info, index, first, count))
            store = store_epilogue(p.acc, "sums")
            store = dataclasses.replace(store, args=(Ref("sums", piece * slice_),))
            product = matmul.plan(self._product(p, count), info, store)
            names = {"a": "ws1", "b": "ws2", "sums": "ws0"}
            launches += rename_slots(product, names, before=3).launches
            pairs = itertools.zip_longest(spare, product.workspace, fillvalue=0)
            spare = [max(pair) for pair in pairs]
        launches.append(self._filter(p, info, index, parts, slice_ // value, epilogue))
        return Plan(launches, workspace + spare)

    def _product(self, p: ConvProblem, tiles: int) -> MatmulProblem:
        """For each place: sums[channel, filter] over tiles of pixels[tile, channel] and of
        gradients[tile, filter]."""
        c, f = p.w_shape[2:]
        left, right = ((tiles, 1), (1, tiles)) if p.channels_first else ((1, c), (f, 1))
        problem = MatmulProblem(
            c, f, tiles, (self.places,), (tiles * c, *left), (tiles * f, *right), p.acc, p.acc,
            p.acc, precision=p.precision,
        )  # fmt: skip
        return normalise_matmul(problem)

    def _gradient(self, p: ConvProblem, info, index: str, first: int, tiles: int) -> Launch:
        _, height, width, filters = p.y_shape
        steps = dict(zip(("bN", "bP", "bC"), image_strides(p.y_shape, p.channels_first)))
        params = Params().add("int", COUT=filters, OUT1=height, OUT2=width).add(index, **steps)
        args = (Ref("b"), Ref("ws2"))
        return self._launch("gradient", p, info, index, first, tiles, filters, params, args)

    def _filter(self, p: ConvProblem, info, index, parts, step, epilogue: Epilogue) -> Launch:
        count = math.prod(p.w_shape[2:])
        source = (
            prelude(index, ACC=p.acc, P=p.acc)
            + vector_macros(1, P=p.acc)
            + narrow(info)
            + defines(TILE=self.tile, FILTER=1)
            + epilogue.defines
            + cl_source("conv/winograd.cl")
        )
        group = group_size(info, 64)
        args = (
            Ref("ws0"), Scalar("int", count), Scalar("int", parts), Scalar(index, step),
            *epilogue.args,
        )  # fmt: skip
        size = round_up(count, group)
        return Launch(source, "winograd_filter", args, (size,), (group,), role=Role.STORE)


def _on_matrix_units(p: ConvProblem, info) -> bool:
    """Whether matrix units multiply such operands much faster, as exactly as is asked."""
    if not machine.of_facts(info).matrix_rate(p.a):
        return False
    if p.a is not float32 or p.precision != "highest":
        return True
    units = (unit for unit in known.UNITS if info.matrix in unit.matrix)
    exact = any(unit.takes(p.a, p.b, p.acc, p.precision) for unit in units)
    with asked.comparing():
        return exact or probe.available(info, probe.BASE, part.named(p.a, p.precision))


def _plane(p: ConvProblem) -> tuple[int, ...]:
    """The shape of what is cut into tiles."""
    return p.y_shape if p.kind == FILTER_GRAD else p.out_shape


def _sides(p: ConvProblem) -> tuple[int, int]:
    """Channels of what is read and of what is written."""
    c, f = p.w_shape[2:]
    return (f, c) if p.kind == DATA_GRAD else (c, f)


SOLVERS: tuple[Solver, ...] = (
    WinogradConv(2), WinogradConv(4), WinogradFilterGradient(2), WinogradFilterGradient(4),
)  # fmt: skip
