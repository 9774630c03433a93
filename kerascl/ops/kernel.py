"""Whole kernels of one's own, in OpenCL C."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kerascl import dtypes
from kerascl.core import rules
from kerascl.core.array import Array, ArrayLike, apply_multi
from kerascl.core.context import current
from kerascl.core.tape import pause
from kerascl.core.types import Shape
from kerascl.dtypes import DType, as_dtype
from kerascl.ops.custom import Gradient, identifiers, lies_on, note_gradient
from kerascl.ops.declare import as_array, library_operation
from kerascl.ops.variants import fastest

KERNEL = library_operation("kernel", outputs=2)

# What an output is: like an input of that name, a shape and dtype, or a function of the inputs that
# gives one of these or an Array's shape alone.
OutputLike: TypeAlias = "str | tuple[Any, Any] | Callable[..., Any]"
Sizes: TypeAlias = "int | Sequence[int] | Callable[..., int | Sequence[int]]"

MOST_INPUTS = 26


@dataclass(frozen=True)
class KernelCall:
    """One launch of a user's kernel.

    Attributes:
        source: the whole program.
        name: the kernel's.
        initial: what outputs are filled with before, or None.
        results: the shape of each output and its dtype's name.
    """

    source: str
    name: str
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    initial: float | None
    results: tuple[tuple[Shape, str], ...]


class Kernel:
    """What `kernel` gives: called with its input arrays, and macros by name."""

    def __init__(
        self,
        source: str,
        name: str,
        inputs: tuple[str, ...],
        outputs: Mapping[str, OutputLike],
        grid: Sizes,
        local: Sizes | None,
        template: Mapping[str, Any],
        grad: Gradient | None,
        initial: float | None,
        tune: Mapping[str, Sequence[Any]],
    ):
        self.__name__ = self.__qualname__ = name
        self.__doc__ = f"{name}({', '.join(inputs)}), made by kerascl.kernel."
        self._source = source
        self._inputs = inputs
        self._outputs = dict(outputs)
        self._grid, self._local = grid, local
        self._template = dict(template)
        self._grad = grad
        self._initial = initial
        self._tune = {key: tuple(values) for key, values in tune.items()}
        self._fastest: dict[Any, dict[str, Any]] = {}  # by device, shapes and the macros of a call
        self._asked = {
            what: _parameters(sizes)[len(inputs) :]
            for what, sizes in (("grid", grid), ("local", local))
        }
        self._words = set(re.findall(r"\b[A-Za-z_]\w*", source))
        self._own = set(re.findall(r"#[ \t]*define[ \t]+(\w+)", source))

    def __call__(self, *args: ArrayLike, **template: Any) -> Any:
        """The kernel's output, or a tuple of several; keywords are macros for this call."""
        name = self.__name__
        if len(args) != len(self._inputs):
            raise TypeError(f"{name} takes {len(self._inputs)} arrays, got {len(args)}")
        unknown = template.keys() - self._words - self._tune.keys()
        if unknown:
            raise TypeError(f"{name}: the source has no macro {', '.join(sorted(unknown))}")
        given = tuple([as_array(x) for x in args])
        results = [self._result(k, given) for k in self._outputs]
        macros = self._template | template
        if self._tune:
            macros = self._tuned(given, results, macros)
        call = self._launch(given, results, macros)
        with pause():
            found = apply_multi(KERNEL, given, (call,), results)
        outputs = found[0] if len(found) == 1 else found
        if current.tapes:
            note_gradient(name, self._grad, given, outputs)
        return outputs

    def __repr__(self) -> str:
        return f"<kerascl.kernel {self.__name__}({', '.join([*self._inputs, *self._outputs])})>"

    def _tuned(
        self,
        given: tuple[Array, ...],
        results: list[tuple[Shape, DType]],
        macros: dict[str, Any],
    ) -> dict[str, Any]:
        """`macros`, and of those to tune the fastest values, except where a call gives them."""
        choice = {key: values for key, values in self._tune.items() if key not in macros}
        products = itertools.product(*choice.values())
        several = [dict(zip(choice, values, strict=True)) for values in products]
        if len(several) == 1:
            return macros | several[0]
        on = lies_on(given)
        about = tuple([(x.shape, x.dtype.name) for x in given]), tuple(results)
        key = on, about, repr(sorted(macros.items()))
        if key not in self._fastest:
            name = self.__name__
            labels = [", ".join(f"{k}={v}" for k, v in own.items()) for own in several]
            variants = dict(zip(labels, [macros | own for own in several], strict=True))
            sizes = [self._told_sizes(given, own) for own in variants.values()]
            told = (self._source, name, about[0], [(s, d.name) for s, d in results], self._initial)
            text = repr((told, sorted(macros.items()), labels, sizes))

            def run(call: KernelCall) -> tuple[Array, ...]:
                return apply_multi(KERNEL, given, (call,), results)

            known = current.trace is None and not current.tracers
            if known:  # else the first variant's time has theirs
                current.engine.evaluate([x._node for x in given])
            launches = {
                label: functools.partial(self._launch, given, results, own)
                for label, own in variants.items()
            }
            with pause():
                label = fastest(name, text, launches, run, on)
            if not known:  # there may be times later
                return variants[label]
            self._fastest[key] = variants[label]
        return self._fastest[key]

    def _told_sizes(self, given: tuple[Array, ...], macros: Mapping[str, Any]) -> Any:
        """A variant's grid and work-group, or why it has none."""
        try:
            local = (
                None if self._local is None else self._sizes("local", self._local, given, macros)
            )
            return self._sizes("grid", self._grid, given, macros), local
        except ValueError as error:
            return str(error)

    def _result(self, output: str, given: tuple[Array, ...]) -> tuple[Shape, DType]:
        what = self._outputs[output]
        found: Any = what(*given) if callable(what) else what
        if isinstance(found, str) and found in self._inputs:
            found = given[self._inputs.index(found)]
        if isinstance(found, Array):
            return found.shape, found.dtype
        if isinstance(found, tuple | list) and len(found) == 2:
            try:
                return rules.normalize_shape(found[0]), as_dtype(found[1])
            except TypeError:
                pass
        raise TypeError(
            f"{self.__name__}: output {output!r} must be an input's name, (shape, dtype), or a "
            f"function of the inputs that gives one of these, not {found!r}"
        )

    def _launch(
        self,
        given: tuple[Array, ...],
        results: list[tuple[Shape, DType]],
        template: Mapping[str, Any],
    ) -> KernelCall:
        name = self.__name__
        of_inputs = [(x.shape, x.dtype) for x in given]
        about = dict(zip((*self._inputs, *self._outputs), (*of_inputs, *results), strict=True))
        used = [dtype for _, dtype in about.values()]
        macros = [f"#define {k} {_macro(name, k, v)}\n" for k, v in template.items()]
        for parameter, (shape, dtype) in about.items():
            known = _facts(parameter, shape, dtype)
            macros += [text for word, text in known if word in self._words - self._own]
        double = any(dtype.is_double for dtype in used)
        pragma = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n" if double else ""
        source = f'{pragma}{dtypes.PRELUDE}{"".join(macros)}#line 1 "{name}"\n{self._source}\n'
        on = lies_on(given)
        count = current.engine.check_source(source, name, name, on)
        if count != len(about):
            raise TypeError(
                f"{name}: the kernel takes {count} arguments, but it has {len(given)} inputs and "
                f"{len(results)} outputs; they must be its parameters, in this order"
            )
        grid = self._sizes("grid", self._grid, given, template)
        local = self._local
        local = None if local is None else self._sizes("local", local, given, template)
        if local is not None and (
            len(local) != len(grid) or any(g % n for g, n in zip(grid, local, strict=True))
        ):
            raise ValueError(
                f"{name}: grid {grid} is no multiple of local {local}; round it up, and let the "
                "kernel return for work-items past the end"
            )
        told = tuple([(shape, dtype.name) for shape, dtype in results])
        return KernelCall(source, name, grid, local, self._initial, told)

    def _sizes(
        self, what: str, sizes: Sizes, given: tuple[Array, ...], template: Mapping[str, Any]
    ) -> tuple[int, ...]:
        found: Any = sizes
        if callable(sizes):
            asked = {k: template[k] for k in self._asked[what] if k in template}
            found = sizes(*given, **asked)
        made = tuple(found) if isinstance(found, Sequence) else (found,)
        if not 1 <= len(made) <= 3 or not all(isinstance(n, int) and n > 0 for n in made):
            raise ValueError(
                f"{self.__name__}: {what} must be one to three positive sizes, not {found!r}"
            )
        return made


