"""Gradients of a dense layer's weights and bias are made together: a CPU passes for a GPU with a
kernel for it."""

from types import SimpleNamespace

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.node import topological
from kerascl.core.tape import GradientTape
from kerascl.kernels.matmul import dense
from kerascl.ops.contraction import DENSE_GRAD, MATMUL
from tests import profiles
from tests.compiler.graphs import CPU, argument, nodes_of

GPU = SimpleNamespace(**vars(CPU) | {"kind": "gpu"})
HALVES = {"float32": 1e-6, "bfloat16": 3e-3, "float16": 4e-4}  # what rounding a result takes


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The problems that were planned for; each is taken to be well served."""
    found, plan = [], dense.plan
    monkeypatch.setattr(dense, "in_one", lambda *_: True)
    monkeypatch.setattr(dense, "plan", lambda p, *rest: found.append(p) or plan(p, *rest))
    return found


def left(*arrays, info=GPU):
    """(products, gradients together) that a graph has when rewritten for a GPU."""
    _, roots, _ = rewrite(nodes_of(*arrays), [x._node for x in arrays], info)
    ops = [node.op for node in topological(roots)]
    return ops.count(MATMUL), ops.count(DENSE_GRAD)


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU."""
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))


def error(got, want):
    return np.linalg.norm(np.asarray(got).astype(np.float64) - want) / np.linalg.norm(want)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_of_one_layer(card, asked, dtype, rng):
    given = [kc.array(rng.normal(size=(90, n)) + 0.3, dtype=dtype) for n in (16, 24)]
    found = kc.jit(both)(*given)
    assert len(asked) == 1
    x, slope = (np.asarray(v).astype(np.float64) for v in given)
    for got, want in zip(found, (x.T @ slope, slope.sum(0)), strict=True):
        assert error(got, want) < HALVES[dtype]


def test_gradients_of_two_layers(card, asked, rng):
    sizes = (3, 40, 16), (16, 24), (24,), (24, 8), (8,)
    values = [kc.array(rng.normal(size=size) / 2, dtype="float32") for size in sizes]

    @kc.jit
    def step(x, *weights):
        with GradientTape() as tape:
            w0, b0, w1, b1 = weights
            y = kc.tanh(kc.reshape(kc.reshape(x, (-1, 16)) @ w0, (3, 40, 24)) + b0)
            z = kc.reshape(kc.reshape(y, (-1, 24)) @ w1, (3, 40, 8)) + b1
            total = kc.sum(z * kc.sin(z))
        return tape.gradient(total, list(weights))

    found = step(*values)
    assert len(asked) == 2
    x, w0, b0, w1, b1 = (np.asarray(v).astype(np.float64) for v in values)
    y = np.tanh(x @ w0 + b0)
    z = y @ w1 + b1
    dz = np.sin(z) + z * np.cos(z)
    dy = (dz @ w1.T) * (1 - y * y)
    sums = "bti,bto->io"
    wanted = np.einsum(sums, x, dy), dy.sum((0, 1)), np.einsum(sums, y, dz), dz.sum((0, 1))
    for got, want in zip(found, wanted, strict=True):
        assert error(got, want) < 2e-6


def both(x, slope, axes=0):
    return kc.transpose(x) @ slope, kc.sum(slope, axes)


def test_only_on_gpus_and_where_a_kernel_serves(monkeypatch):
    pair = both(argument(12, 4), argument(12, 6))
    assert left(*pair) == (0, 1)
    assert left(*pair, info=CPU) == (1, 0)
    monkeypatch.setattr(dense, "in_one", lambda *_: False)
    assert left(*pair) == (1, 0)


def test_sums_of_the_same_rows():
    x, wide = argument(12, 4), argument(3, 4, 6)
    slope = kc.reshape(wide, (12, 6))
    product = kc.transpose(x) @ slope
    assert left(product, kc.sum(wide, (0, 1))) == (0, 1)
    assert left(product, kc.sum(wide, (0, 1), keepdims=True)) == (0, 1)
    assert left(product, kc.sum(wide, 0)) == (1, 0)
    assert left(product, kc.sum(wide, (0, 2))) == (1, 0)
    assert left(product, kc.sum(slope, 1)) == (1, 0)
    assert left(product, kc.sum(kc.reshape(wide, (24, 3)), 0)) == (1, 0)
    assert left(product, kc.sum(slope * 2, 0)) == (1, 0)
    assert left(product, kc.max(slope, 0)) == (1, 0)
    assert left(argument(4, 12) @ slope, kc.sum(slope, 0)) == (1, 0)


def test_each_sum_goes_to_one_product():
    slope = argument(12, 6)
    products = [kc.transpose(argument(12, 4)) @ slope for _ in range(2)]
    assert left(*products, kc.sum(slope, 0)) == (1, 1)


def test_a_product_that_waits_for_the_sum():
    """Neither may wait for the other, nor for what waits for it."""
    x, slope = argument(12, 6), argument(12, 6)
    total = kc.sum(slope, 0)
    assert left(kc.transpose(x * total) @ slope) == (1, 0)
    other = argument(12, 6)
    first = kc.transpose(x * total) @ other
    second = kc.transpose(x * kc.sum(other, 0)) @ slope
    products, together = left(first, second)
    assert products + together == 2 and together < 2


def test_values_of_a_graph_with_views(dev, rng):
    """The sums keep their shape, where they have axes of one element."""
    x, slope = (rng.normal(size=(5, 7, n)).astype(np.float32) for n in (4, 6))

    @kc.jit
    def step(x, slope):
        flat = kc.reshape(slope, (-1, 6))
        return kc.transpose(kc.reshape(x, (-1, 4))) @ flat, kc.sum(slope, (0, 1), keepdims=True)

    made, sums = step(kc.array(x), kc.array(slope))
    exact = slope.astype(np.float64)
    assert sums.shape == (1, 1, 6)
    # by norms: single sums may cancel
    wanted = exact.sum((0, 1), keepdims=True)
    assert np.linalg.norm(np.asarray(sums) - wanted) <= 1e-6 * np.linalg.norm(wanted)
    wanted = np.einsum("bti,bto->io", x.astype(np.float64), exact)
    assert np.linalg.norm(np.asarray(made) - wanted) <= 1e-5 * np.linalg.norm(wanted)
