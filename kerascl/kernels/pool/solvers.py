"""Max and average pooling over windows of one to three spatial dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type, next_power, round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import (
    compute_bytes,
    group_size,
    limit_macros,
    vector_macros,
    vector_width,
)
from kerascl.kernels.pool.problem import PoolProblem
from kerascl.kernels.tuning import database, machine

# NVIDIA takes at most 65535 groups in the second and third dimension; kernels loop over the third.
_MAX_GROUPS = 65535
_PLACE = "ushort"  # an element's number in its window


_INPUTS = {
    "max": ("a",),
    "max_grad": ("a", "b", "c"),
    "max_select": ("a", "b", "c"),
    "average": ("a",),
    "average_grad": ("a",),
}


@dataclass(frozen=True)
class _Geometry:
    """A problem in three spatial dimensions, of which those that it lacks have one element.

    Attributes:
        planes, channels: what windows lie in, and the channels that lie side by side.
        window, strides, lows: elements of each dimension, `lows` the padding before them.
        inside, pooled: spatial sizes of x and y.
        flat: whether a dimension was added.
    """

    planes: int
    channels: int
    window: tuple[int, ...]
    strides: tuple[int, ...]
    lows: tuple[int, ...]
    inside: tuple[int, ...]
    pooled: tuple[int, ...]
    flat: bool

    @staticmethod
    def of(p: PoolProblem) -> _Geometry:
        missing = 3 - len(p.window)
        ones = (1,) * missing
        images, channels = p.x_shape[0], p.x_shape[-1]
        return _Geometry(
            planes=images * channels if p.channels_first else images,
            channels=1 if p.channels_first else channels,
            window=(*ones, *p.window),
            strides=(*ones, *p.strides),
            lows=(*(0,) * missing, *(low for low, _ in p.pads)),
            inside=(*ones, *p.x_shape[1:-1]),
            pooled=(*ones, *p.y_shape[1:-1]),
            flat=missing > 0,
        )

    @property
    def whole(self) -> bool:
        """Whether no window sticks out: then their element count is a constant."""
        axes = zip(self.lows, self.pooled, self.strides, self.window, self.inside, strict=True)
        return all(
            low == 0 and (count - 1) * stride + size <= extent
            for low, count, stride, size, extent in axes
        )

    @property
    def cells(self) -> tuple[int, ...]:
        """Cells of x, as large as the strides, in each dimension."""
        axes = zip(self.inside, self.lows, self.strides, strict=True)
        return tuple((size - 1 + low) // step - low // step + 1 for size, low, step in axes)

    def extents(self, domain: str) -> tuple[int, ...]:
        """Work-items of each dimension, for one channel."""
        return {"x": self.inside, "y": self.pooled, "cells": self.cells}[domain]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers that kernels take."""
        return (self.planes, self.channels, *self.inside, *self.pooled, *self.lows)

    @property
    def x_size(self) -> int:
        """Elements of x."""
        return self.planes * self.channels * prod(self.inside)

    @property
    def y_size(self) -> int:
        """Elements of y."""
        return self.planes * self.channels * prod(self.pooled)

    @property
    def around(self) -> int:
        """The most windows that an element of x lies in."""
        axes = zip(self.window, self.strides, strict=True)
        return prod(ceil_div(size, step) for size, step in axes)

    @property
    def defines(self) -> str:
        """The windows' macros."""
        return "".join(
            defines(**{f"K{axis}": size, f"S{axis}": step})
            for axis, size, step in zip("DHW", self.window, self.strides, strict=True)
        )


