"""Neighbouring columns of small elements that a work-item of a GPU reads as one vector, in sums of
tall arrays; run on whatever device there is."""

import dataclasses
import math
import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import columns, rows
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.lanes import Lanes
from tests import profiles
from tests.compiler.test_agreement import EMULATION


@pytest.fixture(params=["last group", "second kernel"])
def texts(request, dev, as_gpu, monkeypatch, launches):
    """The device with the work-groups of a GPU; gives what is generated for reductions, of which
    the last work-group to arrive or a second kernel merges what the others leave."""
    as_gpu(2, 256)
    if request.param == "second kernel":
        monkeypatch.setattr(arrival, "supported", lambda info: False)
    yield lambda: [x.source.body for x in launches["reduction_kernels"]]
    arrive = ["kcl_last_group" in x.source.body for x in launches["reduction_kernels"]]
    assert any(arrive) == arrival.supported(dev.info)


def widest(bodies):
    """Bytes of the longest vector that any body reads."""
    found = re.findall(r"const (float|int|uint|char)(\d?) vec", "".join(bodies))
    return max(((1 if kind == "char" else 4) * int(n or 1) for kind, n in found), default=0)


def drawn(rng, shape, dtype):
    """An array of a dtype, and what it holds in float64."""
    host = rng.integers(0, 2, shape) if dtype == "bool" else rng.normal(size=shape) * 3
    x = kc.array(host.astype(np.float32)).astype(dtype)
    return x, x.astype("float32").numpy().astype(np.float64)


def close(found, wanted, bound=3e-6):
    found = found.astype("float32").numpy()
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= bound * np.linalg.norm(wanted)


