"""Array: what a user holds.  State: a value with a stable place in memory."""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from kerascl import dtypes
from kerascl.core import node as graph
from kerascl.core.context import current, device
from kerascl.core.errors import CaptureError
from kerascl.core.foreign import Differentiable
from kerascl.core.holders import enrol
from kerascl.core.lease import LENT, OWN, Lease
from kerascl.core.lock import LOCK
from kerascl.core.methods import Methods
from kerascl.core.node import Node
from kerascl.core.op import BATCHED, DATA, PICK, Op
from kerascl.core.types import Attrs, Device, Results, Shape
from kerascl.dtypes import DType

if TYPE_CHECKING:
    from kerascl.core.batch import BatchTracer

# A chain of this many unevaluated operations is evaluated, so that endless
# loops over lazy values keep bounded graphs.
MAX_DEPTH = 600


class Array(Methods, Differentiable):
    """An n-dimensional array on an OpenCL device, evaluated lazily.

    Made by `kerascl.array`, the creation functions and operations.  It has
    NumPy's operators and the methods of `kerascl`'s functions; reading it on
    the host (`numpy()`, `float(x)`, printing) evaluates it.

    Attributes:
        shape: tuple of ints.
        dtype: a `kerascl.dtypes.DType`; `dtype.name` is its NumPy name.
    """

    __slots__ = ("__dict__", "__weakref__", "_keras_history", "_keras_mask", "_node", "trainable")
    __array_priority__ = 1000

    def __init__(self, node: Node):
        self._node = node
        node.handle = weakref.ref(self)

    if not TYPE_CHECKING:  # type checkers would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            # Only what lookup does not find comes here: the node of a row that iteration gave.
            if name != "_node" or "_row" not in self.__dict__:
                return object.__getattribute__(self, name)  # raises what lookup raised
            rows, place = self.__dict__["_row"]
            self._node = rows.node(place)
            self._node.handle = weakref.ref(self)
            return self._node

    def stand_for(self, node: Node) -> None:
        """Take the value of another node; see `core.holders.rebind`."""
        self.__dict__.pop("_row", None)
        self._node = node
        node.handle = weakref.ref(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """The dtype of the elements."""
        return self._node.dtype

    @property
    def ndim(self) -> int:
        """How many axes there are."""
        return len(self._node.shape)

    @property
    def size(self) -> int:
        """How many elements there are."""
        return self._node.size

    @property
    def nbytes(self) -> int:
        """Bytes that the elements take on the device."""
        return self._node.nbytes

    @property
    def device(self) -> Device:
        """The device this array lies on, or will lie on."""
        on: Device = device() if self._node.device is None else self._node.device
        return on

    def evaluate(self) -> Array:
        """Compute the value now (on the device, without waiting for it); returns self."""
        if self._node.lease is None:
            if current.trace is not None:
                return self
            current.engine.evaluate([self._node])
        return self

    def numpy(self) -> np.ndarray:
        """The value as a NumPy array of the same shape and dtype; waits for the device.

        Raises:
            CaptureError: inside a captured function, where there is no value yet.
        """
        return self._on_host()

    def _element(self, place: int) -> np.generic:
        """One element of the flat array, which alone is read, without a launch.

        Raises:
            CaptureError: as `numpy`.
        """
        self._check_known()
        return current.engine.element(self._node, place)

    def _check_known(self) -> None:
        if current.trace is not None and not current.trace.knows_value(self._node):
            raise CaptureError(
                "a captured function needs the value of an array on the host "
                "(numpy(), float(), int(), bool(), printing, or a Python `if` on an array). "
                "Use kerascl.where / cond / while_loop, or run the function eagerly."
            )

    def _on_host(self) -> np.ndarray:
        row = self.__dict__.get("_row")
        if row is not None and current.trace is None:
            rows, place = row
            return np.array(rows.read(place))  # for whoever asks to keep
        self._check_known()
        return current.engine.to_host(self._node)

    def _shared_with_host(self) -> np.ndarray | None:
        """The value where it lies, None where the host cannot read that; not to be written to."""
        if current.trace is not None:
            return None
        return current.engine.shared_with_host(self._node)

    def item(self) -> Any:
        """The only element, as a Python scalar."""
        row = self.__dict__.get("_row")
        if row is not None and current.trace is None:
            rows, place = row
            return rows.item(place)
        return self.numpy().item()

    def tolist(self) -> Any:
        """The value as nested lists of Python scalars."""
        return self.numpy().tolist()

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("a device array cannot be shared with NumPy without a copy")
        value = self._on_host()
        return value if dtype is None else value.astype(dtype, copy=False)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(
                f"the truth value of an array of shape {self.shape} is ambiguous; "
                "use kerascl.any(x) or kerascl.all(x)"
            )
        return bool(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if not (self.dtype.is_integer and self.ndim == 0):
            raise TypeError("only integer arrays of shape () can be used as an index")
        return int(self.item())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array of shape ()")
        return self.shape[0]

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        facts = f"shape={self.shape}, dtype={self.dtype.name}"
        value = self._shown()
        if isinstance(value, str):
            return f"<kerascl.Array {value}, {facts}>"
        text = np.array2string(value, separator=", ", prefix="kerascl.array(")
        facts += f", device={self.device.info.name!r}"
        gap = "\n              " if "\n" in text else " "
        return f"kerascl.array({text},{gap}{facts})"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        facts = f"shape {self.shape} · {self.dtype.name}"
        value = self._shown()
        if isinstance(value, str):
            return f"<p>kerascl.Array: {html.escape(value)} · {facts}</p>"
        facts += f" · {html.escape(self.device.info.name)}"
        if value.ndim not in (1, 2) or not value.size:
            text = np.array2string(value, separator=", ", threshold=_MOST_SHOWN**2)
            return f"<pre>{html.escape(text)}</pre><p>{facts}</p>"
        rows = [_cells(row) for row in _ends(np.atleast_2d(value))]
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>"
                       for row in rows)  # fmt: skip
        return f"<table><tbody>{body}</tbody></table><p>{facts}</p>"

    def _shown(self) -> np.ndarray | str:
        """The value, or why it cannot be shown."""
        if current.trace is not None and not current.trace.knows_value(self._node):
            return "traced"
        try:
            return self.numpy()
        except RuntimeError as error:  # whoever shows an array is often about to report an error
            return f"lost: {error}"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _NOT_OFFERED]

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.ndim == 0 else format(repr(self), spec)

    def __deepcopy__(self, memo: object) -> Array:
        return self.copy()

    def __copy__(self) -> Array:
        return self.copy()

    def __reduce__(self) -> tuple[Callable[[np.ndarray], Array], tuple[np.ndarray]]:
        return _rebuild, (self.numpy(),)


