"""Keras' attention layers with dropout: their chain of operations is attention's kernels."""

import keras
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.program.lower import lower
from kerascl.core.node import topological
from tests.ops.slopes import relative

HEADS, WIDTH, FEATURES = 4, 6, 10


def build(kind, rate, groups=2, **arguments):
    if kind == "grouped":
        return keras.layers.GroupQueryAttention(WIDTH, HEADS, groups, dropout=rate, **arguments)
    return keras.layers.MultiHeadAttention(HEADS, WIDTH, value_dim=5, dropout=rate, **arguments)


def weights_of(layer):
    """Kernel and bias of the projections of query, key, value and result, as float64."""
    names = ("query_dense", "key_dense", "value_dense", "output_dense")
    parts = [getattr(layer, n, None) or getattr(layer, f"_{n}") for n in names]
    return [w for part in parts for w in (part.kernel, part.bias)]


def reference(weights, x, y, z, mask, kept, rate, upstream):
    """The result, and the gradients of query `x`, value `y`, key `z` and all weights, in float64;
    the factors of dropout are `kept / (1 - rate)`."""
    x, y, z, upstream = (a.astype(np.float64) for a in (x, y, z, upstream))
    wq, bq, wk, bk, wv, bv, wo, bo = (w.numpy().astype(np.float64) for w in weights)
    repeats = wq.shape[1] // wk.shape[1]
    q = np.einsum("btf,fhd->bthd", x, wq) + bq
    k = np.einsum("btf,fhd->bthd", z, wk) + bk
    v = np.einsum("btf,fhd->bthd", y, wv) + bv
    wide_k, wide_v = np.repeat(k, repeats, 2), np.repeat(v, repeats, 2)
    scale = WIDTH**-0.5
    logits = np.einsum("bthd,bshd->bhts", q, wide_k) * scale
    mask = np.broadcast_to(mask[:, None], logits.shape)
    top = np.where(mask, logits, -np.inf).max(-1, keepdims=True)
    powers = np.exp(np.where(mask, logits - np.where(np.isfinite(top), top, 0), -np.inf))
    sums = powers.sum(-1, keepdims=True)
    p = powers / np.where(sums, sums, 1)  # queries that see no key have no weights
    factors = kept / (1 - rate)
    heads = np.einsum("bhts,bshd->bthd", p * factors, wide_v)
    result = np.einsum("bthd,hdf->btf", heads, wo) + bo
    do = np.einsum("btf,hdf->bthd", upstream, wo)
    dp = np.einsum("bthd,bshd->bhts", do, wide_v) * factors
    ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * scale
    dq = np.einsum("bhts,bshd->bthd", ds, wide_k)
    dk = np.einsum("bhts,bthd->bshd", ds, q)
    dv = np.einsum("bhts,bthd->bshd", p * factors, do)
    dk, dv = (a.reshape(*a.shape[:2], -1, repeats, a.shape[3]).sum(3) for a in (dk, dv))
    inputs = [np.einsum("bthd,fhd->btf", d, w) for d, w in ((dq, wq), (dv, wv), (dk, wk))]
    slopes = []
    for a, d in ((x, dq), (z, dk), (y, dv)):
        slopes += [np.einsum("btf,bthd->fhd", a, d), d.sum((0, 1))]
    slopes += [np.einsum("bthd,btf->hdf", heads, upstream), upstream.sum((0, 1))]
    return [result, *inputs, *slopes]


def drawn(layer, shape, rate):
    """Which weights the layer's dropout keeps in its next call."""
    key = layer._dropout_layer.seed_generator.state.value
    return kc.random.bernoulli(key, shape, 1 - rate).numpy()


def step_of(layer, **arguments):
    """A training step: the result, and the gradients of the inputs and weights."""

    def step(x, y, z, upstream):
        with kc.GradientTape() as tape:
            result = layer(x, y, z, training=True, **arguments)
        return [result, *tape.gradient(result, [x, y, z, *weights_of(layer)], upstream)]

    return step


