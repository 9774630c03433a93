"""What epilogues of teams' products read, brought by TMA through the ring; the hardware emulated."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper import brought, pingpong, tiles
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.ptx import sm_90a
from tests.kernels import emulator, ptx, test_wgmma
from tests.kernels.harness import poisoned, random_array
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import altered, found_in, product

(TILE,) = pingpong.SHAPES
FLOAT, HALF, BFLOAT = dtypes.float32, dtypes.float16, dtypes.bfloat16


def reading(out, *more):
    """(acc - more0) * (1 + more1 * acc) ... of operands of these dtypes: their order is seen."""
    names = [f"more{k}" for k in range(len(more))]
    value = "acc"
    for k, name in enumerate(names):
        value = f"({value} - {name}_)" if k % 2 == 0 else f"({value} * (1.0f + {name}_))"
    compute = f"const float s_ = {value};"
    reads = "".join(
        f"const float {n}_ = {d.load.format(p=n, i='i')}; " for n, d in zip(names, more, strict=True)
    )
    return Epilogue(
        f", __global {out.storage}* restrict out"
        + "".join(f", __global const {d.storage}* {n}" for n, d in zip(names, more, strict=True)),
        (Ref("out"), *map(Ref, names)),
        f"{reads}{compute} {out.store.format(p='out', i='i', v='s_')};",
        loads=tuple(VectorLoad(n, d, f"{n}_") for n, d in zip(names, more, strict=True)),
        compute=compute,
        stores=(VectorStore("out", out, "s_"),),
    )


def expected(product_, *more):
    """The same in float64."""
    for k, x in enumerate(more):
        x = x.astype(np.float64)
        product_ = product_ - x if k % 2 == 0 else product_ * (1 + x)
    return product_


def planned(rng, sizes, dtype, out, more, cpu_info):
    """(plan, inputs, reference) of a product whose epilogue has all of `more` brought."""
    p, (a, b), want = product(rng, sizes, dtype)
    shape = want(a, b).shape
    arrays = [random_array(rng, shape, d) for d in more]
    plan = hopper_matmul.HopperMatmul(TILE).plan(p, cpu_info, reading(out, *more))
    if dtype is FLOAT:
        want = want(tf32(a), tf32(b))
    else:
        want = want(a, b)
    inputs = {"a": a, "b": b} | {f"more{k}": x for k, x in enumerate(arrays)}
    return plan, inputs, expected(want, *arrays)


def check(plan, inputs, want, out, cpu_dev):
    got = emulator.run_plan(plan, inputs, poisoned(want.shape, out), cpu_dev)
    error = test_wgmma.relative(got, want)
    bound = {FLOAT: 2e-6, BFLOAT: 4e-3, HALF: 6e-4}[out]
    assert error < bound, f"relative error {error:.2e}"


SIZES = {  # m, n, k, batch of a, batch of b; two work-groups
    "one tile": (70, 40, 136, (), ()),
    "two each": (256, 256, 64, (), ()),
    "three and two": (600, 88, 200, (), ()),
    "many of one stage": (300, 536, 64, (), ()),
    "as many stages as the ring": (300, 144, 448, (), ()),
    "more stages than twice the ring": (300, 136, 1000, (), ()),
    "batched": (150, 40, 136, (2, 3), (2, 1)),
}
KINDS = [
    (FLOAT, FLOAT, (FLOAT,)), (BFLOAT, BFLOAT, (BFLOAT,)), (BFLOAT, FLOAT, (BFLOAT,)),
    (BFLOAT, BFLOAT, (FLOAT,)), (HALF, HALF, (HALF, HALF)), (FLOAT, FLOAT, (FLOAT, FLOAT)),
    (BFLOAT, BFLOAT, (BFLOAT, FLOAT)), (FLOAT, FLOAT, (FLOAT, BFLOAT)),
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("dtype, out, more", KINDS, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_what_is_read_is_brought(cpu_dev, cpu_info, name, dtype, out, more, rng):
    plan, inputs, want = planned(rng, SIZES[name], dtype, out, more, cpu_info)
    source = plan.launches[-1].source
    assert f"#define BROUGHT {sum(d.itemsize // 2 for d in more)}\n" in source
    assert "#define READS 0\n" in source
    check(plan, inputs, want, out, cpu_dev)
