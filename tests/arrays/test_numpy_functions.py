"""NumPy's less common functions: special values, errors, gradients, what stays on the device."""

import inspect

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import host


def test_frexp_of_special_values(rng):
    size = rng.normal(size=40) * 2.0 ** rng.integers(-100, 100, 40)
    x = np.concatenate([size, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype("f")
    found, wanted = kc.frexp(x), np.frexp(x)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1][:-3], wanted[1][:-3])  # of what is not finite: anything
    half = x[:40].astype("f").clip(-1000, 1000).astype("float16")
    np.testing.assert_array_equal(kc.frexp(half)[0], np.frexp(half)[0])


def test_modf_of_special_values():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -2.0], "f")
    for found, wanted in zip(kc.modf(x), np.modf(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
        signs = np.signbit(wanted)[[0, 1, 2, 3, 5]]
        np.testing.assert_array_equal(np.signbit(found.numpy())[[0, 1, 2, 3, 5]], signs)


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_bitwise_count(rng, dtype):
    limits = np.iinfo(dtype)
    x = rng.integers(limits.min, limits.max, 50, dtype=dtype, endpoint=True)
    x[:2] = limits.min, limits.max
    found = kc.bitwise_count(x)
    assert found.dtype is kc.uint8
    np.testing.assert_array_equal(found, np.bitwise_count(x))


@pytest.mark.every(4)
@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("period", [4, 5, 4.0])
def test_unwrap_of_steps_of_half_a_period(rng, size, period):
    x = rng.integers(-9, 9, size)
    x = x.astype("int32") if isinstance(period, int) else x.astype("f")
    np.testing.assert_array_equal(kc.unwrap(x, period=period), np.unwrap(x, period=period))


def test_complex_numbers_have_no_parts():
    for function in (kc.modf, kc.frexp, kc.fabs, kc.rint, kc.spacing):
        with pytest.raises(TypeError, match="complex"):
            function(kc.array([1j]))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: kc.polyfit(x, x, -1), ValueError, "degree -1"),
        (lambda x: kc.polyfit(x, x[:2], 1), TypeError, "polyfit"),
        (lambda x: kc.polyfit(x[:2], x[:2], 1, cov=True), ValueError, "2 samples"),
        (lambda x: kc.polyadd(kc.ones((2, 2)), x), ValueError, "no vector"),
        (lambda x: kc.polyint(x, 2, [1.0, 2.0, 3.0]), ValueError, "3 constants"),
        (lambda x: kc.block([[x], x]), ValueError, "depths"),
        (lambda x: kc.block((x, x)), TypeError, "tuples"),
        (lambda x: kc.block([]), ValueError, "empty"),
        (lambda x: kc.compress([True] * 9, x), IndexError, "9 conditions"),
        (lambda x: kc.choose(x, [x]), TypeError, "integers"),
        (lambda x: kc.choose(kc.array([0]), [x], mode="up"), ValueError, "mode"),
        (lambda x: kc.piecewise(x, [x > 0], [1, 2, 3]), ValueError, "3 functions"),
        (lambda x: kc.put(x, [77], 1.0), IndexError, "77"),
        (lambda x: kc.put(x.numpy(), [0], 1.0), TypeError, "ndarray"),
        (lambda x: kc.place(x, x[:2] > 0, 1.0), ValueError, "mask"),
        (lambda x: kc.fill_diagonal(x, 1.0), ValueError, "matrix"),
        (lambda x: kc.fill_diagonal(kc.ones((2, 3, 2)), 1.0), ValueError, "one size"),
        (lambda x: kc.histogram_bin_edges(x, bins="auto"), TypeError, "auto"),
        (lambda x: kc.histogramdd(kc.ones((4, 2)), bins=[1, 2, 3]), ValueError, "3 bins"),
        (lambda x: kc.histogram2d(x, x[1:]), ValueError, "samples"),
        (lambda x: kc.r_["r", x], ValueError, "directive"),
        (lambda x: kc.mgrid[3:], ValueError, "end"),
        (lambda x: kc.ix_(kc.ones((2, 2), dtype=int)), ValueError, "vectors"),
        (lambda x: kc.trim_zeros(x, "up"), ValueError, "trim"),
        (lambda x: kc.partition(x, 99), ValueError, "99"),
        (lambda x: kc.linalg.multi_dot([x]), ValueError, "two arrays"),
        (lambda x: kc.linalg.multi_dot([kc.ones((2, 3)), kc.ones((2, 3))]), ValueError, "fit"),
        (lambda x: kc.linalg.cond(x), ValueError, "2 dimensions"),
        (lambda x: kc.linalg.tensorinv(kc.ones((2, 3)), 1), ValueError, "differ"),
        (lambda x: kc.rollaxis(x, 3), ValueError, "axis"),
        (lambda x: x.sum(axs=0), TypeError, "axs"),
        (lambda x: kc.save("x.npy", x.astype(kc.bfloat16)), TypeError, "bfloat16"),
    ],
)
def test_errors_say_what_is_wrong(rng, call, error, match):
    with pytest.raises(error, match=match):
        call(kc.array(rng.normal(size=5).astype("f")))


