"""`kerascl.solver`: a user's kernel in place of the library's, for a kind of problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kerascl.core.context import current
from kerascl.kernels.contract import registry
from kerascl.kernels.own.solver import OwnSolver
from kerascl.kernels.own.texts import KINDS
from kerascl.kernels.tuning import database

Sizes = int | Sequence[int] | Callable[[Any], int | Sequence[int]]


class OwnKernel:
    """What `solver` gives: a kernel that the library may take.

    Attributes:
        problem: the kind of problem that it solves.
        name: its name, as KERASCL_SOLVERS takes it.
    """

    def __init__(self, problem: str, solver: OwnSolver, name: str):
        self.problem, self.name = problem, name
        self._solver = solver

    def remove(self) -> None:
        """Have the library forget the kernel; captured functions that have it keep it."""
        registry.remove(KINDS[self.problem].of, f"{self.problem} {self.name}")
        _forget()

    def __repr__(self) -> str:
        return f"<kerascl.solver {self._solver.name} for {self.problem}>"


def solver(
    problem: str,
    name: str,
    source: str,
    grid: Sizes,
    local: Sizes | None = None,
    *,
    applies: Callable[[Any, Any], bool] | None = None,
    template: Mapping[str, int | float | str] | None = None,
    fused: bool = True,
) -> OwnKernel:
    """Offer a kernel of OpenCL C for matrix products or convolutions: everywhere that the library
    needs one, in Keras layers and their gradients too.

    The library takes it where `KERASCL_SOLVERS` names it, or where `kerascl tune script.py`, with
    this call in the script, has found it right and fastest for a problem, and kept that.

    ```python
    kerascl.solver(
        "matmul", "plain",
        \"\"\"
        __kernel void plain(__global const a_T* a, __global const b_T* b EPILOGUE_PARAMS) {
          const int column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
          ACC_T sum = 0;
          for (int k = 0; k < K; ++k)
            sum += (ACC_T)a_LOAD(a_AT(batch, row, k)) * (ACC_T)b_LOAD(b_AT(batch, k, column));
          EPILOGUE(sum, out_AT(batch, row, column));
        }
        \"\"\",
        grid=lambda p: (p.n, p.m, p.batches),
    )
    ```

    Macros tell the kernel of the problem: `a_T`, `b_T` (types in memory), `a_LOAD(i)`, `b_LOAD(i)`
    (which convert), `ACC_T` (the type to add up in), `INDEX_T` (int, or long where needed), and

    - of "matmul": `M`, `N`, `K`, `BATCHES`, the places `a_AT(batch, row, k)`,
      `b_AT(batch, k, column)` and `out_AT(batch, row, column)`;
    - of convolutions: `IMAGES`, `CHANNELS`, `FILTERS`, `GROUPS`, `GROUP_CHANNELS` (of one group),
      `TAPS`, `X_PIXELS`, `Y_PIXELS`, for each of `DIMS` (2 or 3) axes k `Xk`, `Yk`, `KERNELk`,
      `STRIDEk`, `DILATIONk` and `PADk` (before the first pixel), the places
      `x_AT(image, pixel, channel)`, `y_AT(image, pixel, filter)` and `w_AT(tap, channel, filter)`,
      with the channels of one group. `a` and `b` are x and w; dy and w for "conv_data_grad",
      whose result is like x; x and dy for "conv_filter_grad", whose result is like w.

    Each problem is compiled on its own.

    Args:
        problem: "matmul", "conv", "conv_data_grad" or "conv_filter_grad".
        name: of the kernel and of the solver; one with this name is replaced.
        source: the program, whose kernel takes `a` and `b`, and as its last parameters
            `EPILOGUE_PARAMS`, without a comma before. It calls `EPILOGUE(sum, place)` once for
            each element of the result, which stores it together with what the library fuses.
        grid: how many work-items there are, one to three sizes, or a function of the problem that
            gives them. A product has `m`, `n`, `k`, `batches` and the dtypes `a`, `b`, `acc`; a
            convolution `x_shape`, `w_shape`, `y_shape`, `strides`, `pads`, `dilation`, `groups`,
            `channels_first` and dtypes; both have `total`, the number of results.
        local: how many of them are a work-group, likewise; by default the driver chooses.
        applies: `applies(problem, device)`, whether the kernel can solve a problem on a device;
            without it, every problem of the kind whose dtypes the device has.
        template: macros of your own.
        fused: False for a kernel that stores by itself, into a last parameter
            `__global ACC_T* out`; what would be fused is then a launch of its own.

    Returns:
        An object whose `remove()` takes the offer back.

    Raises:
        ValueError: for another kind of problem, a name that is none, a source without the kernel
            or without its `EPILOGUE`; where the kernel is taken, for a grid that is no multiple of
            `local`.
        TypeError: for sizes or `applies` of another kind.
        kerascl.CompileError: where the kernel is taken and does not compile.
    """
    if problem not in KINDS:
        raise ValueError(f"solver: {problem!r} is no kind of problem; choose {', '.join(KINDS)}")
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise ValueError(f"solver: {name!r} is no name for a kernel")
    if not re.search(rf"\bvoid\s+{re.escape(name)}\s*\(", source):
        raise ValueError(f"solver {name!r}: the source has no `__kernel void {name}(`")
    calls = [word for word in ("EPILOGUE_PARAMS", "EPILOGUE") if not _has(source, word)]
    if fused and calls:
        raise ValueError(
            f"solver {name!r}: the source has no {calls[0]}, so it stores nothing of what the "
            "library fuses; call EPILOGUE(sum, place), or say fused=False and store into `out`"
        )
    if not fused and len(calls) < 2:
        raise ValueError(f"solver {name!r}: fused=False has no EPILOGUE; store into `out`")
    if applies is not None and not callable(applies):
        raise TypeError(f"solver {name!r}: applies must be a function, not {applies!r}")
    macros = {key: _macro(name, key, value) for key, value in (template or {}).items()}
    made = OwnSolver(
        KINDS[problem], name, source, _sizes(name, "grid", grid),
        None if local is None else _sizes(name, "local", local), applies, macros, fused,
    )  # fmt: skip
    registry.add(KINDS[problem].of, f"{problem} {name}", made)
    _forget()
    return OwnKernel(problem, made, name)


def _has(source: str, word: str) -> bool:
    return re.search(rf"\b{word}\b", source) is not None


def _macro(name: str, key: str, value: Any) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w*", key):
        raise ValueError(f"solver {name!r}: {key!r} is no name for a macro")
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float) and value - value == 0:
        return f"{value!r}f"
    raise TypeError(f"solver {name!r}: macro {key} must be a number or text, not {value!r}")


def _sizes(name: str, what: str, sizes: Sizes) -> Callable[[Any], tuple[int, ...]]:
    def found(problem: Any) -> tuple[int, ...]:
        given: Any = sizes(problem) if callable(sizes) else sizes
        made = tuple(given) if isinstance(given, Sequence) else (given,)
        if not 1 <= len(made) <= 3 or not all(isinstance(n, int) and n > 0 for n in made):
            raise TypeError(
                f"solver {name!r}: {what} must be one to three positive sizes, not {given!r}"
            )
        return made

    if not callable(sizes):
        found(None)
    return found


def _forget() -> None:
    """Choose anew for what is evaluated from now on."""
    database.forget()
    current.engine.forget_programs()


__all__ = ["OwnKernel", "solver"]
