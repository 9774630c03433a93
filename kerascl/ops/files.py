"""NumPy's files of arrays: what is saved is read on the host, as by `x.numpy()`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import IO, Any

import numpy as np

from kerascl.core.array import Array, ArrayLike
from kerascl.dtypes import DTypeLike, as_dtype, float32
from kerascl.ops.creation import array
from kerascl.ops.declare import as_array

__all__ = ["frombuffer", "fromiter", "load", "save", "savez", "savez_compressed"]

File = str | os.PathLike[str] | IO[bytes]


def _plain(x: ArrayLike, name: str) -> np.ndarray:
    made = as_array(x)
    if made.dtype.numpy.kind == "V" or made.dtype.name.startswith(("bfloat16", "float8")):
        raise TypeError(f"{name}: NumPy's files do not have {made.dtype.name}; cast to float32")
    return made.numpy()


def save(file: File, arr: ArrayLike) -> None:
    """Write an array into a file of NumPy's format .npy.

    Args:
        file: a path, to which ".npy" is added where it has no such ending, or an open file.

    Raises:
        TypeError: for bfloat16 and float8, which the format does not have.

    Examples:
        >>> kc.save("x.npy", kc.arange(3))
        >>> kc.load("x.npy").tolist()
        [0, 1, 2]
    """
    np.save(file, _plain(arr, "save"))


def _several(
    write: Callable[..., None], name: str, file: File, arrays: Any, named: dict[str, Any]
) -> None:
    numbered = {f"arr_{k}": x for k, x in enumerate(arrays)}
    both = numbered.keys() & named.keys()
    if both:
        raise ValueError(f"{name}: {sorted(both)[0]!r} is the name of an array without one, too")
    write(file, **{key: _plain(x, name) for key, x in (numbered | named).items()})


def savez(file: File, *args: ArrayLike, **kwds: ArrayLike) -> None:
    """Write several arrays into one file of NumPy's format .npz, under their names; those without
    one are arr_0, arr_1, ….

    Raises:
        TypeError: for bfloat16 and float8, which the format does not have.
        ValueError: for a name that is given twice.

    Examples:
        >>> kc.savez("w.npz", kc.ones(2), bias=kc.zeros(1))
        >>> sorted(kc.load("w.npz"))
        ['arr_0', 'bias']
    """
    _several(np.savez, "savez", file, args, kwds)


def savez_compressed(file: File, *args: ArrayLike, **kwds: ArrayLike) -> None:
    """As `savez`, compressed.

    Raises:
        TypeError: for bfloat16 and float8, which the format does not have.
        ValueError: for a name that is given twice.

    Examples:
        >>> kc.savez_compressed("w.npz", weight=kc.ones(2))
        >>> kc.load("w.npz")["weight"].tolist()
        [1.0, 1.0]
    """
    _several(np.savez_compressed, "savez_compressed", file, args, kwds)


def load(file: File) -> Array | dict[str, Array]:
    """The array of a .npy file, or the arrays of a .npz file by name; nothing is unpickled.

    Raises:
        ValueError: for files of Python objects, and for what is none of NumPy's files.

    Examples:
        >>> kc.save("x.npy", kc.ones(2))
        >>> kc.load("x.npy").tolist()
        [1.0, 1.0]
    """
    found = np.load(file, allow_pickle=False)
    if isinstance(found, np.ndarray):
        return array(found)
    with found:
        return {name: array(found[name]) for name in found.files}


def frombuffer(buffer: Any, dtype: DTypeLike = float32, count: int = -1, offset: int = 0) -> Array:
    """The numbers that lie in bytes, as a vector of its own.

    Args:
        count: how many; all by default.
        offset: at which byte they begin.

    Raises:
        ValueError: where the bytes hold no whole number of elements, or fewer than `count`.

    Examples:
        >>> kc.frombuffer(bytes([1, 0, 2, 0]), kc.int16).tolist()
        [1, 2]
    """
    return array(np.frombuffer(buffer, as_dtype(dtype).numpy, count, offset))


def fromiter(iter: Iterable[Any], dtype: DTypeLike, count: int = -1) -> Array:
    """The numbers that an iterable gives, as a vector.

    Args:
        count: how many; all by default.

    Raises:
        ValueError: where the iterable gives fewer.

    Examples:
        >>> kc.fromiter((k * k for k in range(4)), int).tolist()
        [0, 1, 4, 9]
    """
    return array(np.fromiter(iter, as_dtype(dtype).numpy, count))
