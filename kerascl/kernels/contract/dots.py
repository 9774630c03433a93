"""Scalar products of four signed bytes, which many processors have an instruction for."""

from __future__ import annotations

from kerascl.runtime.device import DeviceInfo

# Each has `int kcl_dot4(uint a, uint b, int sum)`, where a and b are four signed bytes each, and
# `uint4 kcl_turned(uint a, uint b, uint c, uint d)`, the byte k of all of which is its word k.
_PTX = """\
inline int kcl_dot4(uint a, uint b, int sum) {
  int r;
  asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(sum));
  return r;
}
inline uint kcl_bytes(uint a, uint b, uint which) {
  uint r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(which));
  return r;
}
inline uint4 kcl_turned(uint a, uint b, uint c, uint d) {
  const uint low = kcl_bytes(a, b, 0x5140), high = kcl_bytes(a, b, 0x7362);
  const uint low_ = kcl_bytes(c, d, 0x5140), high_ = kcl_bytes(c, d, 0x7362);
  return (uint4)(kcl_bytes(low, low_, 0x5410), kcl_bytes(low, low_, 0x7632),
                 kcl_bytes(high, high_, 0x5410), kcl_bytes(high, high_, 0x7632));
}
"""
_TURNED = """\
inline uint4 kcl_turned(uint a, uint b, uint c, uint d) {
  const uchar4 a_ = as_uchar4(a), b_ = as_uchar4(b), c_ = as_uchar4(c), d_ = as_uchar4(d);
  return (uint4)(as_uint((uchar4)(a_.s0, b_.s0, c_.s0, d_.s0)),
                 as_uint((uchar4)(a_.s1, b_.s1, c_.s1, d_.s1)),
                 as_uint((uchar4)(a_.s2, b_.s2, c_.s2, d_.s2)),
                 as_uint((uchar4)(a_.s3, b_.s3, c_.s3, d_.s3)));
}
"""
_STANDARD = (
    """\
inline int kcl_dot4(uint a, uint b, int sum) { return sum + dot_4x8packed_ss_int(a, b); }
"""
    + _TURNED
)
_PLAIN = (
    """\
inline int kcl_dot4(uint a, uint b, int sum) {
  const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
  return sum + ((p.s0 + p.s1) + (p.s2 + p.s3));
}
"""
    + _TURNED
)


def at_once(info: DeviceInfo) -> bool:
    """Whether the device is known to have an instruction for them."""
    return _in_ptx(info) or bool(options(info))


def helper(info: DeviceInfo) -> str:
    """C text that defines `kcl_dot4` and `kcl_turned`, for programs with `options`."""
    if _in_ptx(info):
        return _PTX
    return _STANDARD if options(info) else _PLAIN


def options(info: DeviceInfo) -> tuple[str, ...]:
    """Compiler options that the text needs."""
    packed = info.c_version >= (3, 0) and "cl_khr_integer_dot_product" in info.extensions
    return ("-cl-std=CL3.0",) if packed and not _in_ptx(info) else ()


def _in_ptx(info: DeviceInfo) -> bool:
    return "inline_ptx" in info.quirks and (info.nvidia_capability or (0, 0)) >= (6, 1)
