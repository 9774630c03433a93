"""`vmap` against a loop over the elements, for every kind of operation; nested, with gradients."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.op import REGISTRY, Kind
from kerascl.ops.attention import dot_product_attention
from kerascl.ops.contraction import MATMUL
from kerascl.ops.kernel import KERNEL
from kerascl.ops.recurrence import RECURRENCE
from kerascl.ops.sorting import SORT

SIZE = 3
# name: (function of two elements, shape of each)
CASES = {
    "pointwise": (lambda a, b: kc.tanh(a) * b + kc.where(a > b, a, 2.0), (4, 5), (4, 5)),
    "broadcast": (lambda a, b: a[:, None] * b + 1.5, (4,), (5,)),
    "scalars": (lambda a, b: kc.exp(a) / (b * b + 1), (), ()),
    "scalar and array": (lambda a, b: a * b + 0.5, (), (3, 2)),
    "sums": (lambda a, b: kc.sum(a, 0) + kc.mean(b) * kc.max(a, (0, 1)), (4, 5), (2,)),
    "moments": (lambda a, b: kc.var(a, 1) * kc.std(b), (4, 5), (6,)),
    "softmax": (lambda a, b: kc.nn.softmax(a, -1) @ b, (4, 5), (5,)),
    "arguments": (lambda a, b: kc.argmax(a, 1) + kc.argmin(b), (4, 5), (3,)),
    "views": (
        lambda a, b: kc.flip(kc.transpose(a), 0)[1:4:2, ::-1] + kc.reshape(b, (2, 1)),
        (4, 5),
        (2,),
    ),
    "pad": (lambda a, b: kc.pad(a, ((1, 2), (0, 1))) + b, (2, 3), (5, 4)),
    "concat": (lambda a, b: kc.concatenate([a, b, a], 0), (2, 3), (4, 3)),
    "take": (lambda a, b: kc.take(a, kc.argsort(b), 1), (3, 4), (4,)),
    "take along": (lambda a, b: kc.take_along_axis(a, kc.argsort(b, 1), 1), (3, 4), (3, 2)),
    "sort": (lambda a, b: kc.sort(a, 0) + kc.top_k(b, 2)[0][0], (4, 3), (5,)),
    "cumulative": (lambda a, b: kc.cumsum(a, 1) * kc.logcumsumexp(b, reverse=True), (3, 4), (4,)),
    "unique": (lambda a, b: kc.unique(kc.round(a), size=5) * b, (9,), (5,)),
    "search": (lambda a, b: kc.searchsorted(kc.sort(a), b), (7,), (4,)),
    "matrix": (lambda a, b: a @ b, (4, 5), (5, 3)),
    "matrix, vector": (lambda a, b: a @ b, (4, 5), (5,)),
    "matrices": (lambda a, b: a @ b, (2, 4, 5), (2, 5, 3)),
    "many matrices": (lambda a, b: a @ b, (2, 1, 2, 4, 5), (2, 1, 2, 5, 3)),
    "einsum": (lambda a, b: kc.einsum("ijk,kl->jil", a, b), (2, 3, 4), (4, 5)),
    "conv": (lambda a, b: kc.conv(a, b, 2, "same"), (2, 6, 5, 4), (3, 3, 2, 6)),
    "conv, channels first": (
        lambda a, b: kc.conv(a, b, 1, "valid", channels_first=True),
        (2, 4, 7),
        (3, 4, 2),
    ),
    "conv transpose": (lambda a, b: kc.conv_transpose(a, b, 2), (2, 4, 3), (3, 5, 3)),
    "max pool": (lambda a, b: kc.max_pool(a, 2) * b, (2, 6, 4, 3), (3,)),
    "average pool": (
        lambda a, b: kc.average_pool(a, 3, 1, "same", channels_first=True) * b,
        (2, 3, 7),
        (7,),
    ),
    "attention": (
        lambda a, b: dot_product_attention(a, b, b, is_causal=True),
        (2, 9, 2, 4),
        (2, 5, 1, 4),
    ),
    "scatter": (
        lambda a, b: kc.segment_sum(a, kc.argsort(b) % 3, num_segments=3),
        (5, 2),
        (5,),
    ),
    "solve": (lambda a, b: kc.linalg.solve(a + 4 * kc.eye(3), b), (3, 3), (3, 2)),
    "loop": (
        lambda a, b: kc.scan(lambda c, x: (kc.tanh(c * x + b), c + x), b, a)[1],
        (6, 4),
        (4,),
    ),
}
ROUNDED = {"arguments", "search"}


def draw(rng, shape, batched):
    return kc.array(rng.standard_normal((SIZE, *shape) if batched else shape).astype("f"))


def axes_of(which):
    return tuple(0 if used else None for used in which)


def pick(x, batched, k):
    return x[k] if batched else x


WHICH = [(True, True), (True, False), (False, True)]


@pytest.mark.every(5)
@pytest.mark.parametrize("which", WHICH, ids=["both", "first", "second"])
@pytest.mark.parametrize("name", CASES)
def test_vmap_equals_a_loop(rng, name, which):
    function, *shapes = CASES[name]
    a, b = (draw(rng, s, w) for s, w in zip(shapes, which, strict=True))
    found = kc.vmap(function, axes_of(which))(a, b)
    expected = [function(pick(a, which[0], k), pick(b, which[1], k)) for k in range(SIZE)]
    assert found.shape == (SIZE, *expected[0].shape)
    for row, y in zip(found.numpy(), expected, strict=True):
        np.testing.assert_allclose(row, y.numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.every(5)
@pytest.mark.parametrize("which", WHICH, ids=["both", "first", "second"])
@pytest.mark.parametrize("name", [n for n in CASES if n not in ROUNDED])
def test_gradients_inside_and_outside(rng, name, which):
    function, *shapes = CASES[name]
    a, b = (draw(rng, s, w) for s, w in zip(shapes, which, strict=True))

    def loss(a, b):
        y = function(a, b)
        return kc.sum(kc.sin(y) * y)

    # of each element: tapes inside
    def zeroed(a, b):
        with kc.GradientTape() as tape:
            value = loss(a, b)
        grads = tape.gradient(value, [a, b])
        return [kc.zeros(x.shape) if g is None else g for g, x in zip(grads, (a, b), strict=True)]

    inside = kc.vmap(zeroed, axes_of(which))(a, b)
    each = [zeroed(pick(a, which[0], k), pick(b, which[1], k)) for k in range(SIZE)]
    for position in range(2):
        expected = np.stack([g[position].numpy() for g in each])
        np.testing.assert_allclose(inside[position].numpy(), expected, rtol=2e-4, atol=2e-5)
    # of the sum over the batch: a tape outside; what is shared gets the sum
    with kc.GradientTape() as tape:
        total = kc.sum(kc.vmap(loss, axes_of(which))(a, b))
    for position, g in enumerate(tape.gradient(total, [a, b])):
        expected = np.stack([e[position].numpy() for e in each])
        if not which[position]:
            expected = expected.sum(0)
        found = np.zeros(expected.shape) if g is None else g.numpy()
        np.testing.assert_allclose(found, expected, rtol=2e-4, atol=5e-5)


def test_operations_have_a_rule_of_their_own_or_that_of_their_kind():
    of_kind = {Kind.POINTWISE, Kind.REDUCTION, Kind.VIEW}
    for op in REGISTRY.values():
        if op.kind in (Kind.GATHER, Kind.LIBRARY):
            # what users write has no rule: it runs element by element
            assert op.batch is not None or op in (RECURRENCE, KERNEL), op
        elif op.kind in of_kind:
            assert op.batch is None or op.kind is Kind.VIEW, op


@pytest.fixture
def without_a_rule():
    """Products and sorting as operations that declare no rule."""
    kept = {op: op.batch for op in (MATMUL, SORT)}
    for op in kept:
        object.__setattr__(op, "batch", None)
    yield
    for op, rule in kept.items():
        object.__setattr__(op, "batch", rule)


def test_an_operation_without_a_rule_runs_element_by_element(rng, without_a_rule):
    a, b = draw(rng, (4, 5), True), draw(rng, (5, 2), False)
    values, places = kc.vmap(lambda a: kc.top_k(a @ b, 1))(a)
    expected = kc.top_k(a @ b, 1)
    np.testing.assert_allclose(values.numpy(), expected[0].numpy(), rtol=1e-6)
    np.testing.assert_array_equal(places.numpy(), expected[1].numpy())


def test_nested(rng):
    a, b = draw(rng, (4,), True), draw(rng, (4,), True)
    outer = kc.vmap(kc.vmap(kc.dot, (None, 0)), (0, None))(a, b)
    np.testing.assert_allclose(outer.numpy(), a.numpy() @ b.numpy().T, rtol=1e-5)


def test_second_derivatives_of_each_element(rng):
    w, x = draw(rng, (4, 2), False), draw(rng, (4,), True)

    def f(x):
        return kc.sum(kc.tanh(x @ w) ** 2)

    def hessian(x):
        with kc.GradientTape(persistent=True) as tape:
            g = kc.grad(f)(x)
            parts = [g[k] for k in range(4)]
        return kc.stack([tape.gradient(p, x) for p in parts])

    found = kc.vmap(hessian)(x).numpy()
    for k in range(SIZE):
        np.testing.assert_allclose(found[k], hessian(x[k]).numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[k], found[k].T, rtol=1e-4, atol=1e-5)


def test_rows_of_a_jacobian_by_vmap_over_the_upstream(rng):
    w, x = draw(rng, (4, 3), False), draw(rng, (4,), False)
    with kc.GradientTape() as tape:
        y = kc.sin(x @ w)
    rows = kc.vmap(lambda e: tape.gradient(y, x, e))(kc.eye(3))
    expected = np.cos(x.numpy() @ w.numpy())[:, None] * w.numpy().T
    np.testing.assert_allclose(rows.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_custom_gradients(rng):
    @kc.custom_gradient
    def f(a, b):
        return a * b, lambda g: (g * 10 * b, g * 100)

    a, b = draw(rng, (4,), True), draw(rng, (4,), False)
    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(lambda a: f(a, b))(a) * 2)
    da, db = tape.gradient(y, [a, b])
    np.testing.assert_allclose(y.numpy(), 2 * (a.numpy() * b.numpy()).sum(), rtol=1e-5)
    np.testing.assert_allclose(da.numpy(), np.broadcast_to(20 * b.numpy(), (SIZE, 4)), rtol=1e-6)
    np.testing.assert_allclose(db.numpy(), np.full(4, 200.0 * SIZE))
    inner = kc.vmap(lambda a: kc.grad(lambda a: kc.sum(f(a, b)))(a))(a)
    np.testing.assert_allclose(inner.numpy(), np.broadcast_to(10 * b.numpy(), (SIZE, 4)), rtol=1e-6)
    # nested, with the shared argument a batch of the outer vmap
    c = draw(rng, (4,), True)
    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(lambda b: kc.vmap(lambda a: f(a, b))(a))(c))
    da, dc = tape.gradient(y, [a, c])
    np.testing.assert_allclose(
        da.numpy(), np.broadcast_to(10 * c.numpy().sum(0), (SIZE, 4)), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(dc.numpy(), np.full((SIZE, 4), 100.0 * SIZE))


def test_stopped_gradients(rng):
    a = draw(rng, (4,), True)
    with kc.GradientTape() as tape:
        y = kc.sum(kc.vmap(lambda a: kc.stop_gradient(a) * a)(a))
    np.testing.assert_array_equal(tape.gradient(y, a).numpy(), a.numpy())


def test_inside_jit_and_axes(rng):
    a, b = draw(rng, (4, 5), True), draw(rng, (4,), False)
    captured = kc.jit(kc.vmap(lambda x: {"y": (x.T @ b, None)}, in_axes=2, out_axes=1))
    result = captured(kc.transpose(a, (1, 2, 0)))
    assert result["y"][1] is None
    expected = np.einsum("sij,i->js", a.numpy(), b.numpy())
    np.testing.assert_allclose(result["y"][0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_random_keys(rng):
    keys = kc.array(rng.integers(0, 2**32, (SIZE, 2), dtype="u4"))
    found = kc.vmap(lambda k: kc.random.normal(k, (5,)))(keys).numpy()
    for k in range(SIZE):
        np.testing.assert_array_equal(found[k], kc.random.normal(keys[k], (5,)).numpy())


def test_what_cannot_be_mapped():
    x = kc.ones((3, 2))
    state = kc.State(kc.zeros(2))
    with pytest.raises(kc.CaptureError, match="on the host"):
        kc.vmap(lambda a: a * float(a[0]))(x)
    with pytest.raises(kc.CaptureError, match="differs between the elements"):
        kc.vmap(state.assign)(x)
    np.testing.assert_array_equal(state.value.numpy(), [0, 0])
    with pytest.raises(ValueError, match="sizes"):
        kc.vmap(lambda a, b: a)(x, kc.ones(4))
    kept = []
    kc.vmap(lambda a: kept.append(a) or a)(x)
    with pytest.raises(kc.CaptureError, match="outside"):
        (kept[0] + 1).numpy()


def test_assignments_that_are_the_same_for_all():
    state = kc.State(kc.zeros(2))

    def f(a):
        state.assign(state.value + 1)
        return a + state.value

    np.testing.assert_array_equal(kc.vmap(f)(kc.zeros((3, 2))).numpy(), np.ones((3, 2)))
    np.testing.assert_array_equal(state.value.numpy(), [1, 1])
