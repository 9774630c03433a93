"""Large arrays that are only joined are copied part by part, not element by element."""

import numpy as np
import pytest

import kerascl as kc

LARGE = 2**20


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64"])
@pytest.mark.parametrize("lead", [(), (1,)])
def test_parts_at_any_byte(rng, launches, dtype, lead):
    sizes = (LARGE, LARGE + 5, LARGE + 3)
    hosts = [rng.integers(0, 200, (*lead, n)).astype(dtype) for n in sizes]
    axis = len(lead)
    found = kc.concatenate([kc.array(h) for h in hosts], axis)
    np.testing.assert_array_equal(found.numpy(), np.concatenate(hosts, axis))
    assert not launches["map_kernel"]


def test_parts_that_are_computed_or_read_twice(rng):
    host = rng.integers(0, 100, LARGE).astype(np.uint8)

    @kc.jit
    def joined(x):
        again = kc.concatenate([x, x])
        return kc.concatenate([x + 1, x, x * 2]), again, again + 1

    plain = np.concatenate([host, host])
    expected = np.concatenate([host + 1, host, host * 2]), plain, plain + 1
    for found, right in zip(joined(kc.array(host)), expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), right)


def test_rows_side_by_side_are_not_parts(rng):
    hosts = [rng.integers(0, 100, (3, LARGE + k)).astype(np.uint8) for k in range(2)]
    found = kc.concatenate([kc.array(h) for h in hosts], 1).numpy()
    np.testing.assert_array_equal(found, np.concatenate(hosts, 1))
