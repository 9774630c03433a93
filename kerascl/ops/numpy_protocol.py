"""NumPy's functions of Arrays: `np.sin(x)` and `np.concatenate([x, y])` stay on the device.

NEP 13 (`__array_ufunc__`) and NEP 18 (`__array_function__`) hand such calls over.  What kerascl has
under the same name, with the arguments that were given, it computes; the rest NumPy computes on the
host, on copies, which `kerascl.host.calls` counts under "numpy".
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from kerascl.core.array import Array, State
from kerascl.core.holders import rebind
from kerascl.core.tape import distinct
from kerascl.ops import (
    bits,
    calculus,
    choosing,
    contraction,
    creation,
    fft,
    histograms,
    host,
    indexing,
    linalg,
    movement,
    parts,
    pieces,
    pointwise,
    polynomials,
    reduction,
    scan,
    sets,
    sorting,
)
from kerascl.ops.declare import as_array, cast_to
from kerascl.ops.views import reshape_to

_ROOMS: dict[str, tuple[ModuleType, ...]] = {
    "numpy": (
        bits, calculus, choosing, contraction, creation, histograms, indexing, movement, parts,
        pieces, pointwise, polynomials, reduction, scan, sets, sorting,
    ),
    "numpy.linalg": (linalg,),
    "numpy.fft": (fft,),
}  # fmt: skip
# NumPy's names of what is called otherwise here.
_OTHER_NAMES = {
    "remainder": "mod", "invert": "bitwise_not", "degrees": "rad2deg", "radians": "deg2rad",
    "true_divide": "divide", "concat": "concatenate", "permute_dims": "transpose",
    "astype": "cast",
}  # fmt: skip
# Functions of the same name that mean something else, or read their arguments in another way.
_UNLIKE = {
    "apply_along_axis", "apply_over_axes", "array", "array_equal", "array_equiv", "clip", "copy",
    "empty", "full", "in1d", "piecewise", "select",
}  # fmt: skip
# Functions that change their first argument.
_IN_PLACE = {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
# Arguments that say how to compute or to store, not what.
_HARMLESS: dict[str, set[Any]] = {
    "casting": {"same_kind", "unsafe", "safe"}, "subok": {True, False}, "optimize": {True, False},
    "order": {"K", "C", "A", None}, "copy": {None, False}, "overwrite_input": {True, False},
}  # fmt: skip
_REDUCTIONS: dict[str, Callable[..., Array]] = {
    "add": reduction.sum, "multiply": reduction.prod, "maximum": reduction.max,
    "minimum": reduction.min, "logical_and": reduction.all, "logical_or": reduction.any,
}  # fmt: skip
_ACCUMULATIONS = {"add": scan.cumsum, "multiply": scan.cumprod}
_UPDATES = {"add": "add", "multiply": "multiply", "maximum": "max", "minimum": "min"}


@functools.cache
def _ours(module: str, name: str) -> Callable[..., Any] | None:
    """The function of kerascl for one of NumPy."""
    name = _OTHER_NAMES.get(name, name)
    if name in _UNLIKE:
        return None
    for room in _ROOMS.get(module, ()):
        if name in room.__all__:
            return distinct(getattr(room, name))
    return None


def array_ufunc(self: Array, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """NumPy's universal functions, with their `reduce`, `accumulate`, `outer` and `at`."""
    out = options.pop("out", None)
    if method == "at":
        _at(ufunc, *inputs)
        return None
    result = _ufunc(ufunc, method, inputs, dict(options))
    if result is None:
        result = getattr(ufunc, method)(*_on_host(inputs), **_on_host(options))
    return result if out is None else _into(result, out)


def _ufunc(
    ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], options: dict[str, Any]
) -> Array | None:
    name = ufunc.__name__
    if options.get("where", True) is True:
        options.pop("where", None)
    function = _ours("numpy", name)
    if method == "__call__" and function is not None and options.keys() <= {"dtype"}:
        if options.get("dtype") is not None:
            inputs = tuple([cast_to(as_array(x), _dtype(options["dtype"])) for x in inputs])
        found: Array = function(*inputs)
        return found
    if method == "outer" and function is not None and not options and len(inputs) == 2:
        a, b = map(as_array, inputs)
        table: Array = function(reshape_to(a, (*a.shape, *[1] * b.ndim)), b)
        return table
    if method == "reduce" and name in _REDUCTIONS:
        options.setdefault("axis", 0)
        if options.keys() <= {"axis", "keepdims"}:
            return _REDUCTIONS[name](*inputs[:1], **_positional(inputs[1:], "axis", options))
    if method == "accumulate" and name in _ACCUMULATIONS and options.keys() <= {"axis"}:
        options.setdefault("axis", 0)
        return _ACCUMULATIONS[name](*inputs[:1], **_positional(inputs[1:], "axis", options))
    return None


