"""Matrix products."""

from __future__ import annotations

from kerascl.compiler.graph.operands import Operand
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import MatmulProblem
from kerascl.ops.contraction import MATMUL
from kerascl.runtime.device import DeviceInfo


def _problem(node: Node, reads: list[Operand]) -> MatmulProblem:
    a, b = reads
    *batch, m, n = node.shape
    return MatmulProblem(
        m=m,
        n=n,
        k=node.inputs[0].shape[-1],
        batch=tuple(batch),
        a_strides=a.strides,
        b_strides=b.strides,
        a_offset=a.offset,
        b_offset=b.offset,
        a=node.inputs[0].dtype,
        b=node.inputs[1].dtype,
        acc=node.dtype.accumulator,
        precision=node.attrs[0],
    )


def _plan(call: Call) -> Plan:
    problem = _problem(call.node, call.reads)
    if call.computed is not None:
        return matmul.plan_computing(problem, call.info, call.epilogue, call.computed)
    return matmul.plan(problem, call.info, call.epilogue)


def _flops(node: Node) -> int:
    return 2 * node.size * node.inputs[0].shape[-1]


def _takes_moments(node: Node, reads: list[Operand], info: DeviceInfo) -> bool:
    return matmul.takes_moments(_problem(node, reads), info)


def _computes(node: Node, reads: list[Operand], info: DeviceInfo) -> int | None:
    slot = matmul.computes(_problem(node, reads), info)
    return None if slot is None else "ab".index(slot)


def _computes_well(
    node: Node, reads: list[Operand], info: DeviceInfo, computed: Computed
) -> bool:
    return matmul.computes_well(_problem(node, reads), info, computed)


OPERATIONS = (
    LibraryOperation(
        MATMUL, _plan, strided=frozenset((0, 1)), takes_moments=_takes_moments,
        computes=_computes, computes_well=_computes_well, flops=_flops,
    ),
)  # fmt: skip
