"""Counts of integers and of values in bins, over one or several variables."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any

from kerascl.core.array import Array, ArrayLike, apply
from kerascl.core.op import Op
from kerascl.core.types import Attrs, Results
from kerascl.dtypes import int32, positions
from kerascl.ops import host
from kerascl.ops.batched import as_batches, element_by_element, merge
from kerascl.ops.declare import SUM as total
from kerascl.ops.declare import (
    as_array,
    cast_to,
    convert,
    floating,
    library_operation,
    numeric,
    scalar,
)
from kerascl.ops.gather import scatter_rows
from kerascl.ops.movement import iota, ravel, unstack
from kerascl.ops.pointwise import equal, logical_and, where
from kerascl.ops.reduction import max as largest
from kerascl.ops.reduction import min as smallest
from kerascl.ops.sorting import SEARCH, searchsorted
from kerascl.ops.views import expand_to, reshape_to, window

__all__ = ["bincount", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd"]

Bins = int | ArrayLike


def _in_rows(place: Array, length: int) -> Array:
    """Places (rows, count) in rows of `length` as places in all rows, -1 outside of their own."""
    wide = positions(place.shape[0] * length)
    inside = logical_and(place >= 0, place < length)
    place = cast_to(place, wide) + cast_to(iota(place.shape, 0), wide) * length
    return where(inside, place, -1)


def _bins(x: Array, edges: Array) -> Array:
    """The bin of each value of x (…, count) between edges (…, bins + 1): those below fall on -1,
    those above on the number of bins."""
    count = edges.shape[-1] - 1
    rows = math.prod(x.shape[:-1])
    ordered, values = reshape_to(edges, (rows, count + 1)), reshape_to(x, (rows, x.shape[-1]))
    place = apply(SEARCH, (ordered, values), ("right",), values.shape, positions(count + 1)) - 1
    last = window(ordered, 1, count, count + 1)
    return reshape_to(where(equal(values, last), count - 1, place), x.shape)


def counted(places: Array, length: int) -> Array:
    """`COUNTS` by a scatter."""
    base = expand_to(scalar(0, int32), (length, 1))
    ones = expand_to(scalar(1, int32), (places.size, 1))
    return reshape_to(scatter_rows(base, places, ones, "add"), (length,))


def binned(x: Array, edges: Array, even: bool) -> Array:
    """`BINNED` by a search and a scatter."""
    return counted(_bins(x, edges), edges.size - 1)


def _counts_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    (length,) = attrs
    if size * length >= 2**31:
        return element_by_element(size, op, inputs, batched, attrs, results)
    (places,) = as_batches(size, inputs, batched)
    merged = merge(_in_rows(places, length))
    counts = apply(COUNTS, (merged,), (size * length,), (size * length,), int32)
    return [reshape_to(counts, (size, length))]


def _binned_batch(
    size: int, op: Op, inputs: list[Array], batched: list[bool], attrs: Attrs, results: Results
) -> list[Array]:
    ((shape, _),) = results
    places = _bins(*as_batches(size, inputs, batched))
    return _counts_batch(size, COUNTS, [places], [True], shape, results)


# How often each of 0 … length - 1 is among places (count,) -> int32 (length,); the others are
# dropped.
COUNTS = library_operation("counts", batch=_counts_batch)
# How many values (count,) lie in each bin between the rising edges (bins + 1,) -> int32 (bins,).
BINNED = library_operation("binned", batch=_binned_batch)


def bincount(
    x: ArrayLike, weights: ArrayLike | None = None, minlength: int = 0, length: int | None = None
) -> Array:
    """How often each of 0, 1, … occurs along the last axis, or the sums of their weights.

    Args:
        x: non-negative integers, (count,) or (batch, count); negative ones are left out.
        length: of the result; by default max(minlength, largest value + 1), read on the host.
    """
    x = as_array(x)
    if not (x.dtype.is_integer or x.dtype.is_bool):
        raise TypeError(f"bincount needs integers, not {x.dtype.name}")
    x = cast_to(x, numeric(x.dtype)[0])
    updates = None if weights is None else as_array(weights)
    dtype = int32 if updates is None else updates.dtype
    if length is None:
        length = operator.index(minlength)
        if x.size:
            host.count("bincount")
            length = max(length, int(largest(x).item()) + 1)
    length = operator.index(length)
    lead = x.shape[:-1]
    rows = math.prod(lead)
    if not rows * length or not x.size:
        return expand_to(scalar(0, dtype), (*lead, length))
    place = reshape_to(x, (rows, x.shape[-1]))
    if rows != 1:  # else what is outside of the result is left out anyway
        place = _in_rows(place, length)
    place = reshape_to(place, (x.size,))
    if updates is None:
        counts = apply(COUNTS, (place,), (rows * length,), (rows * length,), int32)
    else:
        base = expand_to(scalar(0, dtype), (rows * length, 1))
        counts = scatter_rows(base, place, reshape_to(updates, (x.size, 1)), "add")
    return reshape_to(counts, (*lead, length))


def histogram(
    x: ArrayLike,
    bins: ArrayLike = 10,
    range: tuple[float, float] | None = None,
    weights: ArrayLike | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Counts (int32, or the weights' dtype) in each bin, and the bins' edges.

    `bins` is their number, over `range` or from the smallest to the largest
    element, or a rising vector of edges.  The last bin holds its right edge.  With `density` the
    counts are scaled so that their integral over the bins is 1.
    """
    x = as_array(x)
    x = ravel(cast_to(x, floating(x.dtype)[0]))
    even = not (isinstance(bins, Iterable) and getattr(bins, "ndim", True))
    if not even:
        edges = as_array(bins)
        edges = cast_to(edges, floating(edges.dtype)[0])
        count = edges.size - 1
    else:
        count = operator.index(bins)  # type: ignore[arg-type]  # raises for what is none
        if count < 1:
            raise ValueError(f"histogram: {bins} bins are not possible")
        edges = bin_edges(x, count, range)
    (x, edges), _ = convert((x, edges))
    if weights is not None:
        counts = bincount(_bins(x, edges), ravel(weights), length=count)
    elif x.size and count:
        counts = apply(BINNED, (x, edges), (even,), (count,), int32)
    else:
        counts = expand_to(scalar(0, int32), (count,))
    if density:
        widths = window(edges, 0, 1, count + 1) - window(edges, 0, 0, count)
        counts = counts / widths / total(counts)
    return counts, edges


def bin_edges(x: Array, count: int, range: tuple[float, float] | None) -> Array:
    """The edges of `count` equal bins, over `range` or the elements of `x`."""
    if range is not None:
        low, high = (as_array(v, x.dtype) for v in range)
    elif x.size:
        low, high = smallest(x), largest(x)
    else:
        low, high = scalar(0.0, x.dtype), scalar(1.0, x.dtype)
    flat = equal(low, high)
    low, high = where(flat, low - 0.5, low), where(flat, high + 0.5, high)
    place = cast_to(iota((count + 1,), 0), x.dtype)
    return where(equal(place, count), high, low + (high - low) * (place / count))


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
