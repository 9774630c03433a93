"""Arrays handed to pyopencl and taken from it (documen.tician.de/pyopencl), without a copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kerascl.core import context
from kerascl.core import node as graph
from kerascl.core.array import Array, from_host
from kerascl.core.errors import CaptureError
from kerascl.core.lease import FIXED, Lease
from kerascl.dtypes import DTypeLike, as_dtype

__all__ = ["from_pyopencl"]


def from_pyopencl(
    x: Any,
    shape: Sequence[int] | int | None = None,
    dtype: DTypeLike | None = None,
    copy: bool | None = None,
) -> Array:
    """An Array over memory of pyopencl.

    The memory is shared where it lies in the context of one of kerascl's devices, as that of an
    array made on `kerascl.current_device().queue.handle` does.  What was enqueued for `x` is waited
    for where it went to another queue.  Whoever writes to shared memory later changes the result,
    and what was not computed from it yet: leave it alone, or ask for a copy.

    Args:
        x: an array of any shape that is C-contiguous, or a buffer.
        shape: of the result; by default that of `x`, and needed for a buffer.
        dtype: what the bytes are; by default that of `x`, and needed for a buffer.
        copy: True for memory of its own, False for shared memory, None to share where that is
            possible.

    Returns:
        The array, on the device that the memory belongs to; memory of other contexts is copied to
        the current device.

    Raises:
        BufferError: for `copy=False` where a copy is needed.
        TypeError: for what is neither an array nor a buffer of pyopencl, and for a dtype that
            kerascl does not have.
        ValueError: `x` is not contiguous, too small, or a buffer without `shape` and `dtype`.

    Examples:
        >>> import pyopencl.array
        >>> import kerascl
        >>> queue = kerascl.current_device().queue.handle
        >>> theirs = pyopencl.array.arange(queue, 4, dtype="float32")
        >>> (kerascl.from_pyopencl(theirs) * 2).numpy()
        array([0., 2., 4., 6.], dtype=float32)
    """
    theirs = context.current.engine.borrow(x)
    shape, dtype = (
        theirs.shape if shape is None else shape,
        theirs.dtype if dtype is None else dtype,
    )
    if shape is None or dtype is None:
        raise ValueError("from_pyopencl: a buffer needs shape= and dtype=")
    sizes = (int(shape),) if isinstance(shape, (int, np.integer)) else tuple(map(int, shape))
    kind = as_dtype(dtype)
    nbytes = int(np.prod(sizes, dtype=np.int64)) * kind.itemsize
    if not nbytes:
        return from_host(np.empty(sizes, kind.numpy))
    if min(sizes, default=0) < 0 or nbytes > theirs.nbytes:
        raise ValueError(
            f"from_pyopencl: shape {sizes} of {kind.name} takes {nbytes} bytes, x has "
            f"{theirs.nbytes}"
        )
    if theirs.device is None or theirs.offset:
        if copy is False:
            why = "begins inside its buffer" if theirs.device else "lies in another OpenCL context"
            raise BufferError(f"from_pyopencl: x {why}; leave copy=False out")
        return from_host(theirs.read(nbytes).view(kind.numpy).reshape(sizes))
    buffer = theirs.buffer()
    if buffer.nbytes > nbytes:
        buffer = buffer.view(0, nbytes)
    if copy:
        buffer = context.current.engine.copy_buffer(buffer, theirs.device)
    return Array(graph.data(Lease(buffer, FIXED), sizes, kind, theirs.device))


def to_pyopencl(self: Array, queue: Any = None) -> Any:
    """The value as a `pyopencl.array.Array` over the same memory.

    It is computed first.  Write to a copy (`x.to_pyopencl().copy()`) only: the memory is the
    array's, which never changes, and stays until both are gone.

    Args:
        queue: of the same context, for what pyopencl does with it; by default that of the device,
            whose commands come in order. Another one begins when all that was enqueued is done.

    Raises:
        CaptureError: inside a captured function, where there is no value yet.
        TypeError: for bfloat16 and float8, which pyopencl does not know.
        ValueError: `queue` is of another context.

    Examples:
        >>> import kerascl
        >>> kerascl.arange(3).to_pyopencl().get()
        array([0, 1, 2], dtype=int32)
    """
    if context.current.trace is not None:
        raise CaptureError("to_pyopencl needs a value, which a captured function does not have yet")
    if self.dtype.numpy.isbuiltin != 1:
        raise TypeError(f"to_pyopencl: pyopencl does not know {self.dtype.name}; cast it first")
    return context.current.engine.lend(self._node, queue)
