"""Operations that hand-written kernels compute: a record each, and the one list that names them."""

from __future__ import annotations

from kerascl.compiler.graph.operands import Operand, operand
from kerascl.compiler.library import (
    attention,
    conv,
    custom,
    fft,
    matmul,
    pool,
    recurrent,
    scan,
    scatter,
    solve,
    sort,
    update,
)
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.core.op import Op

__all__ = ["Call", "LibraryOperation", "operands", "record"]

_RECORDS: dict[Op, LibraryOperation] = {
    found.op: found
    for found in (
        *matmul.OPERATIONS,
        *conv.OPERATIONS,
        *attention.OPERATIONS,
        *recurrent.OPERATIONS,
        *pool.OPERATIONS,
        *scan.OPERATIONS,
        *sort.OPERATIONS,
        *solve.OPERATIONS,
        *scatter.OPERATIONS,
        *fft.OPERATIONS,
        *update.OPERATIONS,
        *custom.OPERATIONS,
    )
}


def record(op: Op) -> LibraryOperation | None:
    """The machine side of an operation; None for a loop, which launches its body's program."""
    return _RECORDS.get(op)


def operands(node: Node) -> list[Operand]:
    """How a node's kernel reads its inputs, in order."""
    found = record(node.op)
    strided = found.strided if found else ()
    return [operand(x, k in strided) for k, x in enumerate(node.inputs)]
