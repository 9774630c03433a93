"""The machine side of an operation that hand-written kernels compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kerascl.compiler.graph.operands import Operand
from kerascl.core.array import Array
from kerascl.core.node import Node
from kerascl.core.op import Op
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.runtime.device import DeviceInfo


@dataclass(frozen=True)
class Call:
    """A node to be computed, and what surrounds it.

    Attributes:
        reads: the memory of each input.
        info: the device's facts.
        epilogue: what happens to each element of the result, or of the first of several.
        wanted: which results of several have memory.
        computed: the input that `LibraryOperation.computes` named, where it is not in memory.
    """

    node: Node
    reads: list[Operand]
    info: object
    epilogue: Epilogue
    wanted: frozenset[int] = field(default=frozenset())
    computed: Computed | None = None


@dataclass(frozen=True)
class LibraryOperation:
    """How the nodes of one operation become launches.

    Attributes:
        op: the operation.
        plan: the `Plan` of a call; its slots are "a", "b", … for the inputs, and what the epilogue
            or `outputs` names.  Raises NotImplementedError when no kernel applies on the device.
        strided: the inputs that its kernels read with any strides; the others lie contiguous.
        outputs: where there are several results, from a node to the slot of each.
        spare_bytes: bytes for a result, of several, that nobody wants; None: the plan leaves such
            results out.
        streams: whether its kernels go through their results as a map does.  An update reads and
            writes several states: with the few work-groups of other kernels that takes longer than
            a pass of its own.
        takes_moments: from a node, the memory of its inputs and the device's facts to whether its
            kernel takes an epilogue with moments.
        computes: from the same to the input that its kernel can compute, as it reads it, from what
            that is made of; None where it cannot.
        computes_well: from the same, and that input, to whether it pays.
        flops: floating point operations of a node, for profiles.
        padded: from attributes and a padded input to the attributes that take the input without its
            padding, or None.
        cropped: from a node and the start, step and size of a part of its result to the attributes
            that give this part only, or None.
        scaled: from attributes and a number to the attributes that multiply the first input by it,
            or None.
        zeros: the last inputs, which may be left out where they are known to be 0.
        shared: inputs (batch, length, groups, features) each of whose groups serves neighbouring
            heads; where all are made by repeating groups alike, they are read as they were before.
        formula: the operation as array code of others, `formula(*inputs, *attrs)` with all results;
            None where there is none.
        preferred: whether the kernels serve a node on a device better than the formula; asked
            before fusion, where there is a formula.
    """

    op: Op
    plan: Callable[[Call], Plan]
    strided: frozenset[int] = frozenset()
    outputs: Callable[[Node], tuple[str, ...]] | None = None
    spare_bytes: Callable[[Node], int] | None = None
    streams: bool = False
    takes_moments: Callable[[Node, list[Operand], DeviceInfo], bool] = lambda *_: False
    computes: Callable[[Node, list[Operand], DeviceInfo], int | None] = lambda *_: None
    computes_well: Callable[[Node, list[Operand], DeviceInfo, Computed], bool] = lambda *_: True
    flops: Callable[[Node], int] = lambda node: 0
    padded: Callable[[tuple[Any, ...], Node], tuple[Any, ...] | None] = lambda *_: None
    cropped: Callable[..., tuple[Any, ...] | None] = lambda *_: None
    scaled: Callable[[tuple[Any, ...], float], tuple[Any, ...] | None] = lambda *_: None
    zeros: frozenset[int] = frozenset()
    shared: frozenset[int] = frozenset()
    formula: Callable[..., Sequence[Array]] | None = None
    preferred: Callable[[Node, DeviceInfo], bool] = lambda node, info: True

    @property
    def takes_epilogue(self) -> bool:
        """Whether its kernels carry out elementwise operations on each result."""
        return self.outputs is None
