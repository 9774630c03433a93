"""Reading and updating parts of arrays as NumPy does."""

import copy
import pickle

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import host

A = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
KEYS = [
    0, -1, (1, 2), (1, 2, 3), slice(1, 3), slice(None, None, -1), slice(-1, -4, -2), ..., None,
    (..., 1), (slice(None), None, 2), (slice(1, None, 2), slice(None, None, -2), slice(5, 0, -3)),
    (slice(3, 3),), ([0, 2, -1],), ([0, 2], [1, 3]), ([[0], [2]], [1, 3]),
    (slice(None), [0, 2]), (slice(None), [0, 2], slice(1, 4)), (slice(None), [0, 2], [1, 5]),
    ([0, 2], slice(None), [1, 5]), (1, slice(None), [0, 2]), (1, [0, 2]), ([0, 2], 1),
    (None, [0, 1], None, [1, 2]), ([0, 2], ..., 1), (..., [0, 2]),
    (slice(None, None, -1), [[1, 2], [0, 4]]),
    np.array([3, 0]), (np.array([1]), slice(2, 4)), np.array([], np.int32),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_getitem(key, rng):
    x = kc.array(A)
    np.testing.assert_array_equal(x[key].numpy(), A[key])
    # the gradient puts weights back where they were read
    weights = rng.standard_normal(A[key].shape).astype(np.float32)
    found = kc.grad(lambda v: kc.sum(v[key] * weights))(x).numpy()
    expected = np.zeros_like(A)
    np.add.at(expected, key, weights)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", [k for k in KEYS if not isinstance(k, type(None))], ids=str)
def test_updates(key, rng):
    x = kc.array(A)
    values = rng.standard_normal(A[key].shape).astype(np.float32)
    added, multiplied = A.copy(), A.copy()
    np.add.at(added, key, values)
    np.multiply.at(multiplied, key, 2.0)
    np.testing.assert_allclose(x.at[key].add(values).numpy(), added, rtol=1e-5)
    np.testing.assert_allclose(x.at[key].multiply(2.0).numpy(), multiplied, rtol=1e-5)
    changed = A.copy()
    changed[key] = 7.0
    np.testing.assert_array_equal(x.at[key].set(7).numpy(), changed)
    np.testing.assert_array_equal(x.numpy(), A)


def test_masks():
    x, mask = kc.array(A), A % 7 == 0
    before = host.calls["boolean index"]
    np.testing.assert_array_equal(x[mask].numpy(), A[mask])
    assert host.calls["boolean index"] == before + 1
    rows = np.array([True, False, True, False])
    np.testing.assert_array_equal(x[rows].numpy(), A[rows])
    np.testing.assert_array_equal(x[kc.array(rows), 1].numpy(), A[rows, 1])
    np.testing.assert_array_equal(x[:, np.array([True] * 5)].numpy(), A)
    assert x[np.zeros(4, bool)].shape == (0, 5, 6)


def test_update_gradients(rng):
    x = kc.array(rng.standard_normal(5).astype(np.float32))
    v = kc.array(rng.standard_normal(3).astype(np.float32))
    at = np.array([1, 3, 1])
    weights = rng.standard_normal(5).astype(np.float32)

    def loss(mode):
        return lambda x, v: kc.sum(getattr(x.at[at], mode)(v) * weights)

    dx, dv = kc.grad(loss("add"), (0, 1))(x, v)
    np.testing.assert_array_equal(dx.numpy(), weights)
    np.testing.assert_array_equal(dv.numpy(), weights[at])
    dx, dv = kc.grad(loss("set"), (0, 1))(x, v)
    np.testing.assert_array_equal(dx.numpy(), weights * [1, 0, 1, 0, 1])
    np.testing.assert_array_equal(dv.numpy(), weights[at] * [0, 1, 1])  # the last write wins
    dx, dv = kc.grad(loss("max"), (0, 1))(x, v + 100)
    np.testing.assert_array_equal(dx.numpy(), weights * [1, 0, 1, 0, 1])
    assert np.count_nonzero(dv.numpy()) == 2


def test_out_of_range_reads_are_clamped_and_writes_dropped():
    x = kc.array(np.arange(5, dtype=np.float32))
    assert x[kc.array([7, -9])].tolist() == [4, 0]
    found = kc.segment_sum(x, np.array([0, -1, 9, 1, 0]), 2)
    assert found.tolist() == [4, 3]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint32"])
def test_index_dtypes(dtype):
    at = np.array([[2, 0], [1, 3]], dtype)
    np.testing.assert_array_equal(kc.take(A, at, 1).numpy(), np.take(A, at, 1))
    grid = A[0, :4, :2]
    found = kc.take_along_axis(grid, at, 0).numpy()
    np.testing.assert_array_equal(found, np.take_along_axis(grid, at.astype(int), 0))


def test_iteration_and_unpacking():
    rows = list(kc.array(A))
    assert len(rows) == 4
    np.testing.assert_array_equal(rows[2].numpy(), A[2])
    a, b = kc.array([1.0, 2.0])
    assert (a.item(), b.item()) == (1.0, 2.0)


def test_rows_of_iteration_are_arrays_like_others():
    host = np.random.default_rng().normal(size=(5, 3)).astype("f")
    x = kc.array(host)
    rows = list(x)
    assert [float(v) for v in rows[1]] == host[1].tolist()
    np.testing.assert_array_equal((rows[2] * 2 + rows[3]).numpy(), host[2] * 2 + host[3])
    x[0] = 7  # the rows are of the value before
    np.testing.assert_array_equal(rows[0].numpy(), host[0])
    np.testing.assert_array_equal(next(iter(x)).numpy(), [7, 7, 7])
    rows[4] += 1
    np.testing.assert_array_equal(rows[4].numpy(), host[4] + 1)
    (alone,) = kc.array(host[:1])
    assert (alone.shape, alone.dtype, alone.ndim) == ((3,), kc.float32, 1)
    np.testing.assert_array_equal(alone.numpy(), host[0])
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        alone.nothing  # noqa: B018
    copies = [copy.deepcopy(rows[1]), pickle.loads(pickle.dumps(rows[1]))]
    for other in copies:
        np.testing.assert_array_equal(other.numpy(), host[1])


def test_rows_of_iteration_in_captured_functions_and_tapes():
    host = np.random.default_rng().normal(size=(3, 4)).astype("f")
    first, second, third = kc.array(host)
    captured = kc.jit(lambda x: x * first + second)  # both are asked for their nodes inside
    for _ in range(2):
        x = kc.array(host[2])
        wanted = host[2] * host[0] + host[1]
        np.testing.assert_allclose(captured(x).numpy(), wanted, rtol=1e-6)
    np.testing.assert_array_equal((first + second).numpy(), host[0] + host[1])
    with kc.GradientTape() as tape:
        tape.watch(third)
        y = kc.sum(third * third)
    np.testing.assert_allclose(tape.gradient(y, third).numpy(), 2 * host[2], rtol=1e-6)
    x = kc.array(host)
    with kc.GradientTape() as tape:
        tape.watch(x)
        y = sum(kc.sum(row * row) for row in x)
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), 2 * host, rtol=1e-6)
    doubled = kc.vmap(lambda m: kc.stack([v * 2 for v in m]))(x)
    np.testing.assert_array_equal(doubled.numpy(), host * 2)
    state = kc.State(host)
    rows = list(state.value)
    state.assign(host + 1)
    np.testing.assert_array_equal(kc.stack(rows).numpy(), host)


