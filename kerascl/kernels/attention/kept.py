"""What dropout keeps, left by the forward pass for the gradients, which then draw no numbers.

Drawing is a good part of a kernel's work on matrix units: see `KeptProblem`.
"""

from __future__ import annotations

import dataclasses

from kerascl.kernels.attention import solvers, tiled
from kerascl.kernels.attention.problem import (
    MOST_BITS,
    AttentionProblem,
    KeptProblem,
    Tensor,
    extra_refs,
    extra_scalars,
    kept_bytes,
    kept_words,
    shared_defines,
)
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Launch, Plan, Ref, Role, Scalar
from kerascl.kernels.contract.sizes import round_up
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.contract.source import cl_source, prelude
from kerascl.kernels.selftests import asked

GROUP = 64


def serves(problem: AttentionProblem, info) -> bool:
    """Whether kernels leave it and read it, for the forward and the backward problem alike."""
    p = KeptProblem(**{f.name: getattr(problem, f.name) for f in dataclasses.fields(problem)})
    if p.dropout is None or kept_bytes(p) > MOST_BITS:
        return False
    steps = (p.length * p.heads * p.depth, p.heads * p.depth, p.depth, 1)
    grad = p.grad or Tensor(p.q.dtype, steps)
    with asked.comparing():
        forward = solvers.chosen(dataclasses.replace(p, grad=None), info)
        backward = solvers.chosen(dataclasses.replace(p, grad=grad), info)
    return _keeps(forward) and _keeps(backward)


def _keeps(solver: Solver) -> bool:
    return isinstance(solver, tiled.TiledSolver) and solver.keeps


def plan(problem: KeptProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem`: slots as `solvers.plan` has them, then that of what is kept,
    which is right also where the solver does not leave it.

    Raises:
        NotImplementedError: as `solvers.plan`.
    """
    solver = solvers.chosen(problem, info)
    made = solver.plan(problem, info, epilogue)
    if problem.grad is None and not _keeps(solver):
        return Plan([*made.launches, drawn(problem)], made.workspace)
    return made


def drawn(p: AttentionProblem) -> Launch:
    """The launch that draws what is kept and does nothing else."""
    present = sum(x is not None for x in (p.bias, p.mask))
    *_, key = extra_refs(p, "d")
    scalars = extra_scalars(p)[5 * present :]  # an offset and four strides of each
    words = kept_words(p.source)
    count = kept_bytes(p) // 4
    source = (
        prelude(p.index)
        + shared_defines(p)
        + cl_source("attention/attention_dropout.cl")
        + cl_source("attention/attention_kept.cl")
    )
    args = (
        Ref("kept"), key, Scalar("int", p.length), Scalar("int", p.source), Scalar("int", p.heads),
        Scalar("int", words), Scalar("ulong", count), *scalars,
    )  # fmt: skip
    size = round_up(count, GROUP)
    return Launch(source, "attention_kept", args, (size,), (GROUP,), role=Role.STORE)
