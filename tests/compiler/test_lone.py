"""Small launches of a loop's iteration that become one of a single work-item, on processors."""

import dataclasses
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program import lone, resident
from kerascl.compiler.program.program import Slot, Step, Use
from kerascl.kernels.tuning import machine
from tests.compiler.test_resident import close, launches, layer

pytestmark = pytest.mark.usefixtures("processor")


@pytest.fixture
def processor(dev, monkeypatch):
    if dev.info.kind != "cpu":
        pytest.skip("launches are joined so on processors")
    monkeypatch.setenv("KERASCL_RESIDENT", "1")
    monkeypatch.setattr(kc.engine, "programs", {})


def found_with(monkeypatch, setting, function, args):
    """What a captured function gives, and what its loops launch."""
    monkeypatch.setenv("KERASCL_RESIDENT", setting)
    monkeypatch.setattr(kc.engine, "programs", {})
    run = kc.jit(function)
    return [a.numpy() for a in run(*args)], launches(run, *args)


def tokens(width, rng):
    """A loop as of text that is generated, and its arguments."""
    rows = 13
    x = rng.standard_normal((1, width))
    w, u = (rng.standard_normal((width, width)) / (2 * width**0.5) for _ in range(2))

    def function(x, w, u, cache, n):
        def body(k, x, cache):
            return (k + 1, *layer(x, k, w, u, cache, kc))

        return kc.while_loop(lambda k, *_: k < n, body, (kc.array(0), x, cache))[1:]

    return function, (x, w, u, np.zeros((rows, width)))


@pytest.mark.parametrize("width", [64, 200])
def test_a_loop_of_products_reductions_and_maps(rng, width):
    function, given = tokens(width, rng)
    run = kc.jit(function)
    for n in (13, 0, 5):
        args = [kc.array(a.astype(np.float32)) for a in given]
        args.append(kc.array(np.int32(n)))
        found = [a.numpy() for a in run(*args)]
        wanted, w, u, kept = given
        for k in range(n):
            wanted, kept = layer(wanted, k, w, u, kept, np)
        close(found[0], wanted)
        close(found[1], kept)
    assert launches(run, *args).count("lone") >= 1


def test_results_are_those_of_single_launches(rng, monkeypatch):
    """KERASCL_RESIDENT=3 launches the same kernels one by one, 0 those of other loops."""
    function, given = tokens(128, rng)
    args = [kc.array(a.astype(np.float32)) for a in given] + [kc.array(np.int32(11))]
    joined, few = found_with(monkeypatch, "1", function, args)
    apart, many = found_with(monkeypatch, "3", function, args)
    others, most = found_with(monkeypatch, "0", function, args)
    assert "lone" in few and "lone" not in many + most
    assert len(few) <= len(many) - 4
    for one, other, third in zip(joined, apart, others, strict=True):
        np.testing.assert_array_equal(one, other)
        close(one, third.astype(np.float64))


def test_what_is_drawn_and_looked_up_is_that_of_single_launches(rng, monkeypatch):
    """Also integers, conditions, and what several work-items computed."""
    logits = rng.standard_normal((3, 500)).astype(np.float32)
    seed = int(rng.integers(0, 2**31))

    def function(logits, n):
        def body(k, key, tokens, logits):
            key, own = kc.random.split(key)
            drawn = kc.argmax(logits + kc.random.gumbel(own, logits.shape), axis=-1)
            token = kc.expand_dims(drawn, -1)
            chosen = kc.arange(500) == token
            return k + 1, key, tokens * 31 + token, kc.where(chosen, logits - 3, logits * 0.99)

        start = (kc.array(np.int32(0)), kc.random.key(seed), kc.zeros((3, 1), "int32"), logits)
        return kc.while_loop(lambda k, *_: k < n, body, start)[1:]

    args = kc.array(logits), kc.array(np.int32(9))
    joined, few = found_with(monkeypatch, "1", function, args)
    apart, many = found_with(monkeypatch, "3", function, args)
    assert "lone" in few and "lone" not in many
    for one, other in zip(joined, apart, strict=True):
        np.testing.assert_array_equal(one, other)