def labels(function, *given):
    """The labels of the launches that give a function's results; nothing is built."""
    roots = [y._node for y in function(*map(kc.array, given))]
    steps = lower(topological(roots), roots, roots[0].device.info, generic=False).steps
    return {step.label for step in steps}


KEY_BIAS = 7  # its gradient is 0: it moves all logits of a query alike


def check(found, expected, tolerance):
    for k, (ours, right) in enumerate(zip(found, expected, strict=True)):
        ours = ours.numpy().astype(np.float64)
        if k == KEY_BIAS:
            assert np.linalg.norm(ours) < 10 * tolerance * np.linalg.norm(expected[k - 1])
        else:
            assert relative(ours, right) < tolerance, k


def inputs(rng, length=11, source=9):
    shapes = (2, length, FEATURES), (2, source, FEATURES), (2, source, FEATURES)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (*shapes, shapes[0])]
    mask = rng.random((2, length, source)) < 0.6
    mask[0, 3] = False  # this query sees no key
    return arrays, mask


MASKS = {
    "both": (True, True), "none": (False, False), "mask": (True, False), "causal": (False, True),
}  # fmt: skip


def built(rng, kind, rate, arrays):
    layer = build(kind, rate, seed=int(rng.integers(1 << 30)))
    layer.build(*(a.shape for a in arrays[:3]))
    for w in weights_of(layer):
        w.assign(rng.standard_normal(w.shape) * 0.5)
    return layer


@pytest.mark.every(33)
@pytest.mark.parametrize("captured", [True, False])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("kind", ["multi", "grouped"])
def test_training(rng, kind, rate, masks, captured):
    """Results and gradients against float64 with the numbers that dropout draws; the next call
    draws others.  Eagerly a tape holds the weights, which are then computed as the chain says."""
    arrays, mask = inputs(rng)
    given, causal = MASKS[masks]
    layer = built(rng, kind, rate, arrays)
    arguments = {"attention_mask": mask if given else None, "use_causal_mask": causal}
    seen = mask if given else np.ones_like(mask)
    if causal:
        seen = seen & np.tri(*mask.shape[1:], dtype=bool)
    step = step_of(layer, **arguments)
    step = kc.jit(step) if captured else step
    state = layer._dropout_layer.seed_generator.state
    for _ in range(2):
        before = state.numpy()
        kept = drawn(layer, (2, HEADS, *mask.shape[1:]), rate)
        found = step(*map(kc.array, arrays))
        expected = reference(weights_of(layer), *arrays[:3], seen, kept, rate, arrays[3])
        check(found, expected, 3e-6)
        np.testing.assert_array_equal(state.numpy(), before + [0, 1])


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("kind", ["multi", "grouped"])
def test_kernels_are_taken(rng, kind, masks, policy):
    keras.config.set_dtype_policy(policy)
    arrays, mask = inputs(rng)
    given, causal = MASKS[masks]
    layer = built(rng, kind, 0.1, arrays)
    arguments = {"attention_mask": mask if given else None, "use_causal_mask": causal}
    found = labels(step_of(layer, **arguments), *arrays)
    assert {"attention", "attention_grad"} <= found and "map_exp" not in found
    assert "scan" not in found or given
    found = labels(lambda *x: [layer(*x, training=False, **arguments)], *arrays[:3])
    assert "attention" in found


@pytest.mark.parametrize("kind", ["multi", "grouped"])
def test_scores_that_are_wanted(rng, kind):
    """They and what is computed from them are those of the chain."""
    arrays, _ = inputs(rng)
    layer = built(rng, kind, 0.3, arrays)

    def both(x, y, z):
        return layer(x, y, z, training=True, return_attention_scores=True)

    def slopes(x, y, z):
        with kc.GradientTape() as tape:
            result, scores = both(x, y, z)
            loss = kc.sum(result * result)
        return tape.gradient(loss, [x, scores])

    for function in (both, slopes):
        assert "attention" not in labels(function, *arrays[:3])