@dataclass(frozen=True)
class _Access:
    """How a work-item reads and writes.

    Attributes:
        lanes: neighbouring channels that it takes.
        one_load: whether it has them with one instruction, in aligned memory.
    """

    lanes: int
    one_load: bool

    @staticmethod
    def of(channels: int, dtype: DType, info) -> _Access:
        # On GPUs neighbouring work-items coalesce, four channels each with one instruction.
        if info.kind != "cpu" and channels % 4 == 0 and compute_bytes(dtype) <= 4:
            return _Access(4, True)
        return _Access(vector_width(info, channels, dtype), False)

    def mask(self, dtype: DType) -> str:
        """The type of a comparison of compute values (of vectors: as wide as their elements)."""
        if self.lanes == 1:
            return "int"
        wide = dtype.compute.removeprefix("u")
        return f"{ {'float': 'int', 'double': 'long'}.get(dtype.compute, wide) }{self.lanes}"

    def defines(self, dtype: DType) -> str:
        """The macros that load and store elements' numbers in their windows, and compare."""
        lanes, mask = self.lanes, self.mask(dtype)
        if lanes == 1:
            load, store = "(p)[i]", "(p)[i] = v"
        elif self.one_load:
            load = f"*(const __global {_PLACE}4*)((p) + (i))"
            store = f"*(__global {_PLACE}4*)((p) + (i)) = convert_{_PLACE}4(v)"
        else:
            load = f"vload{lanes}(0, (p) + (i))"
            store = f"vstore{lanes}(convert_{_PLACE}{lanes}(v), 0, (p) + (i))"
        places = {"LOAD_PLACES(p, i)": f"convert_{mask}({load})", "STORE_PLACES(v, p, i)": store}
        return defines(
            **places, PLACE_T=_PLACE, MASK_T=mask, ALL_LANES=1 if lanes == 1 else -1,
            ACC_SPILL="A_SPILL",
        )  # fmt: skip


