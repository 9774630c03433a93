"""Attention written out as products and a softmax, which attention's kernels compute.

Keras' layers write attention with dropout, while training and after, as

    weights = softmax(where(mask, query @ key^T * scale + bias, -1e9))
    result = dropout(where(mask, weights, 0)) @ value

Such a chain and that of its derivative are replaced by `ATTENTION` and its derivative, of the same
random bits, where a device's kernels serve better than products with logits in memory and nobody
else reads what lies between.  A program that wants the weights, their gradient or that of the bias
keeps the chain.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kerascl.compiler import library
from kerascl.compiler.graph.formula import Formula, traced
from kerascl.compiler.graph.operands import operand
from kerascl.core.array import Array, apply_multi
from kerascl.core.node import Node, topological
from kerascl.core.op import CONST, Op
from kerascl.core.tape import GradientTape
from kerascl.dtypes import float32
from kerascl.ops.attention import ATTENTION
from kerascl.ops.contraction import MATMUL
from kerascl.ops.declare import CAST
from kerascl.ops.movement import IOTA, transpose
from kerascl.ops.pointwise import WHERE, add, divide, exp, greater_equal, multiply, subtract, where
from kerascl.ops.random import KEEP, KEEP_COARSE, row_places
from kerascl.ops.reduction import MAX
from kerascl.ops.reduction import any as some
from kerascl.ops.scan import SCAN
from kerascl.ops.views import EXPAND, PERMUTE, RESHAPE, SLICE, SUM_OP, expand_to
from kerascl.runtime.device import DeviceInfo

HIDING = -1e4  # logits of hidden keys are set to this or less; Keras takes -3e4 in float16
_TURN = (0, 1, 3, 2)  # queries by keys as keys by queries


@dataclass(frozen=True)
class Replacement:
    """What stands for a node instead: one result of a formula of other nodes."""

    formula: Formula
    values: list[Node]
    index: int


@dataclass
class _Chain:
    """The forward pass, of axes (batch, heads, queries, keys).

    Attributes:
        weights: what softmax gives; `narrow` are the same in the dtype of the values.
        product: the logits before anything else; keys by queries if `turned`.
        causal: whether the mask hides what comes after a query, and nothing else.
        zeroed: whether weights of hidden keys are set to 0, also for queries that see none.
        kept: which weights dropout keeps, drawn from `key`; `factor` is that of those.
        last: the left factor of the product with the values.
        inside: nodes between, which nobody else may read.
    """

    weights: Node
    narrow: Node
    product: Node
    turned: bool = False
    scale: float = 1.0
    bias: Node | None = None
    mask: Node | None = None
    causal: bool = False
    zeroed: bool = False
    kept: Node | None = None
    key: Node | None = None
    factor: float = 1.0
    inside: list[Node] = field(default_factory=list)

    @property
    def last(self) -> Node:
        return self.inside[-1]


@dataclass
class _Slope:
    """The derivative of a chain.

    Attributes:
        upstream: the gradient of the result.
        values: the values, transposed, as they are multiplied with that.
        of_left, of_right: the gradients of the factors of the logits' product; `of_value`: that of
            the values.
    """

    upstream: Node | None = None
    values: Node | None = None
    of_left: Node | None = None
    of_right: Node | None = None
    of_value: Node | None = None
    inside: list[Node] = field(default_factory=list)

    @property
    def ends(self) -> tuple[Node | None, Node | None, Node | None]:
        return self.of_left, self.of_right, self.of_value


class _Unlike(Exception):
    """A graph is not that of attention."""


def _need(condition: bool) -> None:
    if not condition:
        raise _Unlike


def chains(
    nodes: Sequence[Node], roots: Iterable[Node], info: DeviceInfo
) -> dict[int, Replacement]:
    """What stands for the results of chains and of their derivatives, by the ids of these.

    Args:
        nodes: a simplified graph in topological order, without nodes that nobody needs.
        roots: the values wanted.
    """
    found: dict[int, Replacement] = {}
    finder = None
    for node in nodes:
        if node.op is divide.op and len(node.shape) == 4 and node.inputs[0].op is exp.op:
            finder = finder or _Finder(nodes, roots)
            with contextlib.suppress(_Unlike):
                found |= finder.replacements(node, info)
    return found


class _Finder:
    def __init__(self, nodes: Sequence[Node], roots: Iterable[Node]) -> None:
        self.roots = {id(root) for root in roots}
        self.readers: dict[int, list[Node]] = {}
        for node in nodes:
            for x in dict.fromkeys(node.inputs):
                self.readers.setdefault(id(x), []).append(node)

    def reading(self, node: Node, op: Op) -> list[Node]:
        return [x for x in self.readers.get(id(node), ()) if x.op is op]

    def replacements(self, weights: Node, info: DeviceInfo) -> dict[int, Replacement]:
        """For the chain around softmax's division."""
        chain = self._chain(weights)
        slope = self._slope(chain)
        results = [x for x in self.reading(chain.last, MATMUL) if x.inputs[0] is chain.last]
        _need(len(results) <= 1)
        result = results[0] if results else None
        value = slope.values if result is None else result.inputs[1]
        _need(value is not None)
        assert value is not None
        inside = [*chain.inside, *slope.inside]
        known = {id(x) for x in (*inside, *results, *slope.ends)}
        for x in inside:
            _need(id(x) not in self.roots)
            _need(all(id(y) in known for y in self.readers.get(id(x), ())))
        _check_dtypes(chain, value, result, slope)
        return _replacements(chain, value, result, slope, info)

    # -- the forward pass
    def _chain(self, weights: Node) -> _Chain:
        inside: list[Node] = []
        logits = _softmax_of(weights, inside)
        chain = _Chain(weights, weights, weights, inside=inside)
        _follow_logits(chain, logits)
        dtype = chain.product.inputs[0].dtype
        chain.inside.append(weights)
        if weights.dtype is not dtype:
            casts = [x for x in self.reading(weights, CAST) if x.dtype is dtype]
            _need(len(casts) == 1)
            chain.narrow = casts[0]
            chain.inside += casts
        if chain.mask is not None:
            self._follow_zeros(chain)
        self._follow_dropout(chain)
        return chain

    def _follow_zeros(self, chain: _Chain) -> None:
        for x in self.reading(chain.narrow, WHERE):
            if _is_choice(x, chain.mask) and x.inputs[1] is chain.narrow:
                chain.zeroed = True
                chain.inside.append(x)
                return

    def _follow_dropout(self, chain: _Chain) -> None:
        for scaled in self.reading(chain.last, multiply.op):
            factor = _factor(scaled, chain.last)
            if factor is None:
                continue
            for x in self.reading(scaled, WHERE):
                kept = x.inputs[0]
                if kept.op in (KEEP, KEEP_COARSE) and _is_choice(x, kept) and x.inputs[1] is scaled:
                    chain.kept, chain.key, chain.factor = kept, _key_of(kept), factor
                    chain.inside += [scaled, x]
                    return

    # -- the backward pass
    def _slope(self, chain: _Chain) -> _Slope:
        slope = _Slope()
        for turned in filter(_turns, self.readers.get(id(chain.last), ())):
            products = self.reading(turned, MATMUL)
            _need(len(products) == 1 and slope.of_value is None)
            _need(products[0].inputs[0] is turned)
            slope.of_value, slope.upstream = products[0], products[0].inputs[1]
            slope.inside.append(turned)
        again = [chain.weights]  # as the derivative reads them
        if chain.narrow is not chain.weights:
            again = self.reading(chain.narrow, CAST)
            slope.inside += again
        for weights in again:
            for x in self.reading(weights, multiply.op):
                other = x.inputs[1] if x.inputs[0] is weights else x.inputs[0]
                if other.op is subtract.op:
                    _need(slope.values is None)
                    self._follow_upstream(chain, slope, other, weights)
                    self._follow_products(chain, slope, x)
        return slope

    def _follow_upstream(
        self, chain: _Chain, slope: _Slope, difference: Node, weights: Node
    ) -> None:
        """From weights * (gradient - sum(gradient * weights)) back to upstream @ values^T."""
        gradient, spread = difference.inputs
        _need(spread.op is EXPAND and spread.inputs[0].op is SUM_OP)
        mean = spread.inputs[0]
        terms = mean.inputs[0]
        _need(mean.attrs == ((3,),) and terms.op is multiply.op)
        _need({*terms.inputs} == {gradient, weights})
        slope.inside += [difference, spread, mean, terms, gradient]
        while gradient.op is CAST:
            gradient = gradient.inputs[0]
            slope.inside.append(gradient)
        if chain.zeroed:
            _need(_is_choice(gradient, chain.mask))
            gradient = gradient.inputs[1]
            slope.inside.append(gradient)
        if chain.kept is not None:
            _need(gradient.op is multiply.op)
            chosen = gradient.inputs[0]
            _need(_factor(gradient, chosen) == chain.factor and _is_choice(chosen, chain.kept))
            gradient = chosen.inputs[1]
            slope.inside += [chosen, gradient]
        _need(gradient.op is MATMUL)
        upstream, slope.values = gradient.inputs
        _need(slope.upstream is None or slope.upstream is upstream)
        slope.upstream = upstream

    def _follow_products(self, chain: _Chain, slope: _Slope, found: Node) -> None:
        """From the same on to the gradients of both factors of the logits."""
        masked, scaled = chain.mask is None, chain.scale == 1
        slope.inside.append(found)
        while len(readers := self.readers.get(id(found), [])) == 1:
            (x,) = readers
            if x.op is WHERE:
                _need(not masked and _is_choice(x, chain.mask))
                masked = True
            elif x.op in (multiply.op, divide.op):
                _need(masked and not scaled and _factor(x, found) == chain.scale)
                scaled = True
            elif x.op is not CAST:
                break
            found = x
            slope.inside.append(found)
        _need(masked and scaled and found.dtype is chain.product.dtype)
        if chain.turned:
            readers = self.readers.get(id(found), [])
            _need(len(readers) == 1 and _turns(readers[0]))
            found = readers[0]
            slope.inside.append(found)
        left, right = chain.product.inputs
        for x in self.readers.get(id(found), ()):
            _need(x.op is MATMUL)
            if x.inputs[0] is found and slope.of_left is None:
                _need(_transposed(x.inputs[1], right))
                slope.of_left = x
            else:
                _need(slope.of_right is None and _transposed(x.inputs[0], left))
                slope.of_right = x


