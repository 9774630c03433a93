"""Attention of few queries against the plain formula in float64."""

import dataclasses

import pytest

from kerascl import dtypes
from kerascl.kernels.attention import few
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.few import FewQueries
from kerascl.kernels.attention.tiled import TiledAttentionGradient
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.lanes import Lanes
from tests import profiles
from tests.compiler.test_agreement import EMULATION
from tests.kernels.test_attention import DROPPED, WAYS, Case


class Sliced(FewQueries):
    """As on a device of many compute units, which joins slices in a way of choice."""

    def __init__(self, way, kind):
        super().__init__()
        self.way, self.kind = way, kind

    def plan(self, problem, info, epilogue):
        info = dataclasses.replace(info, kind=self.kind or info.kind)
        if self.way == "whole":
            return super().plan(problem, dataclasses.replace(info, compute_units=1), epilogue)
        many = dataclasses.replace(info, compute_units=64)
        if self.way == "launch":
            many = dataclasses.replace(many, device_atomics=False, nvidia_capability=None)
        plan = super().plan(problem, many, epilogue)
        names = [launch.name for launch in plan.launches]
        assert names == ["attention_few", "attention_join"][: 2 if self.way == "launch" else 1]
        assert plan.workspace
        return plan


def needs(way, dev):
    if way == "arrives" and not arrival.supported(dev.info):
        pytest.skip("work-groups of one launch cannot hand memory to each other here")


def check(sizes, rng, dev, way="whole", kind=None, **more):
    needs(way, dev)
    Case(sizes, rng, **more).check((Sliced(way, kind), TiledAttentionGradient()), dev)


# (batch, length, source, heads, groups, width, depth)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1, 1, 1, 1), (2, 1, 70, 4, 2, 64, 64), (1, 7, 9, 2, 1, 33, 40),
        (1, 8, 5, 1, 1, 6, 250),
    ],
    ids=str,
)  # fmt: skip
def test_sizes(sizes, dev, rng):
    check(sizes, rng, dev)


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("what", list(WAYS))
def test_ways(what, way, dev, rng):
    check((2, 3, 1025, 4, 2, 16, 20), rng, dev, way, **WAYS[what])


@pytest.mark.every(2)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("what", ["mask", "halves"])
def test_dropout(what, way, dev, rng):
    check((1, 2, 530, 2, 1, 10, 13), rng, dev, way, **DROPPED[what])


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_halves(dtype, dev, rng):
    check((1, 1, 600, 2, 1, 24, 12), rng, dev, "launch", dtype=dtype)


@pytest.mark.every(2)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("what", ["plain", "mask"])
def test_values_come_first_on_gpus(what, dtype, way, dev, rng):
    """All of them, the first of a chunk's, more than there are, and of more chunks than one."""
    kinds = dict(dtype=getattr(dtypes, dtype), kind="gpu", **WAYS[what])
    for source in (3, 70, 640) if way == "whole" else (700,):
        check((2, 1, source, 4, 2, 64, 48), rng, dev, way, **kinds)


def test_how_many_values_come_first(rng):
    def found(info, dtype, features=64, source=128):
        case = Case((1, 1, source, 12, 12, features, features), rng, dtype=dtype)
        (launch,) = FewQueries().plan(case.forward, info, store_epilogue(dtype)).launches
        return int(launch.source.split("#define EARLY ")[1].split()[0])

    cards = {name: profile.info for name, profile in profiles.load().items()}
    card = cards["rtx4090"]
    assert found(card, dtypes.float32) == 8 and found(card, dtypes.bfloat16) == 16
    # where keys go round in a loop, what is held leaves registers for that
    assert found(card, dtypes.float32, source=300) == 4
    assert found(card, dtypes.float32, 63) == 0  # not read in fours
    assert found(dataclasses.replace(card, kind="cpu"), dtypes.float32) == 0
    assert found(dataclasses.replace(card, registers=64), dtypes.float32) == 4


class Lanewise(Sliced):
    """Lanes give each other values, which is emulated."""

    def plan(self, problem, info, epilogue):
        plan = super().plan(problem, info, epilogue)
        first = plan.launches[0]
        begin = "{\n  __local float q["
        assert "#define SHARE_KEYS 1" in first.source and begin in first.source
        text = first.source.replace(begin, "{\n  __local uint of_lanes[128];" + begin[1:])
        plan.launches[0] = dataclasses.replace(first, source=text)
        return plan


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("lanes", [True, False], ids=["lanes", "local memory"])
@pytest.mark.parametrize("width, depth", [(64, 64), (8, 32), (52, 60), (20, 24), (128, 128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_work_items_share_keys(dtype, width, depth, lanes, way, dev, rng, monkeypatch):
    """Whether or not keys fill the work-items, a chunk, or a slice."""
    needs(way, dev)
    monkeypatch.setattr(few, "lanes_of", lambda info: Lanes(32, EMULATION) if lanes else None)
    if not lanes and depth > 64:
        monkeypatch.setattr(few, "SHARING", 32)
    solver = (Lanewise if lanes else Sliced)(way, "gpu")
    for source in (3, 130, 700) if way == "whole" else (1300,):
        case = Case((1, 2, source, 4, 2, width, depth), rng, dtype=getattr(dtypes, dtype))
        case.check((solver, TiledAttentionGradient()), dev)


def test_strides(dev, rng):
    check((2, 5, 21, 4, 2, 12, 20), rng, dev, swapped=True)


def test_gpus_take_it_for_few_queries(rng):
    info = profiles.load()["rtx4090"].info
    case = Case((1, 1, 300, 12, 12, 64, 64), rng)
    assert attention.preferred(case.forward, info)
    assert contract.choose(attention.SOLVERS, case.forward, info).name == "few"
    assert not FewQueries().applies(Case((1, 9, 20, 1, 1, 8, 8), rng).forward, info)
    plan = attention.plan(case.forward, info, store_epilogue(dtypes.float32))
    assert len(plan.launches) == 1
