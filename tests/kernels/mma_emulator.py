"""Runs kernels with mma.sync where there is none: the lanes of a warp exchange what they hold in
local memory, in plain OpenCL C around the text of mma_tile.cl and attention_mma.cl.

Copies to local memory happen at once, so what this cannot see is a wait that is missing or comes
too late; nor time, registers, or how matrix units round sums.  A copy whose addresses are no
multiple of its size, which the hardware refuses, brings NaN.
"""

from __future__ import annotations

import dataclasses
import re

from kerascl.kernels import attention_mma
from kerascl.kernels.solver import Launch, Plan, cl_source

#: mma_units.cl, with nothing rounded: results are those of float32.
UNITS = """
#define MATRIX_UNITS \\
  __local float emu_a[THREADS][4], emu_b[THREADS][2], emu_x[THREADS]; \\
  const int emu_lane = get_local_id(0), emu_warp = emu_lane / 32 * 32;
#define MMA_TF32(d, a, b0, b1) { \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  for (int n_ = 0; n_ < 4; ++n_) emu_a[emu_lane][n_] = (a)[n_]; \\
  emu_b[emu_lane][0] = b0; \\
  emu_b[emu_lane][1] = b1; \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  for (int n_ = 0; n_ < 4; ++n_) { \\
    const int row_ = emu_lane % 32 / 4, col_ = emu_lane % 4 * 2 + n_ % 2; \\
    for (int k_ = 0; k_ < 8; ++k_) \\
      (d)[n_] += emu_a[emu_warp + row_ * 4 + k_ % 4][n_ / 2 + k_ / 4 * 2] \\
          * emu_b[emu_warp + col_ * 4 + k_ % 4][k_ / 4]; \\
  } }
#define SHUFFLE_XOR(to, from, bits) { \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  emu_x[emu_lane] = from; \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  to = emu_x[emu_lane ^ (bits)]; }
#define ROUNDED_SUM(x) (x)
"""

