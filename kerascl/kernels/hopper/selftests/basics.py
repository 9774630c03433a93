"""Computes products and convolutions with wgmma.cl on one device, in a process of its own.

`python -m kerascl.kernels.hopper.selftests.basics <index>` exits 0 and prints OK, or fails in
whatever way the driver fails.
"""

from __future__ import annotations

import numpy as np

from kerascl import dtypes
from kerascl.dtypes import DType
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.run import enqueue
from kerascl.kernels.conv.problem import DATA_GRAD, FILTER_GRAD, FORWARD, ConvProblem
from kerascl.kernels.hopper.conv import HopperConv
from kerascl.kernels.hopper.filter_gradient import FilterGradient
from kerascl.kernels.hopper.matmul import HopperMatmul
from kerascl.kernels.hopper.register_blocked import RegisterBlockedFilterGradient
from kerascl.kernels.hopper.solver import HopperSolver
from kerascl.kernels.hopper.tiles import SHAPES
from kerascl.kernels.matmul.problem import MatmulProblem, normalise_matmul
from kerascl.runtime import device, selftest_child

POISON = 0xFF  # NaN in every float dtype


def run(
    plan: Plan, inputs: dict[str, np.ndarray], out: np.ndarray, dev: device.Device,
    **more: np.ndarray,
) -> None:  # fmt: skip
    """Run a plan on poisoned memory; `out`, and others, get what slots of these names then hold."""
    slots, outs = {}, {"out": out} | more
    for name, array in inputs.items():
        slots[name] = dev.buffers.allocate(array.nbytes)
        dev.queue.write(slots[name], array)
    sizes = {f"ws{k}": n for k, n in enumerate(plan.workspace)}
    for name, nbytes in (sizes | {name: array.nbytes for name, array in outs.items()}).items():
        slots[name] = dev.buffers.allocate(nbytes)
        dev.queue.fill(slots[name], bytes([POISON]), 0, nbytes)
    enqueue(plan, slots, dev)
    for name, array in outs.items():
        dev.queue.read(slots[name], array)


def check(name: str, got: np.ndarray, want: np.ndarray, bound: float) -> None:
    """Compare what a self-test computed, by relative norm.

    Raises:
        DeviceError: the error passes `bound`; it names the self-test.
    """
    error = np.linalg.norm(got - want) / np.linalg.norm(want)
    if not error <= bound:
        raise device.DeviceError(f"{name} is wrong: relative error {error:.2e}")


def products(dev: device.Device) -> None:
    """Products of each dtype and layout, with sizes no tile divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    m, n, k = 200, 136, 424
    cases = (
        ("float32", "high", 1e-3), ("float32", "highest", 2e-6),
        ("bfloat16", "high", 2e-5), ("float16", "high", 2e-5),
    )  # fmt: skip
    for name, precision, bound in cases:
        dtype = dtypes.as_dtype(name)
        for turn_a, turn_b in ((False, False), (True, True), (False, True)):
            a = rng.standard_normal((k, m) if turn_a else (m, k)).astype(dtype.numpy)
            b = rng.standard_normal((n, k) if turn_b else (k, n)).astype(dtype.numpy)
            problem = normalise_matmul(
                MatmulProblem(
                    m, n, k, (), (1, m) if turn_a else (k, 1), (1, k) if turn_b else (n, 1),
                    dtype, dtype, dtypes.float32, precision=precision,
                )
            )  # fmt: skip
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            want = (wide_a.T if turn_a else wide_a) @ (wide_b.T if turn_b else wide_b)
            got = np.empty((m, n), np.float32)
            plan = HopperMatmul(turns=False).plan(problem, dev.info, store_epilogue(dtypes.float32))
            run(plan, {"a": a, "b": b}, got, dev)
            check(f"a product of {name} ({precision})", got, want, bound)


def biases(
    dev: device.Device, solvers: tuple[HopperMatmul, ...] = (), dtype: DType = dtypes.bfloat16,
    bound: float = 2e-5,
) -> None:  # fmt: skip
    """Products with a bias, by tiles that keep as much of it as they can, two vectors, and one.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    m, n, k = 700, 392, 72
    problem = normalise_matmul(
        MatmulProblem(m, n, k, (), (k, 1), (n, 1), dtype, dtype, dtypes.float32, precision="high")
    )
    a, b = (rng.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (k, n)))
    bias = rng.standard_normal(n).astype(np.float32)
    want = a.astype(np.float64) @ b.astype(np.float64) + bias
    for solver in solvers or tuple(HopperMatmul(SHAPES[at]) for at in (7, 1, 0)):
        plan = solver.plan(problem, dev.info, biased(dtypes.float32, n))
        got = np.empty((m, n), np.float32)
        run(plan, {"a": a, "b": b, "bias": bias}, got, dev)
        check(f"a product with a bias ({solver.name})", got, want, bound)


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


