"""Second kernels of sums of columns on GPUs, alone and many in one launch: what they add up, and
how many work-groups they have; run on whatever device there is, and for the facts of cards."""

import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import columns, crossed, second
from kerascl.compiler.program import multi
from kerascl.compiler.program.lower import lower
from kerascl.compiler.run import capture
from kerascl.kernels.contract.lanes import Lanes
from kerascl.kernels.tuning.machine import of_facts
from tests import profiles
from tests.compiler.graphs import argument, nodes_of
from tests.kernels import ptx

ROWS, COLUMNS = 2400, 64
OF_LANE = """\
inline uint kcl_of_lane(__local uint* places, uint x, int distance) {
  places[get_local_id(0)] = x;
  barrier(CLK_LOCAL_MEM_FENCE);
  const uint y = places[get_local_id(0) ^ distance];
  barrier(CLK_LOCAL_MEM_FENCE);
  return y;
}
"""


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


def h200():
    facts = {"name": "NVIDIA H200", "compute_units": 132, "nvidia_capability": (9, 0)}
    return dataclasses.replace(profiles.load()["rtx4090"].info, **facts)


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


# Fewer than work-items; as many as an H200 leaves; in vectors, alone, and where registers are too
# few, in turns.
@pytest.mark.parametrize("groups", [2, 16, 17, 64, 114, 132, 280])
@pytest.mark.parametrize("copies", [1, 5])
@pytest.mark.parametrize(
    "columns, each, wide", [(64, 32, 4), (192, 128, 4), (64, 32, 2), (64, 32, 1), (64, 32, 0)]
)
def test_parts_of_any_number(
    small_gpu, sources, monkeypatch, rng, dev, groups, copies, columns, each, wide
):  # fmt: skip
    monkeypatch.setattr(multi, "SMALL", 1 << 22)  # as where other steps need more memory
    monkeypatch.setattr(second, "VECTOR_BYTES", 4 * max(1, wide))
    monkeypatch.setattr(second, "COLUMNS", each)
    if not wide:
        monkeypatch.setattr(second, "GROUP", 0)
    leave(groups, monkeypatch)
    given = [(drawn(rng, ROWS, columns), drawn(rng, columns), drawn(rng, columns), drawn(rng))
             for _ in range(copies)]  # fmt: skip
    step = kc.jit(lambda *args: [update(*args[k : k + 4]) for k in range(0, len(args), 4)])
    found = step(*(x for one in given for x, _ in one))
    again = step(*(x for one in given for x, _ in one))
    for one, other, arrays in zip(found, again, given, strict=True):
        for x, same, y in zip(one, other, expected(*(y for _, y in arrays)), strict=True):
            got = x.numpy()
            assert np.linalg.norm(got - y) < 2e-6 * np.linalg.norm(y)
            np.testing.assert_array_equal(got, same.numpy())
    (last,) = (s for s in sources() if "_2_" in s.name and "columns" not in s.name)
    assert ("multi" in last.name) == (copies > 1)
    parts = int(re.search(r"r_end = (\d+);", last.source)[1])  # fewer where there are fewer blocks
    made = second.layout(columns, parts, ["float"] * 2, dev.info, copies)
    few = wide == 0 or (each == 128 and parts > 16 * 11)  # of as many columns few work-items each
    assert (made is None) == few == ("KCL_LOADED {" not in last.source)
    if made is not None:
        size = made.group_rows * made.row_threads
        assert made.wide == wide and made.group_rows * wide == each
        assert last.local_size[0] == size
        assert last.global_size[0] == copies * -(-columns // each) * size


def test_lanes_merge_what_they_have(small_gpu, sources, monkeypatch, rng, dev):
    """Where they give each other values: here through local memory."""
    leave(114, monkeypatch)
    monkeypatch.setattr(second, "lanes_of", lambda info: Lanes(32, OF_LANE))
    monkeypatch.setattr(Lanes, "other", lambda self, ctype, value, distance: (
        f"as_{ctype}(kcl_of_lane(places, as_uint({value}), {distance}))"
    ))  # fmt: skip
    combine = columns.combine

    def with_places(outer, inner, layout, *args, **options):
        size = layout.group_rows * layout.row_threads
        args[-1].append(f"__local uint places[{size}];")
        combine(outer, inner, layout, *args, **options)

    monkeypatch.setattr(columns, "combine", with_places)
    args = drawn(rng, ROWS, COLUMNS), drawn(rng, COLUMNS), drawn(rng, COLUMNS), drawn(rng)
    found = kc.jit(update)(*(x for x, _ in args))
    for x, y in zip(found, expected(*(y for _, y in args)), strict=True):
        assert np.linalg.norm(x.numpy() - y) < 2e-6 * np.linalg.norm(y)
    (last,) = (s for s in sources() if "_2_" in s.name)
    assert last.source.count("= as_float(kcl_of_lane(") == 2 * 4 * 2


def test_all_sums_wait_for_one_barrier(small_gpu, sources, monkeypatch, rng):
    """And what follows them is read before."""
    leave(64, monkeypatch)
    args = drawn(rng, ROWS, COLUMNS), drawn(rng, COLUMNS), drawn(rng, COLUMNS), drawn(rng)
    kc.jit(update)(*(x for x, _ in args))
    (second,) = (s for s in sources() if "_2_" in s.name)
    text = second.source[second.source.index(f"void {second.name}(") :]
    before, after = text.split("barrier(")
    assert before.index("= buf") < before.index("ts3_0 =") < before.index("KCL_LOADED {")
    assert len(re.findall(r"= buf\d+\[", before)) == 3 and not re.search(r"= buf\d+\[", after)


@pytest.mark.parametrize("count, reduced", [(2, 2), (12, 2), (25, 2), (2, 3), (12, 3)])
def test_a_joined_launch_is_one_wave_on_an_h200(count, reduced, monkeypatch):
    """Of work-groups with the registers that what they read at once needs."""
    monkeypatch.setattr(multi, "SMALL", 1 << 22)  # as where other steps need more memory
    info = h200()
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
    made = second.layout(768, 132, ["float"] * reduced, info, count)
    assert made.wide == 4 and size == made.group_rows * made.row_threads
    used = 4 * reduced * -(-132 // made.row_threads) + second.OTHERS
    machine = of_facts(info)
    assert groups <= machine.units * (machine.registers // (used * size))
    if ptx.available():
        head = "#define KCL_PTX\n#define sqrt(x) one_float(sqrt, x)\n"
        found = ptx.resources(head + last.source, "sm_90", size)
        assert found["registers"] <= used and found["spills"] == 0


@pytest.mark.skipif(
    not ptx.available() or not ptx.disassembler(),
    reason="needs clang-15, ptxas and nvdisasm (of the package nvidia-cuda-nvdisasm)",
)
def test_all_parts_are_under_way_before_the_first_sum():
    """ptxas would have three or four of them, for fewer registers."""
    x, old = argument(12608, 768), argument(768)
    arrays = [kc.sum(x, 1), kc.sum(x * kc.sum(x, 1, keepdims=True), 0) * old]
    program = lower(nodes_of(*arrays), [x._node for x in arrays], h200(), False)
    last, parts = program.steps[-1], 132
    text = "#define KCL_PTX\n" + last.source[: last.source.index("__kernel")]
    text += "__kernel" + last.source.rpartition("__kernel")[2]
    lines = ptx.disassembly(text, "sm_90", last.local_size[0]).splitlines()
    kinds = [m[0] for line in lines if (m := re.search(r"\b(FADD|LDG)\b", line))]
    made = second.layout(768, parts, ["float"], h200())
    each = -(-parts // made.row_threads)
    assert kinds[: each + 1] == ["LDG"] * (each + 1) and "LDG" not in kinds[each + 1 :]
    assert kinds.count("FADD") >= 4 * each


def test_not_on_a_cpu_or_for_few_columns():
    for name, profile in profiles.load().items():
        info = profile.info
        assert second.layout(16, 114, ["float"], info) is None
        assert second.layout(768, 100000, ["float"], info) is None
        found = second.layout(768, 114, ["float", "double"], info, 1)
        assert found is None or found.wide == 1, name
        cpu = dataclasses.replace(info, kind="cpu")
        assert second.layout(768, 114, ["float"], cpu, 23) is None


@pytest.mark.parametrize("arrays", [1, 2, 3, 8])
@pytest.mark.parametrize("copies", [1, 23])
def test_reads_under_way_leave_registers(arrays, copies):
    for name, profile in profiles.load().items():
        info = profile.info
        made = second.layout(768, 132, ["float"] * arrays, info, copies)
        if made is None:
            continue
        each = -(-132 // made.row_threads)
        most = 4 * of_facts(info).registers / of_facts(info).resident
        words = each * made.wide * arrays
        assert each == 1 or words <= second.READS * min(most, info.registers or most), name
        size = made.group_rows * made.row_threads
        assert size % 32 == 0 and size <= min(second.GROUP, info.max_work_group_size), name
