"""Shared memory that work-items of kernels for Hopper read and write themselves, beside what
`emulator` has, and what epilogues read there."""

from __future__ import annotations

import re

from kerascl.kernels.contract.plan import Launch

ANY = 1 << 40  # bytes of an operand of which the size is not known

BARRIERS = r"""
// Behind the barriers of stages are those of turns, then of each team's parts of what an epilogue
// reads: as many that a part has come, then that it was handed back.  Parts count as stages behind
// the others.
#define EMU_FIRST_PART (EMU_KINDS * STAGES + EMU_TURNS)
#define EMU_BARRIERS (EMU_FIRST_PART + 2 * EMU_PARTS)
#define EMU_PLACES (STAGES + EMU_PARTS + EMU_BESIDE)
#if EMU_PARTS
#define EMU_PART(b) ((b) - EMU_FIRST_PART)
#define EMU_OF_PART(b, part, stage) ((b) < EMU_FIRST_PART ? (stage) : (part))
#else
#define EMU_OF_PART(b, part, stage) (stage)
#endif
// Of a barrier its stage; whether it is for what was handed back; and then that of what has come.
inline uint emu_stage(uint b) {
  return EMU_OF_PART(b, STAGES + EMU_PART(b) / (2 * IN_RING) * IN_RING + EMU_PART(b) % IN_RING,
                     b % STAGES);
}
inline int emu_empty(uint b) {
  return EMU_OF_PART(b, EMU_PART(b) / IN_RING % 2, b / STAGES == EMU_KINDS - 1);
}
inline uint emu_came(uint b) { return EMU_OF_PART(b, b - IN_RING, b % STAGES); }
"""

DEVICE = r"""
#define LDS1(to, at) to = *(__global uint*)emu_at(emu, at)
// So many lanes are served at once.
#define EMU_SERVED(at, count, banks) { \
    emu->lanes[emu->tid] = (at); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (uint i_ = emu->tid & ~((count) - 1u); i_ < (emu->tid | ((count) - 1u)) + 1; ++i_) \
      EMU_MUST(emu->lanes[i_] == (at) || (emu->lanes[i_] ^ (at)) & (banks), BANKS) \
    barrier(CLK_LOCAL_MEM_FENCE); }
#define LDS2(to0, to1, at) { \
    const uint at_two_ = (at); \
    EMU_SERVED(at_two_, 16, 0x78u) \
    LDS1(to0, at_two_); \
    LDS1(to1, at_two_ + 4); }
#define LDS4(to, at) { \
    const uint at_four_ = (at); \
    EMU_SERVED(at_four_, 8, 0x70u) \
    EMU_MUST(at_four_ % 16 == 0, OPERAND) \
    for (int i_ = 0; i_ < 4; ++i_) LDS1((to)[i_], at_four_ + 4 * i_); }
#define STS4(at, v) \
    for (int i_ = 0; i_ < 4; ++i_) *(__global uint*)emu_at(emu, (at) + 4 * i_) = (v)[i_]
// wgmma_brought.cl
#define CHOOSE(to, yes, no, bit) to = (bit) ? (yes) : (no)
#define READS_BEFORE_TMA
// wgmma_register_blocked16.cl, transposed.  Lane 4 g + t gets rows 2 t and 2 t + 1 of each matrix's
// column g.
#define LDMATRIX(to, at) { \
    emu->lanes[emu->tid] = (at); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (uint i_ = emu->tid & ~7u; i_ < (emu->tid | 7u) + 1; ++i_) \
      EMU_MUST(i_ == emu->tid || (emu->lanes[i_] ^ emu->lanes[emu->tid]) & 0x70u, BANKS) \
    for (int i_ = 0; i_ < 4; ++i_) { \
      (to)[i_] = 0; \
      for (int h_ = 0; h_ < 2; ++h_) { \
        const uint g_ = emu->tid % 32 / 4, t_ = emu->tid % 4 * 2 + h_; \
        const uint row_ = emu->lanes[emu->tid / 32 * 32 + 8 * i_ + t_]; \
        EMU_MUST(row_ % 16 == 0, OPERAND) \
        (to)[i_] |= (uint)*(__global ushort*)emu_at(emu, row_ + 2 * g_) << 16 * h_; \
      } \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); }
"""


def _brought(source: str) -> list[str]:
    """The parameters of what an epilogue has brought."""
    return re.findall(r"#define BROUGHT_POINTER\d+ \((\w+)", source)


def parts(launch: Launch, teams: int) -> tuple[int, int, int]:
    """Of what an epilogue has brought: who brings it, how many parts there are at once, and how
    often one is filled for a tile."""
    found = re.search(r"#define BROUGHT_PARTS (\d+)\n", launch.source)
    if not found:
        return 0, 0, 0
    in_ring, blocks = (
        int(re.search(rf"#define {name} (\d+)\b", launch.source)[1]) for name in ("IN_RING", "MI")
    )
    return teams, teams * in_ring, int(found[1]) * blocks // in_ring


def with_brought(launch: Launch, sizes: dict[str, int], operands: list[int]) -> list[int]:
    """Bytes of the products' operands and then, instead of their low parts, of those of the
    epilogue; `sizes` by slot, where they are known."""
    names = _brought(launch.source)
    if not names:
        return operands
    line = next(s for s in launch.source.splitlines() if s.startswith("#define EPILOGUE_PARAMS "))
    params = [part.split()[-1] for part in line.split(", ")[1:]]
    refs = dict(zip(params, launch.args[len(launch.args) - len(params) :], strict=True))
    found = [sizes.get(refs[name].slot, ANY) - refs[name].offset for name in names]
    return [*operands[:2], *found, 0][:4]


def several(source: str) -> int:
    """The products of a launch."""
    return int(next(iter(re.findall(r"#define SEVERAL (\d+)\n", source)), 1))


def terms(source: str) -> list[str]:
    """The operands of further products, left and right ones in turn."""
    lines = re.findall("(?:TERM|SEVERAL)_PARAMS .*", source)
    return re.findall(r"\bp(?:Term[AB]\d+|[AB]_\d+)", "".join(lines))


def begin(source: str) -> str:
    """Statements that say where these operands lie."""
    places = [(i, i, p) for i, p in enumerate(_brought(source), 2)]
    places += [(4 + i, i % 2, p) for i, p in enumerate(terms(source))]  # of one size each
    return "".join(
        f"  emu->from[{i}] = (ulong){p}; emu->to[{i}] = (ulong){p} + emu_n.s{size};\n"
        for i, size, p in places
    )
