"""Index expressions agree with Python's integers wherever their variables go."""

import itertools
import random

import pytest

from kerascl.compiler.graph.symbolic import (
    Expr,
    Quotient,
    Var,
    linear,
    number,
    strides_of,
    unravel,
    variable,
)


def evaluate(expr: Expr, values: dict[str, int]) -> int:
    total = expr.const
    for atom, k in expr.terms:
        if isinstance(atom, Var):
            value = values[atom.name]
        elif isinstance(atom, Quotient):
            value = evaluate(atom.top, values) // atom.by
        else:
            value = evaluate(atom.top, values) % atom.by
        total += k * value
    return total


def random_expr(rng: random.Random, sizes: dict[str, int], depth: int):
    """An expression and the same computation in plain integers."""
    kind = rng.choice(["var", "const"] if depth == 0 else ["add", "mul", "div", "mod", "sub"])
    if kind == "var":
        name = rng.choice(list(sizes))
        return variable(name, sizes[name]), lambda v: v[name]
    if kind == "const":
        k = rng.randrange(0, 20)
        return number(k), lambda v: k
    a, fa = random_expr(rng, sizes, depth - 1)
    if kind in ("add", "sub"):
        b, fb = random_expr(rng, sizes, depth - 1)
        if kind == "sub":
            return a - b, lambda v: fa(v) - fb(v)
        return a + b, lambda v: fa(v) + fb(v)
    k = rng.randrange(1, 12)
    if kind == "mul":
        return a * k, lambda v: fa(v) * k
    if kind == "div":
        return a // k, lambda v: fa(v) // k
    return a % k, lambda v: fa(v) % k


@pytest.mark.parametrize("seed", range(300))
def test_random_expressions_match_python(seed):
    rng = random.Random(seed)
    sizes = {"x": rng.randrange(1, 7), "y": rng.randrange(1, 7), "z": rng.randrange(1, 5)}
    expr, plain = random_expr(rng, sizes, 4)
    for point in itertools.product(*(range(n) for n in sizes.values())):
        values = dict(zip(sizes, point, strict=True))
        expected = plain(values)
        assert evaluate(expr, values) == expected
        assert expr.lo <= expected <= expr.hi


@pytest.mark.parametrize(
    "shape", [(6,), (2, 3), (4, 1, 5), (2, 3, 4, 5), (7, 1, 1), (3, 2, 2, 2, 3)]
)
def test_linear_of_unravel_is_the_index_itself(shape):
    size = 1
    for n in shape:
        size *= n
    index = variable("i", size)
    assert linear(unravel(index, shape), shape) == index


def test_reshape_through_matching_edges_needs_no_division():
    coords = tuple(variable(f"x{k}", n) for k, n in enumerate((8, 3, 4)))
    flat = linear(coords, (8, 3, 4))
    assert unravel(flat, (8, 12)) == (coords[0], coords[1] * 4 + coords[2])
    assert unravel(flat, (24, 4)) == (coords[0] * 3 + coords[1], coords[2])


def test_strides_are_contiguous():
    assert strides_of((2, 3, 4)) == (12, 4, 1)
    assert strides_of(()) == ()