SLOPES = {
    "polyval of polymul": lambda x: kc.polyval(kc.polymul(x, x[:2]), 0.5),
    "polyder": lambda x: kc.sum(kc.polyder(x) ** 2),
    "polyint": lambda x: kc.sum(kc.polyint(x) ** 2),
    "polydiv": lambda x: kc.sum(kc.polydiv(x, x[:2] + 5.0)[0]),
    "poly": lambda x: kc.sum(kc.poly(x) ** 2),
    "unwrap": lambda x: kc.sum(kc.unwrap(x * 5.0) ** 2),
    "block": lambda x: kc.sum(kc.block([[x], [x * x]]) ** 2),
    "resize": lambda x: kc.sum(kc.resize(x, (2, 4)) ** 2),
    "partition": lambda x: kc.sum(kc.partition(x, 1) * kc.arange(5.0)),
    "choose": lambda x: kc.sum(kc.choose(kc.array([0, 1, 0, 1, 1]), [x, x * x])),
    "compress": lambda x: kc.sum(kc.compress([True, False, True], x) ** 2),
    "piecewise": lambda x: kc.sum(kc.piecewise(x, [x < 0], [lambda t: -t, lambda t: t * t])),
    "modf": lambda x: kc.sum(kc.modf(x * 3.0)[0] ** 2),
    "frexp": lambda x: kc.sum(kc.frexp(x)[0] ** 2),
    "ediff1d": lambda x: kc.sum(kc.ediff1d(x) ** 2),
    "multi_dot": lambda x: kc.linalg.multi_dot([x, kc.ones((5, 5)), x]),
    "r_": lambda x: kc.sum(kc.r_[x, 0, x * x]),
}


@pytest.mark.every(4)
@pytest.mark.parametrize("name", SLOPES)
def test_gradient(rng, name):
    function = SLOPES[name]
    x = rng.permutation(np.array([-0.83, -0.61, 0.37, 0.56, 0.71])) + rng.uniform(-0.02, 0.02, 5)
    x = x.astype("f")
    found = kc.grad(lambda t: kc.reshape(function(t), ()))(kc.array(x)).numpy()
    step = 2.0**-8
    wanted = [
        (float(function(kc.array(x + step * e))) - float(function(kc.array(x - step * e))))
        / (2 * step)
        for e in np.eye(5, dtype="f")
    ]
    np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-3 * np.linalg.norm(wanted))


def test_assignments_are_recorded(rng):
    x = kc.array(rng.normal(size=(3, 3)).astype("f"))
    with kc.GradientTape() as tape:
        tape.watch(x)
        y = x * 2.0
        kc.fill_diagonal(y, 7.0)
        kc.put(y, [1], 0.0)
        loss = kc.sum(y)
    wanted = 2.0 * (1 - np.eye(3))
    wanted[0, 1] = 0
    np.testing.assert_array_equal(tape.gradient(loss, x), wanted)


def test_nothing_is_read_that_need_not_be(rng):
    x, n = kc.array(rng.normal(size=(4, 4)).astype("f")), kc.array([0, 1, 2, 1])
    before = host.calls.copy()
    kc.fill_diagonal(x, 1.0)
    kc.put(x, [1, 2], 3.0)
    kc.place(x, x > 0, [1.0, 2.0])
    kc.put_along_axis(x, n[:, None], 5.0, 1)
    kc.polyder(kc.polymul(x[0], x[1]))
    kc.unwrap(x)
    kc.histogramdd(x, bins=2)
    kc.choose(n, [n, n, n])
    kc.frexp(x)
    kc.lexsort((n, n))
    assert host.calls == before


def test_captured(rng):
    x = rng.normal(size=(3, 4)).astype("f")

    @kc.jit
    def f(x):
        y = kc.unwrap(x, axis=0)
        kc.fill_diagonal(y, 0.0)
        return kc.piecewise(y, [y < 0], [0.0, lambda t: t * 2]), kc.mgrid[0:2, 0:2]

    y = np.unwrap(x, axis=0)
    np.fill_diagonal(y, 0)
    for _ in range(2):
        found, grid = f(kc.array(x))
        np.testing.assert_allclose(found, np.where(y < 0, 0, y * 2), rtol=1e-6, atol=1e-6)
        np.testing.assert_array_equal(grid, np.mgrid[0:2, 0:2])


