"""Matrix units that a sub-group drives, as data: an instruction, and which lane holds what."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from kerascl.dtypes import DType, float32, int32
from kerascl.kernels.contract.source import cl_source, defines


@dataclass(frozen=True)
class Layout:
    """Which elements of a matrix each lane of a sub-group holds.

    Lanes come in groups of `size`; lane `size * g + t` holds, as its i-th element, the one at
    g * `group` + t * `thread` + `elements[i]`, each a (row, column).  Several lanes may hold the
    same element.

    Attributes:
        run: of an operand, how many elements along the depth lie beside each other in local memory:
            16 bytes hold those of as many rows as fit.  0 for 16 bytes of one row.
    """

    size: int
    group: tuple[int, int]
    thread: tuple[int, int]
    elements: tuple[tuple[int, int], ...]
    run: int = 0

    def place(self, lane: int, i: int) -> tuple[int, int]:
        """The row and column of a lane's i-th element."""
        g, t = divmod(lane, self.size)
        steps = zip(self.group, self.thread, self.elements[i], strict=True)
        row, column = (g * of_group + t * of_thread + own for of_group, of_thread, own in steps)
        return row, column

    def text(self, axis: int, i: int) -> str:
        """OpenCL C for the row (axis 0) or column (1) of element i of the lane `lane`."""
        parts = [
            (f"lane / {self.size}", self.group[axis]), (f"lane % {self.size}", self.thread[axis]),
        ]  # fmt: skip
        terms = [f"{place} * {step}" for place, step in parts if step]
        return " + ".join((*terms, str(self.elements[i][axis])))


