"""Attention that is written out: what becomes the kernels' operation, and what must not."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import rewrite
from kerascl.compiler.program.lower import lower
from kerascl.core.node import topological
from kerascl.kernels.attention import solvers
from kerascl.ops import nn
from kerascl.runtime.recent import Recent
from tests.ops.slopes import relative

B, H, T, S, WIDTH, DEPTH = 2, 3, 10, 13, 6, 5


def written(q, k, v, bias=None, mask=None, rate=0.0, key=None, scale=1.0, turned=False, zeroed=True,
            hidden=-1e9):  # fmt: skip
    """The result and the weights, from (batch, heads, length, width)."""
    if turned:
        logits = kc.swapaxes(k @ kc.swapaxes(q, -1, -2), -1, -2)
    else:
        logits = q @ kc.swapaxes(k, -1, -2)
    logits = logits * scale
    if bias is not None:
        logits = logits + bias
    if mask is not None:
        logits = kc.where(mask, logits, hidden)
    weights = nn.softmax(logits, -1)
    if mask is not None and zeroed:
        weights = kc.where(mask, weights, 0.0)
    dropped = kc.random.dropout(key, weights, rate) if rate else weights
    return dropped @ v, weights


def reference(q, k, v, bias, mask, kept, rate, scale, zeroed, upstream):
    """The result and the gradients of q, k and v in float64; rows that see no key are uniform, or
    0 if `zeroed`."""
    q, k, v, upstream = (x.astype(np.float64) for x in (q, k, v, upstream))
    logits = np.einsum("bhtd,bhsd->bhts", q, k) * scale + bias
    mask = np.broadcast_to(mask, logits.shape)
    logits = np.where(mask, logits, -1e30)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p = np.where(mask, p, 0) if zeroed else p
    factors = kept / (1 - rate)
    dp = np.einsum("bhtd,bhsd->bhts", upstream, v) * factors
    ds = np.where(mask, p * (dp - (p * dp).sum(-1, keepdims=True)), 0) * scale
    return (
        np.einsum("bhts,bhsd->bhtd", p * factors, v),
        np.einsum("bhts,bhsd->bhtd", ds, k),
        np.einsum("bhts,bhtd->bhsd", ds, q),
        np.einsum("bhts,bhtd->bhsd", p * factors, upstream),
    )


def arrays(rng, dtype="float32"):
    shapes = (B, H, T, WIDTH), (B, H, S, WIDTH), (B, H, S, DEPTH), (B, H, T, DEPTH)
    return [kc.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in shapes]


@pytest.fixture
def served(monkeypatch):
    """The kernels serve wherever they can: elsewhere, as on a GPU of small problems, costs may
    choose the formula."""
    monkeypatch.setattr(solvers, "preferred", lambda problem, info: problem.usable)


def labels(function, *given):
    """The labels of the launches that give a function's results; nothing is built."""
    roots = [y._node for y in function(*given)]
    program = lower(topological(roots), roots, given[0].device.info, generic=False)
    return {step.label for step in program.steps}


def scaled_queries(q, k, v):
    """Heads behind lengths, queries multiplied before the product, as Keras' layers do."""
    q, k, v = (kc.swapaxes(x, 1, 2) for x in (q, k, v))
    with kc.GradientTape() as tape:
        turned = [kc.swapaxes(x, 1, 2) for x in ((kc.exp(q) + 0.1) * 0.25, k, v)]
        y = written(*turned, rate=0.2, key=kc.random.key(5))[0]
    return [y, *tape.gradient(y, [q, k, v])]


def masks(rng):
    mask = rng.random((B, 1, T, S)) < 0.6
    mask[:, :, 2] = False
    return mask


VARIANTS = {
    "all": {"bias": True, "mask": True, "rate": 0.3, "scale": 0.3, "turned": True},
    "plain": {},
    "turned": {"turned": True},
    "scaled": {"scale": 0.3},
    "bias": {"bias": True, "scale": 0.3},
    "mask": {"mask": True},
    "hidden rows uniform": {"mask": True, "zeroed": False, "turned": True},
    "dropout": {"rate": 0.3},
}
TOLERANCES = {"float32": 3e-6, "bfloat16": 2e-2, "float16": 3e-3}


