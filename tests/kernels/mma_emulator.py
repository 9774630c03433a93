"""Runs kernels with mma.sync where there is none: the lanes of a warp exchange what they hold in
local memory, in plain OpenCL C around the text of mma_tile.cl and attention_mma.cl.

Copies to local memory are asynchronous there.  Here they happen at once, so that one into a stage
that is still read shows, or as late as they may, so that a missing wait shows.  A copy whose
addresses are no multiple of its size, which the hardware refuses, brings NaN.  What this cannot
see: time, registers, how matrix units round sums, and barriers that are missing beside its own.
"""

from __future__ import annotations

import dataclasses
import re

from kerascl import dtypes
from kerascl.kernels.contract.plan import Launch, Plan
from kerascl.kernels.contract.source import cl_source
from kerascl.kernels.units import attention as unit_attention
from kerascl.kernels.units import attention16, nv_sm80
from kerascl.kernels.units.fragment import Fragment

# Instead of nv_sm80.cl's macros that hold PTX.  EMU_MASK: the bits that products take of a TF32.
_TILE = r"""
#undef UNROLL
#define UNROLL
#define EMU_BYTES ((__local uchar*)memory)
#define LOCAL_ADDRESS(s, p) s = 0; \
  __local uint emu_lanes[NT][6]; \
  const int emu_tid = get_local_id(0), emu_warp = emu_tid / 32 * 32, emu_lane = emu_tid % 32; \
  EMU_QUEUE
#define SYNC barrier(CLK_LOCAL_MEM_FENCE)
#define CP16 16
#define CP8 8
#define CP4 4
// n of so many bytes, and zeros.
inline void emu_copy(int nbytes, __local uchar* memory, uint to, __global const uchar* from,
                     int n) {
  const int aligned = to % nbytes == 0 && (n == 0 || (ulong)from % nbytes == 0);
  for (int b = 0; b < nbytes; ++b) memory[to + b] = !aligned ? 0xff : b < n ? from[b] : 0;
}
#if EMU_LATE
// The copies of the groups not waited for.
#define EMU_GROUPS (STAGES + 1)
#ifndef EMU_MOST
#define EMU_MOST (PER(A, BM) + PER(B, BN))  // copies of a group; more are lost
#endif
typedef struct {
  int group, done, count[EMU_GROUPS];
  struct {
    int nbytes, n;
    uint to;
    __global const uchar* from;
  } copies[EMU_GROUPS][EMU_MOST];
} emu_queue_t;
#define EMU_QUEUE emu_queue_t emu_queue; \
  emu_queue.group = emu_queue.done = emu_queue.count[0] = 0;
inline void emu_put(emu_queue_t* q, int nbytes, uint to, __global const uchar* from, int n) {
  const int g = q->group % EMU_GROUPS, c = q->count[g];
  if (c == EMU_MOST) return;
  q->count[g] = c + 1;
  q->copies[g][c].nbytes = nbytes;
  q->copies[g][c].n = n;
  q->copies[g][c].to = to;
  q->copies[g][c].from = from;
}
inline void emu_wait(emu_queue_t* q, __local uchar* memory, int pending) {
  for (; q->done + pending < q->group; ++q->done) {
    const int g = q->done % EMU_GROUPS;
    for (int c = 0; c < q->count[g]; ++c)
      emu_copy(q->copies[g][c].nbytes, memory, q->copies[g][c].to, q->copies[g][c].from,
               q->copies[g][c].n);
  }
}
#define COMMIT emu_queue.count[++emu_queue.group % EMU_GROUPS] = 0
#define WAIT(n) emu_wait(&emu_queue, EMU_BYTES, n)
#define COPY_PART(nbytes, to, from, n) \
  emu_put(&emu_queue, nbytes, to, (__global const uchar*)(from), n);
#else
#define EMU_QUEUE
#define COMMIT
#define WAIT(n)
#define COPY_PART(nbytes, to, from, n) \
  emu_copy(nbytes, EMU_BYTES, to, (__global const uchar*)(from), n);
#endif
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
"""
# The instruction, of what work-item emu_tid holds.
_MMA = r"""
#if EB == 4
#define EMU_K 8
#define EMU_PER 1  // elements of a register
inline float emu_value(uint word, int k) { return as_float(word & EMU_MASK); }
#elif EB == 1
#define EMU_K 32
#define EMU_PER 4
inline int emu_value(uint word, int k) { return (char)(word >> 8 * (k % 4)); }
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
    "s8": "",
    "bf16": "#define EMU_VALUE(v) as_float((uint)(v) << 16)\n",
    "f16": "#define EMU_VALUE(v) vload_half(0, (const half*)&v)\n",
}


def emulated(plan: Plan, exact: bool = False, late: bool = False) -> Plan:
    """A plan of kernels/units/ for any device; with `exact`, TF32 keeps what float32 holds, with
    `late`, copies happen when they are waited for."""
    return Plan([_launch(launch, exact, late) for launch in plan.launches], plan.workspace)


def _launch(launch: Launch, exact: bool, late: bool) -> Launch:
    if launch.name == "gemm_skinny":
        return _skinny(launch, exact)
    text = cl_source("units/nv_sm80.cl") + cl_source("units/mma_tile.cl")
    if launch.name != "mma_tile" or text not in launch.source:
        return launch
    head = launch.source.split(text)[0]
    text = _without_ptx(text)
    if exact:
        head = head.replace(nv_sm80.ROUNDED, "#define ROUNDED(x) (x)\n")
    assert not re.search(r"\basm\b", re.sub("//.*", "", text)), "PTX that is not emulated"
    macros, kernel = text.split("__kernel ")
    kind, head = _without_mma(head)
    modes = f"#define EMU_MASK 0xffff{'ffff' if exact else 'e000'}u\n#define EMU_LATE {int(late)}\n"
    return dataclasses.replace(
        launch, source=head + macros + modes + _VALUES[kind] + _TILE + _MMA + "__kernel " + kernel,
        options=("-cl-opt-disable",),  # building takes longer than running
    )  # fmt: skip


def _without_mma(text: str) -> tuple[str, str]:
    """Which numbers the one instruction of a text takes, and the text without its macro."""
    kind = re.search(r"mma\.sync\S+\.(\w+)\.[fs]32 ", text)[1]
    text, instructions = re.subn(r"(?m)^#define MMA\(.*\\\n(?:.*\\\n)*.*\n", "", text)
    assert instructions == 1
    return kind, text


# Around skinny_mma.cl: warps that multiply nothing take part in the barriers of those that do.
_SKINNY = """
#undef MMA_WHERE
#define MMA_WHERE(condition, d, a, b) { \\
  ACC_T kept_[4]; \\
  for (int c_ = 0; c_ < 4; ++c_) kept_[c_] = d[c_]; \\
  MMA(d, a, (b)) \\
  for (int c_ = 0; c_ < 4; ++c_) d[c_] = (condition) ? d[c_] : kept_[c_]; }
