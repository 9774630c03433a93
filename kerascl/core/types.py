"""Names of types that annotations share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias

from kerascl.dtypes import DType

if TYPE_CHECKING:
    from kerascl.core.array import Array

Shape: TypeAlias = tuple[int, ...]
# What is taken for a shape: an integer is one dimension.
ShapeLike: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
# Axes to reduce: None is all of them.
Axes: TypeAlias = int | Sequence[int] | None
# What an operation is told besides its inputs; hashable, and the same in every process.
Attrs: TypeAlias = tuple[Any, ...]
# The shape and dtype of each output of an operation.
Results: TypeAlias = Sequence[tuple[Shape, DType]]
# A gradient for each input, None where there is none.
Gradients: TypeAlias = "Sequence[Array | None]"
# What an operation gives: several where it has several outputs.
Outputs: TypeAlias = "Array | tuple[Array, ...]"
# vjp(g, y, *inputs, *attrs); g and y are tuples where an operation has several outputs.
Vjp: TypeAlias = Callable[..., Gradients]


class Tape(Protocol):
    """What notes operations."""

    tracers: tuple[Any, ...]  # of the vmaps inside which it records

    def record(self, vjp: Vjp, inputs: tuple[Array, ...], attrs: Attrs, outputs: Outputs) -> None:
        """Note one operation."""


class DeviceInfo(Protocol):
    """The facts about a device that operations ask for."""

    @property
    def name(self) -> str:
        """The device's name."""

    @property
    def kind(self) -> str:
        """ "gpu", "cpu" or "accelerator"."""

    @property
    def fp64(self) -> bool:
        """Whether it computes in double precision."""


class Device(Protocol):
    """A device as operations know it."""

    def __hash__(self) -> int: ...

    @property
    def info(self) -> DeviceInfo:
        """The device's facts."""
