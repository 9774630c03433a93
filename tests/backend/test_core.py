"""Conversion, shape inference, control flow, slices and scatters, against NumPy."""

import keras
import ml_dtypes
import numpy as np
import pytest
from keras.src.backend import core

import kerascl
from kerascl.compiler.run.capture import jit
from kerascl.core.array import Array


# -- conversion
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1, "int32"),
        (2**40, "int64"),
        (1.5, "float32"),
        (True, "bool"),
        ([1, 2], "int32"),
        ([1, 2.5], "float32"),
        ([[True], [False]], "bool"),
        ([], "float32"),
        (np.float64(2), "float64"),
        (np.zeros(3, "int64"), "int64"),
        (np.zeros((2, 0), "uint8"), "uint8"),
        (np.ones(2, ml_dtypes.bfloat16), "bfloat16"),
        (range(3), "int64"),
    ],
)
def test_convert_to_tensor_dtypes(value, dtype):
    x = core.convert_to_tensor(value)
    assert isinstance(x, Array) and core.is_tensor(x)
    assert x.dtype.name == dtype
    np.testing.assert_array_equal(core.convert_to_numpy(x), np.asarray(value))


def test_convert_to_tensor_with_dtype(rng):
    host = rng.normal(size=(3, 2)).astype("float32")
    for source in (host, host.tolist(), kerascl.array(host), keras.Variable(host)):
        x = core.convert_to_tensor(source, "float16")
        assert x.dtype == "float16"
        np.testing.assert_array_equal(x.numpy(), host.astype("float16"))
    assert core.cast(host, "int32").dtype == "int32"


def test_convert_lists_of_tensors():
    v = keras.Variable([1.0, 2.0])
    x = core.convert_to_tensor([v, v.value * 2, np.array([5.0, 6.0], "float32")])
    np.testing.assert_array_equal(x.numpy(), [[1, 2], [2, 4], [5, 6]])


def test_convert_without_copy():
    x = kerascl.array([1.0])
    assert core.convert_to_tensor(x) is x


@pytest.mark.parametrize("value", ["text", ["a", "b"], np.array([object()]), np.array(["x"])])
def test_text_is_refused(value):
    with pytest.raises(TypeError, match="must become numbers"):
        core.convert_to_tensor(value)


def test_symbolic_and_ragged_are_refused():
    with pytest.raises(ValueError, match="symbolic"):
        core.convert_to_tensor(keras.KerasTensor((2,)))
    with pytest.raises(ValueError, match="ragged"):
        core.convert_to_tensor([1.0], ragged=True)


# -- shape inference
def test_output_spec_keeps_unknown_dimensions():
    def function(x, y):
        return {"sum": keras.ops.sum(x, axis=1), "same": y, "flat": keras.ops.reshape(x, (-1,))}

    spec = core.compute_output_spec(
        function, keras.KerasTensor((None, 3, 4), "float16"), keras.KerasTensor((2,), "int32")
    )
    assert spec["sum"].shape == (None, 4) and spec["sum"].dtype == "float16"
    assert spec["same"].shape == (2,) and spec["same"].dtype == "int32"
    assert spec["flat"].shape == (None,)


def test_output_spec_computes_nothing():
    before = kerascl.engine.launches
    big = keras.KerasTensor((100000, 100000))
    assert core.compute_output_spec(lambda x: keras.ops.exp(x) + 1, big).shape == big.shape
    assert kerascl.engine.launches == before


def test_output_spec_of_a_function_that_looks_at_values():
    spec = core.compute_output_spec(
        lambda x: x * 2 if float(keras.ops.sum(x)) > 0 else x, keras.KerasTensor((None, 2))
    )
    assert spec.shape == (None, 2)


def test_output_spec_leaves_variables_alone():
    v = keras.Variable([1.0])
    core.compute_output_spec(lambda x: v.assign(x), keras.KerasTensor((1,)))
    assert v.numpy().tolist() == [1.0]