def _softmax_of(weights: Node, inside: list[Node]) -> Node:
    """What the last axis' softmax ending in a division is of."""
    powers, spread = weights.inputs
    _need(spread.op is EXPAND and spread.inputs[0].op is SUM_OP)
    sums = spread.inputs[0]
    shifted = powers.inputs[0]
    _need(sums.attrs == ((3,),) and sums.inputs[0] is powers and shifted.op is subtract.op)
    logits, level = shifted.inputs
    _need(level.op is EXPAND and level.inputs[0].op is MAX.op)
    top = level.inputs[0]
    _need(top.attrs == ((3,),) and top.inputs[0] is logits)
    inside += [powers, spread, sums, shifted, level, top]
    return logits


def _follow_logits(chain: _Chain, x: Node) -> None:
    """From softmax back to the product: a mask, then a bias, then a scale, each if there is one."""
    while x.op is not MATMUL:
        chain.inside.append(x)
        if x.op is CAST:
            _need(x.inputs[0].dtype.is_float)
            x = x.inputs[0]
        elif x.op is WHERE:
            _need(chain.mask is None and chain.bias is None and chain.scale == 1)
            chain.mask, below, hidden = x.inputs
            _need(chain.mask.shape == x.shape)
            _need(hidden.op is CONST and -math.inf < hidden.attrs[0] <= HIDING)
            x = below
        elif x.op is add.op:
            _need(chain.bias is None and chain.scale == 1)
            first, second = x.inputs
            _need(_of_product(first) != _of_product(second))
            x, chain.bias = (first, second) if _of_product(first) else (second, first)
            _need(chain.bias.shape == x.shape and chain.bias.dtype.is_float)
        elif x.op in (multiply.op, divide.op):
            below = x.inputs[1] if x.inputs[0].op is CONST else x.inputs[0]
            factor = _factor(x, below)
            _need(factor is not None)
            chain.scale *= factor or 1.0
            x = below
        else:
            _need(_turns(x) and x.inputs[0].op is MATMUL)
            chain.turned = True
            x = x.inputs[0]
    chain.inside.append(x)
    chain.product = x


