"""What operations mean where they are called: the `Context` of a thread, and what executes them.

Everything that an operation depends on besides its arguments stands in `current`, the context of
this thread; a block changes it by `with current.replaced(...)`, and nothing else is kept behind
the scenes.  What outlives a block (a node, a tape, a traced function) notes what it needs of it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, TypeVar

import numpy as np

from kerascl import config
from kerascl.core.types import Device
from kerascl.dtypes import DType, float32

if TYPE_CHECKING:
    from kerascl.core.array import Array, State
    from kerascl.core.labels import Labels
    from kerascl.core.node import Node

P = ParamSpec("P")
R = TypeVar("R")


class Engine(Protocol):
    """What executes graphs; implemented by the compiler room."""

    def evaluate(self, nodes: list[Node]) -> None:
        """Give every node a buffer."""

    def to_host(self, node: Node) -> np.ndarray:
        """A copy of a node's value; waits for the device."""

    def to_hosts(self, nodes: list[Node]) -> list[np.ndarray]:
        """Copies of several values; waits once."""

    def element(self, node: Node, place: int) -> np.generic:
        """One element of a node's value; waits for the device."""

    def from_host(self, value: np.ndarray, device: Any) -> Any:
        """A buffer holding the contiguous `value`."""

    def default_device(self) -> Any:
        """The device used where none is named."""

    def find_device(self, name: str) -> Any:
        """A device by name."""

    def devices(self) -> list[Any]:
        """All devices that there are."""

    def shared_with_host(self, node: Node) -> np.ndarray | None:
        """A node's value in the memory that it lies in, None where the host cannot read that."""

    def lend(self, node: Node, queue: Any) -> Any:
        """A node's value as a pyopencl.array.Array for that queue (None: the device's)."""

    def borrow(self, x: Any) -> Any:
        """What pyopencl's array or buffer says of itself (`runtime.sharing.Borrowed`)."""

    def prepared(
        self, key: Hashable, inputs: list[Node], build: Callable[[list[Node]], list[Node]]
    ) -> list[Node]:
        """The values of a graph that `build` makes once for a key; see `ops.prepared`."""

    def shorten(self, node: Node, count: int) -> None:
        """Leave the first `count` slices alone of a result of `prepared` that nobody else has."""

    def forget_programs(self) -> None:
        """Compile graphs anew, as where other kernels are taken."""

    def let_go(self) -> None:
        """Free compiled graphs, built programs and memory that nothing in use holds."""

    def check_source(self, source: str, name: str, title: str, device: Any) -> int:
        """Build a kernel that a user wrote; gives how many arguments it takes."""

    def attempt(self, run: Callable[[], Any]) -> tuple[Any, str]:
        """What `run` gives, and "", or None and why a user's kernel cannot be run so."""

    def seconds(self, run: Callable[[], object], repeats: int, device: Any) -> float:
        """Median time on the device of what `run` has executed, after a run to warm up."""

    def kept_times(self, text: str, device: Any) -> dict[str, float]:
        """What `keep_times` was given for a text on such a device, now or earlier; else empty."""

    def keep_times(self, text: str, times: dict[str, float], device: Any) -> None:
        """Keep the microseconds of variants of a user's kernel."""

    def copy_buffer(self, buffer: Any, device: Any) -> Any:
        """A new buffer with what lies in another one."""

    def copy_into(self, source: Any, target: Any, device: Any) -> None:
        """Copy what lies in one buffer into another one of the same size."""


class Trace(Protocol):
    """What happens to States, and to reads on the host, while a function is traced.

    Attributes:
        index_checks: where to note indices whose least and greatest value is looked at after each
            run (`ops.gather.IndexCheck` and the two); None where nobody looks.
    """

    index_checks: list[tuple[Any, Array, Array]] | None

    def read(self, state: State) -> Array:
        """The Array that a State's value is inside."""

    def write(self, state: State, value: Array) -> None:
        """Note an assignment to a State."""

    def knows_value(self, node: Node) -> bool:
        """Whether the host can have the value of a node."""


