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
    with kc.GradientTape() as tape:
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
        with kc.GradientTape() as inner:
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
    with kc.GradientTape() as tape:
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
