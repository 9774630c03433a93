"""Views as maps of indices: what they read is what NumPy's read; no device."""

import itertools

import numpy as np
import pytest

import kerascl as kc
from kerascl.compiler.graph import views
from kerascl.compiler.graph.operands import operand
from kerascl.compiler.graph.symbolic import Expr, Quotient, Var, linear, variable
from tests.compiler.graphs import argument

CASES = {
    "reshape": lambda m, x: m.reshape(x, (4, 6)),
    "expand": lambda m, x: m.broadcast_to(x[:, :1], (2, 5, 4)),
    "permute": lambda m, x: m.transpose(x, (2, 0, 1)),
    "slice": lambda m, x: x[1:, ::2, 1:3],
    "flip": lambda m, x: m.flip(x, (0, 2)),
    "pad": lambda m, x: m.pad(x, ((1, 0), (0, 2), (1, 1)), constant_values=-1),
    "chain": lambda m, x: m.reshape(m.flip(m.transpose(x, (1, 2, 0)), (1,)), (6, 4))[1:, ::3],
}


def value(expr: Expr, at: dict[str, int]) -> int:
    total = expr.const
    for atom, k in expr.terms:
        if isinstance(atom, Var):
            own = at[atom.name]
        else:
            top = value(atom.top, at)
            own = top // atom.by if isinstance(atom, Quotient) else top % atom.by
        total += k * own
    return total


def element(node, place, data):
    """The element of a view at a place, by the maps of all views below it."""
    coords = tuple(variable(f"d{a}", n) for a, n in enumerate(node.shape))
    at = {f"d{a}": k for a, k in enumerate(place)}
    while node.inputs:
        inner, guards = views.source(node, coords)
        if not all(0 <= value(e, at) < size for e, size in guards):
            return -1
        coords, node = inner, node.inputs[0]
    return data[tuple(value(c, at) for c in coords)]


@pytest.mark.parametrize("name", CASES)
def test_every_element_is_numpys(name):
    data = np.arange(24).reshape(2, 3, 4)
    x = argument(2, 3, 4)
    expected = CASES[name](np, data)
    node = CASES[name](kc, x)._node
    assert node.shape == expected.shape
    for place in itertools.product(*map(range, node.shape)):
        assert element(node, place, data) == expected[place]


def test_only_some_keep_the_order_of_elements():
    x = argument(2, 3, 4)
    keeping = {n for n, make in CASES.items() if views.keeps_order(make(kc, x)._node)}
    assert keeping == {"reshape"}
    assert views.storage(kc.reshape(x, (24,))._node) is x._node
    assert not views.is_view(CASES["pad"](kc, x)._node)  # some of its elements are none of x
    assert not views.is_view(kc.concatenate([x, x], 0)._node)


def test_operands_with_strides_read_the_memory_behind_views():
    x = argument(6, 8)
    read = operand(kc.transpose(x, (1, 0))[2:]._node, strided=True)
    assert (read.base, read.strides, read.offset) == (x._node, (1, 8), 2)
    read = operand(kc.broadcast_to(x[:1], (5, 8))._node, strided=True)
    assert (read.base, read.strides, read.offset) == (x._node, (0, 1), 0)


def test_others_want_what_lies_contiguous():
    x = argument(6, 8)
    turned = kc.transpose(x, (1, 0))
    assert operand(turned._node, strided=False).base is turned._node
    assert operand(kc.reshape(x, (48,))._node, strided=False).base is x._node
    assert operand(kc.flip(x, 0)._node, strided=True).strides == (8, 1)  # no negative strides
    padded = kc.pad(x, 1)
    assert operand(padded._node, strided=True).base is padded._node


def test_linear_indices_of_a_view_are_affine_where_strides_say_so():
    x = argument(6, 8)
    coords = tuple(variable(f"d{a}", n) for a, n in enumerate((8, 6)))
    inner, _ = views.source(kc.transpose(x, (1, 0))._node, coords)
    index = linear(inner, x.shape)
    assert {atom.name: k for atom, k in index.terms} == {"d0": 1, "d1": 8}