# Rows and columns of a table in a notebook.
_MOST_SHOWN = 12
# What tab completion leaves out: other packages' attributes, and the graph's.
_NOT_OFFERED = {
    "_check_known", "_element", "_id", "_keras_history", "_keras_mask", "_node", "_on_host",
    "_shown", "backward", "grad", "stand_for", "trainable",
}  # fmt: skip


def _ends(parts: Any) -> list[Any]:
    """All parts, or the first and the last with None between."""
    if len(parts) <= _MOST_SHOWN:
        return list(parts)
    half = _MOST_SHOWN // 2
    return [*parts[:half], None, *parts[-half:]]


def _cells(row: np.ndarray | None) -> list[str]:
    if row is None:
        return ["⋮"]
    return ["⋯" if x is None else np.array2string(x) for x in _ends(row)]


def _rebuild(value: np.ndarray) -> Array:
    return from_host(value)


def from_host(value: npt.ArrayLike, on: Device | None = None) -> Array:
    """A new Array with a copy of a NumPy array.

    Raises:
        TypeError: for a dtype that kerascl does not have.
    """
    value = dtypes.host_array(value)
    dtype = dtypes.as_dtype(value.dtype)
    if value.ndim == 0 and not dtype.is_complex:
        return Array(graph.const(value.item(), dtype))
    on = device() if on is None else on
    lease = Lease(current.engine.from_host(value, on))
    return Array(graph.data(lease, value.shape, dtype, on))


def on_device(value: np.ndarray, on: Device) -> Array:
    """A copy of a NumPy array on one device, where `from_host` makes constants of scalars."""
    value = dtypes.host_array(value)
    lease = Lease(current.engine.from_host(value, on))
    return Array(graph.data(lease, value.shape, dtypes.as_dtype(value.dtype), on))


def innermost(arrays: Iterable[Array]) -> BatchTracer | None:
    """The active BatchTracer that was begun last and has a batched array among `arrays`."""
    found: BatchTracer | None = None
    for x in arrays:
        node = x._node
        if node.op is BATCHED:
            tracer: BatchTracer = node.attrs[0]
            if (found is None or tracer.serial > found.serial) and tracer in current.tracers:
                found = tracer
    return found


def apply(op: Op, inputs: tuple[Array, ...], attrs: Attrs, shape: Shape, dtype: DType) -> Array:
    """The result of an operation with one output, recorded on the active tapes."""
    if current.tracers and (tracer := innermost(inputs)) is not None:
        return tracer.apply(op, inputs, attrs, [(shape, dtype)])[0]
    node = Node(op, tuple([x._node for x in inputs]), attrs, shape, dtype)
    result = Array(node)
    if current.tapes and (op.vjp is not None):
        for tape in current.tapes:
            tape.record(op.vjp, inputs, attrs, result)
    if node.depth > MAX_DEPTH and current.trace is None:
        current.engine.evaluate([node])
    return result