class Context(threading.local):
    """What operations mean where they are called; every thread begins with the defaults.

    Attributes:
        device: where new arrays are made; None for the default device.
        precision: of float32 products, "high" or "highest"; None for the process's.
        trace: what is traced now; None where operations are evaluated.
        labels: which layers the nodes of a captured function belong to (`core.labels`), or None.
        tapes: those that record.
        tracers: those of the vmaps whose functions run now, the outermost first.
        checks_indices: whether indices out of range raise: in eager steps of Keras.
        engine: of the process: what executes graphs.  `core` and `ops` never see OpenCL; they reach
            it here, where `kerascl/__init__` sets it.
        process_precision: of the process: what `set_precision` chose, else None.
    """

    engine: ClassVar[Engine]
    process_precision: ClassVar[str | None] = None

    def __init__(self) -> None:
        self.device: Device | None = None
        self.precision: str | None = None
        self.trace: Trace | None = None
        self.labels: Labels | None = None
        self.tapes: tuple[Any, ...] = ()
        self.tracers: tuple[Any, ...] = ()
        self.checks_indices = False

    def replaced(self, **fields: Any) -> _Replaced:
        """A block in which some fields are others.

        ```python
        with current.replaced(trace=None, tapes=()):
            ...
        ```
        """
        return _Replaced(fields)


class _Replaced:
    """No generator: one that Ctrl-C leaves half-way would restore its fields whenever it is
    collected."""

    __slots__ = ("_before", "_fields")

    def __init__(self, fields: dict[str, Any]):
        self._fields = fields

    def __enter__(self) -> None:
        now = current.__dict__
        self._before = {name: now[name] for name in self._fields}
        now.update(self._fields)

    def __exit__(self, *exception: object) -> None:
        current.__dict__.update(self._before)


current = Context()


def steady(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, after whose exceptions the context is again what it was before.

    A KeyboardInterrupt may come where the end of a `with` block, which should see to that, is just
    about to run and then does not.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        before = current.__dict__.copy()
        try:
            return function(*args, **kwargs)
        except BaseException:
            current.__dict__.update(before)
            raise

    return wrapped


def device() -> Any:
    """The device for new arrays: that of the innermost `device_scope`, else the default.

    Its `context` is pyopencl's Context, and `queue.handle` the CommandQueue that all work goes to.

    Examples:
        >>> import kerascl
        >>> kerascl.current_device() is kerascl.ones(3).device
        True
    """
    return current.device if current.device is not None else current.engine.default_device()


@contextlib.contextmanager
def device_scope(name: str | Device) -> Iterator[Any]:
    """Create new arrays on a device: a name such as "gpu:0" or "cpu:0", or a device object."""
    chosen = current.engine.find_device(name) if isinstance(name, str) else name
    with current.replaced(device=chosen):
        yield chosen


PRECISIONS = ("high", "highest")


def _checked(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"precision must be 'high' or 'highest', not {name!r}")
    return name


def precision() -> str:
    """How exact float32 products and convolutions are: that of the innermost `precision_scope`,
    else of `set_precision`, else KERASCL_PRECISION."""
    return current.precision or Context.process_precision or config.precision()


def product_precision(dtype: DType) -> str:
    """The precision to note in a product of `dtype`; one word for all dtypes that know one only."""
    return precision() if dtype is float32 else "high"


def set_precision(name: str) -> None:
    """Choose how exact float32 matrix products and convolutions are from now on, in all threads.

    Args:
        name: "high" lets matrix units round float32 inputs to TF32 (10 bits of mantissa) or
            better; "highest" keeps true float32 accuracy.  Sums are float32 in both.

    Raises:
        ValueError: for another name.
    """
    Context.process_precision = _checked(name)


@contextlib.contextmanager
def precision_scope(name: str) -> Iterator[None]:
    """`set_precision` for the operations (and their gradients) of a block, in this thread.

    Raises:
        ValueError: for another name.
    """
    with current.replaced(precision=_checked(name)):
        yield
