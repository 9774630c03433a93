"""Operands that products of a few rows compute as they read them, such as packed weights."""

import dataclasses

import numpy as np
import pytest

import kerascl as kc
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.skinny import SkinnyMatmul
from tests import profiles

FORMS = ["here", "rtx4090", "malig715"]


@pytest.fixture(params=FORMS)
def form(request, dev, monkeypatch):
    """Products of a few rows are skinny, as on GPUs; "here" without what only these do."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    if request.param != "here":
        info = profiles.disguise(dev.info, profiles.load()[request.param].info)
        monkeypatch.setattr(dev, "info", info)
    return request.param


def packed(numbers, axis):
    """Two numbers of four bits to a byte, along an axis: the first in the low bits."""
    n = np.moveaxis(numbers, axis, 0)
    if len(n) % 2:
        n = np.concatenate([n, np.zeros_like(n[:1])])
    low, high = n[::2].astype(np.uint8) & 15, n[1::2].astype(np.uint8) & 15
    return np.moveaxis((low | high << 4).astype(np.int8), 0, axis)


def unpacked(values, length, axis):
    """The numbers, by operations on whole arrays, as quantised layers do it."""
    moved = kc.moveaxis(values, axis, 0)
    halves = [kc.bitwise_and(moved, 15), kc.bitwise_and(kc.right_shift(moved, 4), 15)]
    signed = [kc.subtract(kc.bitwise_xor(h, 8), 8).astype("int8") for h in halves]
    joined = kc.reshape(kc.stack(signed, 1), (-1, *moved.shape[1:]))
    return kc.moveaxis(joined[:length], 0, axis)


def drawn(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def fours(rng, *shape):
    return rng.integers(-8, 8, shape).astype(np.int8)


def program(function, *args):
    return function.captured(*args).program


def alone(function, *args):
    """Whether nothing but the product runs, whatever adds up its slices."""
    names = [step.name for step in program(function, *args).steps]
    return all("skinny" in name or "reduce" in name for name in names)


def check(found, wanted, tolerance=3e-6):
    found = found.astype("float32").numpy()
    assert found.shape == wanted.shape
    assert np.linalg.norm(found - wanted) <= tolerance * np.linalg.norm(wanted)


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("depth, width", [(96, 64), (1030, 36), (77, 53), (2, 3), (260, 5)])
def test_packed_numbers(depth, width, axis, rows, form, rng):
    x, w = drawn(rng, rows, depth), fours(rng, depth, width)
    function = kc.jit(lambda x, w: x @ unpacked(w, w_shape[axis], axis).astype("float32"))
    w_shape = w.shape
    args = kc.array(x), kc.array(packed(w, axis))
    for _ in range(2):
        check(function(*args), x.astype(np.float64) @ w)
    assert alone(function, *args) or width <= rows  # the long side is x then


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("depth, width, group", [(256, 64, 32), (300, 20, 128), (31, 7, 8)])
def test_groups_with_scales_and_zeros(depth, width, group, axis, form, rng):
    groups = -(-depth // group)
    x, w, zeros = drawn(rng, 2, depth), fours(rng, depth, width), fours(rng, groups, width)
    scales, place = drawn(rng, groups, width), np.arange(depth) // group

    def product(x, w, scales, zeros, place):
        at = place.astype("int32")
        shifted = unpacked(w, (depth, width)[axis], axis) - kc.take(zeros, at, 0).astype("float32")
        return x @ (shifted * kc.take(scales, at, 0))

    function = kc.jit(product)
    values = x, packed(w, axis), scales, zeros, place.astype(np.float32)
    args = [kc.array(v) for v in values]
    weights = (w.astype(np.float64) - zeros[place]) * scales[place]
    check(function(*args), x @ weights)
    # small tables of groups may take more bytes than they save
    assert alone(function, *args) or depth < 100


@pytest.mark.parametrize("rows, width, together", [(1, 48, 8), (2, 48, 8), (3, 48, 4), (1, 44, 4)])
def test_neighbours_of_a_few_rows(rows, width, together, dev, monkeypatch, rng):
    """GPUs compute eight at once for one row or two; each row has sums of its own of them."""
    monkeypatch.setenv("KERASCL_SOLVERS", "skinny")
    info = profiles.disguise(dev.info, profiles.load()["rtx4090"].info)
    monkeypatch.setattr(dev, "info", info)
    x, w, scales = drawn(rng, rows, 300), fours(rng, 300, width), drawn(rng, 3, width)
    place = np.arange(300, dtype=np.int32) // 128

    def product(x, w, scales, place):
        return x @ (unpacked(w, width, 1).astype("float32") * kc.take(scales, place, 0))

    function = kc.jit(product)
    args = kc.array(x), kc.array(packed(w, 1)), kc.array(scales), kc.array(place)
    check(function(*args), x @ (w.astype(np.float64) * scales[place]))
    sources = [step.source for step in program(function, *args).steps]
    assert any(f"#define V {together}\n" in source for source in sources)
    # the packed numbers and the places of their groups are read early, not what waits for these
    lines = {line for source in sources for line in source.splitlines()}
    (early,) = (line for line in lines if line.startswith("#define L_FIRSTS "))
    kinds = [field.split()[0] for field in early.removeprefix("#define L_FIRSTS ").split(";")[:-1]]
    assert kinds == ["int", "uint" if together == 8 else "ushort"]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "float16", "bfloat16"])
def test_groups_out_of_range(kind, scaled, form, rng):
    """What is read side by side is replaced together, each by what a gather of its dtype gives."""
    x, w, zeros = drawn(rng, 2, 64), fours(rng, 64, 48), rng.integers(0, 8, (4, 48)).astype("int8")
    scales, place = drawn(rng, 4, 48), rng.integers(-4, 4, 64).astype(np.float32)
    place[[3, 9, 20]] = 4, -5, 1000 if scaled or "float" not in kind else 3
    if "float" in kind and not scaled:
        place[[3, 9]] = np.nan, -1

    def product(x, w, zeros, scales, place):
        at = place.astype("int32")
        weights = unpacked(w, 48, 1) - kc.take(zeros, at, 0).astype("float32")
        return x @ (weights * kc.take(scales, at, 0) if scaled else weights)

    narrow = kc.array(zeros).astype(kind)
    args = kc.array(x), kc.array(packed(w, 1)), narrow, kc.array(scales), kc.array(place)
    found = kc.jit(product)(*args)
    at = np.nan_to_num(place).astype(int)
    at = np.where(at < 0, at + 4, at)
    inside = (at >= 0) & (at < 4)
    fill = np.nan if "float" in kind else {"int8": -128, "uint8": 255, "int16": -32768}[kind]
    taken = np.where(inside[:, None], zeros[at * inside].astype(np.float64), fill)
    if scaled:
        assert np.isnan(found.numpy()).all()
    else:
        check(found, x.astype(np.float64) @ (w - taken))


@pytest.mark.parametrize("rows", [1, 5])
def test_embeddings_the_other_way_round(rows, form, rng):
    """A table of packed rows, as the matrix that gives a logit for each."""
    x, table, scale = drawn(rng, rows, 64), fours(rng, 500, 64), drawn(rng, 500)
    function = kc.jit(
        lambda x, t, s: (x @ unpacked(t.T, 64, 0).astype("float32")) / s  #
    )
    args = kc.array(x), kc.array(packed(table, 1)), kc.array(scale)
    check(function(*args), x.astype(np.float64) @ table.T / scale)
    assert alone(function, *args)


@pytest.mark.parametrize("transposed", [False, True])
def test_neighbours_are_those_of_the_packed_numbers(transposed, form, rng):
    """Not of what is read beside them, nor of the matrix that they would make."""
    x, w, scales = drawn(rng, 1, 128), fours(rng, 128, 256), drawn(rng, 2, 256)
    place, axis = np.arange(128, dtype=np.int32) // 64, int(not transposed)

    def product(x, w, scales, place):
        return x @ (unpacked(w.T if transposed else w, w_length, axis) * kc.take(scales, place, 0))

    w_length = w.shape[axis]
    stored = packed(w, 0).T if transposed else packed(w, 1)
    function, args = kc.jit(product), [kc.array(v) for v in (x, stored.copy(), scales, place)]
    check(function(*args), x @ (w * scales[place].astype(np.float64)))
    (text,) = {s.source for s in program(function, *args).steps if "skinny" in s.name}
    assert f"#define L_ALONG_K {int(transposed)}\n" in text


@pytest.mark.parametrize("rows", [1, 8])
def test_integers_of_both_sides_are_exact(rows, form, rng):
    x, w = rng.integers(-127, 128, (rows, 130)).astype(np.int8), fours(rng, 130, 44)
    function = kc.jit(lambda x, w: kc.matmul(x, unpacked(w, 44, 1), dtype=kc.int32))
    args = kc.array(x), kc.array(packed(w, 1))
    np.testing.assert_array_equal(function(*args).numpy(), x.astype(np.int32) @ w)
    assert alone(function, *args)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_narrow_weights_are_converted_as_they_are_read(dtype, form, rng):
    x, w = drawn(rng, 2, 200), rng.integers(0, 100, (200, 72)).astype(np.float32)
    narrow = kc.array(w).astype(dtype)
    function = kc.jit(lambda x, w: x @ (w.astype("float32") * 0.25))
    wanted = x.astype(np.float64) @ (narrow.astype("float32").numpy() * 0.25)
    check(function(kc.array(x), narrow), wanted)
    assert alone(function, kc.array(x), narrow)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_values_are_rounded_as_memory_would_hold_them(dtype, form, rng, monkeypatch):
    w = kc.array(rng.integers(-127, 128, (96, 40)).astype(np.int8))
    scale = kc.array(drawn(rng, 40)).astype(dtype)
    x = kc.eye(96)[:3].astype(dtype)  # rows of the weights themselves
    function = kc.jit(lambda x, w, s: x @ (w.astype(dtype) * s))
    found = function(x, w, scale).astype("float32").numpy()
    np.testing.assert_array_equal(found, (w.astype(dtype) * scale).astype("float32").numpy()[:3])
    assert alone(function, x, w, scale)


def test_weights_rounded_on_the_way_to_a_product(form, rng):
    """What layers in float8 do: float weights, through the narrow dtype and back."""
    x, w = drawn(rng, 1, 300), drawn(rng, 300, 64)

    def product(x, w, scale):
        return x @ (kc.clip(w / scale, -448, 448).astype("float8_e4m3fn").astype("float32") * scale)

    function, scale = kc.jit(product), kc.array(np.float32(0.37))
    rounded = kc.array(w / np.float32(0.37)).astype("float8_e4m3fn").astype("float32").numpy()
    check(function(kc.array(x), kc.array(w), scale), x.astype(np.float64) @ rounded * 0.37, 1e-5)
    assert alone(function, kc.array(x), kc.array(w), scale)


def test_a_long_left_operand(form, rng):
    w, x = fours(rng, 90, 50), drawn(rng, 50, 2)
    function = kc.jit(lambda w, x: unpacked(w, 50, 1).astype("float32") @ x)
    args = kc.array(packed(w, 1)), kc.array(x)
    check(function(*args), w.astype(np.float64) @ x)
    assert alone(function, *args)


def test_an_epilogue_and_what_it_reads(form, rng):
    x, w, bias = drawn(rng, 1, 128), fours(rng, 128, 40), drawn(rng, 40)
    function = kc.jit(lambda x, w, b: kc.nn.relu(x @ unpacked(w, 40, 1).astype("float32") + b))
    args = kc.array(x), kc.array(packed(w, 1)), kc.array(bias)
    check(function(*args), np.maximum(x.astype(np.float64) @ w + bias, 0))
    assert alone(function, *args)


def test_equal_products_share_a_launch(form, rng):
    x, ws = drawn(rng, 1, 96), [fours(rng, 96, 32) for _ in range(3)]
    function = kc.jit(lambda x, *ws: [x @ unpacked(w, 32, 1).astype("float32") for w in ws])
    args = kc.array(x), *(kc.array(packed(w, 1)) for w in ws)
    for found, w in zip(function(*args), ws):
        check(found, x.astype(np.float64) @ w)
    assert alone(function, *args)
    assert "multi_gemm_skinny" in program(function, *args).steps[0].name


def test_the_same_in_a_loop(form, rng):
    x, w = drawn(rng, 1, 64), fours(rng, 64, 64)

    def step(x, w):
        return kc.tanh(x @ (unpacked(w, 64, 1).astype("float32") * 0.03))

    function = kc.jit(lambda x, w: kc.fori_loop(0, 5, lambda i, x: step(x, w), x))
    wanted = x.astype(np.float64)
    for _ in range(5):
        wanted = np.tanh(wanted @ w * 0.03)
    args = kc.array(x), kc.array(packed(w, 1))
    check(function(*args), wanted, 1e-5)
    assert program(function, *args).intermediate_bytes < w.size


def expanded(rng, product, *shape):
    """The captured product of packed weights, its arguments and the weights."""
    x, w = drawn(rng, *shape[:-1]), fours(rng, *shape[-2:])
    args = kc.array(x), kc.array(packed(w, 1))
    return kc.jit(product), args, x.astype(np.float64), w


def test_what_others_read_is_computed_once(form, rng):
    def twice(x, w):
        weights = unpacked(w, 40, 1).astype("float32")
        return x @ weights, (x * 2) @ weights

    function, args, x, w = expanded(rng, twice, 2, 64, 40)
    first, second = function(*args)
    check(first, x @ w)
    check(second, 2 * x @ w)
    assert program(function, *args).intermediate_bytes >= 4 * w.size


def test_what_is_wanted_lies_in_memory(form, rng):
    def both(x, w):
        weights = unpacked(w, 40, 1).astype("float32")
        return x @ weights, weights

    function, args, x, w = expanded(rng, both, 2, 64, 40)
    found, weights = function(*args)
    check(found, x @ w)
    np.testing.assert_array_equal(weights.numpy(), w)


def test_both_operands_are_one(form, rng):
    w = fours(rng, 8, 8)
    function = kc.jit(lambda w: (y := unpacked(w, 8, 1).astype("float32")) @ y)
    check(function(kc.array(packed(w, 1))), w.astype(np.float64) @ w)


def test_many_rows_read_what_was_expanded(form, rng):
    def product(x, w):
        return x @ unpacked(w, 40, 1).astype("float32")

    function, args, x, w = expanded(rng, product, 40, 64, 40)
    check(function(*args), x @ w)
    assert program(function, *args).intermediate_bytes >= 4 * w.size


def test_sums_of_large_arrays_are_not_read_as_such(form, rng):
    """They take more bytes than what they make."""
    x, a, b = drawn(rng, 1, 64), drawn(rng, 64, 40), drawn(rng, 64, 40)
    function = kc.jit(lambda x, a, b: x @ (a + b))
    args = [kc.array(v) for v in (x, a, b)]
    check(function(*args), x.astype(np.float64) @ (a.astype(np.float64) + b))
    assert program(function, *args).intermediate_bytes >= a.nbytes


def test_batches_read_what_was_expanded(form, rng):
    x, w = drawn(rng, 3, 2, 64), fours(rng, 3, 64, 40)
    function = kc.jit(lambda x, w: x @ unpacked(w, 40, 2).astype("float32"))
    args = kc.array(x), kc.array(packed(w, 2))
    check(function(*args), x.astype(np.float64) @ w)


def test_operands_made_of_nothing(form):
    """Numbers that follow from their place alone."""
    function = kc.jit(lambda x: x @ (kc.arange(48 * 20).reshape(48, 20).astype("float32") % 7))
    x = np.arange(48, dtype=np.float32)[None]
    check(function(kc.array(x)), x.astype(np.float64) @ (np.arange(48 * 20).reshape(48, 20) % 7))
    assert alone(function, kc.array(x))


@pytest.mark.parametrize("rows", [1, 20])
def test_a_gather_of_a_few_packed_rows_leaves_the_others_packed(rows, rng):
    table, ids = fours(rng, 400, 32), rng.integers(0, 400, rows)
    function = kc.jit(lambda t, i: kc.take(unpacked(t, 32, 1), i, 0).astype("float32") * 0.5)
    args = kc.array(packed(table, 1)), kc.array(ids.astype(np.int32))
    np.testing.assert_array_equal(function(*args).numpy(), table[ids] * np.float32(0.5))
    assert program(function, *args).intermediate_bytes == 0


def slightly_more(self, problem, info):
    """A microsecond more than the cheapest other solver."""
    others = (s for s in matmul.SOLVERS if not isinstance(s, SkinnyMatmul))
    return 1 + min(s.cost(problem, info) for s in others if s.applies(problem, info))


@pytest.mark.parametrize("card", ["rtx4090", "malig715"])
def test_packed_weights_decide_which_kernel_multiplies(card, dev, rng, monkeypatch):
    """Another one than for the same weights in memory, if that saves to lay them out there."""
    info = profiles.disguise(dev.info, profiles.load()[card].info)
    # under a name that no choice is known of; otherwise what was measured here decides
    monkeypatch.setattr(dev, "info", dataclasses.replace(info, name=f"{card} with a rival"))
    monkeypatch.setattr(SkinnyMatmul, "cost", slightly_more)
    x, w, scale = drawn(rng, 8, 768), fours(rng, 768, 3072), drawn(rng, 3072)
    given = kc.array(x)
    plain, wide = kc.jit(lambda x, w: x @ w), kc.array(w.astype(np.float32))
    check(plain(given, wide), x.astype(np.float64) @ w)
    assert not any("skinny" in step.name for step in program(plain, given, wide).steps)
    function = kc.jit(lambda x, w: x @ unpacked(w, 3072, 1).astype("float32"))
    args = given, kc.array(packed(w, 1))
    check(function(*args), x.astype(np.float64) @ w)
    assert alone(function, *args)
    # of as many bytes as they have themselves, they are laid out as before
    scaled, args = kc.jit(lambda x, w, s: x @ (w * s)), (given, wide, kc.array(scale))
    check(scaled(*args), x.astype(np.float64) @ (w * scale.astype(np.float64)))
    assert not any("skinny" in step.name for step in program(scaled, *args).steps)


@pytest.fixture
def panels(dev, monkeypatch):
    """Products as CPUs compute them."""
    if dev.info.kind != "cpu":
        pytest.skip("panels are for CPUs")
    monkeypatch.setenv("KERASCL_SOLVERS", "panels")


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(
    "depth, width", [(96, 64), (1300, 36), (77, 54), (3, 6), (200, 518), (30_000, 140)]
)
def test_processors_unpack_columns_for_their_panels(depth, width, rows, panels, rng):
    x, w = drawn(rng, rows, depth), fours(rng, depth, width)
    function = kc.jit(lambda x, w: x @ unpacked(w, width, 1).astype("float32"))
    args = kc.array(x), kc.array(packed(w, 1))
    check(function(*args), x.astype(np.float64) @ w)
    names = [step.name for step in program(function, *args).steps]
    assert all("gemm" in name for name in names)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float16", "bfloat16"])
@pytest.mark.parametrize("width", [37, 64])
def test_processors_convert_narrow_weights_for_their_panels(width, dtype, panels, rng):
    x, w = drawn(rng, 2, 200), rng.integers(0, 100, (200, width)).astype(np.float32)
    narrow = kc.array(w).astype(dtype)
    function = kc.jit(lambda x, w: kc.nn.relu(x @ (w.astype("float32") * 0.25) - 1))
    wanted = x.astype(np.float64) @ (narrow.astype("float32").numpy() * 0.25) - 1
    found = function(kc.array(x), narrow).numpy()
    # of what relu leaves, little may be left of large sums
    error = np.linalg.norm(found - np.maximum(wanted, 0))
    assert found.shape == wanted.shape and error <= 5e-6 * np.linalg.norm(wanted)
    assert program(function, kc.array(x), narrow).intermediate_bytes < 4 * max(w.size, 1 << 16)


@pytest.mark.parametrize("width", [5, 64])
def test_processors_make_panels_of_nothing(width, panels, rng):
    """Numbers that follow from their place alone, or are all the same: no memory is read."""
    x = drawn(rng, 2, 48)
    places = np.arange(48 * width).reshape(48, width) % 7
    numbers = kc.jit(
        lambda x: x @ (kc.arange(48 * width).reshape(48, width).astype("float32") % 7)
    )
    check(numbers(kc.array(x)), x.astype(np.float64) @ places)
    ones = kc.jit(lambda x: x @ kc.ones((48, width)))
    check(ones(kc.array(x)), x.astype(np.float64) @ np.ones((48, width)))


@pytest.mark.parametrize("rows", [1, 5])
def test_processors_expand_what_gives_no_vectors(rows, panels, rng):
    """Numbers packed along the depth, and scales that are found at computed places."""
    x, w, scales = drawn(rng, rows, 96), fours(rng, 96, 40), drawn(rng, 3, 40)
    deep = kc.jit(lambda x, w: x @ unpacked(w, 96, 0).astype("float32"))
    args = kc.array(x), kc.array(packed(w, 0))
    check(deep(*args), x.astype(np.float64) @ w)
    place = np.arange(96, dtype=np.int32) // 32
    grouped = kc.jit(lambda x, w, s, i: x @ (unpacked(w, 40, 1) * kc.take(s, i, 0)))
    more = kc.array(x), kc.array(packed(w, 1)), kc.array(scales), kc.array(place)
    check(grouped(*more), x.astype(np.float64) @ (w * scales[place].astype(np.float64)))
    for function, given in (deep, args), (grouped, more):
        assert any("map" in step.name for step in program(function, *given).steps)
