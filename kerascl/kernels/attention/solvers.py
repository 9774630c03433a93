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
import math

from kerascl.dtypes import bfloat16, float32
from kerascl.kernels.attention import cpu as attention_cpu
from kerascl.kernels.attention import few as attention_few
from kerascl.kernels.attention import tiled as attention_tiled
from kerascl.kernels.attention.problem import AttentionProblem, Tensor
from kerascl.kernels.contract.epilogue import Epilogue
from kerascl.kernels.contract.plan import Plan
from kerascl.kernels.contract.solver import Solver
from kerascl.kernels.hopper import attention as hopper_attention
from kerascl.kernels.hopper import attention_gradient as hopper_gradient
from kerascl.kernels.hopper import attention_gradient_stored as hopper_stored
from kerascl.kernels.hopper import attention_gradient_whole as hopper_whole
from kerascl.kernels.selftests import asked
from kerascl.kernels.tuning import database, machine
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, attention_fragment

SOLVERS: tuple[Solver, ...] = (
    *attention_cpu.SOLVERS, *attention_few.SOLVERS, *hopper_attention.SOLVERS,
    *hopper_gradient.SOLVERS, *hopper_whole.SOLVERS, *hopper_stored.SOLVERS,
    *attention16.SOLVERS, *unit_attention.SOLVERS, *attention_fragment.SOLVERS,
    *attention_tiled.SOLVERS,
)  # fmt: skip


LEAST_QUERIES = 8
MOST_LOGITS = 1 / 256  # of the memory; a training step keeps those of all layers
# Of one head, up to which kernels on matrix units beat the formula: those with tiles of
# TF32, and those of 16 bits.
MATRIX_FEATURES, MATRIX_FEATURES16 = 64, 128
# Of the formula with its gradients: launches, how often a logit is read or written, and the share
# of the matrix units' rate that its products are taken to reach.
FORMULA_LAUNCHES, FORMULA_MOVES, FORMULA_SHARE = 8, 12, 0.25


def preferred(problem: AttentionProblem, info) -> bool:
    """Whether these kernels serve better than the formula with logits in memory; the same for the
    forward and the backward problem.

    Few queries have small logits anyway, but their launches count on GPUs: one serves instead of
    three.  Where products run on matrix units the plain formula was up to three times as fast as
    the portable kernels: these serve for large logits.  Kernels on matrix units take 0.6 to 0.75
    times as long as the formula, with gradients (H200, 128 to 1024 queries and keys of 32 and 64
    features); at 2048 as long, but without its memory.  With dropout those of TF32 should
    take as long (their own times on an H100, added up), without its memory.  On AMD's and Intel's
    units, where nobody measured, what is counted decides.
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
    # Whichever solver is chosen then relies on its self-test.
    with asked.comparing():
        short = features <= MATRIX_FEATURES16 and attention16.takes(p)
        if short and all(attention16.available(info, x) for x in _ways(p)):
            return True
        if features <= MATRIX_FEATURES and not exact:
            if all(unit_attention.available(info, x) for x in _ways(p)):
                return True
        return _beats_formula(p, info)


def _ways(p: AttentionProblem) -> tuple[AttentionProblem, AttentionProblem]:
    """The forward and the backward problem of either."""
    steps = (p.length * p.heads * p.depth, p.heads * p.depth, p.depth, 1)
    grad = p.grad or Tensor(p.q.dtype, steps)
    return dataclasses.replace(p, grad=None), dataclasses.replace(p, grad=grad)


def _beats_formula(p: AttentionProblem, info) -> bool:
    """Whether attention_fragment.cl is counted to take less time than the formula, both with
    gradients."""
    time = 0.0
    for problem in _ways(p):
        found = [s for s in attention_fragment.SOLVERS if s.applies(problem, info)]
        time += min((s.cost(problem, info) for s in found), default=math.inf)
    if math.isinf(time):
        return False
    rates, logits = machine.of(info), p.batch * p.heads * p.length * p.source
    products = 3 * logits * (p.width + p.depth)
    rate = FORMULA_SHARE * (rates.matrix_rate(p.q.dtype) or rates.matrix_rate(bfloat16))
    moving = rates.moving(FORMULA_MOVES * logits * p.dtype.itemsize)
    return time < products / rate + moving + FORMULA_LAUNCHES * rates.launch


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
    return chosen(problem, info).plan(problem, info, epilogue)


def chosen(problem: AttentionProblem, info) -> Solver:
    """The solver that `plan` takes.

    Raises:
        NotImplementedError: as `plan`.
    """
    return database.choose("attention", SOLVERS, (), problem, info)
