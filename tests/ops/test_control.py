"""Loops and conditions whose course depends on values, beside plain Python."""

import os
import signal
import threading

import numpy as np
import pytest

import kerascl as kc
from kerascl.core.errors import CaptureError
from kerascl.ops import host

CAPTURED = pytest.mark.parametrize("capture", [False, True])


def ready(function, capture):
    return kc.jit(function) if capture else function


def argument(value, capture):
    """An integer, on the device where nothing is captured."""
    return np.array(value, "int32") if capture else kc.array(np.array([value], "int32"))[0]


@CAPTURED
def test_a_loop_stops_as_python_does(rng, capture):
    def collatz(n, x):
        return kc.while_loop(
            lambda n, k, x: n > 1,
            lambda n, k, x: (kc.where(n % 2 == 1, 3 * n + 1, n // 2), k + 1, kc.tanh(x @ x)),
            (n, 0, x),
        )

    run = ready(collatz, capture)
    x = rng.uniform(0, 1, (5, 5)).astype("float32")
    for start in (1, 2, 3, 27):
        n, k, y = start, 0, x.astype("float64")
        while n > 1:
            n, k, y = 3 * n + 1 if n % 2 else n // 2, k + 1, np.tanh(y @ y)
        found = run(argument(start, capture), kc.array(x))
        assert (int(found[0]), int(found[1])) == (n, k)
        assert np.linalg.norm(found[2].numpy() - y) <= 1e-4 * np.linalg.norm(y)


@CAPTURED
@pytest.mark.parametrize("device_bound", [False, True])
def test_a_loop_keeps_its_bound(capture, device_bound):
    def function(n, most):
        return kc.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 2), (0, 1.0), most)

    run = ready(function, capture)
    for n, most in [(3, 10), (30, 10), (5, 0), (0, 5), (12, 12), (90, 100)]:
        bound = argument(most, capture) if device_bound else most
        i, x = run(argument(n, capture), bound)
        assert (int(i), float(x)) == (min(n, most), 2.0 ** min(n, most))


@CAPTURED
def test_structures_are_kept(capture):
    def function(n):
        values = {"count": 0, "pair": (kc.ones((2,)), [kc.array(1.0)])}
        return kc.while_loop(
            lambda v: v["count"] < n,
            lambda v: {"count": v["count"] + 1, "pair": (v["pair"][0] + 1, [v["pair"][1][0] / 2])},
            values,
        )

    found = ready(function, capture)(argument(4, capture))
    assert int(found["count"]) == 4
    assert found["pair"][0].tolist() == [5, 5] and found["pair"][1][0].tolist() == 1 / 16


@CAPTURED
def test_values_swap_places(rng, capture):
    def function(n, a, b):
        return kc.while_loop(lambda i, a, b: i < n, lambda i, a, b: (i + 1, b, a), (0, a, b))[1:]

    run = ready(function, capture)
    a, b = rng.standard_normal((2, 7)).astype("float32")
    for n in range(4):
        first, second = run(argument(n, capture), kc.array(a), kc.array(b))
        expected = (a, b) if n % 2 == 0 else (b, a)
        assert (first.tolist(), second.tolist()) == tuple(x.tolist() for x in expected)


@CAPTURED
def test_loops_in_loops(capture):
    def primes(limit):
        def has_divisor(n):
            found = kc.while_loop(
                lambda d: kc.logical_and(d * d <= n, n % d != 0), lambda d: d + 1, kc.array(2)
            )
            return found * found <= n

        return kc.while_loop(
            lambda n, count: n < limit,
            lambda n, count: (n + 1, count + kc.cast(kc.logical_not(has_divisor(n)), "int32")),
            (kc.array(2), kc.array(0)),
        )[1]

    run = ready(primes, capture)
    for limit in (2, 3, 30, 150):
        expected = sum(all(n % d for d in range(2, n)) for n in range(2, limit))
        assert int(run(argument(limit, capture))) == expected


