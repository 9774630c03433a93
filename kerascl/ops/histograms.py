"""Histograms over several variables, and the edges of bins."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from kerascl.core.array import Array, ArrayLike
from kerascl.dtypes import positions
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import as_array, cast_to, convert, floating
from kerascl.ops.movement import ravel, unstack
from kerascl.ops.pointwise import equal, logical_and, where
from kerascl.ops.sorting import bin_edges, bincount, searchsorted
from kerascl.ops.views import reshape_to, window

__all__ = ["histogram2d", "histogram_bin_edges", "histogramdd"]

Bins = int | ArrayLike


def histogram_bin_edges(
    a: ArrayLike, bins: Bins = 10, range: tuple[float, float] | None = None
) -> Array:
    """The edges of the bins that `histogram` counts in.

    Args:
        bins: their number, or a rising vector of edges.
        range: of the edges; from the smallest to the largest element by default.

    Raises:
        ValueError: for less than one bin.

    Examples:
        >>> kc.histogram_bin_edges([0.0, 4.0], bins=2).tolist()
        [0.0, 2.0, 4.0]
    """
    x = as_array(a)
    return _edges(ravel(cast_to(x, floating(x.dtype)[0])), bins, range, "histogram_bin_edges")


def _edges(x: Array, bins: Any, range: tuple[float, float] | None, name: str) -> Array:
    if isinstance(bins, str):
        raise TypeError(f"{name}: bins are a number or edges, not {bins!r}")
    if isinstance(bins, Iterable) and getattr(bins, "ndim", True):
        edges = as_array(bins)
        if edges.ndim != 1 or edges.size < 2:
            raise ValueError(f"{name}: edges are a vector of two at least, not {edges.shape}")
        return cast_to(edges, floating(edges.dtype)[0])
    count = operator.index(bins)
    if count < 1:
        raise ValueError(f"{name}: {count} bins are not possible")
    return bin_edges(x, count, range)


def histogramdd(
    sample: ArrayLike | Sequence[ArrayLike],
    bins: int | Sequence[Bins] = 10,
    range: Sequence[tuple[float, float] | None] | None = None,
    density: bool = False,
    weights: ArrayLike | None = None,
) -> tuple[Array, list[Array]]:
    """Counts of samples of several variables in a grid of bins, as floats.

    Args:
        sample: (count, d), or a sequence of d vectors.
        bins: their number along each axis, or for each its number or its edges.
        range: for each axis its ends, or None for the smallest and the largest element.
        density: divide by the total and by each bin's volume.
        weights: (count,), what each sample counts.

    Returns:
        The counts, with one axis for each variable, and the list of edges.

    Raises:
        ValueError: when there are not as many bins or ranges as variables.

    Examples:
        >>> counts, edges = kc.histogramdd([[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]], bins=2)
        >>> counts.tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    if isinstance(sample, list | tuple) and sample and getattr(sample[0], "ndim", None) == 1:
        columns = [as_array(x) for x in sample]
    else:
        table = as_array(sample)
        table = reshape_to(table, (table.size, 1)) if table.ndim == 1 else table
        if table.ndim != 2:
            raise ValueError(f"histogramdd needs samples (count, d), got shape {table.shape}")
        columns = list(unstack(table, 1))
    d = len(columns)
    many = bins if isinstance(bins, list | tuple) else [bins] * d
    spans = [None] * d if range is None else list(range)
    if len(many) != d or len(spans) != d:
        raise ValueError(f"histogramdd: {len(many)} bins and {len(spans)} ranges for {d} variables")
    places, edges, shape = None, [], []
    for x, own, span in zip(columns, many, spans, strict=True):
        x = cast_to(x, floating(x.dtype)[0])
        (x, ends), _ = convert((x, _edges(x, own, span, "histogramdd")))
        n = ends.size - 1
        place = searchsorted(ends, x, "right") - 1
        place = where(equal(x, window(ends, 0, n, n + 1)), n - 1, place)
        place = where(logical_and(place >= 0, place < n), place, -1)
        edges.append(ends)
        shape.append(n)
        places = place if places is None else _joined(places, place, n)
    assert places is not None
    cells = math.prod(shape)
    found = bincount(cast_to(places, positions(cells)), weights, length=cells)
    counts = reshape_to(cast_to(found, floating(found.dtype)[0]), tuple(shape))
    if density:
        for k, ends in enumerate(edges):
            n = ends.size - 1
            widths = window(ends, 0, 1, n + 1) - window(ends, 0, 0, n)
            counts = counts / reshape_to(widths, (n, *[1] * (d - k - 1)))
        counts = counts / total(found)
    return counts, edges


def _joined(outer: Array, inner: Array, n: int) -> Array:
    """Flat cells of two axes; -1 where either is outside."""
    return where(logical_and(outer >= 0, inner >= 0), outer * n + inner, -1)


def histogram2d(
    x: ArrayLike,
    y: ArrayLike,
    bins: Any = 10,
    range: Sequence[tuple[float, float] | None] | None = None,
    density: bool = False,
    weights: ArrayLike | None = None,
) -> tuple[Array, Array, Array]:
    """Counts of pairs of samples in a grid of bins, as floats, and the edges of both axes.

    Args:
        x, y: vectors of one length.
        bins: a number for both axes, a pair of numbers or edges, or edges for both.
        range, density, weights: see `histogramdd`.

    Raises:
        ValueError: for vectors of different lengths.

    Examples:
        >>> kc.histogram2d([0.0, 1.0, 1.0], [0.0, 0.0, 1.0], bins=2)[0].tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    a, b = ravel(x), ravel(y)
    if a.size != b.size:
        raise ValueError(f"histogram2d: {a.size} and {b.size} samples")
    if hasattr(bins, "__len__") and len(bins) not in (1, 2):
        bins = [bins, bins]
    elif isinstance(bins, Array) or hasattr(bins, "dtype"):
        bins = list(bins)
    counts, (first, second) = histogramdd([a, b], bins, range, density, weights)
    return counts, first, second
