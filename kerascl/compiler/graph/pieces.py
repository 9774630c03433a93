"""Large products that only losses and gradients are made of are computed in pieces of rows.

A language model's logits, h (rows, features) @ w (features, words), are its largest values, and a
training step wants of them a loss for each row, dh = dlogits @ w^T, dw = h^T @ dlogits, and perhaps
the largest of each row.  So a *region* is computed once for each piece of the rows: the product and
what is computed from it row by row, until it ends in small values for each row, which are joined,
and in sums over the rows, which are added up.  Only one piece of the logits is alive at a time:
what a piece reads of its rows is behind a barrier with the piece's number, its *phase*, and what
is behind that runs when all of the phases before has run.

A graph in which somebody wants the large values themselves, or what mixes rows, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kerascl import config, dtypes
from kerascl.compiler.graph.in_place import STORE, UPDATED
from kerascl.core.node import Node
from kerascl.core.op import Kind, Op
from kerascl.core.tape import ALIAS
from kerascl.core.traced import BARRIER
from kerascl.core.types import Attrs, Shape
from kerascl.dtypes import DType
from kerascl.kernels.contract.sizes import ceil_div, round_up
from kerascl.ops.contraction import MATMUL
from kerascl.ops.declare import CAST
from kerascl.ops.movement import IOTA
from kerascl.ops.pointwise import add
from kerascl.ops.views import (
    CONCAT,
    CONCAT_MOST,
    EXPAND,
    FLIP,
    PAD,
    PERMUTE,
    RESHAPE,
    SLICE,
    SUM_OP,
)
from kerascl.runtime.device import DeviceInfo

MEMORY_PART = 32  # of a device's memory, what a piece may take of it
LEAST_ROWS = 256  # of a piece: products of fewer are slow
TILE = 64  # rows of a piece are a multiple, where they are no divisor of all
WIDE_PART = 2  # of a product's elements: what has more than such a part is as large
_TURN = (1, 0)


def in_pieces(nodes: Sequence[Node], roots: Sequence[Node], info: DeviceInfo) -> Pieces | None:
    """The graph with its first large product in pieces; None where all stays as it is.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
        info: the device's facts: how much memory it has.
    """
    most = config.piece_bytes()
    if most is None:
        most = info.global_mem_bytes // MEMORY_PART
    products = [x for x in nodes if most > 0 and _is_large(x, most)]
    if not products or any(x.op is STORE or x.op is UPDATED for x in nodes):
        return None
    readers: dict[int, list[Node]] = {}
    for node in nodes:
        for x in node.inputs:
            readers.setdefault(id(x), []).append(node)
    wanted = {id(root) for root in roots}
    for product in products:
        region = Region(product, nodes, readers, wanted)
        if region.fits:
            return Pieces(region, nodes, sizes(product, most))
    return None


def phase(barrier: Node) -> int:
    """The phase that a node begins, 0 if it begins none."""
    return barrier.attrs[0] if barrier.op is BARRIER and barrier.attrs else 0


def phases(nodes: Sequence[Node]) -> dict[int, int]:
    """By id, the phase that each node belongs to, if that is not the first, 0.

    Args:
        nodes: in topological order.
    """
    found: dict[int, int] = {}
    if any(map(phase, nodes)):
        for node in nodes:
            own = max([phase(node), *(found.get(id(x), 0) for x in node.inputs)])
            if own:
                found[id(node)] = own
    return found


def _is_large(node: Node, most: int) -> bool:
    """Whether a node is a product that is to be computed in pieces, if it can be."""
    if node.op is not MATMUL or len(node.shape) != 2 or node.nbytes <= most:
        return False
    return node.shape[0] >= 2 * LEAST_ROWS and not phase(node.inputs[0])


def sizes(product: Node, most: int) -> list[int]:
    """The rows of each piece, for pieces of about so many bytes."""
    rows = product.shape[0]
    count = min(ceil_div(product.nbytes, most), rows // LEAST_ROWS, CONCAT_MOST)
    near = min(count + count // 4 + 1, CONCAT_MOST)
    for pieces in range(count, near + 1):  # each size has kernels of its own
        if rows % pieces == 0 and rows // pieces >= LEAST_ROWS:
            return [rows // pieces] * pieces
    size = round_up(ceil_div(rows, count), TILE if rows // count >= TILE else 1)
    found = [size] * (rows // size)
    return [*found, rows % size] if rows % size else found


class Region:
    """A product, and what is computed from it row by row.

    Attributes:
        rows: how many there are.
        inside: ids of nodes that are computed for each piece.
        follow: ids of all nodes that depend on the product.
        sums: those nodes that add up rows.
        ends: those nodes inside that others read, too.
        fits: whether the region can be computed in pieces.
    """

    def __init__(
        self,
        product: Node,
        nodes: Sequence[Node],
        readers: dict[int, list[Node]],
        wanted: set[int],
    ) -> None:
        self.rows = product.shape[0]
        self._wide = product.size // WIDE_PART
        self._readers = readers
        self.follow = {id(product)}
        self.inside: set[int] = {id(product)}
        self._grow(nodes)
        self.inside = self._needed(nodes)
        self.sums: list[Node] = []
        self._turned: set[int] = set()
        for node in nodes:
            self._add_sum(node)
        self._pull(nodes, wanted)
        own = [node for node in nodes if id(node) in self.inside]
        self.fits = len(own) > 1 and not any(self._leaves(node, wanted) for node in own)
        self.fits = self.fits and all(
            id(x) not in self.follow or id(x) in self.inside
            for node in [*own, *self.sums]
            for x in self._reads(node)
        )
        ends = {id(x) for x in self.sums}
        self.ends = [
            node for node in own
            if not self.is_wide(node) and (
                id(node) in wanted
                or any(id(x) not in self.inside | ends for x in readers.get(id(node), ()))
            )
        ]  # fmt: skip
        self.fits = self.fits and bool(self.ends or self.sums)

    def lead(self, shape: Shape) -> int:
        """How many first axes are the rows, 0 if they cannot be."""
        count = 1
        for k, n in enumerate(shape):
            count *= n
            if count >= self.rows:
                return k + 1 if count == self.rows else 0
        return 0

    def is_wide(self, node: Node) -> bool:
        """Whether a node is as large as the product."""
        return node.size > self._wide

    def takes(self, node: Node) -> list[bool] | None:
        """Of each input, whether rows of the node are made of the same rows of it, and not of all
        of it; None if rows are not made apart from each other."""
        lead = self.lead(node.shape)
        rule = _RULES.get(node.op) or _KINDS.get(node.op.kind)
        return rule(self, node, lead) if lead and rule is not None else None

    def _grow(self, nodes: Sequence[Node]) -> None:
        """Find all that follows, and what of it is computed row by row."""
        for node in nodes:
            if not any(id(x) in self.follow for x in node.inputs):
                continue
            self.follow.add(id(node))
            takes = self.takes(node)
            # a small product is an end: what follows is another layer's
            own = [
                rows and id(x) in self.inside and (x.op is not MATMUL or self.is_wide(x))
                for x, rows in zip(node.inputs, takes or (), strict=False)
            ]
            late = [id(x) in self.follow for x in node.inputs]
            if takes is not None and own == late:
                self.inside.add(id(node))

    def _needed(self, nodes: Sequence[Node]) -> set[int]:
        """Of what is inside, the large values, who reads these, and what leads back to them."""
        needed: set[int] = set()
        for node in reversed(nodes):
            if id(node) in self.inside and (
                self.is_wide(node)
                or any(id(x) in self.inside and self.is_wide(x) for x in node.inputs)
                or any(id(x) in needed for x in self._readers.get(id(node), ()))
            ):
                needed.add(id(node))
        return needed

    def _add_sum(self, node: Node) -> None:
        """Note a node that adds up rows of large values."""
        if id(node) in self.inside or node.dtype.is_float8 or node.dtype.is_bool:
            return
        if not any(id(x) in self.inside and self.is_wide(x) for x in self._reads(node)):
            return
        if node.op is MATMUL and len(node.shape) == 2:
            left, right = node.inputs
            if right.shape[0] != self.rows or id(left) in self.inside:
                return
            if left.op is PERMUTE and id(left.inputs[0]) in self.inside:
                self._turned.add(id(left))
        elif node.op is SUM_OP:
            lead = self.lead(node.inputs[0].shape)
            if not lead or not set(range(lead)) <= set(node.attrs[0]):
                return
        else:
            return
        self.sums.append(node)

    def _reads(self, node: Node) -> Iterator[Node]:
        """The inputs of a node; of a left factor that is transposed, what it was before."""
        for k, x in enumerate(node.inputs):
            turned = node.op is MATMUL and k == 0 and id(node) not in self.inside
            yield x.inputs[0] if turned and _is_turned(x) else x

    def _pull(self, nodes: Sequence[Node], wanted: set[int]) -> None:
        """Take in what large values are made of, as masks and another model's logits are, if nobody
        else reads it."""
        mine = {id(x) for x in self.sums}
        asked: set[int] = set()
        for node in reversed(nodes):
            if id(node) in asked and id(node) not in self.inside | self.follow:
                alone = id(node) not in wanted and all(
                    id(x) in self.inside | mine for x in self._readers[id(node)]
                )
                free = node.op is IOTA or node.op is EXPAND
                if (alone or free) and self.takes(node) is not None:
                    self.inside.add(id(node))
            if id(node) in self.inside:
                rows = self.takes(node) or ()
                asked |= {
                    id(x) for x, own in zip(node.inputs, rows, strict=False)
                    if own and self.is_wide(x)
                }  # fmt: skip

    def _leaves(self, node: Node, wanted: set[int]) -> bool:
        """Whether somebody outside gets values that are as large as the product."""
        if not self.is_wide(node) or (id(node) not in self.follow):
            return False
        if id(node) in wanted:
            return True
        mine = {id(x) for x in self.sums}
        return not all(
            id(x) in self.inside
            or id(x) in mine
            or (
                id(x) in self._turned
                and id(x) not in wanted
                and all(id(y) in mine and y.inputs[1] is not x for y in self._readers[id(x)])
            )
            for x in self._readers.get(id(node), ())
        )


# From a region, a node and how many of its axes are rows to what `Region.takes` gives.
_Rule = Callable[[Region, Node, int], "list[bool] | None"]


def _pointwise(region: Region, node: Node, lead: int) -> list[bool] | None:
    if node.op is STORE or "{i" in node.op.code or "{coordinate}" in node.op.code:
        return None
    if any(x.shape and x.shape != node.shape for x in node.inputs):
        return None
    return [bool(x.shape) for x in node.inputs] if node.inputs else None


def _iota(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [] if node.attrs[0] >= lead else None


def _expand(region: Region, node: Node, lead: int) -> list[bool] | None:
    (x,) = node.inputs
    if x.shape[:lead] == node.shape[:lead]:
        return [True]
    return [False] if all(n == 1 for n in x.shape[:lead]) else None


def _reshape(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True] if region.lead(node.inputs[0].shape) else None


def _permute(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True] if node.attrs[0][:lead] == tuple(range(lead)) else None


def _window(region: Region, node: Node, lead: int) -> list[bool] | None:
    """Of slices and padding: first and second attribute leave an axis alone where they are so."""
    still = 1 if node.op is SLICE else 0
    first, second = (attr[:lead] for attr in node.attrs[:2])
    alone = not any(first) and all(n == still for n in second)
    return [True] if alone and node.inputs[0].shape[:lead] == node.shape[:lead] else None


def _flip(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True] if all(a >= lead for a in node.attrs[0]) else None


def _concat(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True] * len(node.inputs) if node.attrs[0] >= lead else None


def _same(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True]


def _reduction(region: Region, node: Node, lead: int) -> list[bool] | None:
    x, *others = node.inputs
    apart = x.shape[:lead] == node.shape[:lead] and all(a >= lead for a in node.attrs[0])
    return [True] if apart and not others else None


def _gather(region: Region, node: Node, lead: int) -> list[bool] | None:
    x, *indices = node.inputs
    (spec,) = node.attrs
    if any(i.shape != node.shape for i in indices):
        return None
    rows = spec[:lead] == tuple(("d", a) for a in range(lead))
    rest = spec[lead:] if rows else spec
    if any(kind == "d" and k < lead for kind, k in rest):
        return None
    if rows and x.shape[:lead] != node.shape[:lead]:
        return None
    return [rows, *(True for _ in indices)]


def _product(region: Region, node: Node, lead: int) -> list[bool] | None:
    return [True, False] if len(node.shape) == 2 and lead == 1 else None


_KINDS: dict[Kind, _Rule] = {
    Kind.POINTWISE: _pointwise, Kind.REDUCTION: _reduction, Kind.GATHER: _gather,
}  # fmt: skip
_RULES: dict[Op, _Rule] = {
    IOTA: _iota, EXPAND: _expand, RESHAPE: _reshape, PERMUTE: _permute, SLICE: _window,
    PAD: _window, FLIP: _flip, CONCAT: _concat, ALIAS: _same, BARRIER: _same, MATMUL: _product,
}  # fmt: skip


def _is_turned(x: Node) -> bool:
    return x.op is PERMUTE and x.attrs[0] == _TURN


class Pieces:
    """A graph that is built again with a region in pieces.

    Attributes:
        new: what stands for each old node that is left, by the id of that.
        origin: by the id of each node that was made, that of the old node which it was made for.
        count: of pieces.
    """

    def __init__(self, region: Region, nodes: Sequence[Node], rows: list[int]) -> None:
        self.new: dict[int, Node] = {}
        self.origin: dict[int, int] = {}
        self.count = len(rows)
        self._region = region
        self._nodes = [x for x in nodes if id(x) in region.inside]
        self._results = {id(x) for x in [*region.ends, *region.sums]}
        self._first = 1 + max(map(phase, nodes))
        self._old = nodes[0]
        last = self._last_read(nodes)
        late: list[Node] = []
        own = region.inside & region.follow  # what else is inside may be read outside, too
        for node in nodes:  # what the region takes from outside comes before all that follows
            if id(node) in own or id(node) in self._results:
                continue
            if id(node) in last:
                late.append(node)
            else:
                self._again(node)
        self._compute(rows)
        for node in late:
            self._again(node)

    def _last_read(self, nodes: Sequence[Node]) -> set[int]:
        """Ids of nodes outside that follow from the region's results."""
        found = set(self._results)
        for node in nodes:
            if any(id(x) in found for x in node.inputs):
                found.add(id(node))
        return found

    def _again(self, node: Node) -> None:
        """Find or make what stands for a node outside."""
        if not all(id(x) in self.new for x in node.inputs):
            return  # who reads it has been computed in pieces
        inputs = tuple([self.new[id(x)] for x in node.inputs])
        if all(x is y for x, y in zip(inputs, node.inputs, strict=True)):
            self.new[id(node)] = node
            return
        self._old = node
        self.new[id(node)] = self._make(node.op, inputs, node.attrs, node.shape, node.dtype)

    def _make(
        self, op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType
    ) -> Node:
        made = Node(op, inputs, attrs, shape, dtype, self._old.device)
        self.origin[id(made)] = id(self._old)
        return made

    def _compute(self, rows: list[int]) -> None:
        """Make the region's results."""
        region = self._region
        parts: dict[int, list[Node]] = {id(x): [] for x in region.ends}
        totals: dict[int, Node] = {}
        start = 0
        for k, count in enumerate(rows):
            piece = _Piece(self, start, count, self._first + k)
            for node in self._nodes:
                self._old = node
                piece.add(node)
                if id(node) in parts:
                    parts[id(node)].append(piece.made[id(node)])
            for node in region.sums:
                self._old = node
                part = piece.sum(node)
                total = totals.get(id(node))
                if total is not None:
                    part = self._make(add.op, (total, part), (), part.shape, part.dtype)
                totals[id(node)] = part
            start += count
        for node in region.ends:
            self._old = node
            each = parts[id(node)]
            shape = (region.rows, *each[0].shape[1:])
            joined = self._make(CONCAT, tuple(each), (0,), shape, node.dtype)
            self.new[id(node)] = self._shaped(joined, node.shape)
        for node in region.sums:
            self._old = node
            total = totals[id(node)]
            if total.dtype is not node.dtype:
                total = self._make(CAST, (total,), (), total.shape, node.dtype)
            self.new[id(node)] = self._shaped(total, node.shape)

    def _shaped(self, x: Node, shape: Shape) -> Node:
        if x.shape == shape:
            return x
        return self._make(RESHAPE, (x,), (shape,), shape, x.dtype)


