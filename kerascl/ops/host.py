"""The operations that read something on the host, because the shape of their result needs it, or
because LAPACK computes it.

Everything else stays on the device.  All but LAPACK's decompositions, and functions of NumPy that
kerascl does not have, read a few numbers, not the data; inside a captured function they raise
CaptureError, as any read does.
`calls` counts them, for tests and for finding what stalls a loop.
"""

from __future__ import annotations

from collections import Counter

from kerascl.core.array import Array
from kerascl.core.context import current

HOST_OPERATIONS = {
    "nonzero": "how many elements are not 0",
    "unique": "how many values differ, and of integers the smallest and the largest, unless `size` "
    "is given",
    "bincount": "the largest value, unless `length` is given",
    "repeat": "the sum of an array of repeats, unless `total_length` is given",
    "arange": "its bounds, where they are arrays",
    "boolean index": "how many elements a mask selects",
    "sparse": "how many places a result has, and whether 0 stays 0",
    "onnx setting": "a shape, axis or count that a graph computes",
    "numpy": "arrays given to functions of NumPy that kerascl does not have",
    "places": "an array of places to insert at or to delete, or where zeros end that are left out",
    "roots": "which coefficients at either end of a polynomial are 0",
    "segment": "the largest segment number, unless `num_segments` is given",
    "eig": "LAPACK: eigenvalues",
    "eigh": "LAPACK: eigenvalues",
    "lu": "LAPACK: LU factors",
    "qr": "LAPACK: QR factors",
    "svd": "LAPACK: singular values",
}

calls: Counter[str] = Counter()


def count(name: str) -> None:
    """Note one host read by an operation of `HOST_OPERATIONS`.

    Raises:
        KeyError: for an operation that is not in the table.
    """
    HOST_OPERATIONS[name]
    calls[name] += 1


def integers(*scalars: Array) -> tuple[int, ...]:
    """Values of integer arrays of shape (), which are evaluated together and waited for once.

    Raises:
        CaptureError: inside a captured function.
    """
    for x in scalars:
        x._check_known()
    return tuple(int(y) for y in current.engine.to_hosts([x._node for x in scalars]))
