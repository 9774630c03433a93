// What an epilogue reads at its results' own places, for teams that take turns: TMA brings it.
// A lane that reads memory itself waits for each of its vectors, and long where TMA keeps
// memory busy.
//
// Each team has a ring of its own for that, of few small parts, and a lane of the producers'
// warpgroup that fills it ahead of the team's epilogues.  (In the ring of the products the
// parts would hold up the next team's operands until the epilogue is done with them.)  A part
// is a panel of one operand: 64 rows of a tile, 128 bytes of each, swizzled as products'
// operands are.  Lanes take what they need of it into registers at once and hand it back.
//
// brought.py puts in front PANEL_ROWS, 64, and IN_RING, the parts of a team;
// BROUGHT_OPERANDS(DO) of DO(operand); of each operand its ITEM (bytes), its POINTER, and
// PART(j), how many parts of a block of rows come before its one at columns 8 j; and PARTS, all
// of a block.  A tile's parts fill the ring an even number of times, so that barriers' phases
// are the same for all tiles.

#define PART_BYTES (PANEL_ROWS * 128)
#define BROUGHT_BYTES (PINGPONG * IN_RING * PART_BYTES)
#define BROUGHT_AT(team) (base + STAGES * STAGE + (team) * (IN_RING * PART_BYTES))
// Barriers of a team: of each part one that it has come, then of each that it was handed back.
#define BROUGHT_BARRIERS(team) (TURNS + TURN_BYTES + (team) * (16 * IN_RING))
#define BROUGHT_BARRIER_BYTES (PINGPONG * 16 * IN_RING)
#define INIT_BROUGHT \
  if (tid == 0) \
    UNROLL for (int t = 0; t < PINGPONG; ++t) \
      UNROLL for (int s = 0; s < IN_RING; ++s) { \
        BAR_INIT(BROUGHT_BARRIERS(t) + 8 * s, 1); \
        BAR_INIT(BROUGHT_BARRIERS(t) + 8 * (s + IN_RING), 4); \
      }