def test_loops_in_loops_end_where_values_say(rng):
    """The host enqueues iterations of both that are not wanted any more."""
    w = (rng.standard_normal((48, 48)) / 14).astype(np.float32)
    x = rng.standard_normal((1, 48)).astype(np.float32)

    def function(x, w, most):
        def outer(turns, x, total):
            def inner(k, y):
                y = kc.tanh(y @ w) + 0.1
                return k + 1, y - kc.mean(y)

            end = 3 + turns % 3
            _, y = kc.while_loop(lambda k, _: k < end, inner, (kc.array(np.int32(0)), x + 1))
            return turns + 1, kc.tanh(y @ w) * 2, total + kc.sum(y * y)

        start = (kc.array(np.int32(0)), x, kc.array(np.float32(0)))
        return kc.while_loop(lambda *carry: carry[-1] < most, outer, start)

    run = kc.jit(function)
    for most in (60.0, 0.0, 20.0):
        turns, z, total = 0, x.astype(np.float64), 0.0
        while total < most:
            y = z + 1
            for _ in range(3 + turns % 3):
                y = np.tanh(y @ w) + 0.1
                y = y - y.mean()
            turns, z, total = turns + 1, np.tanh(y @ w) * 2, total + (y * y).sum()
        found = run(kc.array(x), kc.array(w), kc.array(np.float32(most)))
        assert int(found[0]) == turns
        close(found[1].numpy(), z)
        close(found[2].numpy().reshape(1), np.array([total]))
    assert "lone" in launches(run, kc.array(x), kc.array(w), kc.array(np.float32(0)))


def test_what_other_cores_help_with_stays_alone(rng, dev, monkeypatch):
    """By the rates of the device: where a launch costs nothing nothing of several groups joins."""
    function, given = tokens(200, rng)
    args = [kc.array(a.astype(np.float32)) for a in given] + [kc.array(np.int32(3))]
    rates = machine.of(dev.info)
    counts = []
    for launch in (0.0, 1e6):
        own = dataclasses.replace(rates, launch=launch, units=4)
        with monkeypatch.context() as patch:
            patch.setattr(lone.machine, "of", lambda info, own=own: own)
            found, names = found_with(patch, "1", function, args)
        wanted, w, u, kept = given
        for k in range(3):
            wanted, kept = layer(wanted, k, w, u, kept, np)
        close(found[0], wanted)
        counts.append(len(names))
    assert counts[0] >= counts[1]


# -- single steps

_SOURCE = """
__kernel void ints(__global const float* x, __global int* memory) {
  memory[get_global_id(0)] = (int)get_global_id(0) * 3 + (int)x[get_global_id(0)];
}
__kernel void sums(__global const int* memory, __global int* out) {
  out[get_global_id(0)] = memory[get_global_id(0)] + memory[127 - get_global_id(0)];
}
__kernel void floats(__global const float* x, __global float* memory) {
  memory[127 - get_global_id(0)] = x[get_global_id(0)] * 0.5f;
}
__kernel void turned(__global const float* memory, __global float* out) {
  out[get_global_id(0)] = memory[get_global_id(0)] + get_global_size(0) + get_global_offset(0);
}
__kernel void grouped(__global const float* x, __global float* out) {
  out[get_group_id(0)] = x[get_local_id(0)];
}
__kernel void met(__global const float* x, __global float* out) {
  __local float part[16];
  part[get_local_id(0)] = x[get_global_id(0)];
  barrier(CLK_LOCAL_MEM_FENCE);
  out[get_global_id(0)] = part[15 - get_local_id(0)];
}
__kernel void asked(__global const float* x, __global float* out) {
  out[get_global_id(0)] = work_group_reduce_add(x[get_global_id(0)]);
}
__kernel void ended(__global int* flag) {
  if (*flag) *flag = 0;
}
"""
SLOTS = [Slot("temporary", 512, -1)] * 5


def step(name, *slots, size=128, local=16, **more):
    made = Step(_SOURCE, name, (), [Use(s) for s in slots], (size,), (local,), **more)
    made.writes = frozenset(slots[-1:])
    return made


