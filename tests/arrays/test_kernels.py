"""Operations and kernels of one's own against NumPy: eager, captured, under grad and vmap."""

import re
from pathlib import Path

import numpy as np
import pytest

import kerascl as kc
from tests.arrays.kernels import row_sums, softsign


def _floats(rng, *shape):
    return rng.normal(size=shape).astype(np.float32)


def _close(found, expected, tolerance=1e-5):
    found = found.astype("float32").numpy()
    assert found.shape == expected.shape
    assert np.linalg.norm(found - expected) <= tolerance * max(1, np.linalg.norm(expected))


def test_elementwise_everywhere(rng):
    x = _floats(rng, 4, 5)
    f, given = softsign(), kc.array(x)
    expected, slope = x / (1 + abs(x)), 1 / (1 + abs(x)) ** 2
    _close(f(given), expected)
    _close(kc.jit(lambda t: f(t * 2) + 1)(given), 2 * x / (1 + abs(2 * x)) + 1)
    _close(kc.grad(lambda t: kc.sum(f(t)))(given), slope)
    _close(kc.jit(kc.grad(lambda t: kc.sum(f(t))))(given), slope)
    _close(kc.vmap(f)(given), expected)
    _close(kc.vmap(kc.grad(lambda t: kc.sum(f(t))))(given), slope)
    _close(kc.jacobian(lambda t: f(t[0]))(given)[:, 0], np.diag(slope[0]))
    second = kc.grad(lambda t: kc.sum(kc.grad(lambda u: kc.sum(f(u)))(t)))(given)
    _close(second, -2 * np.sign(x) / (1 + abs(x)) ** 3)
    _close(kc.scan(lambda c, row: (f(c + row), c), kc.zeros(5), given)[1][1], expected[0])
    _close(f(given.astype("bfloat16")), expected, 1e-2)
    _close(f(2.0), np.float32(2 / 3))


def test_elementwise_is_fused(rng):
    f, x = softsign(), kc.array(_floats(rng, 64))
    f(x).numpy()
    (f(x * 2) + 1).numpy()
    before = kc.engine.launches
    (f(x * 2) + 1).evaluate()
    assert kc.engine.launches == before + 1


def test_several_inputs_and_outputs(rng):
    r, t = abs(_floats(rng, 6)), _floats(rng, 3, 1)

    def back(g, y, r, t):
        return g[0] * kc.cos(t) + g[1] * kc.sin(t), g[1] * y[0] - g[0] * y[1]

    polar = kc.elementwise("polar", ("r * cos(t)", "r * sin(t)"), "r t", grad=back)
    x, y = polar(kc.array(r), kc.array(t))
    _close(x, r * np.cos(t))
    _close(y, r * np.sin(t))
    loss = kc.grad(lambda r, t: kc.sum(polar(r, t)[0] * 2 + polar(r, t)[1]), (0, 1))
    dr, dt = loss(kc.array(r), kc.array(t))
    _close(dr, (2 * np.cos(t) + np.sin(t) + 0 * r).sum(0))
    _close(dt, (r * np.cos(t) - 2 * r * np.sin(t)).sum(1, keepdims=True), 1e-4)
    above = kc.elementwise("above", "a > b", ["a", "b"], dtype="bool")
    np.testing.assert_array_equal(above(kc.array(r), 0.5).numpy(), r > 0.5)
    bits = kc.elementwise("mix", "x ^ (x >> 3)", dtype=None)
    numbers = rng.integers(0, 2**31, 9).astype("int32")
    np.testing.assert_array_equal(bits(kc.array(numbers)).numpy(), numbers ^ (numbers >> 3))


def test_helpers_cannot_collide(rng):
    """Two cells define different helpers of one name, beside a variable that kernels use."""
    x = _floats(rng, 7)
    text = "#define i0 {0}\nT twice(T v) {{\n  T acc = v * i0;\n  return acc;\n}}"
    f = kc.elementwise("f", "twice(acc)", "acc", helpers=text.format(2))
    g = kc.elementwise("f", "twice(acc)", "acc", helpers=text.format(3))
    _close(f(kc.array(x)) + g(kc.array(x)) * 10, 2 * x + 30 * x)
    again = kc.elementwise("f", "twice(acc)", "acc", helpers=text.format(2))
    _close(again(kc.array(x)), 2 * x)
    steps = kc.elementwise("steps", "T y = x;\nfor (int k = 0; k < 3; k++) y = y * y;\nreturn y;")
    _close(steps(kc.array(x)), x**8)


def test_reduction_everywhere(rng):
    x = _floats(rng, 6, 70)
    norm = kc.reduction(
        "norm", "x * x", "a + b", 0, "sqrt(a)", grad=lambda g, y, x: g * x / y
    )
    rows = np.linalg.norm(x, axis=1)
    given = kc.array(x)
    _close(norm(given), np.linalg.norm(x))
    _close(norm(given, axis=1), rows)
    _close(norm(given, axis=1, keepdims=True), rows[:, None])
    _close(kc.jit(lambda t: norm(t + 1, axis=0))(given), np.linalg.norm(x + 1, axis=0))
    _close(kc.grad(lambda t: kc.sum(norm(t, axis=1)))(given), x / rows[:, None])
    _close(kc.vmap(norm)(given), rows)
    _close(norm(given.astype("float16"), axis=1), rows, 2e-3)
    largest = kc.reduction("largest", "fabs(x - y)", "fmax(a, b)", float("-inf"), inputs="x y")
    _close(largest(given, given[:1], axis=1), abs(x - x[:1]).max(1))
    counts = rng.integers(0, 9, (5, 8)).astype("int32")
    ors = kc.reduction("ors", "x", "a | b", 0)
    found = ors(kc.array(counts), axis=0).numpy()
    np.testing.assert_array_equal(found, np.bitwise_or.reduce(counts))


