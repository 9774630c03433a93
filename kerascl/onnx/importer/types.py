"""ONNX element types: NumPy's, and which of them arrays on the device hold as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from kerascl.core.array import Array
from kerascl.dtypes import BY_NAME as BY_NAME
from kerascl.dtypes import DType
from kerascl.onnx.importer.errors import OnnxError


@dataclass(frozen=True)
class Narrow:
    """An element type without arrays of its own: its values lie in a wider one, `carrier`.

    Integers have `bits`; floats have exponents from `lowest` on (of normal numbers), `mantissa`
    bits, and magnitudes up to `largest`. Beyond that is infinity, NaN or nothing of both.
    """

    code: int
    carrier: str
    bits: int = 0
    signed: bool = True
    lowest: int = 0
    mantissa: int = 0
    largest: float = 0.0
    infinite: bool = False
    nan: bool = True


_T = TensorProto
NARROW = {
    n.code: n
    for n in (
        Narrow(_T.INT4, "int8", 4),
        Narrow(_T.UINT4, "uint8", 4, False),
        Narrow(_T.INT2, "int8", 2),
        Narrow(_T.UINT2, "uint8", 2, False),
        Narrow(_T.FLOAT8E4M3FNUZ, "float32", lowest=-7, mantissa=3, largest=240.0),
        Narrow(_T.FLOAT8E5M2FNUZ, "float32", lowest=-15, mantissa=2, largest=57344.0),
        Narrow(_T.FLOAT4E2M1, "float32", lowest=0, mantissa=1, largest=6.0, nan=False),
        Narrow(_T.FLOAT8E8M0, "float32", lowest=-127, mantissa=0, largest=2.0**127),
    )
}


@dataclass
class NarrowArray:
    """An Array whose values are those of a narrow type."""

    array: Array
    kind: Narrow


def name_of(code: int) -> str:
    """ONNX's name of an element type."""
    try:
        return str(TensorProto.DataType.Name(code))
    except ValueError:
        return f"number {code}"


def numpy_type(code: int) -> np.dtype[Any]:
    """NumPy's dtype of an element type.

    Raises:
        OnnxError: for numbers that name no type.
    """
    if code == TensorProto.UNDEFINED or code not in TensorProto.DataType.values():
        raise OnnxError(f"element type {name_of(code)} is not one of ONNX's")
    return np.dtype(helper.tensor_dtype_to_np_dtype(code))


def device_type(code: int) -> DType:
    """The dtype in which an array on the device holds an element type.

    Raises:
        OnnxError: for strings and numbers that name no type.
    """
    if code in NARROW:
        return BY_NAME[NARROW[code].carrier]
    name = numpy_type(code).name
    if name not in BY_NAME:
        raise OnnxError(f"arrays of {name_of(code)} do not exist on a device")
    return BY_NAME[name]


def code_of(dtype: DType | np.dtype[Any]) -> int:
    """The element type of an array."""
    if isinstance(dtype, DType):
        dtype = dtype.numpy
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def to_carrier(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A host array in the dtype that the device holds it in."""
    return np.asarray(value).astype(device_type(code_of(value.dtype)).numpy)


