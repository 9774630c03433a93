"""Carries of loops that are themselves with boxes replaced: stored in place, read in time."""

import functools
import math

import numpy as np
import pytest

import kerascl
from kerascl.compiler.graph import in_place
from kerascl.compiler.graph.in_place import updated_in_place
from kerascl.compiler.program.program import Use
from kerascl.core.context import current
from kerascl.core.node import topological
from kerascl.ops.updates import update

ROWS, WIDTH = 40, 512  # 80 KiB of floats


def box(c, part, *starts):
    """NumPy's `update`."""
    c = c.copy()
    for at in np.ndindex(part.shape):
        place = tuple(a + s for a, s in zip(at, starts, strict=True))
        if all(0 <= p < n for p, n in zip(place, c.shape, strict=True)):
            c[place] = part[at]
    return c


def integer(value):
    return kerascl.array(np.array(value, "int32"))


def normal(rng, *shape):
    return rng.normal(size=shape).astype("float32")


@pytest.fixture(params=["captured", "eager"])
def run(request):
    """Calls a function of arrays with NumPy's, and checks that these arrays keep their values."""

    def call(function, *values):
        arrays = [kerascl.array(v) for v in values]
        called = kerascl.jit(function) if request.param == "captured" else function
        found = called(*arrays)
        found = found if isinstance(found, list | tuple) else [found]
        found = [y.numpy() for y in found]
        for array, value in zip(arrays, values, strict=True):
            np.testing.assert_array_equal(array.numpy(), value)
        return found[0] if len(found) == 1 else found

    return call


@pytest.fixture
def stores(monkeypatch):
    """The stores in place of each loop's body that is compiled in a test."""
    found = []

    def noting(*args):
        result = updated_in_place(*args)
        nodes = topological([*result.roots, *result.more])
        found.append(sum(node.op is in_place.STORE for node in nodes))
        return result

    monkeypatch.setattr("kerascl.compiler.program.lower.updated_in_place", noting)
    current.engine.forget_programs()
    return found


@pytest.fixture
def apart(monkeypatch):
    """Each kernel has a launch of its own."""
    monkeypatch.setenv("KERASCL_RESIDENT", "3")


def largest_launch(function, *values):
    """The most work-items of a launch of a captured function."""
    program = kerascl.jit(function).captured(*map(kerascl.array, values)).program
    return max(math.prod(step.global_size) for step in program.launches)


def fill(c, v, n):
    """Row i becomes v * (i + 1), of the first n."""
    return kerascl.while_loop(
        lambda i, c: i < n,
        lambda i, c: (i + 1, update(c, v * kerascl.cast(i + 1, "float32"), [i, 0])),
        (integer(0), c),
    )[1]


@pytest.mark.parametrize("count", [0, 1, 7, ROWS, ROWS + 3])
def test_a_box_at_a_moving_start(rng, run, stores, count):
    c, v = normal(rng, ROWS, WIDTH), normal(rng, 1, WIDTH)
    expected = c.copy()
    for i in range(min(count, ROWS)):  # rows outside are dropped
        expected[i] = v * np.float32(i + 1)
    found = run(fill, c, v, np.array(count, "int32"))
    np.testing.assert_array_equal(found, expected)
    assert set(stores) == {1}


def test_only_the_box_is_written(rng, apart):
    values = normal(rng, ROWS, WIDTH), normal(rng, 1, WIDTH), np.array(3, "int32")
    assert largest_launch(fill, *values) <= ROWS * WIDTH // 4  # one copy, 16 bytes a work-item


def test_small_carries_are_computed_anew(rng, run, stores):
    c, v = normal(rng, 5, 4), normal(rng, 1, 4)
    found = run(fill, c, v, np.array(2, "int32"))
    np.testing.assert_array_equal(found, np.concatenate([v, v * 2, c[2:]]))
    assert not any(stores)


