"""Dot-product attention, forward and backward, without logits in memory.

The forward pass walks over blocks of keys with a running maximum and sum for each query (online
softmax: Milakov and Gimelshein, 2018; FlashAttention: Dao et al., 2022, and FlashAttention-2: Dao,
2023) and keeps one statistic of each row: log2 of the sum of 2^logit, with logits times log2(e).
The backward pass computes the probabilities again from it.  No atomics: results do not vary.

Rows that see no key at all are uniform over all keys, as in the plain formula with a large finite
negative logit for hidden keys; their queries and keys get no gradient.
"""

from __future__ import annotations

import dataclasses

from kerascl.dtypes import float32
from kerascl.kernels.attention import cpu as attention_cpu
from kerascl.kernels.attention import few as attention_few
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.tuning import database, machine
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16

SOLVERS: tuple[Solver, ...] = (
    *attention_cpu.SOLVERS, *attention_few.SOLVERS, *attention16.SOLVERS,
    *unit_attention.SOLVERS, *attention_tiled.SOLVERS,
)  # fmt: skip


LEAST_QUERIES = 8
MOST_LOGITS = 1 / 256  # of the memory; a training step keeps those of all layers
# Of one head, up to which kernels on matrix units beat the formula: those of attention_mma.cl, and
# those of attention_mma16.cl.
MATRIX_FEATURES, MATRIX_FEATURES16 = 64, 128


def preferred(problem: AttentionProblem, info) -> bool:
    """Whether these kernels serve better than the formula with logits in memory; the same for the
    forward and the backward problem.

    Few queries have small logits anyway, but their launches count on GPUs: one serves instead of
    three.  Where products run on matrix units the plain formula was up to three times as fast as
    the portable kernels: these serve for large logits.  Kernels on matrix units take 0.6 to 0.75
    times as long as the formula, with gradients (H200, 128 to 1024 queries and keys of 32 and 64
    features); at 2048 as long, but without its memory.  With dropout those of TF32 should
    take as long (their own times on an H100, added up), without its memory.
    """
    p = problem
    if not p.usable:
        return False
    if p.length < LEAST_QUERIES:
        forward = dataclasses.replace(p, grad=None)
        serves = any(solver.applies(forward, info) for solver in attention_few.SOLVERS)
        return info.kind != "cpu" and p.source > p.length and serves
    if not machine.of_facts(info).matrix_rate(p.q.dtype):
        return True
    nbytes = p.batch * p.heads * p.length * p.source * float32.itemsize
    if nbytes > info.global_mem_bytes * MOST_LOGITS:
        return True
    exact = p.q.dtype is float32 and p.precision == "highest"
    features = max(p.width, p.depth)
    if features <= MATRIX_FEATURES16 and attention16.takes(p) and attention16.available(info):
        return True
    return features <= MATRIX_FEATURES and not exact and unit_attention.available(info)


def plan(problem: AttentionProblem, info, epilogue: Epilogue) -> Plan:
    """Launches that compute `problem`.

    Slots of the forward pass: a, b, c (queries, keys, values), then the bias and the mask if there
    are any; the results go through the epilogue and, for the statistic, to "stat".  Slots of the
    backward pass: a, b, c, d (upstream gradient), e (statistic), f (sum of gradient times result
    for each row), then the bias and the mask; the queries' gradient goes through the epilogue, the
    others to "dk" and "dv".

    Raises:
        NotImplementedError: for other dtypes, or more than MOST_FEATURES features.
    """
    solver = database.choose("attention", SOLVERS, (), problem, info)
    return solver.plan(problem, info, epilogue)
