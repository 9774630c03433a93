"""Attention by its formula or by its kernels: the choice of lowering, and the same numbers."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler import library
from kerascl.compiler.program.lower import lower
from kerascl.core.context import current
from kerascl.core.labels import GRADIENT, Labels, mark
from kerascl.core.node import topological
from kerascl.kernels.attention import solvers
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16
from kerascl.ops.attention import ATTENTION
from kerascl.runtime import device
from kerascl.runtime.recent import Recent


def gpu(**facts):
    return dataclasses.replace(device.default().info, kind="gpu", **facts)


def preferred(info, batch, features=4, dtype="float32"):
    x = kc.ones((batch, 16, 2, features), dtype)
    (node,) = kc.dot_product_attention(x, x, x)._node.inputs
    assert node.op is ATTENTION
    return library.record(ATTENTION).preferred(node, info)


def test_matrix_units_keep_small_logits_of_large_heads(monkeypatch):
    info = gpu(matrix="mma80", global_mem_bytes=256 * 4 * 2 * 16 * 16)
    monkeypatch.setattr(unit_attention, "available", lambda info, *_: False)
    assert not preferred(info, 1) and preferred(info, 2)
    monkeypatch.setattr(unit_attention, "available", lambda info, *_: True)
    with kc.precision_scope("high"):
        assert preferred(info, 1, 64) and not preferred(info, 1, 65)
    with kc.precision_scope("highest"):
        assert not preferred(info, 1)
        assert preferred(info, 2) and preferred(info, 1, dtype="bfloat16")


def test_matrix_units_keep_larger_heads_of_halves(monkeypatch):
    info = gpu(matrix="mma80", global_mem_bytes=256 * 4 * 2 * 16 * 16)
    monkeypatch.setattr(unit_attention, "available", lambda info, *_: True)
    for passed in (False, True):
        monkeypatch.setattr(attention16, "available", lambda *_, passed=passed: passed)
        for features, of_16 in ((64, True), (72, passed), (128, passed), (136, False)):
            assert preferred(info, 1, features, "bfloat16") == of_16


def test_what_no_kernel_takes():
    info = gpu(matrix="", global_mem_bytes=1 << 30)
    assert preferred(info, 1, 256) and not preferred(info, 1, 257)
    assert not preferred(info, 1, dtype="float64")
    assert not preferred(info, 0)


def problem(rng, length=9, source=11):
    """Two heads share one of keys; the first query sees no key at all."""
    q = rng.standard_normal((2, length, 4, 5)).astype(np.float32)
    k, v = (rng.standard_normal((2, source, 2, n)).astype(np.float32) for n in (5, 3))
    bias = rng.standard_normal((1, 4, length, source)).astype(np.float32)
    mask = rng.random((2, 1, length, source)) < 0.7
    mask[:, :, 0] = False
    upstream = rng.standard_normal((2, length, 4, 3)).astype(np.float32)
    return q, k, v, bias, mask, upstream


def reference(q, k, v, bias, mask, upstream, causal):
    """The result and the gradients of q, k, v and bias, in float64."""
    q, k, v, bias, upstream = (x.astype(np.float64) for x in (q, k, v, bias, upstream))
    wide_k, wide_v = (np.repeat(x, 2, axis=2) for x in (k, v))
    scale = q.shape[-1] ** -0.5
    logits = np.einsum("btha,bsha->bhts", q, wide_k) * scale + bias
    if causal:
        mask = mask & np.tri(q.shape[1], k.shape[1], dtype=bool)
    mask = np.broadcast_to(mask, logits.shape)
    logits = np.where(mask, logits, -1e30)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    y = np.einsum("bhts,bshd->bthd", p, wide_v)
    dp = np.einsum("bthd,bshd->bhts", upstream, wide_v)
    ds = np.where(mask, p * (dp - (p * dp).sum(-1, keepdims=True)), 0)
    dq = np.einsum("bhts,bsha->btha", ds, wide_k) * scale
    dk = np.einsum("bhts,btha->bsha", ds, q) * scale
    dv = np.einsum("bhts,bthd->bshd", p, upstream)
    dk, dv = (x.reshape(2, k.shape[1], 2, 2, -1).sum(3) for x in (dk, dv))
    return y, dq, dk, dv, ds.sum(0, keepdims=True)


def run(q, k, v, bias, mask, upstream, causal, between=lambda y: None):
    q, k, v, bias = (kc.array(x) for x in (q, k, v, bias))
    with kc.GradientTape() as tape:
        y = kc.dot_product_attention(q, k, v, bias, mask, is_causal=causal)
    between(y)
    return (y, *tape.gradient(y, [q, k, v, bias], kc.array(upstream)))


def choose(monkeypatch, choice):
    """The choice of lowering: `choice(problem)`; nothing compiled before is found again."""
    monkeypatch.setattr(solvers, "preferred", lambda problem, info: choice(problem))
    monkeypatch.setattr(kc.engine, "programs", Recent(64))


@pytest.mark.every(3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("forward, backward", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("captured", [False, True])
def test_formula_and_kernels_agree(rng, monkeypatch, captured, forward, backward, causal):
    """Whichever of both passes a kernel takes; eagerly the passes are evaluated one by one."""
    choose(monkeypatch, lambda p: forward if p.grad is None else backward)
    arrays = problem(rng)
    if captured:
        found = kc.jit(lambda *arrays: run(*arrays, causal))(*map(kc.array, arrays))
    else:
        found = run(*arrays, causal, between=lambda y: y.evaluate())
    for ours, right in zip(found, reference(*arrays, causal), strict=True):
        assert ours.shape == right.shape
        error = np.linalg.norm(ours.numpy() - right) / np.linalg.norm(right)
        assert error < 3e-6


def test_formulas_of_both_passes_share_their_logits(rng, monkeypatch):
    """Products and softmax of the forward pass are computed once; launches belong to the layer that
    the node belongs to."""
    choose(monkeypatch, lambda p: False)
    q, k, v, _, _, upstream = problem(rng)
    q, k, v = (kc.array(x) for x in (q, k, v))
    labels = Labels()
    with current.replaced(labels=labels):
        mark("head")
        with kc.GradientTape() as tape:
            y = kc.dot_product_attention(q, k, v)
        mark("later")
        roots = [y._node, *(g._node for g in tape.gradient(y, [q, k, v], kc.array(upstream)))]
    steps = lower(topological(roots), roots, q.device.info, generic=False, labels=labels).steps
    assert sum(step.label == "matmul" for step in steps) == 6
    assert not any("attention" in step.label for step in steps)
    assert {step.layer for step in steps} == {"head", "head" + GRADIENT}


def test_second_derivatives(rng, monkeypatch):
    """The gradient of a gradient's squares, against a difference quotient in float64."""
    choose(monkeypatch, lambda p: False)
    q, k, v, bias, mask, upstream = problem(rng)
    x = kc.array(q)
    with kc.GradientTape() as outer:
        with kc.GradientTape() as inner:
            y = kc.dot_product_attention(x, k, v, bias, mask)
        g = inner.gradient(y, x, kc.array(upstream))
        loss = kc.sum(g * g)
    slope = outer.gradient(loss, x).numpy()
    direction = rng.standard_normal(q.shape)

    def at(t):
        moved = q.astype(np.float64) + t * direction
        return (reference(moved, k, v, bias, mask, upstream, False)[1] ** 2).sum()

    right = (at(1e-5) - at(-1e-5)) / 2e-5
    assert abs((slope * direction).sum() - right) < 1e-4 * np.linalg.norm(slope * direction)


