"""Max and average pooling over windows of one to three spatial dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kerascl.dtypes import DType
from kerascl.kernels.lanes import (
    ceil_div,
    defines,
    group_size,
    index_type,
    lane_macros,
    lanes_for,
    limit_macros,
    next_power,
)
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

# Rows of the launch grid; NVIDIA takes at most 65535 groups in its second dimension.
_MAX_ROWS = 32768


@dataclass(frozen=True)
class PoolProblem:
    """A pooling of x, or one of its derivatives.

    Attributes:
        kind: what is computed, from which slots:
            "max": a = x -> y.  NaN propagates; padding never wins; a window
            without elements gives the lowest value of the dtype.
            "max_grad": a = x, b = y, c = dy -> dx; a window's gradient goes
            to its first maximal element in row-major order.
            "max_select": a = x, b = y, c = gx (shaped as x) -> the element of
            gx at each window's first maximum (shaped as y).
            "average": a = x -> y.  "average_grad": a = dy -> dx.
        x_shape: (N, *spatial, C), whatever the memory order is.
        y_shape: (N, *pooled, C).
        window, strides: one number for each spatial dimension.
        pads: (low, high) for each spatial dimension.
        channels_first: memory order of every array is (N, C, *spatial).
        dtype: of every input.
        count_include_pad: averages divide by the whole window, not by its
            elements that lie inside x.
    """

    kind: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    window: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    channels_first: bool
    dtype: DType
    count_include_pad: bool = False

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Logical shape (N, *spatial, C) of what the epilogue stores."""
        return self.x_shape if self.kind in ("max_grad", "average_grad") else self.y_shape


_INPUTS = {
    "max": ("a",),
    "max_grad": ("a", "b", "c"),
    "max_select": ("a", "b", "c"),
    "average": ("a",),
    "average_grad": ("a",),
}


class WindowPool(Solver):
    """One work-item for each result (times a vector of channels on CPUs), gathering its windows."""

    name = "pool.window"

    def applies(self, problem: PoolProblem, info) -> bool:
        if problem.dtype.is_complex and problem.kind != "average":
            return False
        return problem.kind in _INPUTS and 1 <= len(problem.window) <= 3

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        if 0 in problem.result_shape:
            return Plan([])
        dtype = problem.dtype
        missing = 3 - len(problem.window)
        window = (1,) * missing + tuple(problem.window)
        strides = (1,) * missing + tuple(problem.strides)
        lows = (0,) * missing + tuple(low for low, _ in problem.pads)
        inside = (1,) * missing + tuple(problem.x_shape[1:-1])
        pooled = (1,) * missing + tuple(problem.y_shape[1:-1])
        batch, channels = problem.x_shape[0], problem.x_shape[-1]
        planes = batch
        if problem.channels_first:
            planes, channels = batch * channels, 1
        lanes = lanes_for(info, channels, dtype)
        domain = inside if problem.kind.endswith("_grad") else pooled

        source = (
            prelude(
                index_type(prod(problem.x_shape), prod(problem.y_shape)),
                A=dtype,
                ACC=dtype.accumulator,
            )
            + lane_macros(lanes, A=dtype)
            + limit_macros(dtype.accumulator)
            + defines(
                **{f"POOL_{problem.kind.upper()}": 1},
                ACC_SPILL="A_SPILL",
                COUNT_PAD=int(problem.count_include_pad),
                MASK_T=_mask_type(dtype, lanes),
                ALL_LANES=1 if lanes == 1 else -1,
            )
            + "".join(
                defines(**{f"K{axis}": window[k], f"S{axis}": strides[k]})
                for k, axis in enumerate("DHW")
            )
            + epilogue.defines
            + cl_source("pool.cl")
        )
        sizes = (planes, channels, *inside, *pooled, *lows)
        width = domain[2] * (channels // lanes)
        rows = planes * domain[0] * domain[1]
        if info.kind == "cpu":
            global_size, local_size = (width, min(rows, _MAX_ROWS)), None
        else:
            total = group_size(info, 256)
            across = min(total, next_power(width))
            down = total // across
            local_size = (across, down)
            global_size = (
                ceil_div(width, across) * across,
                min(ceil_div(rows, down), _MAX_ROWS) * down,
            )
        launch = Launch(
            source,
            f"pool_{problem.kind}",
            (
                *(Ref(slot) for slot in _INPUTS[problem.kind]),
                *(Scalar("int", size) for size in sizes),
                *epilogue.args,
            ),
            global_size,
            local_size,
        )
        return Plan([launch])


def _mask_type(dtype: DType, lanes: int) -> str:
    """The type of a comparison of two compute values (of vectors: as wide as their elements)."""
    if lanes == 1:
        return "int"
    signed = {"float": "int", "double": "long"}.get(dtype.compute, dtype.compute.removeprefix("u"))
    return f"{signed}{lanes}"


SOLVERS: tuple[Solver, ...] = (WindowPool(),)


def plan(problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; a, b, c as `PoolProblem.kind` says, results through `epilogue`.

    Raises:
        NotImplementedError: for more than three spatial dimensions, or complex maxima.
    """
    return choose(SOLVERS, problem, info).plan(problem, info, epilogue)
