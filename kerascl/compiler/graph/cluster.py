"""What one kernel computes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kerascl.core.node import Node


@dataclass(eq=False)
class Cluster:
    """Targets computed by one kernel.

    Attributes:
        kind: "map", "reduction" or "library".
        shape: the full index space; for reductions the shape before reducing.
        axes: reduced axes of a reduction cluster, or of the reductions beside a product.
        members: targets in order of computation.
        row: ids of members that live on the kept axes only.
        columns: ids of members that live on the reduced axes only: reductions over the kept axes,
            and what follows from their results.
        patterns: the access patterns of each value from memory, over all members.
        streamed: ids of members stored at the place of the current loop step.
        staged: members that need the reductions' results over the full space exist.
        stores: members whose value must be written to memory.
        statements: about how many one element takes.
        computed: the input of a library operation that its kernel computes as it reads it.
        phase: of all members, see `graph.pieces.phases`.
    """

    kind: str
    shape: tuple[int, ...]
    axes: tuple[int, ...] = ()
    members: list[Node] = field(default_factory=list)
    row: set[int] = field(default_factory=set)
    columns: set[int] = field(default_factory=set)
    patterns: dict[int, set[Any]] = field(default_factory=dict)
    streamed: set[int] = field(default_factory=set)
    staged: bool = False
    stores: list[Node] = field(default_factory=list)
    statements: int = 0
    computed: int | None = None
    phase: int = 0
    index: int = 0
    before: int = 0  # bit set of clusters that must run earlier

    @property
    def head(self) -> Node:
        """The node that the cluster began with."""
        return self.members[0]

    @property
    def size(self) -> int:
        """Elements of the full index space."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """Elements over the axes that are kept."""
        return math.prod(n for a, n in enumerate(self.shape) if a not in self.axes)
