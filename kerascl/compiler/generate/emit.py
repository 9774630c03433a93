"""From expressions over nodes to OpenCL C statements."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kerascl.compiler.generate import whole
from kerascl.compiler.graph import views
from kerascl.compiler.graph.symbolic import (
    LOOP_INDEX,
    Expr,
    Quotient,
    Remainder,
    Var,
    linear,
    number,
    variables,
)
from kerascl.core.node import Node
from kerascl.core.op import CONST, Kind
from kerascl.dtypes import DType
from kerascl.kernels.contract import arrival
from kerascl.kernels.contract.plan import Counters, Scalar
from kerascl.kernels.contract.source import Source
from kerascl.ops.declare import CAST
from kerascl.ops.movement import IOTA
from kerascl.ops.pointwise import less
from kerascl.ops.random import KEEP_COARSE
from kerascl.ops.views import CONCAT, PAD
from kerascl.runtime.device import DeviceInfo

if TYPE_CHECKING:
    from kerascl.compiler.generate.neighbours import Neighbours

# A double as a float that rounds further as the double itself would: cut off, and where something
# was lost the last bit set (rounding to odd, Boldo and Melquiond 2008).
_TO_ODD = """\
inline float kcl_to_odd(double v) {
  const float f = convert_float_rtz(v);
  return (double)f == v || v != v ? f : as_float(as_uint(f) | 1u);
}
"""


@dataclass(frozen=True)
class BufferArg:
    """The memory of a node."""

    node: Node


@dataclass(frozen=True)
class WorkArg:
    """Workspace of a cluster, by number."""

    index: int


@dataclass(frozen=True)
class LoopStep:
    """The number of the loop step that a launch belongs to, as an int."""


class Writer:
    """Collects parameters, helpers and text of one kernel.

    With `generic`, sizes and constants become kernel arguments, so that one
    program serves every shape; otherwise they are literals.  Names of memory begin with `prefix`.
    """

    def __init__(self, generic: bool, wide: bool, prefix: str = "buf") -> None:
        self.generic = generic
        self.prefix = prefix
        self.index_type = "long" if wide else "int"
        self.params: list[str] = []
        self.args: list[Any] = []
        self.helpers: dict[str, None] = {}
        self.members: set[int] = set()  # storage nodes that this kernel itself computes
        self.indices: list[Expr] = []  # every index expression used, for merging dimensions
        self.uses_double = False
        self.whole: dict[str, whole.Span] = {}  # what is known of variables
        self.ints: dict[str, str] = {}  # the same numbers in C's int, of such variables
        self.unrounded: dict[str, str] = {}  # what variables were rounded from
        self.codes: dict[int, str] = {}  # by ids of nodes, C expressions instead of operations' own
        self.options: tuple[str, ...] = ()
        self._buffers: dict[int, str] = {}
        self._offsets: dict[int, str] = {}
        self._numbers: dict[int, str] = {}
        self._scalars: dict[tuple[Any, ...], str] = {}
        self._names = 0

    def name(self, prefix: str = "val") -> str:
        """A name for a variable that no other has."""
        self._names += 1
        return f"{prefix}{self._names}"

    def ctype(self, dtype: DType) -> str:
        """The C type that values of a dtype are computed in."""
        if dtype.is_double:
            self.uses_double = True
        return dtype.compute

    def buffer(self, node: Node) -> str:
        """The parameter for the memory of a storage node."""
        key = id(node)
        if key not in self._buffers:
            name = f"{self.prefix}{len(self._buffers)}"
            self._buffers[key] = name
            self.params.append(f"__global {node.dtype.storage}* {name}")
            self.args.append(BufferArg(node))
            self.ctype(node.dtype)
        return self._buffers[key]

    def workspace(self, index: int, ctype: str) -> str:
        """The parameter for block `index` of the workspace, as a pointer to `ctype`."""
        name = f"w{index}"
        self.params.append(f"__global {ctype}* {name}")
        self.args.append(WorkArg(index))
        return name

    def counters(self, count: int, info: DeviceInfo) -> tuple[str, str]:
        """Parameters of arrival counters: their pointer, and the first that is this kernel's."""
        self.params += ["volatile __global uint* arrivals", "int arrival"]
        self.args += [Counters(count), Scalar("int", 0)]
        self.helper(arrival.helper(info))
        self.options = arrival.options(info)
        return "arrivals", "arrival"

    def number(self, value: int) -> str:
        """An integer of the index type."""
        if not self.generic or value in (0, 1):
            return str(value) if -(2**31) < value < 2**31 else f"{value}L"
        if value not in self._numbers:
            name = f"num{len(self._numbers)}"
            self._numbers[value] = name
            self.params.append(f"const {self.index_type} {name}")
            self.args.append(Scalar(self.index_type, value))
        return self._numbers[value]

    def offset(self, node: Node, value: int) -> str:
        """The parameter for where a node's region begins: kernels that differ in it only are the
        same."""
        key = id(node)
        if key not in self._offsets:
            self._offsets[key] = f"off{len(self._offsets)}"
            self.params.append(f"const {self.index_type} {self._offsets[key]}")
            self.args.append(Scalar(self.index_type, value))
        return self._offsets[key]

    def constant(self, value: Any, dtype: DType) -> str:
        """A scalar in the compute type of `dtype`."""
        ctype = self.ctype(dtype)
        if dtype.is_complex:
            return literal(value, dtype)
        simple = isinstance(value, bool) or value in (0, 1, 2, -1, 0.5)
        if not self.generic or simple or value != value or value in (math.inf, -math.inf):
            return literal(value, dtype)
        key = (value, ctype)
        if key not in self._scalars:
            name = f"con{len(self._scalars)}"
            self._scalars[key] = name
            self.params.append(f"const {ctype} {name}")
            self.args.append(Scalar(ctype, value))
        return self._scalars[key]

    def index(self, expr: Expr) -> str:
        """C text of an index expression."""
        self.indices.append(expr)
        return self._index(expr)

    def _index(self, expr: Expr) -> str:
        parts = []
        for atom, k in expr.terms:
            text = self._atom(atom)
            if k == -1:
                text = f"-{text}"
            elif k < 0:
                text = f"-{self.number(-k)}*{text}"
            elif k != 1:
                text = f"{self.number(k)}*{text}"
            parts.append(text)
        if expr.const or not parts:
            const = self.number(abs(expr.const))
            parts.append(const if expr.const >= 0 else f"-{const}")
        text = parts[0]
        for part in parts[1:]:
            text += part if part.startswith("-") else "+" + part
        return text if len(parts) == 1 and not text.startswith("-") else f"({text})"

    def _atom(self, atom: Var | Quotient | Remainder) -> str:
        if isinstance(atom, Var):
            if atom is LOOP_INDEX and LoopStep() not in self.args:
                self.params.append(f"const int {atom.name}")
                self.args.append(LoopStep())
            return atom.name
        sign = "/" if isinstance(atom, Quotient) else "%"
        return f"({self._index(atom.top)}{sign}{self.number(atom.by)})"

    def condition(self, guards: tuple[Any, ...]) -> str:
        """C text that holds where every guard does."""
        tests = []
        for expr, size in guards:
            text = self.index(expr)
            if size == 1 and expr.lo >= 0:
                tests.append(f"{text} == 0")
                continue
            if expr.lo < 0 and expr.hi >= size:
                # In one comparison: at two, in a loop that sums integers, Intel's runtime crashes.
                tests.append(f"(u{self.index_type}){text} < {self.number(size)}")
            elif expr.lo < 0:
                tests.append(f"{text} >= 0")
            elif expr.hi >= size:
                tests.append(f"{text} < {self.number(size)}")
        return " && ".join(tests) or "1"

    def helper(self, text: str) -> None:
        """Have the kernel's text begin with these C functions, once."""
        self.helpers.setdefault(text)

    def source(self, name: str, body: str, group: int = 0, lanes: int = 0) -> Source:
        """The kernel and all that it needs; see there for `group` and `lanes`."""
        return Source(
            name, tuple(self.params), body, tuple(self.helpers), self.uses_double, self.options,
            group, lanes,
        )  # fmt: skip


