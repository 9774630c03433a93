"""Runs kernels with warpgroup matrix instructions where there are none: TMA, barriers and wgmma in
plain OpenCL C around the text of the kernels of wgmma*.cl.

Work-items of a CPU's work-group take turns and cannot wait for each other.  So a kernel is launched
once for each of its roles: those who load first, those who multiply last.  Every use of a stage has
memory of its own (a "generation"), and what a wait waits for has happened already.  A stage that is
overwritten too early shows in no result then.  It is checked instead that waits alternate between
a barrier's phases, that every phase gets its arrivals and bytes, that a stage is handed back after
the wgmma that read it were waited for, and that fragments in registers stay as they are until then.

What this cannot see: missing fences between the proxies, roles that wait for each other for ever,
what the hardware refuses of a tensor map, time, and how tensor cores round sums.
"""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np

from kerascl.kernels.contract.plan import Launch, Plan, Ref, Scalar
from kerascl.kernels.contract.sizes import ceil_div
from kerascl.kernels.hopper import tiles
from kerascl.kernels.hopper.ptx import REWRITE, TO_TF32
from kerascl.runtime.device import Device
from tests.kernels import emulator_attention, emulator_left, emulator_shared
from tests.kernels.harness import run_outputs

#: What the hardware would punish, or what this file does not know.
FAULTS = {
    "BARRIER": "no barrier is at this address",
    "PARITY": "a wait for the other phase of a barrier",
    "EARLY": "a wait for a phase while the last one may not have ended, whose parity is the other",
    "NEVER": "a wait for a phase that no load completes",
    "BYTES": "a barrier expects other bytes than those that come",
    "UNEXPECTED": "TMA before its barrier expects bytes",
    "ACQUIRED": "TMA with a tensor map that was not acquired, or is not aligned",
    "SPACE": "a tensor map beyond the memory for them",
    "MAP": "a tensor map of another kind than is emulated",
    "START": "a box of TMA begins at no multiple of 16 bytes",
    "TARGET": "TMA writes beyond its stage, or to no multiple of 128 bytes",
    "SOURCE": "TMA reads beyond the operands",
    "DESCRIPTOR": "a matrix descriptor of another kind than is emulated",
    "OPERAND": "a read or write in shared memory beyond a stage",
    "CLOSED": "a stage is used before the wait for it or after it was handed back",
    "HELD": "a stage is handed back before its wgmma were waited for",
    "FENCE": "wgmma without a fence before it",
    "PENDING": "results are used before their wgmma were waited for",
    "FRAGMENT": "a fragment in registers changes before its wgmma were waited for",
    "BANKS": "lanes that shared memory serves at once meet in a bank",
    "SHARED": "more local memory than there is, or less than is used",
    "GENERATIONS": "more uses of a stage than the launch's depth needs",
    "TURN": "a turn is passed to another team than the next, or before all of its tile has come",
}
_GENERATION = 227 * 1024  # bytes, more than a ring has
_READS = 64  # fragments that wgmma under way may read
_COUNTS = 4  # ints of a barrier: arrivals of a phase, all arrivals, loads expected, bytes to come