@pytest.mark.parametrize("length", [None, 6])
def test_elements_assigned_from_those_before(rng, run, stores, length):
    c = normal(rng, ROWS, WIDTH)

    def function(c, n):
        def body(i, c):
            c[i + 1] = c[i] * 0.5 + 1
            return c

        return kerascl.fori_loop(0, length or n, body, c)

    expected = c.copy()
    for i in range(6):
        expected[i + 1] = expected[i] * np.float32(0.5) + 1
    np.testing.assert_array_equal(run(function, c, np.array(6, "int32")), expected)
    assert set(stores) == {1}


def test_stacks_of_stacks_of_updates(rng, run, stores, apart):
    """As caches of keys and values of several layers."""
    batch, layers, length, features = 2, 3, 32, 64
    cache = normal(rng, batch, layers, 2, length, features)
    query = normal(rng, batch, 1, features)

    def function(cache, query, n):
        def body(i, x, cache):
            kept = []
            for k in range(layers):
                now = cache[:, k, ...]
                key = update(now[:, 0], x * (k + 1), [0, i, 0])
                value = update(now[:, 1], x - k, [0, i, 0])
                x = x * 0.5 + kerascl.sum(key * 0.01 + value * 0.02, axis=1, keepdims=True)
                kept.append(kerascl.stack([key, value], axis=1))
            return i + 1, x, kerascl.stack(kept, axis=1)

        start = integer(0)
        return kerascl.while_loop(lambda i, *_: i < n, body, (start, query, cache))[1:]

    expected, x = cache.astype("float64"), query.astype("float64")
    for i in range(5):
        for k in range(layers):
            expected[:, k, 0, i] = x[:, 0] * (k + 1)
            expected[:, k, 1, i] = x[:, 0] - k
            read = expected[:, k, 0] * 0.01 + expected[:, k, 1] * 0.02
            x = x * 0.5 + read.sum(1, keepdims=True)
    found_x, found = run(function, cache, query, np.array(5, "int32"))
    assert np.linalg.norm(found_x - x) < 1e-5 * np.linalg.norm(x)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert 2 * layers in stores
    items = batch * length * features  # of a layer's keys
    assert largest_launch(function, cache, query, np.array(5, "int32")) <= cache.size // 4 > items


def test_products_store_their_result(rng, run, stores):
    c, x, w = normal(rng, 2, ROWS, WIDTH), normal(rng, 2, 1, 64), normal(rng, 64, WIDTH)
    back = normal(rng, WIDTH, 64)

    def function(c, x, w, back, n):
        def body(i, x, c):
            c = update(c, x @ w, [0, i, 0])
            # reads what was stored, as an operand
            return i + 1, kerascl.tanh(kerascl.sum(c @ back, axis=1, keepdims=True) * 0.1), c

        return kerascl.while_loop(lambda i, *_: i < n, body, (integer(1), x, c))[1:]

    wide, expected = x.astype("float64"), c.astype("float64")
    for i in range(1, 5):
        expected[:, i : i + 1] = wide @ w
        wide = np.tanh((expected @ back).sum(1, keepdims=True) * 0.1)
    found_x, found = run(function, c, x, w, back, np.array(5, "int32"))
    assert np.linalg.norm(found - expected) < 1e-4 * np.linalg.norm(expected)
    assert np.linalg.norm(found_x - wide) < 1e-4 * np.linalg.norm(wide)
    assert set(stores) == {1}


def loop(body, *carry):
    """Four iterations whose number the host does not know."""

    def step(i, *carry):
        return [i + 1, *body(i, *carry)]

    return kerascl.while_loop(lambda i, *_: i < 4, step, [integer(0), *carry])[1:]


def steps(body, *carry):
    for i in range(4):
        carry = body(i, *carry)
    return carry


def check(run, rng, ours, theirs, *shapes):
    values = [normal(rng, *shape) for shape in shapes]
    found = run(lambda *carry: loop(ours, *carry), *values)
    found = found if isinstance(found, list) else [found]
    expected = steps(theirs, *[v.astype("float64") for v in values])
    for f, e in zip(found, expected, strict=True):
        assert np.linalg.norm(f - e) <= 1e-5 * np.linalg.norm(e)