def _positional(rest: tuple[Any, ...], name: str, options: dict[str, Any]) -> dict[str, Any]:
    return options | ({name: rest[0]} if rest else {})


def _dtype(value: Any) -> Any:
    return as_array(np.empty(0, value)).dtype


def _at(ufunc: np.ufunc, x: Any, key: Any, *values: Any) -> None:
    """`np.add.at(x, key, value)`: x[key] += value, where repeated places count each time."""
    update = _UPDATES.get(ufunc.__name__)
    if update is None or not isinstance(x, Array) or len(values) != 1:
        raise TypeError(
            f"np.{ufunc.__name__}.at is not there for arrays of kerascl; see kerascl.Array.at"
        )
    rebind(x, distinct(getattr(x.at[key], update))(values[0]))


def _into(result: Any, out: Any) -> Any:
    """Put results where `out` says: Arrays take them as their value, arrays of NumPy a copy."""
    targets = out if isinstance(out, tuple) else (out,)
    results = result if isinstance(result, tuple) else (result,)
    for target, value in zip(targets, results, strict=True):
        if isinstance(target, Array):
            if target.shape != np.shape(value):
                raise ValueError(f"out has shape {target.shape}, the result {np.shape(value)}")
            rebind(target, distinct(cast_to)(as_array(value), target.dtype))
        elif target is not None:
            (value,) = _on_host((value,))
            np.copyto(target, value, casting="same_kind")
    return out if isinstance(out, tuple) and len(out) > 1 else targets[0]


def array_function(
    self: Array,
    function: Callable[..., Any],
    types: Iterable[type],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """NumPy's other functions."""
    kwargs = dict(kwargs)
    out = kwargs.pop("out", None)
    if function is np.clip:
        result: Any = pointwise.clip(*_clipped(*args, **kwargs))
        return result if out is None else _into(result, out)
    module = getattr(function, "__module__", "")
    ours = _ours(module, function.__name__)
    call = None if ours is None else _translated(function, ours, args, kwargs)
    if function.__name__ in _IN_PLACE and ours is not None:
        if not isinstance(args[0], Array):
            return function(args[0], *_on_host(args[1:]), **_on_host(kwargs))
        return ours(*args, **kwargs)
    if ours is None or call is None:
        result = function(*_on_host(args), **_on_host(kwargs))
    else:
        result = ours(*call.args, **call.kwargs)
    return result if out is None else _into(result, out)


def _clipped(a: Any, a_min: Any = None, a_max: Any = None, **named: Any) -> tuple[Any, Any, Any]:
    return a, named.get("min", a_min), named.get("max", a_max)


def _translated(
    function: Callable[..., Any],
    ours: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> inspect.BoundArguments | None:
    """A call of NumPy's function as one of ours, or None where it has no such arguments.

    Arguments that must be given keep their place, all others their name.
    """
    try:
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
        known = inspect.signature(ours)
    except (TypeError, ValueError):
        return None
    places: list[Any] = []
    names: dict[str, Any] = {}
    for name, value in given.items():
        parameter = signature.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            places.extend(value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            names.update(value)
        elif parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            places.append(value)
        elif value is parameter.default or _harmless(name, value):
            continue
        else:
            names[name] = value
    try:
        return known.bind(*places, **names)
    except TypeError:
        return None


def _harmless(name: str, value: Any) -> bool:
    try:
        return value in _HARMLESS.get(name, ())
    except TypeError:
        return False


def _on_host(value: Any) -> Any:
    """Copies on the host of the Arrays in a nested structure."""
    arrays = list(_arrays(value))
    if arrays:
        host.count("numpy")
    return _copied(value)


def _arrays(value: Any) -> Iterator[Array | State]:
    if isinstance(value, Array | State):
        yield value
    elif isinstance(value, dict):
        for x in value.values():
            yield from _arrays(x)
    elif isinstance(value, list | tuple):
        for x in value:
            yield from _arrays(x)


def _copied(value: Any) -> Any:
    if isinstance(value, State):
        value = value.value
    if isinstance(value, Array):
        return value.numpy()
    if isinstance(value, dict):
        return {k: _copied(x) for k, x in value.items()}
    if isinstance(value, list | tuple):
        parts = [_copied(x) for x in value]
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    return value
