"""What a loop's body computes from nothing that changes is computed before the loop."""

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.op import Kind
from kerascl.ops import control, repeat


def loops(function, *args):
    """The result of a captured function, and the names of the operations in each of its loops."""
    traced = []
    body_of = control.standing_alone

    def standing_alone(function, *rest):
        body = body_of(function, *rest)
        traced.append([n.op.name for n in body.nodes if n.op.kind not in (Kind.LEAF, Kind.CONST)])
        return body

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeat, "standing_alone", standing_alone)
        patch.setattr(control, "standing_alone", standing_alone)
        result = kc.jit(function)(*args)
    return result, traced


def run(step, x, n, *more):
    """`x = step(x, *more)`, n times, by a loop whose end the device knows."""

    def function(x, n, *more):
        def body(k, x):
            return k + 1, step(x, *more)

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(np.int32(0)), x))[1]

    return loops(function, kc.array(x), kc.array(np.int32(n)), *map(kc.array, more))


def halved(w):
    """Rounded to float16, and back."""
    return kc.cast(kc.cast(w, "float16"), "float32")


@pytest.fixture
def data(rng):
    x = rng.standard_normal((3, 40)).astype(np.float32)
    w = (rng.standard_normal((40, 40)) / 8).astype(np.float32)
    return x, w


def test_casts_of_weights(data):
    x, w = data
    found, (inside,) = run(lambda x, w: kc.tanh(x @ halved(w)), x, 5, w)
    assert "cast" not in inside
    w16 = w.astype(np.float16).astype(np.float64)
    wanted = x.astype(np.float64)
    for _ in range(5):
        wanted = np.tanh(wanted @ w16)
    np.testing.assert_allclose(found.numpy(), wanted, 0, 1e-5)


def test_products_and_what_is_added_to_them(data, rng):
    """As LoRA has: the weight with its product is one array, which is there before the loop."""
    x, w = data
    a, b = (rng.standard_normal(s).astype(np.float32) / 8 for s in ((40, 2), (2, 40)))
    found, (inside,) = run(lambda x, w, a, b: x @ (w + 0.5 * (a @ b)), x, 4, w, a, b)
    assert inside.count("matmul") == 1 and "multiply" not in inside
    wanted = x.astype(np.float64)
    for _ in range(4):
        wanted = wanted @ (w + 0.5 * (a.astype(np.float64) @ b))
    np.testing.assert_allclose(found.numpy(), wanted, 1e-4, 1e-5)


def test_reductions_under_views(data):
    x, w = data
    found, (inside,) = run(lambda x, w: x * 0.5 + kc.reshape(kc.sum(w, axis=0), (1, 40)), x, 3, w)
    assert "sum" not in inside
    wanted = x.astype(np.float64)
    for _ in range(3):
        wanted = wanted * 0.5 + w.sum(0, dtype=np.float64)
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-5)


def test_what_is_larger_than_what_it_is_made_of_stays(data):
    """A mask, and integers that are unpacked, would take memory that nobody asked for."""
    x, w = data
    packed = (np.abs(w) * 50).astype(np.int8)

    def step(x, packed):
        numbers = kc.concatenate([packed & 15, packed >> 4], 1).astype("float32")
        mask = kc.arange(40)[:, None] <= kc.arange(80)[None]
        return kc.tanh((x @ (numbers * mask))[:, :40] / 99)

    found, (inside,) = run(step, x, 3, packed)
    assert {"bitwise_and", "less_equal", "cast"} <= set(inside)
    wide = np.concatenate([packed & 15, packed >> 4], 1).astype(np.float64)
    wide *= np.arange(40)[:, None] <= np.arange(80)
    wanted = x.astype(np.float64)
    for _ in range(3):
        wanted = np.tanh((wanted @ wide)[:, :40] / 99)
    np.testing.assert_allclose(found.numpy(), wanted, 0, 1e-5)


def test_states_that_the_loop_assigns_change(data):
    x, w = data
    kept, changed = kc.State(w), kc.State(w)

    def function(n):
        def body(k, x):
            y = x @ halved(kept.value)
            y = y + kc.sum(halved(changed.value), axis=0)
            changed.assign(changed.value * 0.5)
            return k + 1, y

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(np.int32(0)), kc.array(x)))[1]

    found, (inside,) = loops(function, kc.array(np.int32(3)))
    assert inside.count("cast") == 2
    wanted, c = x.astype(np.float64), w.copy()
    for _ in range(3):
        wanted = wanted @ w.astype(np.float16).astype(np.float64)
        wanted = wanted + c.astype(np.float16).astype(np.float64).sum(0)
        c = c * np.float32(0.5)
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-5)
    np.testing.assert_array_equal(changed.value.numpy(), c)
    kept.assign(kept.value * 2)  # what was hoisted is of the State's value when the loop begins
    again = kc.jit(function)(kc.array(np.int32(1))).numpy()
    first = x @ (2 * w).astype(np.float16).astype(np.float64) + c.astype(np.float16).sum(0, "f8")
    np.testing.assert_allclose(again, first, 1e-5, 1e-5)


