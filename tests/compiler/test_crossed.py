"""Sums along rows and over all rows of the same values in one pass, as a norm's gradients take:
with the work-groups of a GPU on whatever device there is, and for the facts of cards."""

import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.fuse.group import group
from kerascl.compiler.generate import crossed, rows
from kerascl.compiler.program import multi
from kerascl.compiler.program.lower import lower
from kerascl.kernels.contract.lanes import Lanes
from tests import profiles
from tests.compiler.graphs import argument, epilogues_only, nodes_of
from tests.compiler.test_agreement import EMULATION
from tests.kernels import ptx

EPSILON = 1e-5
# A bound of relative errors for what is rounded to a dtype, and one for sums of float32.
ROUNDING = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 2e-6}
SUMS = 2e-6


@pytest.fixture(params=["local memory", "lanes"])
def made(request, dev, as_gpu, monkeypatch, launches):
    """The device with the work-groups of a GPU; gives the kernels for rows and columns."""
    as_gpu(2, 512)
    # what its compiler does wrongly are choices from one row to another: there are none
    quirks = dev.info.quirks - {"keeps_choices_wrongly"}
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=quirks))
    lanes = None
    if request.param == "lanes":
        lanes, places = Lanes(32, EMULATION), crossed._places
        monkeypatch.setattr(
            crossed, "_places", lambda layout: ["__local uint of_lanes[512];", *places(layout)]
        )
    monkeypatch.setattr(crossed, "lanes_of", lambda info: lanes)
    monkeypatch.setattr(rows, "lanes_of", lambda info: None)
    found, inner = [], crossed.kernels

    def noted(*args):
        kernels = inner(*args)
        found.extend(kernels.launches)
        return kernels

    monkeypatch.setattr(crossed, "kernels", noted)
    return found


@pytest.fixture
def poisoned(dev, monkeypatch):
    """Memory that nothing has written holds NaN."""
    allocate = dev.buffers.allocate

    def poison(nbytes, *args, **options):
        buffer = allocate(nbytes, *args, **options)
        dev.queue.fill(buffer, b"\xff", 0, nbytes)
        return buffer

    monkeypatch.setattr(dev.buffers, "allocate", poison)


def wide(x):
    return x.astype("float32")


def gradients(g, x, other, mean, variance, gamma):
    """Those of a layer norm: of its input, added to another, of its weights, and of what was added
    to its input in each row."""
    inverse = kc.rsqrt(variance + EPSILON)
    scaled, away = wide(g) * gamma, (wide(x) - mean) * inverse
    along = kc.mean(scaled * away, -1, keepdims=True)
    own = (scaled - kc.mean(scaled, -1, keepdims=True) - away * along) * inverse
    slope = other + own.astype(g.dtype)
    before = tuple(range(len(g.shape) - 1))
    return slope, kc.sum(wide(g) * away, before), kc.sum(wide(g), before), kc.sum(slope, before)


def expected(g, x, other, mean, variance, gamma, slope):
    """The same in float64; `slope` as it was stored, whose sums are taken."""
    inverse = 1 / np.sqrt(variance + EPSILON)
    scaled, away = g * gamma, (x - mean) * inverse
    along = (scaled * away).mean(-1, keepdims=True)
    own = other + (scaled - scaled.mean(-1, keepdims=True) - away * along) * inverse
    before = tuple(range(g.ndim - 1))
    return own, (g * away).sum(before), g.sum(before), slope.sum(before)


def drawn(rng, shape, dtype):
    """An array of a dtype, and what it holds in float64."""
    x = kc.array(rng.normal(size=shape).astype(np.float32)).astype(dtype)
    return x, host(x)


def host(x):
    return x.astype("float32").numpy().astype(np.float64)


def close(found, wanted, bound):
    assert found.shape == wanted.shape
    error = np.linalg.norm(host(found) - wanted)
    assert error <= bound * np.linalg.norm(wanted)  # False for NaN, which poisoned memory has


