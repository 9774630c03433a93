"""Tensors in and out, their dtypes and devices."""

from __future__ import annotations

import contextlib

import numpy as np
from keras.src import tree
from keras.src.backend import config
from keras.src.backend.common import KerasVariable, standardize_dtype
from keras.src.backend.common.keras_tensor import KerasTensor

from kerascl.core import context
from kerascl.core.array import Array, State, from_host
from kerascl.core.foreign import ADVICE
from kerascl.dtypes import BY_NAME, DType, as_dtype, float32, int32
from kerascl.ops import movement
from kerascl.ops.declare import cast_to, python_dtype, scalar
from kerascl.ops.sparse import SparseArray


def convert_to_tensor(x, dtype=None, sparse=None, ragged=None) -> Array:
    """An Array from anything that Keras calls a tensor.

    Sparse arrays become dense: what keeps them is `core.convert_to_tensor`, which Keras calls.

    Args:
        x: an Array, Keras variable, NumPy array, Python scalar, nested list of these, or another
            framework's tensor (copied through the host).
        dtype: a Keras dtype; by default that of arrays, floatx for Python floats, int32 for ints.

    Raises:
        TypeError: for strings, objects and dtypes that kerascl does not have.
        ValueError: for symbolic tensors, and when a ragged result is asked for.
    """
    if ragged:
        raise ValueError("`ragged=True` is not supported with the kerascl backend")
    target = None if dtype is None else find_dtype(dtype)
    if isinstance(x, Array):
        return x if target is None or x._node.dtype is target else cast_to(x, target)
    if isinstance(x, KerasVariable):
        x = x.value
        return x if target is None else cast_to(x, target)
    if isinstance(x, State):
        return x.value if target is None else cast_to(x.value, target)
    if isinstance(x, SparseArray):
        x = x.to_dense()
        return x if target is None else cast_to(x, target)
    if isinstance(x, bool | int | float) and not isinstance(x, np.generic):
        return scalar(x, target or _scalar_dtype(x))
    if isinstance(x, list | tuple):
        return _from_sequence(x, target)
    return _from_host(x, target)


def find_dtype(dtype) -> DType:
    """kerascl's record of a Keras dtype.

    Raises:
        TypeError: when kerascl does not have it.
        ValueError: when Keras does not.
    """
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype]
    return as_dtype(standardize_dtype(dtype))


def _scalar_dtype(value) -> DType:
    return BY_NAME[config.floatx()] if isinstance(value, float) else python_dtype(value)


def _from_sequence(x, target: DType | None) -> Array:
    leaves = tree.flatten(x)
    if any(isinstance(leaf, Array | KerasVariable | State | SparseArray) for leaf in leaves):
        # without a detour over the host, so that it can be captured
        parts = [convert_to_tensor(part, target) for part in x]
        return movement.stack(parts)
    if target is None and leaves:
        kinds = {type(leaf) for leaf in leaves}
        if kinds <= {bool, int, float}:
            if float in kinds:
                target = BY_NAME[config.floatx()]
            elif int in kinds:
                target = max((python_dtype(leaf) for leaf in leaves), key=lambda d: d.itemsize)
    elif target is None:
        target = BY_NAME[config.floatx()]
    if any(isinstance(leaf, KerasTensor) for leaf in leaves):
        raise ValueError(_SYMBOLIC)
    made = _from_host(_host_sequence(x), target)
    if made.dtype is int32 and len(x) <= _MOST_LITERALS and all(type(leaf) is int for leaf in x):
        made.__dict__["_literals"] = tuple(x)  # mostly a shape, whose product is then a constant
    return made


def literals(x: Array) -> tuple[int, ...] | None:
    """The Python integers that an int32 vector was made of, if it was."""
    return getattr(x, "_literals", None)


def _host_sequence(x) -> np.ndarray:
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError, ValueError):
        # tensors of other frameworks that NumPy cannot stack
        return np.stack(
            [
                _host_sequence(part) if isinstance(part, list | tuple) else _foreign(part)
                for part in x
            ]
        )


_MOST_LITERALS = 16
_SYMBOLIC = (
    "A KerasTensor is symbolic: it stands for a value that does not exist yet, and cannot be "
    "turned into an array. Use it in layers and in functions of `keras.ops` to build a model."
)