WHOLE, ROW = (ROWS, WIDTH), (1, WIDTH)


def test_who_reads_the_old_value_after_the_new_one_gets_it(rng, run):
    def ours(i, c, v):
        new = update(c, v, [i, 0])
        return new, v + kerascl.sum(new - 2 * c, axis=0, keepdims=True) * 0.1

    def theirs(i, c, v):
        new = box(c, v, i, 0)
        return new, v + (new - 2 * c).sum(0, keepdims=True) * 0.1

    check(run, rng, ours, theirs, WHOLE, ROW)


def test_old_values_that_are_read_before(rng, run, stores):
    def ours(i, c, v):
        old = kerascl.sum(c, axis=0, keepdims=True)
        new = update(c, v, [i, 0])
        return new, kerascl.sum(new, axis=0, keepdims=True) * 0.01 - old * 0.02

    def theirs(i, c, v):
        new = box(c, v, i, 0)
        return new, new.sum(0, keepdims=True) * 0.01 - c.sum(0, keepdims=True) * 0.02

    check(run, rng, ours, theirs, WHOLE, ROW)
    assert set(stores) == {1}


def test_boxes_that_follow_from_the_old_value(rng, run, stores):
    def ours(i, c):
        return (update(c, c[1:9] * 0.5 + kerascl.sum(c, axis=0) * 0.01, [i, 0]),)

    def theirs(i, c):
        return (box(c, c[1:9] * 0.5 + c.sum(0) * 0.01, i, 0),)

    check(run, rng, ours, theirs, WHOLE)
    assert set(stores) == {1}


def test_updates_of_updates_with_reads_between(rng, run, stores):
    def ours(i, c):
        c = update(c, c[2:4] * 0.5, [i, 0])
        middle = kerascl.sum(c, axis=0, keepdims=True)
        c = update(c, middle * 0.1, [i + 1, 0])
        return (update(c, c[1:3] - middle * 0.1, [i + 2, 0]),)

    def theirs(i, c):
        c = box(c, c[2:4] * 0.5, i, 0)
        middle = c.sum(0, keepdims=True)
        c = box(c, middle * 0.1, i + 1, 0)
        return (box(c, c[1:3] - middle * 0.1, i + 2, 0),)

    check(run, rng, ours, theirs, WHOLE)
    assert set(stores) == {3}


def test_boxes_as_large_as_the_carry(rng, run, stores):
    def ours(i, c, d):
        new = update(c, d * 0.5, [i, 0])
        return new, new * 0.25 + d

    def theirs(i, c, d):
        new = box(c, d * 0.5, i, 0)
        return new, new * 0.25 + d

    check(run, rng, ours, theirs, WHOLE, WHOLE)
    assert set(stores) == {1}


def launched(body, *values):
    """Names of the kernels that a loop of a captured function launches."""
    program = kerascl.jit(lambda *carry: loop(body, *carry)).captured(*values).program
    return [step.name for step in program.launches]


def test_stores_that_lie_apart_share_a_launch(rng, apart):
    def apart(i, c, v, w):
        halves = update(c[:20], v, [i, 0]), update(c[20:], w, [i, 0])
        return kerascl.concatenate(halves), v * 0.5, w * 0.5

    def over_each_other(i, c, v, w):
        return update(update(c, v, [i, 0]), w, [i, 0]), v * 0.5, w * 0.5

    values = [kerascl.array(normal(rng, *shape)) for shape in (WHOLE, ROW, ROW)]
    for body, count in ((apart, 1), (over_each_other, 2)):
        names = launched(body, *values)
        assert sum("store" in name for name in names) == count, names


def test_parts_of_two_updates(rng, run, stores):
    def ours(i, c, v):
        a, b = update(c, v, [i, 0]), update(c, v * 2, [30 - i, 0])
        return kerascl.concatenate([a[:20], b[20:]]), v * 0.5

    def theirs(i, c, v):
        a, b = box(c, v, i, 0), box(c, v * 2, 30 - i, 0)
        return np.concatenate([a[:20], b[20:]]), v * 0.5

    check(run, rng, ours, theirs, WHOLE, ROW)
    assert not any(stores)