# whole groups of columns; some left; fewer than a group; behind another kept dimension
SHAPES = [(4000, 128), (3001, 100), (5000, 6), (3000, 3, 36)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32"])
def test_sums_and_extremes(texts, rng, shape, dtype):
    x, wide = drawn(rng, shape, dtype)
    sums, most, least, place, power = kc.jit(
        lambda x: (
            kc.sum(x.astype("float32"), 0), kc.max(x, 0), kc.min(x, 0), kc.argmax(x, 0),
            kc.sum(kc.square(x.astype("float32")), 0),
        )
    )(x)  # fmt: skip
    close(sums, wide.sum(0), 1e-5)
    close(power, (wide * wide).sum(0))
    np.testing.assert_array_equal(most.astype("float32").numpy(), wide.max(0))
    np.testing.assert_array_equal(least.astype("float32").numpy(), wide.min(0))
    np.testing.assert_array_equal(place.numpy(), wide.argmax(0))
    assert widest(texts()) > 1


@pytest.mark.parametrize("columns", [128, 100, 6, 5])
@pytest.mark.parametrize("dtype, most", [("bfloat16", 8), ("float32", 4), ("int8", 8)])
def test_a_load_moves_sixteen_bytes_where_rows_allow(texts, rng, columns, dtype, most):
    x, wide = drawn(rng, (4000, columns), dtype)
    close(kc.jit(lambda x: kc.sum(x.astype("float32"), 0))(x), wide.sum(0), 1e-5)
    together = math.gcd(most, columns)
    itemsize = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    assert widest(texts()) == (together * itemsize if together > 1 else 0)


@pytest.mark.parametrize("card, lanes", [("max1550", 16), ("a770", 0), ("rx7900xtx", 0)])
def test_sub_groups_that_registers_are_enough_for(card, lanes, dev, rng, monkeypatch, launches):
    """Where the fewest lanes are 16, its compiler takes 32 and spills unless it is told."""
    info = profiles.disguise(dev.info, profiles.load()[card].info)
    monkeypatch.setattr(dev, "info", info)
    monkeypatch.setattr(kc.engine, "programs", {})
    # four columns of a work-item, one, and none that are neighbours
    for count, axis, wanted in (128, 0, lanes), (5, 0, lanes), (4096, 1, 0):
        launches["reduction_kernels"].clear()
        x, wide = drawn(rng, (4000, count), "float32")
        close(kc.jit(lambda x, axis=axis: kc.sum(x, axis))(x), wide.sum(axis), 1e-5)
        first = launches["reduction_kernels"][0].source
        told = wanted if info.sub_group_sizes else 0  # none where the driver at hand takes none
        assert first.lanes == told
        assert ("sub_group_size(16)" in first.text) == (told > 0)


@pytest.mark.parametrize("length", [8192, 8193, 9000, 20001])
def test_parts_of_columns_of_any_length(texts, rng, length):
    x, wide = drawn(rng, (length, 64), "bfloat16")
    close(kc.jit(lambda x: kc.sum(x.astype("float32"), 0))(x), wide.sum(0), 1e-5)
    place = kc.jit(lambda x: kc.argmin(x, 0))(x)
    np.testing.assert_array_equal(place.numpy(), wide.argmin(0))


@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_of_a_layer_norm(texts, rng, shape):
    """Two sums of what rows share, and what follows them."""
    x, wide = drawn(rng, shape, "bfloat16")
    slope, steep = drawn(rng, shape, "bfloat16")
    mean, scale = rng.normal(size=(2, shape[0], *[1] * (len(shape) - 1))).astype(np.float32)
    old = rng.normal(size=shape[1:]).astype(np.float32)

    @kc.jit
    def step(x, slope, mean, scale, old):
        unit = (x.astype("float32") - mean) * scale
        gamma = kc.sum(slope.astype("float32") * unit, 0)
        beta = kc.sum(slope.astype("float32"), 0)
        return old - 0.1 * gamma, beta, old * beta

    found = step(x, slope, kc.array(mean), kc.array(scale), kc.array(old))
    gamma = (steep * (wide - mean) * scale).sum(0)
    close(found[0], old - 0.1 * gamma, 1e-5)
    close(found[1], steep.sum(0), 1e-5)
    close(found[2], old * steep.sum(0), 1e-5)
    assert widest(texts()) > 1


def test_variances(texts, rng):
    x, wide = drawn(rng, (6000, 64), "bfloat16")
    found = kc.jit(lambda x: kc.nn.moments(x.astype("float32") + 100.0, 0))(x)
    close(found[0], wide.mean(0) + 100)
    close(found[1], wide.var(0), 1e-5)
    assert widest(texts()) > 1


def test_what_is_stored_beside_a_sum(texts, rng):
    x, wide = drawn(rng, (4001, 90), "bfloat16")
    sums, kept = kc.jit(lambda x: ((y := kc.maximum(x, 0)).astype("float32").sum(0), y))(x)
    np.testing.assert_array_equal(kept.astype("float32").numpy(), np.maximum(wide, 0))
    close(sums, np.maximum(wide, 0).sum(0))


def test_a_part_that_begins_between_vectors(texts, rng):
    x, wide = drawn(rng, (3000, 70), "bfloat16")
    for part in (slice(1, 65), slice(2, 66)):
        close(kc.jit(lambda x, part=part: kc.sum(x[:, part].astype("float32"), 0))(x),
              wide[:, part].sum(0), 1e-5)  # fmt: skip


def test_what_is_no_number_stays_in_its_column(texts, rng):
    wide = drawn(rng, (4000, 64), "bfloat16")[1]
    wide[700, 3], wide[9, 8] = np.nan, np.inf
    found = kc.jit(lambda x: kc.sum(x.astype("float32"), 0))(
        kc.array(wide.astype(np.float32)).astype("bfloat16")
    ).numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(found, wide.sum(0), rtol=1e-5, atol=2e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int32", "uint8"])
@pytest.mark.parametrize("shape", [(40, 49, 2048), (37, 49, 1000), (41, 5, 1999), (60, 300, 1032)])
def test_many_short_columns(as_gpu, launches, rng, dtype, shape):
    """A work-item has neighbouring columns, all elements of each."""
    as_gpu(2, 256)
    host = rng.integers(0, 9, shape).astype(np.float32)
    places = rng.integers(0, shape[2], 3)
    if dtype not in ("int32", "uint8"):
        host[1, 2, places] = np.nan, np.inf, -np.inf
    x = kc.array(host).astype(dtype)

    @kc.jit
    def function(x):
        return kc.mean(x.astype("float32"), 1), kc.max(x, 1)

    mean, most = (y.astype("float32").numpy() for y in function(x))
    wide = host.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_array_equal(most, host.max(1))
    bodies = [x.source.body for x in launches["reduction_kernels"]]
    if dtype != "float16" and shape[2] % 8 == 0 and shape[0] * shape[2] >= 40 * 2048:
        assert any("*(__global const " in body and "barrier" not in body for body in bodies)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
@pytest.mark.parametrize("shape", [(12, 196, 128), (64, 49, 64), (3, 233, 256)])
@pytest.mark.parametrize("lanes", [False, True], ids=["local memory", "lanes"])
def test_columns_that_work_items_of_a_group_share(
    dev, as_gpu, launches, rng, monkeypatch, dtype, shape, lanes
):
    """Neighbouring columns of several elements for each; what follows has a column each."""
    as_gpu(2, 256)
    quirks = dev.info.quirks - {"keeps_choices_wrongly"}
    monkeypatch.setattr(dev, "info", dataclasses.replace(dev.info, quirks=quirks))
    monkeypatch.setattr(columns, "many", lambda *_: None)
    monkeypatch.setattr(columns, "ENOUGH", 4096)
    monkeypatch.setattr(columns, "lanes_of", lambda info: Lanes(32, EMULATION) if lanes else None)
    if lanes:
        head = rows.Layout.header
        monkeypatch.setattr(
            rows.Layout, "header",
            lambda *args: ["__local uint of_lanes[512];", *head(*args)],
        )  # fmt: skip
    host = rng.integers(0, 9, shape).astype(np.float32)
    places = rng.integers(0, shape[2], 3)
    if dtype != "int32":
        host[1, 2, places] = np.nan, np.inf, -np.inf
    old = rng.normal(size=shape[::2]).astype(np.float32)

    @kc.jit
    def function(x, old):
        wide = x.astype("float32")
        return kc.mean(wide, 1), kc.max(x, 1), kc.argmax(x, 1), old - 0.5 * kc.sum(wide, 1)

    found = function(kc.array(host).astype(dtype), kc.array(old))
    mean, most, place, new = (x.astype("float32").numpy() for x in found)
    wide = host.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean(1), rtol=1e-6)
    np.testing.assert_allclose(new, old - 0.5 * wide.sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(most, host.max(1))
    np.testing.assert_array_equal(place, host.argmax(1))
    (launch,) = launches["reduction_kernels"]
    assert "*(__global const " in launch.source.body and "barrier" in launch.source.body
    launches["reduction_kernels"].clear()
    total = kc.jit(lambda x: kc.sum(x.astype("float32"), 1))(kc.array(host).astype(dtype)).numpy()
    np.testing.assert_allclose(total, wide.sum(1), rtol=1e-6)
    (launch,) = launches["reduction_kernels"]
    taken = int(re.search(r"int row = (\d) \*", launch.source.body)[1])
    assert taken == {"bfloat16": 8}.get(dtype, 4) and launch.local_size[0] >= 8 * taken


def test_few_columns_have_a_work_item_each(as_gpu, launches, rng):
    """As memory is not busy with fewer."""
    as_gpu(64, 256)
    x, wide = drawn(rng, (2, 100, 64), "bfloat16")
    close(kc.jit(lambda x: kc.sum(x.astype("float32"), 1))(x), wide.sum(1))
    assert "int row = (" in launches["reduction_kernels"][0].source.body
