"""Launches of a loop's iteration that become one, of a single work-group where no GPU is."""

import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program import expand, parts, resident, resident_selftest, schedule, staying
from kerascl.compiler.program.expand import Unsupported
from kerascl.compiler.program.parts import Shape
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.compiler.program.staying import Address, Call, Launch, Team, Value
from kerascl.kernels.contract import solver as contract
from kerascl.kernels.contract.plan import Counters
from kerascl.kernels.tuning import database
from kerascl.runtime import addresses, programs
from tests import profiles
from tests.kernels import ptx

HOPPER = Team(132, 512, True, False)


@pytest.fixture
def staying_on(monkeypatch):
    """Launches stay, by one work-group."""
    monkeypatch.setenv("KERASCL_RESIDENT", "2")
    monkeypatch.setattr(kc.engine, "programs", {})


@pytest.fixture(params=["here", "rtx4090"])
def device_of(request, dev, monkeypatch, staying_on):
    """The device as it is, and with the schedules of a GPU."""
    if request.param != "here":
        card = profiles.load()[request.param].info
        monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, card))
    return request.param


def launches(function, *args):
    """The names of the kernels in a captured function's loops, in order."""
    steps = function.captured(*args).program.steps
    return [leaf.name for step in steps if step.label == "loop" for leaf in step.leaves]


def close(found, wanted, tolerance=1e-5):
    found = np.asarray(found, np.float64)
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


def test_solvers_of_a_loop_are_chosen_as_those_that_join(staying_on, monkeypatch):
    """Around the loop, and in one whose launches do not stay, a launch costs what it costs."""
    asked, before = [], database._compared
    monkeypatch.setattr(
        database, "_compared", lambda kind, *args: asked.append((args[2].n, contract.joined()))
        or before(kind, *args),
    )  # fmt: skip

    def function(x, w, u):
        def body(k, x):
            return k + 1, x @ w

        return kc.while_loop(lambda k, x: k < kc.sum(w) * 0 + 3, body, (kc.array(0), x))[1] @ u

    for stays in (True, False):
        monkeypatch.setenv("KERASCL_RESIDENT", "2" if stays else "0")
        monkeypatch.setattr(kc.engine, "programs", {})
        database.forget()
        args = [kc.array(np.full(shape, 0.1, np.float32)) for shape in ((1, 20), (20, 20), (20, 7))]
        kc.jit(function)(*args).numpy()
        assert set(asked) == {(20, stays), (7, False)}
        asked.clear()


# -- values


def layer(x, k, w, u, cache, library):
    """A step as of text that is generated: it normalises, asks a cache, and adds a product."""
    width = x.shape[-1]
    mean = library.mean(x, axis=-1, keepdims=True)
    y = (x - mean) / library.sqrt(library.mean((x - mean) ** 2, axis=-1, keepdims=True) + 1e-5)
    if library is np:
        cache = cache.copy()
    cache[k] = (y @ u)[0]
    logits = library.where(library.arange(len(cache)) > k, -1e9, y @ cache.T / width**0.5)
    weights = library.exp(logits - library.max(logits, axis=-1, keepdims=True))
    weights = weights / library.sum(weights, axis=-1, keepdims=True)
    return x + library.tanh(weights @ cache @ w), cache


@pytest.mark.parametrize("width", [64, 200])
def test_a_loop_of_products_reductions_and_maps(device_of, rng, width):
    rows = 13
    # so small that rounding errors do not grow from step to step
    x = rng.standard_normal((1, width))
    w, u = (rng.standard_normal((width, width)) / (2 * width**0.5) for _ in range(2))
    cache = np.zeros((rows, width))

    def function(x, w, u, cache, n):
        def body(k, x, cache):
            return (k + 1, *layer(x, k, w, u, cache, kc))

        return kc.while_loop(lambda k, *_: k < n, body, (kc.array(0), x, cache))[1:]

    run = kc.jit(function)
    for n in (rows, 0, 5):
        args = [kc.array(a.astype(np.float32)) for a in (x, w, u, cache)]
        args.append(kc.array(np.int32(n)))
        found = [a.numpy() for a in run(*args)]
        wanted, kept = x, cache
        for k in range(n):
            wanted, kept = layer(wanted, k, w, u, kept, np)
        close(found[0], wanted)
        close(found[1], kept)
    assert "resident" in launches(run, *args)