def attended(q, k, v, factor):
    """Attention in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    logits = np.einsum("bthd,bshd->bhts", q, k) * factor / np.sqrt(q.shape[-1])
    p = np.exp(logits - logits.max(-1, keepdims=True))
    return np.einsum("bhts,bshd->bthd", p / p.sum(-1, keepdims=True), v)


@pytest.mark.parametrize("again", [False, True])
def test_a_scale_of_the_queries_is_the_kernels(again, rng):
    """One launch then, also behind views; but not where somebody else reads them."""
    q, k, v = (rng.standard_normal((2, 16, 3, 8)).astype(np.float32) for _ in range(3))
    turned = np.ascontiguousarray(q.swapaxes(1, 2))

    def function(q, k, v):
        scaled = kc.transpose(q * 0.7, (0, 2, 1, 3))
        return [kc.dot_product_attention(scaled, k, v), *([scaled] if again else [])]

    function = kc.jit(function)
    args = kc.array(turned), kc.array(k), kc.array(v)
    found = function(*args)
    wanted = attended(q, k, v, 0.7)
    assert np.linalg.norm(found[0].numpy() - wanted) < 2e-6 * np.linalg.norm(wanted)
    if again:
        np.testing.assert_array_equal(found[1].numpy(), (turned * np.float32(0.7)).swapaxes(1, 2))
    steps = function.captured(*args).program.steps
    assert ("map" in {step.label.split("_")[0] for step in steps}) == again
