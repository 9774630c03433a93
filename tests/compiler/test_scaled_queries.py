"""Attention takes the number that queries are multiplied by, and so their gradient."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph.rewrite import rewrite
from kerascl.core.node import topological
from kerascl.core.tape import GradientTape
from kerascl.ops.attention import ATTENTION, ATTENTION_GRAD, dot_product_attention
from tests.compiler.graphs import CPU, argument, nodes_of

FACTOR = 0.3


def gradients(q, k, v, factor=FACTOR, more=None, scale=1.0):
    """The result of attention with scaled queries, and a sum's gradients of all three."""
    with GradientTape() as tape:
        for x in (q, k, v):
            tape.watch(x)
        queries = q * factor
        out = dot_product_attention(queries, k, v, scale=scale)
        total = kc.sum(out * kc.sin(out))
        if more is not None:
            total = total + more(queries)
    return [out, *tape.gradient(total, [q, k, v])]


def scales(monkeypatch, *arrays):
    """Factors of the logits of passes forward and backward, where kernels serve both."""
    monkeypatch.setattr("kerascl.compiler.graph.rewrite.formula_of", lambda *_: None)
    _, roots, _ = rewrite(nodes_of(*arrays), [x._node for x in arrays], CPU)
    return [
        round(node.attrs[0], 6) for node in topological(roots)
        if node.op in (ATTENTION, ATTENTION_GRAD)
    ]  # fmt: skip


def operands():
    return [argument(2, 6, 3, 4) for _ in range(3)]


def test_both_passes_take_the_number(monkeypatch):
    assert scales(monkeypatch, *gradients(*operands())) == [0.3, 0.3]
    assert scales(monkeypatch, *gradients(*operands(), scale=0.5)) == [0.15, 0.15]


def test_queries_that_somebody_else_reads_stay(monkeypatch):
    made = gradients(*operands(), more=lambda queries: kc.sum(kc.sin(queries)))
    assert scales(monkeypatch, *made) == [1.0, 1.0]
    q, _, v = operands()
    queries = q * FACTOR
    assert scales(monkeypatch, dot_product_attention(queries, queries, v, scale=1.0)) == [1.0]


def test_a_gradient_of_scaled_queries_that_is_wanted_stays(monkeypatch):
    q, k, v = operands()
    with GradientTape() as tape:
        queries = q * FACTOR
        tape.watch(queries)
        tape.watch(q)
        out = dot_product_attention(queries, k, v, scale=1.0)
        total = kc.sum(out * out)
    made = tape.gradient(total, [queries, q])
    assert scales(monkeypatch, out, *made) == [1.0, 1.0]


@pytest.mark.parametrize("factor", [FACTOR, 0.125, -0.5])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_values(dev, dtype, factor, rng):
    values = [rng.normal(size=(2, 40, 3, 32)) for _ in range(3)]
    given = [kc.array(x, dtype=dtype) for x in values]
    found = kc.jit(lambda q, k, v: gradients(q, k, v, factor))(*given)
    q, k, v = (np.asarray(x).astype(np.float64) for x in given)
    logits = factor * np.einsum("btnh,bsnh->bnts", q, k)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    out = np.einsum("bnts,bsnh->btnh", p, v)
    slope = np.sin(out) + out * np.cos(out)
    dp = np.einsum("btnh,bsnh->bnts", slope, v)
    ds = factor * p * (dp - (dp * p).sum(-1, keepdims=True))
    wanted = (
        out, np.einsum("bnts,bsnh->btnh", ds, k), np.einsum("bnts,btnh->bsnh", ds, q),
        np.einsum("bnts,btnh->bsnh", p, slope),
    )  # fmt: skip
    bound = {"float32": 2e-6, "float16": 2e-3}[dtype]
    for got, want in zip(found, wanted, strict=True):
        error = np.linalg.norm(np.asarray(got).astype(np.float64) - want) / np.linalg.norm(want)
        assert error < bound