def test_a_loop_that_never_runs_and_one_inside_another(data):
    """What is computed before a loop must end, whether the loop runs or not."""
    x, w = data

    def function(x, w, n):
        def outer(k, x):
            def inner(j, y):
                return j + 1, y @ halved(w)

            # it depends on nothing that changes, and ends where the outer loop runs
            y = kc.while_loop(lambda j, _: j != n, inner, (kc.array(np.int32(0)), w))[1]
            return k + 1, x @ y

        return kc.while_loop(lambda k, _: k < n, outer, (kc.array(np.int32(0)), x))[1]

    for n in (0, 2):
        args = kc.array(x), kc.array(w), kc.array(np.int32(n))
        found, traced = loops(function, *args)
        assert "cast" not in traced[0] + traced[1] and traced[1].count("while") == 1
        y, wanted = w.astype(np.float64), x.astype(np.float64)
        for _ in range(n):
            y = y @ w.astype(np.float16).astype(np.float64)
        for _ in range(n):
            wanted = wanted @ y
        np.testing.assert_allclose(found.numpy(), wanted, 1e-5, 1e-5)


def test_under_vmap_and_uncaptured(data, rng):
    x, w = data
    ws = np.stack([w, w * 0.5, -w])

    def function(w, n):
        def body(k, x):
            return k + 1, x @ halved(w)

        return kc.while_loop(lambda k, _: k < n, body, (kc.array(np.int32(0)), kc.array(x)))[1]

    counts = np.array([3, 1, 2], np.int32)
    found = kc.vmap(function)(kc.array(ws), kc.array(counts)).numpy()
    for k, (own, n) in enumerate(zip(ws, counts, strict=True)):
        wanted = x.astype(np.float64)
        for _ in range(n):
            wanted = wanted @ own.astype(np.float16).astype(np.float64)
        np.testing.assert_allclose(found[k], wanted, 1e-5, 1e-5)
        np.testing.assert_allclose(
            function(kc.array(own), kc.array(n)).numpy(), wanted, 1e-5, 1e-5
        )


def test_results_of_several(data, rng):
    """Of an operation with several results one may be computed before the loop."""
    x, w = data

    def step(x, w):
        values, places = kc.top_k(w, 4)
        return x * 0.5 + kc.sum(values) + kc.sum(places)

    found, (inside,) = run(step, x, 3, w)
    assert "sum" not in inside
    order = np.argsort(-w, axis=-1, kind="stable")[:, :4]
    add = np.take_along_axis(w, order, -1).sum(dtype=np.float64) + order.sum()
    wanted = x.astype(np.float64)
    for _ in range(3):
        wanted = wanted * 0.5 + add
    np.testing.assert_allclose(found.numpy(), wanted, 1e-5)


def test_loops_of_known_lengths(data, rng):
    """Where nobody asks for a derivative; with one, both are right."""
    x, w = data
    xs = rng.standard_normal((4, 3, 40)).astype(np.float32)

    def function(w):
        def step(c, x):
            c = kc.tanh(c @ halved(w)) + x
            return c, kc.sum(c)

        return kc.scan(step, kc.array(x), kc.array(xs))

    def total(w):
        c, sums = function(w)
        return kc.sum(c) + kc.sum(sums)

    (found, sums), (inside,) = loops(function, kc.array(w))
    assert "cast" not in inside
    wanted, own = x.astype(np.float64), w.astype(np.float16).astype(np.float64)
    slope, each = np.zeros_like(own), []
    kept = [wanted]
    for k in range(4):
        wanted = np.tanh(wanted @ own) + xs[k]
        kept.append(wanted)
        each.append(wanted.sum())
    np.testing.assert_allclose(found.numpy(), wanted, 0, 1e-5)
    np.testing.assert_allclose(sums.numpy(), each, 1e-5, 1e-4)
    g = np.ones_like(wanted)
    for k in reversed(range(4)):
        g = g + 1  # of the step's sum
        d = g * (1 - (kept[k + 1] - xs[k]) ** 2)
        slope += kept[k].T @ d
        g = d @ own.T
    gradient = kc.jit(kc.grad(total))(kc.array(w)).numpy()
    # casts to float16 round the gradient, too
    np.testing.assert_allclose(gradient, slope, 2e-3, 2e-2)