def variant_of(rng, variant, dtype):
    """A training step, its arguments, and what it gives in float64."""
    given = dict(VARIANTS[variant])
    q, k, v, upstream = arrays(rng, dtype)
    key = kc.random.key(int(rng.integers(1 << 40)))
    rate, scale = given.get("rate", 0.0), given.get("scale", 1.0)
    bias, mask = 0, True
    if "bias" in given:
        given["bias"] = kc.array(rng.standard_normal((1, H, T, S)).astype(np.float32)).astype(dtype)
        bias = given["bias"].astype("float32").numpy()
    if "mask" in given:
        mask = masks(rng)
        given["mask"], given["hidden"] = kc.array(mask), -3e4 if dtype == "float16" else -1e9

    def step(q, k, v, upstream, wrap=lambda f: f):
        with kc.GradientTape() as tape:
            y = wrap(lambda q, k, v: written(q, k, v, key=key, **given)[0])(q, k, v)
        return [y, *tape.gradient(y, [q, k, v], upstream)]

    def right():
        kept = kc.random.bernoulli(key, (B, H, T, S), 1 - rate).numpy() if rate else 1
        numbers = (x.astype("float32").numpy() for x in (q, k, v))
        wide = upstream.astype("float32").numpy()
        return reference(
            *numbers, bias, mask, kept, rate, scale, given.get("zeroed", True), wide
        )

    return step, (q, k, v, upstream), right


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_chains_become_kernels(rng, served, variant, dtype):
    step, given, _ = variant_of(rng, variant, dtype)
    found = labels(step, *given)
    assert {"attention", "attention_grad"} <= found and "matmul" not in found


@pytest.mark.every(25)
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_numbers_of_chains(rng, variant, dtype):
    """Results and gradients against float64, with the same numbers drawn; also where the backward
    pass computes the weights again, and no result."""
    step, given, right = variant_of(rng, variant, dtype)
    expected = right()
    for function in (step, lambda *x: step(*x, kc.remat)):
        for ours, theirs in zip(kc.jit(function)(*given), expected, strict=True):
            assert ours.dtype.name == dtype
            assert relative(ours.astype("float32").numpy(), theirs) < TOLERANCES[dtype]


def compare(monkeypatch, function, *given):
    """What a captured function gives, and what it gives where chains are kept."""
    found = [x.numpy() for x in kc.jit(function)(*given)]
    monkeypatch.setattr(rewrite, "chains", lambda *arguments: {})
    monkeypatch.setattr(kc.engine, "programs", Recent(64))
    for ours, theirs in zip(found, kc.jit(function)(*given), strict=True):
        assert relative(ours, theirs.numpy().astype(np.float64)) < 3e-6


def test_one_query_against_many_keys(rng, served, monkeypatch):
    """As while text is generated: turned logits are then only another shape."""
    q, k, v, _ = arrays(rng)
    one, seen = q[:, :, :1], kc.arange(S) < 7

    def result(q, k, v):
        mask = kc.broadcast_to(seen, (B, H, 1, S))
        return [written(q, k, v, mask=mask, scale=0.3, turned=True)[0]]

    found = labels(result, one, k, v)
    assert "attention" in found and "matmul" not in found
    compare(monkeypatch, result, one, k, v)


def weights_wanted(q, k, v):
    return written(q, k, v)


def slope_of_weights(q, k, v):
    with kc.GradientTape() as tape:
        y, weights = written(q, k, v, rate=0.3, key=kc.random.key(3))
        loss = kc.sum(y * y)
    return tape.gradient(loss, [q, weights])


def slope_of_bias(q, k, v):
    bias = kc.sum(q, -1, keepdims=True) * kc.ones((1, 1, 1, S))
    with kc.GradientTape() as tape:
        y, _ = written(q, k, v, bias=bias)
    return tape.gradient(y, [k, bias])


def second_derivatives(q, k, v):
    with kc.GradientTape() as outer:
        with kc.GradientTape() as inner:
            y, _ = written(q, k, v)
        slope = inner.gradient(y, q)
        loss = kc.sum(slope * slope)
    return [outer.gradient(loss, k)]


def weights_as_values(q, k, v):
    weights = written(q, q, q)[1]
    return [weights @ weights]


def part_of_the_weights(q, k, v):
    y, weights = written(q, k, v)
    return [y, kc.max(weights, -1)]


def shared_noise(q, k, v):
    """Dropout that decides for all heads at once draws other numbers than the kernels do."""
    weights = nn.softmax(q @ kc.swapaxes(k, -1, -2), -1)
    return [kc.random.dropout(kc.random.key(1), weights, 0.4, (None, 1, None, None)) @ v]


def capped(q, k, v):
    logits = kc.tanh(q @ kc.swapaxes(k, -1, -2) / 5) * 5
    return [nn.softmax(logits, -1) @ v]


def over_queries(q, k, v):
    return [nn.softmax(q @ kc.swapaxes(k, -1, -2), -2) @ v]


def hidden_by_infinity(q, k, v):
    """Queries that see no key are NaN here."""
    seen = kc.arange(S) < kc.reshape(kc.arange(T) + 1, (T, 1))
    return [written(q, k, v, mask=kc.broadcast_to(seen, (B, H, T, S)), hidden=-np.inf)[0]]