# In front of the kernel, behind its macros.
_DEVICE = r"""
#undef UNROLL
#define UNROLL
#ifndef SIDE
#define SIDE 0
#endif
#define EMU_BASE 1024u  // the driver takes the first KiB
#ifndef RING  // wgmma_register_blocked.cl
#define RING (STAGES * STAGE)
#endif
#define EMU_RING ((uint)(RING))
#define EMU_LOW 0xffffffffUL
#define EMU_MUST(ok, fault) { if (!(ok)) atomic_or(emu->state, EMU_##fault); }
// TMA rounds float32 to tf32 (ties to even), products cut it off; or nothing is lost.
#if EMU_EXACT
#define EMU_ROUNDED(v) (v)
#define EMU_CUT(v) (v)
#else
#define EMU_ROUNDED(v) (((v) + 0xfffu + (((v) >> 13) & 1u)) & 0xffffe000u)
#define EMU_CUT(v) ((v) & 0xffffe000u)
#endif
#define EMU_COUNT(b, n) emu->state[1 + (b) * EMU_COUNTS + (n)]

typedef struct {
  __global uchar* ring;
  volatile __global int* state;
  __local uint* lanes;
  __local float* side;
  ulong from[EMU_OPERANDS], to[EMU_OPERANDS];  // the operands
  ulong acquired, maps, maps_end;
  uint generations, tid, committed, done, fenced;
  uint came;  // of wgmma_halo.cl's boxes: those that have come for certain, as they do so in order
  uint owed[5];  // groups of wgmma that give results, where those are of several kinds
  uint depth, used;  // where teams take turns: stages of a tile; those that this team waited for
  // By stage: the last group of wgmma that reads it; the generation waited for and one, or 0.  By
  // barrier: the waits so far; the phases that have ended for certain.
  uint last[EMU_PLACES], open[EMU_PLACES], waits[EMU_BARRIERS], ended[EMU_BARRIERS];
  // Fragments that wgmma not waited for read: where they are, what they were, whose they are.
  uint reads, held[EMU_READS][2], reader[EMU_READS];
  const uint* fragment[EMU_READS];
} emu_t;

inline uint emu_swizzle(uint at) { return at ^ ((at >> 3) & 0x70u); }

// The stage that an address lies in; wgmma_halo.cl has two rings, one behind the other.
inline uint emu_part(uint at) {
  const uint in = at - EMU_BASE;
#ifdef WEIGHTS
  return in < FIRST_B ? in / A_BYTES : BOXES + (in - FIRST_B) / B_STAGE;
#else
#if EMU_PARTS
  if (in >= STAGES * STAGE) return STAGES + (in - STAGES * STAGE) / PART_BYTES;
#elif EMU_BESIDE
  if (in >= STAGES * STAGE)
    return STAGES + min((in - STAGES * STAGE) / SLOPE_BYTES, (uint)EMU_BESIDE - 1);
#endif
  return in / STAGE;
#endif
}

inline uint emu_barrier(emu_t* emu, uint bar) {
  const uint at = bar - EMU_BASE - EMU_RING;
  const int ok = at < 8 * EMU_BARRIERS && at % 8 == 0;
  EMU_MUST(ok, BARRIER)
  return ok ? at / 8 : 0;
}

#if EMU_TURNS
#define EMU_TEAM (emu->tid / 128 / (NWG / EMU_TURNS))
// The stages of a group's tiles before a team's `tiles`-th: its own and the others'.
inline uint emu_before(emu_t* emu, uint tiles) {
  return (tiles * EMU_TURNS + EMU_TEAM) * emu->depth;
}

// Who may multiply has been passed the turn by who waited for all stages before.
inline void emu_take_turn(emu_t* emu, uint b, uint parity) {
  const uint n = emu->waits[b]++, first = EMU_TEAM == 0, before = emu_before(emu, n);
  EMU_MUST(b == EMU_KINDS * STAGES + EMU_TEAM && parity == ((n & 1) ^ first), PARITY)
  for (uint s = 0; s < STAGES; ++s) emu->ended[s] = (before + STAGES - 1 - s) / STAGES;
  EMU_COUNT(b, 2) = n + 1 - first;
}

inline void emu_pass_turn(emu_t* emu, uint b) {
  const uint first = EMU_KINDS * STAGES, taken = emu->waits[first + EMU_TEAM];
  const int next = b == first + (EMU_TEAM + 1) % EMU_TURNS;
  EMU_MUST(next && emu->used == taken * emu->depth, TURN)
}
#endif

inline void emu_wait(emu_t* emu, uint bar, uint parity) {
  const uint b = emu_barrier(emu, bar), empty = emu_empty(b), s = emu_stage(b);
#if EMU_TURNS
  if (b >= EMU_KINDS * STAGES && b < EMU_FIRST_PART) {
    emu_take_turn(emu, b, parity);
    return;
  }
  if (!empty && b < EMU_FIRST_PART) {
    emu->waits[b] = (emu_before(emu, emu->used / emu->depth) + emu->used % emu->depth) / STAGES;
    ++emu->used;
  }
#endif
  const uint n = emu->waits[b]++;
  EMU_MUST(parity == ((n & 1) ^ empty), PARITY)
  if (empty) {  // What was handed back had come; of what had come all but the last was handed back.
    const uint held = emu->last[s] > emu->done, came = emu_came(b);
    int again = emu->ended[came] + 1 >= n + held;
#ifdef WEIGHTS  // Of those that were loaded, too.
    again = again || (emu->came + BOXES - 1 - s) / BOXES >= n;
#endif
    EMU_MUST(again, EARLY)
    for (int kind = 0; kind < EMU_KINDS - 1; ++kind)
      if (came < STAGES || !kind) emu->ended[kind * STAGES + came] = n;
    return;
  }
  EMU_MUST(emu->ended[b] >= n, EARLY)
  emu->ended[b] = n + 1;
#ifdef WEIGHTS
  if (b < BOXES) emu->came = n * BOXES + b + 1;
#endif
  EMU_MUST((uint)EMU_COUNT(b, 2) > n && n < emu->generations, NEVER)
  emu->open[s] = min(n, emu->generations - 1) + 1;
}

inline void emu_arrive(emu_t* emu, uint bar) {
  const uint b = emu_barrier(emu, bar);
  atomic_inc(&EMU_COUNT(b, 1));
#if EMU_TURNS
  if (b >= EMU_KINDS * STAGES && b < EMU_FIRST_PART) emu_pass_turn(emu, b);
#endif
  if (!emu_empty(b)) return;
  EMU_MUST(emu->last[emu_stage(b)] <= emu->done, HELD)
  emu->open[emu_stage(b)] = 0;
}

inline void emu_expect(emu_t* emu, uint bar, int bytes) {
  const uint b = emu_barrier(emu, bar);
  EMU_MUST(EMU_COUNT(b, 3) == 0, BYTES)
  atomic_inc(&EMU_COUNT(b, 1));
  ++EMU_COUNT(b, 2);
  EMU_COUNT(b, 3) += bytes;
#if EMU_PARTS  // which nobody else waits for
  if (b >= EMU_FIRST_PART) EMU_MUST(emu->waits[b + IN_RING] == (uint)EMU_COUNT(b, 2), EARLY)
#endif
}

inline void emu_acquire(emu_t* emu, ulong map) {
  EMU_MUST(map >= emu->maps && map + 128 <= emu->maps_end, SPACE)
  emu->acquired |= 1UL << (map >> 7 & 63);
}

inline void emu_tma(emu_t* emu, int rank, uint to, __global const ulong* m, uint bar, int x0,
                    int x1, int x2, int x3, int x4) {
  const uint b = emu_barrier(emu, bar), expected = EMU_COUNT(b, 2), kind = m[1] & EMU_LOW;
  // Tiled, 128-byte swizzle, zeros outside, L2 promotion; all else, as the elements' steps, 0.
  const uint head = (rank - 1) << 4 | 3 << 13 | 2 << 17;
  const int words = EMU_PARTS && kind == (head | EMU_CODE_16);  // what an epilogue reads
  const int nbytes = words ? 2 : EMU_SIZE;
  const long size[5] = {(m[4] & EMU_LOW) + 1, (m[4] >> 32) + 1, (m[5] & EMU_LOW) + 1,
                        (m[5] >> 32) + 1, (m[6] & EMU_LOW) + 1};
  const long step[5] = {nbytes, (m[1] >> 32) << 4, (m[2] & EMU_LOW) << 4, (m[2] >> 32) << 4,
                        (m[3] & EMU_LOW) << 4};
  const int box[5] = {(m[6] >> 56) + 1, (m[7] & 255) + 1, (m[7] >> 8 & 255) + 1,
                      (m[7] >> 16 & 255) + 1, (m[7] >> 24 & 255) + 1};
  const int x[5] = {x0, x1, x2, x3, x4};
  const uint rows = box[1] * box[2] * box[3] * box[4], bytes = rows * 128;
  const int whole = EMU_SIZE == 4 && kind == (head | EMU_WHOLE);  // the kernel rounds it itself
  int ok = words || whole || kind == (head | EMU_CODE);
  ok = ok && m[3] >> 32 == 0 && (m[6] >> 32 & 0xffffff) == 0 && m[7] >> 32 == 0;
  ok = ok && m[8] == bytes && m[9] == 1024 && box[0] * nbytes == 128 && m[0] % 16 == 0;
  for (int i = 10; i < 16; ++i) ok = ok && m[i] == 0;
  for (int i = rank; i < 5; ++i) ok = ok && size[i] == 1 && box[i] == 1;
  EMU_MUST(ok, MAP)
  EMU_MUST((emu->acquired >> ((ulong)m >> 7 & 63) & 1) && (ulong)m % 128 == 0, ACQUIRED)
  EMU_MUST(x0 * nbytes % 16 == 0, START)
  EMU_MUST(expected > 0, UNEXPECTED)
  EMU_MUST(expected <= emu->generations, GENERATIONS)
  const uint part = emu_part(to);
  const int fits = emu_part(to + bytes - 1) == part && part == emu_stage(b) && to % 128 == 0;
  EMU_MUST(fits, TARGET)
  EMU_COUNT(b, 3) -= bytes;
  if (!ok || !fits || expected - 1 >= emu->generations) return;
  const ulong generation = expected - 1;
  __global uchar* const ring = emu->ring + generation * EMU_GENERATION - EMU_BASE;
  // Elements of a row within bounds.
  const int low = clamp(-(long)x0, 0L, (long)box[0]), high = clamp(size[0] - x0, 0L, (long)box[0]);
  for (uint row = 0; row < rows; ++row) {
    int inside = low < high;
    ulong from = m[0];
    uint rest = row;
    for (int i = 1; i < 5; ++i) {
      const long at = (long)x[i] + rest % box[i];
      rest /= box[i];
      inside = inside && at >= 0 && at < size[i];
      from += at * step[i];
    }
    from += (long)x0 * nbytes;
    const ulong first = from + low * nbytes, last = from + high * nbytes;
    int known = !inside;
    for (int i = 0; i < EMU_OPERANDS; ++i)
      known = known || (first >= emu->from[i] && last <= emu->to[i]);
    EMU_MUST(known, SOURCE)
    for (int i = 0; i < box[0]; ++i) {
      const int live = inside && known && i >= low && i < high;
      __global uchar* const at = ring + emu_swizzle(to + row * 128 + i * nbytes);
      if (nbytes == 4) {
        const uint v = live ? *(__global const uint*)(from + i * 4) : 0;
        *(__global uint*)at = whole ? v : EMU_ROUNDED(v);
      } else {
        *(__global ushort*)at = live ? *(__global const ushort*)(from + i * 2) : 0;
      }
    }
  }
}

// Where this work-item sees an address of shared memory (swizzled already).
inline __global uchar* emu_at(emu_t* emu, uint at) {
  const uint part = emu_part(at), open = part < EMU_PLACES ? emu->open[part] : 0;
  EMU_MUST(part < EMU_PLACES, OPERAND)
  EMU_MUST(open, CLOSED)
  return open ? emu->ring + (open - 1) * (ulong)EMU_GENERATION + (at - EMU_BASE) : emu->ring;
}

inline void emu_hold(emu_t* emu, const uint* fragment) {
  const uint i = min(emu->reads++, (uint)EMU_READS - 1);
  emu->fragment[i] = fragment;
  emu->held[i][0] = fragment[0];
  emu->held[i][1] = fragment[1];
  emu->reader[i] = emu->committed + 1;
}

inline void emu_done(emu_t* emu, uint pending) {
  uint rest = 0;
  emu->done = max(emu->done, max(emu->committed, pending) - pending);
  EMU_MUST(emu->reads <= EMU_READS, FRAGMENT)
  for (uint i = 0; i < min(emu->reads, (uint)EMU_READS); ++i) {
    const uint* const fragment = emu->fragment[i];
    const uint v0 = emu->held[i][0], v1 = emu->held[i][1], reader = emu->reader[i];
    EMU_MUST(fragment[0] == v0 && fragment[1] == v1, FRAGMENT)
    if (reader <= emu->done) continue;
    emu->fragment[rest] = fragment;
    emu->held[rest][0] = v0;
    emu->held[rest][1] = v1;
    emu->reader[rest++] = reader;
  }
  emu->reads = rest;
}

// EMU_K elements of one row (or column) of an operand.
inline void emu_row(emu_t* emu, ulong desc, int mn, int row, float* out) {
  const uint start = (uint)(desc & 0x3fff) << 4, mode = desc >> 62;
  const uint leading = (uint)(desc >> 16 & 0x3fff) << 4, stride = (uint)(desc >> 32 & 0x3fff) << 4;
  const int known = (desc & 0x3fffc000c000c000UL) == 0 && (mode == 1 || (mode == 0 && !mn));
  EMU_MUST(known, DESCRIPTOR)
  const uint part = emu_part(start);
  if (part < EMU_PLACES) emu->last[part] = emu->committed + 1;
  for (int k = 0; k < EMU_K; ++k) {
    uint at = start;
    if (mn) at += row / 64 * leading + row % 64 * EMU_SIZE + k / 8 * stride + k % 8 * 128;
    else if (mode) at += row / 8 * stride + row % 8 * 128 + k * EMU_SIZE;
    else at += row / 8 * stride + row % 8 * 16 + k * EMU_SIZE / 16 * leading + k * EMU_SIZE % 16;
    EMU_MUST(emu_part(at) == part, OPERAND)
    __global const uchar* const p = emu_at(emu, mode ? emu_swizzle(at) : at);
#if EMU_SIZE == 4
    out[k] = as_float(EMU_CUT(*(__global const uint*)p));
#elif EMU_BF16
    out[k] = as_float((uint)*(__global const ushort*)p << 16);
#else
    out[k] = vload_half(0, (__global const half*)p);
#endif
  }
}

// Lane 4 g + t of warp w has rows 16 w + g and eight further, columns 8 j + 2 t and one further.
inline void emu_product(emu_t* emu, float* d, const float* row0, const float* row1, ulong b,
                        int add, int columns, int b_mn) {
  EMU_MUST(emu->fenced, FENCE)
  for (int j = 0; j < columns / 8; ++j)
    for (int h = 0; h < 2; ++h) {
      float column[EMU_K], sum0 = 0, sum1 = 0;
      emu_row(emu, b, b_mn, 8 * j + emu->tid % 4 * 2 + h, column);
      for (int k = 0; k < EMU_K; ++k) {
        sum0 += row0[k] * column[k];
        sum1 += row1[k] * column[k];
      }
      d[4 * j + h] = add ? d[4 * j + h] + sum0 : sum0;
      d[4 * j + 2 + h] = add ? d[4 * j + 2 + h] + sum1 : sum1;
    }
}

inline void emu_wgmma_of(emu_t* emu, float* d, ulong a, ulong b, int add, int columns, int a_mn,
                         int b_mn) {
  const int row = emu->tid / 32 % 4 * 16 + emu->tid % 32 / 4;
  float row0[EMU_K], row1[EMU_K];
  emu_row(emu, a, a_mn, row, row0);
  emu_row(emu, a, a_mn, row + 8, row1);
  emu_product(emu, d, row0, row1, b, add, columns, b_mn);
}

inline void emu_wgmma(emu_t* emu, float* d, ulong a, ulong b, int add) {
  emu_wgmma_of(emu, d, a, b, add, EMU_N, EMU_A_MN, EMU_B_MN);
}

#undef TMA2
#undef TMA3
#undef TMA4
#undef TMA5
#define TMA2(to, map, bar, x, y) emu_tma(emu, 2, to, map, bar, x, y, 0, 0, 0)
#define TMA3(to, map, bar, x, y, z) emu_tma(emu, 3, to, map, bar, x, y, z, 0, 0)
#define TMA4(to, map, bar, x, y, z, w) emu_tma(emu, 4, to, map, bar, x, y, z, w, 0)
#define TMA5(to, map, bar, x, y, z, w, v) emu_tma(emu, 5, to, map, bar, x, y, z, w, v)
#define BAR_INIT(bar, n) EMU_COUNT(emu_barrier(emu, bar), 0) = n
#define BAR_EXPECT(bar, n) emu_expect(emu, bar, n)
#define BAR_ARRIVE(bar) emu_arrive(emu, bar)
#define BAR_WAIT(bar, parity) emu_wait(emu, bar, parity);
#undef BAR_WAIT_USE
#define BAR_WAIT_USE(bar, use, first) { \
    emu->waits[emu_barrier(emu, bar)] = use; \
    emu_wait(emu, bar, ((use) & 1) ^ (first)); }
#define SAME_IN_WARP(name, value) const int name = value
#define RING_AT(base, nbytes) \
    const uint base = EMU_BASE; \
    EMU_MUST((nbytes) <= EMU_LIMIT && (nbytes) >= EMU_RING + 8 * EMU_BARRIERS, SHARED)
#define BARRIERS_READY
#define GROUP_SYNC
#define MAP_RELEASE
#define MAP_ACQUIRE(map) emu_acquire(emu, (ulong)(map))
#define WG_FENCE emu->fenced = 1
#define WG_COMMIT { ++emu->committed; emu->fenced = 0; }
#define WG_WAIT(n) emu_done(emu, n)
#define WGMMA(d, a, b, add) emu_wgmma(emu, d, a, b, add)
#define WGMMA_KEEP(d) EMU_MUST(emu->done == emu->committed, PENDING)
#define SELECT(to, yes, no, bit) to = (bit) ? (yes) : (no)
#define SHUFFLE(to, from, distance) { \
    emu->lanes[emu->tid] = as_uint(from); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    to = as_float(emu->lanes[emu->tid ^ (distance)]); \
    barrier(CLK_LOCAL_MEM_FENCE); }

// wgmma_moments.cl: shared memory beside the ring and its barriers.
inline uint emu_side(emu_t* emu, uint at) {
  const uint i = (at - EMU_BASE - EMU_RING - 16 * STAGES) / 4;
  EMU_MUST(i < SIDE / 4 && at % 4 == 0, SHARED)
  return min(i, (uint)(SIDE / 4));
}
#define SHARED_PUT(at, v) emu->side[emu_side(emu, at)] = (v)
#define SHARED_GET(v, at) v = emu->side[emu_side(emu, at)]
#define TEAMS_SYNC barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define FENCE_GPU
// These are good to three digits on some CPUs.
#define native_divide(a, b) ((a) / (b))
#define native_recip(a) (1 / (a))
"""