def literal(value: Any, dtype: DType) -> str:
    """A C literal in the compute type of `dtype`."""
    if dtype.is_complex:
        parts = (literal(p, dtype.real) for p in (value.real, value.imag))
        return f"({dtype.compute})({', '.join(parts)})"
    if dtype.is_bool:
        return "1" if value else "0"
    if dtype.is_integer:
        if dtype.compute == "int":
            return f"({value})" if value > -(2**31) else "(-2147483647-1)"
        if dtype.compute == "long":
            return f"({value}L)" if value > -(2**63) else "(-9223372036854775807L-1L)"
        if dtype.compute == "ulong":
            return f"({value}UL)"
        if dtype.compute == "uint":
            return f"({value}u)"
        return f"(({dtype.compute})({value}))"
    suffix = "" if dtype.name == "float64" else "f"
    value = float(value)
    cast = "" if suffix else "(double)"
    if value != value:
        first = "f" if math.copysign(1, value) < 0 else "7"  # the sign of NAN is a driver's choice
        bits = f"float(0x{first}fc00000u" if suffix else f"double(0x{first}ff8000000000000UL"
        return f"(as_{bits} - KCL_ZERO))"
    if math.isinf(value):
        return f"({cast}{'-' if value < 0 else ''}INFINITY)"
    return f"({value!r}{suffix})"


