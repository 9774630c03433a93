"""Conditions on device values inside captured steps: run every branch, select the results."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from keras.src import tree
from keras.src.backend.common import KerasVariable
from keras.src.backend.common.stateless_scope import get_stateless_scope

from kerascl.core.array import Array
from kerascl.ops import branches
from kerascl.ops.declare import as_array


def select(index: Array, functions: Sequence[Callable]):
    """`functions[index]()` for a device scalar `index` (bool or integer, in range).

    All functions run; what they return, and what they assign to variables and States, is selected
    element by element. Gradients leave only the function that is taken: NaN or infinity in the
    derivative of another one does no harm.

    Raises:
        ValueError: when the results differ in structure or shape.
    """
    taken = branches.chosen(index, len(functions))
    runs = [_run(function, here) for function, here in zip(functions, taken, strict=True)]
    branches.assign_picked(taken, [written for _, written, _ in runs])
    _select_stateless(taken, [updates for _, _, updates in runs])
    return _select_results(taken, [result for result, _, _ in runs])


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


def _run(function: Callable, taken: Array):
    """The result of one branch, its assignments to States, and its stateless updates."""
    leaves: list = []
    kept: list = []

    def plain():
        with noted_updates() as updates:
            result = function()
        leaves[:] = tree.flatten(result)
        kept[:] = [result, updates]
        values = [value for _, value in updates.values()]
        return [x for x in leaves if isinstance(x, Array)] + [as_array(v) for v in values]

    outputs, written = branches.run(plain, taken)
    result, updates = kept
    found = iter(outputs)
    result = tree.pack_sequence_as(
        result, [next(found) if isinstance(x, Array) else x for x in leaves]
    )
    updates = {key: (variable, next(found)) for key, (variable, _) in updates.items()}
    return result, written, updates


def _select_stateless(taken, runs: Sequence[dict[int, tuple[KerasVariable, Array]]]) -> None:
    variables = {key: entry[0] for updates in runs for key, entry in updates.items()}
    stateless = get_stateless_scope()
    for key, variable in variables.items():
        current = stateless.get_current_value(variable)
        if current is None:
            current = variable._value.value
        values = [updates[key][1] if key in updates else current for updates in runs]
        stateless.add_update((variable, branches.pick(taken, values)))


def _select_results(taken, results: Sequence):
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
        return branches.pick(taken, arrays)

    return tree.map_structure(pick, *results)
