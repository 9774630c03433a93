// The sums of b's columns beside a product a b: gradients of a dense layer's bias beside those of its
// weights.  Tiles leave parts of them, rows of N columns, which another launch adds.

#define SUMS_PARAMS , __global float* restrict sums

#ifdef A_IN_REGISTERS
// wgmma_transposed.cl: a lane has two neighbouring columns at every fourth k.  The first tile of a
// column of tiles leaves a part of each slice.  What is summed is not rounded before, so TMA leaves
// that to ADD_FRAGMENT.
#define SUMS_BYTES 0
#define BEGIN_SUMS float sum0 = 0, sum1 = 0;
#define ADD_FRAGMENT(f) \
    sum0 += as_float((f)[0]) + as_float((f)[2]); \
    sum1 += as_float((f)[1]) + as_float((f)[3]); \
    UNROLL for (int r_ = 0; r_ < 4; ++r_) ROUND_TF32((f)[r_]);
#define ADD_LANES(sum) { \
    float got_; \
    SHUFFLE(got_, sum, 1); \
    sum += got_; \
    SHUFFLE(got_, sum, 2); \
    sum += got_; }
#define END_SUMS \
    ADD_LANES(sum0) \
    ADD_LANES(sum1) \
    if (pm == 0 && t == 0) { \
      const int n_ = n0 + (warp >> 1) * 32 + chunk * 4 + odd * 2; \
      __global float* const to_ = sums + (INDEX_T)split * N + n_; \
      if (n_ < N) to_[0] = sum0; \
      if (n_ + 1 < N) to_[1] = sum1; \
    }
#else
// wgmma.cl: the tiles of a column of tiles take its stages in turn, and each leaves a part.  A work-item
// has eight columns of a stage, of every SHARERS-th row, which it adds while products are under way.
#define COLUMN_CHUNKS (B_ROWS / 8)
#define SHARERS (NWG * 128 / COLUMN_CHUNKS)
#define SUMS_BYTES (SHARERS * B_ROWS * 4)
#define SUMS_AT (base + RING + 16 * STAGES)
#define BEGIN_SUMS \
    const int chunk = tid % COLUMN_CHUNKS, sharer = tid / COLUMN_CHUNKS; \
    int until = (pm + TILES_M - k_begin % TILES_M) % TILES_M; \
    float column_sums[8]; \
    UNROLL for (int c_ = 0; c_ < 8; ++c_) column_sums[c_] = 0;
#define ADD_STAGE \
    if (until == 0) { \
      const uint panel_ = base + stage * STAGE + A_BYTES + chunk / 8 * (BK * 128); \
      UNROLL for (int i_ = 0; i_ < BK; i_ += SHARERS) { \
        const int row_ = min(sharer + i_, BK - 1); \
        uint eight_[4]; \
        LDS4(eight_, panel_ + row_ * 128 + ((chunk % 8 ^ row_ % 8) << 4)); \
        if (sharer + i_ < BK) { \
          UNROLL for (int c_ = 0; c_ < 8; ++c_) column_sums[c_] += OF_PAIR(eight_[c_ / 2], c_ % 2); \
        } \
      } \
      until = TILES_M; \
    } \
    --until;
#define END_SUMS \
    if (sharer < SHARERS) { \
      UNROLL for (int c_ = 0; c_ < 8; ++c_) \
        SHARED_PUT(SUMS_AT + 4 * (sharer * B_ROWS + chunk * 8 + c_), column_sums[c_]); \
    } \
    TEAMS_SYNC; \
    for (int n_ = tid; n_ < BN && n0 + n_ < N; n_ += NWG * 128) { \
      float total_ = 0; \
      UNROLL for (int s_ = 0; s_ < SHARERS; ++s_) { \
        float got_; \
        SHARED_GET(got_, SUMS_AT + 4 * (s_ * B_ROWS + n_)); \
        total_ += got_; \
      } \
      sums[((INDEX_T)split * TILES_M + pm) * N + n0 + n_] = total_; \
    } \
    TEAMS_SYNC;
#endif