@pytest.mark.parametrize("function", [
    weights_wanted, slope_of_weights, slope_of_bias, second_derivatives, part_of_the_weights,
    shared_noise, capped, over_queries, hidden_by_infinity,
])  # fmt: skip
def test_what_stays_a_chain(rng, served, function):
    """Where somebody wants what lies between, or the kernels compute something else."""
    given = arrays(rng)[:3]
    assert "attention" not in labels(function, *given)


def with_remat(q, k, v):
    """The backward pass has the weights again, and no result."""
    with kc.GradientTape() as tape:
        y = kc.remat(lambda *x: written(*x, rate=0.2, key=kc.random.key(5))[0] * 2)(q, k, v)
    return [y, *tape.gradient(y, [q, k, v])]


def two_of_the_same_factors(q, k, v):
    """Logits in common, and a dropout each."""
    with kc.GradientTape() as tape:
        y = sum(written(q, k, v, rate=0.2, key=kc.random.key(n))[0] for n in (5, 6))
    return [y, *tape.gradient(y, [q, k, v])]


def self_attention(q, k, v):
    """One array is queries, keys and values."""
    with kc.GradientTape() as tape:
        y = written(q, q, q, rate=0.2, key=kc.random.key(5))[0]
    return [y, tape.gradient(y, q)]


def some_gradients(q, k, v):
    with kc.GradientTape() as tape:
        y = written(q, k, v, mask=kc.arange(S) < S - 2)[0] ** 2
    return tape.gradient(y, [k])


def gradient_of_values(q, k, v):
    with kc.GradientTape() as tape:
        y = written(q, k, v, mask=kc.arange(S) < S - 2)[0] ** 2
    return tape.gradient(y, [v])


def used_twice(q, k, v):
    y = written(q, k, v)[0]
    return [written(y @ kc.ones((DEPTH, WIDTH)), k, v, scale=0.1)[0], y]


def one_head(q, k, v):
    q, k, v = (x[:1, :1] for x in (q, k, v))
    with kc.GradientTape() as tape:
        y = written(q, k, v, turned=True)[0]
    return [y, *tape.gradient(y, [q, k, v])]


def causal(q, k, v):
    """A mask as Keras makes it of sums of ones."""
    ones = kc.ones((1, T, S), "int32")
    mask = kc.cumsum(ones, 1, "int32") >= kc.cumsum(ones, 2, "int32")
    with kc.GradientTape() as tape:
        y = written(q, k, v, mask=kc.expand_dims(mask, 1))[0]
    return [y, *tape.gradient(y, [q, k, v])]


@pytest.mark.every(9)
@pytest.mark.parametrize("function", [
    weights_as_values, with_remat, two_of_the_same_factors, self_attention, some_gradients,
    used_twice, one_head, gradient_of_values, causal, scaled_queries,
])  # fmt: skip
def test_forms_of_graphs(rng, monkeypatch, function):
    """The same numbers with and without kernels, whichever of them serve."""
    compare(monkeypatch, function, *arrays(rng)[:3])


@pytest.mark.parametrize("function", [
    with_remat, self_attention, some_gradients, gradient_of_values, used_twice, one_head,
])  # fmt: skip
def test_forms_that_become_kernels(rng, served, function):
    assert "attention" in labels(function, *arrays(rng)[:3])


def test_training_computes_attention_once(rng, served):
    """Its derivative reads what the forward pass has left, wherever queries are scaled."""
    roots = [y._node for y in scaled_queries(*arrays(rng)[:3])]
    nodes, _, _ = rewrite.rewrite(topological(roots), roots, kc.array(0.0).device.info)
    assert [node.op.name for node in nodes].count("attention") == 1


def test_a_causal_mask_is_not_read(rng, served):
    found = labels(causal, *arrays(rng)[:3])
    assert {"attention", "attention_grad"} <= found and "scan" not in found


def test_the_device_decides(rng, monkeypatch):
    """Where products with logits in memory serve better, the chain stays."""
    monkeypatch.setattr(solvers, "preferred", lambda problem, info: False)
    assert "attention" not in labels(self_attention, *arrays(rng)[:3])


def test_eager_evaluation(rng):
    """Without a tape nothing but the result is held; the weights can be asked for first."""
    q, k, v, _ = arrays(rng)
    y, weights = written(q, k, v)
    np.testing.assert_allclose(weights.numpy().sum(-1), 1, atol=1e-6)
    wide = [x.numpy() for x in (q, k, v)]
    right = reference(*wide, 0, True, 1, 0, 1, True, np.ones((B, H, T, DEPTH)))[0]
    assert relative(y.numpy(), right) < 3e-6
    assert relative(written(q, k, v)[0].numpy(), right) < 3e-6