# At the beginning of the kernel.
_BEGIN = """
  __local uint emu_lanes[EMU_LANES * 4];
  __local float emu_sides[SIDE / 4 + 1];
  emu_t emu_, *const emu = &emu_;
#if EMU_TURNS
  emu->depth = CHUNKS;
#endif
  emu->ring = emu_ring + get_group_id(0) * emu_n.s5 * EMU_GENERATION;
  emu->state = emu_state + get_group_id(0) * (1 + EMU_BARRIERS * EMU_COUNTS);
  emu->lanes = emu_lanes;
  emu->side = emu_sides;
  emu->tid = get_local_id(0) + emu_n.s4;
  emu->generations = emu_n.s5;
  for (int i_ = 0; i_ < EMU_OPERANDS; ++i_) emu->from[i_] = emu->to[i_] = 0;
  emu->maps = (ulong)pMaps;
  emu->maps_end = emu->maps + emu_n.s6;
  emu->acquired = emu->committed = emu->done = emu->fenced = emu->reads = emu->used = emu->came = 0;
  for (int i_ = 0; i_ < 5; ++i_) emu->owed[i_] = 0;
  for (int i_ = 0; i_ < EMU_PLACES; ++i_) emu->last[i_] = emu->open[i_] = 0;
  for (int i_ = STAGES; i_ < STAGES + EMU_BESIDE; ++i_) emu->open[i_] = 1;
  for (int i_ = 0; i_ < EMU_BARRIERS; ++i_) emu->waits[i_] = emu->ended[i_] = 0;
"""

