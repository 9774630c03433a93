"""Attention of few queries against the plain formula in float64."""

import dataclasses

import pytest

from kerascl import dtypes
from kerascl.kernels.attention import few
from kerascl.kernels.attention import solvers as attention
from kerascl.kernels.attention.few import FewQueries, FewQueriesByLanes
from kerascl.kernels.attention.tiled import TiledAttentionGradient
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.epilogue import store_epilogue
from kerascl.kernels.contract.lanes import Lanes
from tests import profiles
from tests.compiler.test_agreement import EMULATION
from tests.kernels.test_attention import DROPPED, WAYS, Case


class InAWay:
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
        assert names[1:] == ["attention_join"][: self.way == "launch"]
        assert plan.workspace
        return plan


class Sliced(InAWay, FewQueries):
    """The portable kernel."""


class Lanewise(InAWay, FewQueriesByLanes):
    """Lanes give each other values, which is emulated."""

    least_keys = 256

    def plan(self, problem, info, epilogue):
        plan = super().plan(problem, info, epilogue)
        first = plan.launches[0]
        begin = "{\n  __local float found["
        assert begin in first.source
        text = first.source.replace(begin, "{\n  __local uint of_lanes[512];" + begin[1:])
        plan.launches[0] = dataclasses.replace(first, source=text)
        return plan


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setattr(few, "lanes_of", lambda info: Lanes(32, EMULATION))


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


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("width, depth", [(64, 64), (8, 32), (52, 60), (20, 24), (128, 128)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_work_items_share_keys(dtype, width, depth, way, dev, rng, monkeypatch):
    """Whether or not keys fill the work-items, a chunk, or a slice."""
    needs(way, dev)
    if depth > 64:
        monkeypatch.setattr(few, "SHARING", 32)
    for source in (3, 130, 700) if way == "whole" else (1300,):
        case = Case((1, 2, source, 4, 2, width, depth), rng, dtype=getattr(dtypes, dtype))
        case.check((Sliced(way, "gpu"), TiledAttentionGradient()), dev)


SHAPES = [(64, 64), (8, 32), (52, 60), (20, 4), (128, 128), (256, 136), (12, 256)]


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("width, depth", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_lanes(dtype, width, depth, way, dev, rng, emulated):
    """Whether or not keys fill the lanes, a sweep, or a slice."""
    needs(way, dev)
    for source in (2, 3, 130, 700) if way == "whole" else (1300,):
        case = Case((1, 2, source, 4, 2, width, depth), rng, dtype=getattr(dtypes, dtype))
        case.check((Lanewise(way, "gpu"), TiledAttentionGradient()), dev)


@pytest.mark.every(3)
@pytest.mark.parametrize("way", ["whole", "arrives", "launch"])
@pytest.mark.parametrize("what", [*WAYS, *(f"dropped {name}" for name in ("mask", "halves"))])
def test_lanes_in_ways(what, way, dev, rng, emulated):
    needs(way, dev)
    more = DROPPED[what[8:]] if what.startswith("dropped") else WAYS[what]
    for source in (5, 300) if way == "whole" else (1025,):
        case = Case((2, 3, source, 4, 2, 16, 20), rng, **more)
        case.check((Lanewise(way, "gpu"), TiledAttentionGradient()), dev)


@pytest.mark.parametrize("rows, threads, keys", [(16, 512, 8), (200, 256, 8), (1000, 128, 8)])
def test_fewer_rows_have_more_work_items(rows, threads, keys, rng):
    info = dataclasses.replace(profiles.load()["rtx4090"].info, compute_units=132)
    case = Case((1, 1, 256, rows, rows, 64, 64), rng, dtype=dtypes.bfloat16)
    plan = FewQueriesByLanes().plan(case.forward, info, store_epilogue(dtypes.bfloat16))
    assert [launch.local_size for launch in plan.launches] == [(threads, 1, 1)]
    assert f"#define KEYS {keys}\n" in plan.launches[0].source


def test_what_is_asked_for_at_once_fits_the_registers(rng):
    info = profiles.load()["rtx4090"].info

    def keys(dtype, registers, source=256, features=64):
        case = Case((1, 1, source, 16, 16, features, features), rng, dtype=dtype)
        card = dataclasses.replace(info, registers=registers)
        plan = FewQueriesByLanes().plan(case.forward, card, store_epilogue(dtype))
        return int(plan.launches[0].source.split("#define KEYS ")[1].split()[0])

    assert keys(dtypes.float32, 255) == 8 and keys(dtypes.float32, 64) == 4
    assert keys(dtypes.float32, 255, features=256) == 4
    assert keys(dtypes.bfloat16, 64) == 8
    assert keys(dtypes.bfloat16, 255, source=40) == 2  # no more than there are


def test_strides(dev, rng):
    check((2, 5, 21, 4, 2, 12, 20), rng, dev, swapped=True)


def test_gpus_take_it_for_few_queries(rng):
    info = profiles.load()["rtx4090"].info
    case = Case((1, 1, 300, 12, 12, 64, 64), rng)
    assert attention.preferred(case.forward, info)
    assert contract.choose(attention.SOLVERS, case.forward, info).name == "few_lanes"
    assert not FewQueries().applies(Case((1, 9, 20, 1, 1, 8, 8), rng).forward, info)
    plan = attention.plan(case.forward, info, store_epilogue(dtypes.float32))
    assert len(plan.launches) == 1
