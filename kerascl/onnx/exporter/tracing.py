"""Running a function without values: what it computes from stand-ins for its inputs and States."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kerascl.core.array import Array, State
from kerascl.core.context import current
from kerascl.core.errors import CaptureError
from kerascl.core.labels import Labels
from kerascl.core.node import Node
from kerascl.core.op import ARGUMENT
from kerascl.core.overlay import Overlay
from kerascl.core.structure import flatten
from kerascl.dtypes import DType
from kerascl.onnx.exporter.errors import ExportError


class States:
    """The States that a function reads, each with the node that stands for it in all traces."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[State, Node]] = {}

    def stand_in(self, state: State) -> Array:
        """The Array that a State's value is inside traces; a new one, which may be assigned to."""
        entry = self.found.get(id(state))
        if entry is None:
            node = Node(ARGUMENT, (), ("state",), state.shape, state.dtype, state.device)
            entry = self.found[id(state)] = (state, node)
        return Array(entry[1])


class _Trace(Overlay):
    def __init__(self, states: States):
        super().__init__()
        self.states = states

    def read(self, state: State) -> Array:
        entry = self.written.get(id(state))
        return self.states.stand_in(state) if entry is None else entry[1]


class Traced:
    """One trace: the nodes of its arguments and outputs, and which layer each node belongs to.

    Attributes:
        structure: a description of the nested outputs.
        start: nodes with smaller serials were made before.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        shapes: Sequence[tuple[int, ...]],
        dtypes: Sequence[DType],
        states: States,
    ):
        """Trace `function(*inputs)`, with Arrays of these shapes for the leaves of `inputs`.

        Raises:
            ExportError: when the function assigns to a State, or needs a value on the host.
        """
        trace = _Trace(states)
        self.start = trace.start
        self.arguments = [
            Node(ARGUMENT, (), ("input", k), shape, dtype)
            for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
        ]
        rebuild = flatten(list(inputs), [])[1]
        self.labels = Labels()
        leaves: list[Any] = []
        with current.replaced(trace=trace, tapes=(), tracers=(), labels=self.labels):
            trace.outer = None
            try:
                result = function(*rebuild(map(Array, self.arguments)))
            except CaptureError as error:
                raise ExportError(
                    f"the function needs the value of an array while it is exported, so what it "
                    f"computes is not one graph: {error}"
                ) from error
            self.structure = flatten(result, leaves)[0]
        if trace.written:
            names = ", ".join(state.name for state, _ in trace.written.values())
            raise ExportError(
                f"the function assigns to {names}; an ONNX model keeps no state from one run to "
                "the next. Return the new values instead; random layers and layers with "
                "stateful=True cannot be exported"
            )
        wrong = next((x for x in leaves if not isinstance(x, Array)), None)
        if wrong is not None or not leaves:
            found = "nothing" if not leaves else type(wrong).__name__
            raise ExportError(f"the outputs must be arrays, but the function returns {found}")
        self.outputs = [x._node for x in leaves]