def test_an_update_of_a_part_of_an_update(rng, run):
    def ours(i, c, v):
        c = update(c, v, [19 + i, 0])
        return kerascl.concatenate([update(c[:20], v * 2, [i, 0]), c[20:]]), v * 0.5

    def theirs(i, c, v):
        c = box(c, v, 19 + i, 0)
        return np.concatenate([box(c[:20], v * 2, i, 0), c[20:]]), v * 0.5

    check(run, rng, ours, theirs, WHOLE, ROW)


def test_an_update_over_parts(rng, run, stores):
    def ours(i, c, v):
        parts = update(c[:20], v, [19 - i, 0]), update(c[20:], v * 2, [i, 0])
        between = kerascl.concatenate([v * 3, v * 4])
        return update(kerascl.concatenate(parts), between, [19, 0]), v * 0.5

    def theirs(i, c, v):
        parts = box(c[:20], v, 19 - i, 0), box(c[20:], v * 2, i, 0)
        return box(np.concatenate(parts), np.concatenate([v * 3, v * 4]), 19, 0), v * 0.5

    check(run, rng, ours, theirs, WHOLE, ROW)
    assert not any(stores)


def test_boxes_that_are_reduced_too(rng, run, stores):
    def ours(i, c, v):
        part = kerascl.tanh(v) * 2
        mean = kerascl.sum(part, axis=1, keepdims=True) * 0.01
        softmax = kerascl.exp(part) / kerascl.sum(kerascl.exp(part), axis=1, keepdims=True)
        c = update(c, part, [i, 0])
        return update(c, softmax, [i + 9, 0]), part - mean

    def theirs(i, c, v):
        part = np.tanh(v) * 2
        softmax = np.exp(part) / np.exp(part).sum(1, keepdims=True)
        c = box(box(c, part, i, 0), softmax, i + 9, 0)
        return c, part - part.sum(1, keepdims=True) * 0.01

    check(run, rng, ours, theirs, WHOLE, (4, WIDTH))
    assert set(stores) == {2}


def test_products_of_one_part_store_into_another(rng, run, stores, apart):
    w = normal(rng, WIDTH, WIDTH) * np.float32(0.04)

    def products(i, c, x):
        first = update(c[:20], x, [i, 0])
        second = update(c[20:], first[:4] @ kerascl.array(w), [i + 1, 0])
        return kerascl.concatenate([first, second]), second[3:5] * 0.5

    def expected(i, c, x):
        first = box(c[:20], x, i, 0)
        second = box(c[20:], first[:4] @ w, i + 1, 0)
        return np.concatenate([first, second]), second[3:5] * 0.5

    check(run, rng, products, expected, WHOLE, (2, WIDTH))
    assert set(stores) == {2}
    values = [kerascl.array(normal(rng, *shape)) for shape in (WHOLE, (2, WIDTH))]
    program = kerascl.jit(lambda *carry: loop(products, *carry)).captured(*values).program
    (product,) = (step for step in program.launches if step.label == "matmul")
    used = [a.index for a in product.args if type(a) is Use]
    both = {slot for slot in used if used.count(slot) > 1}  # reads and stores
    assert both and product.writes >= both


def test_parts_in_another_order(rng, run, stores):
    def ours(i, c, v):
        return kerascl.concatenate([update(c[20:], v, [i, 0]), c[:20]]), v * 0.5

    def theirs(i, c, v):
        return np.concatenate([box(c[20:], v, i, 0), c[:20]]), v * 0.5

    check(run, rng, ours, theirs, WHOLE, ROW)
    assert not any(stores)