"""


def _skinny(launch: Launch, exact: bool) -> Launch:
    kind, text = _without_mma(launch.source)
    if exact:
        text = text.replace(nv_sm80.ROUNDED, "#define ROUNDED(x) (x)\n")
    places = "#define PLACES "
    assert text.count(places) == 1
    own = (
        "__local uint emu_lanes[THREADS][6]; "
        "const int emu_tid = tid, emu_warp = tid / 32 * 32, emu_lane = tid % 32; "
    )
    text = text.replace(places, _SKINNY + places + own)
    modes = f"#define EMU_MASK 0xffff{'ffff' if exact else 'e000'}u\n"
    modes += f"#define EB { {'tf32': 4, 's8': 1}.get(kind, 2)}\n"
    source = modes + _VALUES[kind] + _MMA + text.replace('_Pragma("unroll")', "")
    return dataclasses.replace(launch, source=source, options=("-cl-opt-disable",))


def _without_ptx(text: str) -> str:
    """Macros that hold PTX, whole or the names of instructions, are the emulator's instead."""
    return re.sub(
        r"(?m)^#define (?:.*\\\n)*.*\n",
        lambda m: "" if re.search(r'asm\b|"cp\.async', m[0]) else m[0], text,
    )  # fmt: skip


# Instead of mma16_units.cl's macros, and of mma_units.cl's.
ATTENTION16 = """
#define NT THREADS
#define EMU_MOST (EB == 4 ? 1024 / MI : 64)
#undef LOCAL_MEMORY
#undef WORKS
#define WORKS(x) 1  // its barriers are for all
#define LOCAL_MEMORY(nbytes) __local uint memory[(nbytes) / 4] __attribute__((aligned(128)));
#define EXP2(to, x) to = exp2(x)
#define PACK(to, first, second) { \\
  ushort both_[2]; \\
  X_STORE((__private X_T*)both_, 0, first); \\
  X_STORE((__private X_T*)both_, 1, second); \\
  to = both_[0] | (uint)both_[1] << 16; }
#define GET_FLOATS(a, b, at) { \\
  a = *(__local float*)(EMU_BYTES + (at)); \\
  b = *(__local float*)(EMU_BYTES + (at) + 4); }
#define GET_WORD(to, at) to = *(__local uint*)(EMU_BYTES + (at))
#define PUT_WORD(at, x) *(__local uint*)(EMU_BYTES + (at)) = (x)
#define SHUFFLE_XOR(to, from, bits) { \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  emu_lanes[emu_tid][0] = as_uint(from); \\
  barrier(CLK_LOCAL_MEM_FENCE); \\
  to = as_float(emu_lanes[emu_tid ^ (bits)][0]); }
"""


