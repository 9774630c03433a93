"""A softmax' maximum and sum in one pass over its rows, as GPUs have it; run on whatever device
there is."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc

# rows that are longer than registers hold, of odd lengths and of whole vectors; long sums of sums
LENGTHS = [9001, 16384, 50304]


@pytest.fixture(params=[256, 1024])
def group(request):
    return request.param


@pytest.fixture
def texts(as_gpu, launches, group, dev):
    """The device with the work-groups of a GPU; gives what is generated for reductions."""
    as_gpu(2, min(group, dev.info.max_work_group_size))
    return lambda: [x.source.body for x in launches["reduction_kernels"]]


def softmax(wide):
    with np.errstate(all="ignore"):
        e = np.exp(wide - wide.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)


def rows_of_all_kinds(rng, length):
    """Growing and falling rows, minus infinity in parts and alone, infinity, NaN, large numbers."""
    host = rng.normal(size=(12, length)) * 3
    host[1] = np.linspace(-80, 80, length)
    host[2] = np.linspace(80, -80, length)
    host[3, : length // 2] = -np.inf
    host[4, length // 2 :] = -np.inf
    host[5] = -np.inf
    host[6] = -np.inf
    host[6, rng.integers(length)] = 3
    host[7, rng.integers(length)] = np.inf
    host[8, rng.integers(length)] = np.nan
    host[9] = -1e30
    host[10, ::2] = -np.inf
    host[11] -= 200
    return host.astype(np.float32)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("way", [kc.jit, lambda function: function], ids=["captured", "eager"])
def test_softmax(texts, rng, way, dtype, length, group, dev):
    x = kc.array(rows_of_all_kinds(rng, length)).astype(dtype)
    found = way(lambda x: kc.nn.softmax(x.astype("float32")))(x).numpy()
    wide = x.astype("float32").numpy().astype(np.float64)
    np.testing.assert_allclose(found, softmax(wide), rtol=2e-5, atol=1e-38)
    if "keeps_choices_wrongly" not in x.device.info.quirks:
        assert any("top" in body for body in texts())
        if length % 8 == 0:  # elsewhere vectors may begin and end beside rows
            assert any("least" in body for body in texts())
        # rows that are long enough for groups of so many; eager kernels read no vectors
        keeps = length == LENGTHS[-1] and min(group, dev.info.max_work_group_size) == 1024
        keeps = keeps and way is kc.jit
        assert any("= kept" in body for body in texts()) == keeps


@pytest.mark.parametrize("length", LENGTHS)
def test_losses_and_slopes_of_classes(texts, rng, length):
    """As a language model's: some columns are none of the classes, some targets none."""
    host = (rng.normal(size=(40, length)) * 4).astype(ml_dtypes.bfloat16)
    classes = length - 47
    target = rng.integers(0, classes, 40)
    target[3], target[7] = -1, classes

    @kc.jit
    def function(x, target):
        with kc.GradientTape() as tape:
            tape.watch(x)
            logits = x[:, :classes].astype("float32")
            loss = kc.nn.sparse_categorical_crossentropy(target, logits, from_logits=True)
        return loss, tape.gradient(loss, x)

    loss, slope = function(kc.array(host), kc.array(target.astype(np.int32)))
    wide = host[:, :classes].astype(np.float64)
    p = softmax(wide)
    inside = (target >= 0) & (target < classes)
    at = np.where(inside, target, 0)
    wanted = np.where(inside, -np.log(p[np.arange(40), at]), 0)
    assert np.linalg.norm(loss.numpy() - wanted) <= 2e-6 * np.linalg.norm(wanted)
    p[np.arange(40), at] -= 1
    p[~inside] = 0
    found = slope.astype("float32").numpy()
    assert not found[:, classes:].any()
    assert np.linalg.norm(found[:, :classes] - p) <= 4e-3 * np.linalg.norm(p)