def test_results_are_those_of_single_launches(device_of, rng, monkeypatch):
    """Also of what is drawn at random: the kernels are the same."""
    logits = rng.standard_normal((3, 500)).astype(np.float32)
    seed = int(rng.integers(0, 2**31))

    def function(logits, n):
        def body(k, key, tokens, logits):
            key, own = kc.random.split(key)
            top, index = kc.top_k(logits, 7)
            drawn = kc.argmax(top + kc.random.gumbel(own, top.shape), axis=-1)
            token = kc.take_along_axis(index, kc.expand_dims(drawn, -1), axis=-1)
            chosen = kc.arange(500) == token
            return k + 1, key, tokens * 31 + token, kc.where(chosen, logits - 3, logits * 0.99)

        start = (kc.array(np.int32(0)), kc.random.key(seed), kc.zeros((3, 1), "int32"), logits)
        return kc.while_loop(lambda k, *_: k < n, body, start)[1:]

    results = []
    for setting in ("2", "0"):
        monkeypatch.setenv("KERASCL_RESIDENT", setting)
        monkeypatch.setattr(kc.engine, "programs", {})
        run = kc.jit(function)
        args = kc.array(logits), kc.array(np.int32(9))
        results.append([a.numpy() for a in run(*args)])
        assert ("resident" in launches(run, *args)) == (setting == "2")
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("bound", [2, 9])
def test_loops_in_loops_whose_ends_both_depend_on_values(device_of, rng, bound):
    """An inner loop must not run once the outer one has ended: the host learns of that later, and
    where a bound ended the inner one its condition still holds."""
    width = 48
    w = (rng.standard_normal((width, width)) / 14).astype(np.float32)
    x = rng.standard_normal((1, width)).astype(np.float32)

    def function(x, w, most):
        def outer(turns, x, sums, total):
            def inner(k, y, sums):
                y = kc.tanh(y @ w) + 0.1
                y = y - kc.mean(y)
                return k + 1, y, sums + y * y

            # the sums of a turn begin anew, so they are made where the outer loop's result lies
            end = 3 + turns % 3
            start = (kc.array(np.int32(0)), x + 1, kc.zeros_like(sums))
            _, y, sums = kc.while_loop(lambda k, *_: k < end, inner, start, bound)
            x = kc.tanh(y @ w) * 2
            return turns + 1, x - kc.max(x), sums, total + kc.sum(sums)

        start = (kc.array(np.int32(0)), x, x, kc.array(np.float32(0)))
        return kc.while_loop(lambda *carry: carry[-1] < most, outer, start)

    run = kc.jit(function)
    for most in (300.0, 0.0, 40.0):
        turns, z, sums, total = 0, x.astype(np.float64), x.astype(np.float64), 0.0
        while total < most:
            y, sums = z + 1, 0.0
            for _ in range(min(bound, 3 + turns % 3)):
                y = np.tanh(y @ w) + 0.1
                y = y - y.mean()
                sums = sums + y * y
            z = np.tanh(y @ w) * 2
            z, turns, total = z - z.max(), turns + 1, total + sums.sum()
        found = run(kc.array(x), kc.array(w), kc.array(np.float32(most)))
        assert int(found[0]) == turns
        close(found[1].numpy(), z)
        close(found[2].numpy(), sums)
        close(found[3].numpy().reshape(1), np.array([total]))
    # what clears the inner loop's flag where the outer one has ended stays alone
    assert launches(run, kc.array(x), kc.array(w), kc.array(np.float32(0))).count("loop_start") == 2