# Inline PTX of the kernels that is no macro's.
_ASM = (
    (r'asm\("cvt\.rn\.bf16\.f32.*?"=h"\((\w+)\) : "f"\((\w+)\)\);', r"\1 = kcl_to_bf16(\2);"),
    (r'asm volatile\("(?:fence\.|bar\.sync|//#entry).*?\);', ""),
)
_CODES = {"tf32": (7 << 7 | TO_TF32, 4), "bf16": (10 << 7, 2), "f16": (6 << 7, 2)}


def arguments(launch: Launch) -> dict[str, int]:
    """The numbers that a launch passes, by their names in its source."""
    line = next(s for s in launch.source.splitlines() if s.startswith("#define PARAMS "))
    names = [part.split()[-1] for part in line.split(", ")[1:]]
    numbers = [a.value for a in launch.args if isinstance(a, Scalar) and a.ctype != "ulong8"]
    return dict(zip(names, numbers, strict=False))


@dataclasses.dataclass(frozen=True)
class Emulation:
    """What does as a launch does.

    Attributes:
        launches: one for each role.
        ring: bytes of memory for shared memory, which begin as NaN.
        groups: work-groups.
        shape: of the numbers that each group counts, which begin as zeros behind one of its faults:
            barriers of a stage, stages, counts.
        stays: whether the last stage is never handed back.
        turns: teams that take turns, whose barriers' counts are behind those.
        parts: of what an epilogue reads, two barriers each, whose counts are behind those.
    """

    launches: list[Launch]
    ring: int
    groups: int
    shape: tuple[int, int, int]
    stays: bool
    turns: int
    parts: int

    @property
    def state(self) -> tuple[int, int]:
        """The shape of what the launches leave, of int32."""
        return self.groups, 1 + math.prod(self.shape) + (self.turns + 2 * self.parts) * _COUNTS