def test_parts_in_their_order(rng, run, stores):
    def ours(i, c, v):
        a, b = update(c[:20], v, [i, 0]), update(c[20:], v - 1, [3 - i, 0])
        return kerascl.concatenate([a, b]), kerascl.sum(a, axis=0, keepdims=True) * 0.1

    def theirs(i, c, v):
        a, b = box(c[:20], v, i, 0), box(c[20:], v - 1, 3 - i, 0)
        return np.concatenate([a, b]), a.sum(0, keepdims=True) * 0.1

    check(run, rng, ours, theirs, WHOLE, ROW)
    assert set(stores) == {2}


def test_columns_through_views(rng, run, stores):
    def ours(i, c, v):
        cube = kerascl.transpose(c.reshape(ROWS, 8, 64), (1, 0, 2))
        cube = update(cube, v.reshape(8, 1, 64), [0, i, 0])
        return kerascl.transpose(cube, (1, 0, 2)).reshape(ROWS, WIDTH), v * 0.5

    check(run, rng, ours, lambda i, c, v: (box(c, v, i, 0), v * 0.5), WHOLE, ROW)
    assert set(stores) == {1}


def test_carries_that_change_places(rng, run):
    def ours(i, a, b, v):
        return update(b, v, [i, 0]), update(a, v * 2, [i + 1, 0]), v * 0.5

    def theirs(i, a, b, v):
        return box(b, v, i, 0), box(a, v * 2, i + 1, 0), v * 0.5

    check(run, rng, ours, theirs, WHOLE, WHOLE, ROW)


def test_one_box_into_two_carries(rng, run, stores):
    def ours(i, a, b, v):
        return update(a, v, [i, 0]), update(b, v, [i, 0]), v * 0.5

    def theirs(i, a, b, v):
        return box(a, v, i, 0), box(b, v, i, 0), v * 0.5

    check(run, rng, ours, theirs, WHOLE, WHOLE, ROW)
    assert set(stores) == {2}


def test_a_carry_that_is_another_one_too(rng, run):
    def ours(i, a, b, v):
        new = update(a, v, [i, 0])
        return new, new, v * 0.5

    def theirs(i, a, b, v):
        new = box(a, v, i, 0)
        return new, new, v * 0.5

    check(run, rng, ours, theirs, WHOLE, WHOLE, ROW)


def test_carries_that_are_parts_of_each_other(rng, run, stores):
    def ours(i, a, b):
        return update(a, b[2:4], [i, 0]), update(b, a[3:5] * 0.5, [i + 1, 0])

    def theirs(i, a, b):
        return box(a, b[2:4], i, 0), box(b, a[3:5] * 0.5, i + 1, 0)

    check(run, rng, ours, theirs, WHOLE, WHOLE)
    assert set(stores) == {2}


def test_one_array_as_two_carries(rng, run):
    def function(c, v):
        def body(i, a, b):
            return update(a, v, [i, 0]), update(b, v * 2, [i + 2, 0])

        return [*loop(body, c, c), c * 2]

    c, v = normal(rng, *WHOLE), normal(rng, *ROW)
    a, b, twice = run(function, c, v)
    np.testing.assert_array_equal(a, np.concatenate([v, v, v, v, c[4:]]))
    np.testing.assert_array_equal(b, np.concatenate([c[:2], *[v * 2] * 4, c[6:]]))
    np.testing.assert_array_equal(twice, c * 2)


def test_a_cache_in_another_order(rng, run):
    """As beam search takes it."""
    order = rng.permutation(4).astype("int32")

    def function(c, v):
        def body(i, c, v):
            c = update(c, v, [0, i, 0])
            return kerascl.take(c, kerascl.array(order), axis=0), v * 0.5

        return loop(body, c, v)

    c, v = normal(rng, 4, 16, 512), normal(rng, 4, 1, 512)
    found, _ = run(function, c, v)
    for i in range(4):
        c, v = box(c, v, 0, i, 0)[order], v * np.float32(0.5)
    np.testing.assert_array_equal(found, c)


def test_starts_that_the_carry_holds(rng, run, stores):
    c = rng.integers(0, ROWS - 1, (ROWS, WIDTH)).astype("int32")

    def function(c):
        def body(i, c):
            return (update(c, c[:1] + 1, [c[i, 3], 0]),)

        return loop(body, c)

    expected = c.copy()
    for i in range(4):
        expected = box(expected, expected[:1] + 1, expected[i, 3], 0)
    np.testing.assert_array_equal(run(function, c), expected)
    assert set(stores) == {1}


