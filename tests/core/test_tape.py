"""Differentiation: what is recorded, structures, higher derivatives, custom gradients."""

from collections import namedtuple

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.tape import pause


def test_gradient_of_a_structure():
    Pair = namedtuple("Pair", "left right")
    values = {"a": kc.array([1.0, 2.0]), "b": [kc.array(3.0), Pair(kc.array(4.0), kc.array(5.0))]}
    with kc.GradientTape() as tape:
        y = kc.sum(values["a"] * values["b"][0]) + values["b"][1].left ** 2
    found = tape.gradient(y, values)
    assert found["a"].tolist() == [3, 3]
    assert found["b"][0].item() == 3.0
    assert isinstance(found["b"][1], Pair)
    assert found["b"][1].left.item() == 8.0
    assert found["b"][1].right is None


def test_gradients_add_up_over_uses_and_targets():
    x = kc.array([1.0, 2.0])
    with kc.GradientTape(persistent=True) as tape:
        y = x * x
        z = kc.sum(y) + kc.sum(y * x)
    np.testing.assert_allclose(tape.gradient(z, x).numpy(), [2 + 3, 4 + 12])
    np.testing.assert_allclose(tape.gradient([y, z], x).numpy(), [2 + 5, 4 + 16])
    weights = kc.array([10.0, 0.0])
    np.testing.assert_allclose(tape.gradient(y, x, output_gradients=weights).numpy(), [20, 0])
    assert tape.gradient(z, [z])[0].item() == 1.0


def test_states_and_intermediate_values_are_sources():
    state = kc.State(kc.array([2.0]))
    with kc.GradientTape() as tape:
        middle = kc.exp(state.value)
        y = kc.sum(middle * 3)
    on_state, on_middle = tape.gradient(y, [state, middle])
    np.testing.assert_allclose(on_state.numpy(), 3 * np.exp([2.0]), rtol=1e-6)
    assert on_middle.tolist() == [3.0]


def test_only_floats_can_be_targets():
    with kc.GradientTape() as tape:
        y = kc.array([1, 2]) * 2
    with pytest.raises(TypeError, match="floating"):
        tape.gradient(y, y)
    with pytest.raises(TypeError, match="with respect to"):
        tape.gradient(kc.array(1.0), "x")


def test_integers_and_comparisons_block_gradients():
    x = kc.array([1.5, -2.0])
    with kc.GradientTape() as tape:
        y = kc.sum(kc.cast(kc.cast(x, "int32"), "float32") + (x > 0) * 1.0)
    assert tape.gradient(y, x) is None


def test_third_derivative():
    third = kc.grad(kc.grad(kc.grad(lambda x: x**4 + kc.sin(x))))
    np.testing.assert_allclose(third(kc.array(0.5)).item(), 24 * 0.5 - np.cos(0.5), rtol=1e-5)


def test_gradient_inside_the_block_and_twice():
    x = kc.array(3.0)
    with kc.GradientTape() as outer:
        with kc.GradientTape(persistent=True) as inner:
            y = x * x * x
        first = inner.gradient(y, x)
        loss = first * first
    assert first.item() == inner.gradient(y, x).item() == 27.0
    np.testing.assert_allclose(outer.gradient(loss, x).item(), 2 * 27 * 18)


def test_records_end_with_the_block():
    x = kc.array(2.0)
    with kc.GradientTape() as tape:
        y = x * x
    z = y * x
    assert tape.gradient(z, x) is None
    tape.reset()
    assert tape.gradient(y, x) is None


def test_stop_gradient_and_pause():
    x = kc.array([1.0, 2.0])
    with kc.GradientTape(persistent=True) as tape:
        y = kc.sum(kc.stop_gradient(x) * x)
        with pause():
            z = x * 5
        w = kc.sum(z * x)
    assert tape.gradient(y, x).tolist() == [1, 2]
    assert tape.gradient(w, x).tolist() == [5, 10]


def test_custom_gradient():
    @kc.custom_gradient
    def clipped(x, scale):
        def grad(upstream):
            return kc.clip(upstream, -1, 1), None

        return x * scale, grad

    x, scale = kc.array([1.0, 2.0]), kc.array(3.0)
    with kc.GradientTape() as tape:
        y = kc.sum(clipped(x, scale) * kc.array([5.0, 0.5]))
    on_x, on_scale = tape.gradient(y, [x, scale])
    assert on_x.tolist() == [1, 0.5]
    assert on_scale is None


def test_custom_gradient_of_several_results_that_pass_an_input_through():
    @kc.custom_gradient
    def function(x, y):
        return (x, x * y), lambda a, b: (a * 2 + b * y, b * x)

    x, y = kc.array(2.0), kc.array(5.0)
    with kc.GradientTape() as tape:
        same, product = function(x, y)
        z = same + product + x
    assert [g.item() for g in tape.gradient(z, [x, y])] == [2 + 5 + 1, 2]


def test_value_and_grad():
    def loss(w, x):
        y = kc.sum(w["a"] * x)
        return y * y, {"y": y}

    w = {"a": kc.array([1.0, 2.0])}
    x = kc.array([3.0, 4.0])
    (value, aux), found = kc.value_and_grad(loss, has_aux=True)(w, x)
    assert value.item() == 121.0
    assert aux["y"].item() == 11.0
    assert found["a"].tolist() == [66, 88]
    both, aux = kc.grad(loss, (0, 1), has_aux=True)(w, x)
    assert both[1].tolist() == [22, 44]