def _turns(x: Node) -> bool:
    """Whether a node exchanges queries and keys; where either is one, that is only a shape."""
    if x.op is PERMUTE:
        return x.attrs == (_TURN,)
    if x.op is not RESHAPE or len(x.shape) != 4 or 1 not in x.shape[2:]:
        return False
    return x.inputs[0].shape == tuple(x.shape[k] for k in _TURN)


def _of_product(x: Node) -> bool:
    """Whether a node is a product's result, but for its scale, dtype and order of axes."""
    while x.op in (CAST, multiply.op, divide.op) or _turns(x):
        x = x.inputs[1] if x.inputs[0].op is CONST else x.inputs[0]
    return x.op is MATMUL


def _is_choice(x: Node, condition: Node | None) -> bool:
    """Whether a node is where(condition, something, 0)."""
    if x.op is not WHERE or x.inputs[0] is not condition:
        return False
    zero = x.inputs[2]
    return zero.op is CONST and zero.attrs[0] == 0


def _factor(x: Node, other: Node) -> float | None:
    """The number that `other` is multiplied with in `x`."""
    a, b = x.inputs
    number = b if a is other else a
    if number.op is not CONST or other not in (a, b) or (x.op is divide.op and a is not other):
        return None
    value = float(number.attrs[0])
    if x.op is divide.op:
        return 1 / value if value else None
    return value