def test_kernel_everywhere(rng):
    x = _floats(rng, 6, 70)
    sums, given = row_sums(), kc.array(x)
    _close(sums(given), x.sum(1))
    _close(kc.jit(lambda t: sums(t * 2) + 1)(given), 2 * x.sum(1) + 1)
    weights = kc.array(_floats(rng, 6))
    slope = np.broadcast_to(weights.numpy()[:, None], x.shape)
    _close(kc.grad(lambda t: kc.sum(sums(t) * weights))(given), slope)
    _close(kc.jit(kc.grad(lambda t: kc.sum(sums(t) * weights)))(given), slope)
    many = _floats(rng, 3, 4, 20)
    _close(kc.vmap(sums)(kc.array(many)), many.sum(2))
    _close(sums(given.astype("float16")), x.sum(1), 2e-3)
    _close(sums(given, GROUP=16), x.sum(1))


def test_kernels_with_atomics_and_several_outputs(rng):
    x = rng.integers(0, 4, 50).astype("int32")
    count = kc.kernel(
        """
        __kernel void count(__global const int* x, __global int* bins, __global x_T* copy) {
          const int i = get_global_id(0);
          atomic_add(bins + x[i], 1);
          copy[i] = x[i] * FACTOR;
        }
        """,
        "count", ["x"], {"bins": ((4,), "int32"), "copy": "x"}, grid=lambda x: x.size,
        template={"FACTOR": 1}, initial=0,
    )  # fmt: skip
    bins, copy = count(kc.array(x))
    np.testing.assert_array_equal(bins.numpy(), np.bincount(x, minlength=4))
    np.testing.assert_array_equal(copy.numpy(), x)
    np.testing.assert_array_equal(count(kc.array(x), FACTOR=3)[1].numpy(), x * 3)
    both = kc.jit(lambda t: count(t)[0] * 2)  # one of two outputs alone
    np.testing.assert_array_equal(both(kc.array(x)).numpy(), 2 * np.bincount(x, minlength=4))


def test_compile_errors_name_the_users_lines():
    x = kc.ones(3)
    with pytest.raises(kc.CompileError, match=r"first, line 2: .*nothing"):
        kc.elementwise("first", "x +\n  nothing(x)")(x)
    with pytest.raises(kc.CompileError, match=r"second helpers, line 3: .*missing"):
        kc.elementwise("second", "f(x)", helpers="T f(T v) {\n  T w = v;\n  return missing;\n}")(x)
    with pytest.raises(kc.CompileError, match=r"third combine, line 1"):
        kc.reduction("third", "x", "a +", 0)(x)
    source = "__kernel void fourth(__global float* x,\n  __global float* y) {\n  y[0] = absent;\n}"
    with pytest.raises(kc.CompileError, match=r"fourth, line 3: .*absent[^|]*\| y\[0\] = absent"):
        kc.kernel(source, "fourth", "x", "y", 1)(x)


def test_refusals():
    x = kc.ones(3)
    for names in ("x x", "2x", "float", "", "kcl_a", "T"):
        with pytest.raises(ValueError, match="parameter"):
            kc.elementwise("f", "x", names)
    with pytest.raises(TypeError, match="takes 1 arrays, got 2"):
        softsign()(x, x)
    two = kc.elementwise("two", "x * y", "x y", grad=lambda g, y, a, b: (g * b,))
    with pytest.raises(ValueError, match="1 gradients for 2 inputs"):
        kc.grad(lambda t: kc.sum(two(t, t)))(x)
    wide = kc.elementwise("wide", "x", grad=lambda g, y, x: kc.ones((2, 3)))
    with pytest.raises(ValueError, match=r"shape \(2, 3\) for an input of shape \(3,\)"):
        kc.grad(lambda t: kc.sum(wide(t)))(x)
    plain = kc.elementwise("plain", "x")
    with pytest.raises(NotImplementedError, match="stop_gradient"):
        kc.grad(lambda t: kc.sum(plain(t)))(x)
    assert kc.grad(lambda t: kc.sum(plain(kc.stop_gradient(t)) * t))(x).tolist() == [1, 1, 1]
    source = "__kernel void f(__global float* x, __global float* y) { y[0] = x[0]; }"
    for wrong, message in [
        (lambda: kc.kernel(source, "g", "x", "y", 1), "no `__kernel void g"),
        (lambda: kc.kernel(source, "f", "x", "x", 1), "different"),
        (lambda: kc.kernel(source, "f", "x", "y", 10, 4)(x), "no multiple"),
        (lambda: kc.kernel(source, "f", "x", "y", 0)(x), "positive"),
        (lambda: kc.kernel(source, "f", "x z", "y", 1)(x, x), "takes 2 arguments"),
        (lambda: kc.kernel(source, "f", "x", {"y": 3}, 1)(x), "output 'y'"),
        (lambda: kc.kernel(source, "f", "x", "y", 1)(x, SIZE=3), "no macro SIZE"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()


def test_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    names = {}
    for block in blocks[:3]:
        exec(block, names)
    np.testing.assert_allclose(names["y"].numpy(), [0.5, -2 / 3, 0.75], rtol=1e-6)
    np.testing.assert_allclose(names["rows"].numpy(), np.full(4, 10), rtol=1e-6)
    np.testing.assert_allclose(names["sums"].numpy(), np.full(4, 100), rtol=1e-6)
