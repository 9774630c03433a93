"""Attention's forward pass leaves what dropout keeps to its gradient: any device passes for one
whose kernels do."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.node import topological
from kerascl.core.tape import GradientTape
from kerascl.kernels.attention import kept
from kerascl.ops.attention import (
    ATTENTION,
    ATTENTION_GRAD,
    ATTENTION_KEPT,
    ATTENTION_KEPT_GRAD,
    dot_product_attention,
)

ALL = ATTENTION, ATTENTION_GRAD, ATTENTION_KEPT, ATTENTION_KEPT_GRAD


@pytest.fixture
def serving(monkeypatch):
    """As if kernels left it and read it; the problems that were planned."""
    found, plan = [], kept.plan
    monkeypatch.setattr(kept, "serves", lambda *_: True)
    monkeypatch.setattr(kept, "plan", lambda p, *rest: found.append(p) or plan(p, *rest))
    monkeypatch.setattr(kc.engine, "programs", {})  # which were made before
    return found


def attend(q, k, v, rate=0.3, key=None, **more):
    key = kc.random.key(7) if key is None else key
    return dot_product_attention(q, k, v, dropout_rate=rate, dropout_key=key, **more)


def step(q, k, v, *rest, **more):
    with GradientTape() as tape:
        loss = kc.sum(kc.square(attend(q, k, v, *rest, **more)))
    return loss, *tape.gradient(loss, [q, k, v])


def drawn(rng, length=12, source=20, heads=4, groups=2, width=8):
    sizes = (length, heads), (source, groups), (source, groups)
    return [kc.array(rng.normal(size=(2, n, h, width)).astype(np.float32)) for n, h in sizes]


def counts(*arrays):
    """How many nodes there are of each kind."""
    roots = [x._node for x in arrays]
    info = arrays[0].device.info
    nodes = topological(rewrite(topological(roots), roots, info)[1])
    return [sum(node.op is op for node in nodes) for op in ALL]


@pytest.mark.parametrize("more", [{}, {"is_causal": True}, {"scale": 2.0}], ids=str)
def test_results_are_those_of_numbers_that_each_draws(more, serving, rng, monkeypatch):
    values = drawn(rng)
    found = [np.asarray(x) for x in kc.jit(lambda *x: step(*x, **more))(*values)]
    eager = [np.asarray(x) for x in step(*values, **more)]
    assert len(serving) >= 4
    monkeypatch.setattr(kept, "serves", lambda *_: False)
    monkeypatch.setattr(kc.engine, "programs", {})
    wanted = [np.asarray(x) for x in kc.jit(lambda *x: step(*x, **more))(*values)]
    for a, b, c in zip(found, wanted, eager, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(c, b, rtol=1e-5, atol=1e-5)  # sums in another order


def test_masks_are_read_as_they_lie(serving, rng):
    """Beside a bias, too, though its place is that of what is kept where there is neither."""
    q, k, v = drawn(rng, groups=4)
    mask = kc.array(rng.random((2, 1, 1, 20)) > 0.4)
    bias = kc.array(rng.normal(size=(4, 12, 20)).astype(np.float32))
    more = dict(mask=mask, bias=bias)
    found = kc.jit(lambda *x: step(*x, **more))(q, k, v)
    assert [p.mask.strides for p in serving] == [(20, 0, 0, 1)] * 2
    for a, b in zip(found, step(q, k, v, **more), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


def test_both_passes_of_a_step(serving, rng):
    assert counts(*step(*drawn(rng))) == [0, 0, 1, 1]
    kc.jit(step)(*drawn(rng))
    assert [(p.kept, p.grad is not None) for p in serving] == [(True, False), (True, True)]


def test_each_key_has_its_own(serving, rng):
    q, k, v = drawn(rng, groups=4)
    with GradientTape() as tape:
        first = attend(q, k, v)
        y = attend(first, k, v, key=kc.random.key(8))
        loss = kc.sum(kc.square(y))
    grads = tape.gradient(loss, [q, k, v])
    assert counts(loss, *grads) == [0, 0, 2, 2]


def test_a_pass_alone_and_passes_without_dropout_stay(serving, rng):
    q, k, v = drawn(rng)
    assert counts(attend(q, k, v)) == [1, 0, 0, 0]
    assert counts(*step(q, k, v, 0.0)) == [1, 1, 0, 0]


def test_where_kernels_do_not_serve(rng, monkeypatch):
    monkeypatch.setattr(kept, "serves", lambda *_: False)
    assert counts(*step(*drawn(rng))) == [1, 1, 0, 0]
