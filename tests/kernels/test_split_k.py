"""The launch that adds up slices of products: against NumPy in float64, and what it reads at once,
as on a GPU, on whatever device there is."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.matmul.split_k import TURNS, vector_reduction_launch
from tests import profiles
from tests.kernels import ptx
from tests.kernels.harness import poisoned, run_plan

F32, BF16 = dtypes.float32, dtypes.bfloat16


def launch(total, splits, acc=F32, epilogue=None, info=None):
    info = info or profiles.load()["rtx4090"].info
    epilogue = epilogue or store_epilogue(acc, "out")
    return vector_reduction_launch(total, splits, acc, "int", epilogue, info)


def added():
    """Adds an array to the sums where they are stored, and one of four columns."""
    return Epilogue(
        ", __global float* out, __global const float* bias", (Ref("out"), Ref("bias")),
        "const float val1 = out[i]; const float val2 = bias[i % 4]; out[i] = acc + val1 + val2;",
        loads=(VectorLoad("out", F32, "val1"), VectorLoad("bias", F32, "val2", "0", 4)),
        stores=(VectorStore("out", F32, "acc + val1 + val2"),),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["gpu", "cpu"])
@pytest.mark.parametrize("splits", [1, 2, 3, 4, 5, 12, 15, 16, 17, 24, 30, 33, 100])
@pytest.mark.parametrize("total", [4, 260, 768, 1000])
def test_slices_of_any_number(dev, rng, kind, splits, total):
    info = dataclasses.replace(dev.info, kind=kind)
    parts = rng.standard_normal((splits, total)).astype(np.float32)
    out = poisoned((total,), F32)
    found = run_plan(Plan([launch(total, splits, info=info)]), {"ws0": parts}, out, dev)
    wanted = parts.astype(np.float64).sum(0)
    assert np.linalg.norm(found - wanted) < 1e-6 * np.linalg.norm(wanted)
    again = run_plan(Plan([launch(total, splits, info=info)]), {"ws0": parts}, out, dev)
    np.testing.assert_array_equal(found, again)


@pytest.mark.parametrize("splits", [3, 24])
@pytest.mark.parametrize("total", [8, 780])
def test_what_follows_reads_before_the_sums(dev, rng, splits, total):
    info = dataclasses.replace(dev.info, kind="gpu")
    parts = rng.standard_normal((splits, total)).astype(np.float32)
    old, bias = (rng.standard_normal(n).astype(np.float32) for n in (total, 4))
    made = launch(total, splits, epilogue=added(), info=info)
    found = run_plan(Plan([made]), {"ws0": parts, "bias": bias}, old, dev)
    wanted = parts.astype(np.float64).sum(0) + old + np.tile(bias.astype(np.float64), total // 4)
    assert np.linalg.norm(found - wanted) < 1e-6 * np.linalg.norm(wanted)
    text = made.text.body
    assert text.index("read1_ + ") < text.index("KCL_LOADED") < text.index("sums[4]")


@pytest.mark.parametrize("splits", [2, 40])
def test_integers(dev, rng, splits):
    info = dataclasses.replace(dev.info, kind="gpu")
    parts = rng.integers(-(2**30), 2**30, (splits, 772)).astype(np.int32)
    made = launch(772, splits, dtypes.int32, info=info)
    found = run_plan(Plan([made]), {"ws0": parts}, poisoned((772,), dtypes.int32), dev)
    np.testing.assert_array_equal(found, parts.sum(0, dtype=np.int32))


def test_few_kinds_of_text():
    """So that many become one launch; on a CPU there is one."""
    assert len({launch(768, n).text.body for n in range(1, 200)}) == len(TURNS)
    cpu = dataclasses.replace(profiles.load()["rtx4090"].info, kind="cpu")
    assert len({launch(768, n, info=cpu).text for n in range(1, 200)}) == 1


@pytest.mark.skipif(
    not ptx.available() or not ptx.disassembler(),
    reason="needs clang-15, ptxas and nvdisasm (of the package nvidia-cuda-nvdisasm)",
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_all_reads_are_under_way_before_the_first_sum(dtype):
    """ptxas would have two or three of them, for fewer registers."""
    made = launch(768, 12, epilogue=store_epilogue(dtype, "out"))
    size = made.local_size[0]
    place = f"(get_group_id(0) * {size} + get_local_id(0))"
    text = f"#define KCL_PTX\n#define KCL_CVT_BF16\n#define get_global_id(d) {place}\n"
    assert ptx.resources(text + made.source, "sm_90", size)["spills"] == 0
    lines = ptx.disassembly(text + made.source, "sm_90", size).splitlines()
    kinds = [m[0] for line in lines if (m := re.search(r"\b(FADD|LDG)\b", line))]
    assert kinds == ["LDG"] * TURNS[-1] + ["FADD"] * 4 * TURNS[-1]