def test_loops_within(rng, run, stores):
    c, v = normal(rng, *WHOLE), normal(rng, *ROW)

    def function(c, v):
        def outer(i, c):
            c = update(c, v, [i, 0])
            inner = kerascl.while_loop(
                lambda j, c: j < i, lambda j, c: (j + 1, update(c, c[j] * 0.5 + v, [j + 9, 0])),
                (integer(0), c),
            )[1]  # fmt: skip
            return (update(inner, inner[9:10] + v, [i + 20, 0]),)

        return loop(outer, c)

    def within(i, c):
        c = box(c, v, i, 0)
        for j in range(i):
            c = box(c, c[j : j + 1] * 0.5 + v, j + 9, 0)
        return (box(c, c[9:10] + v, i + 20, 0),)

    (expected,) = steps(within, c.astype("float64"))
    found = run(function, c, v)
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)
    assert 1 in stores


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_and_their_results(rng, run, stores, reverse):
    c, v = normal(rng, *WHOLE), normal(rng, 5, 1, WIDTH)
    starts = rng.integers(-1, ROWS, 5).astype("int32")

    def function(c, v, starts):
        def step(c, x):
            part, at = x
            new = update(c, part, [at, 0])
            return new, (kerascl.sum(c, axis=0), kerascl.sum(new, axis=0), new[:2])

        new, ys = kerascl.scan(step, c, (v, starts), reverse=reverse)
        return [new, *ys]

    found, old_sums, new_sums, rows = run(function, c, v, starts)
    expected = c.astype("float64")
    for k in range(5)[:: -1 if reverse else 1]:
        assert np.linalg.norm(old_sums[k] - expected.sum(0)) < 1e-4 * ROWS
        expected = box(expected, v[k], starts[k], 0)
        assert np.linalg.norm(new_sums[k] - expected.sum(0)) < 1e-4 * ROWS
        np.testing.assert_array_equal(rows[k], expected[:2].astype("float32"))
    np.testing.assert_array_equal(found, expected.astype("float32"))
    assert set(stores) == {1}


def test_gradients_see_the_values_before(rng, run):
    c, v, w = normal(rng, *WHOLE), normal(rng, *ROW), normal(rng, *WHOLE)

    def loss(c, v):
        def body(i, c):
            c[i + 1] = c[i] * c[i] * v[0]
            return c

        return kerascl.sum(kerascl.fori_loop(0, 3, body, c) * w)

    found = run(lambda c, v: kerascl.grad(loss, (0, 1))(c, v), c, v)
    rows = [c[0].astype("float64")]
    for _ in range(3):
        rows.append(rows[-1] ** 2 * v[0])
    g = w.astype("float64")
    dv, up = 0, g[3]
    for i in (2, 1, 0):
        dv = dv + up * rows[i] ** 2
        up = up * 2 * rows[i] * v[0] + g[i]
    dc = g.copy()
    dc[:4] = 0
    dc[0] = up
    for f, e in zip(found, (dc, dv[None]), strict=True):
        assert np.linalg.norm(f - e) < 1e-5 * np.linalg.norm(e)


def test_batches(rng, run, stores):
    c, starts = normal(rng, 3, *WHOLE), np.array([0, 5, 9], "int32")
    v = normal(rng, 3, *ROW)

    def same(c, v, _):
        return kerascl.fori_loop(0, 4, lambda i, c: update(c, v + c[:1], [i + 2, 0]), c)

    def apart(c, v, start):
        return kerascl.fori_loop(0, 4, lambda i, c: update(c, v + c[:1], [i + start, 0]), c)

    def until(c, v, start):
        return kerascl.while_loop(
            lambda i, c: i < start, lambda i, c: (i + 1, update(c, v + c[:1], [i + 1, 0])),
            (integer(0), c),
        )[1]  # fmt: skip

    found = run(lambda *values: [kerascl.vmap(f)(*values) for f in (same, apart, until)],
                c, v, starts)  # fmt: skip
    for k in range(3):
        a, b, d = c[k], c[k], c[k]
        for i in range(4):
            a = box(a, v[k] + a[:1], i + 2, 0)
            b = box(b, v[k] + b[:1], i + starts[k], 0)
        for i in range(starts[k]):
            d = box(d, v[k] + d[:1], i + 1, 0)
        for f, e in zip(found, (a, b, d), strict=True):
            np.testing.assert_array_equal(f[k], e)
    assert 1 in stores


