"""x[key] = value: NumPy's values; who relies on the old value keeps it."""

import copy
import pickle

import numpy as np
import pytest

import kerascl as kc


def _floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


KEYS = [
    0, -1, (1, 2), slice(None), slice(1, 3), slice(None, None, -1), slice(3, 0, -2), Ellipsis,
    (slice(None), 1), (Ellipsis, slice(0, 4, 3)), (None, 1), (slice(0, 0),), [0, 2],
    ([0, 3], [1, 1]),
    (slice(1, 3), [0, 2]), (np.array([[0, 1], [2, 3]]), slice(None, None, 2)), np.array([], int),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_keys(rng, key):
    host = _floats(rng, 4, 5)
    x = kc.array(host)
    value = _floats(rng, *host[key].shape)
    host[key], x[key] = value, kc.array(value)
    np.testing.assert_array_equal(x.numpy(), host)
    host[key] = x[key] = 3
    np.testing.assert_array_equal(x.numpy(), host)


def test_masks(rng):
    host = _floats(rng, 4, 5)
    whole, rows = host > 0.2, host[:, 0] > 0
    x = kc.array(host)
    host[whole] = x[whole] = -1
    x[kc.array(rows)] = kc.array(np.arange(5, dtype="f"))
    host[rows] = np.arange(5)
    values = _floats(rng, int((host < 0).sum()))
    host[host < 0], x[x < 0] = values, values
    np.testing.assert_array_equal(x.numpy(), host)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "bool", "float16", "bfloat16", "int64"])
def test_values_take_the_dtype(dtype):
    x = kc.zeros(4, dtype)
    x[1:3] = kc.array([1.0, 3.0])
    assert x.dtype == dtype
    assert x.astype("float32").tolist() == [0, 1, 1 if dtype == "bool" else 3, 0]


def test_refusals(rng):
    x = kc.array(_floats(rng, 3, 4))
    before = x.numpy()
    for key, value, error in [
        (5, 0.0, IndexError), ((0, 0, 0), 0.0, IndexError), (0, np.ones(3), ValueError),
        ([0, 7], 0.0, IndexError), (0, 1j, TypeError), (kc.array([True]), 0.0, IndexError),
        (slice(0, 2), np.ones((3, 4)), ValueError), ("a", 0.0, IndexError),
    ]:  # fmt: skip
        with pytest.raises(error):
            x[key] = value
    np.testing.assert_array_equal(x.numpy(), before)


def test_names_see_it_and_views_do_not(rng):
    host = _floats(rng, 6)
    x = kc.array(host)
    other, view, same = x, x[1:3], x.reshape(6)
    copies = [
        x.copy(), kc.array(x), +x, x[:], x.astype("float32"), kc.copy(x), copy.copy(x),
        copy.deepcopy(x), x.ravel(), kc.concatenate([x]), x.T, x.real, kc.broadcast_to(x, (6,)),
        kc.squeeze(x), kc.cast(x, "float32"), x.flatten(), *kc.split(x, 1), kc.reshape(x, 6),
    ]  # fmt: skip
    x[1] = 7
    assert other is x and float(x[1]) == 7
    np.testing.assert_array_equal(view.numpy(), host[1:3])
    for y in (same, *copies):
        np.testing.assert_array_equal(y.numpy(), host)
    view[0] = 5
    assert float(x[1]) == 7 and float(view[0]) == 5


@pytest.mark.slow
def test_no_function_gives_its_argument_back(rng):
    """Else assigning to the result would change the argument."""
    given = [
        kc.array(_floats(rng, 3, 3)), kc.array([[1, 2], [3, 4]]), kc.array([[True, False]]),
        kc.array([1.0, 2.0]), kc.array(1.0), kc.array(np.array([[1, 2]], "uint8")),
    ]  # fmt: skip
    rest = [(), (0,), ((3, 3),), ((2,),), ("float32",), ("int32",), (None, None), ([0],)]
    calls = [(n, f) for n, f in vars(kc).items() if callable(f) and not isinstance(f, type)
             and n not in ("asarray", "asanyarray", "ascontiguousarray", "from_dlpack", "to_device")
             and n not in ("intersect1d", "setdiff1d", "setxor1d", "union1d")]
    # (left out: what is documented to; slow ones, that give what `unique` gives)
    calls += [("." + n, lambda x, *a, n=n: getattr(x, n)(*a)) for n in dir(kc.Array)
              if not n.startswith("_") and n not in ("evaluate", "at")]  # fmt: skip
    wrong = []
    for name, call in calls:
        for x in given:
            for first in (x, [x]):
                for args in rest if isinstance(first, kc.Array) or name in vars(kc) else ():
                    try:
                        found = call(first, *args)
                    except Exception:  # (few combinations are calls that make sense)
                        continue
                    parts = found if isinstance(found, list | tuple) else [found]
                    if any(y is x for y in parts):
                        wrong.append(name)
    assert not set(wrong)