def zero(dtype: DType) -> str:
    """Zero as a C literal."""
    return literal(0, dtype)


def rounded(value: str, dtype: DType) -> str:
    """A computed value as memory would hold it: what is fused must not change a result."""
    return dtype.round.format(v=value) if dtype.round else value


def _is_before(node: Node, coords: tuple[Expr, ...]) -> bool:
    """Whether a comparison finds every place along an axis, by its bounds, before a constant."""
    place, end = node.inputs
    plain = place.op is IOTA and end.op is CONST
    return plain and coords[place.attrs[0]].hi < end.attrs[0]


class Scope:
    """A block of C statements that remembers the values it has computed.

    Args:
        own: names of the variables that change from one run of the block to the next, if it is a
            loop's body: what depends on none of them is computed before the loop, by the parent.

    Attributes:
        rounds: whether operations of 16-bit floats and float8 give values of these dtypes.
        neighbours: the vectors that elements are read and stored with, if they are.
    """

    rounds = True
    neighbours: Neighbours | None = None

    def __init__(
        self, writer: Writer, parent: Scope | None = None, own: Iterable[str] | None = None
    ) -> None:
        self.writer = writer
        self.parent = parent
        self.own = None if own is None else set(own)
        self.lines: list[str] = []
        self.stores: list[str] = []
        self.memo: dict[tuple[Any, ...], str] = {}

    def text(self, indent: int = 1) -> str:
        """The lines so far, indented."""
        return "".join("  " * indent + line + "\n" for line in self.lines)

    def flush(self) -> None:
        """Emit the stores.  They come last: a result may lie where an input is still to be read."""
        self.lines.extend(self.stores)
        self.stores.clear()

    def find(self, key: tuple[Any, ...]) -> str | None:
        """The variable that holds what `key` stands for, here or in a scope around; or None."""
        scope: Scope | None = self
        while scope is not None:
            if key in scope.memo:
                return scope.memo[key]
            scope = scope.parent
        return None

    def define(self, ctype: str, value: str) -> str:
        """Declare a variable with a value; gives its name."""
        name = self.writer.name()
        self.lines.append(f"const {ctype} {name} = {value};")
        if self.own is not None:
            self.own.add(name)
        return name

    def _varies(self, coords: Iterable[Expr], guards: tuple[Any, ...]) -> bool:
        """Whether an element at `coords` may differ from one run of this block to the next."""
        if self.own is None:
            return True
        exprs = (*coords, *(expr for expr, _ in guards))
        return any(var.name in self.own for expr in exprs for var, _ in variables(expr))

    def know(self, node: Node, index: Expr, name: str) -> None:
        """The element of a node's memory at linear `index` is in variable `name`."""
        self.memo[id(node), index, ()] = name

    def hold(self, node: Node, name: str) -> None:
        """The kernel's own value of a node is in variable `name`.

        Fusion has seen to it that it is read only by what shares its index (fuse/rules.py).
        """
        self.memo[id(node),] = name

    def element(self, node: Node, index: Expr, guards: tuple[Any, ...]) -> str:
        """The element of a storage node at a linear index."""
        if self.parent is not None and not self._varies((index,), guards):
            return self.parent.element(node, index, guards)
        key = (id(node), index, guards)
        found = self.find(key) or self.find((id(node), index, ())) or self.find((id(node),))
        if found is not None:
            return found
        writer = self.writer
        pointer = writer.buffer(node)
        text = None if guards or not self.neighbours else self.neighbours.read(self, node, index)
        if text is None:
            text = node.dtype.load.format(p=pointer, i=writer.index(index))
        if guards:
            text = f"({writer.condition(guards)}) ? {text} : {zero(node.dtype)}"
        name = self.define(writer.ctype(node.dtype), text)
        self.memo[key] = name
        return name

    def value(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        """The C variable holding a node's element at `coords`.

        `stored` are the ids of storage nodes that lie in memory (or are
        computed by this kernel); everything else is computed inline.
        """
        op = node.op
        if op is CONST:
            return self.writer.constant(node.attrs[0], node.dtype)
        if id(node) in stored:
            return self.element(node, linear(coords, node.shape), guards)
        return self.compute(node, coords, guards, stored)

    def compute(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        """Like `value`, for a node that is computed here even if it gets memory too."""
        op = node.op
        if op is CONST:
            return self.writer.constant(node.attrs[0], node.dtype)
        if self.parent is not None and not self._varies(coords, guards):
            return self.parent.compute(node, coords, guards, stored)
        key = (id(node), coords, guards)
        found = self.find(key)
        if found is not None:
            return found
        if op.kind is Kind.VIEW:
            name = self._view(node, coords, guards, stored)
        elif op.kind is Kind.GATHER:
            name = self._gather(node, coords, guards, stored)
        elif op.kind is Kind.POINTWISE:
            name = self._pointwise(node, coords, guards, stored)
        else:
            raise AssertionError(f"{node} is neither in memory nor an expression")
        self.memo[key] = name
        return name

    def _view(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        if node.op is CONCAT:
            return self._concat(node, coords, guards, stored)
        if not node.inputs[0].size:  # `pad` makes elements from none, other views have none
            fill = node.attrs[2] if node.op is PAD else 0
            return self.writer.constant(fill, node.dtype)
        inner, extra = views.source(node, coords)
        value = self.value(node.inputs[0], inner, guards + extra, stored)
        if not extra:
            return value
        writer = self.writer
        other = writer.constant(node.attrs[2], node.dtype)
        name = self.define(
            writer.ctype(node.dtype), f"({writer.condition(extra)}) ? {value} : {other}"
        )
        filled = whole.constant(node.attrs[2], node.dtype)
        return self._note(name, whole.either(self._known(node.inputs[0], value), filled))

    def _concat(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        (axis,) = node.attrs
        writer = self.writer
        start, tests, values = 0, [], []
        for x in node.inputs:
            place = coords[axis] - start
            if place.lo >= 0 and place.hi < x.shape[axis]:
                inner = tuple(place if a == axis else c for a, c in enumerate(coords))
                return self.value(x, inner, guards, stored)
            start += x.shape[axis]
        start = 0
        for x in node.inputs:
            size = x.shape[axis]
            place = coords[axis] - start
            inner = tuple(place if a == axis else c for a, c in enumerate(coords))
            start += size
            guard = ((place, size),) if place.lo < 0 or place.hi >= size else ()
            values.append(self.value(x, inner, guards + guard, stored))
            tests.append(f"{writer.index(coords[axis])} < {writer.number(start)}")
        text = values[-1]
        for test, value in zip(reversed(tests[:-1]), reversed(values[:-1]), strict=True):
            text = f"({test} ? {value} : {text})"
        return self.define(writer.ctype(node.dtype), text)

    def _gather(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        (spec,) = node.attrs
        x, *indices = node.inputs
        fill = node.op.extra.get("fill")
        place, inside = [], []
        for axis, (kind, k) in enumerate(spec):
            if kind == "d":
                place.append(coords[k])
                continue
            size = x.shape[axis]
            value = self.value(indices[k], coords, guards, stored)
            # clamped, so that a wrong index can never leave the buffer
            top = self.writer.number(max(size - 1, 0))
            if fill is not None:
                signed = indices[k].dtype.kind == "i"
                above = f"{value} < {self.writer.number(size)}"
                inside.append(f"{value} >= 0 && {above}" if signed else above)
            if size == 1:
                place.append(number(0))
                continue
            ctype = self.writer.index_type
            # in the wider of both types: what is out of range must not come back into it
            own = indices[k].dtype.compute
            wide = own if own in ("long", "ulong", "uint") else ctype
            if own == "uint" and ctype == "long":
                wide = ctype
            text = f"({ctype})clamp(({wide}){value}, ({wide})0, ({wide}){top})"
            if fill is not None and wide == "int":  # what is out of range is not used
                text = f"(int)min((uint){value}, (uint){top})"
            # one variable for each place: neighbours then see that theirs is the same
            name = self.find((text,)) or self.define(ctype, text)
            self.memo[text,] = name
            place.append(Expr(((Var(name, 0, size - 1), 1),), 0))
        found = self.value(x, tuple(place), guards, stored)
        if fill is None:
            return found
        writer = self.writer
        other = writer.constant(fill(node.dtype), node.dtype)
        name = self.choose(node, " && ".join(inside), found, other)
        filled = whole.constant(fill(node.dtype), node.dtype)
        return self._note(name, whole.either(self._known(x, found), filled))

    def choose(self, node: Node, test: str, found: str, other: str) -> str:
        """A variable with what a gather `found`, or where `test` does not hold with its `other`."""
        return self.define(self.writer.ctype(node.dtype), f"({test}) ? {found} : {other}")

    def _known(self, node: Node, name: str) -> whole.Span:
        """What is known of a node's element, which `name` holds."""
        if node.op is CONST:
            return whole.constant(node.attrs[0], node.dtype)
        return self.writer.whole.get(name) or whole.of_dtype(node.dtype)

    def _int(self, node: Node, name: str) -> str | None:
        """C text, of type int, of a node's element that `name` holds; None where there is none."""
        if node.op is CONST:
            value = node.attrs[0]
            span = whole.constant(value, node.dtype)
            # as an int, -0.0 would be 0.0
            return f"({span[0]})" if span and (value or math.copysign(1, value) > 0) else None
        own = name if node.dtype.compute in ("char", "uchar", "short", "ushort", "int") else None
        return self.writer.ints.get(name, own)

    def _pointwise(
        self, node: Node, coords: tuple[Expr, ...], guards: tuple[Any, ...], stored: set[int]
    ) -> str:
        writer = self.writer
        op = node.op
        if op is less.op and _is_before(node, coords):
            return literal(1, node.dtype)
        args = []
        for x in node.inputs:
            args.append(self.value(x, coords if x.shape else (), guards, stored))
        ctype = writer.ctype(node.dtype)
        for helper in op.helpers:  # one text serves every compute type, as @T
            helper = helper.replace("@T", ctype).replace("@R", ctype.rstrip("2"))
            writer.helper(helper.replace("@U", node.dtype.wrapping))
        spans = [self._known(x, name) for x, name in zip(node.inputs, args, strict=True)]
        known = whole.result(node, spans)
        ints = [self._int(x, name) for x, name in zip(node.inputs, args, strict=True)]
        text = whole.int_text(node, ints, spans, known)
        if op is CAST:
            value = text if text and node.dtype.compute == "float" else args[0]
            value = self._cast(value, node.inputs[0].dtype, node.dtype, spans[0], known)
            return self._note(self._rounded(ctype, value, node.dtype), known, text)
        if text and node.dtype.compute == "float":
            writer.helper(whole.FLOAT)
            return self._note(self.define(ctype, f"kcl_small{text}"), known, text)
        if op is KEEP_COARSE:
            four = self._four_of(node, coords, args)
            if four is not None:
                return self.define(ctype, f"{four} < {args[3]}")
        narrow = int(node.dtype.is_float and node.dtype.itemsize <= 2)
        names = {"T": ctype, "U": node.dtype.wrapping, "N": str(narrow)}
        if op is IOTA:
            names["coordinate"] = writer.index(coords[node.attrs[0]])
        for k, attr in enumerate(node.attrs):
            names[f"a{k}"] = str(attr)
        value = writer.codes.get(id(node), op.code).format(*args, **names)
        if self.rounds and not op.exact and known is None:
            value = rounded(value, node.dtype)
        return self._note(self._rounded(ctype, value, node.dtype), known, text)

    def _rounded(self, ctype: str, value: str, dtype: DType) -> str:
        """Declare a variable, and keep what its value is rounded from if it is; gives its name."""
        name = self.define(ctype, value)
        begin, _, end = dtype.round.partition("{v}")
        if dtype.round and value.startswith(begin) and value.endswith(end):
            self.writer.unrounded[name] = value.removeprefix(begin).removesuffix(end)
        return name

    def _note(self, name: str, known: whole.Span, text: str | None = None) -> str:
        """Keep what is known of a variable; gives its name."""
        if known:
            self.writer.whole[name] = known
        if text:
            self.writer.ints[name] = text
        return name

    def four(self, keys: list[str], place: Expr, ctype: str) -> str | None:
        """The word that decides whether the element at a place is kept, of a block that neighbours
        share; None where nothing is known of neighbours."""
        return None

    def _four_of(self, node: Node, coords: tuple[Expr, ...], args: list[str]) -> str | None:
        """`four` at the place that a node's third input counts."""
        counter = node.inputs[2]
        while counter.op is not IOTA:
            extra: tuple[Any, ...] = ()
            if counter.op.kind is Kind.VIEW and counter.op is not CONCAT:
                coords, extra = views.source(counter, coords)
            elif counter.op is not CAST:
                return None
            if extra:
                return None
            counter = counter.inputs[0]
        # in the type of the counter: of 32 bits, all have one key
        return self.four(args[:2], coords[counter.attrs[0]], node.inputs[2].dtype.compute)

    def _cast(
        self, value: str, old: DType, new: DType, span: whole.Span = None, known: whole.Span = None
    ) -> str:
        """`span` is what is known of the value before, `known` after."""
        if new.is_bool:
            test = "(({v}).x != 0 || ({v}).y != 0)" if old.is_complex else "({v} != 0)"
            return test.format(v=value)
        if new.is_complex and old.is_complex:
            return f"convert_{new.compute}({value})"
        if new.is_complex:
            return f"({new.compute})(({new.real.compute}){value}, 0)"
        if old.is_complex:
            return self._cast(f"(({value}).x)", old.real, new)
        if new.is_integer and old.is_float and (span is None or span != known):
            # drivers differ in what NaN becomes; a choice between bytes ends llvmpipe's compiler
            number = f"{value} != {value} ? ({old.compute})0 : {value}"
            return f"convert_{new.compute}_sat({number})"
        if new.round and self.rounds and not old.is_bool and known is None:
            if old.is_double and new.name != "bfloat16":  # that is cut from a float everywhere
                self.writer.helper(_TO_ODD)
                value = f"kcl_to_odd({value})"
            return new.round.format(v=f"(float){value}")
        return f"({new.compute}){value}"
