"""Control flow: If, Loop and Scan.

A condition or a count that the host knows decides there. One on the device is read where that is
possible; inside a captured function both branches of If run and one is selected, and a loop needs
a count that the host knows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kerascl.backend import tracing
from kerascl.backend.ops import control_flow
from kerascl.core.array import Array
from kerascl.core.errors import CaptureError
from kerascl.onnx.importer.graph import Call, Graph, axis_of, device, on_host
from kerascl.onnx.importer.rules import operator
from kerascl.ops import movement
from kerascl.ops.creation import full
from kerascl.ops.views import reshape_to

# Loops of at most so many steps are noted step by step, so that neighbours can be fused.
_FEW_STEPS = 4


@operator("If", raw=True)
def branch(call: Call, condition: Any) -> tuple[Any, ...]:
    """The outputs of one of two graphs.

    Where the host knows the condition, only that graph is carried out; else a conditional is
    noted, whose branches give arrays.

    Raises:
        CaptureError: in a captured step, for branches that give sequences or optional values.
    """
    graphs: tuple[Graph, Graph] = call["then_branch"], call["else_branch"]
    if isinstance(condition, np.ndarray) or tracing.is_known(device(condition)):
        graph = graphs[0] if bool(on_host(condition).reshape(())) else graphs[1]
        return tuple(graph.run([], call.scope, call.run))

    def taken(graph: Graph) -> list[Any]:
        found = graph.run([], call.scope, call.run)
        if any(v is None or isinstance(v, list) for v in found):
            raise CaptureError("If: a captured step cannot select sequences and optional values")
        return [device(v) for v in found]

    scalar = reshape_to(device(condition), ())
    return tuple(control_flow.cond(scalar, lambda: taken(graphs[0]), lambda: taken(graphs[1])))


@operator("Loop", raw=True)
def loop(call: Call, count: Any, condition: Any, *carried: Any) -> tuple[Any, ...]:
    """Final carried values, then what each step gave, joined along a new first axis.

    Args:
        count: the most steps; None: no limit.
        condition: whether to begin; the body says whether to go on.  None: true.

    Raises:
        CaptureError: in a captured step, for a condition that the host cannot read.
    """
    body: Graph = call["body"]
    most = None if count is None else int(on_host(count).reshape(()))
    going = True if condition is None else condition
    values = list(carried)
    outputs: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(values))]
    step = 0
    traced = _traced_loop(call, body, most, going, values, len(outputs))
    if traced is not None:
        return traced
    while (most is None or step < most) and _holds(going):
        number = np.asarray(step, np.int64)
        given = np.asarray(True) if going is True else going
        going, *results = body.run([number, given, *values], call.scope, call.run)
        values = results[: len(values)]
        for found, value in zip(outputs, results[len(values) :]):
            found.append(value)
        step += 1
    return (*values, *(_stacked(found, body, k + len(values)) for k, found in enumerate(outputs)))


def _holds(going: Any) -> bool:
    if going is True:
        return True
    if isinstance(going, np.ndarray):
        return bool(going.reshape(()))
    if not tracing.is_known(device(going)):
        raise CaptureError(
            "Loop: a captured step cannot read the loop's condition on the host; call the model "
            "outside of one, with KERASCL_CAPTURE=0 or run_eagerly=True"
        )
    return bool(on_host(going).reshape(()))


def _stacked(found: list[Any], body: Graph, place: int) -> Any:
    if not found:
        return _nothing(body, place)
    return movement.stack([device(v) for v in found], 0)


def _nothing(body: Graph, place: int) -> Array:
    """The result of a loop that never ran: no slices."""
    return full((0,), 0, "float32")


def _traced_loop(
    call: Call, body: Graph, most: int | None, going: Any, values: list[Any], outputs: int
) -> tuple[Any, ...] | None:
    """A loop whose length the host knows, with its body noted once; None where that cannot be."""
    if most is None or most <= _FEW_STEPS or not (going is True or isinstance(going, np.ndarray)):
        return None
    if not _holds(going) or tracing.shapes_only() or not body.is_unconditional:
        return None
    if not all(isinstance(v, Array) for v in values):
        return None
    kinds = [(v.shape, v.dtype) for v in values]

    def step(state: list[Array], number: Array) -> tuple[list[Array], list[Array]]:
        run = body.run([number, np.asarray(True), *state], call.scope, call.run)
        results = [device(v) for v in run[1:]]
        if [(v.shape, v.dtype) for v in results[: len(kinds)]] != kinds:
            raise CaptureError("a carried value changes its shape")
        return results[: len(kinds)], results[len(kinds) :]

    numbers = movement.iota((most,), 0)
    try:
        state, found = control_flow.scan_steps(
            step, values, control_flow.convert_to_tensor(numbers, "int64"), most
        )
    except (CaptureError, ValueError):
        return None
    return (*state, *found)


@operator("Scan", raw=True)
def scan(call: Call, *inputs: Any) -> tuple[Any, ...]:
    """Final states, then what each step gave, joined along the axes that the node names.

    The last `num_scan_inputs` inputs are read slice by slice, from either end.
    """
    if call.version < 9:
        return _batched_scan(call, *inputs)
    body: Graph = call["body"]
    count = call["num_scan_inputs"]
    split = len(inputs) - count
    states, xs = [device(v) for v in inputs[:split]], [device(v) for v in inputs[split:]]
    axes = call.get("scan_input_axes") or [0] * count
    backward = call.get("scan_input_directions") or [0] * count
    slices = [_first_axis(x, a, b) for x, a, b in zip(xs, axes, backward)]
    states, found = _scanned(call, body, states, slices)
    axes = call.get("scan_output_axes") or [0] * len(found)
    backward = call.get("scan_output_directions") or [0] * len(found)
    results = [movement.flip(y, 0) if b else y for y, b in zip(found, backward)]
    results = [movement.moveaxis(y, 0, axis_of(a, y.ndim)) for y, a in zip(results, axes)]
    return (*states, *results)


def _first_axis(x: Array, axis: int, backward: int) -> Array:
    x = movement.moveaxis(x, axis, 0)
    return movement.flip(x, 0) if backward else x


def _scanned(
    call: Call, body: Graph, states: list[Array], xs: list[Array]
) -> tuple[list[Array], list[Array]]:
    def step(state: list[Array], x: list[Array]) -> tuple[list[Array], list[Array]]:
        results = [device(v) for v in body.run([*state, *x], call.scope, call.run)]
        return results[: len(states)], results[len(states) :]

    return control_flow.scan_steps(step, states, xs, xs[0].shape[0])


def _batched_scan(call: Call, lengths: Any, *inputs: Any) -> tuple[Any, ...]:
    """Opset 8: each element of a batch on its own."""
    body: Graph = call["body"]
    count = call["num_scan_inputs"]
    split = len(inputs) - count
    backward = call.get("directions") or [0] * count
    arrays = [device(v) for v in inputs]
    rows = []
    for element in range(arrays[-1].shape[0]):
        states = [v[element] for v in arrays[:split]]
        xs = [v[element] for v in arrays[split:]]
        if lengths is not None:
            size = int(on_host(lengths).reshape(-1)[element])
            xs = [x[:size] for x in xs]
        xs = [movement.flip(x, 0) if b else x for x, b in zip(xs, backward)]
        states, found = _scanned(call, body, states, xs)
        rows.append([*states, *found])
    return tuple(movement.stack(list(column), 0) for column in zip(*rows))