def test_lists_of_arrays_are_stacked_on_the_device():
    rows = [kc.array([1.0, 2.0]), [3.0, kc.array(4.0)]]
    with kc.GradientTape() as tape:
        x = kc.array(rows)
        y = kc.sum(x * x)
    np.testing.assert_array_equal(x.numpy(), [[1, 2], [3, 4]])
    np.testing.assert_array_equal(tape.gradient(y, rows[0]).numpy(), [2, 4])


@pytest.mark.parametrize(
    ("shape", "indices", "axis"),
    [((5, 4), (3, 4), 0), ((5, 4, 3), (5, 2, 3), 1), ((5, 4), (5, 2), 1), ((4, 2), (6, 2), 0)],
)
def test_take_along_axis_sends_gradients_where_it_read(shape, indices, axis):
    rng = np.random.default_rng(2)
    x = kc.array(rng.standard_normal(shape).astype("f"))
    index = rng.integers(0, shape[axis], indices).astype("i4")
    weight = rng.standard_normal(indices).astype("f")
    with kc.GradientTape() as tape:
        total = kc.sum(kc.take_along_axis(x, kc.array(index), axis) * weight)
    expected = np.zeros(shape)
    for place in np.ndindex(*indices):
        source = list(place)
        source[axis] = index[place]
        expected[tuple(source)] += weight[place]
    np.testing.assert_allclose(tape.gradient(total, x).numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("captured", [False, True])
def test_gradients_of_products_at_zeros(captured):
    def loss(x, v):
        return kc.sum(x.at[np.array([0, 1, 1, 1, 2, 2])].multiply(v) * weights)

    x = np.array([0.0, 3.0, 2.0, 5.0], "float32")
    v = np.array([4.0, 0.0, 2.0, 7.0, 0.0, 0.0], "float32")
    weights = np.array([1.0, 10.0, 100.0, 1000.0], "float32")
    gradient = kc.grad(loss, argnums=(0, 1))
    in_x, in_v = (kc.jit(gradient) if captured else gradient)(kc.array(x), kc.array(v))
    np.testing.assert_array_equal(in_x.numpy(), [4.0, 0.0, 0.0, 1000.0])
    np.testing.assert_array_equal(in_v.numpy(), [0.0, 10 * 3 * 14, 0.0, 0.0, 0.0, 0.0])


def test_updates_that_were_dropped_have_no_gradient(rng):
    ids = np.array([0, 5, 2, -1, 2])
    x = kc.array(rng.standard_normal((5, 3)).astype("float32"))
    weights = rng.standard_normal((3, 3)).astype("float32")
    found = kc.grad(lambda x: kc.sum(kc.segment_sum(x, ids, 3) * weights))(x)
    inside = (ids >= 0) & (ids < 3)
    expected = np.where(inside[:, None], weights[np.clip(ids, 0, 2)], 0)
    np.testing.assert_array_equal(found.numpy(), expected)
