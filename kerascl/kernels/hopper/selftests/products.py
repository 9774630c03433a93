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
from kerascl.kernels.hopper.tiles import PROMOTED, SHAPES
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.kernels.selftests import part
from kerascl.kernels.selftests.trial import Data, Trial, check
from kerascl.runtime.device import DeviceInfo

M, N, K = 200, 136, 424  # sizes no tile divides
BIASED = 700, 392, 424  # of products with a bias
PARTS = ("float32", "float32 highest", "bfloat16", "float16")
BOUNDS = {"float32": 1e-3, "float32 highest": 2e-6, "bfloat16": 2e-5, "float16": 2e-5}
TURNS = ((False, False), (True, True), (False, True))  # whether each operand is transposed


def trials(info: DeviceInfo, of: str) -> Iterator[Trial]:
    """Products of a dtype in each layout, by the tile that suits, and with a bias, by tiles that
    keep as much of it as they can, two vectors, and one."""
    dtype, precision, _ = part.parsed(of)
    problem = matmul(M, N, K, dtype, True, False, precision)
    plan = HopperMatmul(turns=False).plan(problem, info, store_epilogue(dtypes.float32))
    what = f"a product of {of}"
    yield Trial(plan, functools.partial(product, what, M, N, K, dtype, True, False, BOUNDS[of]))
    found = PROMOTED[:3] if precision == "highest" else tuple(SHAPES[at] for at in (7, 1, 0))
    for tile, turns in zip(found, TURNS, strict=True):
        yield with_a_bias(
            info, HopperMatmul(tile), dtype, BOUNDS[of], BIASED, turns, precision
        )


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
    info: DeviceInfo, solver: HopperMatmul, dtype: DType, bound: float,
    sizes: tuple[int, int, int] = (700, 392, 72), turns: tuple[bool, bool] = (False, False),
    precision: str = "high", times: int = 1,
) -> Trial:  # fmt: skip
    """A product with a bias by a solver.

    Args:
        sizes: rows, columns and depth.
        turns: whether each operand is transposed.
        times: that it runs.
    """
    problem = matmul(*sizes, dtype, *turns, precision)
    plan = solver.plan(problem, info, biased(dtypes.float32, sizes[1]))
    what = f"a product with a bias ({solver.name})"
    data = functools.partial(_biased_product, what, *sizes, dtype, *turns, bound)
    return Trial(plan, data, times)


def _biased_product(
    what: str, m: int, n: int, k: int, dtype: DType, turn_a: bool, turn_b: bool, bound: float
) -> Data:
    rng = np.random.default_rng()
    a = rng.standard_normal((k, m) if turn_a else (m, k)).astype(dtype.numpy)
    b = rng.standard_normal((n, k) if turn_b else (k, n)).astype(dtype.numpy)
    bias = rng.standard_normal(n).astype(np.float32)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    want = (wide_a.T if turn_a else wide_a) @ (wide_b.T if turn_b else wide_b) + bias
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