def test_memory_of_several_types_is_written_and_read_in_order(rng, dev):
    """Compilers may take an int and a float for memory apart, but not across what parts meet at."""
    steps = [
        step("ints", 0, 1), step("sums", 1, 2), step("floats", 0, 1), step("turned", 1, 3),
        step("ended", 4, size=1, local=1),
    ]  # fmt: skip
    (one,) = lone.joined(steps, 4, SLOTS, dev.info)
    assert one.label == "lone" and one.writes == {1, 2, 3, 4}
    body = one.source[one.source.index("__kernel") :]
    assert re.findall(r"\b(ints|sums|floats|turned|ended|barrier)\w*\(", body) == [
        "ints", "barrier", "sums", "barrier", "floats", "barrier", "turned", "ended",
    ]  # fmt: skip
    x = rng.integers(-100, 100, 128).astype(np.float32)
    memory = [dev.buffers.allocate(512) for _ in SLOTS]
    kernel = dev.programs.kernel(one.source, one.name, one.options)
    for flag in (1, 0):
        for buffer in memory:
            dev.queue.write(buffer, np.full(128, 77, np.int32))
        dev.queue.write(memory[0], x)
        dev.queue.write(memory[4], np.array([flag], np.int32))
        dev.queue.launch(kernel, (1,), (1,), [memory[arg.index] for arg in one.args])
        numbers = np.arange(128, dtype=np.int32) * 3 + x.astype(np.int32)
        wanted = numbers + numbers[::-1], x[::-1] * np.float32(0.5) + 128
        for slot, values in zip((2, 3), wanted, strict=True):
            if not flag:
                values = np.full(128, 77, np.int32).view(values.dtype)
            found = dev.queue.read(memory[slot], np.empty(128, values.dtype))
            np.testing.assert_array_equal(found, values)
        assert dev.queue.read(memory[4], np.empty(1, np.int32))[0] == 0


@pytest.mark.parametrize("name", ["grouped", "met", "asked"])
def test_kernels_of_work_items_that_know_each_other_stay_alone(dev, name):
    steps = [step("floats", 0, 1), step("turned", 1, 2), step(name, 2, 3)]
    steps += [step("ended", 4, size=1, local=1)] * 2
    found = lone.joined(steps, 4, SLOTS, dev.info)
    assert [s.name for s in found] == ["lone", name, "lone"]
    assert "turned" in found[0].source and "ended" in found[2].source


def test_launches_have_as_many_parts_and_parameters_as_compilers_and_drivers_take(dev):
    info = dev.info
    steps = [step("floats", 0, 1)] * (2 * lone.MOST + 1)
    names = [s.name for s in lone.joined(steps, 4, SLOTS, info)]
    assert names == ["lone", "lone", "floats"]
    few = dataclasses.replace(info, max_parameter_bytes=64 + 8 * 3)
    steps = [step("floats", 0, 1), step("floats", 0, 1), step("turned", 2, 3), step("sums", 2, 3)]
    found = lone.joined(steps, 4, SLOTS, few)
    assert [len(s.args) for s in found] == [2, 3]  # the last heeds the flag itself


def test_long_rows_and_many_items_stay_alone(dev):
    info = dev.info
    steps = [step("turned", 0, 1, size=1 << 15, local=64)] * 3
    assert lone.joined(steps, 4, SLOTS, info) == steps


def test_nothing_is_joined_where_it_is_not_wanted(dev, monkeypatch):
    steps = [step("floats", 0, 1)] * 3
    near = lone.CACHE * dev.info.compute_units
    for setting, kernels in (("0", False), ("1", True), ("2", False), ("3", True)):
        monkeypatch.setenv("KERASCL_RESIDENT", setting)
        assert lone.joins(near, dev.info) == kernels
        assert not lone.joins(near + 1, dev.info)
        if setting == "3":
            assert lone.joined(steps, 4, SLOTS, dev.info) == steps
    assert resident.literal(np.float32(1.5)) == "as_float(1069547520u)"
    assert resident.literal(Use(1)) is None


def test_loops_that_read_more_than_caches_hold_are_as_they_were(rng, monkeypatch):
    function, given = tokens(64, rng)
    args = [kc.array(a.astype(np.float32)) for a in given] + [kc.array(np.int32(7))]
    _, most = found_with(monkeypatch, "0", function, args)
    monkeypatch.setattr(lone, "CACHE", 1)
    _, names = found_with(monkeypatch, "1", function, args)
    assert names == most
