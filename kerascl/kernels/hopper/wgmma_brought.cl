// What an epilogue reads at its results' own places, for teams that take turns: TMA brings it through
// the ring.  A lane that reads memory itself waits for each of its vectors for as long as TMA keeps
// memory busy; here it has come while products are under way.
//
// After the stages of a tile's k the producer fills BROUGHT more.  One holds some rows of all of a
// tile's columns of one operand: panels of 128 bytes of each row, swizzled as products' operands are.
// brought.py puts in front BROUGHT_STAGES(DO) of DO(operand, first row), in the ring's order;
// BROUGHT_OPERANDS(DO); and of each operand its ITEM (bytes), POINTER, and at which of these stages
// AT(i) a team's block i of rows lies.
//
// A team waits for them all before it passes the turn: see wgmma_pingpong.cl.

#define BROUGHT_ROWS(k) (STAGE / (BN * BROUGHT_ITEM##k))  // of a stage
#define BROUGHT_PANEL(k) (BROUGHT_ROWS(k) * 128)
// Tensor maps behind those of the products' operands.  They count in 16 bits, which TMA copies as they
// are: of float32 it would round.
#define BROUGHT_MAP(k) (maps + 16 * (MAPS - BROUGHT_COUNT + (k)))
#define WRITE_BROUGHT_MAP(k) write_map(BROUGHT_MAP(k), (ulong)(BROUGHT_POINTER##k), mapBrought##k);
#define WRITE_BROUGHT BROUGHT_OPERANDS(WRITE_BROUGHT_MAP)
#define NEXT_STAGE if (++stage == STAGES) { stage = 0; phase ^= 1; }
#define FILL_BROUGHT_STAGE(k, row) { \
    BAR_WAIT(empty + 8 * stage, phase ^ 1) \
    const uint to = base + stage * STAGE, bar = full + 8 * stage; \
    BAR_EXPECT(bar, STAGE); \
    UNROLL for (int p = 0; p < BN * BROUGHT_ITEM##k / 128; ++p) \
      TMA2(to + p * BROUGHT_PANEL(k), BROUGHT_MAP(k), bar, n0 * BROUGHT_ITEM##k / 2 + 64 * p, \
           plane * M + m0 + (row)); \
    NEXT_STAGE }
#define FILL_BROUGHT BROUGHT_STAGES(FILL_BROUGHT_STAGE)

#define WAIT_BROUGHT_STAGE(k, row) \
    BAR_WAIT(full + 8 * stage, phase) \
    NEXT_STAGE
#define WAIT_BROUGHT \
    const int brought = stage; \
    BROUGHT_STAGES(WAIT_BROUGHT_STAGE)

// Before a vector's turn a lane reads its quarter of a row of a panel, 32 bytes, of both its rows: one
// vector or several, of BROUGHT_TILES tiles of eight columns.
#define BROUGHT_TILES(k) (16 / BROUGHT_ITEM##k)
#define BROUGHT_VECTOR (VECTOR == 8 ? pair * 8 : (pair & 1) * 8 + (pair >> 1) * 4)
#define BEGIN_BROUGHT_OF(k) \
    uint brought##k[2][8]; \
    const int brought_at##k = (brought + BROUGHT_AT##k(i)) % STAGES; \
    const uint brought_from##k = (base + brought_at##k * STAGE + row % BROUGHT_ROWS(k) * 128) \
        | ((BROUGHT_VECTOR * BROUGHT_ITEM##k) ^ (quad << 4));
#define BEGIN_BROUGHT BROUGHT_OPERANDS(BEGIN_BROUGHT_OF)
// Shared memory serves two rows (four, by eight bytes each) at once, of which lanes want the same half
// of the panel: those of odd rows begin with the other half.
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
// A stage is handed back when the last of it is read, by all lanes of each warp.
#define WARP_SYNC asm volatile("bar.warp.sync -1;" ::: "memory")
#define READS_BEFORE_TMA asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define READ_BROUGHT_OF(k) \
    if (j % BROUGHT_TILES(k) == 0) { \
      UNROLL for (int h_ = 0; h_ < 2; ++h_) \
        READ_QUARTER(brought##k[h_], BROUGHT_ITEM##k, \
                     brought_from##k + h_ * 1024 + j / BROUGHT_TILES(k) * BROUGHT_PANEL(k)) \
      if (j + BROUGHT_TILES(k) == BN / 8 && \
          (i + 1 == MI || BROUGHT_AT##k(i + 1) != BROUGHT_AT##k(i))) { \
        WARP_SYNC; \
        READS_BEFORE_TMA; \
        if (lane == 0) BAR_ARRIVE(empty + 8 * brought_at##k); \
      } \
    }
#define READ_BROUGHT BROUGHT_OPERANDS(READ_BROUGHT_OF)

// What epilogues call: a vector of operand k at the columns of tile j and on; of a lane's second row?
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
