"""Transpositions on CPUs: what only moves elements, across the order in which it stores.

Neighbours that gather from lines of memory far apart read each element for itself.  Here a
work-item reads squares of whole vectors and stores them with rows and columns exchanged, which the
compiler does between registers; it walks along the rows that it reads, so few of them are open.
"""

from __future__ import annotations

import math

from kerascl.compiler.generate import space
from kerascl.compiler.generate.builder import Builder, Generated
from kerascl.compiler.graph import views
from kerascl.compiler.graph.symbolic import Expr, Var, linear, unravel, variable
from kerascl.core.node import Node
from kerascl.core.op import Kind
from kerascl.kernels.contract.epilogue import WORDS
from kerascl.kernels.contract.sizes import ceil_div

SIDE = 8  # elements of a square's side
RUN = 512  # elements that a work-item reads along a row


def kernel(build: Builder, dims: tuple[int, ...], rows: int) -> Generated | None:
    """The kernel of a map that stores along the last dimension what it reads along dimension
    `rows`; None where it does more than move elements."""
    names = space.names(len(dims))
    coords = tuple(variable(name, n) for name, n in zip(names, dims, strict=True))
    target = linear(coords, dims)
    found = _moved(build, target)
    if found is None:
        return None
    node, source = found
    (result,) = build.cluster.members
    steps = {a.name: k for a, k in source.terms if isinstance(a, Var)}
    plain = len(steps) == len(source.terms)
    ctype = WORDS.get(result.dtype.itemsize)
    same = node.dtype.storage == result.dtype.storage
    if not plain or not same or ctype is None or steps.get(names[rows]) != 1:
        return None
    writer = build.writer(wide=True)
    index, number, last = writer.index_type, writer.number, len(dims) - 1
    rest = [d for d in range(last) if d != rows]
    of, to = names[rows], names[last]  # read along, stored along
    read, stored = writer.buffer(node), writer.buffer(result)
    decoded = space.decode(
        "get_group_id(2)", tuple(dims[d] for d in rest), [names[d] for d in rest], number, index
    )
    from_text, to_text = writer.index(source), writer.index(target)
    lanes = range(SIDE)
    vectors = ", ".join(f"v{k} = vload{SIDE}(0, from + {k} * step)" for k in lanes)
    columns = [", ".join(f"v{j}.s{k}" for j in lanes) for k in lanes]
    squares = [
        f"vstore{SIDE}(({ctype}{SIDE})({column}), 0, at + {k} * row);"
        for k, column in enumerate(columns)
    ]
    step, row = number(steps.get(to, 0)), number(math.prod(dims[rows + 1 :]))
    lines = [
        *decoded,
        f"const {index} first = get_group_id(0) * {RUN}, side = get_group_id(1) * {SIDE};",
        f"const {index} end = min(({index})(first + {RUN}), ({index}){number(dims[rows])});",
        f"const {index} step = {step}, row = {row};",
        f"const __global {ctype}* source = (const __global {ctype}*){read};",
        f"__global {ctype}* result = (__global {ctype}*){stored};",
        f"const {index} sides = min(({index}){SIDE}, ({index}){number(dims[last])} - side);",
        f"{index} {of} = first;",
        f"const {index} {to} = side;",
        f"if (sides == {SIDE})",
        f"  for (; {of} + {SIDE} <= end; {of} += {SIDE}) {{",
        f"    const __global {ctype}* from = source + {from_text};",
        f"    __global {ctype}* at = result + {to_text};",
        f"    const {ctype}{SIDE} {vectors};",
        *(f"    {line}" for line in squares),
        "  }",
        f"for (; {of} < end; ++{of})",
        "  for (int k = 0; k < sides; ++k)",
        f"    result[{to_text} + k] = source[{from_text} + k * step];",
    ]
    size = (ceil_div(dims[rows], RUN), ceil_div(dims[last], SIDE), math.prod(dims[d] for d in rest))
    body = "".join(f"  {line}\n" for line in lines)
    return Generated(writer.source(build.name, body), writer.args, size, (1, 1, 1))


def _moved(build: Builder, target: Expr) -> tuple[Node, Expr] | None:
    """What lies in memory, and which element of it is the map's one result at `target`."""
    if len(build.cluster.members) != 1 or build.cluster.streamed:
        return None
    (node,) = build.cluster.members
    coords = unravel(target, node.shape)
    while id(node) not in build.outside:
        if node.op.kind is not Kind.VIEW or len(node.inputs) != 1:
            return None
        coords, guards = views.source(node, coords)
        node = node.inputs[0]
        if guards:
            return None
    return node, linear(coords, node.shape)
