"""Computes products with wgmma_pingpong.cl: a self-test for that alone.

`python -m kerascl.kernels.hopper.selftests.pingpong <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper import pingpong
from kerascl.kernels.hopper.selftests.basics import biases, check, run
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.runtime import device, selftest_child

TIMES = 3  # a turn taken too early may show now and then only
BOUNDS = {"bfloat16": 2e-5, "float16": 2e-5, "float32": 1e-3}
CASES = (  # batch, m, n, k, dtype
    (1, 200, 136, 424, "bfloat16"),  # one tile a work-group, so that one team has none
    (1, 12000, 1000, 64, "bfloat16"),  # five or six tiles each, of one stage
    (1, 5100, 1000, 72, "float32"),  # two or three
    (1, 6000, 1031, 130, "float16"),  # rows of no whole vectors
    (1, 3000, 2000, 1000, "bfloat16"),  # more stages a tile than twice those of the ring
    (3, 2000, 1000, 600, "float32"),
)
COMBINED = 5100, 1000, 136  # m, n, k; two or three tiles a work-group


def products(dev: device.Device) -> None:
    """Products of few and of many tiles and stages; the epilogue adds, squares, and stores both.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    for batch, m, n, k, name in CASES:
        dtype = dtypes.as_dtype(name)
        shapes = (batch, m, k), (batch, k, n)
        a, b = (rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes)
        more = rng.standard_normal((batch, m, n), np.float32)
        problem = normalise_matmul(
            MatmulProblem(
                m, n, k, (batch,), (m * k, k, 1), (k * n, n, 1), dtype, dtype, dtypes.float32,
                precision="high",
            )
        )  # fmt: skip
        want = a.astype(np.float64) @ b.astype(np.float64) + more
        got, out = np.empty(want.shape, np.float32), np.empty(want.shape, np.float32)
        for tile in pingpong.SHAPES:
            plan = hopper_matmul.HopperMatmul(tile).plan(problem, dev.info, _adds_and_squares())
            for _ in range(TIMES):
                run(plan, {"a": a, "b": b, "more": more}, out, dev, total=got)
                what = f"a product of teams ({tile.name}, {name}, {m} x {n} x {k})"
                check(what, got, want, BOUNDS[name])
                check(f"the epilogue of {what}", out, want * want, 4 * BOUNDS[name])


def with_a_bias(dev: device.Device) -> None:
    """Products whose bias is read before them.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    biases(dev, tuple(map(hopper_matmul.HopperMatmul, pingpong.SHAPES)))


def with_operands(dev: device.Device) -> None:
    """Products whose epilogues have operands of both lengths brought, for vectors of both lengths.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    m, n, k = COMBINED
    float32, bfloat16 = dtypes.float32, dtypes.bfloat16
    a, b, gate = (
        rng.standard_normal(shape).astype(bfloat16.numpy) for shape in ((m, k), (k, n), (m, n))
    )
    more = rng.standard_normal((m, n), np.float32)
    problem = normalise_matmul(
        MatmulProblem(m, n, k, (), (k, 1), (n, 1), bfloat16, bfloat16, float32, precision="high")
    )
    want = (a.astype(np.float64) @ b.astype(np.float64) + more) * gate.astype(np.float64)
    inputs = {"a": a, "b": b, "more": more, "gate": gate}
    for tile in pingpong.SHAPES:
        for dtype, bound in ((float32, 2e-5), (bfloat16, 4e-3)):
            plan = hopper_matmul.HopperMatmul(tile).plan(problem, dev.info, _adds_and_gates(dtype))
            for _ in range(TIMES):
                out = np.empty((m, n), dtype.numpy)
                run(plan, inputs, out, dev)
                what = f"a product of teams with operands ({tile.name}, {dtype.name})"
                check(what, out.astype(np.float64), want, bound)


def _adds_and_gates(out: DType) -> Epilogue:
    """Adds "more" and stores that times "gate"."""
    float32, bfloat16 = dtypes.float32, dtypes.bfloat16
    compute = "const float value = (acc + more_) * gate_;"
    return Epilogue(
        f", __global {out.storage}* restrict out, __global const float* restrict more, "
        f"__global const {bfloat16.storage}* restrict gate",
        (Ref("out"), Ref("more"), Ref("gate")),
        f"const float more_ = more[i], gate_ = {bfloat16.load.format(p='gate', i='i')}; "
        f"{compute} {out.store.format(p='out', i='i', v='value')};",
        loads=(VectorLoad("more", float32, "more_"), VectorLoad("gate", bfloat16, "gate_")),
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


if __name__ == "__main__":
    selftest_child.main(products, with_a_bias, with_operands)
