"""dtype records: how each dtype is stored, computed and converted in OpenCL C.

A dtype has a *storage* type (what lies in a buffer) and a *compute* type (what
arithmetic runs in).  float16 and bfloat16 are stored in two bytes, the two float8
dtypes in one, and all are computed in float, which every device can do, with or
without cl_khr_fp16.  float64 and complex128 need a device with double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

DTypeName: TypeAlias = Literal[
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float8_e4m3fn", "float8_e5m2", "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class DType:
    """One element type.

    `kind` is "b" (bool), "i", "u", "f" or "c"; `storage` and `compute` are
    OpenCL C types; `load` and `store` are templates over {p} (pointer), {i}
    (element index) and {v} (value in the compute type).  `round`, over {v}, gives
    the nearest value that a float stored in fewer bytes than it is computed in has;
    `keep` is a cheaper `store` of such a value, where there is one; `pair`, over {low} and {high},
    gives the word of two such neighbours from floats that are still to be rounded.

    It equals the strings, NumPy dtypes and types that name it, hashes like its name, and serves
    where NumPy or pandas take a dtype.
    """

    name: str
    kind: str
    itemsize: int
    storage: str
    compute: str
    numpy: np.dtype
    load: str = "{p}[{i}]"
    store: str = "{p}[{i}] = {v}"
    round: str = ""
    keep: str = ""
    pair: str = ""

    def __repr__(self) -> str:
        return f"kerascl.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DType):
            return self is other
        if not isinstance(other, str | np.dtype | type):
            return NotImplemented
        try:
            return self is as_dtype(other)
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    if TYPE_CHECKING:  # ops/methods.py makes it

        def __call__(self, value: Any = 0) -> Any:
            """An Array of this dtype, as NumPy's types make scalars."""

    def __reduce__(self) -> tuple[Callable[[str], DType], tuple[str]]:
        return as_dtype, (self.name,)  # there is one record of each

    @property
    def dtype(self) -> np.dtype:
        """NumPy's dtype, where NumPy looks for it."""
        return self.numpy

    __numpy_dtype__ = dtype  # where NumPy looks from 2.4 on

    @property
    def is_float(self) -> bool:
        """Whether it is a floating dtype, float8 included."""
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        """Whether it is an integer dtype, signed or not; bool is none."""
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        """Whether it is bool."""
        return self.kind == "b"

    @property
    def is_complex(self) -> bool:
        """Whether it is complex64 or complex128."""
        return self.kind == "c"

    @property
    def is_float8(self) -> bool:
        """Whether it is one of the two floats of one byte."""
        return self.kind == "f" and self.itemsize == 1

    @property
    def is_double(self) -> bool:
        """Whether a device needs double precision for it."""
        return self.compute in ("double", "double2")

    @property
    def wrapping(self) -> str:
        """The OpenCL C type to add and multiply integers in: in C, signed overflow is undefined.

        Compilers do rely on that: twice an absolute value is never negative to them.
        """
        return "ulong" if self.itemsize == 8 else "uint"

    @property
    def summed(self) -> DType:
        """The dtype that NumPy sums integers in: one of 64 bits.

        The array API standard says the default integer dtype, whose 32 bits overflow soon.
        """
        return uint64 if self.kind == "u" else int64 if self.kind in "bi" else self

    @property
    def accumulator(self) -> DType:
        """The dtype that sums of this dtype are kept in."""
        return float32 if self.is_float and self.itemsize < 4 else self

    @property
    def real(self) -> DType:
        """The dtype of the real part: this dtype itself unless it is complex."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def complex(self) -> DType:
        """The complex dtype that holds this dtype's values: complex128 for float64."""
        return complex128 if self.is_double else complex64


# What names a dtype. `as_dtype` takes any other string, too.
DTypeLike: TypeAlias = DType | DTypeName | np.dtype[Any] | type[Any]


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
    "vload_half({i}, {p})", "vstore_half_rte({v}, {i}, {p})", "kcl_round_half({v})",
)  # fmt: skip


def _packed_float(name: str, storage: str, short: str) -> DType:
    dtype = np.dtype(getattr(ml_dtypes, name))
    load, store = f"kcl_from_{short}({{p}}[{{i}}])", f"{{p}}[{{i}}] = kcl_to_{short}({{v}})"
    keep = "{p}[{i}] = (ushort)(as_uint({v}) >> 16)" if short == "bf16" else ""
    pair = "kcl_pair_bf16({low}, {high})" if short == "bf16" else ""
    rounded = f"kcl_round_{short}({{v}})"
    size = dtype.itemsize
    return DType(name, "f", size, storage, "float", dtype, load, store, rounded, keep, pair)