def apply_multi(
    op: Op, inputs: tuple[Array, ...], attrs: Attrs, results: Results
) -> tuple[Array, ...]:
    """The results of an operation with several outputs, given their shapes and dtypes."""
    if current.tracers and (tracer := innermost(inputs)) is not None:
        return tracer.apply(op, inputs, attrs, results)
    shape, dtype = results[0]
    node = Node(op, tuple([x._node for x in inputs]), attrs, shape, dtype)
    node.results = results
    picks = tuple(
        Array(Node(PICK, (node,), (k,), shape, dtype)) for k, (shape, dtype) in enumerate(results)
    )
    if current.tapes and op.vjp is not None:
        for tape in current.tapes:
            tape.record(op.vjp, inputs, attrs, picks)
    return picks


class State:
    """A mutable value with a stable place in device memory: a weight, a seed, a running total.

    `value` reads it, `assign` replaces it.  Captured functions update states in
    place; arrays read earlier keep their value all the same.

    Args:
        value: the initial Array, or what `kerascl.array` takes (its shape and dtype are the state's
            for good).
        name: for messages.
    """

    __slots__ = (
        "shape", "dtype", "device", "name", "pending", "place", "lease", "_leaf", "__weakref__",
    )  # fmt: skip

    def __init__(self, value: Array | npt.ArrayLike, name: str = "state"):
        value = value if isinstance(value, Array) else from_host(value)
        self.shape = value.shape
        self.dtype = value.dtype
        self.device = value.device
        self.name = name
        self.pending: Array | None = value  # the value, while it is not in `place`
        self.place: Any = None  # the stable memory, once a captured function uses this state
        # of the value in `place`, once it was given: its lease, and a node
        self.lease: weakref.ref[Lease] | None = None
        self._leaf: weakref.ref[Node] | None = None
        enrol(self)

    def swap(self, array: Array, other: Array) -> None:
        """Hold `other` where `array` stood; see `core.holders`."""
        if self.pending is array:
            self.pending = other

    @property
    def value(self) -> Array:
        """The current value, as an Array that later assignments do not change."""
        trace = current.trace
        if trace is not None:
            return trace.read(self)
        with LOCK:
            if self.pending is not None:
                return self.pending
            node = None if self._leaf is None else self._leaf()
            if node is None:
                lease = None if self.lease is None else self.lease()
                if lease is None:
                    lease = Lease(self.place, LENT)
                    self.lease = weakref.ref(lease)
                node = graph.data(lease, self.shape, self.dtype, self.device)
                self._leaf = weakref.ref(node)
            array = None if node.handle is None else node.handle()
            return Array(node) if array is None else array

    def assign(self, value: Array | npt.ArrayLike) -> None:
        """Replace the value by an Array or a NumPy array of the same shape and dtype, or by numbers
        of that shape, which get the dtype.

        Raises:
            ValueError: when the shape or dtype differs.
        """
        if not isinstance(value, Array):
            numbers = not isinstance(value, np.ndarray | np.generic)
            value = from_host(np.asarray(value, self.dtype.numpy if numbers else None))
        if value.shape != self.shape or value.dtype is not self.dtype:
            raise ValueError(
                f"cannot assign an array of shape {value.shape} and dtype {value.dtype.name} to "
                f"{self.name} of shape {self.shape} and dtype {self.dtype.name}"
            )
        trace = current.trace
        if trace is not None:
            trace.write(self, value)
        else:
            with LOCK:
                self.pending = value

    # -- for captured functions, which read and write `place`; both under LOCK

    def materialize(self) -> None:
        """Bring the value that was assigned last into `place`."""
        array = self.pending
        if array is None:
            return
        array.evaluate()
        node = array._node
        lease = node.lease
        assert lease is not None
        if self.place is None:
            if lease.tenure == OWN:
                lease.tenure = LENT
                self.lease, self._leaf = weakref.ref(lease), weakref.ref(node)
                self.place = lease.buffer
            else:
                self.place = current.engine.copy_buffer(lease.buffer, self.device)
        elif lease.buffer is not self.place:  # it may be the value that was read from here
            self.vacate()
            current.engine.copy_into(lease.buffer, self.place, self.device)
        self.pending = None

    def vacate(self) -> None:
        """Make `place` free to be written: a value that is still in use moves to a copy."""
        if self.lease is not None:
            lease = self.lease()
            if lease is not None and lease.buffer is self.place:
                lease.move(current.engine.copy_buffer(self.place, self.device))
            self.lease = self._leaf = None

    def __copy__(self) -> State:
        return State(self.value, self.name)

    def __deepcopy__(self, memo: object) -> State:
        return State(self.value, self.name)

    def __reduce__(self) -> tuple[Callable[[Array, str], State], tuple[Array, str]]:
        return State, (self.value, self.name)

    def __repr__(self) -> str:
        return f"<State {self.name} shape={self.shape} dtype={self.dtype.name}>"


class SupportsArray(Protocol):
    """What NumPy can make an array of."""

    def __array__(self) -> np.ndarray: ...


# What operations take for an array; nested sequences may hold Arrays.
ArrayLike: TypeAlias = (
    Array | State | SupportsArray | bool | int | float | complex | Sequence["ArrayLike"]
)


def is_evaluated(array: Array) -> bool:
    """Whether the value lies in device memory already."""
    return array._node.op is DATA and array._node.lease is not None