def test_states(rng, stores):
    c, v = normal(rng, *WHOLE), normal(rng, *ROW)
    state = kerascl.State(kerascl.array(c))
    before = state.value * 1

    @kerascl.jit
    def function(v):
        def body(i):
            state.assign(update(state.value, v + state.value[3:4], [i, 0]))
            return [i + 1]

        kerascl.while_loop(lambda i: i < 4, body, [integer(0)])
        return state.value * 2

    for _ in range(2):
        twice = function(kerascl.array(v)).numpy()
        for i in range(4):
            c = box(c, v + c[3:4], i, 0)
        np.testing.assert_array_equal(twice, c * 2)
        np.testing.assert_array_equal(state.value.numpy(), c)
    assert not np.array_equal(before.numpy(), c)
    assert 1 in stores


@pytest.mark.parametrize("dtype", ["bool", "int8", "int64", "float16", "bfloat16", "complex64"])
def test_dtypes(rng, run, stores, dtype):
    c = (rng.integers(0, 2, (ROWS, 4096)) if dtype == "bool" else rng.integers(0, 9, (ROWS, 4096)))

    def function(c):
        c = kerascl.cast(c, dtype)

        def body(i, c):
            return (update(c, c[:, 8:11], [0, 4 * i]),)

        return kerascl.cast(kerascl.real(*loop(body, c)) if dtype == "complex64" else
                            loop(body, c)[0], "int32")  # fmt: skip

    expected = c
    for i in range(4):
        expected = box(expected, expected[:, 8:11], 0, 4 * i)
    np.testing.assert_array_equal(run(function, c.astype("int32")), expected)
    assert set(stores) == {1}


def _random_body(seed):
    """A body of two carries that stores into one, and reads old and new values of both."""
    makes = np.random.default_rng(seed)
    plan = [
        (makes.integers(5), makes.integers(3), makes.integers(0, 8, 3)) for _ in range(5)
    ]  # fmt: skip

    def body(put, total, i, a, b, x):
        old = [a, b]
        now = [a, b]
        for kind, which, (at, to, rows) in plan:
            k, other = which % 2, (which + 1) % 2
            source = old if at % 2 else now
            if kind == 0:
                now[k] = put(now[k], x * 0.5, i + to)
            elif kind == 1:
                now[k] = put(now[k], source[other][at : at + 1 + rows % 3] * 0.5, i + to)
            elif kind == 2:
                x = x * 0.5 + total(source[k]) * 0.01
            elif kind == 3:
                now[k] = put(now[k], source[k][at : at + 1 + rows % 3] * 0.5 + x * 0.1, to + 3 - i)
            else:
                x = x - total(now[k] * 0.01 - old[k] * 0.02)
        return now[0], now[1], x

    return body


@pytest.mark.parametrize("seed", range(24))
def test_random_bodies(rng, run, seed):
    body = _random_body(1000 * seed + int(rng.integers(1000)))
    ours = functools.partial(
        body,
        lambda c, part, at: update(c, part, [at, 0]),
        lambda c: kerascl.sum(c, axis=0, keepdims=True),
    )
    theirs = functools.partial(
        body, lambda c, part, at: box(c, part, at, 0), lambda c: c.sum(0, keepdims=True)
    )
    check(run, rng, ours, theirs, (ROWS, WIDTH), (ROWS, WIDTH), ROW)
