"""Generated kernels share translation units, none of which takes long to build."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.runtime.programs import kernel_names

LAYERS = 32
MOST_BYTES = 32_000  # of one unit: the limit, the prelude and one kernel's helpers


@pytest.mark.slow
def test_many_layers_are_spread_over_units(as_gpu, rng):
    # Every layer has a shape of its own, and with it kernels of its own.
    arrays = [rng.normal(size=(600 + k, 3 + k)).astype(np.float32) for k in range(LAYERS)]

    def layers(*xs):
        return [(x - kc.mean(x, 0)) / (kc.sqrt(kc.mean(x * x, 0)) + 1) for x in xs]

    as_gpu(8)
    step = kc.jit(layers)
    steps = step.captured(*arrays).program.steps
    units = {s.source for s in steps}
    total = sum(len(source) for source in units)
    assert total > 4 * MOST_BYTES
    assert max(len(source) for source in units) < MOST_BYTES
    assert len(units) <= 2 * total / MOST_BYTES  # each is worth what it costs by itself
    names = [name for source in units for name in kernel_names(source)]
    assert sorted(names) == sorted({s.name for s in steps})  # each kernel is in one of them
    for got, x in zip(step(*arrays), arrays, strict=True):
        x = x.astype(np.float64)
        want = (x - x.mean(0)) / (np.sqrt((x * x).mean(0)) + 1)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-4, atol=1e-5)
