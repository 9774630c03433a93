"""Host arguments of captured functions that travel beside the previous step."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime import device as devices
from kerascl.runtime.uploads import SMALLEST, Upload


@pytest.fixture
def apart():
    """The device as if its memory were its own, so that large copies go through staging."""
    dev = devices.default()
    return devices.Device(dev.handle, dataclasses.replace(dev.info, staged_copies=True))


@pytest.mark.parametrize("count", [10, SMALLEST // 4 + 3, 3 * 2**20])
def test_every_step_sees_its_own_argument(apart, count, rng):
    with kc.device_scope(apart):
        total = kc.State(kc.zeros(4))

        @kc.jit
        def step(x):
            # slow enough that the next copy begins before it ends
            y = x
            for _ in range(20):
                y = kc.sin(y) + x
            total.assign(total.value + kc.sum(y) * 1e-3)
            return kc.sum(x * 2), x[-1]

        x = np.empty(count, np.float32)
        for _ in range(12):
            x[:] = rng.standard_normal(count)
            wanted, last = x.astype(np.float64).sum() * 2, x[-1]
            found, tail = step(x)
            x[:] = np.nan  # the caller may do so as soon as the step is enqueued
            scale = np.sqrt(count)
            assert abs(float(found) - wanted) < 1e-4 * scale
            assert float(tail) == last
        assert np.isfinite(np.asarray(total.value)).all()


def test_results_held_by_nobody_are_not_waited_for(apart, rng):
    """Steps run ahead; the states are right at the end."""
    xs = [rng.integers(0, 100, 2**19).astype(np.float32) for _ in range(7)]
    with kc.device_scope(apart):
        total = kc.State(kc.zeros(2**19))
        step = kc.jit(lambda x: total.assign(total.value * 0.5 + x))
        for _ in range(3):
            for x in xs:
                step(x)
        wanted = np.zeros(2**19)
        for x in 3 * xs:
            wanted = wanted * 0.5 + x
        np.testing.assert_allclose(np.asarray(total.value), wanted, rtol=1e-6)


def test_two_buffers_only_where_copies_can_overlap(apart):
    large, small = Upload(apart, SMALLEST), Upload(apart, 100)

    def places(upload, nbytes):
        return len({id(upload.send(np.ones(nbytes, np.uint8))) for _ in range(4)})

    assert places(large, SMALLEST) == 2 and places(small, 100) == 1
    together = devices.default()
    if not together.info.staged_copies:
        assert places(Upload(together, SMALLEST), SMALLEST) == 1