bfloat16 = _packed_float("bfloat16", "ushort", "bf16")
float8_e4m3fn = _packed_float("float8_e4m3fn", "uchar", "e4m3")
float8_e5m2 = _packed_float("float8_e5m2", "uchar", "e5m2")
float32 = DType("float32", "f", 4, "float", "float", np.dtype("float32"))
float64 = DType("float64", "f", 8, "double", "double", np.dtype("float64"))
complex64 = DType("complex64", "c", 8, "float2", "float2", np.dtype("complex64"))
complex128 = DType("complex128", "c", 16, "double2", "double2", np.dtype("complex128"))

ALL = (
    bool_, int8, int16, int32, int64, uint8, uint16, uint32, uint64,
    float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64, complex64, complex128,
)  # fmt: skip
BY_NAME = {dtype.name: dtype for dtype in ALL}
_BY_NUMPY = {dtype.numpy: dtype for dtype in ALL}

# Helper functions that generated and hand-written sources may rely on.  Rounding is to nearest,
# ties to even, and without branches, so that compilers make vectors of it.  float16 is converted by
# the types of cl_khr_fp16 (KCL_HALF), by the functions that every device has for its memory, where
# these are instructions (KCL_HALF_MEMORY), else by whole numbers.  KCL_CVT_BF16 stands for an
# instruction of PTX.  float8 (arXiv:2209.05433): e4m3fn has no infinities, too large becomes NaN;
# values below the smallest normal number are found by adding one whose last place is theirs.
# KCL_ZERO hides a constant NaN from compilers that take built-in functions of it for undefined,
# KCL_SIGN_OF what an integer is made of from those that take a negation's sign from what was
# negated, which is wrong of the least number.
PRELUDE = """\
#ifdef KCL_HIDE_NAN
#define KCL_ZERO ((uint)(get_global_id(0) >> (8 * sizeof(size_t) - 1)))
#else
#define KCL_ZERO 0u
#endif
#ifdef KCL_HIDE_NEGATION
#define KCL_SIGN_OF(T, x) ((T)((x) ^ (T)get_global_offset(0)))
#else
#define KCL_SIGN_OF(T, x) (x)
#endif
inline float kcl_from_bf16(ushort x) { return as_float((uint)x << 16); }
#ifdef KCL_CVT_BF16
inline uint kcl_bf16_bits(float v) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, 0f00000000;" : "=r"(r) : "f"(v));
  return r;
}
inline uint kcl_pair_bf16(float low, float high) {
  uint r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
inline float kcl_round_bf16(float v) { return as_float(kcl_bf16_bits(v)); }
#else
inline uint kcl_bf16_bits(float v) {
  const uint x = as_uint(v);
  return v != v ? x | 0x400000u : x + 0x7fffu + ((x >> 16) & 1u);
}
inline uint kcl_pair_bf16(float low, float high) {
  return kcl_bf16_bits(low) >> 16 | (kcl_bf16_bits(high) & 0xffff0000u);
}
inline float kcl_round_bf16(float v) { return as_float(kcl_bf16_bits(v) & 0xffff0000u); }
#endif
inline ushort kcl_to_bf16(float v) { return (ushort)(kcl_bf16_bits(v) >> 16); }
#if defined(KCL_HALF)
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
inline float kcl_round_half(float v) { return convert_float(convert_half_rte(v)); }
#elif defined(KCL_HALF_MEMORY)
inline float kcl_round_half(float v) {
  ushort h; vstore_half_rte(v, 0, (half*)&h); return vload_half(0, (half*)&h);
}
#else
inline float kcl_round_half(float v) {
  const uint x = as_uint(v), a = x & 0x7fffffffu;
  const uint tiny = as_uint((as_float(a) + 0.5f) - 0.5f);
  uint r = a < 0x38800000u ? tiny : (a + 0xfffu + ((a >> 13) & 1u)) & 0xffffe000u;
  r = r > 0x477fe000u ? 0x7f800000u : r;
  r = a > 0x7f800000u ? 0x7fc00000u : r;
  return as_float(r | (x ^ a));
}
#endif
inline float kcl_from_e4m3(uchar x) {
  const uint m = x & 127u;
  uint v = m < 8u ? as_uint((float)m * 0.001953125f) : (m << 20) + 0x3c000000u;
  if (m == 127u) v = 0x7fc00000u;
  return as_float(v | ((uint)(x & 128u) << 24));
}
inline uchar kcl_to_e4m3(float v) {
  const uint x = as_uint(v), a = x & 0x7fffffffu;
  uint m = ((a + 0x7ffffu + ((a >> 20) & 1u)) >> 20) - 0x3c0u;
  if (a < 0x3c800000u) m = as_uint(as_float(a) + 16384.0f) - 0x46800000u;
  if (a > 0x43e80000u) m = 127u;
  return (uchar)(m | ((x >> 24) & 128u));
}
inline float kcl_round_e4m3(float v) { return kcl_from_e4m3(kcl_to_e4m3(v)); }
inline float kcl_from_e5m2(uchar x) {
  const uint m = x & 127u;
  uint v = m < 4u ? as_uint((float)m * 0.0000152587890625f) : (m << 21) + 0x38000000u;
  if (m >= 124u) v = m == 124u ? 0x7f800000u : 0x7fc00000u;
  return as_float(v | ((uint)(x & 128u) << 24));
}
inline uchar kcl_to_e5m2(float v) {
  const uint x = as_uint(v), a = x & 0x7fffffffu;
  uint m = ((a + 0xfffffu + ((a >> 21) & 1u)) >> 21) - 0x1c0u;
  if (a < 0x38800000u) m = as_uint(as_float(a) + 128.0f) - 0x43000000u;
  if (a >= 0x47700000u) m = a > 0x7f800000u ? 126u : 124u;
  return (uchar)(m | ((x >> 24) & 128u));
}
inline float kcl_round_e5m2(float v) { return kcl_from_e5m2(kcl_to_e5m2(v)); }
"""