def test_assigning_a_lazy_array_evaluates_nothing(rng):
    x = kc.array(_floats(rng, 8)) * 2
    launches = kc.engine.launches
    x[2:4] = 0
    assert kc.engine.launches == launches


def test_states_keep_their_value(rng):
    host = _floats(rng, 4)
    x = kc.array(host)
    state = kc.State(x)
    x[0] = 9
    np.testing.assert_array_equal(state.value.numpy(), host)
    value = state.value
    value[1] = 8
    np.testing.assert_array_equal(state.value.numpy(), host)
    y = kc.array(host)
    state.assign(y)
    y[2] = 7
    np.testing.assert_array_equal(state.value.numpy(), host)


def test_gradients_flow_to_the_value_and_not_through_what_was_replaced(rng):
    x, w = _floats(rng, 5), _floats(rng, 2)

    def loss(x, w):
        y = x * 2
        y[1:3] = w * w
        y[y < -9] = 0
        return kc.sum(y**2)

    dx, dw = kc.grad(loss, (0, 1))(kc.array(x), kc.array(w))
    expected = 8 * x
    expected[1:3] = 0
    np.testing.assert_allclose(dx.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(dw.numpy(), 4 * w**3, rtol=1e-5)


def test_what_a_tape_saw_before_stays(rng):
    """The derivative of a product needs the factors as they were."""
    x, w = kc.array(_floats(rng, 3)), kc.array(_floats(rng, 3))
    before = x.numpy()
    with kc.GradientTape(persistent=True) as tape:
        y = x * w
        x[0] = 100
        loss = kc.sum(y) + kc.sum(x * x)
    np.testing.assert_allclose(tape.gradient(loss, w).numpy(), before)
    np.testing.assert_allclose(tape.gradient(loss, x).numpy(), 2 * x.numpy(), rtol=1e-6)


def test_assigning_after_the_block_changes_no_gradient(rng):
    x, w = kc.array(_floats(rng, 3)), kc.array(_floats(rng, 3))
    before, factor = x.numpy(), w.numpy()
    with kc.GradientTape(persistent=True) as tape:
        loss = kc.sum(x * w)
    x[:] = 0
    np.testing.assert_allclose(tape.gradient(loss, w).numpy(), before)
    np.testing.assert_allclose(tape.gradient(loss, x).numpy(), factor)
    loss[...] = 0
    np.testing.assert_allclose(tape.gradient(loss, w).numpy(), before)


def test_grad_is_by_the_argument_as_it_was_given(rng):
    x = kc.array(_floats(rng, 4))
    before = x.numpy()

    def loss(x):
        x[0] = 0
        return kc.sum(x**3)

    expected = 3 * before**2
    expected[0] = 0
    np.testing.assert_allclose(kc.grad(loss)(x).numpy(), expected, rtol=1e-5)
    np.testing.assert_array_equal(x.numpy(), before)


def test_second_derivatives(rng):
    x = _floats(rng, 4)

    def cubes(x):
        y = kc.zeros(4)
        y[:2] = x[2:] ** 3
        return kc.sum(y)

    found = kc.hessian(cubes)(kc.array(x)).numpy()
    np.testing.assert_allclose(found, np.diag(np.where(np.arange(4) < 2, 0, 6 * x)), rtol=1e-5)


def test_captured(rng):
    x, w = _floats(rng, 4), _floats(rng, 2)

    @kc.jit
    def run(x, w):
        y = x + 1
        before = y[:2]
        y[1:3] = w
        x[0] = 5
        x[x < 0] = 0
        return y, before, x

    for _ in range(2):
        given = kc.array(x)
        y, before, changed = run(given, kc.array(w))
        expected = x + 1
        np.testing.assert_allclose(before.numpy(), expected[:2])
        expected[1:3] = w
        np.testing.assert_allclose(y.numpy(), expected)
        np.testing.assert_array_equal(given.numpy(), x)  # arguments belong to the function
        expected = x.copy()
        expected[0] = 5
        np.testing.assert_array_equal(changed.numpy(), np.maximum(expected, 0))


def test_captured_gradients(rng):
    x = _floats(rng, 4)

    def loss(x):
        y = kc.zeros(4)
        y[::2] = x[1::2] ** 2
        return kc.sum(kc.exp(y))

    expected = np.zeros(4)
    expected[1::2] = 2 * x[1::2] * np.exp(x[1::2] ** 2)
    np.testing.assert_allclose(kc.jit(kc.grad(loss))(kc.array(x)).numpy(), expected, rtol=1e-5)


def test_arrays_from_outside_are_refused_in_captured_functions(rng):
    outside = kc.array(_floats(rng, 3))
    before = outside.numpy()

    def write(x):
        outside[0] = x[0]
        return x

    with pytest.raises(kc.CaptureError, match=r"x\.copy\(\)"):
        kc.jit(write)(kc.array(_floats(rng, 3)))
    with pytest.raises(kc.CaptureError, match=r"x\.copy\(\)"):
        kc.vmap(write)(kc.array(_floats(rng, 2, 3)))
    with pytest.raises(kc.CaptureError, match=r"x\.copy\(\)"):
        kc.scan(lambda c, x: (c, write(x)), 0.0, kc.array(_floats(rng, 2, 3)))
    np.testing.assert_array_equal(outside.numpy(), before)


def test_in_loops_and_maps(rng):
    xs = _floats(rng, 5, 3)

    def step(carry, x):
        carry[0] = carry[0] + x[1]
        x[2] = 1
        return carry, x

    carry, ys = kc.scan(step, kc.zeros(3), kc.array(xs))
    np.testing.assert_allclose(carry.numpy(), [xs[:, 1].sum(), 0, 0], rtol=1e-5)
    np.testing.assert_array_equal(ys.numpy()[:, 2], 1)

    def one(x):
        y = kc.zeros(4)
        y[1:] = x * 2
        y[0] = y[3]
        return y

    expected = np.concatenate([xs[:, 2:], xs], 1) * 2
    np.testing.assert_allclose(kc.vmap(one)(kc.array(xs)).numpy(), expected)

    def loss(c):
        def step(carry, x):
            carry[1] = carry[0] * x[0]
            return carry * 1.0, None

        return kc.sum(kc.scan(step, c * 1.0, kc.array(xs))[0])

    np.testing.assert_allclose(kc.grad(loss)(kc.ones(3)).numpy(), [1 + xs[-1, 0], 0, 1], rtol=1e-5)


def test_in_while_loops(rng):
    x = _floats(rng, 3)

    def body(i, x):
        x[0] = x[0] * x[1] + i
        return i + 1, x

    def run(x):
        return kc.while_loop(lambda i, x: i < 3, body, (0, x * 1.0), 5)[1]

    expected = x.copy()
    for i in range(3):
        expected[0] = expected[0] * expected[1] + i
    for call in (run, kc.jit(run)):
        np.testing.assert_allclose(call(kc.array(x)).numpy(), expected, rtol=1e-5)
    a, b = x[:2].astype(float)
    slope = [b**3, 3 * a * b**2 + 1, 1]  # of ((a b) b + 1) b + 2
    found = kc.grad(lambda t: kc.sum(run(t)))(kc.array(x)).numpy()
    np.testing.assert_allclose(found, np.array(slope) + [0, 1, 0], rtol=1e-4)


def test_states_inside_captured_functions(rng):
    state = kc.State(kc.array(_floats(rng, 3)))
    before = state.value.numpy()

    @kc.jit
    def run(x):
        value = state.value
        value[0] = 9
        state.assign(x)
        x[1] = 4
        return value, x

    x = _floats(rng, 3)
    value, changed = run(kc.array(x))
    np.testing.assert_array_equal(value.numpy(), [9, *before[1:]])
    np.testing.assert_array_equal(changed.numpy(), [x[0], 4, x[2]])
    np.testing.assert_array_equal(state.value.numpy(), x)


def test_adding_in_place_binds_the_name_anew(rng):
    x = kc.array(_floats(rng, 3))
    y = x
    y += 1
    np.testing.assert_allclose(y.numpy(), x.numpy() + 1)
    x[1] += 2
    assert y is not x


def test_a_grad_of_a_closure_is_by_the_argument_alone(rng):
    x = kc.array(_floats(rng, 3))
    np.testing.assert_allclose(kc.grad(lambda t: kc.sum(t * x))(x).numpy(), x.numpy())
    outer = kc.grad(lambda s: kc.sum(kc.grad(lambda t: kc.sum(t * t * s))(s)))(x)
    np.testing.assert_allclose(outer.numpy(), 4 * x.numpy(), rtol=1e-6)


def test_copies_of_states(rng):
    state = kc.State(kc.array(_floats(rng, 3)), "s")
    for other in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        assert other.name == "s"
        other.assign(other.value + 1)
        np.testing.assert_allclose(other.value.numpy(), state.value.numpy() + 1)
