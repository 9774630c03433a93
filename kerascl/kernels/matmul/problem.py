"""What a matrix product is: the problem, fewer batch dimensions, its kernel arguments."""

from __future__ import annotations

import dataclasses
import math
import string
from dataclasses import dataclass

from kerascl.dtypes import DType
from kerascl.kernels.contract.plan import Scalar
from kerascl.kernels.contract.sizes import index_type


@dataclass(frozen=True)
class MatmulProblem:
    """out[b.., m, n] = sum over k of a[b.., m, k] * b[b.., k, n], contiguous, no beta.

    The linear output index is ((batch linear) * m + row) * n + column.  Inputs are slots "a" and
    "b", whose first byte is aligned to at least 16 bytes.

    Attributes:
        m, n, k: sizes; any may be 0 (k == 0 gives zeros through the epilogue).
        batch: zero to three batch sizes.
        a_strides, b_strides: strides in elements (batch.., row, column) of a[b.., m, k] and of
            b[b.., k, n]; zero broadcasts; negative ones are allowed.
        a_offset, b_offset: index of the first element.
        a, b: dtypes of the inputs.
        acc: dtype in which products are summed (float32 for float16 and bfloat16).
        precision: "highest" wants true float32 accuracy of float32 inputs, "high" allows matrix
            units that round them to TF32 or better; no matter for other dtypes.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a_strides: tuple[int, ...]
    b_strides: tuple[int, ...]
    a: DType
    b: DType
    acc: DType
    a_offset: int = 0
    b_offset: int = 0
    precision: str = "highest"

    @property
    def batches(self) -> int:
        """Number of products."""
        return math.prod(self.batch)

    @property
    def total(self) -> int:
        """Number of output elements."""
        return self.batches * self.m * self.n

    @property
    def count(self) -> int:
        """How many products are added: of the operands of as many pairs of slots."""
        return 1

    @property
    def sums_columns(self) -> bool:
        """Whether the sums of b's columns are wanted as well, in slot "sums"."""
        return False

    @property
    def nbytes(self) -> int:
        """Of all operands and the result, each moved once, also where batches share an operand."""
        a, b = (
            math.prod(n for n, step in zip(self.batch, strides[:-2], strict=True) if step)
            for strides in (self.a_strides, self.b_strides)
        )
        operands = a * self.m * self.k * self.a.itemsize + b * self.k * self.n * self.b.itemsize
        return self.count * operands + self.total * self.a.itemsize


def _product(p: MatmulProblem) -> MatmulProblem:
    fields = dataclasses.fields(MatmulProblem)
    return MatmulProblem(*(getattr(p, field.name) for field in fields))


@dataclass(frozen=True)
class SumProblem(MatmulProblem):
    """The sum of `terms` products of the same sizes and strides.

    The operands of the n-th are slots 2 n and 2 n + 1 of "a", "b", "c", …
    """

    terms: int = 2

    @property
    def count(self) -> int:
        return self.terms

    @property
    def term(self) -> MatmulProblem:
        """One of the products."""
        return _product(self)


@dataclass(frozen=True)
class DenseGradProblem(MatmulProblem):
    """The gradients of a dense layer: of its weights, a product with the layer's gradient b, and of
    its bias, the sums of b's columns in b's dtype."""

    @property
    def sums_columns(self) -> bool:
        return True

    @property
    def product(self) -> MatmulProblem:
        """The product alone."""
        return _product(self)


def slots(p: MatmulProblem) -> list[tuple[str, str]]:
    """The slots of both operands of each product."""
    names = string.ascii_lowercase
    return [(names[2 * n], names[2 * n + 1]) for n in range(p.count)]


def normalise_matmul(p: MatmulProblem) -> MatmulProblem:
    """The same product with as few batch dimensions as possible, padded to exactly three.

    A batch dimension that b does not have is merged into the rows where a's strides allow it.
    """
    dims = [
        (size, sa, sb)
        for size, sa, sb in zip(p.batch, p.a_strides[:-2], p.b_strides[:-2], strict=True)
        if size != 1
    ]
    merged: list[tuple[int, int, int]] = []
    for size, sa, sb in dims:
        if merged and merged[-1][1] == sa * size and merged[-1][2] == sb * size:
            merged[-1] = (merged[-1][0] * size, sa, sb)
        else:
            merged.append((size, sa, sb))
    m, row = p.m, p.a_strides[-2]
    if merged and merged[-1][2] == 0 and (m == 1 or merged[-1][1] == m * row):
        size, sa, _ = merged.pop()
        row = sa if m == 1 else row
        m *= size
    while len(merged) < 3:
        merged.insert(0, (1, 0, 0))
    sizes, sas, sbs = zip(*merged, strict=True)
    return dataclasses.replace(
        p,
        m=m,
        batch=sizes,
        a_strides=(*sas, row, p.a_strides[-1]),
        b_strides=(*sbs, *p.b_strides[-2:]),
    )


def reach(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int) -> int:
    """A bound on the absolute element index."""
    return abs(offset) + sum((n - 1) * abs(s) for n, s in zip(sizes, strides, strict=True)) + 1


def problem_index(p: MatmulProblem) -> str:
    """The index type that reaches all elements of operands and result, and tiles' overhang."""
    return index_type(
        p.total + 2**16,
        reach((*p.batch, p.m, p.k), p.a_strides, p.a_offset),
        reach((*p.batch, p.k, p.n), p.b_strides, p.b_offset),
        # Overhang of the last tiles.
        (p.m + 128) * max(abs(p.a_strides[-2]), 1),
        (p.k + 64) * max(abs(p.a_strides[-1]), abs(p.b_strides[-2]), 1),
        (p.n + 128) * max(abs(p.b_strides[-1]), 1),
    )


def stride_args(p: MatmulProblem, index: str) -> tuple[Scalar, ...]:
    """Offsets and strides in the order that every kernel here takes them."""
    values = (
        p.a_offset, p.b_offset, *p.a_strides[-2:], *p.b_strides[-2:],
        *p.a_strides[:3], *p.b_strides[:3],
    )  # fmt: skip
    return tuple(Scalar(index, v) for v in values)


def usable(p: MatmulProblem, info) -> bool:
    """Whether the device has the dtypes: doubles are missing on many."""
    return info.fp64 or "float64" not in (p.a.name, p.b.name, p.acc.name)