def test_a_gates_product_is_not_waited_for(device_of, rng, monkeypatch):
    """By the product that it is multiplied with, where both are one kernel over the same groups."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    waits, decided = resident.waits, []

    def decide(steps, *rest):
        decided[:] = zip([step.name for step in steps], waits(steps, *rest), strict=True)
        return [after for _, after in decided]

    monkeypatch.setattr(resident, "waits", decide)
    width, inner = 64, 192
    g, u, d = (rng.standard_normal(s) / 8 for s in ((width, inner), (width, inner), (inner, width)))
    x = rng.standard_normal((1, width))

    def step(library, x, g, u, d):
        gate = x @ g
        return x + (gate / (1 + library.exp(-gate)) * (x @ u)) @ d / 4

    def function(x, g, u, d, n):
        def body(k, x):
            return k + 1, step(kc, x, g, u, d)

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(np.int32(0)), x))[1]

    args = [kc.array(a.astype(np.float32)) for a in (x, g, u, d)]
    found = kc.jit(function)(*args, kc.array(np.int32(4))).numpy()
    for _ in range(4):
        x = step(np, x, g, u, d)
    close(found, x)
    if device_of != "here":
        products = [after for name, after in decided if "gemm_skinny" in name]
        assert products == [False, False, True]


def test_results_get_new_memory_in_each_call(staying_on, rng):
    """The addresses in a table are those of the call."""
    x = rng.standard_normal((4, 33)).astype(np.float32)

    def function(x, n):
        def body(k, x, y):
            return k + 1, kc.sin(x) + y, y - kc.mean(x, axis=-1, keepdims=True)

        return kc.while_loop(lambda k, *_: k < n, body, (kc.array(np.int32(0)), x, x * 2))[1:]

    run = kc.jit(function)
    kept = []
    for n in (1, 4, 2, 4):
        kept.append((n, run(kc.array(x + n), kc.array(np.int32(n)))))
    for n, found in kept:
        a = x.astype(np.float64) + n
        b = a * 2
        for _ in range(n):
            a, b = np.sin(a) + b, b - a.mean(-1, keepdims=True)
        close(found[0].numpy(), a)
        close(found[1].numpy(), b)


def test_a_profile_sees_each_kernel(dev, rng, monkeypatch):
    """The same kernels, launched one by one: KERASCL_RESIDENT=3, as `kerascl profile` has it."""
    monkeypatch.setattr(resident, "team", lambda info: Team(1, 0, False, info.device_atomics))
    x = rng.standard_normal((4, 33)).astype(np.float32)

    def function(x, n):
        def body(k, x):
            return k + 1, kc.sin(x) - kc.mean(x, axis=-1, keepdims=True) + kc.max(x)

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(np.int32(0)), x))[1]

    found = {}
    for setting in ("2", "3"):
        monkeypatch.setenv("KERASCL_RESIDENT", setting)
        monkeypatch.setattr(kc.engine, "programs", {})
        run = kc.jit(function)
        args = kc.array(x), kc.array(np.int32(4))
        found[setting] = run(*args).numpy(), launches(run, *args)
    np.testing.assert_array_equal(found["2"][0], found["3"][0])
    assert "resident" in found["2"][1] and "resident" not in found["3"][1]
    assert len(found["3"][1]) > len(found["2"][1])


# -- which steps wait


def drawn_steps(rng, count, slots):
    steps = []
    for _ in range(count):
        used = rng.choice(slots, rng.integers(1, 4), replace=False)
        step = Step("", "k", (), [Use(int(s)) for s in used], (1,), (1,))
        wrote = used[: rng.integers(0, len(used) + 1)]
        step.writes = None if rng.random() < 0.1 else frozenset(map(int, wrote))
        if step.writes and rng.random() < 0.4:
            slot = next(iter(step.writes))
            step.tiles = frozenset({(slot, int(rng.integers(0, 3)))})
        if rng.random() < 0.5:
            step.division = int(rng.integers(0, 2))
            own = used[: rng.integers(0, len(used) + 1)]
            step.aligned = frozenset((int(s), int(rng.choice([2, 4]))) for s in own)
        steps.append(step)
    return steps


def conflict(one, other, alike=True):
    """Whether two steps may not run at once; `alike` if groups of one number share a work-group."""
    for slot in one.used & other.used:
        writes = [s.used if s.writes is None else s.writes for s in (one, other)]
        if slot not in writes[0] | writes[1]:
            continue
        tiles = [{n for at, n in s.tiles if at == slot} for s in (one, other)]
        if tiles[0] and tiles[1] and tiles[0].isdisjoint(tiles[1]):
            continue
        own = {n for at, n in one.aligned & other.aligned if at == slot}
        if alike and own and one.division == other.division is not None:
            continue
        return True
    return False


def test_groups_wait_between_steps_that_depend_on_each_other_and_no_others(rng):
    flag = 0
    for _ in range(300):
        steps = drawn_steps(rng, 12, 7)
        shapes = [Shape((4,), (int(items),), 64, 64) for items in rng.choice([32, 64], 12)]
        found = resident.waits(steps, flag, shapes)
        begin = Step("", "start", (), [Use(flag)], (1,), (1,))
        begin.writes = frozenset()
        since = [(begin, None)]
        for step, shape, waits in zip(steps, shapes, found, strict=True):
            assert waits == any(conflict(other, step, shape == own) for other, own in since)
            since = [(step, shape)] if waits else [*since, (step, shape)]


def test_steps_that_need_not_wait_begin_where_others_end(rng):
    """But what goes on with what the same groups wrote begins where that did."""
    met = 0
    for _ in range(300):
        steps, groups = drawn_steps(rng, 10, 9), int(rng.integers(1, 20))
        for step in steps:  # many write what others read alike
            step.division, step.aligned = 1, frozenset((slot, 2) for slot in step.used)
        shapes = [Shape((int(n), 2), (32,), 64, 64) for n in rng.choice([3, 7], 10)]
        waiting = resident.waits(steps, 99, shapes)
        found = resident.begins(steps, waiting, shapes, groups)
        start, end = 0, 0
        for k, step in enumerate(steps):
            start, end = (k, 0) if waiting[k] else (start, end)
            same = [j for j in range(start, k) if conflict(steps[j], step, False)]
            assert all(found[j] == found[k] for j in same)
            met += len(same)
            rest = [j for j in range(start, len(steps)) if not any(waiting[start + 1 : j + 1])]
            if not any(conflict(steps[i], steps[j], False) for i in rest for j in rest if i < j):
                assert found[k] == end
                end = (end + 2 * shapes[k].groups[0]) % groups
    assert met > 20


def test_steps_of_one_level_need_not_wait(rng):
    """Each is as early as what it needs lets it be, and the memory of a carry is written when
    nobody reads it any more."""
    fewer = 0
    for _ in range(200):
        steps = drawn_steps(rng, 12, 7)
        source, target = (int(k) for k in rng.permutation(7)[:2])
        found, levels = schedule.in_levels(steps, [(source, target)])
        assert sorted(map(id, found)) == sorted(map(id, steps))
        place = {id(step): k for k, step in enumerate(found)}
        wanted = []
        for k, step in enumerate(steps):
            writes = step.used if step.writes is None else step.writes
            before = [
                j for j, other in enumerate(steps[:k])
                if conflict(other, step, False) or (target in writes and source in other.used)
            ]  # fmt: skip
            after = [
                wanted[j] + 1 for j in before
                if conflict(steps[j], step) or (target in writes and source in steps[j].used)
            ]  # fmt: skip
            wanted.append(max([0, *after, *(wanted[j] for j in before)]))
            assert all(place[id(steps[j])] < place[id(step)] for j in before)
        assert [levels[place[id(step)]] for step in steps] == wanted
        fewer += sum(resident.waits(found, 99)) < sum(resident.waits(steps, 99))
        assert sum(resident.waits(found, 99)) <= max(wanted)
    assert fewer > 20


def test_a_step_that_ends_the_loop_waits_for_those_that_look_at_its_flag():
    last = Step("", "loop_advance", (), [Use(3), Use(5)], (1,), (1,))
    last.writes = frozenset({5})
    assert resident.waits([last], 5) == [True]


def test_arrival_counters_are_a_calls_own_until_all_wait(dev, staying_on):
    source = """
    __kernel void k(__global int* x, volatile __global uint* arrivals, const int first) {
      x[get_global_id(0)] = first;
    }
    """
    steps = [
        Step(source, "k", (), [Use(slot), Counters(3), np.int32(1)], (64,), (64,))
        for slot in (0, 1, 0, 1)
    ]
    for step in steps:
        step.writes = frozenset({step.args[0].index})
    last = Step("__kernel void e(__global int* f) { *f = 0; }", "e", (), [Use(2)], (1,), (1,))
    before, (step,) = resident.repeated(
        [*steps, last], 2, [Slot("temporary", 256, -1)] * 10, dev.info, lambda nbytes: 9
    )
    assert [a for a in step.args if type(a) is Counters] == [Counters(6)]
    assert step.used == {0, 1, 2, 9} and step.writes == {0, 1, 2, 9}
    words = [int(n) for n in re.findall(r"\] = (\d+)UL", before[0].source)]
    wait = 1 << 31
    # of each call: its kind with whether all wait, and where its counters begin
    assert words == [0, 1, 0, 4, wait, 1, 0, 4, 1]


def test_what_products_read_whole_is_fetched_before_them(rng):
    mega, count, room = 1 << 20, 20, 16 << 20
    for _ in range(50):
        steps, lasting, wanted = [], {}, {}
        for k in range(count):
            step = Step("", "k", (), [Use(k), Use(99)], (1,), (1,))
            step.flops = int(rng.choice([0, 64, 2 * mega, 9 * mega]))
            step.writes = frozenset({99})
            steps.append(step)
            lasting[k] = int(rng.integers(1, 40 * mega))
            if resident.LEAST_AHEAD <= lasting[k] <= 4 * step.flops:
                wanted[k] = min(lasting[k], room)
        found = resident.ahead(steps, lasting, room)
        there = {}
        for k in [*range(count)] * 2:
            for place in found[k]:
                nbytes = place.lines * staying.LINE
                assert place.offset + nbytes < wanted[place.slot] + staying.LINE
                assert place.slot != k  # it would be read at once
                there[place.slot] = there.get(place.slot, 0) + nbytes
            assert sum(there.values()) <= room
            there.pop(k, None)
        assert len(wanted) < 2 or any(found)
    steps = [Step("", "k", (), [Use(k)], (1,), (1,), flops=3 * mega) for k in range(4)]
    found = resident.ahead(steps, dict.fromkeys(range(4), 6 * mega), 12 * mega)
    for k, places in enumerate(found):  # the one after the next, as it begins anew
        assert [p.slot for p in places] == [(k + 1) % 4] * (6 * mega // resident.PIECE)
        assert sum(p.lines for p in places) * staying.LINE == 6 * mega


def test_large_launches_stay_alone(dev, staying_on):
    source = "__kernel void k(__global int* x) { x[get_global_id(0)] += 1; }"
    sizes = (64, 64, 64, resident.MOST_ITEMS * 2, 64, 64, 64, 64)
    steps = [Step(source, "k", (), [Use(0)], (size,), (64,)) for size in sizes]
    steps[-1].flops = resident.MOST_FLOPS + 1
    last = Step("__kernel void e(__global int* f) { *f = 0; }", "e", (), [Use(1)], (1,), (1,))
    slots = [Slot("temporary", 8 * resident.MOST_ITEMS, -1)] * 4
    found = resident.repeated([*steps, last], 1, slots, dev.info, lambda nbytes: 3)[1]
    assert [step.name for step in found] == ["resident", "k", "resident", "k", "e"]
    assert [step.args[-1] for step in found if step.name == "k"] == [Use(1)] * 2  # heeds the flag


# -- texts


def test_what_a_preprocessor_does():
    source = """
    #define A(x, y) x##_##y + B(x)  // a comment
    #define B(x) #x /* another */ C
    #define C A
    #if defined(FLAG) && FLAG * 2 == 6 || !defined(OTHER) && 0
    #define D(x) (x \\
                  - 1)
    #elif 1
    error
    #else
    error
    #endif
    #ifdef NOTHING
    # if 1
    error
    # endif
    #else
    int first = A(p, q), second = D((1, 2));
    #endif
    #pragma unroll
    #undef A
    int third = A(1);
    """
    found = " ".join(expand.expanded(source, ("-DFLAG=3", "-cl-std=CL3.0")))
    assert found == (
        'int first = p_q + "p" A , second = ( ( 1 , 2 ) - 1 ) ; '
        "#pragma unroll int third = A ( 1 ) ;"
    )
    assert expand.constant(expand.tokens("(7 - 9) / 2 * -3 + (1 << 4 | 3) % 5 - sizeof(float4)"),
                           parts.SIZES) == 3 + 19 % 5 - 16  # fmt: skip
    for text in ("#ifdef cl_khr_fp64\n#endif", "#include <a>", "#if __OPENCL_VERSION__\n#endif"):
        with pytest.raises(Unsupported):
            expand.expanded(text, ())


PLACES = """
typedef struct { int value; } item_t;
typedef int word_t;
inline uint asked(uint add) { return get_group_id(1) * 100 + add; }
inline int not_asked(int x) { return x + 1; }
__kernel __attribute__((reqd_work_group_size(8, 4, 1))) void places(
    __global const item_t* restrict from, __global item_t* to, const word_t add,
    __local int* given) {
  __local word_t part[4][8], extra;
  const int x = get_local_id(0), y = get_local_id(1);
  part[y][x] = from[get_global_id(1) * get_global_size(0) + get_global_id(0)].value;
  given[y * 8 + x] = asked(1);
  if (x + y == 0) extra = get_group_id(0) + get_num_groups(0) * 10 + get_local_size(1) * 1000;
  barrier(CLK_LOCAL_MEM_FENCE);
  to[get_global_id(1) * get_global_size(0) + get_global_id(0)].value =
      not_asked(part[3 - y][7 - x]) + given[0] * 100000 + extra + add;
}
"""


def test_a_kernel_of_two_dimensions_with_local_memory_of_all_kinds(dev, rng):
    options = programs.always(dev.info)
    groups, local = (3, 5), (8, 4)
    alone = Shape(groups, local, 32, 32)
    probe = parts.part(PLACES, "places", options, alone, (128,))
    team = Team(1, 0, False, dev.info.device_atomics)
    shape = staying.shape(probe, alone, team, 32, dev.info)
    part = parts.part(PLACES, "places", options, shape, (128,))
    calls = [
        Call(part, shape, (Address(a), Address(b, offset), Value(k, f"{k}")), True)
        for k, (a, b, offset) in enumerate([(0, 1, 0), (1, 0, 0), (0, 1, 4)])
    ]
    launch = Launch(calls, team, 32)
    x = rng.integers(-1000, 1000, (20, 24)).astype(np.int32)
    memory = [dev.buffers.allocate(x.nbytes + 64) for _ in range(2)]
    flag, table = dev.buffers.allocate(4), dev.buffers.allocate(8 * (16 + len(launch.table)))
    dev.queue.write(memory[0], x)
    dev.queue.fill(memory[1], b"\xff")
    dev.queue.write(flag, np.array([1], np.int32))
    fill = dev.programs.kernel(staying.table_text(launch.table, (0, 1), True), "resident_table")
    dev.queue.launch(fill, (1,), (1,), (*memory, table))
    made = dev.programs.kernel(
        launch.source, Launch.NAME, ("-cl-std=CL3.0",) if team.standard else ()
    )
    dev.queue.launch(made, (32,), (32,), (flag, table))

    def step(x, add):
        y = np.empty_like(x)
        for b in range(5):
            for a in range(3):
                box = x[4 * b : 4 * b + 4, 8 * a : 8 * a + 8]
                y[4 * b : 4 * b + 4, 8 * a : 8 * a + 8] = (
                    box[::-1, ::-1] + 1 + (b * 100 + 1) * 100000 + a + 30 + 4000 + add
                )
        return y

    wanted = step(step(step(x, 0), 1), 2)
    found = np.empty(x.size + 1, np.int32)
    dev.queue.read(memory[1], found)
    np.testing.assert_array_equal(found[1:].reshape(x.shape), wanted)


def test_each_line_is_fetched_by_one_work_item(dev, monkeypatch):
    """A line that is fetched is counted here, where its first word lies."""
    counted = "atomic_inc((volatile __global uint*)at);"
    monkeypatch.setattr(staying, "fetching", lambda address, ptx: counted)
    source = "__kernel void k(__global int* x) { *x = 7; }"
    alone = Shape((1,), (1,), 1, 1)
    team = Team(1, 16, False, dev.info.device_atomics)
    shape = staying.shape(parts.part(source, "k", (), alone), alone, team, 16, dev.info)
    call = Call(parts.part(source, "k", (), shape), shape, (Address(0),))
    launch = Launch([call, call], team, 16, [[Address(1, 256, 37), Address(1, 8192, 2)], []])
    memory = [dev.buffers.allocate(n) for n in (4, 16384)]
    flag, table = dev.buffers.allocate(4), dev.buffers.allocate(8 * (16 + len(launch.table)))
    dev.queue.fill(memory[1], bytes(4))
    dev.queue.write(flag, np.array([1], np.int32))
    fill = dev.programs.kernel(staying.table_text(launch.table, (0, 1), True), "resident_table")
    dev.queue.launch(fill, (1,), (1,), (*memory, table))
    options = ("-cl-std=CL3.0",) if team.standard else ()
    made = dev.programs.kernel(launch.source, Launch.NAME, options)
    dev.queue.launch(made, (16,), (16,), (flag, table))
    found = dev.queue.read(memory[1], np.empty(4096, np.uint32)).reshape(-1, 32)
    wanted = np.zeros_like(found)
    wanted[[*range(2, 39), 64, 65], 0] = 1
    np.testing.assert_array_equal(found, wanted)
    assert dev.queue.read(memory[0], np.empty(1, np.int32)) == 7


def test_no_part_reads_past_what_other_groups_wrote():
    """NVIDIA's compiler makes ld.global.nc of what is `const restrict`: not coherent."""
    shape = Shape((3, 5), (8, 4), 32, 32)
    part = parts.part(PLACES, "places", (), shape, (128,))
    text = "".join(text for _, text in part.items)
    assert "restrict" not in text and not re.search(r"__global\s+const", text)
    assert part.meets and part.local_bytes == 384 and part.local_args == (256,)