def convolutions(dev: device.Device) -> None:
    """A convolution and its gradients, with sizes no box divides.

    Raises:
        DeviceError: of any step, or a result is wrong.
    """
    rng = np.random.default_rng()
    for dtype in (dtypes.float32, dtypes.bfloat16):
        wide = dtype is dtypes.float32
        solvers: dict[str, HopperSolver] = {
            FORWARD: HopperConv(), DATA_GRAD: HopperConv(),
            FILTER_GRAD: RegisterBlockedFilterGradient() if wide else FilterGradient(),
        }  # fmt: skip
        for kind, solver in solvers.items():
            problem, inputs, want = convolution(rng, kind, (3, 13, 13, 40, 24, 3, 1, 1, 1), dtype)
            got = np.empty(want.shape, np.float32)
            plan = solver.plan(problem, dev.info, store_epilogue(dtypes.float32))
            run(plan, inputs, got, dev)
            check(f"{kind} of {dtype.name}", got, want, 1e-3)


def convolution(
    rng: np.random.Generator, kind: str, case: tuple[int, ...], dtype: DType,
    precision: str = "high",
) -> tuple[ConvProblem, dict[str, np.ndarray], np.ndarray]:  # fmt: skip
    """A convolution or a gradient of one, random inputs, and what they give in float64.

    Args:
        case: images, height, width, channels, filters, taps a side, stride, padding, dilation.
    """
    images, height, width, c, f, taps, stride, pad, dilation = case
    reach = (taps - 1) * dilation
    out_h, out_w = ((n + 2 * pad - reach - 1) // stride + 1 for n in (height, width))
    shapes = (images, height, width, c), (taps, taps, c, f), (images, out_h, out_w, f)
    x, w, dy = (rng.standard_normal(shape).astype(dtype.numpy) for shape in shapes)
    problem = ConvProblem(
        kind, *shapes, (stride, stride), ((pad, pad), (pad, pad)), (dilation, dilation), 1, False,
        dtype, dtype, dtypes.float32, precision,
    )  # fmt: skip
    margins = ((0, 0), (pad, pad), (pad, pad), (0, 0))
    wide_x, wide_w, wide_dy = (a.astype(np.float64) for a in (x, w, dy))
    padded, back = np.pad(wide_x, margins), np.pad(np.zeros(x.shape), margins)
    want = np.zeros(problem.out_shape)
    for i in range(taps):
        for j in range(taps):
            rows = slice(i * dilation, i * dilation + (out_h - 1) * stride + 1, stride)
            columns = slice(j * dilation, j * dilation + (out_w - 1) * stride + 1, stride)
            taken = padded[:, rows, columns]
            if kind == FORWARD:
                want += taken @ wide_w[i, j]
            elif kind == DATA_GRAD:
                back[:, rows, columns] += wide_dy @ wide_w[i, j].T
            else:
                want[i, j] = np.tensordot(taken, wide_dy, ((0, 1, 2), (0, 1, 2)))
    if kind == DATA_GRAD:
        want = back[:, pad : pad + height, pad : pad + width]
    inputs = {FORWARD: (x, w), DATA_GRAD: (dy, w), FILTER_GRAD: (x, dy)}[kind]
    return problem, dict(zip("ab", inputs, strict=True)), want


if __name__ == "__main__":
    selftest_child.main(products, biases, convolutions)
