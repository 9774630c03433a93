"""Matrix products as layers have them, against float64."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.dtypes import float32
from kerascl.kernels.matmul import cpu
from kerascl.ops import nn
from kerascl.runtime import device
from tests.ops.slopes import relative

# batch, m, n, k: whole units of 16 bytes, none, a batch, few rows, a long sum
SIZES = [
    ((), 70, 48, 64), ((), 33, 35, 37), ((3,), 20, 24, 32), ((), 2, 200, 64), ((), 24, 32, 520),
]  # fmt: skip


@pytest.mark.every(7)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("turned", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_layers(sizes, turned, dtype, rng):
    """A bias and relu behind, and both gradients; each operand as it is or transposed."""
    batch, m, n, k = sizes
    shapes = (*batch, m, k), (*batch, k, n), (n,)
    turns = (turned[0] == "t", turned[1] == "t", False)
    held = [
        kc.array(rng.standard_normal((*s[:-2], s[-1], s[-2]) if turn else s), dtype)
        for s, turn in zip(shapes, turns, strict=True)
    ]
    with kc.GradientTape() as tape:
        a, b, bias = (kc.swapaxes(x, -1, -2) if turn else x for x, turn in zip(held, turns))
        y = nn.relu(kc.matmul(a, b) + bias)
    g = kc.array(rng.standard_normal(y.shape), dtype)
    found = [y, *tape.gradient(y, held, g)]
    a64, b64, bias64, g64 = (x.numpy().astype(np.float64) for x in (a, b, bias, g))
    # what is cut off, is cut off of the rounded sum
    live = np.where(y.numpy() > 0, g64, 0)
    da, db = live @ b64.swapaxes(-1, -2), a64.swapaxes(-1, -2) @ live
    expected = [
        np.maximum(a64 @ b64 + bias64, 0),
        da.swapaxes(-1, -2) if turns[0] else da,
        db.swapaxes(-1, -2) if turns[1] else db,
        live.reshape(-1, n).sum(0),
    ]
    close = {"float32": 1e-6, "float16": 2.0**-10, "bfloat16": 2.0**-7}[dtype]
    for got, want in zip(found, expected, strict=True):
        assert got.dtype == dtype and relative(got.numpy(), want) < close


@pytest.mark.parametrize("slope", [kc.tanh, kc.exp, kc.log1p, kc.sqrt], ids=lambda f: f.__name__)
def test_functions_behind_every_tile_of_a_cpu(slope, monkeypatch, rng):
    """Of what the epilogue reads; a compiler that unrolled these loops died of some tiles."""
    info = device.default().info
    if info.kind != "cpu":
        pytest.skip("a GPU has no such tiles")
    for place, micro in enumerate(cpu.shapes(float32, info.simd_width)):
        monkeypatch.setattr(cpu, "best", lambda *_, micro=micro, **__: micro)
        m, n, k = 2 * micro.mr + 3, 3 * micro.nr + 1, 40 + place  # which no other test has
        a, b, z = (rng.random(s, np.float32) for s in ((m, k), (k, n), (m, n)))
        found = kc.jit(lambda a, b, z: kc.matmul(a, b) * (1 - slope(z) ** 2))(a, b, z)
        reference = getattr(np, slope.__name__)(z.astype(np.float64))
        wanted = (a.astype(np.float64) @ b.astype(np.float64)) * (1 - reference**2)
        assert relative(found.numpy(), wanted) < 1e-6
