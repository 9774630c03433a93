"""Runs kernels for matrix units, those whose data move in OpenCL C (mma_plain.cl), where there are
none: the lanes of a sub-group exchange what they hold in local memory.

Each instruction is written out from its vendor's manual, and knows nothing of kerascl's own
description.  What this cannot see: time, registers, and how matrix units round sums.
"""

from __future__ import annotations

import dataclasses
import re

from kerascl.kernels.contract.plan import Launch, Plan
from kerascl.kernels.contract.source import cl_source

_HEAD = r"""
#undef UNROLL
#define UNROLL
#undef LOCAL_ADDRESS
#define LOCAL_ADDRESS(s, p) s = 0; \
  __local uint emu_a[NT][EMU_A], emu_b[NT][EMU_B]; \
  const int emu_tid = get_local_id(0), emu_lane = emu_tid % EMU_LANES, \
      emu_first = emu_tid - emu_lane;
#define EMU_SHOW(a, b) { \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int n_ = 0; n_ < EMU_A; ++n_) emu_a[emu_tid][n_] = (a)[n_]; \
  for (int n_ = 0; n_ < EMU_B; ++n_) emu_b[emu_tid][n_] = (b)[n_]; \
  barrier(CLK_LOCAL_MEM_FENCE); }
inline float emu_value(uint word, int k) {
  const ushort half_ = word >> 16 * (k % 2);
  return EMU_VALUE(half_);
}
"""
_VALUES = {
    "bf16": "#define EMU_VALUE(v) as_float((uint)(v) << 16)\n",
    "f16": "#define EMU_VALUE(v) vload_half(0, (const half*)&v)\n",
}
# RDNA 3: register v of lanes r and r + 16 holds depths 2 v and 2 v + 1 of a's row r, and of b's
# column r; register v of d is row 2 v in lanes 0 to 15, row 2 v + 1 in the others.  Unequal halves
# of operands bring NaN.
_WMMA11 = r"""
#define EMU_LANES 32
#define EMU_A 8
#define EMU_B 8
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) { \
    const int row_ = emu_first + 2 * v_ + emu_lane / 16, col_ = emu_first + emu_lane % 16; \
    for (int k_ = 0; k_ < 16; ++k_) { \
      const uint a_ = emu_a[row_][k_ / 2], b_ = emu_b[col_][k_ / 2]; \
      const int same_ = a_ == emu_a[row_ + 16][k_ / 2] && b_ == emu_b[col_ + 16][k_ / 2]; \
      (d)[v_] += same_ ? emu_value(a_, k_) * emu_value(b_, k_) : NAN; \
    } \
  } }
"""
# RDNA 4: register v of lane r holds depths 2 v and 2 v + 1 of a's row r and of b's column r, of
# lane r + 16 those plus 8; register v of d is row v in lanes 0 to 15, row v + 8 in the others.
_WMMA12 = r"""
#define EMU_LANES 32
#define EMU_A 4
#define EMU_B 4
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) { \
    const int row_ = emu_first + v_ + emu_lane / 16 * 8, col_ = emu_first + emu_lane % 16; \
    for (int k_ = 0; k_ < 16; ++k_) { \
      const uint a_ = emu_a[row_ + k_ / 8 * 16][k_ % 8 / 2]; \
      const uint b_ = emu_b[col_ + k_ / 8 * 16][k_ % 8 / 2]; \
      (d)[v_] += emu_value(a_, k_) * emu_value(b_, k_); \
    } \
  } }
"""
# Intel, sub-groups of 8 or 16 lanes, which are as many columns: component v of b is depths 2 v and
# 2 v + 1 of a lane's column, component v of the sums is row v of it; component v of a is row v, of
# which a lane holds depths 2 l and 2 l + 1 (8 lanes) or depth l (16).
_XMX = r"""
#define EMU_B 8
#define MMA(d, a, b) { \
  EMU_SHOW(a, b) \
  for (int v_ = 0; v_ < 8; ++v_) \
    for (int k_ = 0; k_ < 16; ++k_) \
      (d)[v_] += EMU_OF_A(v_, k_) * emu_value(emu_b[emu_tid][k_ / 2], k_); \
  }
"""
_XMX8 = _XMX + r"""
#define EMU_LANES 8
#define EMU_A 8
#define EMU_OF_A(row, k) emu_value(emu_a[emu_first + (k) / 2][row], k)
"""
_XMX16 = _XMX + r"""
#define EMU_LANES 16
#define EMU_A 4
#define EMU_OF_A(row, k) emu_value(emu_a[emu_first + (k)][(row) / 2], row)
"""
_INSTRUCTIONS = {
    r"= intel_sub_group_(bf16|f16)_\1_matrix_mad_k16\(\W+as_int8\b": _XMX8,
    r"= intel_sub_group_(bf16|f16)_\1_matrix_mad_k16\(\W+as_short8\b": _XMX16,
    r"__builtin_amdgcn_wmma_f32_16x16x16_(\w+)_w32\(": _WMMA11,
    r"__builtin_amdgcn_wmma_f32_16x16x16_(\w+)_w32_gfx12\(": _WMMA12,
}


def emulated(plan: Plan) -> Plan:
    """A plan of kernels/units/ for any device, where its data move in OpenCL C."""
    return Plan([_launch(launch) for launch in plan.launches], plan.workspace)


def is_emulated(launch: Launch) -> bool:
    """Whether a launch is one that this file emulates."""
    return launch.name == "mma_tile" and cl_source("units/mma_plain.cl") in launch.source


def _launch(launch: Launch) -> Launch:
    if not is_emulated(launch):
        return launch
    source, count = re.subn(r"(?m)^#define MMA\(.*\\\n(?:.*\\\n)*.*\n", "", launch.source)
    assert count == 1
    found = {pattern: re.search(pattern, launch.source) for pattern in _INSTRUCTIONS}
    ((pattern, kind),) = ((p, m[1]) for p, m in found.items() if m)
    source = re.sub(r"(?m)^#pragma OPENCL EXTENSION cl_khr_fp16.*\n", "", source)
    source = re.sub(r"(?m)^#define UNIT_ATTRIBUTES .*$", "#define UNIT_ATTRIBUTES", source)
    macros, kernel = source.split("__kernel ")
    return dataclasses.replace(
        launch,
        source=macros + _VALUES[kind] + _INSTRUCTIONS[pattern] + _HEAD + "__kernel " + kernel,
        options=("-cl-opt-disable",),  # building takes longer than running
    )
