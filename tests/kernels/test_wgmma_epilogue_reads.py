"""What epilogues of warpgroup products read, asked for before these; the hardware emulated."""

import contextlib
import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore
from kerascl.kernels.contract.plan import Ref, rename_slots
from kerascl.kernels.hopper import brought, channel_major, pingpong, tiles, transposed
from kerascl.kernels.hopper import matmul as hopper_matmul
from kerascl.kernels.hopper.selftests import transposed as selftest
from kerascl.kernels.hopper.selftests.products import biased
from kerascl.kernels.selftests import trial
from kerascl.runtime.device import DeviceError
from tests.kernels import emulator, test_wgmma, test_wgmma_channel_major
from tests.kernels.harness import poisoned, random_array
from tests.kernels.test_wgmma_channel_major import tf32
from tests.kernels.test_wgmma_emulated import altered, product

FLOAT = dtypes.float32
(TEAMS,) = pingpong.SHAPES
NARROW = next(s for s in tiles.SHAPES if s.bn == 32)
TRANSPOSED = min(transposed.SHAPES, key=lambda s: s.bm * s.bn * s.stages)
LINE = 32  # elements of float32 in a line of the cache


def replaced(plan, old, new):
    """The plan with other text in its last launch, where the old one stands."""
    assert old in plan.launches[-1].source
    return altered(plan, lambda x: dataclasses.replace(x, source=x.source.replace(old, new)))


@pytest.mark.parametrize("columns", [264, 140])
@pytest.mark.parametrize("out", [FLOAT, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("tile", [TRANSPOSED, transposed.SHAPES[0]], ids=lambda t: t.name)
def test_a_bias_of_transposed_products(cpu_dev, cpu_info, tile, out, columns, rng):
    """Read once for a tile, in vectors of two widths; other columns of it would be seen."""
    p, (a, b), want = product(rng, (300, columns, 72, (), ()), FLOAT)
    bias = rng.standard_normal(columns).astype(np.float32)
    plan = transposed.TransposedMatmul(tile, 1).plan(p, cpu_info, biased(out, columns))
    assert "#define KEPT 1\n" in plan.launches[-1].source
    inputs, empty = {"a": a, "b": b, "bias": bias}, poisoned((300, columns), out)
    expected = want(tf32(a), tf32(b)) + bias
    bound = 2e-6 if out is FLOAT else 4e-3
    got = emulator.run_plan(plan, inputs, empty, cpu_dev)
    assert test_wgmma.relative(got, expected) < bound
    wrong = replaced(plan, "if (n < N) READ_COLUMNS", "{ const int n = n0; READ_COLUMNS }")
    got = emulator.run_plan(wrong, inputs, empty, cpu_dev)
    assert test_wgmma.relative(got, expected) > 0.1


@pytest.mark.parametrize("fault", [None, ("if (n < N) READ_COLUMNS", "if (n < 64) READ_COLUMNS")])
def test_the_self_test_has_a_bias(cpu_dev, cpu_info, monkeypatch, fault):
    def compute(plan, inputs, outs, dev):
        if fault:
            plan = replaced(plan, *fault)
        out = outs["out"]
        out[...] = emulator.run_plan(plan, inputs, poisoned(out.shape, FLOAT), cpu_dev)

    monkeypatch.setattr(trial, "compute", compute)
    part = transposed.TransposedMatmul.proof(TRANSPOSED)
    monkeypatch.setattr(selftest, "CASES", ())  # but for those with a bias
    monkeypatch.setattr(selftest, "BIASED", ((333, 392, 72),))
    with pytest.raises(DeviceError, match="with a bias") if fault else contextlib.nullcontext():
        trial.run(cpu_dev, selftest.trials(cpu_info, part))


def adding_marked():
    """Adds "more"; slot "seen" is for who alters the text."""
    return Epilogue(
        ", __global float* out, __global const float* more, __global float* seen",
        (Ref("out"), Ref("more"), Ref("seen")),
        "out[i] = acc + more[i];",
        loads=(VectorLoad("more", FLOAT, "more_"),),
        compute="const float sum_ = acc + more_;",
        stores=(VectorStore("out", FLOAT, "sum_"),),
    )


SOLVERS = {
    "teams": hopper_matmul.HopperMatmul(TEAMS),
    "all columns": hopper_matmul.HopperMatmul(tiles.SHAPES[1], 1),
    "narrow": hopper_matmul.HopperMatmul(NARROW, 1),
    "transposed": transposed.TransposedMatmul(TRANSPOSED, 1),
    "transposed, wide": transposed.TransposedMatmul(transposed.SHAPES[0], 1),
}


@pytest.mark.parametrize("name", SOLVERS)
def test_all_that_is_read_is_brought_near(cpu_dev, cpu_info, name, rng, monkeypatch):
    """Every line once or more, and nothing beyond; with it the sum is right, too."""
    monkeypatch.setattr(brought, "bring", lambda epilogue, *_: epilogue)
    m, n = 300, 416
    p, (a, b), want = product(rng, (m, n, 72, (2,), (2,)), FLOAT)
    plan = SOLVERS[name].plan(p, cpu_info, adding_marked())
    more = random_array(rng, (2, m, n), FLOAT)
    lines = 2 * m * n // LINE
    seen = np.zeros(lines + LINE, np.float32)
    inputs, empty = {"a": a, "b": b, "more": more, "seen": seen}, poisoned((2, m, n), FLOAT)
    got = emulator.run_plan(plan, inputs, empty, cpu_dev)
    assert test_wgmma.relative(got, want(tf32(a), tf32(b)) + more) < 2e-6

    old = re.search(r"#define EPILOGUE_PREFETCH\(i_\) .*\n", plan.launches[-1].source)[0]
    assert "PREFETCH((more) + (i_));" in old
    marks = f"#define EPILOGUE_PREFETCH(i_) {{ seen[(i_) / {LINE}] = 1.0f; }}\n"
    marked = rename_slots(replaced(plan, old, marks), {"seen": "out", "out": "other"})
    del inputs["seen"]
    got = emulator.run_plan(marked, inputs | {"other": empty}, seen, cpu_dev)
    np.testing.assert_array_equal(got, np.arange(lines + LINE) < lines)


def test_filter_gradients_that_are_added(cpu_dev, cpu_info, rng):
    """Rows of a tile are channels of several taps, and not all are stored."""
    p = dataclasses.replace(test_wgmma_channel_major.CASES["valid"], precision="high")
    a, b = test_wgmma.operands(rng, p)
    want = test_wgmma_channel_major.reference(p, tf32(a), tf32(b))
    more = random_array(rng, want.shape, FLOAT)
    solver = channel_major.ChannelMajorFilterGradient(tiles.PROMOTED[-1], 1)
    plan = solver.plan(p, cpu_info, adding_marked())
    assert "EPILOGUE_PREFETCH" in plan.launches[-1].source
    inputs = {"a": a, "b": b, "more": more, "seen": np.zeros(1, np.float32)}
    got = emulator.run_plan(plan, inputs, poisoned(want.shape, FLOAT), cpu_dev)
    assert test_wgmma.relative(got, want + more) < 2e-6
