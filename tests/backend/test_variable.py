"""Keras variables: values that stay, casts, copies, scopes."""

import copy
import pickle

import keras
import ml_dtypes
import numpy as np
import pytest

import kerascl
from kerascl.compiler.run.capture import jit
from kerascl.core.array import Array
from kerascl.core.errors import CaptureError


def test_value_read_before_assign_stays(rng):
    first, second = rng.normal(size=(2, 3, 4)).astype("float32")
    v = keras.Variable(first)
    before = v.value
    doubled = v.value * 2
    v.assign(second)
    np.testing.assert_array_equal(before.numpy(), first)
    np.testing.assert_array_equal(doubled.numpy(), first * 2)
    np.testing.assert_array_equal(v.numpy(), second)


def test_value_read_before_captured_update_stays(rng):
    first = rng.normal(size=(5,)).astype("float32")
    v = keras.Variable(first)

    def update(x):
        v.assign_add(x)
        return v.value * 1

    step = jit(update)
    values, expected = [], first
    for _ in range(3):
        values.append((v.value, expected))
        step(np.ones(5, "float32"))
        expected = expected + 1
    for value, e in values:
        np.testing.assert_array_equal(value.numpy(), e)
    np.testing.assert_array_equal(v.numpy(), expected)


def test_assigned_array_is_not_shared(rng):
    a, b = keras.Variable(np.zeros(4, "float32")), keras.Variable(np.zeros(4, "float32"))
    value = kerascl.array(rng.normal(size=4).astype("float32"))
    a.assign(value)
    b.assign(value)
    jit(lambda: a.assign(a.value + 1))()
    np.testing.assert_array_equal(b.numpy(), value.numpy())
    np.testing.assert_array_equal(a.numpy(), value.numpy() + 1)


def test_assign_casts_to_the_variables_dtype():
    v = keras.Variable(np.zeros(3, "float32"))
    v.assign(np.array([1, 2, 3], "int64"))
    assert v.value.dtype == "float32"
    v.assign([4.5, 5.5, 6.5])
    np.testing.assert_array_equal(v.numpy(), [4.5, 5.5, 6.5])


def test_assign_of_another_shape_is_refused():
    v = keras.Variable(np.zeros((2, 3), "float32"))
    with pytest.raises(ValueError, match="must match"):
        v.assign(np.zeros((3, 2), "float32"))


def test_python_floats_become_floatx():
    keras.config.set_floatx("float16")
    assert keras.Variable(1.5).dtype == "float16"
    assert keras.Variable([1, 2]).dtype == "int32"
    assert keras.Variable(np.zeros(2)).dtype == "float64"


def test_autocast_casts_what_is_read():
    v = keras.Variable(np.arange(3, dtype="float32"))
    exact = keras.Variable(np.arange(3, dtype="float32"), autocast=False)
    whole = keras.Variable(np.arange(3, dtype="int32"))
    with keras.src.backend.AutocastScope("bfloat16"):
        assert v.dtype == "bfloat16" and v.value.dtype == "bfloat16"
        assert exact.value.dtype == "float32" and whole.value.dtype == "int32"
        v.assign(v.value + 1)  # stored in its own dtype
    assert v.value.dtype == "float32"
    np.testing.assert_array_equal(v.numpy(), [1, 2, 3])


def test_bfloat16_on_the_host():
    v = keras.Variable([1.0, 2.5], dtype="bfloat16")
    assert v.numpy().dtype == ml_dtypes.bfloat16
    assert np.asarray(v, "float32").tolist() == [1.0, 2.5]


def test_stateless_scope_keeps_updates_to_itself():
    v = keras.Variable(np.ones(2, "float32"))
    with keras.StatelessScope([(v, np.full(2, 5, "float32"))]) as scope:
        np.testing.assert_array_equal(v.numpy(), [5, 5])
        v.assign_add([1, 1])
        np.testing.assert_array_equal(v.numpy(), [6, 6])
    np.testing.assert_array_equal(v.numpy(), [1, 1])
    np.testing.assert_array_equal(scope.get_current_value(v).numpy(), [6, 6])


def test_deepcopy_and_pickle_are_independent(rng):
    v = keras.Variable(rng.normal(size=3).astype("float32"), name="v", trainable=False)
    for other in (copy.deepcopy(v), pickle.loads(pickle.dumps(v))):
        np.testing.assert_array_equal(other.numpy(), v.numpy())
        assert other.name == "v" and not other.trainable
        other.assign(np.zeros(3))
        assert np.abs(v.numpy()).max() > 0


def test_operators_and_indexing(rng):
    host = rng.normal(size=(3, 4)).astype("float32")
    v = keras.Variable(host)
    assert isinstance(v + 1, Array)
    np.testing.assert_allclose((2 - v).numpy(), 2 - host)
    np.testing.assert_allclose((v @ v.value.T).numpy(), host @ host.T, rtol=1e-5)
    np.testing.assert_array_equal((v > 0).numpy(), host > 0)
    np.testing.assert_array_equal(v[1].numpy(), host[1])
    assert float(keras.Variable(3.0)) == 3.0


def test_random_initialiser_runs_on_the_device_and_is_seeded():
    make = lambda: keras.initializers.RandomNormal(seed=7)  # noqa: E731
    a = keras.Variable(make(), shape=(100,))
    b = keras.Variable(make(), shape=(100,))
    np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert a.numpy().std() > 0.01


def test_variable_made_inside_a_captured_function_is_real():
    made = []

    def function(x):
        if not made:
            made.append(keras.Variable("ones", shape=(3,)))
        made[0].assign_add(x)
        return made[0].value * 1

    step = jit(function)
    assert step(np.ones(3, "float32")).tolist() == [2, 2, 2]
    assert step(np.ones(3, "float32")).tolist() == [3, 3, 3]
    assert made[0].numpy().tolist() == [3, 3, 3]


def test_variable_from_a_traced_value_is_refused():
    with pytest.raises(CaptureError, match="create it before the step"):
        jit(lambda x: keras.Variable(x).value)(np.ones(3, "float32"))


def test_repr_shows_the_value():
    assert "value=[1. 2.]" in repr(keras.Variable([1.0, 2.0]))
