"""Random expressions over every dtype, with NumPy's value and an error bound for each.

An `Expression` is a list of inputs and of steps; every step makes one value from earlier ones. The
reference is NumPy: integers and bools in their own dtype, floats in float64 with a running bound on
the error that rounding to their dtype may cause. Where the bound is 0 a value is known exactly, and
only then is it compared, truncated or used as a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from tests.ops.expression_rules import (
    EPS,
    FLOATS,
    INTEGERS,
    LARGEST,
    RULES,
    Unfit,
    Value,
    numpy_dtype,
)

MOST_ELEMENTS = 600


@dataclass
class Step:
    """`run(library values)` on kerascl; `operands` are positions of earlier values."""

    name: str
    operands: tuple[int, ...]
    run: Callable

    def __repr__(self) -> str:
        return f"{self.name}{self.operands}"


@dataclass
class Expression:
    """Host inputs, steps, and the reference value of each input and step."""

    inputs: list[np.ndarray] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        heads = [f"{x.dtype}{list(x.shape)}" for x in self.inputs]
        return f"Expression(inputs={heads}, steps={self.steps}, outputs={self.outputs})"

    def run(self, arrays: list, after: Callable = lambda position, value: None) -> list:
        """All values, computed by kerascl from its arrays of the inputs."""
        values = list(arrays)
        for step in self.steps:
            values.append(step.run(*(values[i] for i in step.operands)))
            after(len(values) - 1, values[-1])
        return values

    def check(self, position: int, found) -> None:
        """`found` is the value at `position`: integers exactly, floats in bounds."""
        value = self.values[position]
        assert found.shape == value.shape, (position, found.shape, value.shape)
        assert found.dtype.name == value.dtype, (position, found.dtype, value.dtype)
        array = found.numpy()
        if not value.is_float:
            np.testing.assert_array_equal(array, value.array, err_msg=f"value {position}")
            return
        wrong = np.abs(array.astype(np.float64) - value.array)
        bad = ~(wrong <= 2 * np.asarray(value.error))
        assert not bad.any(), f"value {position}: {array[bad]} instead of {value.array[bad]}"


# -- drawing
def _host(draw, rng, shape) -> tuple[np.ndarray, Value]:
    """An input array, sometimes strided, and its reference."""
    dtype = draw(st.sampled_from(["bool", *INTEGERS, *FLOATS, *FLOATS]))
    wide = tuple(2 * n + 1 for n in shape) if draw(st.integers(0, 3)) == 0 else None
    whole = wide or shape
    if dtype == "bool":
        array = rng.integers(0, 2, whole).astype(bool)
    elif dtype in EPS:
        quarters = draw(st.booleans())
        array = rng.integers(-16, 17, whole) / 4 if quarters else rng.uniform(-3, 3, whole)
        array = np.asarray(array).astype(numpy_dtype(dtype))
    else:
        info = np.iinfo(dtype)
        low, high = draw(st.sampled_from([(0, 5), (-9, 9), (info.min, info.max)]))
        array = rng.integers(max(low, info.min), high, whole, dtype, endpoint=True)
    array = np.asarray(array)
    if wide:
        array = array[tuple(slice(2 * n - 1 if n else 0, None if n else 0, -2) for n in shape)]
        assert array.shape == shape
    return array, Value(dtype, array.astype(np.float64) if dtype in EPS else array)


def _partners(name: str, values: list[Value], chosen: list[int]) -> list[int]:
    """Positions of the values whose shapes go with the operands chosen so far."""

    def fits(value):
        shapes = [values[i].shape for i in chosen] + [value.shape]
        if name == "matmul":
            return value.shape and shapes[0] and value.shape[-1] == shapes[0][-1]
        if name == "concatenate":
            return len(value.shape) == len(shapes[0])
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            return False
        return True

    return [i for i, value in enumerate(values) if fits(value)] or chosen


@st.composite
def expressions(draw) -> Expression:
    """Inputs of related shapes and up to ten steps over them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    base = draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 3, 4, 5, 17]), max_size=4))
    while np.prod(base) > MOST_ELEMENTS:
        base.pop()
    made = Expression()
    for _ in range(draw(st.integers(1, 3))):
        # broadcasts against the others: fewer leading axes, some of size 1
        shape = tuple(1 if draw(st.integers(0, 4)) == 0 else n for n in base)
        shape = shape[draw(st.integers(0, len(shape))) :] if draw(st.booleans()) else tuple(base)
        array, value = _host(draw, rng, shape)
        made.inputs.append(array)
        made.values.append(value)
    names = sorted(RULES) + 2 * ["matmul", "concatenate", "multiply", "sum_", "mean", "where"]
    for name in draw(
        st.lists(st.sampled_from(names), min_size=draw(st.integers(1, 12)), max_size=16)
    ):
        count, apply = RULES[name]
        last = len(made.values) - 1
        first = draw(st.sampled_from([last, last, draw(st.integers(0, last))]))
        operands = [first]
        for _ in range(count - 1):
            fitting = _partners(name, made.values, operands)
            operands.append(draw(st.sampled_from(fitting)))
        operands = draw(st.permutations(operands))
        try:
            values = [made.values[i] for i in operands]
            with np.errstate(all="ignore"):
                value, run = apply(draw, *values)
        except Unfit:
            continue
        value.array = np.asarray(value.array)
        if value.array.size > MOST_ELEMENTS or value.array.ndim > 6:
            continue
        if value.is_float:
            value.error = np.broadcast_to(value.error, value.shape)
            if not np.all(np.abs(value.array) + value.error <= LARGEST):
                continue
        made.steps.append(Step(name, tuple(operands), run))
        made.values.append(value)
    last = len(made.values) - 1
    made.outputs = sorted({last, *draw(st.lists(st.integers(0, last), max_size=2))})
    return made
