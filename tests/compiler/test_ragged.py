"""Rows that begin and end anywhere, of which a work-item of a GPU reads vectors all the same; run
on whatever device there is."""

import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops.movement import iota

LOAD = "*(__global const "
# of rows in loops: some that are a little more than vectors for all work-items
LENGTHS = [4097, 4103, 9001, 20001, 50257]


@pytest.fixture
def texts(as_gpu, launches):
    """The device with the work-groups of a GPU; gives what is generated for reductions."""
    as_gpu(2, 256)
    return lambda: [x.source.body for x in launches["reduction_kernels"]]


def draw(rng, rows, length, dtype):
    """An array of small whole numbers, and the same on the host."""
    host = rng.integers(-9, 9, (rows, length))
    return kc.array(host.astype(np.float32)).astype(dtype), host


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float16", "float64"])
def test_rows_that_begin_anywhere(texts, rng, dtype, length):
    if dtype == "float64" and not kc.array(0.0).device.info.fp64:
        pytest.skip("no float64")

    @kc.jit
    def function(x):
        return x - kc.min(x, 1, keepdims=True), kc.sum(x.astype("float32"), 1), kc.max(x, 1)

    for _ in range(2):  # what the first run has left in memory is wrong for the second
        _, host = draw(rng, 37, length, dtype)
        host = np.abs(host) if dtype == "uint8" else host
        x = kc.array(host.astype(np.float32)).astype(dtype)
        found, total, most = function(x)
        wanted = host - host.min(1, keepdims=True)
        np.testing.assert_array_equal(found.astype("float32").numpy(), wanted)
        np.testing.assert_allclose(total.numpy(), host.sum(1), rtol=1e-6)
        np.testing.assert_array_equal(most.astype("float32").numpy(), host.max(1))
    vectors = any("const int head" in body for body in texts())
    assert vectors == (dtype != "float16")
    assert not vectors or any(LOAD in body for body in texts())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_not_finite_stays_in_its_row(texts, rng, dtype):
    """At each of the first and the last elements, which vectors of the next rows lie beside."""
    x, host = draw(rng, 48, 9001, dtype)
    host = host.astype(np.float64)
    for row in range(0, 48, 3):
        place = row // 3
        host[row, place if place < 8 else place - 16] = (np.nan, np.inf, -np.inf)[place % 3]
    x = kc.array(host.astype(np.float32)).astype(dtype)
    total, most, least = kc.jit(
        lambda x: (kc.sum(x.astype("float32"), 1), kc.max(x, 1), kc.min(x, 1))
    )(x)
    np.testing.assert_array_equal(total.numpy(), host.sum(1))
    np.testing.assert_array_equal(most.astype("float32").numpy(), host.max(1))
    np.testing.assert_array_equal(least.astype("float32").numpy(), host.min(1))
    assert any("const int head" in body for body in texts())


@pytest.mark.parametrize("first", [0, 1, 4])
def test_parts_of_longer_rows(texts, rng, first):
    """What is read lies at other places than what is stored: one of both as vectors, or none."""
    host = rng.normal(size=(33, 9011)).astype(np.float32)

    @kc.jit
    def function(x):
        part = x[:, first : first + 9001]
        return part / kc.sum(kc.abs(part), 1, keepdims=True)

    wide = host[:, first : first + 9001].astype(np.float64)
    wanted = wide / np.abs(wide).sum(1, keepdims=True)
    found = function(kc.array(host)).numpy()
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)


def test_operands_at_other_steps(texts, rng):
    x, y, z = (rng.normal(size=s).astype(np.float32) for s in ((33, 9001), (33, 9004), (9001,)))

    @kc.jit
    def function(x, y, z):
        both = x * y[:, 2:9003] + z
        return both - kc.max(both, 1, keepdims=True), kc.sum(both, 1)

    wide = x.astype(np.float64) * y[:, 2:9003] + z
    found, total = (a.numpy() for a in function(*map(kc.array, (x, y, z))))
    wanted = wide - wide.max(1, keepdims=True)
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(total - wide.sum(1)) <= 1e-5 * np.linalg.norm(wide.sum(1))
    assert any("const int head" in body and LOAD in body for body in texts())


def test_first_of_equal_elements(texts, rng):
    """Places count, and elements beside vectors come in another order."""
    x, host = draw(rng, 33, 9001, "float32")
    place, least = kc.jit(lambda x: (kc.argmax(x, 1), kc.argmin(x, 1)))(x)
    np.testing.assert_array_equal(place.numpy(), host.argmax(1))
    np.testing.assert_array_equal(least.numpy(), host.argmin(1))


def test_variances(texts, rng):
    host = (rng.normal(size=(40, 9001)) + 100).astype(np.float32)
    mean, variance = (y.numpy() for y in kc.jit(lambda x: kc.nn.moments(x, 1))(kc.array(host)))
    wide = host.astype(np.float64)
    assert np.linalg.norm(mean - wide.mean(1)) <= 1e-6 * np.linalg.norm(wide.mean(1))
    assert np.linalg.norm(variance - wide.var(1)) <= 1e-5 * np.linalg.norm(wide.var(1))


@pytest.mark.parametrize("inside", [9001, 8960, 4504, 4503])
def test_loops_before_a_place_have_no_choices(texts, rng, inside):
    """Where most elements lie before it; products whose rows are padded have such places."""
    x, host = draw(rng, 37, 9008, "float32")
    total = kc.jit(lambda x: kc.sum(kc.where(iota((37, 9008), 1) < inside, x, 0.0), 1))(x)
    np.testing.assert_array_equal(total.numpy(), host[:, :inside].sum(1))
    (body,) = texts()
    loops = {"before": [], "all": []}
    for test, lines in re.findall(r"\n    for \(; (.*?); r \+= .*?\{\n(.*?)\n    \}", body, re.S):
        before = test.startswith(f"{inside} - r > ")
        assert before or test.startswith(("r_end - r > ", "r < r_end"))
        loops["before" if before else "all"].append(f" < ({inside})" in lines)
    assert bool(loops["before"]) == (2 * inside >= 9008)
    assert not any(loops["before"])
    assert loops["all"] and all(loops["all"])


@pytest.mark.parametrize("length, inside", [(9008, 9001), (9008, 8960), (9001, 8995), (8192, 5000)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_elements_before_a_place(texts, rng, length, inside, dtype):
    """Those before it are in no need of the choice; what lies behind it counts nowhere."""
    x, host = draw(rng, 37, length, dtype)
    host = host.astype(np.float64)
    host[:, inside:] = 50
    host[3, inside:] = np.nan
    x = kc.array(host.astype(np.float32)).astype(dtype)

    @kc.jit
    def function(x):
        before = kc.arange(length) < inside
        most = kc.max(kc.where(before, x, -np.inf), 1, keepdims=True)
        wide = kc.where(before, x, 0.0).astype("float32")
        return kc.where(before, x - most, 7.0), kc.sum(wide, 1), most

    found, total, most = (y.astype("float32").numpy() for y in function(x))
    part = host[:, :inside]
    np.testing.assert_array_equal(found[:, :inside], part - part.max(1, keepdims=True))
    assert (found[:, inside:] == 7).all()
    np.testing.assert_array_equal(most, part.max(1, keepdims=True))
    np.testing.assert_allclose(total, part.sum(1), rtol=1e-6)