def arguments(rng, shape, dtype):
    """Of `gradients`, and what they hold."""
    made = [drawn(rng, shape, dtype) for _ in range(3)]
    x = made[1][1]
    made += [(kc.array(v.astype(np.float32)), v.astype(np.float32).astype(np.float64))
             for v in (x.mean(-1, keepdims=True), x.var(-1, keepdims=True))]  # fmt: skip
    made.append(drawn(rng, shape[-1:], "float32"))
    return [x for x, _ in made], [v for _, v in made]


# rows that fill groups, and that do not; several kept dimensions; one vector a work-item
SHAPES = [(2048, 768), (1999, 1024), (40, 51, 256), (1201, 512)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.every(3)
def test_gradients_of_a_layer_norm(made, poisoned, rng, shape, dtype):
    given, held = arguments(rng, shape, dtype)
    found = kc.jit(gradients)(*given)
    wanted = expected(*held, host(found[0]))
    close(found[0], wanted[0], 2 * ROUNDING[dtype])
    for x, y, bound in zip(found[1:], wanted[1:], (SUMS, SUMS, ROUNDING[dtype]), strict=True):
        close(x, y, bound)
    first, _ = made
    assert sum("float* w" in x for x in first.source.params) == 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_an_rms_norm_behind_dropout(made, poisoned, rng, dtype):
    """What is read is computed on the way, two results are stored, and a sum is rounded."""
    shape = 1000, 256
    (g, x), (steep, flat) = zip(*(drawn(rng, shape, dtype) for _ in range(2)), strict=True)
    kept = rng.random(shape) < 0.8
    gamma, weight = drawn(rng, shape[-1:], "float32")

    @kc.jit
    def step(g, x, keep, gamma):
        x = kc.where(keep, x * 1.25, 0).astype(x.dtype)
        inverse = kc.rsqrt(kc.mean(kc.square(wide(x)), -1, keepdims=True) + EPSILON)
        away = wide(x) * inverse
        along = kc.mean(wide(g) * gamma * away, -1, keepdims=True)
        slope = ((wide(g) * gamma - away * along) * inverse).astype(g.dtype)
        new = gamma - 0.1 * kc.sum(wide(g) * away, 0)
        return slope, kc.where(keep, slope * 1.25, 0).astype(g.dtype), new, new.astype(g.dtype)

    found = step(g, x, kc.array(kept), gamma)
    flat = np.where(kept, host((x * 1.25).astype(x.dtype)), 0)
    inverse = 1 / np.sqrt(np.square(flat).mean(-1, keepdims=True) + EPSILON)
    away = flat * inverse
    along = (steep * weight * away).mean(-1, keepdims=True)
    slope = (steep * weight - away * along) * inverse
    new = weight - 0.1 * (steep * away).sum(0)
    bounds = ROUNDING[dtype], 2 * ROUNDING[dtype], SUMS, ROUNDING[dtype]
    for x, y, bound in zip(found, (slope, np.where(kept, slope * 1.25, 0), new, new), bounds,
                           strict=True):  # fmt: skip
        close(x, y, bound)
    assert len(made) == 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_several_rows_have_in_common(made, poisoned, rng, dtype):
    """As the gradient of a mean over a text, and embeddings of places, is asked for a row before,
    too; two weights take registers."""
    (g, steep), (place, at) = (drawn(rng, n, dtype) for n in ((40, 1, 256), (1, 51, 256)))
    x, flat = drawn(rng, (40, 51, 256), dtype)
    (gamma, weight), (beta, bias) = (drawn(rng, (256,), "float32") for _ in range(2))

    @kc.jit
    def step(g, x, place, gamma, beta):
        away = (wide(x) + wide(place)) * beta
        along = kc.mean(wide(g) * gamma * away, -1, keepdims=True)
        slope = (wide(g) * gamma - away * along).astype(g.dtype)
        return slope, kc.sum(wide(g) * away, (0, 1)), kc.sum(wide(x) + wide(g), (0, 1))

    found = step(g, x, place, gamma, beta)
    away = (flat + at) * bias
    slope = steep * weight - away * (steep * weight * away).mean(-1, keepdims=True)
    close(found[0], slope, 2 * ROUNDING[dtype])
    close(found[1], (steep * away).sum((0, 1)), SUMS)
    close(found[2], (flat + steep).sum((0, 1)), SUMS)
    first, _ = made
    text = first.source.body
    head, loop = text.split("for (int block", 1)
    assert text.count("next_") >= 6 and "/51" in head and "%51" in head
    assert "const" in loop and not re.search(r"const \w+ (vec|val)\d+ = [^;]*buf\d", loop)


def test_sums_of_what_follows_from_a_rows_extreme(made, poisoned, rng):
    x, held = drawn(rng, (999, 384), "float32")

    @kc.jit
    def step(x):
        e = kc.exp(x - kc.max(x, 1, keepdims=True))
        return kc.sum(e, 0), kc.sum(e, 1), kc.max(x, 1), kc.max(e, 0), kc.sum(x > 0, 1)

    over, along, most, steep, count = step(x)
    e = np.exp(held - held.max(1, keepdims=True))
    close(over, e.sum(0), SUMS)
    close(along, e.sum(1), SUMS)
    np.testing.assert_array_equal(most.numpy(), held.max(1))
    close(steep, e.max(0), SUMS)
    np.testing.assert_array_equal(count.numpy(), (held > 0).sum(1))
    assert len(made) == 2


def test_sums_of_many_rows_keep_their_digits(made, rng):
    """Of numbers that do not cancel, whose sum a chain of additions would get wrong."""
    x = kc.array((rng.random((60_000, 128)) + 1).astype(np.float32))
    over, along = kc.jit(lambda x: (kc.sum(x, 0), kc.sum(x, 1)))(x)
    held = host(x)
    assert np.abs(host(over) / held.sum(0) - 1).max() < 1e-6
    assert np.abs(host(along) / held.sum(1) - 1).max() < 1e-6
    first, _ = made
    assert first.global_size[0] // 32 * 64 >= 60_000  # of 32 work-items a row 64 turns at most


def test_weights_that_are_updated_in_place(made, rng):
    """The pass reads weights that its second kernel replaces."""
    given, held = arguments(rng, (700, 256), "float32")
    weight = kc.State(given.pop())
    old = held[-1]

    @kc.jit
    def step(g, x, other, mean, variance):
        slope, over, *_ = gradients(g, x, other, mean, variance, weight.value)
        weight.assign(weight.value - 1e-3 * over)
        return slope

    for _ in range(3):
        slope = step(*given)
        wanted, over, *_ = expected(*held, host(slope))
        close(slope, wanted, 2 * ROUNDING["float32"])
        held[-1] = held[-1] - 1e-3 * over
    close(weight.value, held[-1], SUMS)
    assert made and np.abs(held[-1] - old).max() > 1e-3


def test_memory_of_weights_is_used_again():
    given = [argument(12608, 768) for _ in range(3)]
    given += [argument(12608, 1), argument(12608, 1), argument(768)]
    slope, over, *_ = gradients(*given)
    arrays = slope, given[-1] - 0.1 * over
    nodes = nodes_of(*arrays)
    program = lower(nodes, [x._node for x in arrays], card(), False)
    assert "columns" in program.steps[0].name
    slots = {s.node: k for k, s in enumerate(program.slots)}
    weight, new = (slots[nodes.index(x._node)] for x in (given[-1], arrays[1]))
    assert program.may_overwrite(weight, new)
    large = {slots[nodes.index(x._node)] for x in given[:3]}
    assert not any((k, slots[nodes.index(slope._node)]) in program.aliases for k in large)


def test_in_the_body_of_a_loop(made, poisoned, rng):
    """Each step stores its sums, and what is along its rows, at its own place."""
    x, held = drawn(rng, (600, 256), "float32")

    def step(x, _):
        along = x / (1 + kc.sum(kc.abs(x), 1, keepdims=True))
        return along * 100, (kc.sum(along, 0), along, kc.sum(x, 0))

    last, every = kc.jit(lambda x: kc.scan(step, x, length=3))(x)
    for k in range(3):
        along = held / (1 + np.abs(held).sum(1, keepdims=True))
        for found, want in zip(every, (along.sum(0), along, held.sum(0)), strict=True):
            close(found[k], want, 2 * SUMS)
        held = along * 100
    close(last, held, SUMS)
    assert made


def test_the_same_sums_each_time(made, rng):
    given, _ = arguments(rng, (1500, 256), "float32")
    other, _ = arguments(rng, (1500, 256), "float32")
    step = kc.jit(gradients)
    before = [x.numpy() for x in step(*given)]
    step(*other)
    for x, y in zip(before, step(*given), strict=True):
        np.testing.assert_array_equal(x, y.numpy())
    assert made


# -- where it is done: facts of cards, no device ------------------------------
def card(name="rtx4090"):
    return profiles.load()[name].info


def steps(arrays, info, generic=False):
    """The launches of a graph on a device of these facts, by their names."""
    roots = [x._node for x in arrays]
    return [step.name for step in lower(nodes_of(*arrays), roots, info, generic).steps]


def norm(*shape, dtype="bfloat16"):
    dtype = getattr(kc.dtypes, dtype)
    given = [argument(*shape, dtype=dtype) for _ in range(3)]
    given += [argument(*shape[:-1], 1), argument(*shape[:-1], 1), argument(shape[-1])]
    return gradients(*given)


CARDS = ["rtx4090", "gtx1080", "mi300x", "rx7900xtx", "a770", "max1550"]


@pytest.mark.parametrize("name", CARDS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_norms_gradients_are_one_pass(name, dtype):
    first, second = steps(norm(250, 200, 768, dtype=dtype), card(name))
    assert "columns" in first and "_2" in second


def h200():
    facts = {"name": "NVIDIA H200", "compute_units": 132, "nvidia_capability": (9, 0)}
    return dataclasses.replace(card(), **facts)


def test_two_weights_leave_work_items_fewer_registers():
    x, *weights = argument(12544, 768), argument(768), argument(768)
    sizes = []
    for count in 1, 2:
        scaled = x * weights[0] + (weights[1] if count > 1 else 1)
        away = kc.abs(x) - kc.mean(scaled, -1, keepdims=True)
        arrays = away, kc.sum(x, 0), kc.sum(scaled, 0)
        program = lower(nodes_of(*arrays), [a._node for a in arrays], h200(), False)
        sizes.append(program.steps[0].local_size[0])
        assert program.steps[0].global_size[0] == 132 * sizes[-1]
    assert sizes[1] < sizes[0]


def test_second_kernels_of_unlike_norms_are_one_launch(monkeypatch):
    """As they all have as many groups, of however many work-items."""
    monkeypatch.setattr(multi, "SMALL", 1 << 22)  # as where other steps need more memory
    arrays = norm(4096, 768)[:3]
    x, weight = argument(4096, 768), argument(768)
    along = x * weight - kc.mean(x * weight, -1, keepdims=True)
    arrays += along, kc.sum(x * kc.abs(along), 0), kc.sum(x, 0)
    names = steps(arrays, h200())
    assert sum("columns" in name for name in names) == 2
    assert sum("_2_" in name for name in names if "columns" not in name) == 1


def test_on_an_h200():
    info = h200()
    for dtype in "float32", "bfloat16":
        for rows_ in 12608, 8192, 4096:
            for length in 768, 1024:
                assert len(steps(norm(rows_, length, dtype=dtype), info)) == 2


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_registers_are_enough(dtype):
    """But for a few that do not change from row to row."""
    arrays = norm(12608, 768, dtype=dtype)
    program = lower(nodes_of(*arrays), [x._node for x in arrays], card(), False)
    (text,) = {step.source for step in program.steps}
    first = text[: text.index("_2_1(")].rpartition("__kernel")[0]
    used = ptx.resources(
        "#define KCL_PTX\n#define rsqrt(x) one_float(rsqrt, x)\n" + first,
        threads=program.steps[0].local_size[0],
    )
    assert used["spills"] <= 16


@pytest.mark.parametrize(
    "arrays, info, generic",
    [
        (lambda: norm(64, 768), card(), False),  # few rows
        (lambda: norm(12608, 770), card(), False),  # which are no vectors
        (lambda: norm(12608, 32768), card(), False),  # too long for registers
        (lambda: norm(12608, 768), dataclasses.replace(card(), registers=16), False),
        (lambda: norm(12608, 768), card(), True),  # sizes that are not known
    ],
    ids=["few", "odd", "long", "registers", "eager"],
)
def test_what_stays_apart(arrays, info, generic):
    assert not any("columns" in name for name in steps(arrays(), info, generic))


def test_not_on_a_cpu(dev):
    if dev.info.kind == "cpu":
        assert not any("columns" in name for name in steps(norm(12608, 768), dev.info))


def crossing(*arrays, takes=True):
    """The clusters of a graph, of which those for rows and columns are taken."""
    roots = [x._node for x in arrays]
    nodes = nodes_of(*arrays)
    return group(nodes, roots, epilogues_only, crosses=lambda *_: takes)[0]


def test_only_what_reads_the_same_shares_a_pass():
    x, y = argument(64, 32), argument(64, 32)
    assert len(crossing(kc.sum(x, 1), kc.sum(x, 0))) == 1
    assert len(crossing(kc.sum(x, 1), kc.sum(x, 0), takes=False)) == 2
    assert len(crossing(kc.sum(x, 1), kc.sum(y, 0))) == 2
    assert len(crossing(kc.sum(x, 1), kc.sum(x, (0, 1)))) == 2
    z = argument(8, 8, 32)
    assert len(crossing(kc.sum(z, 2), kc.sum(z, (0, 1)))) == 1
    assert len(crossing(kc.sum(z, 2), kc.sum(z, 0))) == 2
    assert len(crossing(kc.sum(z, 1), kc.sum(z, (0, 2)))) == 2


def test_a_columns_result_is_known_after_the_pass():
    x = argument(64, 64)
    over = kc.sum(x, 0, keepdims=True)
    assert len(crossing(kc.sum(x, 1), over * 2)) == 1
    assert len(crossing(kc.sum(x * over, 1))) == 2
    assert len(crossing(kc.sum(x, 1), kc.sum(x, 0) + kc.sum(x, 1))) > 1


def test_a_rows_result_is_known_to_its_columns():
    x = argument(64, 64)
    along = kc.sum(x, 1, keepdims=True)
    assert len(crossing(kc.sum(x * along, 0), along)) == 1
    turned = kc.reshape(along, (1, 64))
    assert len(crossing(kc.sum(x * turned, 0), along)) == 2


def test_clusters_stay_in_order():
    """What is between both would have to run before and after their kernel."""
    x, w = argument(64, 32), argument(32, 32)
    first = kc.sum(x, 1, keepdims=True)
    between = (x + first) @ w
    last = kc.sum(x * kc.sum(between), 0, keepdims=True)
    order = crossing(first, last)
    place = {id(m): k for k, c in enumerate(order) for m in c.members}
    assert place[id(first._node)] < place[id(last._node)]
    for k, cluster in enumerate(order):
        assert all(place.get(key, -1) <= k for key in cluster.patterns)


def test_what_lies_between_both_gets_no_memory():
    x, y = argument(64, 32), argument(64, 32)
    shared = kc.tanh(x * y) + x
    (cluster,) = crossing(kc.sum(shared, 0), kc.sum(kc.sin(shared), 1))
    assert {m.op.name for m in cluster.stores} == {"sum"}
