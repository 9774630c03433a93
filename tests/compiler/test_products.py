"""Products that are added become one: a CPU passes for a GPU with a kernel for it."""

from types import SimpleNamespace

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import products
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.node import topological
from kerascl.core.tape import GradientTape
from kerascl.kernels.matmul import sums
from kerascl.ops.contraction import MATMUL, MATMUL_SUM
from tests import profiles
from tests.compiler.graphs import CPU, argument, nodes_of

GPU = SimpleNamespace(**vars(CPU) | {"kind": "gpu"})
TOLERANCES = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 2e-3}


@pytest.fixture(autouse=True)
def asked(monkeypatch):
    """The problems that sums were planned for; each is taken to be well served."""
    found, plan = [], sums.plan
    monkeypatch.setattr(sums, "in_one", lambda *_: True)
    monkeypatch.setattr(sums, "plan", lambda p, *rest: found.append(p) or plan(p, *rest))
    return found


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU."""
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))


def left(*arrays, info=GPU):
    """(products, terms of each sum) that a graph has when rewritten for a GPU."""
    _, roots, _ = rewrite(nodes_of(*arrays), [x._node for x in arrays], info)
    nodes = topological(roots)
    terms = [len(n.inputs) // 2 for n in nodes if n.op is MATMUL_SUM]
    return sum(n.op is MATMUL for n in nodes), sorted(terms)


def product(rows=6, depth=4, columns=5, dtype="float32"):
    """A product whose right operand is transposed."""
    a, b = argument(rows, depth), argument(columns, depth)
    return kc.matmul(a.astype(dtype), kc.transpose(b.astype(dtype)))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_the_gradient_of_what_three_layers_read(card, asked, dtype, residual, rng):
    x = rng.normal(size=(3, 8, 16))
    weights = rng.normal(size=(3, 16, 24)) / 4

    @kc.jit
    def step(x, *weights):
        with GradientTape() as tape:
            each = [kc.reshape(kc.reshape(x, (-1, 16)) @ w, (3, 8, 24)) for w in weights]
            total = kc.sum(kc.tanh(each[0]) * each[1] * kc.sin(each[2]).astype("float32"))
            if residual:
                total = total + kc.sum(x * x * 0.5)
        return tape.gradient(total, [x, *weights])

    values = kc.array(x, dtype=dtype), *(kc.array(w, dtype=dtype) for w in weights)
    found = step(*values)
    assert [p.count for p in asked] == [3]
    x, *weights = (np.asarray(v).astype(np.float64) for v in values)
    a, b, c = (x @ w for w in weights)
    slopes = b * np.sin(c) / np.cosh(a) ** 2, np.tanh(a) * np.sin(c), np.tanh(a) * b * np.cos(c)
    wanted = sum(s @ w.T for s, w in zip(slopes, weights, strict=True)) + residual * x
    wanted = [wanted, *(np.einsum("bti,bto->io", x, s) for s in slopes)]
    for got, want in zip(found, wanted, strict=True):
        error = np.linalg.norm(np.asarray(got).astype(np.float64) - want) / np.linalg.norm(want)
        assert error < TOLERANCES[dtype]


def test_views_that_keep_their_order_may_lie_between():
    whole = [kc.reshape(product(), (2, 3, 5)) for _ in range(3)]
    assert left(whole[0] + whole[1] + whole[2]) == (0, [3])
    assert left(whole[0] + (whole[1] + whole[2])) == (0, [3])
    assert left(whole[0] + whole[1] + kc.reshape(product(), (6, 5))[:1, :1]) == (1, [2])


def test_only_on_gpus_and_where_a_kernel_serves(monkeypatch):
    total = product() + product()
    assert left(total) == (0, [2])
    assert left(total, info=CPU) == (2, [])
    monkeypatch.setattr(sums, "in_one", lambda *_: False)
    assert left(total) == (2, [])


def test_products_stay_that_somebody_else_reads():
    one, two, three = product(), product(), product()
    assert left(one + two, one) == (2, [])
    assert left(one + two + three, one * 2.0) == (1, [2])
    assert left(one + two, one + three) == (3, [])
    part = one + two
    assert left(part + three, part) == (1, [2])
    assert left(part + three, part * part) == (1, [2])


def test_products_of_other_sizes_are_added_to_it():
    assert left(product(), product(depth=3)) == (2, [])
    assert left(product() + product(depth=3)) == (2, [])
    assert left(product() + product(depth=3) + product()) == (1, [2])
    mixed = product(depth=3) + product() + product(depth=3) + product() + product(depth=3)
    assert left(mixed) == (2, [3])
    halves = product(dtype="float16") + product(dtype="float16")
    assert left(product() + product() + halves.astype("float32")) == (0, [2, 2])
    assert left(product() - product()) == (2, [])


def test_operands_lie_whole():
    """Parts of arrays, and right operands that are not transposed, are not read."""
    a, b = argument(12, 4), argument(5, 4)
    assert left(a[:6] @ kc.transpose(b) + product()) == (2, [])
    assert left(a[::2] @ kc.transpose(b) + product()) == (2, [])
    assert left(a[:6] @ argument(4, 5) + product()) == (2, [])
    assert left(kc.transpose(argument(4, 6)) @ kc.transpose(b) + product()) == (2, [])
    assert left(kc.reshape(a, (6, 8)) @ kc.transpose(argument(5, 8)) + product(depth=8)) == (0, [2])


def test_long_sums_are_left(card):
    many = [product() for _ in range(products.MOST + 1)]
    assert left(sum(many[1:], many[0])) == (len(many), [])
