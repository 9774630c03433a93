"""Maps as they are laid out for GPUs, run on whatever device there is."""

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate import maps, transposed

SHAPES = [
    (6000,),
    (97, 61),
    (301, 64),
    (60, 96),
    (19, 576),
    (40, 128),
    (33, 192),
    (5, 37, 64),
    (7, 1, 999),
    (4097, 3),
]


@pytest.fixture
def maps_made(as_gpu, launches):
    """The device as if it were a small GPU, and the launches of every map that is generated."""
    as_gpu(1)
    return launches["map_kernel"]


def several(launches) -> list[str]:
    """The texts of those whose work-items have several elements that lie apart."""
    return [x.source.text for x in launches if "else for" in x.source.text]


def vectors(launches) -> list[str]:
    """The texts of those whose work-items have vectors of neighbours."""
    return [x.source.text for x in launches if "KCL_STORE_VECTOR4(" in x.source.body]


def table(rng, shape, dtype):
    return rng.normal(size=shape).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_columns_and_scalars(maps_made, rng, shape, dtype, captured):
    """Whole values, values of a column and a scalar; every element is written once."""
    x, y = (rng.integers(-8, 8, shape).astype(dtype) for _ in range(2))
    column, scalar = rng.integers(1, 4, shape[-1:]).astype(dtype), np.asarray(3, dtype)

    def function(x, y, column, scalar):
        total = x * column + y
        return total, total - scalar * column

    run = kc.jit(function) if captured else function
    found = run(*map(kc.array, (x, y, column, scalar)))
    wide = [a.astype(np.float64) for a in (x, y, column, scalar)]
    for ours, expected in zip(found, function(*wide), strict=True):
        np.testing.assert_array_equal(ours.numpy().astype(np.float64), expected)
    assert all(launch.local_size <= (64,) for launch in maps_made)
    large = x.size >= 64 * maps.GROUPS * maps.TOGETHER
    # one row is read by vectors, as nothing is read again
    assert bool(vectors(maps_made)) == (large and x.ndim == 1 and x.size % 4 == 0)
    assert bool(several(maps_made)) == (large and not vectors(maps_made))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int8, np.complex64], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_neighbours_are_vectors(maps_made, rng, shape, dtype, captured):
    """Several results of several types, one value for all and one for each row, also where rows
    begin anywhere; every element is written once."""
    x, y = (rng.integers(-8, 8, shape).astype(dtype) for _ in range(2))
    row, scalar = rng.integers(1, 4, (*shape[:-1], 1)).astype(dtype), np.asarray(3, dtype)

    def function(x, y, row, scalar):
        total = x * scalar + y
        return total, total - row, (total == y)

    run = kc.jit(function) if captured else function
    found = run(*map(kc.array, (x, y, row, scalar)))
    wide = [a.astype(np.complex128) for a in (x, y, row, scalar)]
    for ours, expected in zip(found, function(*wide), strict=True):
        np.testing.assert_array_equal(ours.numpy().astype(np.complex128), expected)
    large = x.size >= 64 * maps.GROUPS * maps.TOGETHER
    assert bool(vectors(maps_made)) == (large and shape[-1] % 4 == 0)


def test_rows_that_are_cut_and_moved_by_vectors(maps_made, rng):
    """Reads that begin at other elements than vectors, and in other rows."""
    x = table(rng, (130, 48), "f")

    def function(m, x):
        return x[3:, 4:44] * 2, x[:, 1:41] + 1, x[:, ::2] - x[:, 24:], m.flip(x, 0) + x

    for ours, expected in zip(function(kc, kc.array(x)), function(np, x), strict=True):
        np.testing.assert_array_equal(ours.numpy(), expected)
    assert vectors(maps_made) and several(maps_made)


def test_columns_are_read_once(maps_made, rng):
    x, scale = table(rng, (600, 64), "f"), rng.uniform(1, 2, 64).astype("f")
    found = kc.jit(lambda x, scale: x / kc.sqrt(scale))(kc.array(x), kc.array(scale))
    np.testing.assert_allclose(found.numpy(), x / np.sqrt(scale), rtol=1e-6)
    (text,) = several(maps_made)
    assert text.count("sqrt") == 2  # for the elements at once, and in the remainder's loop


def test_groups_match_rows():
    widths = (1, 24, 64, 96, 144, 192, 256, 576, 960, 1280, 1001)
    found = {columns: maps._matching(columns, 256, 1024) for columns in widths}
    assert found[1] == found[64] == found[256] == found[1280] == 256
    assert found[1001] == 256  # nothing fits
    assert all(maps._matching(c, 256, 256) <= 256 for c in widths)  # as many devices have it
    for columns in (24, 96, 144, 192, 576, 960):
        size = found[columns]
        assert 128 <= size < 512 and size % 32 == 0
        assert size % columns == 0 or columns % size == 0