def test_what_is_no_such_sum(texts, rng):
    """Exponentials of something else, and sums that grow by more than that."""
    host = rng.normal(size=(12, 9000)).astype(np.float32)

    @kc.jit
    def function(x):
        most = kc.max(x, 1, keepdims=True)
        halves = kc.sum(kc.exp((x - most) * 0.5), 1)
        shifted = kc.sum(kc.exp(x - most) + most, 1)
        return halves, shifted, x - most

    wide = host.astype(np.float64)
    most = wide.max(1, keepdims=True)
    halves, shifted, rest = (y.numpy() for y in function(kc.array(host)))
    np.testing.assert_allclose(halves, np.exp((wide - most) / 2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(shifted, (np.exp(wide - most) + most).sum(1), rtol=1e-5)
    np.testing.assert_allclose(rest, wide - most, rtol=1e-6, atol=1e-6)
    assert not any("top" in body for body in texts())


def test_sums_beside_maxima_of_something_else(texts, rng):
    """The maximum is of other values than those of the exponentials."""
    x, y = (rng.normal(size=(12, 9000)).astype(np.float32) for _ in range(2))

    @kc.jit
    def function(x, y):
        most = kc.max(y, 1, keepdims=True)
        total = kc.sum(kc.exp(x - most), 1, keepdims=True)
        return kc.exp(x - most) / total, total, most * 2

    found = [v.numpy() for v in function(kc.array(x), kc.array(y))]
    wide, most = x.astype(np.float64), y.astype(np.float64).max(1, keepdims=True)
    e = np.exp(wide - most)
    np.testing.assert_allclose(found[0], e / e.sum(1, keepdims=True), rtol=2e-5)
    np.testing.assert_allclose(found[1], e.sum(1, keepdims=True), rtol=2e-5)
    np.testing.assert_array_equal(found[2], 2 * y.max(1, keepdims=True))


def test_sums_far_above_a_maximum_of_something_else(texts, rng):
    """What is summed may be greater than the maximum so far, by more than a float holds."""
    length = 9000
    x = np.full((12, length), 100, np.float32)
    y = np.tile(np.linspace(0, 100, length, dtype=np.float32), (12, 1))
    y[5:] = -np.inf
    x[6], x[7, 9], x[8] = -np.inf, np.nan, -200

    @kc.jit
    def function(x, y):
        most = kc.max(y, 1, keepdims=True)
        return kc.sum(kc.exp(x - most), 1)

    found = function(kc.array(x), kc.array(y)).numpy()
    with np.errstate(all="ignore"):
        wide = np.exp(x.astype(np.float64) - y.astype(np.float64).max(1, keepdims=True)).sum(1)
    np.testing.assert_allclose(found, wide, rtol=1e-5)


@pytest.mark.parametrize("chosen", ["in both", "in the sum alone", "by another"])
def test_masks(texts, rng, chosen):
    """Of rows without an element the sum is 0, whatever lies behind the mask."""
    host = rows_of_all_kinds(rng, 9000)
    mask = rng.random(host.shape) < 0.5
    mask[[0, 5, 8]] = False
    mask[1, ::2], mask[7], mask[8, 5], mask[11] = False, np.isfinite(host[7]), False, host[11] > -1
    other = rng.random(host.shape) < 0.5

    @kc.jit
    def function(x, mask, other):
        of_most = {"in both": mask, "in the sum alone": x == x, "by another": other}[chosen]
        filled = x if chosen == "in the sum alone" else kc.where(of_most, x, -np.inf)
        most = kc.max(filled, 1, keepdims=True)
        e = kc.where(mask, kc.exp(x - most), 0)
        total = kc.sum(e, 1, keepdims=True)
        return total, most, e / total

    with np.errstate(all="ignore"):
        wide = host.astype(np.float64)
        behind = {"in both": mask, "in the sum alone": True, "by another": other}[chosen]
        most = np.where(behind, wide, -np.inf).max(1, keepdims=True)
        e = np.where(mask, np.exp(wide - most), 0)
        total = e.sum(1, keepdims=True)
        wanted = total, most, e / total
    for found, want in zip(function(*map(kc.array, (host, mask, other))), wanted):
        np.testing.assert_allclose(found.numpy(), want.astype(np.float32), rtol=2e-5, atol=1e-37)
    lanes = "keeps_choices_wrongly" in kc.array(host).device.info.quirks
    if not lanes:
        assert any("top" in body for body in texts()) == (chosen == "in both")