@pytest.mark.parametrize("items, stride, teams", [(7, 32, 16), (32, 32, 16), (96, 96, 5),
                                                  (256, 256, 2), (512, 512, 1)])  # fmt: skip
def test_teams_of_a_work_group(items, stride, teams):
    info = profiles.load()["rtx4090"].info
    source = "__kernel void k(__global int* x) { barrier(1); *x = get_local_id(0); }"
    alone = Shape((9,), (items,), items, items)
    shape = staying.shape(parts.part(source, "k", (), alone), alone, HOPPER, 512, info)
    assert (shape.stride, shape.teams) == (stride, teams)
    text = dict(parts.part(source, "k", (), shape).items)
    if items < 512:
        wanted = f"bar.warp.sync {2**items - 1};" if items <= 32 else f"bar.sync %0, {items};"
        assert wanted in text[f"kr_meet_{items}"]
    assert staying.shape(parts.part(source, "k", (), alone), alone,
                         dataclasses.replace(HOPPER, named=False), 512, info) == (
        shape if items == 512 else None)  # fmt: skip


@pytest.mark.parametrize("text", [
    'asm("bar.sync 0;");', "work_group_reduce_add(1);", "sub_group_barrier(1);",
    "__local struct s x;",
])  # fmt: skip
def test_what_a_team_cannot_do_is_left_alone(text):
    source = f"__kernel void k(__global int* x) {{ {text} *x = 0; }}"
    with pytest.raises(Unsupported):
        parts.part(source, "k", (), Shape((1,), (64,), 64, 64))


