"""Conditions on device values inside captured steps: run every branch, select the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import get_stateless_scope

from kerascl.core.array import Array, State
from kerascl.core.context import current
from kerascl.core.overlay import Overlay
from kerascl.core.traced import trace
from kerascl.ops.declare import as_array
from kerascl.ops.pointwise import equal, logical_not, where


def select(index: Array, functions: Sequence[Callable]):
    """`functions[index]()` for a device scalar `index` (bool or integer, in range).

    All functions run; what they return, and what they assign to variables and States, is selected
    element by element. Gradients leave only the function that is taken: NaN or infinity in the
    derivative of another one does no harm.

    Raises:
        ValueError: when the results differ in structure or shape.
    """
    if index.dtype.is_bool:
        taken = [logical_not(index), index]
    else:
        taken = [equal(index, k) for k in range(len(functions))]
    if current.tapes:
        runs = [_run_apart(f, here) for f, here in zip(functions, taken, strict=True)]
    else:
        runs = [_run(function) for function in functions]
    _select_states(taken, [written for _, written, _ in runs])
    _select_stateless(taken, [updates for _, _, updates in runs])
    return _select_results(taken, [result for result, _, _ in runs])


def _pick(chosen: Sequence[Array], values: Sequence[Array]) -> Array:
    """The value of the branch that is taken."""
    result = values[0]
    for condition, value in zip(chosen[1:], values[1:], strict=True):
        if value is not result:
            result = where(condition, value, result)
    return result


@contextlib.contextmanager
def noted_updates():
    """Keras' stateless updates inside are taken back; gives a dictionary that gets them.

    Its values are (variable, value), by the variable's id.
    """
    updates: dict[int, tuple[KerasVariable, Array]] = {}
    stateless = get_stateless_scope()
    if stateless is None:
        yield updates
        return
    before = dict(stateless.state_mapping)
    add_update = stateless.add_update

    def noted(update):
        updates[id(update[0])] = update
        add_update(update)

    stateless.add_update = noted
    try:
        yield updates
    finally:
        del stateless.add_update
        stateless.state_mapping = before


def _run(function: Callable):
    """The result of one branch, its assignments to States, and its stateless updates."""
    with Overlay() as overlay, noted_updates() as updates:
        result = function()
    return result, overlay.written, updates


def _run_apart(function: Callable, taken: Array):
    """The same, with gradients only where it is taken."""
    leaves: list = []
    kept: list = []

    def plain(_):
        with noted_updates() as updates:
            result = function()
        leaves[:] = tree.flatten(result)
        kept[:] = [result, updates]
        values = [value for _, value in updates.values()]
        return [x for x in leaves if isinstance(x, Array)] + [as_array(v) for v in values]

    traced, states = trace(plain, [])
    outputs = traced.call([], finish=lambda d: where(taken, d, 0), context=(taken,))
    result, updates = kept
    found = iter(outputs)
    result = tree.pack_sequence_as(
        result, [next(found) if isinstance(x, Array) else x for x in leaves]
    )
    updates = {key: (variable, next(found)) for key, (variable, _) in updates.items()}
    return result, {id(state): (state, next(found)) for state in states}, updates


def _select_states(chosen, runs: Sequence[dict[int, tuple[State, Array]]]) -> None:
    states = {key: entry[0] for written in runs for key, entry in written.items()}
    for key, state in states.items():
        values = [written[key][1] if key in written else state.value for written in runs]
        state.assign(_pick(chosen, values))


def _select_stateless(chosen, runs: Sequence[dict[int, tuple[KerasVariable, Array]]]) -> None:
    variables = {key: entry[0] for updates in runs for key, entry in updates.items()}
    stateless = get_stateless_scope()
    for key, variable in variables.items():
        current = stateless.get_current_value(variable)
        if current is None:
            current = variable._value.value
        values = [updates[key][1] if key in updates else current for updates in runs]
        stateless.add_update((variable, _pick(chosen, values)))


def _select_results(chosen, results: Sequence):
    if all(result is None for result in results):
        return None
    for result in results[1:]:
        tree.assert_same_structure(results[0], result)

    def pick(*values):
        if all(value is None for value in values):
            return None
        arrays = [as_array(value) for value in values]
        if any(x.shape != arrays[0].shape for x in arrays):
            raise ValueError(
                "the branches of a condition inside a captured step must return arrays of one "
                f"shape, got {', '.join(str(x.shape) for x in arrays)}"
            )
        return _pick(chosen, arrays)

    return tree.map_structure(pick, *results)