def emulated16(
    solver: type[attention16._Solver16], late: bool = False, fault: tuple[str, str] | None = None
) -> type:
    """A class of attention's solvers for 16-bit floats as one for any device; with `late`, copies
    happen when they are waited for.  A `fault` replaces a text of the kernel by another."""

    class Emulated(solver):
        def applies(self, problem, info):
            fits = (problem.grad is not None) == self.backward and self.block(problem, info)
            return attention16.takes(problem) and bool(fits)

        def source(self, p, block, epilogue, **names):
            text = super().source(p, block, epilogue, **names)
            value = _VALUES[attention16.NAMES[p.q.dtype]]
            fragment = next(f for t, f in attention16.FRAGMENTS.items() if t is p.q.dtype)
            modes = f"#define EMU_MASK 0\n{value}"
            return _attention(text, attention16.PIECES, fragment, modes, late, fault)

        def options(self, p, block, keys):
            return ("-cl-opt-disable",)

    return Emulated


def _attention(
    text: str, pieces: tuple[str, ...], fragment: Fragment, modes: str, late: bool,
    fault: tuple[str, str] | None,
) -> str:  # fmt: skip
    """A text of attention_mma.cl without NVIDIA's instructions."""
    whole = "".join(cl_source(f"units/{piece}.cl") for piece in pieces)
    head, rest = text.split(whole)
    assert not rest
    whole = _without_ptx(whole)
    macros, kernel = whole.split("// Tiles and operands")
    assert not re.search(r"\basm\b", re.sub("//.*", "", kernel)), "PTX not emulated"
    if fault:
        assert fault[0] in macros + kernel
        macros, kernel = macros.replace(*fault), kernel.replace(*fault)
    modes += f"#define EMU_LATE {int(late)}\n"
    head = head.replace(fragment.macro, "")
    text = head + macros + modes + ATTENTION16 + _TILE + _MMA + "//" + kernel
    return text.replace('_Pragma("unroll")', "")


def emulated_class(
    solver: type[unit_attention._FragmentSolver], late: bool = False,
    fault: tuple[str, str] | None = None,
) -> type:  # fmt: skip
    """A class of attention's solvers in TF32 as one for any device, which keeps what float32 holds;
    `late` and `fault` are those of `emulated16`."""

    class Emulated(solver):
        def source(self, p, block, epilogue, **names):
            text = super().source(p, block, epilogue, **names)
            exact = "#undef ROUNDED\n#define ROUNDED(x) (x)\n#define EMU_MASK 0xffffffffu\n"
            fragment = unit_attention.FRAGMENTS[dtypes.float32]
            return _attention(text, unit_attention.PIECES, fragment, exact, late, fault)

        def options(self, p, block, keys):
            return ("-cl-opt-disable",)  # building takes longer than running

    return Emulated