def test_weights_are_read_before_others_have_written(dev, device_of, rng):
    """A product's function waits by itself, behind its loads of what the loop only reads."""
    width = 640
    x, w = rng.standard_normal((1, width)), rng.standard_normal((width, width)) / width**0.5

    def function(x, w, n):
        def body(k, x):
            return k + 1, kc.tanh(x @ w) + 0.5 * x

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(0), x))[1]

    run = kc.jit(function)
    args = kc.array(x.astype(np.float32)), kc.array(w.astype(np.float32)), kc.array(np.int32(7))
    for _ in range(7):
        x = np.tanh(x @ w) + 0.5 * x
    close(run(*args).numpy(), x)
    (text,) = {
        leaf.source for step in run.captured(*args).program.steps if step.label == "loop"
        for leaf in step.leaves if leaf.name == "resident"
    }  # fmt: skip
    waits = text.count("if (kr_due) kr_wait(kr_call, kr_word, kr_turn)")
    assert waits == (dev.info.kind == "gpu")  # processors' products have no loads under way


# -- the self-test


def test_the_self_test_by_one_group(dev):
    if "cuts_loops" in dev.info.quirks:
        pytest.skip("one group runs all groups of all calls, more than a loop may have rounds here")
    resident_selftest.exercise(dev, Team(1, 0, False, dev.info.device_atomics), 2, 2)


