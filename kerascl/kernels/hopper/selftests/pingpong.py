"""Products with wgmma_pingpong.cl: a self-test for that alone."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import pingpong
from kerascl.kernels.hopper.selftests.products import matmul, with_a_bias
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

TIMES = 3  # a turn taken too early may show now and then only
BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
PARTS = tuple(BOUNDS)
CASES = (  # batch, m, n, k
    (1, 200, 136, 424),  # one tile a work-group, so that one team has none
    (1, 12000, 1000, 64),  # five or six tiles each, of one stage or two
    (1, 6000, 1031, 130),  # rows of no whole vectors
    (1, 3000, 2000, 1000),  # more stages a tile than twice those of the ring
    (3, 2000, 1000, 600),
)
OPERANDS = 5100, 1000, 136  # m, n, k; two or three tiles a work-group


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Products of few and of many tiles and stages, whose epilogue adds, squares, and stores both;
    products whose bias is read before them, or whose operands of both lengths are brought."""
    dtype = dtypes.as_dtype(of)
    for batch, m, n, k in CASES:
        problem = normalise_matmul(
            MatmulProblem(
                m, n, k, (batch,), (m * k, k, 1), (k * n, n, 1), dtype, dtype, dtypes.float32,
                precision="high",
            )
        )  # fmt: skip
        for tile in pingpong.SHAPES:
            plan = hopper_matmul.HopperMatmul(tile).plan(problem, info, _adds_and_squares())
            what = f"a product of teams ({tile.name}, {of}, {m} x {n} x {k})"
            yield Trial(plan, functools.partial(_data, what, batch, m, n, k, dtype), TIMES)
    solvers = tuple(map(hopper_matmul.HopperMatmul, pingpong.SHAPES))
    problem = matmul(*OPERANDS, dtype)
    outs = dict.fromkeys((dtypes.float32, dtype))
    for solver in solvers:
        yield with_a_bias(info, solver, dtype, BOUNDS[of], times=TIMES)
        for out in outs:
            plan = solver.plan(problem, info, _adds_and_gates(out, dtype))
            what = f"a product of teams with operands ({solver.name}, {out.name})"
            bound = BOUNDS[of] if out is dtypes.float32 else 4e-3
            data = functools.partial(_with_operands, what, dtype, out, bound)
            yield Trial(plan, data, TIMES)


def _data(what: str, batch: int, m: int, n: int, k: int, dtype: DType) -> Data:
    rng = np.random.default_rng()
    a = rng.standard_normal((batch, m, k), np.float32).astype(dtype.numpy)
    b = rng.standard_normal((batch, k, n), np.float32).astype(dtype.numpy)
    more = rng.standard_normal((batch, m, n), np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64) + more
    total, out = np.empty(want.shape, np.float32), np.empty(want.shape, np.float32)
    bound = BOUNDS[dtype.name]

    def verdict() -> None:
        check(what, total, want, bound)
        check(f"the epilogue of {what}", out, want * want, 4 * bound)

    return Data({"a": a, "b": b, "more": more}, {"out": out, "total": total}, verdict)


def _with_operands(what: str, dtype: DType, to: DType, bound: float) -> Data:
    rng = np.random.default_rng()
    m, n, k = OPERANDS
    a, b, gate = (
        rng.standard_normal(shape, np.float32).astype(dtype.numpy)
        for shape in ((m, k), (k, n), (m, n))
    )
    more = rng.standard_normal((m, n), np.float32)
    want = (a.astype(np.float64) @ b.astype(np.float64) + more) * gate.astype(np.float64)
    out = np.empty((m, n), to.numpy)
    inputs = {"a": a, "b": b, "more": more, "gate": gate}
    return Data(inputs, {"out": out}, lambda: check(what, out.astype(np.float64), want, bound))


def _adds_and_gates(out: DType, gate: DType) -> Epilogue:
    """Adds "more" and stores that times "gate"."""
    float32 = dtypes.float32
    compute = "const float value = (acc + more_) * gate_;"
    return Epilogue(
        f", __global {out.storage}* restrict out, __global const float* restrict more, "
        f"__global const {gate.storage}* restrict gate",
        (Ref("out"), Ref("more"), Ref("gate")),
        f"const float more_ = more[i], gate_ = {gate.load.format(p='gate', i='i')}; "
        f"{compute} {out.store.format(p='out', i='i', v='value')};",
        loads=(VectorLoad("more", float32, "more_"), VectorLoad("gate", gate, "gate_")),
        compute=compute,
        stores=(VectorStore("out", out, "value"),),
    )


def _adds_and_squares() -> Epilogue:
    """Adds "more", stores it in "total" and its square in "out"."""
    compute = "const float total_ = acc + more_, square_ = total_ * total_;"
    return Epilogue(
        ", __global float* restrict out, __global float* restrict total, "
        "__global const float* restrict more",
        (Ref("out"), Ref("total"), Ref("more")),
        f"const float more_ = more[i]; {compute} total[i] = total_; out[i] = square_;",
        loads=(VectorLoad("more", dtypes.float32, "more_"),),
        compute=compute,
        stores=(
            VectorStore("total", dtypes.float32, "total_"),
            VectorStore("out", dtypes.float32, "square_"),
        ),
    )
