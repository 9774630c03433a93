"""Launches whose work-groups of one number have the same results (`plan.Division`)."""

import dataclasses

import numpy as np
import pytest

from kerascl import dtypes
from kerascl.kernels.contract.epilogue import Epilogue, VectorLoad, VectorStore, store_epilogue
from kerascl.kernels.contract.plan import Plan, Ref
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.matmul.skinny import SkinnyMatmul
from tests import profiles
from tests.kernels.harness import poisoned, run_outputs
from tests.kernels.test_gemm import make

F32 = dtypes.float32


def scaling(at: str = "", compute: str = "") -> Epilogue:
    """Results times what lies in `gate`: at their own indices, or at others."""
    load = VectorLoad("given", F32, "given_", at)
    text = f"{compute}const float value = acc * given_;"
    return Epilogue(
        ", __global float* given, __global float* out", (Ref("gate"), Ref("scaled")),
        f"{load.line('given', at or 'i')} {text} out[i] = value;", loads=(load,), compute=text,
        stores=(VectorStore("out", F32, "value"),),
    )  # fmt: skip


def test_buffers_that_are_used_at_the_results_indices_only():
    assert store_epilogue(dtypes.bfloat16).aligned == {("out", 2)}
    assert scaling().aligned == {("gate", 4), ("scaled", 4)}
    assert scaling("column").aligned == {("scaled", 4)}
    assert scaling(compute="const float more = given[i + 1]; ").aligned == {("scaled", 4)}
    twice = dataclasses.replace(scaling(), args=(Ref("scaled"), Ref("scaled")))
    assert twice.aligned == {("scaled", 4)}
    moved = dataclasses.replace(scaling(), args=(Ref("gate", 4), Ref("scaled")))
    assert moved.aligned == {("scaled", 4)}
    assert dataclasses.replace(scaling(), stores=()).aligned == frozenset()


def one_group(plan: Plan, number: int) -> Plan:
    """The plan's one launch, of which only the work-group of that number runs."""
    (launch,) = plan.launches
    source = launch.source.replace("get_group_id(0)", f"({number} + get_group_id(0))")
    assert source != launch.source
    return Plan([dataclasses.replace(launch, source=source, global_size=launch.local_size)])


@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("m, n, k", [(1, 300, 64), (8, 200, 96), (130, 3, 72)])
def test_a_groups_results_need_those_of_the_same_group_alone(dev, m, n, k, b, rng):
    """Groups of two products run in turns, on poisoned memory: each finds what it needs."""
    info = profiles.disguise(dev.info, profiles.load()["rtx4090"].info)
    problem, inputs, want = make(rng, m, n, k, b=b)
    p = normalise_matmul(problem)
    with joining():
        first = SkinnyMatmul().plan(p, info, store_epilogue(F32, "gate"))
        second = SkinnyMatmul().plan(p, info, scaling())
    one, two = (plan.launches[0].division for plan in (first, second))
    assert one.of == two.of
    assert one.aligned == {("gate", 4)} and two.aligned == {("gate", 4), ("scaled", 4)}
    groups = first.launches[0].global_size[0] // first.launches[0].local_size[0]
    assert groups > 1
    gate, scaled = poisoned(want.shape, F32), poisoned(want.shape, F32)
    for number in range(groups):
        gate = run_outputs(one_group(first, number), inputs, {"gate": gate}, dev)["gate"]
        scaled = run_outputs(
            one_group(second, number), {**inputs, "gate": gate}, {"scaled": scaled}, dev
        )["scaled"]
    assert np.linalg.norm(scaled - want**2) / np.linalg.norm(want**2) < 1e-5


def test_slices_that_are_added_up_by_the_last_group_are_nobodys(dev, rng):
    info = profiles.disguise(dev.info, profiles.load()["rtx4090"].info)
    problem, *_ = make(rng, 1, 64, 4096)
    plan = SkinnyMatmul(split=4).plan(normalise_matmul(problem), info, store_epilogue(F32))
    assert plan.launches[0].division is None
