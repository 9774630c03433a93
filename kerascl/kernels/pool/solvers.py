"""Max and average pooling over windows of one to three spatial dimensions."""

from __future__ import annotations

from math import prod

from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Arg, Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div, index_type, next_power, round_up
from kerascl.kernels.contract.solver import Solver, choose
from kerascl.kernels.contract.source import cl_source, defines, prelude
from kerascl.kernels.contract.vectors import (
    compute_bytes,
    group_size,
    limit_macros,
    vector_macros,
    vector_width,
)
from kerascl.kernels.pool.problem import PoolProblem

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
        domain: str,
        epilogue: Epilogue | None,
    ) -> Launch:
        """One kernel pool_<kind> over the `domain` "y", "x" or "cells" (of x, as large as the
        strides)."""
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
        lanes = vector_width(info, channels, dtype)
        # On GPUs neighbouring work-items coalesce, four channels each with one instruction.
        vectors = info.kind != "cpu" and channels % 4 == 0 and compute_bytes(dtype) <= 4
        lanes = 4 if vectors else lanes
        mask = _mask_type(dtype, lanes)
        vector = "" if lanes == 1 else lanes
        if lanes == 1:
            place, put = "(p)[i]", "(p)[i] = v"
        elif vectors:
            place, put = (
                f"*({space}{_PLACE}4*)((p) + (i))" for space in ("const __global ", "__global ")
            )
            put += f" = convert_{_PLACE}4(v)"
        else:
            place = f"vload{lanes}(0, (p) + (i))"
            put = f"vstore{lanes}(convert_{_PLACE}{lanes}(v), 0, (p) + (i))"
        source = (
            prelude(
                index_type(prod(problem.x_shape), prod(problem.y_shape)),
                A=dtype,
                ACC=dtype.accumulator,
            )
            + vector_macros(lanes, vectors, A=dtype)
            + limit_macros(dtype.accumulator)
            + defines(
                **{
                    f"POOL_{kind.upper()}": 1,
                    "LOAD_PLACES(p, i)": f"convert_{mask}({place})",
                    "STORE_PLACES(v, p, i)": put,
                },
                ACC_SPILL="A_SPILL",
                PLACE_T=_PLACE,
                WHOLE=int(whole),
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
            + cl_source("pool/pool.cl")
            + (cl_source("pool/pool_cell.cl") if domain == "cells" else "")
        )
        sizes = (planes, channels, *inside, *pooled, *lows)
        cells = tuple(
            (size - 1 + low) // step - low // step + 1
            for size, low, step in zip(inside, lows, strides, strict=True)
        )
        depth, height, width = {"x": inside, "y": pooled, "cells": cells}[domain]
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
        domain = "x" if problem.kind in ("max_grad", "average_grad") else "y"
        return Plan([self.launch(problem, info, problem.kind, buffers, domain, epilogue)])


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
    """GPUs, channels-last: a work-item per cell of x, as large as the strides, and its channels.

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
        return 2.0 if info.kind == "cpu" else 0.25

    def plan(self, problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
        overlap = any(map(int.__gt__, problem.window, problem.strides))
        if overlap or 0 in problem.result_shape:
            return super().plan(problem, info, epilogue)
        buffers = (Ref("a"), Ref("c"))
        return Plan([self.launch(problem, info, "max_cell_grad", buffers, "cells", epilogue)])

    def gather(self, problem: PoolProblem, info, epilogue: Epilogue) -> Launch:
        buffers = (Ref("ws0"), Ref("c"))
        return self.launch(problem, info, "max_cell_gather", buffers, "cells", epilogue)


def _mask_type(dtype: DType, lanes: int) -> str:
    """The type of a comparison of two compute values (of vectors: as wide as their elements)."""
    if lanes == 1:
        return "int"
    signed = {"float": "int", "double": "long"}.get(dtype.compute, dtype.compute.removeprefix("u"))
    return f"{signed}{lanes}"


SOLVERS: tuple[Solver, ...] = (WindowPool(), PlacePool(), CellPool())


def plan(problem: PoolProblem, info, epilogue: Epilogue) -> Plan:
    """The launches for `problem`; a, b, c as `PoolProblem.kind` says, results through `epilogue`.

    Raises:
        NotImplementedError: for more than three spatial dimensions, averages of a
            dtype that is not floating, or complex maxima.
    """
    return choose(SOLVERS, problem, info).plan(problem, info, epilogue)
