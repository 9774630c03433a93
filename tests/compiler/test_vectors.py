"""Reductions of rows in explicit vectors, as CPUs have them: where they are written, and values."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.generate.vectors import LEAST
from kerascl.dtypes import bfloat16, bool_, float16, float64, int8, int32
from tests.compiler.graphs import CPU, argument, kernels

COUNT = 5 * LEAST + 3


def in_vectors(*arrays, info=CPU) -> bool:
    return any("vload" in launch.source.body for launch in kernels(*arrays, info=info).launches)


@pytest.mark.parametrize(
    "dtype, width",
    [(None, 16), (int32, 16), (int8, 16), (float16, 16), (bfloat16, 16), (bool_, 16), (float64, 8)],
)
def test_rows_are_read_in_vectors(dtype, width):
    x = argument(4, COUNT, **({} if dtype is None else {"dtype": dtype}))
    body = kernels(kc.max(x, 1)).launches[0].source.body
    assert f"vload{width}(" in body or f"vload_half{width}(" in body


@pytest.mark.parametrize(
    "row",
    [
        lambda x: x * 2 + 1,
        lambda x: x - kc.reshape(argument(4), (4, 1)),
        lambda x: x + argument(COUNT),
        lambda x: x[:, 7:-1],
        lambda x: kc.astype(x > 3, "int32"),
        lambda x: x != x,
    ],
)
def test_light_work_on_a_row_is_done_in_vectors(row):
    assert in_vectors(kc.sum(row(argument(4, COUNT)), 1))


@pytest.mark.parametrize(
    "graph",
    [
        lambda x: kc.sum(x[:, : LEAST - 1], 1),  # short
        lambda x: kc.sum(x, 0),  # neighbours of memory are not of one row
        lambda x: kc.sum(x[:, ::2], 1),
        lambda x: kc.sum(x[:, ::-1], 1),
        lambda x: kc.sum(kc.pad(x, 1), 1),
        lambda x: kc.sum(kc.concatenate([x, x], 1), 1),
        lambda x: kc.sum(kc.exp(x), 1),
        lambda x: kc.sum(kc.astype(x, "int32"), 1),  # NaN is what a choice makes 0
        lambda x: kc.prod(x, 1),
        lambda x: x / kc.sum(x, 1, keepdims=True),  # the row is read again
    ],
)
def test_what_is_not_written_in_vectors(graph):
    assert not in_vectors(graph(argument(4, COUNT)))


def test_other_devices_have_work_items_for_neighbours():
    gpu = SimpleNamespace(**vars(CPU) | {"kind": "gpu", "max_work_group_size": 256})
    assert not in_vectors(kc.sum(argument(4, COUNT), 1), info=gpu)


NUMBERS = (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool", "float16",
    "float32", "float64",
)  # fmt: skip
DTYPES = [np.dtype(name) for name in NUMBERS] + [np.dtype(ml_dtypes.bfloat16)]
NAMES = ("max", "min", "argmax", "argmin", "any", "all", "count_nonzero")
FLOATS = ("float16", "float32", "float64", "bfloat16")


def rows_of(rng, dtype, shape):
    """Rows with ties, and of floats with NaN, infinities and both zeros."""
    if dtype.kind == "b":
        return rng.random(shape) < 1 / shape[1]
    if dtype.name not in FLOATS:
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    host = rng.normal(size=shape).round(1)
    for row, special in zip(
        host, ([np.nan], [np.inf], [-np.inf, np.nan], [0.0, -0.0]), strict=True
    ):
        row[rng.integers(0, shape[1], 3)] = rng.choice(special, 3)
    return host.astype(dtype)


@pytest.mark.every(3)
@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_choices_and_tests(dev, rng, dtype, captured):
    host = rows_of(rng, dtype, (4, int(rng.integers(LEAST, 700))))
    exact = host.astype(np.float64) if dtype.name in FLOATS else host
    names = NAMES[4:] if dtype.kind == "b" else NAMES

    def all_of_them(x):
        return [getattr(kc, name)(x, axis=1) for name in names]

    for name, found in zip(
        names, (kc.jit(all_of_them) if captured else all_of_them)(kc.array(host))
    ):
        wanted = getattr(np, name)(exact, axis=1)
        found = found.numpy().astype(wanted.dtype)
        np.testing.assert_array_equal(found, wanted, f"{name} of {host.shape}")


@pytest.mark.every(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_sums(dev, rng, dtype):
    for length in (int(rng.integers(LEAST, 5000)), 70_001):
        if dtype.name in FLOATS:
            host = rng.normal(0.1, 1, (3, length)).astype(dtype)
            found = kc.sum(kc.array(host), axis=1).numpy().astype(np.float64)
            wanted = host.astype(np.float64).sum(1)
            bound = {"float64": 1e-15, "float32": 2e-7}.get(dtype.name, 2.0**-8)
            assert (abs(found - wanted) <= bound * abs(host.astype(np.float64)).sum(1)).all()
        else:
            host = rows_of(rng, dtype, (3, length))
            found = kc.sum(kc.array(host), axis=1).numpy()
            np.testing.assert_array_equal(found, host.sum(1, dtype=found.dtype))  # wraps alike


def test_building_prints_nothing(dev, rng, capfd):
    length = int(rng.integers(LEAST, 100_000))  # a program that no cache has
    found = kc.jit(lambda x: kc.max(x * 2, axis=1))(kc.ones((3, length))).numpy()
    np.testing.assert_array_equal(found, [2, 2, 2])
    assert capfd.readouterr() == ("", "")