@CAPTURED
def test_loops_with_a_condition_in_a_scan_and_the_other_way_round(rng, capture):
    """The first power of each number beyond 10; rows are added up once more per turn."""

    def powers(x):
        def step(total, v):
            k, _ = kc.while_loop(lambda k, p: p < 10, lambda k, p: (k + 1, p * v), (0, v))
            return total + k, k

        return kc.scan(step, kc.array(0), x)

    x = rng.uniform(1.2, 4, 9).astype("float32")
    expected = []
    for v in x:
        k, p = 0, v
        while p < 10:
            k, p = k + 1, np.float32(p * v)
        expected.append(k)
    total, found = ready(powers, capture)(kc.array(x))
    assert found.tolist() == expected and int(total) == sum(expected)

    def sums(x, limit):
        return kc.while_loop(
            lambda n, s: s < limit,
            lambda n, s: (n + 1, kc.scan(lambda c, v: (c + v, c), s, x)[0]),
            (0, kc.array(0.0)),
        )

    n, s = ready(sums, capture)(kc.array(x), kc.array(100.0))
    count = int(np.ceil(100 / x.sum()))
    assert int(n) == count and abs(float(s) - count * x.sum()) < 1e-3


@CAPTURED
def test_a_loop_assigns_states(capture):
    total, steps = kc.State(kc.zeros((2,))), kc.State(kc.array(0))

    def function(n):
        def body(i):
            total.assign(total.value + kc.cast(i, "float32"))
            steps.assign(steps.value + 1)
            return i + 1

        before = steps.value
        end = kc.while_loop(lambda i: kc.logical_and(i < n, steps.value < 9), body, kc.array(0))
        return before, end, steps.value * 10

    run = ready(function, capture)
    seen, expected = 0, 0.0
    for n in (3, 0, 4, 5):
        before, end, after = run(argument(n, capture))
        turns = min(n, 9 - seen)
        assert (int(before), int(end), int(after)) == (seen, turns, 10 * (seen + turns))
        seen, expected = seen + turns, expected + sum(range(turns))
        assert int(steps.value) == seen and total.value.tolist() == [expected] * 2


@CAPTURED
def test_scans_assign_states(rng, capture):
    weight = kc.State(kc.array(2.0))
    x = rng.uniform(0.5, 1.5, 6).astype("float32")

    def function(x):
        def step(c, v):
            weight.assign(weight.value * v)
            return c + weight.value, weight.value

        with kc.GradientTape() as tape:
            tape.watch(x)
            total, _ = kc.scan(step, kc.array(0.0), x)
        return total, tape.gradient(total, x)

    total, slope = ready(function, capture)(kc.array(x))
    products = 2 * np.cumprod(x.astype("float64"))
    assert abs(float(total) - products.sum()) < 1e-5 * products.sum()
    expected = np.array([products[k:].sum() / x[k] for k in range(6)])
    assert np.linalg.norm(slope.numpy() - expected) < 1e-5 * np.linalg.norm(expected)
    assert abs(float(weight.value) - products[-1]) < 1e-5 * products[-1]


@CAPTURED
@pytest.mark.parametrize("turns", [0, 1, 5, 8])
def test_gradients_of_a_bounded_loop(rng, capture, turns):
    """Values beyond the end would be infinite; they do no harm."""
    w = rng.uniform(0.5, 1.5, (3,)).astype("float32")

    def function(w, n):
        def body(i, x):
            return i + 1, x * w / kc.cast(n - i, "float32")

        with kc.GradientTape() as tape:
            tape.watch(w)
            _, x = kc.while_loop(lambda i, x: i < n, body, (0, kc.ones((3,))), 8)
        return x, tape.gradient(x, w, unconnected_gradients="zero")

    x, slope = ready(function, capture)(kc.array(w), argument(turns, capture))
    scale = np.prod(1.0 / np.arange(1, turns + 1))
    expected = w.astype("float64") ** turns * scale
    np.testing.assert_allclose(x.numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(slope.numpy(), turns * expected / w, rtol=1e-5)


def test_gradients_without_a_bound():
    def function(x, n):
        with kc.GradientTape() as tape:
            tape.watch(x)
            y = kc.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * x), (0, x))[1]
        return tape.gradient(y, x)

    assert float(function(kc.array(3.0), kc.array(3))) == 4 * 27
    with pytest.raises(ValueError, match="maximum_iterations"):
        kc.jit(function)(kc.array(3.0), np.int32(3))


@CAPTURED
def test_elements_of_a_batch_stop_for_themselves(rng, capture):
    def root(x):
        return kc.while_loop(
            lambda k, y: kc.abs(y * y - x) > 1e-3 * x, lambda k, y: (k + 1, (y + x / y) / 2), (0, x)
        )

    x = rng.uniform(1, 500, 12).astype("float32")
    k, y = ready(kc.vmap(root), capture)(kc.array(x))
    for value, turns, found in zip(x, k.tolist(), y.tolist(), strict=True):
        expected, n = value, 0
        while abs(expected * expected - value) > np.float32(1e-3) * value:
            expected, n = (expected + value / expected) / 2, n + 1
        assert abs(turns - n) <= 1 and abs(found - np.sqrt(value)) < 1e-3 * np.sqrt(value)