// Columns of a panel, in tiles of eight.
#define BROUGHT_TILES(k) (16 / BROUGHT_ITEM##k)
// Tensor maps behind those of all groups' products.  They count in 16 bits, which TMA copies as
// they are: of float32 it would round.
#define WRITE_BROUGHT_MAP(k) write_map(maps + 16 * k, (ulong)(BROUGHT_POINTER##k), mapBrought##k);
#define ACQUIRE_BROUGHT_MAP(k) MAP_ACQUIRE(maps + 16 * k);
#define FILL_PART(k) \
    if (j % BROUGHT_TILES(k) == 0) { \
      const uint bar = BROUGHT_BARRIERS(bringer) + 8 * part; \
      BAR_WAIT(bar + 8 * IN_RING, phase ^ 1) \
      BAR_EXPECT(bar, PART_BYTES); \
      TMA2(BROUGHT_AT(bringer) + part * PART_BYTES, maps + 16 * k, bar, \
           (n0 + 8 * j) * (BROUGHT_ITEM##k / 2), plane * M + pm * BM + i * PANEL_ROWS); \
      if (++part == IN_RING) { part = 0; phase ^= 1; } \
    }
#define BRING \
    const int bringer = (tid - NWG * 128) / 32 - 1; \
    if (bringer >= 0 && bringer < PINGPONG && (tid & 31) == 0) { \
      __global ulong* maps = (__global ulong*)(((ulong)pMaps + 127) & ~127UL) \
          + groups * (16 * MAPS) + (get_group_id(0) * PINGPONG + bringer) * (16 * BROUGHT_COUNT); \
      BROUGHT_OPERANDS(WRITE_BROUGHT_MAP) \
      MAP_RELEASE; \
      BROUGHT_OPERANDS(ACQUIRE_BROUGHT_MAP) \
      int part = 0; \
      int tile = get_group_id(0) + bringer * groups; \
      for (; tile < TILES; tile += PINGPONG * groups) { \
        DECODE_TILE \
        for (int i = 0; i < MI; ++i) \
          for (int j = 0; j < BN / 8; ++j) { BROUGHT_OPERANDS(FILL_PART) } \
      } \
    }

// A lane takes its quarter of a panel's row, 32 bytes, of both its rows: one vector or several.
#define BROUGHT_VECTOR (VECTOR == 8 ? pair * 8 : (pair & 1) * 8 + (pair >> 1) * 4)
#define BEGIN_BROUGHT_OF(k) \
    uint brought##k[2][8]; \
    const uint brought_from##k = (BROUGHT_AT(team) + row % PANEL_ROWS * 128) \
        | ((BROUGHT_VECTOR * BROUGHT_ITEM##k) ^ (quad << 4));
#define BEGIN_BROUGHT BROUGHT_OPERANDS(BEGIN_BROUGHT_OF)
// Shared memory serves two rows (four, by eight bytes each) at once, of which lanes want the same
// half of the panel: those of odd rows begin with the other half.
#define CHOOSE(to, yes, no, bit) \
  asm("{ .reg .pred p; setp.ne.b32 p, %3, 0; selp.b32 %0, %1, %2, p; }" \
      : "=r"(to) : "r"(yes), "r"(no), "r"(bit))
#define READ_QUARTER(to, item, at) { \
    const uint at_ = (at), other_ = at_ ^ (quad & 1) << 6; \
    if (VECTOR * (item) == 32) { \
      LDS4((to), at_); \
      LDS4((to) + 4, at_ ^ 16); \
    } else { \
      uint q_[8]; \
      if (VECTOR * (item) == 16) { \
        LDS4(q_, other_); \
        LDS4(q_ + 4, other_ ^ 64); \
      } else { \
        LDS2(q_[0], q_[1], other_); \
        LDS2(q_[2], q_[3], other_ ^ 32); \
        LDS2(q_[4], q_[5], other_ ^ 64); \
        LDS2(q_[6], q_[7], other_ ^ 96); \
      } \
      UNROLL for (int w_ = 0; w_ < 4; ++w_) { \
        CHOOSE((to)[w_], q_[w_ + 4], q_[w_], quad & 1); \
        CHOOSE((to)[w_ + 4], q_[w_], q_[w_ + 4], quad & 1); \
      } \
    } }
// A part is handed back by each warp, when all its lanes have read it.
#define READS_BEFORE_TMA asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define READ_BROUGHT_OF(k) \
    if (j % BROUGHT_TILES(k) == 0) { \
      const int part_ = i * BROUGHT_PARTS + BROUGHT_PART##k(j); \
      const uint came_ = BROUGHT_BARRIERS(team) + 8 * (part_ % IN_RING); \
      BAR_WAIT(came_, part_ / IN_RING & 1) \
      UNROLL for (int h_ = 0; h_ < 2; ++h_) \
        READ_QUARTER(brought##k[h_], BROUGHT_ITEM##k, \
                     brought_from##k + part_ % IN_RING * PART_BYTES + h_ * 1024) \
      READS_BEFORE_TMA; \
      WARP_SYNC; \
      if (lane == 0) BAR_ARRIVE(came_ + 8 * IN_RING); \
    }
#define READ_BROUGHT BROUGHT_OPERANDS(READ_BROUGHT_OF)

// What epilogues call: a vector of operand k at the columns of tile j and on, of a lane's row.
#define OF_ROW(n) const int second = n;
#define BROUGHT_WORD(k) (j % BROUGHT_TILES(k) / LANE_TILES * (VECTOR * BROUGHT_ITEM##k / 4))
#define BROUGHT_WORDS(to, k, count) \
    UNROLL for (int w_ = 0; w_ < (count); ++w_) (to)[w_] = brought##k[second][BROUGHT_WORD(k) + w_];
#define BROUGHT_PAIRS(to, k, count) \
    UNROLL for (int w_ = 0; w_ < (count); ++w_) { \
      (to)[2 * w_] = (ushort)brought##k[second][BROUGHT_WORD(k) + w_]; \
      (to)[2 * w_ + 1] = (ushort)(brought##k[second][BROUGHT_WORD(k) + w_] >> 16); \
    }
#define KCL_BROUGHT_VECTOR4_uint(to, k) BROUGHT_WORDS(to, k, 4)
#define KCL_BROUGHT_VECTOR8_uint(to, k) BROUGHT_WORDS(to, k, 8)
#define KCL_BROUGHT_VECTOR4_ushort(to, k) BROUGHT_PAIRS(to, k, 2)
#define KCL_BROUGHT_VECTOR8_ushort(to, k) BROUGHT_PAIRS(to, k, 4)