def test_constants_broadcast_without_losing_their_gradient():
    scale = kc.array(2.0)

    def loss(s):
        return kc.sum(s * kc.ones((2, 3))) + kc.sum(kc.where(kc.ones((4,), "bool"), s, 0))

    found = kc.grad(loss)
    assert found(scale).item() == 10.0
    half = kc.grad(lambda s: kc.sum(kc.cast(s, "float16") * kc.ones((3,), "float16")))(scale)
    assert (half.item(), half.dtype.name) == (3.0, "float32")


def test_a_tape_gives_one_gradient_unless_it_is_persistent():
    x = kc.array([1.0, 2.0])
    with kc.GradientTape() as tape:
        y = x * x
        np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [2, 4])
        z = kc.exp(x)
    assert not tape.records
    for ask in (tape.gradient, tape.jacobian, tape.batch_jacobian):
        with pytest.raises(RuntimeError, match="persistent=True"):
            ask(z, x)
    tape.reset()
    with tape:
        z = x * 3
    np.testing.assert_array_equal(tape.gradient(z, x).numpy(), [3, 3])
    with kc.GradientTape(persistent=True) as tape:
        y = x * x
    for _ in range(2):
        np.testing.assert_array_equal(tape.gradient(y, x).numpy(), [2, 4])


def test_a_tape_is_entered_once_at_a_time():
    with kc.GradientTape() as tape, pytest.raises(ValueError, match="recording already"):
        tape.__enter__()


def test_nothing_has_to_be_watched_unless_one_asks_for_it():
    x, w = kc.array([1.0, 2.0]), kc.array([3.0, 4.0])
    with kc.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch({"w": [w]})
        middle = w * x
        y = kc.sum(middle * middle)
    on_x, on_w, on_middle = tape.gradient(y, [x, w, middle])
    assert on_x is None
    np.testing.assert_array_equal(on_w.numpy(), [6, 32])
    np.testing.assert_array_equal(on_middle.numpy(), [6, 16])
    with kc.GradientTape() as tape:
        tape.watch(x)
        y = kc.sum(x * w)
    np.testing.assert_array_equal(tape.gradient(y, w).numpy(), [1, 2])
    with pytest.raises(TypeError, match="floating"):
        tape.watch(kc.array([1, 2]))
    with pytest.raises(TypeError, match="'x'"):
        tape.watch("x")


def test_stop_recording():
    x = kc.array(3.0)
    with kc.GradientTape() as outer, kc.GradientTape() as tape:
        y = x * x
        with tape.stop_recording():
            y = y * x
    assert tape.gradient(y, x) is None
    assert outer.gradient(y, x).item() == 27.0


def test_unconnected_gradients():
    x, other = kc.array([1.0, 2.0]), kc.array([[3.0]])
    with kc.GradientTape(persistent=True) as tape:
        y = x * x
    assert tape.gradient(y, {"a": other, "b": (x,)})["a"] is None
    found = tape.gradient(y, {"a": other, "b": (x,)}, unconnected_gradients="zero")
    assert found["a"].tolist() == [[0]] and found["b"][0].tolist() == [2, 4]
    assert tape.jacobian(y, other) is None
    assert tape.jacobian(y, other, unconnected_gradients="zero").shape == (2, 1, 1)
    with pytest.raises(ValueError, match="'none' or 'zero'"):
        tape.gradient(y, x, unconnected_gradients="nothing")


def test_targets_and_their_gradients_are_structures():
    x = kc.array([1.0, 2.0])
    with kc.GradientTape(persistent=True) as tape:
        targets = {"a": x * x, "b": [x * 3]}
    seeds = {"a": kc.array([1.0, 10.0]), "b": [None]}
    np.testing.assert_array_equal(tape.gradient(targets, x, seeds).numpy(), [5, 43])
    with pytest.raises(ValueError, match="1 entries for 2 targets"):
        tape.gradient(targets, x, kc.array(1.0))


def test_jacobian(rng):
    x, w = (rng.normal(size=s).astype("float32") for s in ((3, 2), (2, 4)))
    xa, wa = kc.array(x), kc.array(w)
    with kc.GradientTape(persistent=True) as tape:
        y = kc.tanh(kc.matmul(xa, wa))
    slope = 1 - np.tanh(x @ w) ** 2
    on_x = np.einsum("bo,ab,io->boai", slope, np.eye(3), w)
    on_w = np.einsum("bo,bi,op->boip", slope, x, np.eye(4))
    found = tape.jacobian(y, {"x": xa, "w": wa})
    np.testing.assert_allclose(found["x"].numpy(), on_x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["w"].numpy(), on_w, rtol=1e-5, atol=1e-6)
    rows = tape.batch_jacobian(y, xa).numpy()
    np.testing.assert_allclose(rows, np.einsum("bo,io->boi", slope, w), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="same first dimension"):
        tape.batch_jacobian(y, wa)


def test_jacobian_of_a_gradient_is_the_hessian():
    x = kc.array([1.0, 2.0, 3.0])
    with kc.GradientTape() as outer:
        with kc.GradientTape() as inner:
            y = kc.sum(x**3) + x[0] * x[1]
        slope = inner.gradient(y, x)
    hessian = np.diag([6.0, 12.0, 18.0]) + np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(outer.jacobian(slope, x).numpy(), hessian, rtol=1e-6)


@pytest.mark.parametrize("name", ["_id", "backward", "grad"])
def test_what_other_frameworks_tapes_ask_for_names_ours(name):
    x = kc.array([1.0])
    assert not hasattr(x, name) and not hasattr(kc.Array, name)
    with pytest.raises(AttributeError, match=r"kerascl\.GradientTape"):
        getattr(x, name)
