"""How the work-items of a row agree on a result on GPUs: in local memory, or lane to lane, which is
emulated where the device has no such instruction."""

import re

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import columns, held, rows
from kerascl.kernels.contract.lanes import Lanes

# (rows, elements of each): of 8 work-items to 512, with rows that fill no group.
SHAPES = [(70, 9), (2001, 50), (33, 130), (701, 200), (600, 900), (3, 40000)]

# In statement expressions of the kernel, whose header has the local memory for it.
EMULATION = """\
#define kcl_of_lane(x, distance) ({ \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  of_lanes[lid] = x; \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  of_lanes[lid ^ (distance)]; })
"""


@pytest.fixture(params=["local memory", "lanes"])
def way(request, dev, as_gpu, monkeypatch, launches):
    """The device with the work-groups of a GPU; gives the reductions' launches."""
    as_gpu(2, 1024)
    if request.param == "local memory":
        for module in (rows, columns):
            monkeypatch.setattr(module, "lanes_of", lambda info: None)
    elif rows.lanes_of(dev.info) is None:
        header = rows.Layout.header
        for module in (rows, columns):
            monkeypatch.setattr(module, "lanes_of", lambda info: Lanes(32, EMULATION))
        monkeypatch.setattr(
            rows.Layout, "header",
            lambda *args: ["__local uint of_lanes[1024];", *header(*args)],
        )  # fmt: skip
    yield launches["reduction_kernels"]
    exchanged = ["kcl_of_lane(as_uint" in x.source.text for x in launches["reduction_kernels"]]
    assert any(exchanged) == (request.param == "lanes")


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_and_extremes(way, rng, shape):
    host = rng.normal(size=shape).astype(np.float32)
    x = kc.array(host)
    found = kc.jit(lambda x: (kc.sum(x, 1), kc.max(x, 1), kc.min(x, 1), kc.argmax(x, 1)))(x)
    total, most, least, place = (y.numpy() for y in found)
    wide = host.astype(np.float64)
    np.testing.assert_allclose(total, wide.sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(most, host.max(1))
    np.testing.assert_array_equal(least, host.min(1))
    np.testing.assert_array_equal(place, host.argmax(1))


@pytest.mark.parametrize("shape, dtype", [*zip(SHAPES, ["float32", "bfloat16"] * 3)])
def test_all_work_items_have_the_result(way, rng, shape, dtype):
    x = kc.array((rng.normal(size=shape) * 3).astype(np.float32)).astype(dtype)
    wide = x.astype("float32").numpy().astype(np.float64)
    softmax = kc.jit(lambda x: kc.softmax(x.astype("float32"), -1))(x).numpy()
    wanted = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(softmax, wanted / wanted.sum(1, keepdims=True), rtol=1e-5)

    @kc.jit
    def norm(x):
        mean, variance = kc.nn.moments(x.astype("float32"), 1, keepdims=True)
        return (x - mean) * kc.rsqrt(variance + 1e-5)

    wanted = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    found = norm(x).astype("float32").numpy()
    assert np.linalg.norm(found - wanted) < 3e-6 * np.linalg.norm(wanted)


def test_ties_and_what_is_no_number(way, rng):
    host = rng.integers(0, 9, (300, 200)).astype(np.float32)
    host[5, 150], host[5, 20], host[7] = np.nan, np.nan, -np.inf
    found = kc.jit(lambda x: (kc.argmax(x, 1), kc.argmin(x, 1), kc.max(x, 1)))(kc.array(host))
    most, least, top = (y.numpy() for y in found)
    np.testing.assert_array_equal(most, host.argmax(1))
    np.testing.assert_array_equal(least, host.argmin(1))
    np.testing.assert_array_equal(top, host.max(1))


def test_registers_of_64_bits(way, rng):
    """They go through local memory, beside floats that need not."""
    whole = rng.integers(-(2**40), 2**40, (40, 300))
    pairs = (rng.normal(size=(40, 300)) + 1j * rng.normal(size=(40, 300))).astype(np.complex64)

    @kc.jit
    def function(x, z):
        return kc.sum(x, 1), kc.sum(z, 1), kc.sum(kc.real(z), 1), kc.argmin(x, 1)

    total, sums, parts, place = (y.numpy() for y in function(kc.array(whole), kc.array(pairs)))
    np.testing.assert_array_equal(total, whole.sum(1))
    np.testing.assert_allclose(sums, pairs.astype(complex).sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(parts, pairs.real.astype(float).sum(1), rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(place, whole.argmin(1))


def test_short_rows_have_no_barrier(way, rng, request):
    x = kc.array(rng.normal(size=(4000, 100)).astype(np.float32))
    found = kc.jit(lambda x: x / kc.sum(kc.exp(x), 1, keepdims=True))(x).numpy()
    wide = x.numpy().astype(np.float64)
    np.testing.assert_allclose(found, wide / np.exp(wide).sum(1, keepdims=True), rtol=1e-5)
    (launch,) = way
    lanes = "lanes" in request.node.callspec.id
    assert ("barrier" not in launch.source.body) == lanes


@pytest.mark.parametrize("length", [16, 64, 128, 256, 63])
def test_several_short_rows_of_a_work_item(way, rng, length, monkeypatch):
    """Sums and places of rows of a few vectors; what is stored beside them; what follows them."""
    monkeypatch.setattr(held, "UNDER_WAY", 32)  # two rows: emulated lanes take many barriers
    x, y = (rng.normal(size=(96 * 50, length)).astype(np.float32) for _ in range(2))

    @kc.jit
    def function(x, y, old):
        z = x * y
        return kc.sum(z, 1), z, kc.argmax(x, 1), old - kc.sum(z, 1) * 0.5

    old = rng.normal(size=96 * 50).astype(np.float32)
    total, z, place, new = (v.numpy() for v in function(*map(kc.array, (x, y, old))))
    wanted = (x.astype(np.float64) * y).sum(1)
    np.testing.assert_array_equal(z, x * y)
    np.testing.assert_array_equal(place, x.argmax(1))
    assert np.linalg.norm(total - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert np.linalg.norm(new - (old - wanted / 2)) <= 1e-6 * np.linalg.norm(wanted)


@pytest.mark.parametrize("length, rows", [(64, 2), (128, 2), (512, 1), (63, 1)])
def test_how_many_rows_a_work_item_takes(way, rng, length, rows, monkeypatch):
    """Of a row of float32, 16 bytes or more a work-item; of rows that are no vectors, one."""
    monkeypatch.setattr(held, "UNDER_WAY", 32)
    x = rng.normal(size=(6400, length)).astype(np.float32)
    found = kc.jit(lambda x: kc.sum(x, 1))(kc.array(x)).numpy()
    wanted = x.astype(np.float64).sum(1)
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)
    (launch,) = way
    taken = re.search(r"int row = (\d) \*", launch.source.body)
    lanes = "kcl_of_lane(as_uint" in launch.source.text
    assert (int(taken[1]) if taken else 1) == (rows if lanes else 1)


def test_short_rows_that_many_have_in_common(way, rng):
    """Or that are looked up: vectors, too, though no array has all elements."""
    few, table = (rng.normal(size=(n, 128)).astype(np.float32) for n in (64, 5000))
    weight, at = rng.normal(size=128).astype(np.float32), rng.integers(0, 5000, 6400, np.int32)

    @kc.jit
    def function(few, table, weight, at):
        spread = kc.broadcast_to(kc.reshape(few, (64, 1, 128)), (64, 100, 128))
        return kc.sum(spread * weight, 2), kc.sum(kc.take(table, at, 0) * weight, 1)

    shared, found = (x.numpy() for x in function(*map(kc.array, (few, table, weight, at))))
    for x, y in (shared, np.repeat(few, 100, 0).reshape(64, 100, 128)), (found, table[at]):
        wanted = (y.astype(np.float64) * weight).sum(-1)
        assert np.linalg.norm(x - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert all("float4 vec" in launch.source.body for launch in way)


@pytest.mark.parametrize("shape", [(9000, 12), (9001, 36)])
def test_columns_that_lie_beside_each_other(way, rng, shape):
    """Vectors of columns, whose work-items in a sub-group merge first."""
    host = rng.normal(size=shape).astype(np.float32)
    found = kc.jit(lambda x: kc.sum(x, 0))(kc.array(host)).numpy()
    wanted = host.astype(np.float64).sum(0)
    assert np.linalg.norm(found - wanted) <= 1e-6 * np.linalg.norm(wanted)
    assert any("float4 vec" in launch.source.body for launch in way)


@pytest.mark.parametrize("length", [16, 64, 63])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_variances_of_several_short_rows_of_a_work_item(way, rng, length, dtype, monkeypatch):
    """Each row goes through its own registers once more."""
    monkeypatch.setattr(held, "UNDER_WAY", 32)
    host = rng.normal(size=(96 * 50, length)) * 3 + rng.normal(size=(96 * 50, 1)) * 20
    x = kc.array(host.astype(np.float32)).astype(dtype)
    wide = x.astype("float32").numpy().astype(np.float64)
    mean, variance = (v.numpy() for v in kc.jit(lambda x: kc.nn.moments(x, 1))(x))
    assert np.linalg.norm(variance - wide.var(1)) <= 3e-3 * np.linalg.norm(wide.var(1))
    assert np.linalg.norm(mean - wide.mean(1)) <= 3e-3 * np.linalg.norm(wide.mean(1))
    alone = kc.jit(lambda x: kc.nn.moments(x.astype("float32"), 1)[1])(x).numpy()
    assert np.linalg.norm(alone - wide.var(1)) <= 1e-5 * np.linalg.norm(wide.var(1))
