"""Functions that are computed again in the backward pass."""

import gc

import numpy as np
import pytest

import kerascl as kc
from kerascl.core import traced


def weights(rng, count=8, size=128):
    return [
        kc.State(kc.array(rng.standard_normal((size, size)).astype("f") / np.sqrt(size)))
        for _ in range(count)
    ]


def block(h, a, b):
    return kc.tanh(kc.tanh(h @ a.value) @ b.value) + h


def network(states, wrap):
    def run(x):
        with kc.GradientTape() as tape:
            h = x
            for k in range(0, len(states), 2):
                h = wrap(block)(h, states[k], states[k + 1])
            loss = kc.mean(h * h)
        return loss, tape.gradient(loss, [*states, x])

    return run


def assert_same(found, expected, rtol=1e-5):
    for a, b in zip(found, expected, strict=True):
        scale = np.abs(b.numpy()).max()
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=rtol, atol=rtol * scale)


@pytest.mark.slow
def test_gradients_are_the_same_and_memory_is_less(rng):
    states = weights(rng)
    x = kc.array(rng.standard_normal((256, 128)).astype("f"))
    plain, again = kc.jit(network(states, lambda f: f)), kc.jit(network(states, kc.remat))
    expected, found = plain(x), again(x)
    assert_same(found[1], expected[1])
    assert_same(network(states, kc.remat)(x)[1], expected[1])
    usual, less = plain.captured(x), again.captured(x)
    # four blocks keep two activations each; computed again, only their inputs
    assert less.planned_bytes < 0.7 * usual.planned_bytes
    products = [sum("gemm" in step.name for step in c.program.steps) for c in (usual, less)]
    assert products[1] > products[0]


def test_eager_tapes_keep_only_inputs(rng):
    buffers = kc.zeros(1).device.buffers
    held = []
    for wrap in (lambda f: f, kc.remat):
        x = kc.array(rng.standard_normal((64, 1024)).astype("f"))

        def deep(x):
            for _ in range(8):
                x = kc.sin(kc.cumsum(x, 1))
            return x

        gc.collect()
        before = buffers.stats().in_use
        with kc.GradientTape() as tape:
            y = kc.sum(wrap(deep)(x)).evaluate()
        held.append(buffers.stats().in_use - before)
        tape.gradient(y, x)
    assert held[1] < 0.3 * held[0]


def test_random_numbers_are_the_same_again(rng):
    seed = kc.State(kc.array(np.array([3, 4], "u4")))
    x = kc.array(rng.standard_normal((50,)).astype("f"))

    def noisy(x):
        key = seed.value
        seed.assign(key + 1)
        return kc.random.dropout(key, x * x, 0.5)

    with kc.GradientTape() as tape:
        y = kc.remat(noisy)(x)
    kept = y.numpy() != 0
    np.testing.assert_array_equal(seed.value.numpy(), [4, 5])
    np.testing.assert_allclose(
        tape.gradient(y, x).numpy(), np.where(kept, 4 * x.numpy(), 0), rtol=1e-6
    )
    np.testing.assert_array_equal(seed.value.numpy(), [4, 5])


def test_structures_constants_and_other_arguments():
    @kc.remat
    def f(pair, scale, *, key):
        a, b = pair["ab"]
        return {"sum": a * scale + b, "key": key, "none": None, "same": (a,)}

    a, b = kc.array([1.0, 2.0]), kc.array([3.0, 4.0])
    with kc.GradientTape() as tape:
        result = f({"ab": (a, b)}, 2.0, key="k")
        y = kc.sum(result["sum"] * result["same"][0])
    assert result["key"] == "k" and result["none"] is None
    da, db = tape.gradient(y, [a, b])
    np.testing.assert_array_equal(da.numpy(), 4 * a.numpy() + b.numpy())
    np.testing.assert_array_equal(db.numpy(), a.numpy())


def test_derivatives_of_ones_own_and_second_derivatives():
    @kc.custom_gradient
    def f(x):
        return x * x, lambda g: g * 10 * x * x  # its derivative is 20 x

    x = kc.array([2.0, 3.0])
    with kc.GradientTape() as outer:
        with kc.GradientTape() as inner:
            y = kc.sum(kc.remat(lambda x: f(x) + kc.sin(x))(x))
        first = inner.gradient(y, x)
        total = kc.sum(first)
    np.testing.assert_allclose(first.numpy(), 10 * x.numpy() ** 2 + np.cos(x.numpy()), rtol=1e-6)
    np.testing.assert_allclose(
        outer.gradient(total, x).numpy(), 20 * x.numpy() - np.sin(x.numpy()), rtol=1e-6
    )


def test_nested_and_inside_vmap(rng):
    w = kc.State(kc.array(rng.standard_normal((4, 4)).astype("f")))
    x = kc.array(rng.standard_normal((3, 4)).astype("f"))

    def f(x):
        return kc.tanh(x @ w.value)

    inner = kc.remat(lambda x: kc.remat(f)(f(x)))
    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(inner)(x) ** 2)
    found = tape.gradient(y, [w, x])
    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(lambda x: f(f(x)))(x) ** 2)
    assert_same(found, tape.gradient(y, [w, x]))


def test_a_function_that_reads_values_runs_as_it_is():
    @kc.remat
    def f(x):
        return x * 2 if float(x[0]) > 0 else x

    x = kc.array([1.0, 2.0])
    with kc.GradientTape() as tape:
        y = f(x)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [2, 2])


def test_a_closed_function_knows_what_it_reads():
    w, x = kc.array([2.0, 3.0]), kc.array([1.0, 1.0])
    with kc.GradientTape():
        made, states = traced.trace(lambda arrays: [arrays[0] * w], [x])
    assert len(made.captured) == 1 and made.captured[0] is w and states == []
    (y,) = made.call([kc.array([5.0, 7.0])])
    np.testing.assert_array_equal(y.numpy(), [10, 21])
    dx, dw = made.gradient().call([kc.array([5.0, 7.0]), kc.ones(2)])
    np.testing.assert_array_equal(dx.numpy(), [2, 3])
    np.testing.assert_array_equal(dw.numpy(), [5, 7])


def test_without_a_tape_nothing_is_traced():
    calls = []
    f = kc.remat(lambda x: calls.append(isinstance(x.numpy(), np.ndarray)) or x * 2)
    f(kc.ones(2))
    assert calls == [True]


def test_constants_from_outside_have_gradients():
    x = kc.array(0.5)
    with kc.GradientTape() as tape:
        y = kc.remat(lambda v: v * x + kc.sin(x))(kc.array([1.0, 2.0]))
        z = kc.scan(lambda c, v: (c * x + v, None), kc.array(1.0), kc.array([1.0, 2.0, 3.0]))[0]
        loss = kc.sum(y) + z
    # 3 + 2 cos(x), and the derivative of x**3 + x**2 + 2 x + 3
    expected = 3 + 2 * np.cos(0.5) + 3 * 0.25 + 2 * 0.5 + 2
    np.testing.assert_allclose(tape.gradient(loss, x).numpy(), expected, rtol=1e-6)
