"""Runs kernels for matrix units, those whose data move in OpenCL C (mma_plain.cl, and attention's
in attention_fragment_tiles.cl), where there are none: the lanes of a sub-group exchange what they
hold in local memory.

Each instruction is written out from its vendor's manual, and knows nothing of kerascl's own
description.  What this cannot see: time, registers, and how matrix units round sums.
"""

from __future__ import annotations

import dataclasses
import re

from kerascl.kernels.contract.plan import Launch, Plan
from kerascl.kernels.contract.source import cl_source

# Memory of products' kernels, and of attention's.
_PRODUCT = r"""
#undef LOCAL_ADDRESS
#define LOCAL_ADDRESS(s, p) s = 0; EMU_MEMORY
"""
_ATTENTION = r"""
#define NT THREADS
#undef MATRIX_UNITS
#define MATRIX_UNITS EMU_MEMORY
"""
_HEAD = r"""
#undef UNROLL
#define UNROLL
#define EMU_MEMORY \
  __local uint emu_a[NT][EMU_A], emu_b[NT][EMU_B]; \
  const int emu_tid = get_local_id(0), emu_lane = emu_tid % EMU_LANES, \
      emu_first = emu_tid - emu_lane;
#define EMU_SHOW(a, b) { \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int n_ = 0; n_ < EMU_A; ++n_) emu_a[emu_tid][n_] = (a)[n_]; \
  for (int n_ = 0; n_ < EMU_B; ++n_) emu_b[emu_tid][n_] = (b)[n_]; \
  barrier(CLK_LOCAL_MEM_FENCE); }
"""
# Element k of those that a register holds, EMU_PER of them, and what no product may bring.
_FLOATS = """
#define EMU_PER 2
#define EMU_WRONG NAN
inline float emu_value(uint word, int k) {
  const ushort half_ = word >> 16 * (k % 2);
  return EMU_VALUE(half_);
}
"""
_BYTES = """
#define EMU_PER 4
#define EMU_WRONG (1 << 30)
inline int emu_value(uint word, int k) { return (char)(word >> 8 * (k % 4)); }
"""
_VALUES = {
    "bf16": "#define EMU_VALUE(v) as_float((uint)(v) << 16)\n",
    "f16": "#define EMU_VALUE(v) vload_half(0, (const half*)&v)\n",
    "4": "#define EMU_VALUE(v) NAN\n",
    "8": "#define EMU_VALUE(v) NAN\n",
}
_VALUES = {name: text + _FLOATS for name, text in _VALUES.items()} | {"i8": _BYTES, "iu8": _BYTES}
# RDNA 3: register v of lanes r and r + 16 holds depths 2 v and 2 v + 1 (of int8 4 v to 4 v + 3) of
# a's row r, and of b's column r; register v of d is row 2 v in lanes 0 to 15, row 2 v + 1 in the
# others.  Unequal halves of operands bring what is wrong.
_WMMA11 = r"""
#define EMU_LANES 32
#define EMU_A (16 / EMU_PER)
#define EMU_B EMU_A
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) { \
    const int row_ = emu_first + 2 * v_ + emu_lane / 16, col_ = emu_first + emu_lane % 16; \
    for (int k_ = 0; k_ < 16; ++k_) { \
      const int w_ = k_ / EMU_PER; \
      const uint a_ = emu_a[row_][w_], b_ = emu_b[col_][w_]; \
      const int same_ = a_ == emu_a[row_ + 16][w_] && b_ == emu_b[col_ + 16][w_]; \
      (d)[v_] += same_ ? emu_value(a_, k_) * emu_value(b_, k_) : EMU_WRONG; \
    } \
  } }
"""
# RDNA 4: register v of lane r holds depths 2 v and 2 v + 1 (of int8 4 v to 4 v + 3) of a's row r
# and of b's column r, of lane r + 16 those plus 8; register v of d is row v in lanes 0 to 15, row
# v + 8 in the others.
_WMMA12 = r"""
#define EMU_LANES 32
#define EMU_A (8 / EMU_PER)
#define EMU_B EMU_A
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) { \
    const int row_ = emu_first + v_ + emu_lane / 16 * 8, col_ = emu_first + emu_lane % 16; \
    for (int k_ = 0; k_ < 16; ++k_) { \
      const uint a_ = emu_a[row_ + k_ / 8 * 16][k_ % 8 / EMU_PER]; \
      const uint b_ = emu_b[col_ + k_ / 8 * 16][k_ % 8 / EMU_PER]; \
      (d)[v_] += emu_value(a_, k_) * emu_value(b_, k_); \
    } \
  } }
"""
# CDNA: of K depths each lane holds K / 4, in registers or parts of them: depth k of a's row r, and
# of b's column r, is in lane r + 16 (k / (K / 4)); in lane 16 g + r register v of d is row 4 g + v.
_MFMA = r"""
#define EMU_LANES 64
#define EMU_B EMU_A
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 4; ++v_) { \
    const int row_ = emu_first + emu_lane / 16 * 4 + v_, col_ = emu_first + emu_lane % 16; \
    for (int k_ = 0; k_ < EMU_K; ++k_) { \
      const int far_ = k_ / (EMU_K / 4) * 16, word_ = k_ % (EMU_K / 4) * EMU_A / (EMU_K / 4); \
      (d)[v_] += EMU_OF(emu_a[row_ + far_][word_], k_) * EMU_OF(emu_b[col_ + far_][word_], k_); \
    } \
  } }
"""
_MFMA16 = _MFMA + """
#define EMU_A 2
#define EMU_K 16
#define EMU_OF(word, k) emu_value(word, k)
"""
# CDNA 2's and CDNA 3's of int8: four or eight depths of each lane.
_MFMA16I = _MFMA16.replace("EMU_A 2", "EMU_A 1")
_MFMA32I = _MFMA16.replace("EMU_K 16", "EMU_K 32")
_MFMA4 = _MFMA + """
#define EMU_A 1
#define EMU_K 4
#define EMU_OF(word, k) as_float(word)
"""
# What xf32 leaves of a number at worst.
_XF32 = _MFMA + """
#define EMU_A 2
#define EMU_K 8
#define EMU_OF(word, k) as_float((word) & XF32_BITS)
"""
# Intel, sub-groups of 8 or 16 lanes, which are as many columns: component v of b is depths 2 v and
# 2 v + 1 (of int8 4 v to 4 v + 3) of a lane's column, component v of the sums is row v of it;
# component v of a is row v, of which a lane holds four bytes (8 lanes) or two (16).
_XMX = r"""
#define EMU_B 8
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) \
    for (int k_ = 0; k_ < 8 * EMU_PER; ++k_) \
      (d)[v_] += EMU_OF_A(v_, k_) * emu_value(emu_b[emu_tid][k_ / EMU_PER], k_); \
  }
"""
_XMX8 = _XMX + r"""
#define EMU_LANES 8
#define EMU_A 8
#define EMU_OF_A(row, k) emu_value(emu_a[emu_first + (k) / EMU_PER][row], k)
"""
_XMX16 = _XMX + r"""
#define EMU_LANES 16
#define EMU_A 4
#define EMU_OWN (EMU_PER / 2)
#define EMU_OF_A(row, k) \
  emu_value(emu_a[emu_first + (k) / EMU_OWN][(row) / 2], (row) % 2 * EMU_OWN + (k) % EMU_OWN)
"""
_INSTRUCTIONS = {
    r"__builtin_amdgcn_wmma_f32_16x16x16_(\w+)_w32\(": _WMMA11,
    r"__builtin_amdgcn_wmma_f32_16x16x16_(\w+)_w32_gfx12\(": _WMMA12,
    r"__builtin_amdgcn_mfma_f32_16x16x16(f16)\(": _MFMA16,
    r"__builtin_amdgcn_mfma_f32_16x16x16(bf16)_1k\(": _MFMA16,
    r"__builtin_amdgcn_mfma_f32_16x16x(4)f32\(": _MFMA4,
    r"__builtin_amdgcn_mfma_f32_16x16x(8)_xf32\(": _XF32,
    r"= intel_sub_group_(bf16|f16)_\1_matrix_mad_k16\(\W+as_int8\b": _XMX8,
    r"= intel_sub_group_(bf16|f16)_\1_matrix_mad_k16\(\W+as_short8\b": _XMX16,
    r"__builtin_amdgcn_wmma_i32_16x16x16_(iu8)_w32\(\W+true, ": _WMMA11,
    r"__builtin_amdgcn_wmma_i32_16x16x16_(iu8)_w32_gfx12\(\W+true, ": _WMMA12,
    r"__builtin_amdgcn_mfma_i32_16x16x16(i8)\(": _MFMA16I,
    r"__builtin_amdgcn_mfma_i32_16x16x32_(i8)\(": _MFMA32I,
    r"= intel_sub_group_(i8)_i8_matrix_mad_k32\(\W+as_int8\b": _XMX8,
    r"= intel_sub_group_(i8)_i8_matrix_mad_k32\(\W+as_short8\b": _XMX16,
}
_XF32_BITS = {True: 0xFFFFFFFF, False: 0xFFFFE000}