class _Piece:
    """The region's nodes for some of the rows, which are one axis, the first.

    Args:
        graph: where nodes are made.
        start, count: which rows.
        phase: in which they are computed.

    Attributes:
        made: by id of an old node, what it is for these rows.
    """

    def __init__(self, graph: Pieces, start: int, count: int, phase: int) -> None:
        self.made: dict[int, Node] = {}
        self._graph = graph
        self._region = graph._region
        self._make = graph._make
        self._start, self._count, self._phase = start, count, phase
        self._cut: dict[tuple[int, int], Node] = {}

    def add(self, node: Node) -> None:
        """Make a node that is inside."""
        region = self._region
        takes = region.takes(node)
        assert takes is not None
        lead = region.lead(node.shape)
        rest = node.shape[lead:]
        shape = (self._count, *rest)
        inputs = tuple([
            self._rows(x) if own else self._whole(x, lead, node)
            for x, own in zip(node.inputs, takes, strict=True)
        ])  # fmt: skip
        attrs = _moved(node, lead, shape, takes)
        self.made[id(node)] = self._make(node.op, inputs, attrs, shape, node.dtype)

    def sum(self, node: Node) -> Node:
        """What these rows add to a sum: of few digits in float32."""
        dtype = node.dtype
        if dtype.is_float and dtype.itemsize < 4:
            dtype = dtypes.float32
        if node.op is MATMUL:
            left, right = node.inputs
            if _is_turned(left):
                rows = self._rows(left.inputs[0])
                a = self._make(PERMUTE, (rows,), (_TURN,), rows.shape[::-1], rows.dtype)
            else:
                a = self._part(left, 1)
            return self._make(MATMUL, (a, self._rows(right)), node.attrs, node.shape, dtype)
        (x,), axes = node.inputs, node.attrs[0]
        lead, rows = self._region.lead(x.shape), self._rows(x)
        if dtype is not rows.dtype:
            rows = self._make(CAST, (rows,), (), rows.shape, dtype)
        axes = (0, *(a - lead + 1 for a in axes if a >= lead))
        shape = tuple(1 if a in axes else n for a, n in enumerate(rows.shape))
        return self._make(SUM_OP, (rows,), (axes, *node.attrs[1:]), shape, dtype)

    def _rows(self, x: Node) -> Node:
        """These rows of a node."""
        if id(x) in self.made:
            return self.made[id(x)]
        lead = self._region.lead(x.shape)
        x = self._graph.new[id(x)]
        shape = (self._region.rows, *x.shape[lead:])
        return self._part(x, 0, shape)

    def _part(self, x: Node, axis: int, shape: Shape | None = None) -> Node:
        """These rows of what comes from outside, where they are one axis."""
        x = self._graph.new.get(id(x), x)
        key = id(x), axis
        if key not in self._cut:
            if shape is not None and x.shape != shape:
                x = self._make(RESHAPE, (x,), (shape,), shape, x.dtype)
            starts = tuple(self._start if a == axis else 0 for a in range(len(x.shape)))
            own = tuple(self._count if a == axis else n for a, n in enumerate(x.shape))
            part = self._make(SLICE, (x,), (starts, (1,) * len(own)), own, x.dtype)
            self._cut[key] = self._make(BARRIER, (part,), (self._phase,), own, x.dtype)
        return self._cut[key]

    def _whole(self, x: Node, lead: int, node: Node) -> Node:
        """What all rows read of a node from outside."""
        x = self._graph.new[id(x)]
        if node.op is not EXPAND:
            return x
        shape = (1, *x.shape[lead:])
        return x if x.shape == shape else self._make(RESHAPE, (x,), (shape,), shape, x.dtype)


def _moved(node: Node, lead: int, shape: Shape, takes: list[bool]) -> Attrs:
    """The attributes of a node whose rows, `lead` axes, become one."""
    op, attrs, back = node.op, node.attrs, lead - 1
    if op is EXPAND or op is RESHAPE:
        return (shape,)
    if op is PERMUTE:
        return ((0, *(a - back for a in attrs[0][lead:])),)
    if op is SLICE:
        return (0, *attrs[0][lead:]), (1, *attrs[1][lead:])
    if op is PAD:
        return (0, *attrs[0][lead:]), (0, *attrs[1][lead:]), *attrs[2:]
    if op is CONCAT or op is IOTA:
        return (attrs[0] - back,)
    if op is FLIP or op.kind is Kind.REDUCTION:
        return (tuple(a - back for a in attrs[0]), *attrs[1:])
    if op.kind is Kind.GATHER:
        rows = (("d", 0),) if takes[0] else ()
        rest = attrs[0][lead:] if takes[0] else attrs[0]
        return ((*rows, *((kind, k - back if kind == "d" else k) for kind, k in rest)),)
    return attrs