def test_the_self_test_finds_a_wrong_result(dev, monkeypatch):
    monkeypatch.setattr(resident_selftest, "_MIX", resident_selftest._MIX.replace("* 3u", "* 5u"))
    with pytest.raises(kc.runtime.device.DeviceError, match="wrong result in round 0"):
        resident_selftest.exercise(dev, Team(1, 0, False, dev.info.device_atomics), 2, 2)


# Bytes, of values that all calls need and few use; what NVIDIA's own compiler keeps may differ.
SPILLS = 16


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
def test_a_launch_for_hopper_compiles_and_spills_little():
    info = dataclasses.replace(profiles.load()["rtx4090"].info, nvidia_capability=(9, 0))
    launch, _ = resident_selftest.made(info, HOPPER)
    used = ptx.resources(launch.source, "sm_90", 512)
    assert used["spills"] <= SPILLS and used["registers"] <= 128


@pytest.mark.skipif(not ptx.available(), reason="needs clang-15 and ptxas")
def test_a_launch_for_hopper_is_assembled_as_it_is_compiled():
    """What takes addresses anyway need not be rewritten, and assembled again, to take them."""
    info = dataclasses.replace(profiles.load()["rtx4090"].info, nvidia_capability=(9, 0))
    launch, _ = resident_selftest.made(info, HOPPER)
    seen = []
    ptx.resources(launch.source, "sm_90", 512, lambda text: seen.append(text) or text)
    assert [addresses.plain(text) for text in seen] == seen and b".entry resident" in seen[0]
