"""What an operation is.

Each operation is known in two places.  Its array side is declared once, in `kerascl/ops/`: shape
and dtype rule, derivative, batching.  Its machine side follows from its kind, or is a record keyed
by the operation itself: in `kerascl/compiler/library/` (hand-written kernels) or
`kerascl/compiler/graph/views.py` (index maps).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kerascl.core.types import Vjp
from kerascl.dtypes import DType

if TYPE_CHECKING:
    from kerascl.core.batch import Rule


class Kind(enum.IntEnum):
    """How an operation is computed; see docs/architecture.md."""

    LEAF = 0  # a buffer, a captured argument, a state
    CONST = 1  # one Python scalar
    POINTWISE = 2  # one C expression for each element
    REDUCTION = 3  # a reduction over axes, kept with size 1
    VIEW = 4  # an index map
    GATHER = 5  # a load at computed positions
    LIBRARY = 6  # a hand-written kernel of kernels/
    PICK = 7  # one result of an operation that has several


@dataclass(frozen=True)
class ReductionSpec:
    """A reduction in four strings (map, combine, finish, accumulator), as registers.

    `states` lists (C type or "acc" or "index", initial value); `step` updates
    s0, s1 … with the element x at reduced linear position r; `combine` merges
    registers t0, t1 … into s0, s1 …; `finish` is the result.  `scratch` lists
    more registers u0, u1 … of `step`, which `close` empties into the states
    when a work-item has seen its last element.  `centred` is the same reduction
    where elements can be read twice: its step knows their mean m, its finish
    their number n.  `block`, for what rounds, is how many elements one set of
    registers may take before it is merged into another: 16 or 256, 0 for any number.
    `lanes` is `step` for vectors of LANES elements at `places`, where it can be written so;
    `combine` then merges vectors, too, if there is a `block`.
    `extreme` is "max" or "min" where `step` and `combine` keep the larger or the smaller, and NaN.
    """

    states: tuple[tuple[str, str], ...]
    step: str
    combine: str
    finish: str = "s0"
    scratch: tuple[tuple[str, str], ...] = ()
    close: str = ""
    centred: ReductionSpec | None = None
    block: int = 0
    lanes: str = ""
    extreme: str = ""


@dataclass(frozen=True, eq=False)
class Op:
    """One operation of the graph.

    Attributes:
        code: pointwise: a C expression over {0}, {1}, … (inputs) and {i0}, {i1}, …
            (output coordinates); {T} is the compute type of the result and
            {a0}, {a1}, … are attributes.
        helpers: C functions that `code` calls, emitted once a program.
        reduction: its `ReductionSpec`, as a function of the input dtype.
        vjp: `vjp(g, y, *inputs, *attrs)` in array code; gives a gradient or None
            for each input.  None for operations that have no derivative.
        batch: how `vmap` carries it out on whole batches, a `core.batch.Rule`; None for the rule of
            its kind.
        neutral: pointwise with two inputs: the number that, as the left or the right one, gives the
            other as it is; None where there is no such number.
        cost: rough number of arithmetic instructions for each element.
        exact: whether a pointwise result needs no rounding: it is one of the inputs, or has no
            more digits than they have.
    """

    name: str
    kind: Kind
    code: str = ""
    helpers: tuple[str, ...] = ()
    reduction: Callable[[DType], ReductionSpec] | None = None
    vjp: Vjp | None = None
    batch: Rule | None = None
    neutral: tuple[float | None, float | None] = (None, None)
    cost: int = 1
    outputs: int = 1
    exact: bool = False
    extra: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<op {self.name}>"


REGISTRY: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add an operation to the registry; names are unique."""
    if op.name in REGISTRY:
        raise ValueError(f"operation {op.name!r} is declared twice")
    REGISTRY[op.name] = op
    return op


DATA = register(Op("data", Kind.LEAF))
ARGUMENT = register(Op("argument", Kind.LEAF))
CONST = register(Op("const", Kind.CONST))
# One element of a batch, seen from inside `vmap`; attributes: the BatchTracer and the whole
# batch.
BATCHED = register(Op("batched", Kind.LEAF))
PICK = register(Op("pick", Kind.PICK))
# The same value in memory of its own.
COPY = register(Op("copy", Kind.POINTWISE, "{0}", exact=True))
