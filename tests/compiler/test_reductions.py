"""Reductions as they are laid out for GPUs, run on whatever device there is."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc

REDUCTIONS = {
    "sum": (kc.sum, np.sum),
    "mean": (kc.mean, np.mean),
    "max": (kc.max, np.max),
    "prod": (kc.prod, np.prod),
    "any": (lambda x, axes: kc.any(x > 3, axes), lambda x, axes: np.any(x > 3, axes)),
}
PLACES = [((640, 33), (0,)), ((33, 640), (1,)), ((9, 7, 11, 40), (0, 1, 2)), ((5, 300, 7), (1,)),
          ((4, 13, 100), (0, 2)), ((6000,), (0,)), ((35, 3), (0,))]  # fmt: skip


@pytest.fixture(params=[1, 200], ids=["one group a row", "many groups"])
def gpu(as_gpu, request):
    """The device, as if it were a small or a large GPU."""
    as_gpu(request.param)


@pytest.fixture
def folds_made(launches):
    """The launches of every reduction that is generated."""
    return launches["reduction_kernels"]


@pytest.mark.every(3)
@pytest.mark.parametrize("shape, axes", PLACES)
@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_reductions(gpu, rng, shape, axes, name, captured):
    ours, reference = REDUCTIONS[name]
    host = rng.normal(1, 0.01 if name == "prod" else 1, shape).astype(np.float32)
    function = (lambda x: ours(x, axes)) if not captured else kc.jit(lambda x: ours(x, axes))
    found = function(kc.array(host)).numpy()
    expected = reference(host.astype(np.float64), axes)
    if name == "any":
        np.testing.assert_array_equal(found, expected)
    else:
        # a product of thousands rounds thousands of times
        np.testing.assert_allclose(found, expected, rtol=1e-5 if name == "prod" else 3e-6)


@pytest.mark.parametrize("shape, axes", [place for place in PLACES if len(place[1]) == 1])
def test_places_of_extremes(gpu, rng, shape, axes):
    host = rng.integers(0, 50, shape).astype(np.int32)  # with ties
    found = kc.argmax(kc.array(host), axes[0]).numpy()
    np.testing.assert_array_equal(found, np.argmax(host, axes[0]))


@pytest.mark.parametrize("shape, axes", PLACES)
@pytest.mark.parametrize("mean", [0.0, 1000.0])
def test_moments(gpu, rng, shape, axes, mean):
    host = rng.normal(mean, 1, shape).astype(np.float32)
    means, variances = kc.nn.moments(kc.array(host), axes)
    wide = host.astype(np.float64)
    np.testing.assert_allclose(means.numpy(), wide.mean(axes), rtol=3e-6, atol=1e-6)
    np.testing.assert_allclose(variances.numpy(), wide.var(axes), rtol=2e-5)


def test_what_is_stored_on_the_way_and_what_a_row_needs(gpu, rng, folds_made):
    """A map, its sum and its update: row values are read once, several elements at a time."""
    x, y = (rng.normal(size=(700, 36)).astype(np.float32) for _ in range(2))
    scale, shift = (rng.uniform(1, 2, 36).astype(np.float32) for _ in range(2))

    @kc.jit
    def function(x, y, scale, shift):
        z = x * kc.sqrt(scale) / shift + y
        return z, kc.sum(z, 0), kc.sum(z * x, 0) + shift

    z, total, product = (a.numpy() for a in function(*map(kc.array, (x, y, scale, shift))))
    wide = x.astype(np.float64) * np.sqrt(scale.astype(np.float64)) / shift + y
    np.testing.assert_allclose(z, wide, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total, wide.sum(0), rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(product, (wide * x).sum(0) + shift, rtol=1e-4, atol=1e-3)
    (text,) = (x.source.text for x in folds_made if "sqrt" in x.source.text)
    assert "sqrt" not in text[text.index("for (;") :]
    assert "r_1" in text


def test_narrow_values_are_read_sixteen_at_a_time(gpu, rng, folds_made):
    host = rng.integers(-4, 5, (5000, 33)).astype(ml_dtypes.bfloat16)
    x = kc.array(host)
    found = kc.jit(lambda x: kc.sum(x.astype("float32") * 2, 0))(x)
    np.testing.assert_array_equal(found.numpy(), 2 * host.astype(np.float32).sum(0))
    texts = [x.source.text for x in folds_made]
    assert any("r_15" in text and "r_16" not in text for text in texts)


def test_rows_that_are_read_again(gpu, rng):
    host = rng.normal(size=(70, 500)).astype(np.float32)
    found = kc.nn.softmax(kc.array(host)).numpy()
    wide = np.exp(host.astype(np.float64))
    np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 6, 130])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 7])
def test_few_rows_of_few_elements(as_gpu, rng, rows, length):
    """As of two classes: a work-item a row, and no fewer."""
    as_gpu(200)
    host = rng.normal(size=(rows, length)).astype(np.float32)
    found = kc.jit(kc.nn.softmax)(kc.array(host)).numpy()
    wide = np.exp(host.astype(np.float64))
    np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 3])
def test_few_rows_are_read_before_they_are_divided(as_gpu, rng, folds_made, rows):
    """Compilers leave a read behind a division; up to 32 elements of all that is read of a row are
    kept, others read in turns."""
    as_gpu(200)

    @kc.jit
    def function(x, scale, divisor):
        return kc.nn.softmax(x.astype("float32") / (scale * divisor))

    ways = set()
    for length in 300, 1000, 2048, 5000:
        host = rng.integers(-3000, 3000, (rows, length)).astype(np.int32)
        scale, divisor = rng.uniform(50, 90, length), rng.uniform(5, 9, (rows, 1))
        scale, divisor = scale.astype(np.float32), divisor.astype(np.float32)
        found = function(*map(kc.array, (host, scale, divisor))).numpy()
        wide = np.exp(host / (scale.astype(np.float64) * divisor))
        np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=1e-5)
        launch = folds_made[-1]
        lines = launch.source.text.splitlines()
        divided = next(k for k, line in enumerate(lines) if " / val" in line)
        read = [k for k, line in enumerate(lines) if "= buf0[" in line or "= buf1[" in line]
        each = -(-length // launch.local_size[0])
        kept = each * (2 if rows == 1 else 1) <= 32  # of one row the scales are a row, too
        early = sum(k < divided for k in read)
        assert early == 2 * each == len(read) if kept else early > 2
        ways.add(kept)
    assert ways == {True, False}


@pytest.mark.parametrize("length, threads", [(16383, 256), (33001, 512), (50257, 1024)])
def test_long_rows_have_large_groups(dev, rng, monkeypatch, launches, length, threads):
    """Odd rows of 16 bits; not-a-numbers, infinities and rows of these alone stay in theirs."""
    info = dataclasses.replace(dev.info, kind="gpu", max_work_group_size=1024, compute_units=2)
    monkeypatch.setattr(dev, "info", info)
    monkeypatch.setattr(kc.engine, "programs", {})
    host = (rng.normal(size=(6, length)) * 3).astype(ml_dtypes.bfloat16)
    host[1, rng.integers(length)] = np.nan
    host[2, rng.integers(length)] = np.inf
    host[3] = -np.inf
    host[4, : length // 2] = -np.inf
    found = kc.jit(lambda x: kc.nn.softmax(x.astype("float32")))(kc.array(host)).numpy()
    (launch,) = launches["reduction_kernels"]
    assert launch.local_size[0] == threads
    with np.errstate(all="ignore"):
        wide = host.astype(np.float64)
        wide = np.exp(wide - wide.max(1, keepdims=True))
        expected = wide / wide.sum(1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-38)


def test_an_update_in_place_beside_its_reduction(gpu, rng):
    host = rng.normal(size=(900, 20)).astype(np.float32)
    state = kc.State(kc.array(host))

    @kc.jit
    def step():
        total = kc.sum(state.value * state.value, 0)
        state.assign(state.value * 0.5)
        return total

    for turn in range(3):
        wide = host.astype(np.float64) * 0.5**turn
        np.testing.assert_allclose(step().numpy(), (wide**2).sum(0), rtol=1e-5)
    np.testing.assert_allclose(state.value.numpy(), host * 0.125, rtol=1e-6)


@pytest.mark.parametrize("length", [9, 33, 40, 64, 250])
def test_short_rows_are_read_once(gpu, rng, folds_made, length):
    """Two stages, a map that is stored on the way, a State that is overwritten, places, a mask."""
    rows = 2000 if length > 64 else 6500  # many enough for the larger GPU
    host, other = (rng.normal(3, 1, (rows, length)).astype(np.float32) for _ in range(2))
    gamma, beta = (rng.normal(size=length).astype(np.float32) for _ in range(2))
    state = kc.State(kc.array(host))

    @kc.jit
    def step(other, gamma, beta):
        x = state.value + other
        mean = kc.mean(x, 1, keepdims=True)
        centred = x - mean
        deviation = kc.sqrt(kc.mean(centred * centred, 1, keepdims=True))
        state.assign(centred / deviation * gamma + beta)
        return x, mean, kc.argmax(kc.round(x), 1), kc.max(kc.where(x > 7, -x, x), 1)

    found = [y.numpy() for y in step(*map(kc.array, (other, gamma, beta)))]
    x = host + other
    wide = x.astype(np.float64)
    normal = (wide - wide.mean(1, keepdims=True)) / wide.std(1, keepdims=True) * gamma + beta
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_allclose(found[1][:, 0], wide.mean(1), rtol=1e-6)
    np.testing.assert_array_equal(found[2], np.argmax(np.round(x), 1))
    np.testing.assert_array_equal(found[3], np.where(x > 7, -x, x).max(1))
    np.testing.assert_allclose(state.value.numpy(), normal, rtol=1e-4, atol=1e-4)
    staged = [x.source.text for x in folds_made if "sqrt" in x.source.text]
    assert staged and all("for (; " not in text for text in staged)


@pytest.mark.parametrize("arrays", [1, 2, 3, 4, 5, 6, 7])
def test_short_rows_of_several_arrays(gpu, rng, arrays):
    """The more of them, the fewer elements of each stay in registers; then none."""
    hosts = [rng.normal(size=(4500, 50)).astype(np.float32) for _ in range(arrays)]

    @kc.jit
    def function(*xs):
        total = sum(kc.sum(x * (n + 1), 1, keepdims=True) for n, x in enumerate(xs))
        return sum(xs[1:], xs[0]) - total

    wide = [x.astype(np.float64) for x in hosts]
    total = sum((n + 1) * x.sum(1, keepdims=True) for n, x in enumerate(wide))
    found = function(*map(kc.array, hosts)).numpy()
    np.testing.assert_allclose(found, sum(wide) - total, rtol=1e-5, atol=1e-4)


def test_few_or_long_rows_are_read_in_loops(as_gpu, rng, folds_made):
    as_gpu(8)
    for shape in ((60, 64), (3000, 6000)):
        host = rng.normal(size=shape).astype(np.float32)
        found = kc.jit(kc.nn.softmax)(kc.array(host)).numpy()
        wide = np.exp(host.astype(np.float64))
        np.testing.assert_allclose(found, wide / wide.sum(1, keepdims=True), rtol=1e-5)
    assert all("for (; " in launch.source.text for launch in folds_made)


@pytest.mark.parametrize("mean", [0.0, 1000.0])
@pytest.mark.parametrize("length", [20, 64, 99])
def test_moments_of_short_rows(gpu, rng, folds_made, length, mean):
    """With the sum beside them or not; the rows are read again, so they stay in registers."""
    host = rng.normal(mean, 1, (4500, length)).astype(np.float32)

    @kc.jit
    def both(x):
        means, variances = kc.nn.moments(x, 1, keepdims=True)
        return (x - means) * kc.rsqrt(variances), variances

    @kc.jit
    def one(x):
        return x * kc.nn.moments(x, 1, keepdims=True)[1]

    wide = host.astype(np.float64)
    variances = wide.var(1, keepdims=True)
    normal, found = (y.numpy() for y in both(kc.array(host)))
    np.testing.assert_allclose(found, variances, rtol=3e-6)
    error = normal - (wide - wide.mean(1, keepdims=True)) / np.sqrt(variances)
    error *= np.minimum(1, np.sqrt(variances))  # which divides the roundings of the row's sum
    assert np.abs(error).max() < 2e-6 + 4e-7 * mean
    np.testing.assert_allclose(one(kc.array(host)).numpy(), wide * variances, rtol=3e-6)
    assert all("for (; " not in launch.source.text for launch in folds_made)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rows, length", [(1, 512), (2, 401), (7, 300), (8, 129)])
def test_rows_with_a_compute_unit_each(as_gpu, rng, folds_made, rows, length, dtype):
    """They are read once, and nothing is read after a barrier."""
    as_gpu(8)
    x, gamma, beta = (
        kc.array(rng.normal(3, 1, n).astype(np.float32)).astype(dtype)
        for n in ((rows, length), length, length)
    )

    @kc.jit
    def norm(x, gamma, beta):
        mean, variance = kc.nn.moments(x, 1, keepdims=True)
        return (x - mean) * kc.rsqrt(variance + 1e-5) * gamma + beta

    found = norm(x, gamma, beta).astype("float32").numpy()
    x, gamma, beta = (y.astype("float32").numpy().astype(np.float64) for y in (x, gamma, beta))
    wanted = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * gamma + beta
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    assert error < (2e-6 if dtype == "float32" else 1e-2)
    if dtype == "bfloat16" and "keeps_choices_wrongly" in kc.array(0).device.info.quirks:
        return  # conversions among them
    for launch in folds_made:
        text = launch.source.text
        before, _, after = text.partition("barrier")
        assert "for (; " not in text
        assert all(f"= {name}" not in after for name in ("buf0[", "buf1[", "buf2["))
        assert all(f"{name}[" in before for name in ("buf0", "buf1", "buf2"))


@pytest.mark.parametrize("count", [3, 17, 62, 1003])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_slope_of_an_extreme_goes_where_it_lies(dev, count, dtype, rng):
    """Also where the compiler computes sin(x) otherwise beside cos(x), or in a loop's remainder."""
    if dtype == "float64" and not dev.info.fp64:
        pytest.skip("the device has no float64")
    functions = [(kc.sin, np.sin, np.cos), (kc.cos, np.cos, lambda x: -np.sin(x)),
                 (kc.exp, np.exp, np.exp)]  # fmt: skip
    for shape, axis in (((count,), None), ((5, count), 1), ((count, 5), 0)):
        # no two so near, or so near to where cos(x) is level, that their results are equal
        x = rng.permuted(np.linspace(0.1, 1, int(np.prod(shape)))).reshape(shape)
        x = x.astype(dtype)
        for ours, theirs, slope in functions:
            for extreme, reduce in (("max", kc.max), ("min", kc.min)):

                def total(x, f=ours, reduce=reduce, axis=axis):
                    return kc.sum(reduce(f(x), axis))

                y = theirs(x.astype("float64"))
                hit = y == getattr(y, extreme)(axis=axis, keepdims=True)
                wanted = np.where(hit, slope(x.astype("float64")), 0)
                for gradient in (kc.grad(total), kc.jit(kc.grad(total))):
                    found = gradient(kc.array(x)).numpy()
                    np.testing.assert_allclose(found, wanted, 0, 1e-6)


@pytest.mark.parametrize("length", [3, 9, 32, 65])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_integers_padded_at_both_ends_are_summed(dtype, length, rng):
    """Intel's runtime crashes where a loop of odd length compares twice for that."""
    x = rng.integers(0, 1000, length).astype(dtype)
    found = kc.jit(lambda x: kc.sum(kc.pad(x, 1)))(kc.array(x))
    assert int(found) == int(x.sum())
