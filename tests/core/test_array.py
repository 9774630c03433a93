"""Arrays and States as Python objects; shape rules."""

import copy
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import kerascl as kc
from kerascl.core import rules


def test_python_protocols():
    x = kc.array([[1.5, 2.0], [3.0, 4.0]])
    assert (x.shape, x.ndim, x.size, x.nbytes, len(x)) == ((2, 2), 2, 4, 16, 2)
    assert x.dtype == "float32" == np.dtype(x.dtype.name)
    assert float(x[0, 0]) == 1.5
    assert int(kc.array(7)) == 7
    assert [10, 20][kc.array(1)] == 20
    assert complex(kc.array(1.0)) == 1
    assert f"{kc.array(1.25):.1f}" == "1.2"
    assert np.asarray(x, np.int32).tolist() == [[1, 2], [3, 4]]
    assert np.sum(x) == 10.5
    assert "float32" in repr(x)
    assert x.T[0, 1].item() == 3.0
    assert x.tolist() == x.numpy().tolist()
    assert {x: 1}[x] == 1
    assert copy.deepcopy(x) is not x
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(x)).numpy(), x.numpy())


def test_operators_with_numpy_on_either_side():
    x, y = kc.array([1.0, 2.0]), np.array([3.0, 4.0], np.float32)
    results = x + y, y + x, x * y - y, y / x, y**x, y @ x[:, None], 2 - x, 2**x, 7 // x, 7 % x
    for result in results:
        assert isinstance(result, kc.Array)
    assert (y - x).tolist() == [2, 2]
    assert (x == y).tolist() == [False, False]
    quotient, rest = divmod(kc.array([7, -7]), 3)
    assert (quotient.tolist(), rest.tolist()) == ([2, -3], [1, 2])
    assert (-x + abs(-x) + +x).tolist() == x.tolist()
    np.testing.assert_allclose(round(kc.array([1.26]), 1).numpy(), [1.3], rtol=1e-7)
    assert (~kc.array([True, False])).tolist() == [False, True]
    assert (kc.array([6]) >> 1 | 8 ^ 1 & 3).tolist() == [6 >> 1 | 8 ^ 1 & 3]


def test_ambiguous_uses_raise():
    x = kc.array([1.0, 2.0])
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)
    with pytest.raises(TypeError, match="index"):
        [1][kc.array(0.0)]
    with pytest.raises(TypeError, match="len"):
        len(kc.array(1))
    with pytest.raises(TypeError, match="iteration"):
        list(kc.array(1))
    with pytest.raises(TypeError):
        x + "text"


def test_methods():
    x = kc.array(np.arange(6, dtype=np.float32).reshape(2, 3))
    host = x.numpy()
    assert x.reshape(3, 2).shape == x.reshape((3, -1)).shape == (3, 2)
    assert x.transpose(1, 0).shape == x.transpose((1, 0)).shape == x.transpose().shape == (3, 2)
    assert x.astype("int8").dtype == "int8"
    assert x.flatten().shape == x.ravel().shape == (6,)
    for name in ("sum", "mean", "max", "min", "prod", "std", "var", "argmax", "cumsum"):
        np.testing.assert_allclose(
            getattr(x, name)(axis=1).numpy(), getattr(host, name)(axis=1), rtol=1e-7
        )


def test_values_are_computed_once_and_only_when_needed():
    x = kc.array(np.ones((64, 64), np.float32))
    y = kc.sin(x) @ x
    before = kc.engine.launches
    assert y._node.buffer is None
    first = y.numpy()
    assert kc.engine.launches > before
    after = kc.engine.launches
    np.testing.assert_array_equal(y.numpy(), first)
    assert y.evaluate() is y
    assert kc.engine.launches == after


def test_endless_chains_stay_bounded():
    x = kc.array([0.0])
    for _ in range(2000):
        x = x + 1
    assert x._node.depth <= 601
    assert x.item() == 2000


def test_states():
    x = kc.array([1.0, 2.0])
    state = kc.State(x, "weight")
    held = state.value
    state.assign(state.value * 2)
    assert held.tolist() == [1, 2]
    assert state.value.tolist() == [2, 4]
    assert "weight" in repr(state)
    with pytest.raises(ValueError, match="weight"):
        state.assign(kc.array([1, 2]))


@pytest.mark.parametrize("shapes, result", [
    (((2, 3), (3,)), (2, 3)), (((2, 1), (1, 3)), (2, 3)), (((), (4,)), (4,)),
    (((0, 1), (3,)), (0, 3)), (((5,), (1, 1), (2, 1, 1)), (2, 1, 5)),
])  # fmt: skip
def test_broadcast(shapes, result):
    assert rules.broadcast(*shapes) == result == np.broadcast_shapes(*shapes)


def test_shape_rules_refuse():
    for call in (
        lambda: rules.broadcast((2,), (3,)),
        lambda: rules.axis_index(2, 2),
        lambda: rules.axes_tuple((0, -2), 2),
        lambda: rules.reshape((2, 3), (4, 2)),
        lambda: rules.reshape((2, 3), (-1, -1)),
        lambda: rules.reshape((2, 3), (0, -1)),
    ):
        with pytest.raises(ValueError):
            call()
    assert rules.reshape((2, 3), (3, -1)) == (3, 2)
    assert rules.reshape((0, 3), (0,)) == (0,)
    assert rules.axes_tuple(None, 3) == (0, 1, 2)


def test_arrays_take_attributes():
    x = kc.array([1.0, 2.0])
    x.note = "mine"
    x.numpy = None  # somebody's stand-in does not stop the array from being read
    assert x.note == "mine"
    np.testing.assert_array_equal(np.asarray(x), [1, 2])


FORK = """
import multiprocessing, sys
import kerascl as kc

x = kc.array([1.0, 2.0]) + 1
x.numpy()
fork = multiprocessing.get_context("fork")


def child(pipe):
    pipe.send(repr(x * 2))


here, there = fork.Pipe()
process = fork.Process(target=child, args=(there,))
process.start()
assert here.poll(60), "the child hangs"
print(here.recv())
process.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_an_array_is_shown_where_its_device_is_lost():
    """A pool's worker that could not show its result would die and leave its parent waiting."""
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and "forked" in done.stdout, done.stdout + done.stderr


def test_states_of_what_numpy_has():
    x = np.array([1.5, -2], np.float32)
    state = kc.State(x)
    np.testing.assert_array_equal(state.value.numpy(), x)
    state.assign(x * 2)
    np.testing.assert_array_equal(state.value.numpy(), x * 2)
    state.assign([3, 4])  # numbers get its dtype
    assert state.value.dtype is kc.float32 and state.value.tolist() == [3, 4]
    count = kc.State(kc.array(5))
    count.assign(7)
    assert int(count.value) == 7
    for bad in (np.zeros(2), np.zeros(3, np.float32), [1, 2, 3], 0):
        with pytest.raises(ValueError, match="cannot assign"):
            state.assign(bad)
    assert state.value.tolist() == [3, 4]