# -- conditions
def branchy(v, calls):
    def yes():
        calls.append("yes")
        v.assign_add(10.0)
        return v.value * 2

    def no():
        calls.append("no")
        return v.value - 1

    return lambda p: core.cond(p, yes, no)


def test_cond_runs_one_branch_eagerly():
    v, calls = keras.Variable(1.0), []
    assert float(branchy(v, calls)(kerascl.array(True))) == 22.0
    assert calls == ["yes"] and float(v) == 11.0
    assert float(branchy(v, calls)(np.False_)) == 10.0
    assert calls == ["yes", "no"]


def test_cond_selects_in_captured_functions():
    v, calls = keras.Variable(1.0), []
    step = jit(branchy(v, calls))
    assert float(step(np.array(True))) == 22.0 and float(v) == 11.0
    assert float(step(np.array(False))) == 10.0 and float(v) == 11.0
    assert sorted(calls) == ["no", "yes"]


def test_cond_on_a_known_value_is_decided_while_tracing():
    calls = []
    v = keras.Variable(1.0)
    condition = kerascl.array(True)
    assert float(jit(lambda x: branchy(v, calls)(condition) + x)(np.float32(1))) == 23.0
    assert calls == ["yes"]


def test_cond_selects_stateless_updates():
    v = keras.Variable(1.0)

    def function(p, start):
        with keras.StatelessScope([(v, start)]) as scope:
            core.cond(p, lambda: v.assign_add(1.0), lambda: v.assign(0.0))
        return scope.get_current_value(v)

    step = jit(function)
    assert float(step(np.array(True), np.float32(5))) == 6.0
    assert float(step(np.array(False), np.float32(5))) == 0.0
    assert float(v) == 1.0


def test_cond_gradient(rng):
    x = rng.normal(size=4).astype("float32")

    def function(p, x):
        def loss(x):
            return keras.ops.sum(core.cond(p, lambda: x * x, lambda: 3.0 * x))

        return kerascl.grad(loss)(x)

    step = jit(function)
    np.testing.assert_allclose(step(np.array(True), x).numpy(), 2 * x, rtol=1e-6)
    np.testing.assert_allclose(step(np.array(False), x).numpy(), np.full(4, 3.0))


def test_captured_branches_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        step = jit(lambda p: core.cond(p, lambda: kerascl.ones(2), lambda: kerascl.ones(3)))
        step(np.array(True))


@pytest.mark.parametrize("capture", [False, True])
def test_switch(capture):
    branches = [lambda x: x + 1, lambda x: x * 10, lambda x: -x]

    def function(i, x):
        return core.switch(i, branches, x)

    run = jit(function) if capture else function
    x = kerascl.array([1.0, 2.0])
    for index, expected in [(-1, [2, 3]), (0, [2, 3]), (1, [10, 20]), (2, [-1, -2]), (9, [-1, -2])]:
        assert run(np.array(index, "int32"), x).tolist() == expected


# -- loops
def test_while_loop():
    result = core.while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2), (0, 1.0))
    assert [float(r) for r in result] == [5, 32]
    assert int(core.while_loop(lambda i: i < 50, lambda i: i + 1, 0, maximum_iterations=7)) == 7


def test_captured_while_loop():
    def function(n, most):
        return core.while_loop(
            lambda i, x: i < n, lambda i, x: (i + 1, x * 2), (0, 1.0), maximum_iterations=most
        )

    step = jit(function)
    assert float(step(np.int32(3), 10)[1]) == 8.0
    assert float(step(np.int32(30), 10)[1]) == 1024.0
    assert float(step(np.int32(3), None)[1]) == 8.0
    assert float(step(np.int32(60), None)[1]) == 2.0**60
    assert float(step(np.int32(60), np.int32(7))[1]) == 128.0  # a bound on the device


