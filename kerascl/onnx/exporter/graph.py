"""The graph of the file while it is made: nodes, initialisers, and where each Value is found."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kerascl.core.array import Array, State
from kerascl.core.op import DATA
from kerascl.dtypes import DType, int64
from kerascl.onnx.exporter.errors import ExportError
from kerascl.onnx.exporter.merging import Value
from kerascl.onnx.exporter.sizes import (
    Dim,
    Shape,
    Size,
    Symbols,
    is_static,
    joined,
    same_everywhere,
)
from kerascl.ops.views import PERMUTE, RESHAPE

Order = tuple[int, ...]  # an order of axes: axis k of the tensor is axis order[k] of the Value

TYPES = {
    "bool": TensorProto.BOOL, "int8": TensorProto.INT8, "int16": TensorProto.INT16,
    "int32": TensorProto.INT32, "int64": TensorProto.INT64, "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16, "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64,
    "float8_e4m3fn": TensorProto.FLOAT8E4M3FN, "float8_e5m2": TensorProto.FLOAT8E5M2,
    "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE,
}  # fmt: skip


def type_of(dtype: DType, opset: int) -> int:
    """ONNX' number of a dtype.

    Raises:
        ExportError: for complex dtypes, which its operators do not take, and for float8 before
            opset 19.
    """
    if dtype.name not in TYPES:
        raise ExportError(f"ONNX operators have no {dtype.name}; export real arrays")
    if dtype.is_float8 and opset < 19:
        raise ExportError(f"{dtype.name} needs opset 19 or newer, not {opset}")
    return TYPES[dtype.name]


@functools.cache
def _exists(kind: str, opset: int) -> bool:
    try:
        onnx.defs.get_schema(kind, opset)
    except onnx.defs.SchemaError:
        return False
    return True


@dataclass
class Form:
    """Where a Value is found: tensors of its elements before broadcasting, by order of axes.

    `shape` is that of the tensors in the Value's own order: its rank with 1 along axes that are
    broadcast, or () for one number.
    """

    shape: Shape
    names: dict[Order, str] = field(default_factory=dict)


class Graph:
    """Nodes that are added one after the other; the body of a loop is a Graph within another.

    Attributes:
        opset: the version of the operators.
        nodes, initializers, shapes: what the file gets; shapes are those of named tensors.
        several: of operations with several results: the name of each.
    """

    def __init__(self, opset: int, symbols: Symbols, outer: Graph | None = None):
        self.opset = opset
        self.symbols = symbols
        self.outer = outer
        self.root: Graph = self if outer is None else outer.root
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.shapes: dict[str, tuple[Shape, DType]] = {}
        self.several: dict[Value, list[str]] = {}
        self.label = ""
        self._forms: dict[Value, Form] = {}
        self._used: dict[str, int] = {}
        self._shared: dict[Any, str] = {}  # constants and sizes, by what they are
        self._where: dict[Dim, tuple[str, int]] = {}  # a tensor and an axis that has the size
        self._states: dict[Value, State] = {}
        self._later: dict[Value, Callable[[], object]] = {}  # how to bind a Value once it is read
        self._outside: dict[Value, Value] = {}  # what stands for a Value of the outer graph

    # -- nodes ------------------------------------------------------------------
    def unique(self, name: str) -> str:
        """`name`, or one like it that is free, and taken now."""
        used = self.root._used
        count = used.get(name, 0)
        used[name] = count + 1
        return name if not count else self.unique(f"{name}_{count}")

    def reserve(self, names: list[str]) -> None:
        """Take the names of the file's inputs and outputs."""
        for name in names:
            self.unique(name)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The result of a new node; "" stands for an input that is left out."""
        return self.add_several(1, kind, *inputs, **attributes)[0]

    def add_several(self, outputs: int, kind: str, *inputs: str, **attributes: Any) -> list[str]:
        """The results of a new node."""
        if not _exists(kind, self.opset):
            raise ExportError(
                f"{self.label or 'the function'} needs the operator {kind}, which came after "
                f"opset {self.opset}: give a newer one"
            )
        label = re.sub(r"[^\w./() -]", "_", self.label)
        name = self.unique(f"{label}/{kind}" if label else kind)
        names = [name] if outputs == 1 else [f"{name}.{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name, **attributes))
        return names

    def reduce(self, kind: str, name: str, axes: Sequence[int], keepdims: bool = True) -> str:
        """A reduction; its axes became an input in opset 18, those of ReduceSum in 13."""
        if self.opset < 18 and kind != "ReduceSum":
            return self.add(kind, name, axes=list(axes), keepdims=int(keepdims))
        return self.add(kind, name, self.constant(list(axes), int64), keepdims=int(keepdims))

    def pad(self, name: str, low: Shape, high: Shape, fill: str) -> str:
        """A tensor padded along every axis."""
        return self.add("Pad", name, self.sizes((*low, *high)), fill)

    def split(self, name: str, parts: int, axis: int) -> list[str]:
        """Equal parts along an axis."""
        counted = {"num_outputs": parts} if self.opset >= 18 else {}
        return self.add_several(parts, "Split", name, axis=axis, **counted)

    # -- constants and sizes ----------------------------------------------------
    def initializer(self, value: np.ndarray, name: str = "constant") -> str:
        """A tensor of the file."""
        root = self.root
        name = root.unique(name)
        host = np.ascontiguousarray(value).reshape(value.shape)
        root.initializers[name] = numpy_helper.from_array(host, name)
        return name

    def constant(self, value: Any, dtype: DType) -> str:
        """A constant, a number or numbers; equal ones are shared."""
        host = np.asarray(value, dtype.numpy)
        key = (dtype.name, host.shape, host.tobytes())
        found = self.root._shared.get(key)
        if found is None:
            type_of(dtype, self.opset)
            found = self.root._shared[key] = self.initializer(host)
        return found

    def size(self, size: Size) -> str:
        """One size as an int64 tensor of shape (1,)."""
        if not isinstance(size, Dim):
            return self.constant([size], int64)
        root = self.root
        found = root._shared.get(size)
        if found is None:
            label, root.label = root.label, "sizes"
            found = root._shared[size] = root._computed(size)
            root.label = label
        return found

    def _computed(self, size: Dim) -> str:
        terms = None if self._is_symbol(size) else self.symbols.polynomial(size)
        if terms is None:
            return self._measured(size)
        total = ""
        for names, factor in terms.items():
            parts = [self.size(self.symbols.dimension(k)) for k in names]
            if factor != 1 or not parts:
                parts.append(self.constant([int(factor)], int64))
            term = parts[0]
            for part in parts[1:]:
                term = self.add("Mul", term, part)
            total = self.add("Add", total, term) if total else term
        return total

    def _measured(self, size: Dim) -> str:
        """A size that some tensor has, or a multiple of one by another or by a constant."""
        if size in self._where:
            name, axis = self._where[size]
            return self.add("Shape", name, start=axis, end=axis + 1)
        for known in self._where:
            pairs = list(zip(size.values, known.values, strict=True))
            if all(k and n % k == 0 for n, k in pairs):
                rest = joined([n // k for n, k in pairs])
                if rest in self._where or not isinstance(rest, Dim):
                    return self.add("Mul", self.size(known), self.size(rest))
        same_everywhere(size, "a size")
        raise AssertionError

    def _is_symbol(self, size: Dim) -> bool:
        return any(size == self.symbols.dimension(k) for k in range(len(self.symbols.symbols)))

    def sizes(self, shape: Shape) -> str:
        """Sizes as an int64 vector."""
        if is_static(shape):
            return self.constant(list(shape), int64)
        found = self.root._shared.get(shape)
        if found is None:
            parts = [self.size(n) for n in shape]
            root = self.root
            found = root.add("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
            root._shared[shape] = found
        return found

    def number(self, value: Any, dtype: DType) -> str:
        """A number of shape (), which may depend on sizes: be one, or one over it.

        Raises:
            ExportError: when it depends on sizes in another way.
        """
        if not isinstance(value, Dim):
            return self.constant(value, dtype)
        inverse = any(v != int(v) for v in value.values)
        whole = Dim(tuple(round(1 / v if inverse and v else v) for v in value.values))
        if inverse:
            pairs = zip(value.values, whole.values, strict=True)
            if not all(n and abs(v * n - 1) < 1e-6 for v, n in pairs):
                same_everywhere(value, "a number")
        scalar = self.add("Squeeze", self.size(whole), self.constant([0], int64))
        made = self.cast(scalar, dtype)
        return self.add("Reciprocal", made) if inverse else made

    def cast(self, name: str, dtype: DType) -> str:
        """A tensor in another dtype."""
        return self.add("Cast", name, to=type_of(dtype, self.opset))

    # -- Values -----------------------------------------------------------------
    def bind(
        self, value: Value, name: str, order: Order | None = None, shape: Shape | None = None
    ) -> None:
        """Say where a Value is found.

        Args:
            order: of the tensor's axes.
            shape: where some axes are broadcast: the Value's shape with 1 there, or ().
        """
        shape = value.shape if shape is None else shape
        order = tuple(range(len(shape))) if order is None or not shape else order
        form = self._forms.setdefault(value, Form(shape))
        form.names[order] = name
        own = tuple(shape[a] for a in order)
        self.shapes.setdefault(name, (own, value.dtype))
        if self.outer is None:
            for axis, n in enumerate(own):
                if isinstance(n, Dim):
                    self._where.setdefault(n, (name, axis))

    def is_bound(self, value: Value) -> bool:
        """Whether a Value is found already, as an input is."""
        return value in self._forms or value in self.several

    def form(self, value: Value) -> Form:
        """Where a Value is found."""
        return self._forms[value]

    def order(self, value: Value) -> Order | None:
        """The order of axes that a Value is found in, if that is not its own."""
        form = self.form(value)
        own = tuple(range(len(form.shape)))
        if own in form.names or not form.names or form.shape != value.shape:
            return None
        return next(iter(form.names))

    def narrow(self, value: Value, order: Order | None = None) -> str:
        """The tensor of a Value before broadcasting, with its axes in an order."""
        form = self.form(value)
        own = tuple(range(len(form.shape)))
        order = own if order is None or not form.shape else order
        if not form.names:
            self._later[value]()
        if order not in form.names:
            source, name = next(iter(form.names.items()))
            moved = self.add("Transpose", name, perm=[source.index(a) for a in order])
            form.names[order] = moved
            self.shapes.setdefault(moved, (tuple(form.shape[a] for a in order), value.dtype))
        return form.names[order]

    def name(self, value: Value, order: Order | None = None) -> str:
        """The tensor of a Value, with its axes in an order."""
        form = self.form(value)
        if form.shape == value.shape:
            return self.narrow(value, order)
        order = tuple(range(len(value.shape))) if order is None else order
        name = self.narrow(value, order)
        return self.add("Expand", name, self.sizes(tuple(value.shape[a] for a in order)))

    # -- weights ----------------------------------------------------------------
    def bind_state(self, value: Value, state: State) -> None:
        """A Value that stands for a State: an initialiser of its name, once it is read."""
        self._states[value] = state
        self.bind_later(value, lambda: self.weight(value, tuple(range(len(value.shape)))))

    def bind_later(self, value: Value, bind: Callable[[], object]) -> None:
        """A Value that `bind` binds when it is read first."""
        self._forms[value] = Form(value.shape)
        self._later[value] = bind

    def bind_captured(self, value: Value, outside: Value) -> None:
        """In the body of a loop: a Value that stands for one of the graph around."""
        assert self.outer is not None
        self._outside[value] = outside
        self.bind(value, self.outer.name(outside))

    def is_constant(self, value: Value) -> bool:
        """Whether a Value is a weight or constant, perhaps behind views."""
        while value.op in (RESHAPE, PERMUTE) and is_static(value.shape):
            (value,) = value.inputs
        if value in self._outside:
            assert self.outer is not None
            return self.outer.is_constant(self._outside[value])
        return value in self._states or value.op is DATA

    def host(self, value: Value) -> tuple[np.ndarray, str] | None:
        """The value and the name of a weight or constant, also behind views; else None."""
        if value in self._outside:
            assert self.outer is not None
            return self.outer.host(self._outside[value])
        if value in self._states:
            state = self._states[value]
            return state.value.numpy(), state.name
        if value.op is DATA:
            return Array(value.node).numpy(), "constant"
        if value.op in (RESHAPE, PERMUTE) and is_static(value.shape):
            found = self.host(value.inputs[0])
            if found is not None:
                moved = found[0]
                if value.op is RESHAPE:
                    shape = [n for n in value.shape if isinstance(n, int)]  # all of them
                    return moved.reshape(shape), found[1]
                return moved.transpose(value.attrs[0]), found[1]
        return None

    def weight(self, value: Value, order: Order) -> str:
        """A convolution's kernel with its axes in an order: an initialiser where it is a weight."""
        found = self.host(value) if self.is_constant(value) else None
        if found is None:
            return self.name(value, order)
        form = self._forms.setdefault(value, Form(value.shape))
        if order not in form.names:
            name = self.initializer(found[0].transpose(order), found[1])
            form.names[order] = name
        return form.names[order]