def _work_items(
    depth: int, height: int, width: int, info
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Global and local sizes for so many work-items."""
    if info.kind == "cpu":
        return (width, height, depth), None
    total = group_size(info, 256)
    across = min(total, next_power(width))
    down = min(total // across, next_power(height))
    deep = min(total // across // down, 64, next_power(depth))
    groups = min(ceil_div(depth, deep), _MAX_GROUPS)
    return (round_up(width, across), round_up(height, down), groups * deep), (across, down, deep)


class _Pool(Solver):
    # Shares of the rate of multiply-adds that elements are looked at with.
    ON_GPU, ON_CPU = 0.03, 0.05

    def looking(self, problem: PoolProblem, info, looks: int, nbytes: int) -> float:
        """Microseconds of a launch that looks at so many elements and moves so many bytes."""
        efficiency = self.ON_CPU if info.kind == "cpu" else self.ON_GPU
        return machine.of(info).roofline(looks, nbytes, problem.dtype, efficiency)

    def applies(self, problem: PoolProblem, info) -> bool:
        if problem.kind not in _INPUTS or not 1 <= len(problem.window) <= 3:
            return False
        if problem.kind.startswith("average"):
            return problem.dtype.is_float
        return not problem.dtype.is_complex

    def launch(
        self,
        problem: PoolProblem,
        info,
        kind: str,
        buffers: tuple[Arg, ...],
        domain: str,
        epilogue: Epilogue | None,
    ) -> Launch:
        """One kernel pool_<kind> over the `domain` "y", "x" or "cells" (of x, as large as the
        strides)."""
        dtype, g = problem.dtype, _Geometry.of(problem)
        access = _Access.of(g.channels, dtype, info)
        index = index_type(prod(problem.x_shape), prod(problem.y_shape))
        source = (
            prelude(index, A=dtype, ACC=dtype.accumulator)
            + vector_macros(access.lanes, access.one_load, A=dtype)
            + limit_macros(dtype.accumulator)
            + defines(**{f"POOL_{kind.upper()}": 1})
            + access.defines(dtype)
            + defines(
                WHOLE=int(g.whole),
                COUNT_PAD=int(problem.count_include_pad or g.whole),
                FLAT=int(g.flat),
            )
            + g.defines
            + (epilogue.defines if epilogue else "")
            + cl_source("pool/pool.cl")
            + (cl_source("pool/pool_cell.cl") if domain == "cells" else "")
        )
        depth, height, width = g.extents(domain)
        vectors = width * (g.channels // access.lanes)
        global_size, local_size = _work_items(g.planes * depth, height, vectors, info)
        numbers = (Scalar("int", size) for size in g.sizes)
        args = (*buffers, *numbers, *(epilogue.args if epilogue else ()))
        return Launch(source, f"pool_{kind}", args, global_size, local_size)


class WindowPool(_Pool):
    """One work-item for each result (times a vector of channels on CPUs), gathering its windows."""

    name = "pool.window"

    def cost(self, problem: PoolProblem, info) -> float:
        g, size = _Geometry.of(problem), problem.dtype.itemsize
        window = prod(problem.window)
        looks = g.y_size * window
        if problem.kind == "max_grad":  # whether another one is before it in each of its windows
            looks = g.x_size * g.around * window
        elif problem.kind == "average_grad":
            looks = g.x_size * g.around
        return self.looking(problem, info, looks, (2 * g.x_size + 2 * g.y_size) * size)

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        if 0 in problem.result_shape:
            return Plan([])
        buffers = tuple(Ref(slot) for slot in _INPUTS[problem.kind])
        domain = "x" if problem.kind in ("max_grad", "average_grad") else "y"
        return Plan([self.launch(problem, info, problem.kind, buffers, domain, epilogue)])


class PlacePool(_Pool):
    """The gradient of max pooling in two steps: where each window's maximum is, then the gather.

    No work-item scans a window for others.
    """

    name = "pool.place"

    def applies(self, problem: PoolProblem, info) -> bool:
        # Places are compared in integers as wide as the elements.
        most = 127 if compute_bytes(problem.dtype) == 1 else 32767
        return (
            problem.kind == "max_grad"
            and super().applies(problem, info)
            and (prod(problem.window) <= most)
        )

    def cost(self, problem: PoolProblem, info) -> float:
        g, size = _Geometry.of(problem), problem.dtype.itemsize
        return self.placing(problem, info) + self.looking(
            problem, info, g.x_size * g.around, g.x_size * size + g.y_size * (2 + size)
        )

    def placing(self, problem: PoolProblem, info) -> float:
        """Microseconds of the first step."""
        g, size = _Geometry.of(problem), problem.dtype.itemsize
        nbytes = g.x_size * size + g.y_size * 2
        return self.looking(problem, info, g.y_size * prod(problem.window), nbytes)

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        if 0 in problem.result_shape:
            return Plan([])
        launches = []
        if 0 not in problem.y_shape:
            buffers = (Ref("a"), Ref("ws0"))
            launches.append(self.launch(problem, info, "max_place", buffers, "y", None))
        launches.append(self.gather(problem, info, epilogue))
        return Plan(launches, [max(2 * prod(problem.y_shape), 2)])

    def gather(self, problem: PoolProblem, info, epilogue: Epilogue) -> Launch:
        """The second step."""
        buffers = (Ref("ws0"), Ref("c"))
        return self.launch(problem, info, "max_place_grad", buffers, "x", epilogue)


class CellPool(PlacePool):
    """Channels-last: a work-item per cell of x, as large as the strides, and its channels.

    Windows that do not overlap lie in one cell each, so one launch reads x, finds the maximum and
    stores.  Others take places, which one cell's elements share.
    """

    name = "pool.cell"

    def applies(self, problem: PoolProblem, info) -> bool:
        # All elements and windows of a cell are in registers.
        windows = prod(
            ceil_div(size, step) for size, step in zip(problem.window, problem.strides, strict=True)
        )
        inside = prod(problem.window) if windows == 1 else 1
        return (
            super().applies(problem, info)
            and not problem.channels_first
            and windows <= 4
            and max(inside, prod(problem.strides)) <= 16
            and all(low >= 0 for low, _ in problem.pads)
        )

    def cost(self, problem: PoolProblem, info) -> float:
        g, size = _Geometry.of(problem), problem.dtype.itemsize
        if g.around == 1:
            nbytes = (2 * g.x_size + g.y_size) * size
            return self.looking(problem, info, g.y_size * prod(problem.window), nbytes)
        nbytes = g.x_size * size + g.y_size * (2 + size)
        return self.placing(problem, info) + self.looking(
            problem, info, g.y_size * g.around, nbytes
        )

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        overlap = any(map(int.__gt__, problem.window, problem.strides))
        if overlap or 0 in problem.result_shape:
            return super().plan(problem, info, epilogue)
        buffers = (Ref("a"), Ref("c"))
        return Plan([self.launch(problem, info, "max_cell_grad", buffers, "cells", epilogue)])

    def gather(self, problem: PoolProblem, info, epilogue: Epilogue) -> Launch:
        buffers = (Ref("ws0"), Ref("c"))
        return self.launch(problem, info, "max_cell_gather", buffers, "cells", epilogue)


SOLVERS: tuple[Solver, ...] = (WindowPool(), PlacePool(), CellPool())


def plan(problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; a, b, c as `PoolProblem.kind` says, results through `epilogue`.

    Raises:
        NotImplementedError: for more than three spatial dimensions, averages of a
            dtype that is not floating, or complex maxima.
    """
    solver = database.choose("pool", SOLVERS, (), problem, info)
    return solver.plan(problem, info, epilogue)