def _key_of(kept: Node) -> Node:
    """The key that decides which elements of a whole array are kept."""
    places = kept.inputs[2]
    while places.op in (CAST, RESHAPE):
        places = places.inputs[0]
    if places.op is SLICE:  # rows that begin at multiples of four places
        _need(places.attrs == ((0, 0), (1, 1)) and places.shape[1] == kept.shape[-1])
        places = places.inputs[0]
    while places.op in (CAST, RESHAPE):
        places = places.inputs[0]
    count = kept.size // kept.shape[-1] * row_places(kept.shape)
    _need(places.op is IOTA and places.shape == (count,))
    first, second = map(_behind, kept.inputs[:2])
    _need(first.op is SLICE and second.op is SLICE and first.size == second.size == 1)
    _need(first.inputs[0] is second.inputs[0] and first.inputs[0].shape == (2,))
    _need(first.attrs[0] == (0,) and second.attrs[0] == (1,))
    return first.inputs[0]


def _is_causal(mask: Node) -> bool:
    """Whether a mask is Keras' causal one: cumsum(ones, queries) >= cumsum(ones, keys)."""
    sums = _behind(mask)
    length, source = mask.shape[2:]
    if sums.op is not greater_equal.op or mask.size != length * source:
        return False
    shapes = []
    for x in map(_behind, sums.inputs):
        if x.op is not SCAN or x.attrs != ("sum", False, False):
            return False
        ones = _behind(x.inputs[0])
        if ones.op is not CONST or ones.attrs[0] != 1:
            return False
        shapes.append(x.shape)
    return shapes == [(1, length, source), (length, source, 1)]


def _behind(x: Node) -> Node:
    """What a node reshapes or repeats."""
    while x.op in (RESHAPE, EXPAND):
        x = x.inputs[0]
    return x