def _macro(kernel: str, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, DType):
        return value.compute
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float):
        return f"{value!r}f" if value - value == 0 else "NAN" if value != value else f"({value})"
    raise TypeError(f"{kernel}: macro {name} must be a number, text or dtype, not {value!r}")


def _facts(name: str, shape: Shape, dtype: DType) -> list[tuple[str, str]]:
    """The macros that say what a parameter is."""
    size = 1
    for n in shape:
        size *= n
    load = dtype.load.format(p=name, i="(i)")
    store = dtype.store.format(p=name, i="(i)", v=f"(({dtype.compute})(v))")
    found = {
        f"{name}_T": dtype.storage, f"{name}_C": dtype.compute, f"{name}_SIZE": size,
        f"{name}_NDIM": len(shape),
        **{f"{name}_DIM{k}": n for k, n in enumerate(shape)},
    }  # fmt: skip
    macros = [(word, f"#define {word} {value}\n") for word, value in found.items()]
    macros.append((f"{name}_LOAD", f"#define {name}_LOAD(i) {load}\n"))
    macros.append((f"{name}_STORE", f"#define {name}_STORE(i, v) {store}\n"))
    return macros


def kernel(
    source: str,
    name: str,
    inputs: str | Sequence[str],
    outputs: str | Sequence[str] | Mapping[str, OutputLike],
    grid: Sizes,
    local: Sizes | None = None,
    *,
    template: Mapping[str, Any] | None = None,
    grad: Gradient | None = None,
    initial: float | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
) -> Kernel:
    """A kernel of OpenCL C as an operation: local memory, sub-groups and atomics included.

    ```python
    scale = kerascl.kernel(
        \"\"\"
        __kernel void scale(__global const x_T* x, __global y_T* y) {
          const int i = get_global_id(0);
          y_STORE(i, FACTOR * x_LOAD(i));
        }
        \"\"\",
        "scale", inputs="x", outputs="y", grid=lambda x: x.size, template={"FACTOR": 2},
        grad=lambda g, y, x: 2 * g,
    )
    scale(x)
    scale(x, FACTOR=3)
    ```

    With `tune`, the first call for some shapes tries values of macros and keeps the fastest:

    ```python
    scale = kerascl.kernel(
        \"\"\"
        __kernel void scale(__global const x_T* x, __global y_T* y) {
          const int first = get_global_id(0) * EACH;
          for (int i = first; i < min(first + EACH, x_SIZE); ++i) y_STORE(i, 2 * x_LOAD(i));
        }
        \"\"\",
        "scale", inputs="x", outputs="y", tune={"EACH": (1, 4, 16), "GROUP": (64, 256)},
        grid=lambda x, EACH, GROUP: -(-x.size // (EACH * GROUP)) * GROUP,
        local=lambda x, GROUP: GROUP,
    )
    ```

    Macros say what a parameter `x` is, if the source asks: `x_T` (the type in memory), `x_C` (the
    type to compute in: float for float16, bfloat16 and float8), `x_SIZE`, `x_NDIM`, `x_DIM0`, …,
    `x_LOAD(i)` and `x_STORE(i, v)`, which convert.  What the source defines itself comes first.
    Arrays lie contiguous, the last axis densest.

    Args:
        source: the program; its text is compiled as it stands, after the macros.
        name: the kernel's name in it; its parameters are the inputs, then the outputs, all
            `__global` pointers.
        inputs: the inputs' names, as a list or with spaces between.
        outputs: names of outputs that are like the first input, or from each name to what it is
            like: an input's name, `(shape, dtype)`, or a function of the input Arrays that gives
            one of these.
        grid: how many work-items there are, one to three sizes, or a function of the inputs that
            gives them; further parameters with macros' names are given the macros' values.
        local: how many of them are a work-group, likewise; by default the driver chooses.
        template: macros: numbers, text, or dtypes, for their type to compute in.  A call may give
            others by keyword.
        grad: `grad(g, y, *inputs)`, see `elementwise`.  Without it, differentiating raises.
        initial: a number that outputs are filled with before, for atomics; else the kernel must
            write every element.
        tune: from a macro's name to the values to try, the first ones being right beyond doubt.
            Every combination that builds and gives the results of the first (but for the order of
            sums) is timed on the arrays of the call; others are left out with a RuntimeWarning. The
            fastest is kept for the device, its driver, the source and the shapes, where `kerascl
            tune` keeps its records. A captured function, and `vmap`, take what is kept, else the
            first: call it once before. Macros that a call gives are not tuned.

    Returns:
        A function of the input arrays.  Inside `vmap` it runs for each element in turn.

    Raises:
        ValueError: for names that are none or not in the source; from the call, for a grid that is
            no multiple of `local`.
        TypeError: from the call, for another number of arrays or of the kernel's parameters.
        kerascl.CompileError: from the call, with the lines of the source that do not compile.
    """
    given = identifiers(inputs, f"kernel {name!r} inputs")
    if len(given) > MOST_INPUTS:
        raise ValueError(f"kernel {name!r}: {len(given)} inputs; {MOST_INPUTS} at most")
    made: Mapping[str, OutputLike] = (
        outputs
        if isinstance(outputs, Mapping)
        else dict.fromkeys(identifiers(outputs, f"kernel {name!r} outputs"), given[0])
    )
    identifiers((*given, *made), f"kernel {name!r}")
    if not re.search(rf"\bvoid\s+{re.escape(name)}\s*\(", source):
        raise ValueError(f"kernel {name!r}: the source has no `__kernel void {name}(`")
    choice = _choice(name, source, tune or {}, template or {}, (grid, local))
    return Kernel(source, name, given, made, grid, local, template or {}, grad, initial, choice)


def _parameters(sizes: Sizes | None) -> list[str]:
    """The names of a function's parameters, as far as it tells them."""
    try:
        return list(inspect.signature(sizes).parameters) if callable(sizes) else []
    except ValueError:
        return []


def _choice(
    name: str,
    source: str,
    tune: Mapping[str, Sequence[Any]],
    template: Mapping[str, Any],
    sizes: tuple[Sizes | None, ...],
) -> Mapping[str, Sequence[Any]]:
    """`tune`, if it can be one."""
    words = set(re.findall(r"\b[A-Za-z_]\w*", source))
    for what in sizes:
        words.update(_parameters(what))
    for key, values in tune.items():
        if key not in words:
            raise ValueError(f"kernel {name!r}: neither the source nor a size has a macro {key}")
        if key in template:
            raise ValueError(f"kernel {name!r}: macro {key} is in `template` and in `tune`")
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise ValueError(f"kernel {name!r}: tune {key} must be values to try, not {values!r}")
        for value in values:
            _macro(name, key, value)
    return tune
