"""dtype records: how each dtype is stored, computed and converted in OpenCL C.

A dtype has a *storage* type (what lies in a buffer) and a *compute* type (what
arithmetic runs in).  float16 and bfloat16 are stored in two bytes and computed
in float, which every device can do, with or without cl_khr_fp16.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np


@dataclass(frozen=True, eq=False)
class DType:
    """One element type.

    `kind` is "b" (bool), "i", "u", "f" or "c"; `storage` and `compute` are
    OpenCL C types; `load` and `store` are templates over {p} (pointer), {i}
    (element index) and {v} (value in the compute type).
    """

    name: str
    kind: str
    itemsize: int
    storage: str
    compute: str
    numpy: np.dtype
    load: str = "{p}[{i}]"
    store: str = "{p}[{i}] = {v}"

    def __repr__(self) -> str:
        return f"kerascl.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other) -> bool:
        if isinstance(other, DType):
            return self is other
        try:
            return self is as_dtype(other)
        except TypeError:
            return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def is_complex(self) -> bool:
        return self.kind == "c"

    @property
    def accumulator(self) -> DType:
        """The dtype that sums of this dtype are kept in."""
        return float32 if self.name in ("float16", "bfloat16") else self


def _integer_type(name: str, ctype: str) -> DType:
    dtype = np.dtype(name)
    return DType(name, dtype.kind, dtype.itemsize, ctype, ctype, dtype)


bool_ = DType(
    "bool",
    "b",
    1,
    "uchar",
    "int",
    np.dtype("bool"),
    "({p}[{i}] != 0)",
    "{p}[{i}] = (uchar)({v} != 0)",
)
int8 = _integer_type("int8", "char")
int16 = _integer_type("int16", "short")
int32 = _integer_type("int32", "int")
int64 = _integer_type("int64", "long")
uint8 = _integer_type("uint8", "uchar")
uint16 = _integer_type("uint16", "ushort")
uint32 = _integer_type("uint32", "uint")
uint64 = _integer_type("uint64", "ulong")
float16 = DType(
    "float16", "f", 2, "half", "float", np.dtype("float16"),
    "vload_half({i}, {p})", "vstore_half_rte({v}, {i}, {p})",
)  # fmt: skip
bfloat16 = DType(
    "bfloat16", "f", 2, "ushort", "float", np.dtype(ml_dtypes.bfloat16),
    "kcl_from_bf16({p}[{i}])", "{p}[{i}] = kcl_to_bf16({v})",
)  # fmt: skip
float32 = DType("float32", "f", 4, "float", "float", np.dtype("float32"))
float64 = DType("float64", "f", 8, "double", "double", np.dtype("float64"))
complex64 = DType("complex64", "c", 8, "float2", "float2", np.dtype("complex64"))

ALL = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float16, bfloat16, float32, float64, complex64,
)  # fmt: skip
BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}

# Helper functions that generated and hand-written sources may rely on.
PRELUDE = """\
inline float kcl_from_bf16(ushort x) { return as_float((uint)x << 16); }
inline ushort kcl_to_bf16(float v) {
  uint x = as_uint(v);
  if ((x & 0x7fffffffu) > 0x7f800000u) return (ushort)((x >> 16) | 64u);
  return (ushort)((x + 0x7fffu + ((x >> 16) & 1u)) >> 16);
}
"""


def as_dtype(value) -> DType:
    """The record for a dtype given as a record, a name, a NumPy dtype or a Python type.

    Raises:
        TypeError: when kerascl has no such dtype.
    """
    if isinstance(value, DType):
        return value
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    if value is float:
        return float32
    if value is int:
        return int32
    name = getattr(value, "name", None)
    if isinstance(name, str) and name in BY_NAME:
        return BY_NAME[name]
    try:
        return _BY_NUMPY[np.dtype(value)]
    except (TypeError, KeyError):
        raise TypeError(
            f"dtype {value!r} is not supported; choose one of {', '.join(BY_NAME)}"
        ) from None


# Promotion lattice of JAX (and Keras): integers widen, a float meets any
# integer at the float, float16 meets bfloat16 at float32.
_INT_RANK = {
    "int8": 1, "int16": 2, "int32": 3, "int64": 4, "uint8": 1, "uint16": 2, "uint32": 3, "uint64": 4
}  # fmt: skip
_FLOAT_RANK = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def _promote2(a: DType, b: DType) -> DType:
    if a is b or b.is_bool:
        return a
    if a.is_bool:
        return b
    if a.is_complex or b.is_complex:
        return complex64
    if a.is_float and b.is_float:
        ra, rb = _FLOAT_RANK[a.name], _FLOAT_RANK[b.name]
        if ra == rb:
            return float32
        return a if ra > rb else b
    if a.is_float:
        return a
    if b.is_float:
        return b
    ra, rb = _INT_RANK[a.name], _INT_RANK[b.name]
    if a.kind == b.kind:
        return a if ra >= rb else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if _INT_RANK[signed.name] > _INT_RANK[unsigned.name]:
        return signed
    wider = _INT_RANK[unsigned.name] + 1
    return (int16, int32, int64, float32)[wider - 2]


def promote(*dtypes: DType) -> DType:
    """The dtype that all of `dtypes` convert to (JAX's lattice for strong types)."""
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promote2(result, dtype)
    return result


def weak_result(scalar: object, dtype: DType) -> DType:
    """The dtype of an operation between an array of `dtype` and a Python scalar."""
    if isinstance(scalar, bool) or dtype.is_complex:
        return dtype
    if isinstance(scalar, complex):
        return complex64
    if isinstance(scalar, float):
        return dtype if dtype.is_float else float32
    return int32 if dtype.is_bool else dtype