def as_dtype(value: Any) -> DType:
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
        if value is not None:  # float64 to NumPy
            return _BY_NUMPY[np.dtype(value).newbyteorder("=")]
    except (TypeError, ValueError, SyntaxError, KeyError):
        pass
    raise TypeError(f"dtype {value!r} is not supported; choose one of {', '.join(BY_NAME)}")


def host_array(value: npt.ArrayLike) -> np.ndarray:
    """What a device can take of a value on the host: contiguous, in the machine's byte order.

    Raises:
        TypeError: for a dtype that kerascl does not have, and for masked arrays, whose mask would
            be lost.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError("masked arrays are not supported; fill the gaps first: x.filled(0)")
    array = np.asarray(value)
    return np.ascontiguousarray(array, as_dtype(array.dtype).numpy).reshape(array.shape)


# Promotion lattice of JAX (and Keras): integers widen, a float meets any
# integer at the float, float16 meets bfloat16 at float32.  uint64 meets signed integers at float64,
# as in NumPy: JAX's float32 would keep 24 of their 64 bits.
_INT_RANK = {
    "int8": 1, "int16": 2, "int32": 3, "int64": 4, "uint8": 1, "uint16": 2, "uint32": 3, "uint64": 4
}  # fmt: skip
_FLOAT_RANK = {"float16": 1, "bfloat16": 1, "float32": 2, "float64": 3}


def _promote2(a: DType, b: DType) -> DType:
    if a is b or b.is_bool:
        return a
    if a.is_bool:
        return b
    if (a.is_float8 and not b.is_integer) or (b.is_float8 and not a.is_integer):
        raise TypeError(
            f"{a.name} and {b.name} have no common dtype: float8 must be cast explicitly"
        )
    if a.is_complex or b.is_complex:
        return complex128 if a.is_double or b.is_double else complex64
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
    return (int16, int32, int64, float64)[wider - 2]


def promote(*dtypes: DType) -> DType:
    """The dtype that all of `dtypes` convert to (JAX's lattice for strong types).

    Raises:
        TypeError: for a float8 dtype beside another one that is not integer, which JAX
            does not convert.
    """
    result = dtypes[0]
    for dtype in dtypes[1:]:
        result = _promote2(result, dtype)
    return result


def weak_result(scalar: object, dtype: DType) -> DType:
    """The dtype of an operation between an array of `dtype` and a Python scalar."""
    if isinstance(scalar, bool) or dtype.is_complex:
        return dtype
    if isinstance(scalar, complex):
        return dtype.complex
    if isinstance(scalar, float):
        return dtype if dtype.is_float else float32
    return int32 if dtype.is_bool else dtype


# The most elements that positions, counts and index arithmetic take 32 bits for.
NARROW_POSITIONS = 2**31 - 1


def positions(count: int) -> DType:
    """The dtype of positions among `count` elements: int32, or int64 where that is too narrow."""
    return int32 if count <= NARROW_POSITIONS else int64