@pytest.mark.parametrize("name", ["transpose", "concat", "flip", "gather", "pad"])
def test_elements_from_elsewhere(maps_made, rng, name):
    x = table(rng, (130, 48), "f")
    index = rng.integers(0, 130, 90)
    function = {
        "transpose": lambda m, x: m.transpose(x) * 2,
        "concat": lambda m, x: m.concatenate([x, x * 2, x[:7]], 0),
        "flip": lambda m, x: m.flip(x, 0) + x,
        "gather": lambda m, x: m.take(x, m.array(index), 0) + 1,
        "pad": lambda m, x: m.pad(x, ((3, 4), (0, 5))) - 1,
    }[name]
    np.testing.assert_allclose(function(kc, kc.array(x)).numpy(), function(np, x), rtol=1e-6)
    assert several(maps_made) or vectors(maps_made)


def test_an_update_in_place(maps_made, rng):
    host = table(rng, (2000,), "f")
    state, other = kc.State(kc.array(host)), kc.State(kc.array(2 * host))

    @kc.jit
    def exchange():
        mine, its = state.value, other.value
        state.assign(its + 1)
        other.assign(mine)

    exchange()
    exchange()
    np.testing.assert_array_equal(state.value.numpy(), host + 1)
    np.testing.assert_array_equal(other.value.numpy(), 2 * host + 1)


def test_long_expressions_are_written_once(maps_made, rng, monkeypatch):
    monkeypatch.setattr(maps, "LONGEST", 5)
    x = table(rng, (5000,), "f")
    found = kc.tanh(kc.array(x)) * 3 + kc.exp(kc.array(x)) - kc.sin(kc.array(x))
    np.testing.assert_allclose(found.numpy(), np.tanh(x) * 3 + np.exp(x) - np.sin(x), rtol=1e-5,
                               atol=1e-6)  # fmt: skip
    assert not several(maps_made)


@pytest.mark.parametrize("shape", [(97, 61), (5, 37, 64), (3, 2, 40, 33), (2, 1500)], ids=str)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_grids_of_cpus(launches, rng, shape, captured):
    """Long rows, and reads across the order of stores, by coordinates instead of one index."""
    if kc.current_device().info.kind != "cpu":
        pytest.skip("other devices take one index")
    made = launches["map_kernel"]
    x, column = table(rng, shape, np.float32), table(rng, shape[-1:], np.float32)
    y = table(rng, (*shape[:-2], shape[-1], shape[-2]), np.float32)
    first = table(rng, (shape[-1], *shape[:-1]), np.float32)

    def function(xp, x, y, first, column):
        return (
            x * column,
            xp.swapaxes(y, -1, -2) * 2,
            xp.moveaxis(first, 0, -1) + x[..., ::-1],
            x[..., 1:] * x[..., :-1],
        )

    run = kc.jit(lambda *xs: function(kc, *xs)) if captured else lambda *xs: function(kc, *xs)
    found = run(*map(kc.array, (x, y, first, column)))
    for ours, expected in zip(found, function(np, x, y, first, column), strict=True):
        np.testing.assert_array_equal(ours.numpy(), expected)
    assert any(len(launch.global_size) == 3 for launch in made)


@pytest.mark.parametrize("shape", [(97, 61), (18, 530), (3, 40, 33)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "complex64"])
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
def test_transpositions_on_cpus(launches, monkeypatch, rng, shape, dtype, captured):
    """Squares of vectors, their edges, and reads that begin elsewhere; NaN and -0.0 stay."""
    monkeypatch.setattr(kc.engine, "programs", {})
    x = table(rng, shape, np.float32).astype(dtype)
    x.reshape(-1)[::5] = -0.0 if dtype == "int8" else np.nan
    x.reshape(-1)[::7] = -0.0

    def function(x):
        across = x.swapaxes(-1, -2)
        return across, x.T, across[..., 1:, ::2], x[..., ::-1, 2:].swapaxes(-1, -2)

    run = kc.jit(function) if captured else function
    for ours, expected in zip(run(kc.array(x)), function(x), strict=True):
        expected = np.ascontiguousarray(expected)
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours.numpy(), expected)
        if dtype != "int8":
            signs = np.signbit(expected.real)
            np.testing.assert_array_equal(np.signbit(ours.numpy().real), signs)
    if kc.current_device().info.kind == "cpu":
        squares = f"vload{transposed.SIDE}(0, from"
        assert any(squares in launch.source.text for launch in launches["map_kernel"])
