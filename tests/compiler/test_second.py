"""Second kernels of sums of columns on GPUs, alone and many in one launch: what they add up, and
how many work-groups they have; run on whatever device there is, and for the facts of cards."""

import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import crossed, second
from kerascl.compiler.program import multi
from kerascl.compiler.program.lower import lower
from kerascl.compiler.run import capture
from kerascl.kernels.tuning.machine import of_facts
from tests import profiles
from tests.compiler.graphs import argument, nodes_of

ROWS, COLUMNS = 2400, 64


@pytest.fixture
def small_gpu(dev, as_gpu, monkeypatch):
    """The device with the work-groups of a GPU of two units, each with an NVIDIA card's room."""
    as_gpu(2, 512)
    quirks = dev.info.quirks - {"keeps_choices_wrongly"}
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=quirks))
    room = dataclasses.replace(of_facts(dev.info), resident=2048, registers=65536)
    monkeypatch.setattr(second, "of_facts", lambda info: room)
    allocate = dev.buffers.allocate

    def poison(nbytes, *args, **options):
        buffer = allocate(nbytes, *args, **options)
        dev.queue.fill(buffer, b"\xff", 0, nbytes)  # NaN, where nothing is written
        return buffer

    monkeypatch.setattr(dev.buffers, "allocate", poison)


@pytest.fixture
def sources(monkeypatch):
    """Every program that is lowered meanwhile."""
    found, inner = [], capture.lower

    def noted(*args, **options):
        found.append(inner(*args, **options))
        return found[-1]

    monkeypatch.setattr(capture, "lower", noted)
    return lambda: [step for program in found for step in program.steps]


def update(x, m, v, rate):
    """A gradient along each row, and Adam's update by those over all of them."""
    along = x * kc.sum(x, 1, keepdims=True)
    g, h = kc.sum(along, 0), kc.sum(x, 0)
    m, v = m + 0.1 * (g - m), v + 0.001 * (h * h - v)
    return kc.sum(x, 1), m, v, m - rate * g / (kc.sqrt(v) + 1e-3)


def expected(x, m, v, rate):
    along = x * x.sum(1, keepdims=True)
    g, h = along.sum(0), x.sum(0)
    m, v = m + 0.1 * (g - m), v + 0.001 * (h * h - v)
    return x.sum(1), m, v, m - rate * g / (np.sqrt(v) + 1e-3)


def leave(groups, monkeypatch):
    """Have first kernels leave so many parts."""
    turns = crossed._Crossed.turns

    def others(self):
        found = turns(self)
        return found and dataclasses.replace(found, groups=min(groups, found.blocks))

    monkeypatch.setattr(crossed._Crossed, "turns", others)


def drawn(rng, *shape):
    x = rng.random(shape).astype(np.float32)
    return kc.array(x), x.astype(np.float64)


# fewer than a turn; whole turns; some left; as many as an H200 leaves; sums of sums
@pytest.mark.parametrize("groups", [2, 16, 17, 64, 114, 132, 280])
@pytest.mark.parametrize("copies, threads", [(1, 16), (5, 8)])
def test_parts_of_any_number(small_gpu, sources, monkeypatch, rng, groups, copies, threads):
    monkeypatch.setattr(multi, "SMALL", 1 << 22)  # as where other steps need more memory
    leave(groups, monkeypatch)
    given = [(drawn(rng, ROWS, COLUMNS), drawn(rng, COLUMNS), drawn(rng, COLUMNS), drawn(rng))
             for _ in range(copies)]  # fmt: skip
    step = kc.jit(lambda *args: [update(*args[k : k + 4]) for k in range(0, len(args), 4)])
    found = step(*(x for one in given for x, _ in one))
    again = step(*(x for one in given for x, _ in one))
    for one, other, arrays in zip(found, again, given, strict=True):
        for x, same, y in zip(one, other, expected(*(y for _, y in arrays)), strict=True):
            np.testing.assert_allclose(x.numpy(), y, rtol=2e-6)
            np.testing.assert_array_equal(x.numpy(), same.numpy())
    (second,) = (s for s in sources() if "_2_" in s.name and "columns" not in s.name)
    assert ("multi" in second.name) == (copies > 1)
    own = min(threads, max(1, 1 << (groups - 1).bit_length() >> 2))
    assert second.local_size == (32 * own,) or second.local_size == (32 * own, 1)
    assert second.global_size[0] == copies * COLUMNS * own


