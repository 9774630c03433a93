"""Einstein summation against NumPy."""

import numpy as np
import pytest

import kerascl as kc
from tests.ops.slopes import check_gradients, relative

SIZES = dict(zip("abcdefijkhts", (2, 3, 4, 5, 2, 3, 3, 4, 5, 2, 4, 6), strict=True))
EQUATIONS = [
    "ij->ji", "ii->i", "ii", "iij->j", "ij->", "ij->i", "i,i->", "i,j->ij", "ij,jk->ik",
    "ij,kj->ik",
    "ij,ij->ij", "ij,ij->", "bij,bjk->bik", "abij,abjk->abik", "bthd,bshd->bhts", "bhts,bshd->bthd",
    "abc,cde->abde", "abcd,cde->abe", "ij,jk,kd->id", "a,b,c->abc", "ab,bc,ca->", "i,ij,j->",
    "abc,ab->c", "abc,acd,ad->b", "ij,j", "ji,jk", "abcdef,fedcba->ad", "iij,jk->ik", "ab,ab,ab->a",
    "hbt,hbs->hts", "abe,cde,bd->ac",
]  # fmt: skip


def operands(equation, rng):
    terms = equation.partition("->")[0].split(",")
    return [rng.standard_normal([SIZES[c] for c in t]).astype(np.float32) for t in terms]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_value(equation, rng):
    xs = operands(equation, rng)
    wide = [x.astype(np.float64) for x in xs]
    expected, size = np.einsum(equation, *wide), np.einsum(equation, *map(np.abs, wide))
    found = kc.einsum(equation, *xs).numpy()
    assert found.shape == expected.shape
    assert (np.abs(found - expected) <= 1e-6 * size).all()  # of the terms: their sum may be none


@pytest.mark.parametrize("equation", ["bthd,bshd->bhts", "ij,jk,kd->id", "iij,jk->ik", "abc,ab->c"])
def test_gradient(equation, rng):
    xs = operands(equation, rng)
    check_gradients(lambda *xs: kc.einsum(equation, *xs), *xs, rng=rng, order=2)


@pytest.mark.parametrize("equation, shapes", [
    ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
    ("...ij,jk", [(2, 3, 4), (4, 5)]),
    ("i...,i...->...", [(3, 2, 4), (3, 4)]),
    ("...,...->...", [(2, 3), (3,)]),
    ("...i->...", [(2, 3, 4)]),
    ("b...d,bd->b...", [(2, 3, 4, 5), (2, 5)]),
    ("bij,bjk->bik", [(1, 3, 4), (5, 4, 2)]),
    ("ij,jk->ik", [(3, 1), (4, 2)]),
])  # fmt: skip
def test_dots_and_broadcasts(equation, shapes, rng):
    xs = [rng.standard_normal(s) for s in shapes]
    expected = np.einsum(equation, *xs)
    assert relative(kc.einsum(equation, *xs).numpy(), expected) < 1e-6


def test_integers_and_errors():
    a = np.arange(6, dtype=np.int8).reshape(2, 3)
    found = kc.einsum("ij,kj->ik", a, a, dtype=kc.int32).numpy()
    np.testing.assert_array_equal(found, a.astype(np.int32) @ a.T.astype(np.int32))
    with pytest.raises(ValueError, match="operands"):
        kc.einsum("ij,jk->ik", a)
    with pytest.raises(ValueError, match="sizes"):
        kc.einsum("ij,jk->ik", a, a)
    with pytest.raises(ValueError, match="output label"):
        kc.einsum("ij->ik", a)
    with pytest.raises(ValueError, match="shape"):
        kc.einsum("ijk->i", a)
