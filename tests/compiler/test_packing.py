"""Packs of many weights in one launch."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl import dtypes
from kerascl.compiler.program import packing
from kerascl.compiler.program.program import Slot, Step, Use, value_of
from kerascl.kernels.contract.plan import Ref
from kerascl.kernels.hopper.pack import Matrix, pack_launch, packed_step
from kerascl.kernels.tuning import database
from kerascl.runtime.launch import bind
from tests.solvers import emulated

SHAPES = [(5, 7), (64, 64), (130, 70), (1, 200), (200, 3), (33, 129)]


def pack_step(
    k: int, n: int, source: int, out: int, low: int | None, turned: bool = True
) -> Step:  # fmt: skip
    """The Step that lays out a matrix in slot `source`: of (k, n), which it turns, or (n, k)."""
    names = {"b": source, "high": out, "low": low}
    strides = (1, n) if turned else (k, 1)
    matrix = Matrix("b", n, k, *strides)
    launch = pack_launch(
        matrix, dtypes.float32, "int", "high", "low" if low is not None else None
    )
    args = [Use(names[a.slot]) if isinstance(a, Ref) else value_of(a) for a in launch.args]
    step = Step(launch.source, launch.name, launch.options, args, launch.global_size,
                launch.local_size, "conv")  # fmt: skip
    step.writes = frozenset({out} if low is None else {out, low})
    return step


def program(kinds=None, low=False) -> tuple[list[Step], list[Slot]]:
    """Slots 3j, 3j + 1 and 3j + 2: the j-th matrix, its layout, what tf32 loses of it."""
    steps, slots = [], []
    for j, (k, n) in enumerate(SHAPES):
        nbytes = 4 * n * packed_step(dtypes.float32, k)
        slots.append(Slot(kinds[j] if kinds else "input", 4 * k * n, j))
        slots += [Slot("temporary", nbytes, -1)] * 2
        steps.append(pack_step(k, n, 3 * j, 3 * j + 1, 3 * j + 2 if low else None))
    return steps, slots


def run(steps: list[Step], slots: list[Slot], matrices, dev) -> list[np.ndarray]:
    """What the slots hold afterwards; they are poisoned before."""
    buffers = [dev.buffers.allocate(slot.nbytes) for slot in slots]
    for buffer in buffers:
        dev.queue.fill(buffer, b"\xff", 0, buffer.nbytes)
    for j, matrix in enumerate(matrices):
        dev.queue.write(buffers[3 * j], matrix)
    for step in steps:
        kernel = dev.programs.kernel(step.source, step.name, step.options).clone()
        args = [buffers[a.index] if isinstance(a, Use) else a for a in step.args]
        bind(kernel, args)
        dev.queue.launch(kernel, step.global_size, step.local_size, args)
    return [dev.queue.read(b, np.empty(b.nbytes // 4, np.float32)) for b in buffers]


@pytest.mark.parametrize("low", [False, True])
def test_one_launch_does_what_many_did(dev, rng, low):
    steps, slots = program(low=low)
    matrices = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    joined = packing.gather(steps, slots, dev.info)
    assert len(joined) == 1
    assert joined[0].writes == frozenset().union(*(s.writes for s in steps))
    apart, together = (run(s, slots, matrices, dev) for s in (steps, joined))
    for j, (matrix, (k, n)) in enumerate(zip(matrices, SHAPES, strict=True)):
        found = together[3 * j + 1].reshape(n, -1)
        np.testing.assert_array_equal(found[:, :k], matrix.T)
        assert not found[:, k:].any()
        if low:
            np.testing.assert_array_equal(together[3 * j + 2], apart[3 * j + 2])


@pytest.mark.parametrize("shapes", [SHAPES, [(2, 24), (3, 32)]], ids=["many", "two"])
def test_matrices_that_keep_their_order(dev, rng, shapes):
    slots = [
        Slot(kind, nbytes, -1)
        for k, n in shapes
        for kind, nbytes in (
            ("input", 4 * k * n), *[("temporary", 4 * n * packed_step(dtypes.float32, k))] * 2,
        )
    ]  # fmt: skip
    steps = [pack_step(k, n, 3 * j, 3 * j + 1, None, False) for j, (k, n) in enumerate(shapes)]
    matrices = [rng.normal(size=(n, k)).astype(np.float32) for k, n in shapes]
    joined = packing.gather(steps, slots, dev.info)
    assert len(joined) == 1
    results = run(joined, slots, matrices, dev)
    for j, (matrix, (k, n)) in enumerate(zip(matrices, shapes, strict=True)):
        found = results[3 * j + 1].reshape(n, -1)
        np.testing.assert_array_equal(found[:, :k], matrix)
        assert not found[:, k:].any()


def test_what_is_made_in_the_step_stays_where_it_is(dev):
    kinds = ["input", "temporary", "input", "output", "input", "input"]
    steps, slots = program(kinds)
    maker = Step("", "map", (), [Use(9)], (64,), (64,), "map")  # of the matrix that is packed next
    maker.writes = frozenset({9})
    joined = packing.gather([*steps[:3], maker, *steps[3:]], slots, dev.info)
    assert [s.name for s in joined] == ["wgmma_pack_many", "wgmma_pack", "map", "wgmma_pack"]
    assert [joined[1], joined[3]] == [steps[1], steps[3]]


def test_both_operands_of_a_product_are_packed_together(dev, rng):
    steps, slots = program(["temporary"] * 6)
    matrices = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES]
    joined = packing.gather(steps[:2], slots, dev.info)
    assert [s.name for s in joined] == ["wgmma_pack_many"]
    found = run(joined, slots, matrices, dev)
    for j, (matrix, (k, n)) in enumerate(zip(matrices[:2], SHAPES, strict=False)):
        np.testing.assert_array_equal(found[3 * j + 1].reshape(n, -1)[:, :k], matrix.T)
    steps[1].args[0] = steps[0].args[1]  # what the first writes the second reads
    assert packing.gather(steps[:2], slots, dev.info) == steps[:2]


def test_groups_are_small_enough(dev, monkeypatch):
    steps, slots = program()
    monkeypatch.setattr(packing, "MOST_JOBS", 2)
    assert [len(s.args) for s in packing.gather(steps, slots, dev.info)] == [6, 6, 6]
    few = dataclasses.replace(dev.info, max_parameter_bytes=64 + 3 * 24)
    monkeypatch.setattr(packing, "MOST_JOBS", 16)
    assert [len(s.args) for s in packing.gather(steps, slots, few)] == [9, 9]
    slots[4] = Slot("temporary", packing.MOST_BYTES + 1, -1)  # a large one goes alone
    found = packing.gather(steps, slots, dev.info)
    assert sorted(len(s.args) for s in found) == [14, 15]
    # a loop launches one step many times
    assert packing.gather([steps[0]] * 3, slots, dev.info) == [steps[0]] * 3


def gradients(between=()):
    """Three products (of nothing) that read the same operand in slot 0, laid out for each in slots
    1, 2 and 3, with results in 4, 5 and 6; and what is between the second and the third."""
    k, n = 70, 64
    nbytes = 4 * n * packed_step(dtypes.float32, k)
    slots = [Slot("input", 4 * k * n, 0), *[Slot("temporary", nbytes, -1)] * 3]
    slots += [Slot("output", 4, 1)] * 3
    steps = []
    for j in range(3):
        pack = pack_step(k, n, 0, 1 + j, None)
        reader = Step("", "product", (), [Use(1 + j), Use(4 + j)], (64,), (64,), "product")
        pack.writes = reader.writes = frozenset({1 + j, 4 + j})  # as of one plan
        steps += [*(between if j == 2 else ()), pack, reader]
    return steps, slots


def copies(steps):
    """What each product reads."""
    return [step.args[0].index for step in steps if step.name == "product"]


def test_an_operand_is_packed_once(dev, rng):
    steps, slots = gradients()
    readers = steps[1::2]
    found = packing.gather(steps, slots, dev.info)
    assert found == [steps[0], *readers] and copies(found) == [1, 1, 1]
    assert [step.writes for step in readers] == [{4}, {5}, {6}]  # none of them waits for another
    matrix = rng.normal(size=(70, 64)).astype(np.float32)
    results = run(found[:1], slots, [matrix], dev)
    np.testing.assert_array_equal(results[1].reshape(64, -1)[:, :70], matrix.T)


def writer(slot, writes=True):
    step = Step("", "map", (), [Use(slot)], (64,), (64,), "map")
    step.writes = frozenset({slot}) if writes else None
    return step


@pytest.mark.parametrize("writes", [True, False], ids=["said", "unsaid"])
def test_an_operand_that_changes_is_packed_again(dev, writes):
    steps, slots = gradients([writer(0, writes)])
    assert copies(packing.gather(steps, slots, dev.info)) == [1, 1, 3]
    steps, slots = gradients([writer(4)])
    assert copies(packing.gather(steps, slots, dev.info)) == [1, 1, 1]


@pytest.mark.parametrize("name", ["numbers", "source", "offset", "text", "result", "in place"])
def test_other_copies_are_packed_for_themselves(dev, name):
    steps, slots = gradients()
    last = steps[4]
    slots.append(Slot("input", slots[0].nbytes, 2))
    if name == "numbers":
        steps[4] = dataclasses.replace(pack_step(64, 70, 0, 3, None), writes=last.writes)
    elif name == "source":
        last.args[0] = Use(7)
    elif name == "offset":
        last.args[0] = Use(0, 64)
    elif name == "text":
        last.source += "//"
    elif name == "result":
        slots[3] = dataclasses.replace(slots[3], kind="output")
    else:
        last.args[0] = Use(3)
    found = packing.share(steps, slots)
    assert copies(found) == [1, 1, 3] and steps[4] in found


def test_the_peak_of_memory_stays(dev):
    """A copy is made again where it would have to be kept while most is needed."""
    large = [Slot("temporary", 1 << 20, -1)]
    between = Step("", "map", (), [Use(7)], (64,), (64,), "map", writes=frozenset({7}))
    steps, slots = gradients([between])
    assert copies(packing.share(steps, [*slots, *large])) == [1, 1, 3]
    steps, slots = gradients([between])
    steps[1].args.append(Use(7))  # the peak is there already
    assert copies(packing.share(steps, [*slots, *large])) == [1, 1, 1]


def kept(between=(), nbytes=1 << 20):
    """Two products (of nothing) of operands in slots 0 and 3, which lay them out in slots 1 and 4,
    with results in 2 and 5; and what is between.  Slot 6, of so many bytes, is used at first."""
    k, n = 70, 64
    copied = 4 * n * packed_step(dtypes.float32, k)
    slots, steps = [], []
    for j in (0, 3):
        slots += [Slot("temporary", 4 * k * n, -1), Slot("temporary", copied, -1)]
        slots.append(Slot("output", 4, 1))
        pack = pack_step(k, n, j, j + 1, None)
        reader = Step("", "product", (), [Use(j + 1), Use(j + 2)], (64,), (64,), "product")
        pack.writes = reader.writes = frozenset({j + 1, j + 2})
        steps += [*(between if j else ()), pack, reader]
    makers = [Step("", "map", (), [Use(j)], (64,), (64,), "map") for j in (0, 3)]
    for maker, j in zip(makers, (0, 3), strict=True):
        maker.writes = frozenset({j})
    return [writer(6), *makers, *steps], [*slots, Slot("temporary", nbytes, -1)]


def test_what_is_there_is_packed_with_what_is_packed_before(dev, rng):
    steps, slots = kept([writer(2)])
    found = packing.gather(list(steps), slots, dev.info)
    others = ["product", "map", "product"]
    assert [s.name for s in found] == ["map"] * 3 + ["wgmma_pack_many"] + others
    matrices = [rng.normal(size=(70, 64)).astype(np.float32) for _ in range(2)]
    results = run(found[3:4], slots, matrices, dev)
    for j, matrix in enumerate(matrices):
        np.testing.assert_array_equal(results[3 * j + 1].reshape(64, -1)[:, :70], matrix.T)


@pytest.mark.parametrize("name", ["made later", "changed", "large", "peak", "text", ""])
def test_what_is_packed_in_its_place(dev, name, monkeypatch):
    steps, slots = kept([writer(3)] if name == "changed" else (), 4 if name == "peak" else 1 << 20)
    if name == "made later":
        steps = [*steps[:2], *steps[3:5], steps[2], *steps[5:]]
    elif name == "large":
        monkeypatch.setattr(packing, "MOST_TOGETHER", 2 * slots[1].nbytes - 1)
    elif name == "text":
        steps[5].source += "//"
    found = packing.gather(list(steps), slots, dev.info)
    assert (found == steps) == (name != "")


def test_a_loop_packs_in_each_step(dev):
    steps, slots = gradients()
    repeated = [*steps[:2], *steps[:2]]
    assert packing.share(repeated, slots) == repeated


@pytest.mark.parametrize("solver, widths, packs", [
    ("wgmma_transposed", (72, 72, 40), ["wgmma_pack"]),  # x, for all of them
    ("wgmma_left", (40, 40, 36), ["wgmma_pack_many"]),  # the slopes
])  # fmt: skip
def test_gradients_of_filters(monkeypatch, rng, solver, widths, packs):
    """Of three filters that read one x; matrix units are emulated."""
    emulated.install(monkeypatch.setattr)
    monkeypatch.setenv("KERASCL_SOLVERS", solver)
    database._choose.cache_clear()
    try:
        x = rng.standard_normal((200, 72)).astype(np.float32)
        slopes = [rng.standard_normal((200, n)).astype(np.float32) for n in widths]
        function = kc.jit(lambda x, *slopes: [kc.matmul(x.T, dy) for dy in slopes])
        args = [kc.array(v) for v in (x, *slopes)]
        for _ in range(2):
            found = function(*args)
        names = [step.name for step in function.captured(*args).program.steps]
        assert [name for name in names if "pack" in name] == packs
        assert names.count("wgmma_transposed") >= 3
        for got, dy in zip(found, slopes, strict=True):
            wanted = x.T.astype(np.float64) @ dy
            assert np.linalg.norm(got.numpy() - wanted) < 1e-5 * np.linalg.norm(wanted)
    finally:
        database._choose.cache_clear()
