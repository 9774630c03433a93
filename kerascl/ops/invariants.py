"""What a loop would compute anew in each iteration although it never changes.

A weight that mixed precision casts, or to which LoRA adds its product, would cost a loop that
generates text more than all that is done with it: it is computed once, before the loop
(loop-invariant code motion; Aho, Lam, Sethi and Ullman, Compilers, 9.5).
"""

from __future__ import annotations

from collections.abc import Mapping

from kerascl.core.array import Array
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.core.tape import pause
from kerascl.core.traced import TracedFunction, handle

LEAST = 1 << 10  # elements: less is computed as fast as it is read
_WORK = (Kind.REDUCTION, Kind.LIBRARY)
STAY = frozenset({"while"})  # a loop might not end that is never begun


def hoisted(
    traced: TracedFunction, outside: Mapping[int, Array]
) -> tuple[TracedFunction, list[Array]]:
    """A loop's body, traced without derivatives, that reads from outside what never changes; and
    the values that it reads.

    Args:
        outside: by the id of its node, the value outside that a node of the body stands for.
    """
    values = dict(outside)
    if before := invariants(traced):
        made = TracedFunction([], [handle(node) for node in before], [], traced.start)
        with pause():
            found = made.replay([], values)
        values |= {id(node): value for node, value in zip(before, found, strict=True)}
        traced = TracedFunction(traced.arguments, traced.outputs, [], traced.start, before)
    return traced, [values.get(id(x._node), x) for x in traced.captured]


def invariants(traced: TracedFunction) -> list[Node]:
    """The nodes of a loop's body that are worth computing before it, in order.

    They depend on nothing that the loop carries, and something that changes reads them. What takes
    a product, a reduction or the like is worth it, and what is not larger than what it is computed
    from: a cast to fewer bits is, a mask or what unpacks integers is not.

    Args:
        traced: the body, whose arguments are what it carries.
    """
    sources = {id(x._node): 1 << k for k, x in enumerate(traced.captured)}
    nbytes = [x._node.nbytes for x in traced.captured]
    outputs = {id(y._node) for y in traced.outputs}
    reads = dict(sources)  # of what never changes: the captured values that it is computed from
    works: set[int] = set()  # what takes more than a few operations an element
    found: dict[int, Node] = {}
    for node in traced.nodes:
        inside = [x for x in node.inputs if id(x) in reads]
        fixed = len(inside) == len(node.inputs) and node.op.name not in STAY
        if fixed and id(node) not in outputs:
            bits = 0
            for x in inside:
                bits |= reads[id(x)]
            reads[id(node)] = bits
            if node.op.kind in _WORK or any(id(x) in works for x in inside):
                works.add(id(node))
            continue
        stack = list(inside)
        while stack:
            x = stack.pop()
            if id(x) in sources or x.op is CONST:
                continue
            if x.op.kind is Kind.VIEW:
                stack += x.inputs
            elif id(x) in works or (
                x.size >= LEAST
                and x.nbytes <= sum(n for k, n in enumerate(nbytes) if reads[id(x)] >> k & 1)
            ):
                found[id(x)] = x
    return sorted(found.values(), key=lambda node: node.serial)
