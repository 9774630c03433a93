"""Neighbours that a work-item of a GPU reads and stores as one vector, in reductions of rows; run
on whatever device there is."""

import math

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import neighbours

LOAD, STORE = "*(__global const ", "*(__global "


@pytest.fixture
def texts(as_gpu, launches):
    """The device with the work-groups of a GPU; gives what is generated for reductions."""
    as_gpu(2, 256)
    return lambda: [x.source.body for x in launches["reduction_kernels"]]


def loads(body):
    return body.count(LOAD)


def stores(body):
    return body.count(STORE) - loads(body)


# rows in registers: of whole vectors, of some that are beyond the end, and without; rows in loops
@pytest.mark.parametrize("length", [128, 96, 100, 102, 99, 776, 6000, 60000])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_rows_whose_length_fits(texts, rng, length, dtype):
    width = math.gcd(length, 8 if dtype == "bfloat16" else 4)
    host = rng.integers(-9, 9, (300, length)).astype(np.float32)
    x = kc.array(host).astype(dtype)
    found = kc.jit(lambda x: x - kc.max(x, 1, keepdims=True))(x).astype("float32").numpy()
    np.testing.assert_array_equal(found, host - host.max(1, keepdims=True))
    (body,) = texts()
    if dtype == "bfloat16" and "keeps_choices_wrongly" in x.device.info.quirks:
        return  # conversions are choices, and such rows stay in loops
    if width == 1:
        assert not loads(body) and not stores(body)
    else:
        kind = {"float32": "float", "int32": "int"}.get(dtype, "uint")  # small ones in words
        words = width if dtype != "bfloat16" else width // 2
        assert f"const {kind}{words if words > 1 else ''} vec" in body and stores(body)


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool", "float16", "complex64"])
def test_other_dtypes(texts, rng, dtype):
    host = rng.integers(0, 2, (300, 512)).astype(dtype)
    found = kc.jit(lambda x: (kc.sum(x.astype("float32"), 1), kc.where(x != 0, 1.0, kc.sum(x))))(
        kc.array(host)
    )
    np.testing.assert_array_equal(found[0].numpy(), host.astype(np.float32).sum(1))
    np.testing.assert_array_equal(found[1].numpy(), np.where(host != 0, 1.0, host.sum()))
    vectors = {"int64": 2, "uint8": 4, "bool": 4}.get(dtype)
    # Without atomics between work-groups, the whole sum's last stage is a short kernel of its own.
    body = max((b for b in texts() if "get_group_id(1)" not in b), key=len)
    assert loads(body) if vectors else not loads(body)


CASES = {
    # name: what is read, whether as vectors
    "a part that begins at a vector": (lambda x: x[:, 4:132], True),
    "a part that begins elsewhere": (lambda x: x[:, 3:131], False),
    "reversed": (lambda x: kc.flip(x[:, :128], 1), False),
    "every second": (lambda x: x[:, :256:2], False),
    "padded": (lambda x: kc.pad(x[:, :120], ((0, 0), (4, 4))), False),
    "joined": (lambda x: kc.concatenate([x[:, :64], x[:, 64:128] * 2], 1), False),
    "transposed": (lambda x: kc.transpose(x)[:256, :128], False),
    "halves of rows": (lambda x: kc.reshape(x[:, :256], (-1, 128)), True),
    "a row for all": (lambda x: kc.broadcast_to(x[5, :128], (300, 128)) * x[:, 7:8], True),
}


@pytest.mark.parametrize("name", CASES)
def test_whatever_lies_as_a_vector(texts, rng, name):
    read, vectors = CASES[name]
    host = rng.normal(size=(300, 320)).astype(np.float32)
    part = read(kc.array(host)).numpy().astype(np.float64)  # by maps
    before = len(texts())

    @kc.jit
    def function(x):
        y = read(x)
        return y / kc.sum(kc.abs(y), 1, keepdims=True)

    wanted = part / np.abs(part).sum(1, keepdims=True)
    np.testing.assert_allclose(function(kc.array(host)).numpy(), wanted, rtol=1e-5, atol=1e-9)
    (body,) = texts()[before:]
    assert bool(loads(body)) == vectors
    assert stores(body)


def test_rows_of_another_array_at_odd_steps(texts, rng):
    """One operand lies aligned, the other does not."""
    x, y = (rng.normal(size=(300, n)).astype(np.float32) for n in (128, 129))
    function = kc.jit(lambda x, y: x / kc.sum(kc.abs(x + y[:, :128]), 1, keepdims=True))
    found = function(kc.array(x), kc.array(y)).numpy()
    total = np.abs(x.astype(np.float64) + y[:, :128]).sum(1, keepdims=True)
    np.testing.assert_allclose(found, x / total, rtol=1e-5)
    (body,) = texts()
    assert loads(body) and ("= buf0[" in body) != ("= buf1[" in body)


def test_positions_and_draws_count_from_each_element(texts, rng):
    host = rng.normal(size=(300, 128)).astype(np.float32)

    @kc.jit
    def function(x):
        kept = kc.where(kc.arange(128) % 3 == 0, x, 0.0)
        return kc.argmax(x, 1), kept * kc.sum(kept, 1, keepdims=True)

    place, found = (y.numpy() for y in function(kc.array(host)))
    np.testing.assert_array_equal(place, host.argmax(1))
    kept = np.where(np.arange(128) % 3 == 0, host, 0).astype(np.float64)
    np.testing.assert_allclose(found, kept * kept.sum(1, keepdims=True), rtol=2e-5, atol=1e-5)


def test_results_of_each_step_of_a_loop(texts, rng):
    host = rng.normal(size=(5, 300, 64)).astype(np.float32)

    def step(carry, x):
        carry = carry + x / kc.sum(kc.abs(x), 1, keepdims=True)
        return carry, carry * 2

    last, every = kc.jit(lambda x: kc.scan(step, kc.zeros((300, 64)), x))(kc.array(host))
    wide = host.astype(np.float64)
    wanted = (wide / np.abs(wide).sum(2, keepdims=True)).cumsum(0)
    np.testing.assert_allclose(last.numpy(), wanted[-1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(every.numpy(), wanted * 2, rtol=1e-4, atol=1e-5)


def test_long_sums_of_vectors_stay_exact(texts):
    x = kc.full((64, 80000), 0.1, dtype="float32")
    found = kc.jit(lambda x: x * 0 + kc.sum(x, 1, keepdims=True))(x).numpy()
    np.testing.assert_allclose(found, np.float64(np.float32(0.1)) * 80000, rtol=6e-7)
    assert any(loads(body) for body in texts())


def test_vectors_have_no_more_than_a_load_moves():
    assert neighbours.fits(kc.float32, 4) and neighbours.fits(kc.bfloat16, 4)
    assert neighbours.fits(kc.int64, 2) and not neighbours.fits(kc.int64, 4)
    assert not neighbours.fits(kc.float16, 2) and not neighbours.fits(kc.complex64, 2)