@CAPTURED
def test_fori_loops(rng, capture):
    x = rng.standard_normal(4).astype("float32")

    def function(lower, upper, x):
        return kc.fori_loop(lower, upper, lambda i, v: v * 0.9 + kc.cast(i, "float32"), x)

    run = ready(function, capture)
    for lower, upper in [(2, 9), (-3, 2), (4, 4), (5, 1)]:
        expected = x.astype("float64")
        for i in range(lower, upper):
            expected = expected * 0.9 + i
        for bounds in [(lower, upper), (argument(lower, capture), argument(upper, capture))]:
            found = run(*bounds, kc.array(x)).numpy()
            assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected) + 1e-6


@CAPTURED
def test_conditions(capture):
    taken = kc.State(kc.array(0))

    def yes(x):
        taken.assign(taken.value + 1)
        return {"a": kc.sqrt(x), "b": [x]}

    def function(flag, x):
        with kc.GradientTape() as tape:
            tape.watch(x)
            result = kc.cond(flag, yes, lambda x: {"a": x * 3, "b": [x + 1]}, x)
            total = kc.sum(result["a"])
        return result, tape.gradient(total, x)

    run = ready(function, capture)
    for flag, x in [(True, 4.0), (False, 0.0), (False, 2.0), (True, 9.0)]:
        result, slope = run(kc.array(np.array([flag]))[0], kc.array(x))
        assert float(result["a"]) == (np.sqrt(x) if flag else 3 * x)
        assert float(result["b"][0]) == (x if flag else x + 1)
        assert abs(float(slope) - (0.5 / np.sqrt(x) if flag else 3)) < 1e-6
    assert int(taken.value) == 2


def test_what_loops_and_conditions_refuse():
    x = kc.ones((3,))
    with pytest.raises(ValueError, match=r"carried value 1 changes from float32\[3\] to float32"):
        kc.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x[:2]), (0, x))
    with pytest.raises(ValueError, match="cond must be a scalar"):
        kc.while_loop(lambda i, x: x > 0, lambda i, x: (i + 1, x - 1), (0, x))
    with pytest.raises(ValueError, match="another structure"):
        kc.while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, [x]), (0, x))
    with pytest.raises(CaptureError):
        kc.while_loop(lambda i: i < 3, lambda i: i + int(i), kc.array(0))
    with pytest.raises(ValueError, match="pred must be a scalar"):
        kc.cond(x > 0, lambda: x, lambda: x)
    with pytest.raises(ValueError, match="shapes"):
        kc.jit(lambda p: kc.cond(p, lambda: x, lambda: x[:2]))(np.array(True))
    with pytest.raises(ValueError, match="structures"):
        kc.jit(lambda p: kc.cond(p, lambda: x, lambda: [x]))(np.array(True))


def test_nothing_is_computed_on_the_host(rng):
    def function(n, x):
        return kc.while_loop(lambda i, x: i < n, lambda i, x: (i + 1, kc.sin(x)), (0, x))[1]

    before = sum(host.calls.values())
    kc.jit(function)(np.int32(300), kc.array(1.0)).numpy()
    assert sum(host.calls.values()) == before


def test_a_loop_of_equal_structure_is_compiled_once():
    def function(x, n):
        return kc.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y + x), (0, x))[1]

    counts = []
    for k in range(1, 6):
        n = kc.array(np.full((1,), k, "int32"))[0]
        assert float(function(kc.array(2.0), n)) == 2 + 2 * k
        counts.append(kc.engine.compiled)
    assert counts[-1] == counts[1]


def test_an_interrupt_ends_a_captured_loop():
    """No iteration is left half made."""
    first, second = kc.State(kc.array(0)), kc.State(kc.array(0))

    def endless(n):
        def body(i):
            first.assign(first.value + 1)
            second.assign(second.value - 1)
            return kc.where(i > 5, i - 1, i + 1)

        return kc.while_loop(lambda i: i < n, body, kc.array(0))

    run = kc.jit(endless)
    run(np.int32(3))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            run(np.int32(100))
    finally:
        timer.join()
        signal.signal(signal.SIGINT, before)
    assert int(first.value) == -int(second.value) > 3
    assert int(run(np.int32(2))) == 2