def test_captured_while_loop_draws_random_numbers():
    seeds = keras.random.SeedGenerator(7)
    total = keras.Variable(0.0)

    def function(n):
        def body(i, x):
            total.assign_add(1.0)
            return i + 1, x + keras.random.uniform((), seed=seeds)

        return core.while_loop(lambda i, x: i < n, body, (0, 0.0))[1]

    found = [float(jit(function)(np.int32(5))), float(jit(function)(np.int32(2)))]
    seeds.state.assign(keras.random.SeedGenerator(7).state)
    draws = [float(keras.random.uniform((), seed=seeds)) for _ in range(7)]
    np.testing.assert_allclose(found, [sum(draws[:5]), sum(draws[5:])], rtol=1e-6)
    assert float(total.value) == 7


def test_fori_loop():
    assert int(core.fori_loop(2, 6, lambda i, v: v + i, 0)) == 14


@pytest.mark.parametrize("length", [3, 20])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("capture", [False, True])
def test_scan(rng, length, reverse, capture):
    xs = rng.normal(size=(length, 2)).astype("float32")

    def function(xs):
        return core.scan(
            lambda c, x: ({"c": c["c"] * 0.5 + x}, (c["c"], None)), {"c": kerascl.zeros(2)}, xs,
            reverse=reverse,
        )  # fmt: skip

    carry, (ys, nothing) = (jit(function) if capture else function)(xs)
    c, expected = np.zeros(2), np.zeros((length, 2))
    for i in reversed(range(length)) if reverse else range(length):
        expected[i] = c
        c = c * 0.5 + xs[i]
    assert nothing is None
    np.testing.assert_allclose(carry["c"].numpy(), c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ys.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_scan_by_length_and_empty():
    carry, ys = core.scan(lambda c, _: (c + 1, c), kerascl.array(0), length=10)
    assert int(carry) == 10 and ys.tolist() == list(range(10))
    carry, ys = core.scan(lambda c, x: (c + x, c), kerascl.array(0.0), kerascl.zeros((0,)))
    assert float(carry) == 0 and ys.shape == (0,)
    with pytest.raises(ValueError, match="length"):
        core.scan(lambda c, x: (c, x), 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("reverse", [False, True])
def test_associative_scan(rng, size, reverse):
    x = rng.normal(size=(2, size, 3)).astype("float32")
    y = core.associative_scan(lambda a, b: a + b, x, axis=1, reverse=reverse)
    expected = np.cumsum(x, 1) if not reverse else np.flip(np.cumsum(np.flip(x, 1), 1), 1)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-4, atol=1e-5)


def test_associative_scan_of_a_product_that_does_not_commute(rng):
    a, b = rng.normal(size=(2, 9)).astype("float32")

    def combine(f, g):  # (a, b) stands for x -> a x + b
        return f[0] * g[0], f[1] * g[0] + g[1]

    ya, yb = core.associative_scan(combine, (a, b))
    total_a, total_b = a[0], b[0]
    for k in range(1, 9):
        total_a, total_b = total_a * a[k], total_b * a[k] + b[k]
    np.testing.assert_allclose(ya.numpy()[-1], total_a, rtol=1e-4)
    np.testing.assert_allclose(yb.numpy()[-1], total_b, rtol=1e-4)


@pytest.mark.parametrize("size", [2, 9])
def test_maps(rng, size):
    x = rng.normal(size=(size, 3)).astype("float32")
    for mapped in (core.map, core.vectorized_map):
        y = mapped(lambda e: {"y": e * 2, "s": keras.ops.sum(e)}, x)
        np.testing.assert_array_equal(y["y"].numpy(), x * 2)
        np.testing.assert_allclose(y["s"].numpy(), x.sum(1), rtol=1e-5, atol=1e-6)
    y = core.vectorized_map(lambda pair: pair[0] + pair[1], [x, x])
    np.testing.assert_array_equal(y.numpy(), x + x)


# -- slices and scatters
def test_slice(rng):
    x = rng.normal(size=(4, 5)).astype("float32")
    np.testing.assert_array_equal(core.slice(x, (1, 2), (2, 3)).numpy(), x[1:3, 2:5])
    np.testing.assert_array_equal(core.slice(x, (1, 2), (2, -1)).numpy(), x[1:3, 2:])
    start = kerascl.array(np.array([3, 1], "int32"))
    np.testing.assert_array_equal(core.slice(x, start, (2, 3)).numpy(), x[2:4, 1:4])
    with pytest.raises(ValueError, match="Length"):
        core.slice(x, (1,), (2, 3))


@pytest.mark.parametrize("start", [(1, 2), (0, 0), (3, 4), (7, 0)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_slice_update(rng, start, dynamic):
    x = rng.normal(size=(4, 6)).astype("float32")
    u = rng.normal(size=(2, 3)).astype("float32")
    expected = x.copy()
    row, column = min(start[0], 2), min(start[1], 3)
    expected[row : row + 2, column : column + 3] = u
    where = kerascl.array(np.array(start, "int32")) if dynamic else start
    np.testing.assert_array_equal(core.slice_update(x, where, u).numpy(), expected)


def test_slice_update_gradient(rng):
    x, u = rng.normal(size=(4, 6)).astype("float32"), rng.normal(size=(2, 3)).astype("float32")
    weight = rng.normal(size=(4, 6)).astype("float32")
    dx, du = kerascl.grad(
        lambda x, u: keras.ops.sum(core.slice_update(x, (1, 2), u) * weight), (0, 1)
    )(kerascl.array(x), kerascl.array(u))
    expected = weight.copy()
    expected[1:3, 2:5] = 0
    np.testing.assert_array_equal(dx.numpy(), expected)
    np.testing.assert_array_equal(du.numpy(), weight[1:3, 2:5])


def test_scatter_adds(rng):
    y = core.scatter([[0, 1], [2, 2], [0, 1]], np.array([1.0, 2.0, 3.0], "float32"), (3, 3))
    assert y.tolist() == [[0, 4, 0], [0, 0, 0], [0, 0, 2]]
    rows = rng.normal(size=(2, 4)).astype("float32")
    np.testing.assert_array_equal(core.scatter([[2], [0]], rows, (3, 4)).numpy()[[2, 0]], rows)


@pytest.mark.parametrize("reduction", [None, "add", "max", "min", "mul"])
def test_scatter_update(rng, reduction):
    x = rng.normal(size=(4, 3)).astype("float32")
    u = rng.normal(size=(3, 3)).astype("float32")
    index = [0, 2, 3] if reduction is None else [0, 2, 0]
    expected = x.copy()
    if reduction is None:
        expected[index] = u
    else:
        ufunc = {"add": np.add, "max": np.maximum, "min": np.minimum, "mul": np.multiply}[reduction]
        ufunc.at(expected, index, u)
    y = core.scatter_update(x, [[i] for i in index], u, reduction)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-6)


def test_scatter_update_of_elements():
    y = core.scatter_update(np.zeros((2, 2, 2), "int32"), [[0, 1, 1], [1, 0, -1]], [7, 8])
    assert y.numpy()[0, 1, 1] == 7 and y.numpy()[1, 0, 1] == 8 and y.numpy().sum() == 15


def test_scatter_drops_what_is_outside():
    y = core.scatter_update(np.zeros((2, 2), "float32"), [[0, 5], [1, 1]], [7.0, 8.0])
    assert y.tolist() == [[0, 0], [0, 8]]


def test_unstack(rng):
    x = rng.normal(size=(2, 3)).astype("float32")
    for axis in (0, 1, -1):
        for part, expected in zip(core.unstack(x, axis=axis), np.moveaxis(x, axis, 0), strict=True):
            np.testing.assert_array_equal(part.numpy(), expected)


# -- gradients
def test_custom_gradient_and_stop_gradient():
    @keras.ops.custom_gradient
    def clipped(x):
        def grad(*args, upstream=None):
            if upstream is None:
                (upstream,) = args
            return upstream * 100.0

        return x * x, grad

    v = keras.Variable([3.0])
    assert kerascl.grad(lambda x: keras.ops.sum(clipped(x)))(v.value).tolist() == [100.0]
    assert clipped(v).tolist() == [9.0]
    gradient = kerascl.grad(lambda x: keras.ops.sum(keras.ops.stop_gradient(x) * x))(v.value)
    assert gradient.tolist() == [3.0]


def test_device_scope():
    kind = kerascl.array([1.0]).device.info.kind
    with keras.device(f"{kind}:0"):
        assert keras.ops.add(kerascl.array([1.0]), 1).tolist() == [2.0]
    assert core.random_seed_dtype() == "uint32"


@pytest.mark.parametrize("size", [5, 0])
def test_vectorized_map_runs_once(rng, size):
    x = keras.ops.convert_to_tensor(rng.normal(size=(size, 3, 2)).astype("float32"))
    calls = []

    def f(pair):
        calls.append(pair["a"].shape)
        return pair["a"] * 2, keras.ops.sum(pair["b"], axis=0)

    twice, sums = core.vectorized_map(f, {"a": x, "b": x})
    np.testing.assert_array_equal(twice.numpy(), 2 * x.numpy())
    np.testing.assert_allclose(sums.numpy(), x.numpy().sum(1), rtol=1e-6)
    assert calls[0] == (3, 2) and len(calls) <= 1 + (size == 0)


def test_vectorized_map_of_conditions_and_values():
    x = keras.ops.convert_to_tensor([[1.0, 2.0], [-3.0, 1.0]])

    def absolute(row):
        return keras.ops.cond(keras.ops.sum(row) > 0, lambda: row, lambda: -row)

    np.testing.assert_array_equal(core.vectorized_map(absolute, x).numpy(), [[1, 2], [3, -1]])
    looked = core.vectorized_map(lambda row: row * float(keras.ops.sum(row)), x)
    np.testing.assert_array_equal(looked.numpy(), [[3, 6], [6, -2]])


def test_vectorized_map_that_assigns_by_element():
    total = keras.Variable(0.0)

    def f(row):
        total.assign_add(keras.ops.sum(row))
        return total.value * 1

    found = core.vectorized_map(f, np.array([[1.0, 2.0], [3.0, 4.0]], "float32"))
    np.testing.assert_array_equal(found.numpy(), [3, 10])
    assert float(total.value) == 10


@pytest.mark.parametrize("stateless", [False, True])
def test_remat_keeps_what_a_layer_assigns(rng, stateless):
    x = rng.normal(size=(8, 3)).astype("float32")
    results = []
    for wrap in (lambda f: f, core.remat):
        keras.utils.set_random_seed(3)
        layer = keras.Sequential(
            [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
        )
        layer.build((8, 3))
        with kerascl.GradientTape() as tape:
            if stateless:
                variables = [v.value for v in layer.trainable_variables]
                rest = [v.value for v in layer.non_trainable_variables]

                def call(x, layer=layer, variables=variables, rest=rest):
                    return layer.stateless_call(variables, rest, x, training=True)

                y, rest = wrap(call)(kerascl.array(x))
            else:
                variables = layer.trainable_variables
                y = wrap(lambda x, layer=layer: layer(x, training=True))(kerascl.array(x))
                rest = [v.value for v in layer.non_trainable_variables]
            loss = keras.ops.sum(y * y)
        results.append([*tape.gradient(loss, list(variables)), y, *rest])
    for a, b in zip(*results, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["cond", "switch", "vectorized_map"])
def test_gradients_of_a_branch_that_is_not_taken_stay_there(kind):
    def root(x, w):
        branches = [lambda: w * 2.0, lambda: w * keras.ops.sqrt(x) / x]  # inf and NaN at 0
        if kind == "switch":
            return core.switch(keras.ops.cast(x > 0, "int32"), branches)
        return core.cond(x > 0, branches[1], branches[0])

    @jit
    def slopes(x, w):
        with kerascl.GradientTape() as tape:
            if kind == "vectorized_map":
                x = kerascl.reshape(x, (1,))
                y = core.vectorized_map(lambda e: root(e, w), x)[0]
            else:
                y = root(x, w)
        return y, tape.gradient(y, [x, w])

    y, (dx, dw) = slopes(np.float32(0), np.float32(3))
    assert float(y) == 6 and float(kerascl.sum(dx)) == 0 and float(dw) == 2
    y, (dx, dw) = slopes(np.float32(4), np.float32(3))
    np.testing.assert_allclose([float(y), float(kerascl.sum(dx)), float(dw)], [1.5, -0.1875, 0.5])


def test_captured_cond_with_assignments_and_seeds_under_a_tape():
    total = keras.Variable(1.0)
    seeds = keras.random.SeedGenerator(5)

    def step(x, flag):
        with kerascl.GradientTape() as tape:

            def yes():
                total.assign(total * x)
                return x * keras.random.uniform((), seed=seeds)

            y = core.cond(flag, yes, lambda: x + total)
            loss = y * total
        return y, tape.gradient(loss, x)

    captured, results = jit(step), []
    for run in (step, captured):
        total.assign(1.0)
        seeds.state.assign(keras.random.SeedGenerator(5).state)
        rows = []
        for flag in (True, False, True):
            y, dx = run(kerascl.array(3.0), kerascl.array(flag))
            rows.append([float(y), float(dx), float(total.value), *seeds.state.numpy().tolist()])
        results.append(rows)
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


def test_while_loop_of_elements():
    def collatz(n):
        def odd(n, k):
            return core.cond(n % 2 == 1, lambda: 3 * n + 1, lambda: n // 2), k + 1

        return core.while_loop(lambda n, k: n > 1, odd, (n, 0))[1]

    found = core.vectorized_map(collatz, np.array([1, 2, 3, 6, 7, 9], "int32"))
    np.testing.assert_array_equal(found.numpy(), [0, 1, 7, 8, 16, 19])


@pytest.mark.parametrize("capture", [False, True])
def test_long_fori_loops_are_traced_once(capture):
    calls = []

    def run(x):
        def body(i, v):
            calls.append(i)
            return v * x + keras.ops.cast(i, "float32")

        with kerascl.GradientTape() as tape:
            y = core.fori_loop(2, 30, body, kerascl.zeros(()) + 1)
        return y, tape.gradient(y, x)

    y, dy = (jit(run) if capture else run)(kerascl.array(0.9))
    value, slope = 1.0, 0.0
    for i in range(2, 30):
        value, slope = value * 0.9 + i, slope * 0.9 + value
    np.testing.assert_allclose([float(y), float(dy)], [value, slope], rtol=1e-5)
    assert len(calls) == 1


def test_captured_fori_loop_with_bounds_on_the_device():
    step = jit(lambda a, b: core.fori_loop(a, b, lambda i, v: v + i, 0))
    assert int(step(np.int32(2), np.int32(6))) == 14
    assert int(step(np.int32(-3), np.int32(40))) == sum(range(-3, 40))
    assert int(step(np.int32(6), np.int32(2))) == 0


def test_fori_loops_that_cannot_be_traced():
    table = list(range(10, 20))
    assert float(core.fori_loop(0, 8, lambda i, v: v + table[i], 0.0)) == sum(table[:8])
    total = keras.Variable(0.0)

    def add(i, v):
        total.assign_add(1.0)
        return v + keras.ops.convert_to_tensor(0.5)

    assert float(core.fori_loop(0, 6, add, 1)) == 4
    assert float(total.value) == 6
