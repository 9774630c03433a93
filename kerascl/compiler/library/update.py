"""Boxes of arrays replaced: no kernel of their own, but array code, or a store in place."""

from __future__ import annotations

from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.kernels.contract.plan import Plan
from kerascl.ops.updates import UPDATE, formula


def _plan(call: Call) -> Plan:
    raise NotImplementedError("update: its formula serves everywhere")


OPERATIONS = (
    LibraryOperation(
        UPDATE, _plan,
        formula=lambda *values: (formula(*values),), preferred=lambda node, info: False,
    ),
)  # fmt: skip