def _from_host(x, target: DType | None) -> Array:
    if isinstance(x, KerasTensor):
        raise ValueError(_SYMBOLIC)
    host = x if isinstance(x, np.ndarray) else _foreign(x)
    if host.dtype.kind in "OSUVmM" and host.dtype.name not in BY_NAME:
        if host.dtype.kind == "V" and target is not None and host.dtype.itemsize == target.itemsize:
            host = host.view(target.numpy)  # h5py stores bfloat16 and float8 as plain bytes
        else:
            raise TypeError(
                f"cannot convert {_describe(x)} to a kerascl array: its dtype {host.dtype} has no "
                "place on the device. Strings and objects must become numbers first, for example "
                "with keras.layers.StringLookup or TextVectorization."
            )
    if target is None and host.dtype.name == "float64" and not _has_fp64():
        target = float32
    elif target is None and host.dtype.name == "complex128" and not _has_fp64():
        host = host.astype(np.complex64)
    if target is not None and host.dtype != target.numpy:
        with np.errstate(invalid="ignore", over="ignore"):
            host = host.astype(target.numpy)
    return from_host(host)


def _has_fp64() -> bool:
    return context.device().info.fp64


def _foreign(x) -> np.ndarray:
    """The value of another framework's tensor, or of anything with `__array__`."""
    if hasattr(x, "detach"):  # torch
        x = x.detach().cpu()
        if "bfloat16" in str(x.dtype):
            return x.float().numpy().astype(BY_NAME["bfloat16"].numpy)
    if _is_foreign_tracer(x):
        raise TypeError(
            "a function that JAX traces (jax.grad, jax.jit) gives a tracer to kerascl, through "
            f"which JAX cannot differentiate or compile; {ADVICE}, and kerascl.jit"
        )
    return np.asarray(x)


def _is_foreign_tracer(x) -> bool:
    return type(x).__module__.startswith("jax.") and type(x).__name__.endswith("Tracer")


def sparse_from(x) -> SparseArray | None:
    """A sparse matrix of SciPy, or a sparse tensor of TensorFlow or JAX; None for anything else."""
    library = type(x).__module__.partition(".")[0]
    if library == "scipy" and hasattr(x, "tocoo"):
        coo = x.tocoo()
        values, indices = coo.data, np.stack(getattr(coo, "coords", None) or (coo.row, coo.col), 1)
    elif library == "tensorflow" and hasattr(x, "dense_shape"):
        if not hasattr(x, "consumers"):  # IndexedSlices
            return None
        values, indices = x.values.numpy(), x.indices.numpy()
    elif library == "jax" and hasattr(x, "update_layout"):
        x = x.update_layout(n_batch=0, n_dense=0)
        values, indices = np.asarray(x.data), np.asarray(x.indices)
        inside = np.all(indices < np.array(x.shape), axis=1)  # JAX pads with places outside
        values, indices = values[inside], indices[inside]
    else:
        return None
    return SparseArray(_from_host(values, None), from_host(indices.astype(np.int32)), x.shape)


def _describe(x) -> str:
    text = repr(x)
    return text if len(text) <= 60 else f"{text[:57]}..."


def convert_to_numpy(x) -> np.ndarray:
    """The value on the host, in the same dtype (bfloat16 as `ml_dtypes.bfloat16`)."""
    if isinstance(x, Array):
        return x.numpy()
    if isinstance(x, KerasVariable | State):
        return x.value.numpy()
    if isinstance(x, SparseArray):
        return x.numpy()
    if isinstance(x, KerasTensor):
        raise ValueError(_SYMBOLIC)
    if isinstance(x, list | tuple) and any(
        isinstance(leaf, Array | KerasVariable | SparseArray) for leaf in tree.flatten(x)
    ):
        return np.array([convert_to_numpy(part) for part in x])
    return np.array(_foreign(x))


def is_tensor(x) -> bool:
    """Whether `x` is an Array, dense or sparse."""
    return isinstance(x, Array | SparseArray)


def shape(x) -> tuple[int, ...]:
    """The shape; always known."""
    return tuple(x.shape)


def random_seed_dtype() -> str:
    """The dtype of random seeds."""
    return "uint32"


def device_scope(device_name):
    """Create arrays on a device such as "gpu:0" or "cpu:0" inside the `with` block."""
    return contextlib.nullcontext() if device_name is None else context.device_scope(device_name)


def get_device() -> str:
    """The name of the device that new arrays are made on."""
    return context.device().info.name
