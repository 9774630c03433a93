"""Graphs that are made once and run again on other values, without a node for each operation."""

from __future__ import annotations

from typing import Any

from kerascl.compiler.run.ready import ReadyProgram
from kerascl.core.node import Node
from kerascl.core.op import DATA
from kerascl.core.types import Shape
from kerascl.dtypes import DType


class _Unmade:
    """Stands for a node that only the first graph had."""

    lease = None


_UNMADE = _Unmade()


class PreparedGraph:
    """A program, and where a graph's inputs and results are in it.

    Args:
        ready: the graph's program.
        graph: its nodes in topological order.
        inputs: nodes of data, all there are in the graph; it need not use each.
        wanted: the results.
    """

    def __init__(
        self, ready: ReadyProgram, graph: list[Node], inputs: list[Node], wanted: list[Node]
    ):
        at = {node: k for k, node in enumerate(graph)}
        assert all(node.op is not DATA or node in inputs for node in graph)
        self.ready = ready
        self._unmade: list[Any] = [_UNMADE] * len(graph)
        self._inputs = [(k, at[node]) for k, node in enumerate(inputs) if node in at]
        self._results: list[tuple[int, Shape, DType]] = [
            (at[node], node.shape, node.dtype) for node in wanted
        ]

    @property
    def kernels(self) -> int:
        """How many different kernels it launches."""
        return self.ready.kernels

    def run(self, inputs: list[Node]) -> list[Node]:
        """Enqueue it; gives the results, new nodes of data.

        Raises:
            CompileError, LaunchError, OutOfDeviceMemory, ContextLost: as `ReadyProgram.run`.
        """
        graph = self._unmade.copy()
        for k, place in self._inputs:
            graph[place] = inputs[k]
        results = []
        for place, shape, dtype in self._results:
            graph[place] = node = Node(DATA, (), (), shape, dtype)
            results.append(node)
        self.ready.run(graph)
        return results
