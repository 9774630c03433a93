"""Images with their channels as the last axis, as kernels have them, where the standard has them
as the second: what lies between convolutions never changes its layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerascl.core.array import Array
from kerascl.ops.movement import reshape, transpose
from kerascl.ops.views import reshape_to


@dataclass(frozen=True, eq=False)
class ChannelsLast:
    """An array (N, *spatial, C) that stands for the (N, C, *spatial) of a graph."""

    array: Array

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the graph knows: (N, C, *spatial)."""
        first, *spatial, channels = self.array.shape
        return (first, channels, *spatial)


@dataclass(frozen=True, eq=False)
class Grouped:
    """Images that stand for the (N, groups, rest) of a graph, where all that is left of their
    channels and pixels is the last axis: what is normalised by group, and gets their shape back.
    """

    images: ChannelsLast
    groups: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape that the graph knows: (N, groups, rest)."""
        first, channels, *spatial = self.images.shape
        return (first, self.groups, channels // self.groups * math.prod(spatial))


Images = Array | ChannelsLast


def as_in_graph(x: Images | Grouped) -> Array:
    """(N, C, *spatial), or (N, groups, rest)."""
    if isinstance(x, Grouped):
        return reshape(as_in_graph(x.images), x.shape)
    if not isinstance(x, ChannelsLast):
        return x
    return transpose(x.array, (0, x.ndim - 1, *range(1, x.ndim - 1)))


def channels_last(x: Images) -> Array:
    """(N, *spatial, C)."""
    if isinstance(x, ChannelsLast):
        return x.array
    return transpose(x, (0, *range(2, x.ndim), 1))


def place_of(axis: int, rank: int) -> int:
    """Where an axis of (N, C, *spatial) is found in (N, *spatial, C)."""
    return 0 if axis == 0 else rank - 1 if axis == 1 else axis - 1


def elementwise_rank(values: Sequence[Any]) -> int:
    """The rank of the results of an elementwise operator, if channels may be last in it; else 0."""
    found = max((v.ndim for v in values if isinstance(v, ChannelsLast)), default=0)
    return 0 if any(getattr(v, "ndim", 0) > found for v in values) else found


def aligned(x: Images, rank: int) -> Array:
    """An operand of an elementwise operator whose results have `rank` axes, channels last."""
    if not x.ndim or (isinstance(x, ChannelsLast) and x.ndim == rank):
        return x.array if isinstance(x, ChannelsLast) else x
    x = as_in_graph(x)
    return channels_last(reshape_to(x, (1,) * (rank - x.ndim) + x.shape))