@dataclass(frozen=True)
class Fragment:
    """One instruction: d (m x n, float32 or, of integers, int32) += a (m x k) b (k x n).

    Attributes:
        dtype: of a and b as the instruction takes them.
        lanes: of the sub-group.
        a, b, d: who holds what.
        macro: OpenCL C that defines MMA(d, a, b) over a lane's elements, those of a and b in
            words of 32 bits, the first in the low bits.
        attributes: of kernels with the instruction.
        products: 3 where operands are float32, each of which is nearly the sum of two of `dtype`:
            all products are summed but that of both second ones.
    """

    dtype: DType
    m: int
    n: int
    k: int
    lanes: int
    a: Layout
    b: Layout
    d: Layout
    macro: str
    attributes: str = ""
    products: int = 1

    @property
    def acc(self) -> DType:
        """The dtype of the sums."""
        return int32 if self.dtype.is_integer else float32

    @property
    def wide(self) -> int:
        """Elements of a word."""
        return 4 // self.dtype.itemsize

    @property
    def defines(self) -> str:
        """What mma_tile.cl and attention_fragment.cl must know of the instruction."""
        names = dict(
            FRAGMENT_M=self.m, FRAGMENT_N=self.n, FRAGMENT_K=self.k, LANES=self.lanes,
            A_WORDS=len(self.a.elements) // self.wide, B_WORDS=len(self.b.elements) // self.wide,
            SUMS=len(self.d.elements), UNIT_ATTRIBUTES=self.attributes,
            A_RUN=self._run(self.a), B_RUN=self._run(self.b), LB=self.dtype.itemsize,
            PRODUCTS=self.products, D_LANES=self.d.size,
        )  # fmt: skip
        pairs = cl_source("units/pairs.cl") if self.products > 1 else ""
        return defines(**names) + self._reads + pairs + self.macro

    def _run(self, layout: Layout) -> int:
        return layout.run or 16 // self.dtype.itemsize

    @property
    def _reads(self) -> str:
        """READ_A, READ_B and EACH_SUM of mma_plain.cl: a lane's elements by its number."""
        sums = (
            f"F({i}, ({self.d.text(0, i)}), ({self.d.text(1, i)}))"
            for i in range(len(self.d.elements))
        )
        return (
            self._read("A", self.a, depth=1) + self._read("B", self.b, depth=0)
            + f"#define EACH_SUM(F) {' '.join(sums)}\n"
        )  # fmt: skip

    def _read(self, name: str, layout: Layout, depth: int) -> str:
        """The macro that reads an operand whose axis `depth` is that of the sum, in as wide reads
        as its elements lie beside each other there."""
        text, word = "", 0
        words = len(layout.elements) // self.wide
        while word < words:
            first = word * self.wide
            width = next(w for w in (4, 2, 1) if self._beside(layout, first, w * self.wide, depth))
            row, at = layout.text(1 - depth, first), layout.text(depth, first)
            text += (
                f" READ{width}({name}, (to) + {word}, at, (row) + {row}, ((depth) + {at}) * LB)"
            )
            word += width
        return f"#define READ_{name}(to, at, row, depth) {{{text} }}\n"

    def _beside(self, layout: Layout, first: int, count: int, depth: int) -> bool:
        """Whether so many elements of any lane are neighbours in local memory, from a multiple of
        `count` on."""
        own = layout.elements[first : first + count]
        if len(own) < count:
            return False
        along = min(count, self._run(layout))
        rows, (row, k) = count // along, (own[0][1 - depth], own[0][depth])
        ascending = all(
            (place[1 - depth], place[depth]) == (row + i // along, k + i % along)
            for i, place in enumerate(own)
        )
        depths = (layout.group[depth], layout.thread[depth], k, self.k)
        across = (layout.group[1 - depth], layout.thread[1 - depth], row, (self.n, self.m)[depth])
        whole = not any(d % along for d in depths) and not any(r % rows for r in across)
        return ascending and whole


def threefold(fragment: Fragment) -> Fragment:
    """An instruction for bfloat16 as one for float32: each number is nearly the sum of two, and of
    the four products the three larger are taken.  The relative error is near 2**-18, that of TF32
    near 2**-11.  Numbers below 2**-117, whose second part is subnormal, keep fewer bits."""
    return dataclasses.replace(fragment, products=3)


@dataclass(frozen=True)
class Unit:
    """The matrix units of a family of devices.

    Attributes:
        name: what names of solvers begin with.
        matrix: values of DeviceInfo.matrix that offer them, and the share of the matrix units' rate
            that is reached there.
        fragments: an instruction for each dtype of operands (float32 by TF32 or `threefold`); that
            of integers serves products only.
        moves: the OpenCL C by which mma_tile.cl moves data.
        stages: of the ring in local memory.
        largest: most results of a sub-group's tile, which registers bound: of products, and where
            addresses take more, of convolutions and of copies of less than 16 bytes.
        rows: most rows of which a work-item keeps addresses where it copies single elements.
        tried: whether a self-test decides if they are used.
        widest: most rows and columns of a sub-group's tile: of products, and of convolutions.
        least: work-items of a group, for which sub-groups' tiles are made smaller.
        copies: most that a work-item holds of a stage.
        sets: of fragments in registers; with two, one is read while the other is multiplied.
        options: for the compiler.
        exact: whether float32 is not rounded, so that they serve in precision "highest" too.
        rate: multiply-adds a clock of a compute unit, where it is not that of the machine's matrix
            units.
    """

    name: str
    matrix: Mapping[str, float]
    fragments: Mapping[DType, Fragment]
    moves: str
    stages: int = 3
    largest: tuple[int, int] = (64 * 64, 64 * 64)
    rows: int = 64
    tried: bool = False
    widest: tuple[tuple[int, int], tuple[int, int]] = ((64, 64), (64, 64))
    least: int = 0
    copies: int = 128
    sets: int = 2
    options: tuple[str, ...] = ()
    exact: bool = False
    rate: float = 0.0

    @property
    def lanes(self) -> int:
        """Of a sub-group."""
        return next(iter(self.fragments.values())).lanes

    @property
    def floats(self) -> tuple[DType, ...]:
        """The floating dtypes of operands, which convolutions and attention have, too."""
        return tuple(dtype for dtype in self.fragments if dtype.is_float)

    def __hash__(self) -> int:
        return hash(self.name)

    def takes(self, dtype: DType, other: DType, acc: DType, precision: str) -> bool:
        """Whether the units multiply such inputs as exactly as asked."""
        if dtype is not other or dtype not in self.fragments:
            return False
        if acc is not self.fragments[dtype].acc:
            return False
        return dtype is not float32 or self.exact or precision == "high"
