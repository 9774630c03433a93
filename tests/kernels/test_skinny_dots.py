"""Products of a vector or two of signed bytes, four at once."""

import dataclasses
import re

import numpy as np
import pytest

from kerascl.kernels.contract import dots
from kerascl.kernels.contract.solver import joining
from kerascl.kernels.matmul import solvers as matmul
from kerascl.kernels.matmul.problem import normalise_matmul
from kerascl.kernels.matmul.skinny_dots import SkinnyDots
from kerascl.runtime import programs
from tests import profiles
from tests.kernels.test_gemm import check, make

# Whole blocks; last ones that are not; fewer than a block; slices; loads of four bytes.
SHAPES = [(1, 768, 2048), (2, 264, 1028), (1, 64, 16), (1, 40, 9000), (2, 132, 516), (1, 36, 4)]


@pytest.fixture
def card(dev, monkeypatch):
    """The device with the schedules of a GPU."""
    monkeypatch.setattr(dev, "info", profiles.disguise(dev.info, profiles.load()["rtx4090"].info))
    return dev


def forced(solver, took=None):
    def plan(problem, info, epilogue):
        problem = normalise_matmul(problem)
        assert solver.applies(problem, info)
        found = solver.plan(problem, info, epilogue)
        if took is not None:
            took.append(found.launches[0].source)
        return found

    return plan


def bytes_(rng, m, n, k, **orders):
    return make(rng, m, n, k, dtype="int8", acc="int32", **orders)


@pytest.mark.parametrize("as_card", [False, True])
@pytest.mark.parametrize("b", ["normal", "transposed"])
@pytest.mark.parametrize("split", [None, 3])
def test_values(dev, card, as_card, split, b, rng, monkeypatch):
    if not as_card:
        monkeypatch.undo()
    took = []
    for shape in SHAPES:
        check(forced(SkinnyDots(split), took), *bytes_(rng, *shape, b=b), dev)
    check(forced(SkinnyDots()), *bytes_(rng, 1, 128, 256, batch=(2, 3), b=b), dev)
    check(forced(SkinnyDots()), *bytes_(rng, 200, 1, 64, a="normal", b="transposed"), dev)
    widths = {re.search(r"#define V (\d+)", text)[1] for text in took}
    assert widths == ({"16", "8", "4"} if b == "transposed" else {"8", "4"})


def test_extremes_do_not_saturate(card, rng):
    """Sums of the largest products, as of bytes that were all quantised to 127 or -128."""
    problem, inputs, want = bytes_(rng, 1, 256, 2048)
    for value in (127, -128):
        given = {name: np.full_like(data, value) for name, data in inputs.items()}
        check(forced(SkinnyDots()), problem, given, np.full_like(want, 2048 * value**2), card)


@pytest.mark.parametrize("b", ["normal", "transposed"])
def test_where_launches_stay(card, b, rng):
    with joining():
        for shape in (1, 2048, 700), (2, 96, 5000), (1, 64, 9000):
            check(forced(SkinnyDots()), *bytes_(rng, *shape, b=b), card)


def test_what_it_does_not_take(dev, rng):
    def applies(*args, **orders):
        return SkinnyDots().applies(normalise_matmul(make(rng, *args, **orders)[0]), dev.info)

    both = {"dtype": "int8", "acc": "int32"}
    assert applies(1, 64, 64, **both)
    assert not applies(3, 64, 64, **both)  # rows
    assert not applies(1, 62, 64, **both)  # words of which no line begins with one
    assert not applies(1, 64, 62, **both)
    assert not applies(1, 64, 64, dtype="uint8", acc="int32")
    assert not applies(1, 64, 64, dtype="float32")
    assert not applies(1, 64, 64, b="strided", **both)


def test_cards_with_such_an_instruction_take_it(rng, monkeypatch):
    """And the product of a quantised row follows what quantises it."""
    problem = normalise_matmul(bytes_(rng, 1, 2048, 2048)[0])
    for profile in profiles.load().values():
        costs = {s.name: s.cost(problem, profile.info) for s in matmul.SOLVERS
                 if s.applies(problem, profile.info)}  # fmt: skip
        best = min(costs, key=costs.get)
        assert (best == "skinny_dots") == dots.at_once(profile.info), profile.info.name


@pytest.mark.parametrize("standard", [False, True])
def test_functions(dev, standard, rng):
    """Of four bytes each, as any device computes them."""
    if standard and "cl_khr_integer_dot_product" not in dev.info.extensions:
        pytest.skip("the device has no cl_khr_integer_dot_product")
    extensions = dev.info.extensions if standard else frozenset()
    info = dataclasses.replace(dev.info, extensions=extensions, quirks=frozenset())
    text = dots.helper(info) + (
        "__kernel void try_(__global const uint4* x, __global int4* to) {\n"
        "  const int k = get_global_id(0);\n"
        "  const uint4 v = x[k], t = kcl_turned(v.s0, v.s1, v.s2, v.s3);\n"
        "  to[2 * k] = as_int4(t);\n"
        "  to[2 * k + 1] = (int4)(kcl_dot4(v.s0, v.s1, 7), kcl_dot4(v.s2, v.s3, -7), 0, 0);\n}\n"
    )
    x = rng.integers(-128, 128, (50, 4, 4)).astype(np.int8)
    given, to = dev.buffers.allocate(x.nbytes), dev.buffers.allocate(2 * x.nbytes)
    dev.queue.write(given, x)
    made = dev.programs.kernel(text, "try_", (*programs.always(dev.info), *dots.options(info)))
    dev.queue.launch(made, (50,), (1,), (given, to))
    found = np.empty((50, 2, 4), np.int32)
    dev.queue.read(to, found)
    wide = x.astype(np.int64)
    np.testing.assert_array_equal(found[:, 0].view(np.int8).reshape(50, 4, 4), x.swapaxes(1, 2))
    np.testing.assert_array_equal(found[:, 1, 0], (wide[:, 0] * wide[:, 1]).sum(-1) + 7)
    np.testing.assert_array_equal(found[:, 1, 1], (wide[:, 2] * wide[:, 3]).sum(-1) - 7)
