"""Matrix products."""

from __future__ import annotations

from kerascl.compiler.graph.operands import Operand, operand
from kerascl.compiler.library.operation import Call, LibraryOperation
from kerascl.core.node import Node
from kerascl.kernels.contract.computed import Computed
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.matmul import dense, sums
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import (
    DenseGradProblem,
    MatmulProblem,
    SumProblem,
    normalise_matmul,
)
from kerascl.ops.contraction import DENSE_GRAD, MATMUL, MATMUL_SUM
from kerascl.runtime.device import DeviceInfo


def _problem(
    node: Node, reads: list[Operand], of: type[MatmulProblem] = MatmulProblem
) -> MatmulProblem:
    a, b = reads
    *batch, m, n = node.shape
    return of(
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


def dense_problem(node: Node, reads: list[Operand]) -> DenseGradProblem:
    """What a node of `DENSE_GRAD` computes."""
    found = normalise_matmul(_problem(node, reads, DenseGradProblem))
    assert isinstance(found, DenseGradProblem)
    return found


def _plan_dense(call: Call) -> Plan:
    return dense.plan(dense_problem(call.node, call.reads), call.info, call.epilogue)


def _dense_in_one(node: Node, info: DeviceInfo) -> bool:
    return dense.in_one(dense_problem(node, [operand(x, True) for x in node.inputs]), info)


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


def sum_problem(node: Node) -> SumProblem:
    """What a node of `MATMUL_SUM` computes from inputs that lie contiguous."""
    a, b = node.inputs[:2]
    m, n = node.shape
    k = a.shape[-1]
    return SumProblem(
        m=m,
        n=n,
        k=k,
        batch=(1, 1, 1),
        a_strides=(0, 0, 0, k, 1),
        b_strides=(0, 0, 0, 1, k),
        a=a.dtype,
        b=b.dtype,
        acc=node.dtype.accumulator,
        precision=node.attrs[0],
        terms=len(node.inputs) // 2,
    )


def _plan_sum(call: Call) -> Plan:
    return sums.plan(sum_problem(call.node), call.info, call.epilogue)


def _flops_of_sum(node: Node) -> int:
    return len(node.inputs) // 2 * _flops(node)


OPERATIONS = (
    LibraryOperation(
        DENSE_GRAD, _plan_dense, strided=frozenset((0, 1)), flops=_flops,
        outputs=lambda node: ("out", "sums"), spare_bytes=lambda node: 8 * node.size,
        preferred=_dense_in_one,
    ),
    LibraryOperation(
        MATMUL, _plan, strided=frozenset((0, 1)), takes_moments=_takes_moments,
        computes=_computes, computes_well=_computes_well, flops=_flops,
    ),
    LibraryOperation(
        MATMUL_SUM, _plan_sum, flops=_flops_of_sum,
        preferred=lambda node, info: sums.in_one(sum_problem(node), info),
    ),
)  # fmt: skip