def is_emulated(launch: Launch) -> bool:
    """Whether a launch is one of a kernel for Hopper."""
    return f"--rewrite={REWRITE}" in launch.options


def run_plan(plan: Plan, inputs: dict[str, np.ndarray], out: np.ndarray, dev: Device) -> np.ndarray:
    """As `harness.run_plan`, the kernels for Hopper emulated.

    Raises:
        AssertionError: such a kernel has done what the hardware would not bear.
    """
    return run_outputs_of(plan, inputs, {"out": out}, dev)["out"]


def run_outputs_of(
    plan: Plan, inputs: dict[str, np.ndarray], outs: dict[str, np.ndarray], dev: Device
) -> dict[str, np.ndarray]:
    """The same for several outputs, by slot."""
    sizes = {name: array.nbytes for name, array in inputs.items()}
    sizes |= {f"ws{n}": nbytes for n, nbytes in enumerate(plan.workspace)}
    launches, rings, states, known = [], {}, dict(outs), {}
    for launch in plan.launches:
        if not is_emulated(launch):
            launches.append(launch)
            continue
        ring, state = f"ring{len(rings)}", f"state{len(rings)}"
        known[state] = e = emulate(launch, (ring, state), sizes)
        rings[ring] = np.full(e.ring, 0xFF, np.uint8)
        states[state] = np.zeros(e.state, np.int32)
        launches += e.launches
    results = run_outputs(Plan(launches, plan.workspace), inputs | rings, states, dev)
    for state, e in known.items():
        _check(results[state], e)
    return {name: results[name] for name in outs}