def test_all_sums_wait_for_one_barrier(small_gpu, sources, monkeypatch, rng):
    """And what follows them is read before."""
    leave(64, monkeypatch)
    args = drawn(rng, ROWS, COLUMNS), drawn(rng, COLUMNS), drawn(rng, COLUMNS), drawn(rng)
    kc.jit(update)(*(x for x, _ in args))
    (second,) = (s for s in sources() if "_2_" in s.name)
    text = second.source[second.source.index(f"void {second.name}(") :]
    before, after = text.split("barrier(")
    assert len(re.findall(r"= buf\d+\[", before)) == 3 and not re.search(r"= buf\d+\[", after)


@pytest.mark.parametrize("count", [2, 11, 12, 23])
@pytest.mark.parametrize("reduced", [2, 3])
def test_a_joined_launch_is_one_wave_on_an_h200(count, reduced, monkeypatch):
    """Of work-groups with the registers that what they read at once needs."""
    monkeypatch.setattr(multi, "SMALL", 1 << 22)  # as where other steps need more memory
    facts = {"name": "NVIDIA H200", "compute_units": 132, "nvidia_capability": (9, 0)}
    info = dataclasses.replace(profiles.load()["rtx4090"].info, **facts)
    arrays = []
    for _ in range(count):
        x, old = argument(12608, 768), argument(768)
        sums = [kc.sum(x * k, 0) for k in range(2, 1 + reduced)]
        arrays += [kc.sum(x, 1), kc.sum(x * kc.sum(x, 1, keepdims=True), 0) * old, *sums]
    program = lower(nodes_of(*arrays), [x._node for x in arrays], info, False)
    last = program.steps[-1]
    assert "multi" in last.name and "_2_" in last.name
    groups, size = last.global_size[0] // last.local_size[0], last.local_size[0]
    assert groups == count * 768 // 32
    machine = of_facts(info)
    assert groups <= machine.units * (machine.registers // (second.REGISTERS * size))


def test_a_launch_alone_has_as_many_work_items_as_before(dev):
    for name, profile in profiles.load().items():
        made = second.layout(768, 114, profile.info, 1)
        if profile.info.kind == "gpu" and profile.info.compute_units >= 32:
            assert made.group_rows * made.row_threads >= 256, name
    cpu = dataclasses.replace(dev.info, kind="cpu")
    assert second.layout(768, 114, cpu, 23) == second.layout(768, 114, cpu, 1)
    assert not second.simple(second.layout(768, 114, cpu, 1), cpu)


@pytest.mark.parametrize("arrays", [1, 2, 3, 8])
@pytest.mark.parametrize("name", ["rtx4090", "gtx1080", "mi300x", "rx7900xtx", "a770", "max1550"])
def test_reads_under_way_leave_registers(name, arrays):
    info = profiles.load()[name].info
    made = second.layout(768, 132, info, 23)
    count = second.together(made, 132, arrays, info)
    assert 1 <= count <= 16 and count * arrays <= max(arrays, second.READS)
    most = 4 * of_facts(info).registers / of_facts(info).resident
    assert count == 1 or count * arrays <= second.PART * min(most, info.registers or most)


@pytest.mark.parametrize("splits", [1, 2, 7, 8, 113, 114, 128, 132])
@pytest.mark.parametrize("threads", [1, 4, 16])
@pytest.mark.parametrize("together", [1, 4, 16])
def test_what_turns_leave(splits, threads, together):
    left = [len(range(k, splits, threads)) % together for k in range(min(threads, splits))]
    assert second.tail(splits, threads, together) == max(left)
