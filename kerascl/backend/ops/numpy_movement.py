"""`keras.ops.numpy`: making arrays, shapes, joining and splitting, indexing."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from kerascl.backend.ops import sparse as rules
from kerascl.backend.ops.conversion import convert_to_tensor, find_dtype
from kerascl.backend.ops.promotion import floatx, named, pair, resolve, several
from kerascl.core.array import Array
from kerascl.core.rules import broadcast, normalize_shape
from kerascl.dtypes import DType
from kerascl.ops import creation, host, indexing, linalg, movement, sorting
from kerascl.ops.declare import cast_to
from kerascl.ops.sparse import SparseArray
from kerascl.ops.views import expand_to, reshape_to

__all__ = [
    "append", "arange", "array", "array_split", "bartlett", "blackman", "broadcast_to",
    "concatenate", "copy", "diag", "diagflat", "diagonal", "dsplit", "dstack", "empty",
    "empty_like", "expand_dims", "eye", "flip", "fliplr", "flipud", "full", "full_like",
    "geomspace", "hamming", "hanning", "hsplit", "hstack", "identity", "kaiser", "linspace",
    "logspace", "meshgrid", "moveaxis", "ndim", "ones", "ones_like", "pad", "ravel", "repeat",
    "reshape", "roll", "rot90", "size", "slogdet", "split", "squeeze", "stack", "swapaxes", "take",
    "take_along_axis", "tile", "transpose", "tri", "tril", "triu", "unravel_index", "vander",
    "vectorize", "vsplit", "vstack", "zeros", "zeros_like",
]  # fmt: skip


def _dtype(dtype) -> DType:
    return floatx() if dtype is None else find_dtype(dtype)


# -- making arrays ------------------------------------------------------------
def array(x, dtype=None) -> Array:
    """A tensor with the values of `x`."""
    return convert_to_tensor(x, dtype)


def _filled(value: int) -> Callable:
    def function(shape, dtype=None) -> Array:
        return creation.full(shape, value, _dtype(dtype))

    return function


def _filled_like(value: int) -> Callable:
    def function(x, dtype=None) -> Array:
        x = convert_to_tensor(x)
        return creation.full(x.shape, value, x.dtype if dtype is None else find_dtype(dtype))

    return function


zeros = named("zeros", _filled(0), "An array of zeros.")
ones = named("ones", _filled(1), "An array of ones.")
empty = named("empty", _filled(0), "An array whose values nobody relies on: zeros.")
zeros_like = named("zeros_like", _filled_like(0), "Zeros with the shape of `x`.")
ones_like = named("ones_like", _filled_like(1), "Ones with the shape of `x`.")
empty_like = named("empty_like", _filled_like(0), "Zeros with the shape of `x`.")


def full(shape, fill_value, dtype=None) -> Array:
    """An array of one value."""
    return expand_to(convert_to_tensor(fill_value, _dtype(dtype)), normalize_shape(shape))


def full_like(x, fill_value, dtype=None) -> Array:
    """An array of one value with the shape of `x`."""
    x = convert_to_tensor(x)
    return full(x.shape, fill_value, x.dtype if dtype is None else dtype)


def _kind(x):
    return getattr(x, "dtype", type(x))


def _number(x):
    """A Python number; that of a tensor is read on the host."""
    if isinstance(x, int | float):
        return x
    if isinstance(x, np.generic | np.ndarray):
        return x.item()
    host.count("arange")
    return convert_to_tensor(x).item()


def arange(start, stop=None, step=None, dtype=None) -> Array:
    """Values start, start + step, … below stop."""
    if dtype is None:
        dtype = resolve(*(_kind(x) for x in (start, stop, step) if x is not None))
    start = _number(start)
    stop = None if stop is None else _number(stop)
    step = 1 if step is None else _number(step)
    return creation.arange(start, stop, step, find_dtype(dtype))


def _ends(start, stop) -> tuple:
    kept = [x if isinstance(x, int | float) else convert_to_tensor(x) for x in (start, stop)]
    return kept[0], kept[1], resolve(_kind(kept[0]), _kind(kept[1]), float)


def linspace(start, stop, num=50, endpoint=True, retstep=False, dtype=None, axis=0):
    """`num` evenly spaced values from start to stop."""
    start, stop, common = _ends(start, stop)
    dtype = common if dtype is None else find_dtype(dtype)
    return creation.linspace(start, stop, num, endpoint, retstep, dtype, axis)


def logspace(start, stop, num=50, endpoint=True, base=10, dtype=None, axis=0) -> Array:
    """base to the power of evenly spaced values."""
    start, stop, common = _ends(start, stop)
    dtype = common if dtype is None else find_dtype(dtype)
    base = float(base) if isinstance(base, int) else base
    return creation.logspace(start, stop, num, endpoint, base, dtype, axis)


def geomspace(start, stop, num=50, endpoint=True, dtype=None, axis=0) -> Array:
    """`num` values from start to stop with a constant ratio."""
    start, stop, common = _ends(start, stop)
    dtype = common if dtype is None else find_dtype(dtype)
    return creation.geomspace(start, stop, num, endpoint, dtype, axis)


def eye(N, M=None, k=0, dtype=None) -> Array:
    """Ones on diagonal `k`, zeros elsewhere."""
    return creation.eye(int(N), None if M is None else int(M), int(k), _dtype(dtype))


def identity(n, dtype=None) -> Array:
    """The identity matrix."""
    return creation.eye(int(n), dtype=_dtype(dtype))


def tri(N, M=None, k=0, dtype=None) -> Array:
    """Ones on and below diagonal `k`, zeros above."""
    return creation.tri(int(N), None if M is None else int(M), int(k), _dtype(dtype))


def vander(x, N=None, increasing=False) -> Array:
    """Powers of a vector as columns."""
    x = convert_to_tensor(x)
    y = creation.vander(cast_to(x, resolve(x.dtype, floatx())), N, increasing)
    return cast_to(y, resolve(x.dtype))


def _window(name: str) -> Callable:
    run = getattr(creation, name)

    def function(x) -> Array:
        return run(int(_number(x)), floatx())

    return named(name, function, run.__doc__)


bartlett = _window("bartlett")
blackman = _window("blackman")
hamming = _window("hamming")
hanning = _window("hanning")


def kaiser(x, beta) -> Array:
    """The Kaiser window of shape `beta`."""
    return creation.kaiser(int(_number(x)), convert_to_tensor(beta), floatx())


# -- shapes -------------------------------------------------------------------
def _axis(axis):
    return tuple(axis) if isinstance(axis, list) else axis


def ndim(x) -> int:
    """How many dimensions `x` has."""
    return len(x.shape) if hasattr(x, "shape") else np.ndim(x)


def size(x) -> int:
    """How many elements `x` has."""
    return math.prod(x.shape) if hasattr(x, "shape") else np.size(x)


def reshape(x, newshape) -> Array | SparseArray:
    """`x` with another shape of the same size."""
    if type(x) is SparseArray:
        return rules.reshaped(x, newshape)
    return movement.reshape(convert_to_tensor(x), newshape)


def ravel(x) -> Array:
    """`x` as one dimension."""
    return movement.ravel(convert_to_tensor(x))


def copy(x) -> Array | SparseArray:
    """`x`; arrays never change, so nothing is copied."""
    return x if type(x) is SparseArray else convert_to_tensor(x)


def transpose(x, axes=None) -> Array | SparseArray:
    """`x` with its axes permuted."""
    if type(x) is SparseArray:
        return rules.transposed(x, axes)
    return movement.transpose(convert_to_tensor(x), axes)


def swapaxes(x, axis1, axis2) -> Array:
    """`x` with two axes exchanged."""
    return movement.swapaxes(convert_to_tensor(x), axis1, axis2)


def moveaxis(x, source, destination) -> Array:
    """`x` with some axes moved."""
    return movement.moveaxis(convert_to_tensor(x), source, destination)


def broadcast_to(x, shape) -> Array:
    """`x` broadcast to `shape`."""
    return movement.broadcast_to(convert_to_tensor(x), shape)


def expand_dims(x, axis) -> Array | SparseArray:
    """`x` with dimensions of size 1 inserted at `axis`."""
    if type(x) is SparseArray:
        return rules.expanded(x, axis)
    return movement.expand_dims(convert_to_tensor(x), _axis(axis))


def squeeze(x, axis=None) -> Array | SparseArray:
    """`x` without dimensions of size 1."""
    if type(x) is SparseArray:
        return rules.squeezed(x, axis)
    return movement.squeeze(convert_to_tensor(x), _axis(axis))


def flip(x, axis=None) -> Array:
    """`x` with the order of elements reversed along `axis`."""
    return movement.flip(convert_to_tensor(x), _axis(axis))


def fliplr(x) -> Array:
    """`x` reversed along axis 1."""
    return movement.flip(convert_to_tensor(x), 1)


def flipud(x) -> Array:
    """`x` reversed along axis 0."""
    return movement.flip(convert_to_tensor(x), 0)


def rot90(array, k=1, axes=(0, 1)) -> Array:
    """`array` rotated by k quarter turns in the plane of two axes."""
    array = convert_to_tensor(array)
    if array.ndim < 2:
        raise ValueError(
            f"Input array must have at least 2 dimensions. Received: array.ndim={array.ndim}"
        )
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ValueError(f"Invalid axes: {axes}. Axes must be a tuple of two different dimensions.")
    return movement.rot90(array, k, axes)


def roll(x, shift, axis=None) -> Array:
    """`x` with elements moved by `shift` places along `axis`."""
    return movement.roll(convert_to_tensor(x), shift, _axis(axis))


def tile(x, repeats) -> Array:
    """`x` repeated as a whole."""
    return movement.tile(convert_to_tensor(x), repeats)


def repeat(x, repeats, axis=None) -> Array:
    """Each element of `x` repeated along `axis`; the sum of several repeats is read on the host."""
    if not isinstance(repeats, int):
        repeats = convert_to_tensor(repeats)
    return sorting.repeat(convert_to_tensor(x), repeats, axis)


def pad(x, pad_width, mode="constant", constant_values=None) -> Array:
    """`x` with new elements around it."""
    if constant_values is not None and mode != "constant":
        raise ValueError(
            "Argument `constant_values` can only be provided when `mode == 'constant'`. "
            f"Received: mode={mode}"
        )
    if isinstance(pad_width, Array):
        pad_width = pad_width.numpy()
    return movement.pad(
        convert_to_tensor(x), pad_width, mode, 0 if constant_values is None else constant_values
    )


def tril(x, k=0) -> Array:
    """`x` with zeros above diagonal `k`."""
    return movement.tril(convert_to_tensor(x), k)


def triu(x, k=0) -> Array:
    """`x` with zeros below diagonal `k`."""
    return movement.triu(convert_to_tensor(x), k)


def diag(x, k=0) -> Array:
    """A matrix with a vector on diagonal `k`, or that diagonal of a matrix."""
    return movement.diag(convert_to_tensor(x), k)


def diagflat(x, k=0) -> Array:
    """A matrix with all elements of `x` on diagonal `k`."""
    return movement.diagflat(convert_to_tensor(x), k)


def diagonal(x, offset=0, axis1=0, axis2=1) -> Array:
    """The diagonal of two axes."""
    return movement.diagonal(convert_to_tensor(x), offset, axis1, axis2)


def meshgrid(*x, indexing="xy") -> list[Array]:
    """Coordinate arrays over the grid of several vectors."""
    return movement.meshgrid(*(convert_to_tensor(v) for v in x), indexing=indexing)


# -- joining and splitting ----------------------------------------------------
def concatenate(xs, axis=0) -> Array | SparseArray:
    """Join arrays along an existing axis."""
    if all(type(x) is SparseArray for x in xs) and xs:
        return rules.joined(xs, axis, resolve(*{x.dtype for x in xs}))
    return movement.concatenate(several(xs), axis)


def stack(x, axis=0) -> Array:
    """Join arrays along a new axis."""
    return movement.stack(several(x), axis)


def hstack(xs) -> Array:
    """Join arrays along axis 1."""
    return movement.hstack(several(xs))


def vstack(xs) -> Array:
    """Join arrays along axis 0."""
    return movement.vstack(several(xs))


def dstack(xs) -> Array:
    """Join arrays along axis 2."""
    return movement.dstack(several(xs))


def append(x1, x2, axis=None) -> Array:
    """`x2` joined to the end of `x1`."""
    return movement.concatenate(pair(x1, x2), axis)


def split(x, indices_or_sections, axis=0) -> list[Array]:
    """`x` cut into equal parts, or before each of several positions."""
    return movement.split(convert_to_tensor(x), indices_or_sections, axis)


def array_split(x, indices_or_sections, axis=0) -> list[Array]:
    """`x` cut into nearly equal parts."""
    return movement.array_split(convert_to_tensor(x), indices_or_sections, axis)


def hsplit(x, indices_or_sections) -> list[Array]:
    """`split` along axis 1."""
    return movement.hsplit(convert_to_tensor(x), indices_or_sections)


def vsplit(x, indices_or_sections) -> list[Array]:
    """`split` along axis 0."""
    return movement.vsplit(convert_to_tensor(x), indices_or_sections)


def dsplit(x, indices_or_sections) -> list[Array]:
    """`split` along axis 2."""
    return movement.dsplit(convert_to_tensor(x), indices_or_sections)


# -- indexing -----------------------------------------------------------------
def take(x, indices, axis=None) -> Array:
    """Slices of `x` at `indices` along `axis`."""
    return indexing.take(convert_to_tensor(x), convert_to_tensor(indices), axis)


def take_along_axis(x, indices, axis=None) -> Array:
    """Elements of `x` at `indices` along `axis`."""
    return indexing.take_along_axis(convert_to_tensor(x), convert_to_tensor(indices), axis)


def unravel_index(indices, shape) -> tuple[Array, ...]:
    """Coordinates of flat positions."""
    indices = convert_to_tensor(indices)
    found = indexing.unravel_index(indices, shape)
    return tuple(cast_to(x, resolve(indices.dtype)) for x in found)


def slogdet(x) -> tuple[Array, Array]:
    """Sign and logarithm of the absolute value of determinants."""
    return linalg.slogdet(convert_to_tensor(x))


# -- functions of scalars -----------------------------------------------------
def vectorize(pyfunc, *, excluded=None, signature=None) -> Callable:
    """A function that applies `pyfunc` to each element, or to each core array of `signature`.

    Arguments broadcast.  `pyfunc` is called once for each element, on the
    device: it is convenient, not fast.

    Args:
        excluded: positions and names of arguments that are passed on unchanged.
        signature: for example "(n),(n)->()": which dimensions `pyfunc` itself takes.
    """
    excluded = set(excluded or ())
    ranks = None
    if signature is not None:
        inputs = signature.replace(" ", "").partition("->")[0]
        ranks = [len([d for d in core.split(",") if d]) for core in inputs.strip("()").split("),(")]

    def wrapped(*args, **kwargs):
        places = [k for k in range(len(args)) if k not in excluded]
        names = [name for name in kwargs if name not in excluded]
        values = [convert_to_tensor(args[k]) for k in places]
        values += [convert_to_tensor(kwargs[name]) for name in names]
        cores = list(ranks or ())[: len(values)]
        cores += [0] * (len(values) - len(cores))
        loops = [x.shape[: x.ndim - c] for x, c in zip(values, cores, strict=True)]
        loop = broadcast(*loops) if loops else ()
        flat = [
            reshape_to(
                expand_to(x, (*loop, *x.shape[x.ndim - c :])),
                (math.prod(loop), *x.shape[x.ndim - c :]),
            )
            for x, c in zip(values, cores, strict=True)
        ]
        results = []
        for k in range(math.prod(loop)):
            call = list(args)
            named_values = dict(kwargs)
            for place, x in zip(itertools.chain(places, names), flat, strict=True):
                (named_values if isinstance(place, str) else call)[place] = x[k]
            results.append(pyfunc(*call, **named_values))
        if results and isinstance(results[0], tuple | list):
            parts = [stack([r[k] for r in results]) for k in range(len(results[0]))]
            return tuple(reshape_to(p, (*loop, *p.shape[1:])) for p in parts)
        joined = stack(results)
        return reshape_to(joined, (*loop, *joined.shape[1:]))

    return wrapped
