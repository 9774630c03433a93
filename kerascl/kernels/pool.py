"""Max and average pooling over windows of one to three spatial dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from kerascl.dtypes import DType
from kerascl.kernels.lanes import (
    ceil_div,
    compute_bytes,
    defines,
    group_size,
    index_type,
    lane_macros,
    lanes_for,
    limit_macros,
    next_power,
    round_up,
)
from kerascl.kernels.solver import (
    Arg,
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

# NVIDIA takes at most 65535 groups in the second and third dimension; kernels loop over the third.
_MAX_GROUPS = 65535


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
            "average": a = x -> y.  "average_grad": a = dy -> dx.  Float dtypes.
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


class _Pool(Solver):
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
        backward: bool,
        epilogue: Epilogue | None,
    ) -> Launch:
        """One kernel pool_<kind> over the domain of y, or of x if `backward`."""
        dtype = problem.dtype
        missing = 3 - len(problem.window)
        window = (1,) * missing + tuple(problem.window)
        strides = (1,) * missing + tuple(problem.strides)
        lows = (0,) * missing + tuple(low for low, _ in problem.pads)
        inside = (1,) * missing + tuple(problem.x_shape[1:-1])
        pooled = (1,) * missing + tuple(problem.y_shape[1:-1])
        # No window sticks out: then their element count is a constant.
        whole = all(
            low == 0 and (count - 1) * stride + size <= extent
            for low, count, stride, size, extent in zip(
                lows, pooled, strides, window, inside, strict=True
            )
        )
        planes, channels = problem.x_shape[0], problem.x_shape[-1]
        if problem.channels_first:
            planes, channels = planes * channels, 1
        lanes = lanes_for(info, channels, dtype)
        mask = _mask_type(dtype, lanes)
        vector = "" if lanes == 1 else lanes
        place = "(p)[i]" if lanes == 1 else f"vload{lanes}(0, (p) + (i))"
        put = (
            "(p)[i] = v" if lanes == 1 else f"vstore{lanes}(convert_ushort{lanes}(v), 0, (p) + (i))"
        )
        source = (
            prelude(
                index_type(prod(problem.x_shape), prod(problem.y_shape)),
                A=dtype,
                ACC=dtype.accumulator,
            )
            + lane_macros(lanes, A=dtype)
            + limit_macros(dtype.accumulator)
            + defines(
                **{
                    f"POOL_{kind.upper()}": 1,
                    "LOAD_PLACES(p, i)": f"convert_{mask}({place})",
                    "STORE_PLACES(v, p, i)": put,
                },
                ACC_SPILL="A_SPILL",
                COUNT_PAD=int(problem.count_include_pad or whole),
                MASK_T=mask,
                ALL_LANES=-1 if vector else 1,
                FLAT=int(missing > 0),
            )
            + "".join(
                defines(**{f"K{axis}": window[k], f"S{axis}": strides[k]})
                for k, axis in enumerate("DHW")
            )
            + (epilogue.defines if epilogue else "")
            + cl_source("pool.cl")
        )
        sizes = (planes, channels, *inside, *pooled, *lows)
        depth, height, width = inside if backward else pooled
        width *= channels // lanes
        slabs = planes * depth
        if info.kind == "cpu":
            global_size, local_size = (width, height, slabs), None
        else:
            total = group_size(info, 256)
            across = min(total, next_power(width))
            down = min(total // across, next_power(height))
            deep = min(total // across // down, 64, next_power(slabs))
            local_size = (across, down, deep)
            global_size = (
                round_up(width, across),
                round_up(height, down),
                min(ceil_div(slabs, deep), _MAX_GROUPS) * deep,
            )
        return Launch(
            source,
            f"pool_{kind}",
            (
                *buffers,
                *(Scalar("int", size) for size in sizes),
                *(epilogue.args if epilogue else ()),
            ),
            global_size,
            local_size,
        )


class WindowPool(_Pool):
    """One work-item for each result (times a vector of channels on CPUs), gathering its windows."""

    name = "pool.window"

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        if 0 in problem.result_shape:
            return Plan([])
        buffers = tuple(Ref(slot) for slot in _INPUTS[problem.kind])
        backward = problem.kind in ("max_grad", "average_grad")
        return Plan([self.launch(problem, info, problem.kind, buffers, backward, epilogue)])


class PlacePool(_Pool):
    """The gradient of max pooling in two steps: where each window's maximum is, then the gather.

    Cheaper where windows overlap, as no work-item scans a window for others.
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
        return 0.5

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        if 0 in problem.result_shape:
            return Plan([])
        places = Ref("ws0")
        launches = []
        if 0 not in problem.y_shape:
            find = self.launch(problem, info, "max_place", (Ref("a"), places), False, None)
            launches.append(find)
        gather = self.launch(problem, info, "max_place_grad", (places, Ref("c")), True, epilogue)
        return Plan([*launches, gather], [max(2 * prod(problem.y_shape), 2)])


def _mask_type(dtype: DType, lanes: int) -> str:
    """The type of a comparison of two compute values (of vectors: as wide as their elements)."""
    if lanes == 1:
        return "int"
    signed = {"float": "int", "double": "long"}.get(dtype.compute, dtype.compute.removeprefix("u"))
    return f"{signed}{lanes}"


SOLVERS: tuple[Solver, ...] = (WindowPool(), PlacePool())


def plan(problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; a, b, c as `PoolProblem.kind` says, results through `epilogue`.

    Raises:
        NotImplementedError: for more than three spatial dimensions, averages of a
            dtype that is not floating, or complex maxima.
    """
    return choose(SOLVERS, problem, info).plan(problem, info, epilogue)
