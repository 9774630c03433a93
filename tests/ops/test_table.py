"""Every operation of the table: values, derivatives, and the same result fused and unfused."""

import types

import numpy as np
import pytest

import kerascl as kc
from kerascl.ops import (
    bits,
    calculus,
    contraction,
    creation,
    indexing,
    movement,
    pointwise,
    reduction,
    scan,
    sets,
    sorting,
)  # fmt: skip
from kerascl.runtime import device
from tests.ops import table
from tests.ops.slopes import check_gradients

ROOMS = (
    bits, calculus, contraction, creation, indexing, movement, pointwise, reduction, scan, sets,
    sorting,
)  # fmt: skip
CASES = pytest.mark.parametrize("case", table.CASES, ids=[c.label for c in table.CASES])
REAL = np.float64 if device.default().info.fp64 else np.float32
# What sums and special functions of a few elements may lose.
BOUND = 1e-11 if REAL is np.float64 else 2e-5


def arrays(inputs) -> list:
    return [kc.array(x.astype(REAL) if x.dtype.kind == "f" else x) for x in map(np.asarray, inputs)]


def agree(found: np.ndarray, expected) -> None:
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    if found.dtype.kind not in "fc":
        np.testing.assert_array_equal(found, expected)
        return
    known = np.isfinite(expected)
    np.testing.assert_array_equal(np.where(known, 0, found), np.where(known, 0, expected))
    found, expected = np.where(known, found, 0), np.where(known, expected, 0)
    scale = max(np.linalg.norm(expected), 1e-30)
    bound = BOUND if found.dtype != np.complex64 else 2e-7
    assert np.linalg.norm(found - expected) <= bound * scale


def test_the_table_is_complete():
    public = {name for room in ROOMS for name in room.__all__}
    assert public - table.covered() == set()
    elsewhere = {"abs", "bincount", "conj", "histogram", "stop_gradient"}
    assert table.covered() - public <= elsewhere


def test_public_names_are_documented():
    for room in ROOMS:
        for name in room.__all__:
            function = getattr(kc, name)
            assert isinstance(function, types.FunctionType)
            assert function.__doc__, name


@CASES
def test_value(case, rng):
    inputs = case.inputs(rng)
    found = case.call(*arrays(inputs))
    single = [np.asarray(x, REAL) if np.asarray(x).dtype.kind == "f" else x for x in inputs]
    agree(found.numpy(), case.reference(*single))


@CASES
def test_fused(case, rng):
    """Neighbours before and after change nothing (they are exact)."""
    xs = arrays(case.inputs(rng))
    apart = case.call(*[x.evaluate() for x in xs]).evaluate()
    before = [(x + x) * 0.5 if x.dtype.is_float else ~~x for x in xs]
    after = case.call(*before)
    after = kc.negative(kc.negative(after)) if not after.dtype.is_bool else ~~after
    agree(after.numpy(), apart.numpy())


SLOPED = pytest.mark.parametrize(
    "case", [c for c in table.CASES if c.slopes], ids=[c.label for c in table.CASES if c.slopes]
)


@SLOPED
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_gradients_have_the_dtype_of_their_inputs(case, dtype, rng):
    inputs = [np.asarray(x) for x in case.inputs(rng)]
    xs = [kc.array(x, dtype if x.dtype.kind == "f" else None) for x in inputs]
    floats = [x for x in xs if x.dtype.is_float]
    with kc.GradientTape() as tape:
        y = case.call(*xs)
    if y.dtype.is_float:
        for g in tape.gradient(y, floats):
            assert g is None or g.dtype == dtype


@SLOPED
def test_slopes(case, rng):
    # A difference's step may reach over a kink: at another place it does not.
    for left in reversed(range(3)):
        try:
            check_slopes(case, rng)
            return
        except AssertionError:
            if not left:
                raise


def check_slopes(case, rng):
    inputs = [np.asarray(x) for x in case.inputs(rng)]
    places = [k for k, x in enumerate(inputs) if x.dtype.kind == "f"]

    def function(*floats):
        given = list(inputs)
        for place, x in zip(places, floats, strict=True):
            given[place] = x
        return case.call(*given)

    check_gradients(function, *(inputs[k] for k in places), rng=rng, order=case.slopes)


CAPTURABLE = [c for c in table.CASES if c.name not in table.READ_THE_HOST]
TOGETHER = 12


@pytest.mark.parametrize("start", range(0, len(CAPTURABLE), TOGETHER))
def test_captured(start, rng):
    """Many operations in one captured function give what they give one by one."""
    cases = CAPTURABLE[start : start + TOGETHER]
    inputs = [arrays(c.inputs(rng)) for c in cases]

    @kc.jit
    def run(inputs):
        return [c.call(*xs) for c, xs in zip(cases, inputs, strict=True)]

    for case, xs, found in zip(cases, inputs, run(inputs), strict=True):
        agree(found.numpy(), case.call(*xs).numpy())


READS = {"intersect1d": 2, "setdiff1d": 2, "setxor1d": 4}  # of the others, one


def test_host_reads_are_counted_and_refused_in_captures(rng):
    for case in table.CASES:
        if case.name in table.READ_THE_HOST:
            xs = arrays(case.inputs(rng))
            before = kc.host.calls.total()
            case.call(*xs)
            reads = READS.get(case.name, 1)
            assert kc.host.calls.total() == before + reads, case.label
            with pytest.raises(kc.CaptureError):
                kc.jit(lambda *xs, c=case: c.call(*xs))(*xs)
