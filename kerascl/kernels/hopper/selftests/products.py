"""Products with wgmma.cl: the self-test of everything that multiplies as it does."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

M, N, K = 200, 136, 424  # sizes no tile divides
# dtype, precision, whether each operand is transposed, bound
CASES = (
    ("float32", "high", False, False, 1e-3), ("float32", "high", True, True, 1e-3),
    ("float32", "high", False, True, 1e-3), ("float32", "highest", False, False, 2e-6),
    ("float32", "highest", True, True, 2e-6), ("bfloat16", "high", False, False, 2e-5),
    ("bfloat16", "high", True, True, 2e-5), ("bfloat16", "high", False, True, 2e-5),
    ("float16", "high", True, False, 2e-5),
)  # fmt: skip


def trials(info: DeviceInfo) -> Iterator[Trial]:
    """Products of each dtype and layout; with a bias, by tiles that keep as much of it as they can,
    two vectors, and one."""
    for name, precision, turn_a, turn_b, bound in CASES:
        dtype = dtypes.as_dtype(name)
        problem = matmul(M, N, K, dtype, turn_a, turn_b, precision)
        plan = HopperMatmul(turns=False).plan(problem, info, store_epilogue(dtypes.float32))
        what = f"a product of {name} ({precision})"
        yield Trial(plan, functools.partial(product, what, M, N, K, dtype, turn_a, turn_b, bound))
    solvers = tuple(HopperMatmul(SHAPES[at]) for at in (7, 1, 0))
    yield from with_a_bias(info, solvers, dtypes.bfloat16, 2e-5)


def matmul(
    m: int, n: int, k: int, dtype: DType, turn_a: bool = False, turn_b: bool = False,
    precision: str = "high",
) -> MatmulProblem:  # fmt: skip
    """A product of dense operands, each with rows or with columns one behind the other."""
    return normalise_matmul(
        MatmulProblem(
            m, n, k, (), (1, m) if turn_a else (k, 1), (1, k) if turn_b else (n, 1), dtype, dtype,
            dtypes.float32, precision=precision,
        )
    )  # fmt: skip


def product(
    what: str, m: int, n: int, k: int, dtype: DType, turn_a: bool, turn_b: bool, bound: float,
    scale: float = 1.0,
) -> Data:  # fmt: skip
    """Random operands of `matmul`, the first of them scaled, and their product."""
    rng = np.random.default_rng()
    a = (rng.standard_normal((k, m) if turn_a else (m, k)) * scale).astype(dtype.numpy)
    b = rng.standard_normal((n, k) if turn_b else (k, n)).astype(dtype.numpy)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want = (wide_a.T if turn_a else wide_a) @ (wide_b.T if turn_b else wide_b)
    got = np.empty((m, n), np.float32)
    return Data({"a": a, "b": b}, {"out": got}, lambda: check(what, got, want, bound))


def with_a_bias(
    info: DeviceInfo, solvers: tuple[HopperMatmul, ...], dtype: DType, bound: float
) -> Iterator[Trial]:
    """Products with a bias, by each of some solvers."""
    m, n, k = 700, 392, 72
    for solver in solvers:
        plan = solver.plan(matmul(m, n, k, dtype), info, biased(dtypes.float32, n))
        what = f"a product with a bias ({solver.name})"
        yield Trial(plan, functools.partial(_biased_product, what, m, n, k, dtype, bound))


def _biased_product(what: str, m: int, n: int, k: int, dtype: DType, bound: float) -> Data:
    rng = np.random.default_rng()
    a, b = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))
    bias = rng.standard_normal(n).astype(np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64) + bias
    got = np.empty((m, n), np.float32)
    inputs = {"a": a, "b": b, "bias": bias}
    return Data(inputs, {"out": got}, lambda: check(what, got, want, bound))


def biased(out: DType, period: int) -> Epilogue:
    """Adds slot "bias", of so many float32, again and again."""
    compute = "const float value = acc + bias_;"
    return Epilogue(
        f", __global {out.storage}* restrict out, __global const float* restrict bias",
        (Ref("out"), Ref("bias")),
        f"const float bias_ = bias[i % {period}]; {compute} "
        f"{out.store.format(p='out', i='i', v='value')};",
        loads=(VectorLoad("bias", dtypes.float32, "bias_", "column", period),),
        compute=compute,
        stores=(VectorStore("out", out, "value"),),
        decode=f"const int column = first % {period};",
    )