def emulate(
    launch: Launch, slots: tuple[str, str], sizes: dict[str, int], exact: bool = False
) -> Emulation:
    """A launch of a kernel for Hopper for any device.

    Args:
        slots: of the ring's memory and of the state.
        sizes: bytes of the operands, by slot.
        exact: whether TF32 keeps what float32 holds.
    """
    threads, (size,) = launch.local_size[0], launch.global_size
    groups, taps = size // threads, launch.name == "wgmma_register_blocked"
    # The last warpgroup, or what there is of it, loads.
    consumers, kinds = (threads - 1) // 128 * 128, 3 if taps else 2
    numbers = {name: int(n) for name, n in re.findall(r"#define (\w+) (\d+)\n", launch.source)}
    numbers |= arguments(launch)
    teams = numbers.get("PINGPONG", 1)
    together = consumers // teams  # who take other tiles meet at no barrier
    turns = teams if launch.name == "wgmma" and teams > 1 else 0
    bringers, parts, of_tile = emulator_shared.parts(launch, turns)
    source, pointers = _source(launch.source, kinds, consumers, exact, turns, parts)
    facts = launch.name == "wgmma_attention_gradient" and numbers["KEYS"]
    whole = numbers.get("WHOLE", 0)  # each group has all tiles of its heads
    # First work-item and number of them: who loads; who turns pixels or brings operands or rows'
    # numbers; who multiplies.
    roles = (
        (consumers, 1), *(((consumers + 1, 63),) if taps else ()),
        *(((consumers + 32, 32),) if facts else ()),
        *((consumers + 32 * n, 1) for n in range(1, bringers + 1)),
        *((first, together) for first in range(0, consumers, together)),
    )  # fmt: skip
    tiles = ceil_div(numbers["TILES"] * emulator_shared.several(launch.source), groups)
    stages = numbers["STAGES"]
    if whole:
        tiles = ceil_div(numbers["PLANES"], groups) * numbers["BLOCKS"]
    if launch.name == "wgmma_halo":
        boxes = numbers["CHUNKS"] * tiles
        taps = 1 if numbers["RESIDENT"] else boxes * numbers["TAPS1"] * numbers["TAPS2"]
        generations = max(ceil_div(boxes, numbers["BOXES"]), ceil_div(taps, numbers["WEIGHTS"]))
    else:
        beside = 2 * numbers.get("OWN_LOCAL", 0)  # stages that each tile uses once
        once = max(of_tile, beside // 2)
        generations = max(ceil_div(numbers["SLICE"] * tiles, stages - beside), tiles * once)
    *operands, maps = (sizes[ref.slot] - ref.offset for ref in launch.args[: pointers + 1])
    operands = emulator_shared.with_brought(launch, sizes, [*operands, 0, 0, 0][:4])
    launches = [
        dataclasses.replace(
            launch, source=source, global_size=(groups * count,), local_size=(count,),
            options=("-cl-opt-disable",),  # building takes longer than running
            several=None, args=(
                *launch.args, *map(Ref, slots),
                Scalar("ulong8", (*operands, first, generations, maps, 0)),
            ),
        )
        for first, count in roles
    ]  # fmt: skip
    stays = bool(numbers.get("RESIDENT"))
    ring = groups * generations * _GENERATION
    return Emulation(launches, ring, groups, (kinds, stages, _COUNTS), stays, turns, parts)


def _source(
    source: str, kinds: int, lanes: int, exact: bool, turns: int, parts: int
) -> tuple[str, int]:
    """The text of a kernel for Hopper, with what it takes from the hardware emulated, and how many
    operands it has."""
    n, k, name, transposed = re.search(
        r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.f32\.(\w+)\.\3 "
        r".*?p, 1, 1((?:, \d)*);",
        source,
    ).groups()
    # Of both operands, or of the right one where the left one comes from registers.
    a_mn, b_mn = ("0, 0" + transposed).split(", ")[-2:]
    code, size = _CODES[name]
    assert int(k) * size == 32
    shapes = re.findall(
        r"#define WGMMA_A(_\w)\(d, .*?m64n(\d+)k.*?p, 1, 1, (\d);", source
    )  # of a kernel with several
    turned = re.findall(
        r"#define WGMMA(_[KQ])\(d, .*?m64n(\d+)k.*?p, 1, 1, (\d), (\d);", source
    )  # both operands in local memory, in an order of their own
    attention = emulator_attention.DEVICE if shapes else ""
    names = dict(
        N=n, K=k, A_MN=a_mn, B_MN=b_mn, CODE=code, SIZE=size, BF16=int(name == "bf16"),
        CODE_16=_CODES["bf16"][0], WHOLE=code & ~TO_TF32 if "#define SUMS 1\n" in source else 0,
        KINDS=kinds,
        TURNS=turns, PARTS=parts, LANES=lanes,
        EXACT=int(exact), COUNTS=_COUNTS, READS=_READS,
        GENERATION=_GENERATION, LIMIT=tiles.SHARED_LIMIT,
        **{f"N{of}": columns for of, columns, _ in shapes},
        **{f"B_MN{of}": mn for of, _, mn in shapes},
        **{f"N{of}": columns for of, columns, _, _ in turned},
        **{f"A_MN{of}": mn for of, _, mn, _ in turned},
        **{f"B_MN{of}": mn for of, _, _, mn in turned},
        BESIDE=3 * ("#define WHOLE 1\n" in source), OPERANDS=4 + len(emulator_shared.terms(source)),
        **{fault: 1 << bit for bit, fault in enumerate(FAULTS)},
    )  # fmt: skip
    defines = "".join(f"#define EMU_{key} {value}\n" for key, value in names.items())
    # What every device can do instead of an instruction of PTX.
    kept = r"#ifdef KCL_(?:CVT_BF16|PTX)\b[^\n]*\n(?:(?!#e).)*#else\n(.*?)#endif\n"
    source = re.sub(kept, r"\1", source, flags=re.DOTALL)
    # Macros that hold PTX are the emulator's instead.
    source = re.sub(
        r"(?m)^#define (?:.*\\\n)*.*\n", lambda m: "" if "asm" in m[0] else m[0], source
    )
    for pattern, by in _ASM:
        source = re.sub(pattern, by, source, flags=re.DOTALL)
    assert not re.search(r"\basm\b", re.sub("//.*", "", source)), "PTX that is not emulated"
    head, kernel = source.split("__kernel ")
    pointers = re.findall(r"__global const \w+\* restrict (\w+)", kernel.split("pMaps")[0])
    begin = _BEGIN + "".join(
        f"  emu->from[{i}] = (ulong){p}; emu->to[{i}] = (ulong){p} + emu_n.s{i};\n"
        for i, p in enumerate(pointers)
    ) + emulator_shared.begin(source)
    for old, new in (
        ("__attribute__((reqd_work_group_size(THREADS, 1, 1))) ", ""),
        ("get_local_id(0)", "(int)emu->tid"),
        ("  __local uint ring[1024] __attribute__((aligned(1024)));\n", begin),
        (") {", ", __global uchar* emu_ring, volatile __global int* emu_state, "
         "const ulong8 emu_n) {"),
        (" restrict", ""),  # the maps' memory is reached by several ways
    ):  # fmt: skip
        assert old in kernel, old
        # The kernel's own parameters end where the first brace opens.
        kernel = kernel.replace(old, new, 1 if old == ") {" else -1)
    device = emulator_shared.BARRIERS + _DEVICE + emulator_left.DEVICE
    device += emulator_shared.DEVICE + attention
    return f"{head}{defines}{device}__kernel {kernel}", len(pointers)


def _check(state: np.ndarray, e: Emulation) -> None:
    """Judge what a launch leaves: state[group], faults, [kind][stage][count], [team][count]."""
    shape = e.shape
    found = np.bitwise_or.reduce(state[:, 0])
    faults = [text for bit, text in enumerate(FAULTS.values()) if found >> bit & 1]
    assert not faults, faults
    counts = state[:, 1 : 1 + math.prod(shape)].reshape(-1, *shape)
    arrivals, came, loads, nbytes = np.moveaxis(counts, -1, 0)
    assert not nbytes.any(), FAULTS["BYTES"]
    # Every load ends a phase of each of its stage's barriers.
    phases = np.repeat(loads[:, :1], shape[0], 1)
    if e.stays:
        phases[:, -1, -1] = 0
    assert (arrivals > 0).all() and (came == arrivals * phases).all(), "a phase never ends"
    # A team passes a turn for each tile; nobody needs the last one.
    turns, parts = np.split(state[:, 1 + math.prod(shape) :], [e.turns * _COUNTS], 1)
    arrivals, came, needed, _ = np.moveaxis(turns.reshape(len(state), e.turns, _COUNTS), -1, 0)
    passed, missing = np.divmod(came, np.maximum(arrivals, 1))
    assert (arrivals > 0).all() and not missing.any(), "a phase never ends"
    assert ((passed == needed) | (passed == needed + 1)).all(), "a phase never ends"
    # Of each team first those that parts have come, then that they were handed back.
    parts = parts.reshape(len(state), max(e.turns, 1), 2, -1, _COUNTS)
    arrivals, came, loads, nbytes = np.moveaxis(parts, -1, 0)
    assert not nbytes.any(), FAULTS["BYTES"]
    phases = np.repeat(loads[:, :, :1], 2, 2)
    assert (arrivals > 0).all() and (came == arrivals * phases).all(), "a phase never ends"