def test_files(rng, tmp_path):
    x = rng.normal(size=(3, 2)).astype("f")
    kc.save(tmp_path / "x.npy", kc.array(x))
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), x)
    np.testing.assert_array_equal(kc.load(tmp_path / "x.npy"), x)
    for write in (kc.savez, kc.savez_compressed):
        write(tmp_path / "x.npz", x, n=[1, 2])
        found = kc.load(tmp_path / "x.npz")
        np.testing.assert_array_equal(found["arr_0"], x)
        assert found["n"].tolist() == [1, 2]
        with pytest.raises(ValueError, match="arr_0"):
            write(tmp_path / "x.npz", x, arr_0=x)


def test_methods_show_their_parameters():
    for name in [
        "sum",
        "mean",
        "prod",
        "any",
        "all",
        "ptp",
        "argmax",
        "argmin",
        "max",
        "min",
        "var",
        "std",
    ]:
        parameters = inspect.signature(getattr(kc.Array, name)).parameters.values()
        assert not [p for p in parameters if p.kind is p.VAR_KEYWORD]
        assert list(parameters)[1].name == "axis"
    assert "initial" in inspect.signature(kc.Array.max).parameters
    assert "ddof" in inspect.signature(kc.Array.std).parameters


@pytest.mark.every(5)
@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("kind", [bool, np.bool_, np.asarray, kc.array])
def test_assignment_by_a_single_bool(rng, flag, shape, kind):
    """A mask of shape () selects everything or nothing."""
    x, y = (np.asarray(rng.normal(size=shape), "f") for _ in range(2))
    found, wanted = kc.array(x), x.copy()
    found[kind(flag)] = y
    wanted[flag] = y
    np.testing.assert_array_equal(found, wanted)
    found[kind(flag)] = np.ones((int(flag), *shape), "f")
    wanted[flag] = np.ones((int(flag), *shape), "f")
    np.testing.assert_array_equal(found, wanted)


def test_numpy_changes_arrays_in_place(rng):
    """NumPy's functions that change their argument change ours, and its own from ours."""
    x = rng.normal(size=(3, 3)).astype("f")
    calls = [
        lambda y: np.fill_diagonal(y, 5.0),
        lambda y: np.put(y, [0, 4], [1.0, 2.0]),
        lambda y: np.place(y, y > 0, [7.0, 8.0]),
        lambda y: np.putmask(y, y < 0, [3.0]),
        lambda y: np.copyto(y, x[0]),
        lambda y: np.put_along_axis(y, np.array([[1], [0], [2]]), 4.0, 1),
    ]
    found, wanted = kc.array(x), x.copy()
    for call in calls:
        call(found)
        call(wanted)
        np.testing.assert_array_equal(found.numpy(), wanted)
    target = np.zeros((3, 3), "f")
    np.copyto(target, found)
    np.testing.assert_array_equal(target, wanted)
    with pytest.raises(TypeError, match="casting"):
        np.copyto(found, x, casting="no")


def test_numpy_stays_on_the_device(rng):
    x = kc.array(rng.normal(size=5).astype("f"))
    before = host.calls["numpy"]
    for found in (np.polymul(x, x), np.unwrap(x), np.ediff1d(x), np.resize(x, 7), np.frexp(x)[0]):
        assert isinstance(found, kc.Array)
    assert host.calls["numpy"] == before


def test_iteration_reads_once(rng, monkeypatch):
    """Elements of a small array share one read; what they stand for later is theirs."""
    host_x = rng.normal(size=(5, 3)).astype("f")
    x = kc.array(host_x) * 2
    reads, to_host = [], kc.engine.to_host
    monkeypatch.setattr(kc.engine, "to_host", lambda node: reads.append(node) or to_host(node))
    rows = list(x)
    assert not reads
    np.testing.assert_array_equal([row.numpy() for row in rows], host_x * 2)
    assert [float(v) for v in rows[1]] == (host_x[1] * 2).tolist()
    assert len(reads) == 2
    rows[0].numpy()[:] = 0  # a copy
    np.testing.assert_array_equal(rows[0], host_x[0] * 2)
    rows[2][1] = 7
    wanted = host_x[2] * 2
    wanted[1] = 7
    np.testing.assert_array_equal(rows[2], wanted)
    y = kc.arange(4)
    found = []
    for v in y:  # assigned while it is iterated over, as NumPy shows it
        found.append(int(v))
        y[:] = y + 1
    assert found == [0, 2, 4, 6]
    slopes = kc.grad(lambda t: sum(float(k) * v for k, v in zip([1, 2], t, strict=True)))(x[0, :2])
    np.testing.assert_array_equal(slopes, [1, 2])
    with pytest.raises(TypeError, match="shape"):
        iter(kc.array(1.0))
