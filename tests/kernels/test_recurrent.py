"""The persistent recurrence kernel against a loop in float64, in the forms of GPUs and of CPUs."""

import dataclasses

import numpy as np
import pytest

from kerascl.dtypes import bfloat16, bool_, float32
from kerascl.kernels.recurrent.problem import Fetch, RecurrentProblem, Stored
from kerascl.kernels.recurrent.solvers import plan
from tests.kernels.harness import assert_close, devices, poisoned, random_array, run_plan

SIZES = [(1, 1, 1), (4, 3, 5), (3, 5, 16), (5, 9, 33), (3, 21, 64), (2, 2, 130)]


# OpenCL C allows tanh five units in the last place: as much as a sum of so many terms may be off.
TANH = 25


@pytest.fixture(params=["cpu", "gpu", "many rows"])
def setting(request):
    """A device, and its facts as if it were of that kind."""
    dev = next(iter(devices().values()))
    kind = "gpu" if request.param == "many rows" else request.param
    info = dataclasses.replace(dev.info, kind=kind)
    if request.param == "many rows":
        info = dataclasses.replace(info, compute_units=1)
    return dev, info


@pytest.mark.every(5)
@pytest.mark.parametrize("steps, batch, units", SIZES)
@pytest.mark.parametrize("reverse", [False, True])
def test_forward_form(rng, setting, steps, batch, units, reverse):
    """Two gates, two states, a bias and a mask; the product reads the first state."""
    dev, info = setting
    problem = RecurrentProblem(
        steps=steps, batch=batch, units=units, fan_in=1, fan_out=2, weights=float32, acc=float32,
        state=float32, initial=("b", "c"), final=("out1", None),
        fetches=(
            Fetch("d", float32, "step", 0, 2), Fetch("d", float32, "step", 1, 2),
            Fetch("e", float32, "unit", 1, 2), Fetch("f", bool_, "row"),
        ),
        reverse=reverse,
        cell="const ACC_T h = tanh(x[0] + P(0) + c1); const ACC_T m = 0.5f * c1 + x[1] * P(1);\n"
        "const ACC_T n0 = x[3] != 0 ? h : c0; const ACC_T n1 = x[3] != 0 ? m + x[2] : c1;",
        carried=("n0", "n1"), operand=None,
        stored=(Stored("out0", float32, "n1", 0, 2), Stored("out0", float32, "n0", 1, 2)),
    )  # fmt: skip
    w = random_array(rng, (units, 2 * units), float32) / np.float32(units) ** 0.5
    h0, m0 = (random_array(rng, (batch, units), float32) for _ in range(2))
    x = random_array(rng, (steps, batch, 2, units), float32)
    bias = random_array(rng, (2, units), float32)
    valid = rng.uniform(size=(steps, batch)) < 0.7
    h, m = h0.astype("float64"), m0.astype("float64")
    want = np.empty((steps, batch, 2, units))
    squares, h2, m2 = np.empty(want.shape), h**2, m**2
    for t in reversed(range(steps)) if reverse else range(steps):
        p = h @ w.astype("float64")
        on = valid[t, :, None]
        p2 = h**2 @ w.astype("float64") ** 2
        h2 = np.where(on, x[t, :, 0] ** 2 + p2[:, :units] + m2, h2)
        m2 = np.where(on, 0.25 * m2 + x[t, :, 1] ** 2 * p2[:, units:] + bias[1] ** 2, m2)
        new = np.tanh(x[t, :, 0] + p[:, :units] + m)
        m = np.where(on, 0.5 * m + x[t, :, 1] * p[:, units:] + bias[1], m)
        h = np.where(on, new, h)
        want[t], squares[t] = np.stack([m, h], 1), np.stack([m2, h2], 1)
    inputs = {"a": w, "b": h0, "c": m0, "d": x, "e": bias, "f": valid}
    last = {"out1": np.zeros((batch, units), "float32")}
    made = plan(problem, info)
    got = run_plan(made, inputs | last, poisoned(want.shape, float32), dev, "out0")
    assert_close(got, want, float32, TANH + units * steps, squares**0.5)
    rest = {"out0": np.zeros(want.shape, "float32")}
    got = run_plan(made, inputs | rest, poisoned((batch, units), float32), dev, "out1")
    assert_close(got, h, float32, TANH + units * steps, h2**0.5)


@pytest.mark.parametrize("steps, batch, units", SIZES)
def test_backward_form(rng, setting, steps, batch, units):
    """Three blocks feed one product, which a last product completes; weights in bfloat16."""
    dev, info = setting
    problem = RecurrentProblem(
        steps=steps, batch=batch, units=units, fan_in=3, fan_out=1, weights=bfloat16,
        acc=float32, state=float32, initial=("b",), final=("out1",),
        fetches=(Fetch("c", float32),), reverse=True,
        cell="const ACC_T g = c0 + P(0) + x[0]; const ACC_T z0 = 0.5f * g, z1 = g * x[0],\n"
        "z2 = sin(g); const ACC_T n = 0.25f * g;",
        carried=("n",), operand=("z0", "z1", "z2"),
        stored=(Stored("out0", float32, "z1", 0, 2), Stored("out0", float32, "z2", 1, 2)),
    )  # fmt: skip
    w = random_array(rng, (3 * units, units), bfloat16)
    w = (w.astype("float32") / (3 * units)).astype(w.dtype)
    g0 = random_array(rng, (batch, units), float32)
    x = random_array(rng, (steps, batch, units), float32)
    carry, product = g0.astype("float64"), 0
    want = np.empty((steps, batch, 2, units))
    squares, carry2, product2 = np.empty(want.shape), carry**2, 0
    for t in reversed(range(steps)):
        g = carry + product + x[t]
        z = [0.5 * g, g * x[t], np.sin(g)]
        g2 = carry2 + product2 + x[t] ** 2.0
        want[t], squares[t] = np.stack(z[1:], 1), np.stack([g2 * x[t] ** 2.0, g2], 1)
        carry, product = 0.25 * g, np.concatenate(z, 1) @ w.astype("float64")
        z2 = np.concatenate([0.25 * g2, g2 * x[t] ** 2.0, z[2] ** 2], 1)
        carry2, product2 = 0.0625 * g2, z2 @ w.astype("float64") ** 2
    inputs = {"a": w, "b": g0, "c": x}
    made = plan(problem, info)
    last = {"out1": np.zeros((batch, units), "float32")}
    got = run_plan(made, inputs | last, poisoned(want.shape, float32), dev, "out0")
    assert_close(got, want, float32, TANH + units * steps, squares**0.5)
    rest = {"out0": np.zeros(want.shape, "float32")}
    got = run_plan(made, inputs | rest, poisoned((batch, units), float32), dev, "out1")
    assert_close(got, carry + product, float32, TANH + units * steps, (carry2 + product2) ** 0.5)


def test_too_large_for_local_memory(setting):
    _, info = setting
    problem = RecurrentProblem(
        steps=1, batch=1, units=1 << 20, fan_in=1, fan_out=1, weights=float32, acc=float32,
        state=float32, initial=("b",), final=("out0",), fetches=(), reverse=False,
        cell="const ACC_T n = P(0);", carried=("n",), operand=None, stored=(),
    )  # fmt: skip
    with pytest.raises(NotImplementedError, match="no kernel applies"):
        plan(problem, info)
