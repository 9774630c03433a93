"""Conditions on values that the host does not know: run every branch, select the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kerascl.core.array import Array, ArrayLike, State
from kerascl.core.context import current
from kerascl.core.overlay import Overlay
from kerascl.core.structure import Rebuild, flatten
from kerascl.core.traced import trace
from kerascl.dtypes import bool_
from kerascl.ops.declare import as_array, cast_to
from kerascl.ops.pointwise import equal, logical_not, where
from kerascl.ops.views import reshape_to

__all__ = ["cond"]

Branch: TypeAlias = Callable[[], Sequence[Array]]
# What a branch assigned: each State by its id, with the value.
Written: TypeAlias = dict[int, tuple[State, Array]]


def as_condition(value: ArrayLike, what: str) -> Array:
    """A condition as a bool of shape ().

    Args:
        what: the function and argument, for messages.

    Raises:
        ValueError: it has more than one element, or none.
    """
    array = as_array(value)
    if array.size != 1:
        raise ValueError(f"{what} must be a scalar, got shape {array.shape}")
    array = reshape_to(array, ())
    return array if array.dtype.is_bool else cast_to(array, bool_)


def chosen(index: Array, count: int) -> list[Array]:
    """For each of `count` branches, whether a device scalar (bool or integer) selects it."""
    if index.dtype.is_bool:
        return [logical_not(index), index]
    return [equal(index, k) for k in range(count)]


def run(function: Branch, taken: Array) -> tuple[list[Array], Written]:
    """The results of one branch, with gradients only where it is taken, and what it assigned."""
    if not current.tapes:
        with Overlay() as overlay:
            return list(function()), overlay.written
    traced, states = trace(lambda _: function(), [])
    outputs = traced.call([], finish=lambda d: where(taken, d, 0), context=(taken,))
    split = len(outputs) - len(states)
    written = zip(states, outputs[split:], strict=True)
    return outputs[:split], {id(state): (state, value) for state, value in written}


def pick(taken: Sequence[Array], values: Sequence[Array]) -> Array:
    """The value of the branch that is taken."""
    result = values[0]
    for condition, value in zip(taken[1:], values[1:], strict=True):
        if value is not result:
            result = where(condition, value, result)
    return result


def assign_picked(taken: Sequence[Array], runs: Sequence[Written]) -> None:
    """Assign to each State what the branch that is taken did; others keep their value."""
    states = {key: entry[0] for written in runs for key, entry in written.items()}
    for key, state in states.items():
        values = [written[key][1] if key in written else state.value for written in runs]
        state.assign(pick(taken, values))


def select(index: Array, branches: Sequence[Branch]) -> list[Array]:
    """`branches[index]()` for a device scalar `index` (bool or integer, in range); all are run.

    They return as many Arrays of the same shapes. What they assign to States is selected, too.
    """
    taken = chosen(index, len(branches))
    runs = [run(branch, here) for branch, here in zip(branches, taken, strict=True)]
    assign_picked(taken, [written for _, written in runs])
    return [pick(taken, values) for values in zip(*(found for found, _ in runs), strict=True)]


def cond(
    pred: ArrayLike,
    true_fun: Callable[..., Any],
    false_fun: Callable[..., Any],
    *operands: Any,
) -> Any:
    """`true_fun(*operands)` if `pred`, else `false_fun(*operands)`.

    Where the host knows `pred` (outside captured functions it is read), only that function runs.
    Inside a captured function, a loop or a vectorized map both run, and their results, what they
    assign to States, and their gradients are selected: NaN in the branch that is not taken stays
    there.

    Args:
        pred: a scalar.
        true_fun, false_fun: return nested structures alike of Arrays of the same shapes.

    Returns:
        The result; dtypes of the two are promoted.

    Raises:
        ValueError: `pred` is no scalar, or the results differ in structure or shape.
    """
    condition = as_condition(pred, "cond: pred")
    known = current.trace is None or current.trace.knows_value(condition._node)
    if known and not current.tracers:
        return (true_fun if bool(condition) else false_fun)(*operands)
    described: list[Any] = []
    shapes: list[list[tuple[int, ...]]] = []
    rebuild: list[Rebuild] = []

    def branch(function: Callable[..., Any]) -> list[Array]:
        leaves: list[Any] = []
        structure, build = flatten(function(*operands), leaves)
        arrays = [as_array(x) for x in leaves]
        described.append(structure)
        shapes.append([x.shape for x in arrays])
        rebuild.append(build)
        if described[0] != structure:
            raise ValueError("cond: the functions return different structures")
        if shapes[0] != shapes[-1]:
            raise ValueError(f"cond: the functions return shapes {shapes[-1]} and {shapes[0]}")
        return arrays

    found = select(condition, [lambda: branch(false_fun), lambda: branch(true_fun)])
    return rebuild[0](iter(found))