# Instead of mma_tile.cl's macros that hold PTX.  EMU_MASK: the bits that products take of a TF32.
_TILE = r"""
#undef UNROLL
#define UNROLL
#define EMU_BYTES ((__local uchar*)memory)
#define LOCAL_ADDRESS(s, p) s = 0; \
  __local uint emu_lanes[NT][6]; \
  const int emu_tid = get_local_id(0), emu_warp = emu_tid / 32 * 32, emu_lane = emu_tid % 32;
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define COMMIT
#define WAIT(n)
#define CP16 16
#define CP8 8
#define CP4 4
// n of so many bytes, and zeros.
#define COPY_PART(nbytes, to, from, n) \
  emu_copy(nbytes, EMU_BYTES, to, (__global const uchar*)(from), n);
inline void emu_copy(int nbytes, __local uchar* memory, uint to, __global const uchar* from,
                     int n) {
  const int aligned = to % nbytes == 0 && (n == 0 || (ulong)from % nbytes == 0);
  for (int b = 0; b < nbytes; ++b) memory[to + b] = !aligned ? 0xff : b < n ? from[b] : 0;
}
#define COPY_FULL(nbytes, to, from) COPY_PART(nbytes, to, from, nbytes)
#define COPY_SOME(nbytes, to, from, n) COPY_PART(nbytes, to, from, (n) ? nbytes : 0)
#define SOME2(to, p, i, n) *(__local ushort*)(EMU_BYTES + (to)) = (n) ? (p)[i] : (ushort)0;
#define LDS4(d0, d1, d2, d3, at) { \
  const __local uint* from_ = (const __local uint*)(EMU_BYTES + (at)); \
  d0 = from_[0]; d1 = from_[1]; d2 = from_[2]; d3 = from_[3]; }
// Lane 8 i + r says where row r of matrix i lies.
#define EMU_ROW(i, r) (EMU_BYTES + emu_lanes[emu_warp + 8 * (i) + (r)][0])
#define EMU_LDM(at, PART, d0, d1, d2, d3) { \
  barrier(CLK_LOCAL_MEM_FENCE); \
  emu_lanes[emu_tid][0] = (at); \
  barrier(CLK_LOCAL_MEM_FENCE); \
  d0 = PART(0); d1 = PART(1); d2 = PART(2); d3 = PART(3); }
#define EMU_PAIR(i) *(__local uint*)(EMU_ROW(i, emu_lane / 4) + emu_lane % 4 * 4)
#define EMU_HALF(i, h) \
  (uint)*(__local ushort*)(EMU_ROW(i, emu_lane % 4 * 2 + h) + emu_lane / 4 * 2) << 16 * h
#define EMU_COLUMN(i) (EMU_HALF(i, 0) | EMU_HALF(i, 1))
#define LDM4(d0, d1, d2, d3, at) EMU_LDM(at, EMU_PAIR, d0, d1, d2, d3)
#define LDM4T(d0, d1, d2, d3, at) EMU_LDM(at, EMU_COLUMN, d0, d1, d2, d3)
#if EB == 4
#define EMU_K 8
#define EMU_PER 1  // elements of a register
inline float emu_value(uint word, int k) { return as_float(word & EMU_MASK); }
#else
#define EMU_K 16
#define EMU_PER 2
inline float emu_value(uint word, int k) {
  const ushort half_ = word >> 16 * (k % 2);
  return EMU_VALUE(half_);
}
#endif
// Lane 4 g + t holds of a the rows g, g + 8 (fastest) by depths t, t + 4 (or pairs t, t + 4); of b
// the same depths of column g; of d the columns 2 t, 2 t + 1 (fastest) of rows g, g + 8.
#define MMA(d, a, b) { \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int n_ = 0; n_ < 4; ++n_) emu_lanes[emu_tid][n_] = (a)[n_]; \
  for (int n_ = 0; n_ < 2; ++n_) emu_lanes[emu_tid][4 + n_] = (b)[n_]; \
  barrier(CLK_LOCAL_MEM_FENCE); \
  for (int n_ = 0; n_ < 4; ++n_) { \
    const int row_ = emu_lane / 4, col_ = emu_lane % 4 * 2 + n_ % 2; \
    for (int k_ = 0; k_ < EMU_K; ++k_) { \
      const int word_ = k_ / EMU_PER, far_ = word_ / 4; \
      (d)[n_] += \
          emu_value(emu_lanes[emu_warp + row_ * 4 + word_ % 4][n_ / 2 + 2 * far_], k_) * \
          emu_value(emu_lanes[emu_warp + col_ * 4 + word_ % 4][4 + far_], k_); \
    } \
  } }
"""
_VALUES = {
    "tf32": "",
    "bf16": "#define EMU_VALUE(v) as_float((uint)(v) << 16)\n",
    "f16": "#define EMU_VALUE(v) vload_half(0, (const half*)&v)\n",
}


def emulated(plan: Plan, exact: bool = False) -> Plan:
    """A plan of kernels/mma.py for any device; with `exact`, TF32 keeps what float32 holds."""
    return Plan([_launch(launch, exact) for launch in plan.launches], plan.workspace)


def _launch(launch: Launch, exact: bool) -> Launch:
    if launch.name != "mma_tile":
        return launch
    head, text = launch.source.split(cl_source("mma_tile.cl"))[0], cl_source("mma_tile.cl")
    # Macros that hold PTX, whole or the names of instructions, are the emulator's instead.
    text = re.sub(
        r"(?m)^#define (?:.*\\\n)*.*\n",
        lambda m: "" if re.search(r'asm\b|"cp\.async', m[0]) else m[0], text,
    )  # fmt: skip
    if exact:
        text = text.replace("as_uint(as_float(x) * 1.00035222f)", "(x)")
    assert not re.search(r"\basm\b", re.sub("//.*", "", text)), "PTX that is not emulated"
    macros, kernel = text.split("__kernel ")
    kind = re.search(r'#define MMA_TYPE "(\w+)"', head)[1]
    mask = f"#define EMU_MASK 0xffff{'ffff' if exact else 'e000'}u\n"
    return dataclasses.replace(
        launch, source=head + macros + mask + _VALUES[kind] + _TILE + "__kernel " + kernel,
        options=("-cl-opt-disable",),  # building takes longer than running
    )  # fmt: skip


def emulated_class(solver: type[attention_mma._Mma]) -> type:
    """A class of attention's solvers for NVIDIA's matrix units as one for any device."""

    class Emulated(solver):
        def source(self, *args, **names):
            text = super().source(*args, **names)
            assert cl_source("mma_units.cl") in text
            return text.replace(cl_source("mma_units.cl"), UNITS)

    return Emulated