def emulated(plan: Plan, exact: bool = False) -> Plan:
    """A plan of kernels/units/ for any device, where its data move in OpenCL C.

    Args:
        exact: let xf32 keep what float32 holds.
    """
    return Plan([_launch(launch, exact) for launch in plan.launches], plan.workspace)


def is_emulated(launch: Launch) -> bool:
    """Whether a launch is one that this file emulates."""
    plain = launch.name == "mma_tile" and cl_source("units/mma_plain.cl") in launch.source
    return plain or launch.name.startswith("attention_fragment")


# A macro of several lines of which the second calls an instruction; and its name.
_MACRO = (
    r"(?m)^(#define (\w+)\(.*\\\n.*(?:__builtin_amdgcn_|intel_sub_group_).*\\\n(?:.*\\\n)*.*\n)"
)


def _launch(launch: Launch, exact: bool) -> Launch:
    if not is_emulated(launch):
        return launch
    ((macro, name),) = re.findall(_MACRO, launch.source)
    source = launch.source.replace(macro, "")
    found = {pattern: re.search(pattern, macro) for pattern in _INSTRUCTIONS}
    ((pattern, kind),) = ((p, m[1]) for p, m in found.items() if m)
    instruction = _INSTRUCTIONS[pattern].replace("MMA(", f"{name}(")
    instruction = instruction.replace("XF32_BITS", f"0x{_XF32_BITS[exact]:x}u")
    source = re.sub(r"(?m)^#pragma OPENCL EXTENSION cl_khr_fp16.*\n", "", source)
    source = re.sub(r"(?m)^#define UNIT_ATTRIBUTES .*$", "#define UNIT_ATTRIBUTES", source)
    attention = launch.name.startswith("attention")
    source = source.replace('_Pragma("unroll") for', "for")
    begin = "#ifdef FORWARD\n__kernel " if attention else "__kernel "
    macros, kernel = source.split(begin)
    head = _HEAD + (_ATTENTION if attention else _PRODUCT)
    return dataclasses.replace(
        launch,
        source=macros + _VALUES[kind] + instruction + head + begin + kernel,
        options=("-cl-opt-disable",),  # building takes longer than running
    )