def _transposed(x: Node, y: Node) -> bool:
    """Whether two nodes are one matrix for each head and its transpose."""
    a, b = operand(x, True), operand(y, True)
    order = (0, 1, 3, 2)
    return (
        x.shape == tuple(y.shape[k] for k in order)
        and a.base is b.base
        and a.offset == b.offset
        and all(
            n == 1 or a.strides[k] == b.strides[m]
            for k, (m, n) in enumerate(zip(order, x.shape, strict=True))
        )
    )


def _check_dtypes(chain: _Chain, value: Node, result: Node | None, slope: _Slope) -> None:
    left, right = chain.product.inputs
    same = [left, right, value, chain.last, *(x for x in slope.ends if x is not None)]
    same += [x for x in (result, slope.upstream) if x is not None]
    _need(len({x.dtype for x in same}) == 1)
    _need(result is None or result.attrs == chain.product.attrs)
    if result is not None and slope.values is not None:
        _need(_transposed(slope.values, value))


# -- what stands for them
def _replacements(
    chain: _Chain, value: Node, result: Node | None, slope: _Slope, info: DeviceInfo
) -> dict[int, Replacement]:
    lies = result is not None  # else the values are given as their transpose
    mask = chain.mask
    if mask is not None and mask.op is EXPAND:
        mask = mask.inputs[0]
    if mask is not None and _is_causal(mask):
        chain.causal, mask = True, None
    rest = (x for x in (chain.bias, mask, chain.key) if x is not None)
    values = [*chain.product.inputs, value, *rest]
    forward = traced(values, lambda *arrays: [_attention(chain, lies, *arrays)])
    node = next(x for x in topological(forward.results) if x.op is ATTENTION)
    record = library.record(ATTENTION)
    _need(record is not None and record.preferred(node, info))
    found = {} if result is None else {id(result): Replacement(forward, values, 0)}
    wanted = [(k, x) for k, x in enumerate(slope.ends) if x is not None]
    if wanted and slope.upstream is not None:
        values = [*values, slope.upstream]
        # they must be there before what is replaced
        _need(max(x.serial for x in values) < min(x.serial for _, x in wanted))
        backward = traced(values, lambda *arrays: _gradients(chain, lies, *arrays))
        found |= {id(x): Replacement(backward, values, k) for k, x in wanted}
    return found


def _attention(
    chain: _Chain, lies: bool, left: Array, right: Array, value: Array, *rest: Array
) -> Array:
    """The result of a chain, (batch, heads, queries, depth)."""
    left, right = transpose(left, (0, 2, 1, 3)), transpose(right, (0, 3, 1, 2))
    query, key = (right, left) if chain.turned else (left, right)
    value = transpose(value, (0, 2, 1, 3) if lies else (0, 3, 1, 2))
    extra = list(rest)
    shape = chain.weights.shape
    seen = None
    if chain.mask is not None and not chain.causal:
        place = 0 if chain.bias is None else 1
        seen = transpose(some(extra[place], -1, keepdims=True), (0, 2, 1, 3))
        extra[place] = expand_to(extra[place], shape)
    dropout = None
    if chain.kept is not None:
        dropout = (chain.kept.inputs[3].attrs[0], chain.factor)
    attrs = (chain.scale, chain.causal, chain.bias is not None, *chain.product.attrs, dropout)
    batch, length, heads, _ = query.shape
    results = [((batch, length, heads, value.shape[3]), value.dtype), (shape[:3], float32)]
    out = apply_multi(ATTENTION, (query, key, value, *extra), attrs, results)[0]
    if chain.zeroed and seen is not None:  # the kernels give queries that see no key the mean
        out = where(seen, out, 0)
    return transpose(out, (0, 2, 1, 3))


def _gradients(
    chain: _Chain, lies: bool, left: Array, right: Array, value: Array, *rest: Array
) -> list[Array]:
    """The gradients of both factors of the logits and of the values; upstream comes last."""
    *extra, upstream = rest
    with GradientTape() as tape:
        out = _attention(chain, lies, left, right, value, *extra)
    first, second, third = tape.gradient(out, [left, right, value], upstream)
    return [first, second, third if lies else transpose(third, _TURN)]
