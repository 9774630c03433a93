"""Graphs that are made once and run again on other values, without a node for each operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerascl.compiler.program.lower import lower
from kerascl.compiler.run.ready import ReadyProgram
from kerascl.core.lease import Lease
from kerascl.core.node import BY_SERIAL, Node, data, topological
from kerascl.core.op import DATA
from kerascl.core.types import Shape
from kerascl.dtypes import DType
from kerascl.runtime.device import Device


class _Unmade:
    """Stands for a node that only the first graph had."""

    lease = None


_UNMADE = _Unmade()


class PreparedGraph:
    """A program for graphs that go on from equal ones; made by `of`.

    Attributes:
        steps: how many steps it has.
    """

    @classmethod
    def of(
        cls,
        before: list[Node],
        inputs: list[Node],
        live: list[Node],
        build: Callable[[list[Node]], list[Node]],
        device: Device,
    ) -> PreparedGraph:
        """Make the graph and its program, of copies, so that no value of `before` is kept alive.

        Args:
            before: nodes of data, and others that only these are needed for, inputs first.
            inputs: some of these.
            live: others, whose values somebody asks for besides.
            build: gives the results, values of their own, from what stands for `inputs`.
        """
        copies: dict[Node, Node] = {}
        for node in before:
            if node.op is DATA:
                copies[node] = data(Lease(None), node.shape, node.dtype, device)
                continue
            own = tuple(copies[x] for x in node.inputs)
            copy = Node(node.op, own, node.attrs, node.shape, node.dtype, node.device)
            if node.op.outputs > 1:
                copy.results = node.results
            copies[node] = copy
        wanted = build([copies[node] for node in inputs])
        kept = [copies[node] for node in live]
        roots = sorted({*kept, *wanted}, key=BY_SERIAL)
        graph = topological(roots)
        ready = ReadyProgram(lower(graph, roots, device.info, generic=True), graph, roots, device)
        given = [copies[node] if node.op is DATA else None for node in before]
        assert all(node.op is not DATA or node in given for node in graph)
        at = {node: k for k, node in enumerate(graph)}
        made = cls()
        made._ready, made.steps = ready, ready.steps
        made._unmade = [_UNMADE] * len(graph)
        made._given = [(k, at[node]) for k, node in enumerate(given) if node in at]
        made._live = [at[node] for node in kept]
        made._results = [(at[node], node.shape, node.dtype) for node in wanted]
        return made

    _ready: ReadyProgram
    steps: int
    _unmade: list[Any]
    _given: list[tuple[int, int]]  # where in `before`, and where in the graph
    _live: list[int]
    _results: list[tuple[int, Shape, DType]]

    @property
    def kernels(self) -> int:
        """How many different kernels it launches."""
        return self._ready.kernels

    def run(self, before: list[Node], live: list[Node]) -> list[Node]:
        """Enqueue it after an equal graph; `live` become data, and new nodes of data are given.

        Raises:
            CompileError, LaunchError, OutOfDeviceMemory, ContextLost: as `ReadyProgram.run`.
        """
        graph = self._unmade.copy()
        for k, place in self._given:
            graph[place] = before[k]
        for node, place in zip(live, self._live, strict=True):
            graph[place] = node
        results = []
        for place, shape, dtype in self._results:
            graph[place] = node = Node(DATA, (), (), shape, dtype)
            results.append(node)
        self._ready.run(graph)
        return results
