"""Boxes of arrays replaced, at places that the host or the device knows."""

import numpy as np
import pytest

import kerascl
from kerascl.ops.updates import UPDATE, update
from tests.compiler.test_in_place import box, normal


def _case(rng):
    """Shapes of an array and a box, where it begins, and these starts, some on the device."""
    shape = tuple(map(int, rng.integers(1, 7, 3)))
    part = tuple(int(rng.integers(1, n + 1)) for n in shape)
    places = [int(rng.integers(-9, 9)) for _ in shape]
    starts = []
    for axis, (n, m) in enumerate(zip(shape, part, strict=True)):
        if rng.integers(2):
            places[axis] = int(rng.integers(0, n - m + 1))
            starts.append(places[axis])
        else:
            starts.append(kerascl.array(np.array(places[axis], rng.choice(["int8", "int64"]))))
    return shape, part, places, starts


@pytest.mark.parametrize("repeat", range(6))
def test_values_and_gradients(rng, repeat):
    shape, size, places, starts = _case(rng)
    x, part, w = normal(rng, *shape), normal(rng, *size), normal(rng, *shape)
    expected = box(x, part, *places)
    for function in (update, kerascl.jit(lambda x, part: update(x, part, starts))):
        args = (starts,) if function is update else ()
        found = function(kerascl.array(x), kerascl.array(part), *args)
        np.testing.assert_array_equal(found.numpy(), expected)
    dx, dpart = kerascl.grad(lambda x, p: kerascl.sum(update(x + 0, p, starts) * w), (0, 1))(
        kerascl.array(x), kerascl.array(part)
    )
    if dx is None:
        assert size == shape  # nothing of `x` is left
    else:
        np.testing.assert_array_equal(dx.numpy(), box(w, 0 * part, *places))
    inside = np.zeros(size, "float32")
    for at in np.ndindex(size):
        place = tuple(a + s for a, s in zip(at, places, strict=True))
        if all(0 <= p < n for p, n in zip(place, shape, strict=True)):
            inside[at] = w[place]
    np.testing.assert_array_equal(dpart.numpy(), inside)


@pytest.mark.parametrize("repeat", range(4))
def test_batches(rng, repeat):
    shape, size, places, starts = _case(rng)
    xs, part = normal(rng, 3, *shape), normal(rng, *size)
    own = rng.integers(-3, 6, (3, 3)).astype("int32")
    same = kerascl.vmap(lambda x: update(x, kerascl.array(part), starts))(kerascl.array(xs))
    apart = kerascl.vmap(lambda x, s: update(x, kerascl.array(part), [s[0], s[1], s[2]]))(
        kerascl.array(xs), kerascl.array(own)
    )
    for k in range(3):
        np.testing.assert_array_equal(same.numpy()[k], box(xs[k], part, *places))
        np.testing.assert_array_equal(apart.numpy()[k], box(xs[k], part, *own[k]))


def _key(rng, shape):
    """A key of NumPy's, and the same with some of its integers on the device."""
    host, device = [], []
    for n in shape:
        kind = rng.integers(4)
        if kind == 0:
            part = int(rng.integers(-n, n))
        elif kind == 1:
            dtype = str(rng.choice(["int32", "int64", "int8", "uint8", "uint64"]))
            host.append(int(rng.integers(0 if dtype[0] == "u" else -n, n)))
            device.append(kerascl.array(np.array(host[-1], dtype)))
            continue
        elif kind == 2:
            part = slice(*map(int, sorted(rng.integers(-n - 1, n + 2, 2))))
        else:
            part = slice(None, None, int(rng.choice([1, 2, -1])))
        host.append(part)
        device.append(part)
    cut = int(rng.integers(1, len(shape) + 1))
    return tuple(host[:cut]), tuple(device[:cut])


@pytest.mark.parametrize("repeat", range(20))
def test_elements_assigned_by_integers_and_slices(rng, repeat):
    x = normal(rng, *rng.integers(1, 6, int(rng.integers(1, 4))))
    host, device = _key(rng, x.shape)
    value = normal(rng, *x[host].shape) if rng.integers(2) else np.float32(rng.normal())
    expected = x.copy()
    expected[host] = value
    y = kerascl.array(x)
    y[device] = kerascl.array(value)
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(kerascl.array(x).at[device].set(value).numpy(), expected)


def test_an_integer_on_the_device_is_an_update(rng):
    x, i = kerascl.array(normal(rng, 4, 3)), kerascl.array(np.array(-1, "int32"))
    expected = x.numpy()
    expected[-1] = 2
    y = x.at[i].set(2)
    assert y._node.inputs[0].op is UPDATE or y._node.op is UPDATE
    np.testing.assert_array_equal(y.numpy(), expected)


def test_integers_out_of_range_are_the_nearest(rng):
    x = normal(rng, 4, 3)
    for value, row in ((7, 3), (-9, 0)):
        expected = x.copy()
        expected[row] = 1
        y = kerascl.array(x)
        y[kerascl.array(np.array(value, "int32"))] = 1
        np.testing.assert_array_equal(y.numpy(), expected)
