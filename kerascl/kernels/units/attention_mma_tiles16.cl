// Tiles and operands of attention_mma.cl in 16 bits: tiles are what global memory holds, in whole
// 16-byte chunks, and ldmatrix takes operands from there.  Probabilities, rounded to 16 bits, are where
// the next product takes its left operand from.
#define WP ((WIDTH + 15) / 16 * 16)
#define DP ((DEPTH + 15) / 16 * 16)
#define ATTENTION attention_mma16
#define ATTENTION_GRADIENT attention_mma16_grad
#define CHUNK 8
#define STEP(step) 1
#define MOVE(to, from) COPY_FULL(CP16, to, from)
#define MOVE_SOME(to, from, i, n) COPY_SOME(CP16, to, (from) + ((n) ? (i) : 0), n)

// This warp's rows as left operands: LEFT(a, name, ...) gives those of step s, either from registers,
// loaded by HOLD, or from the tile at `name`, which KEEP fills.
#if OWN_LOCAL
#define HOLD(name, at, from, row, step, left, features, padded) \
  const uint name = (at) + lid / 32 * WARP_ROWS * (2 * (padded) + 16) + (lane & 15) * (2 * (padded) + 16) \
      + (lane >> 4) * 16;
#define KEEP(at, from, row, step, left, features, padded) \
  COPY_TILE(at, from, row, step, left, BR, features, padded)
#define LEFT(a, name, s, padded) \
  EACH(i, MI) LDM4(a[i][0], a[i][1], a[i][2], a[i][3], \
                   name + 16 * i * (2 * (padded) + 16) + 32 * (s));
#else
#define HOLD(name, at, from, row, step, left, features, padded) \
  uint name[MI][(padded) / 16][4]; \
  { \
    __global const ushort* from_ = (__global const ushort*)(from); \
    EACH(i, MI) EACH(s, (padded) / 16) EACH(e, 4) { \
      const int r_ = lid / 32 * WARP_ROWS + g + 16 * i + 8 * (e & 1); \
      const int c_ = 16 * s + 2 * t4 + 8 * (e >> 1); \
      name[i][s][e] = r_ < (left) && c_ < (features) \
          ? *(__global const uint*)(from_ + (INDEX_T)r_ * (row) + c_) : 0u; \
    } \
  }
#define KEEP(at, from, row, step, left, features, padded)
#define LEFT(a, name, s, padded) EACH(i, MI) EACH(e, 4) a[i][e] = name[i][s][e];
#endif

// x[MI][NC] = own rows times the rows of a local tile.
#define PRODUCTS(x, own, tile, padded) \
  float x[MI][NC][4]; \
  EACH(i, MI) EACH(j, NC) EACH(e, 4) x[i][j][e] = 0; \
  EACH(s, (padded) / 16) { \
    uint a_[MI][4]; \
    LEFT(a_, own, s, padded) \
    EACH(j, NC / 2) { \
      uint b_[2][2]; \
      LDM4(b_[0][0], b_[0][1], b_[1][0], b_[1][1], \
           (tile) + ((lane & 7) + 8 * (lane >> 4)) * (2 * (padded) + 16) + (lane >> 3 & 1) * 16 \
               + 16 * j * (2 * (padded) + 16) + 32 * s); \
      EACH(i, MI) EACH(n, 2) MMA(x[i][2 * j + n], a_[i], b_[n]); \
    } \
  }
// sums[MI][parts] += x[MI][NC] times the columns' features in a local tile.
#define ADD_PRODUCT(sums, x, tile, padded) \
  EACH(k, NC / 2) { \
    uint a_[MI][4]; \
    EACH(i, MI) EACH(e, 4) \
      PACK(a_[i][e], x[i][2 * k + (e >> 1)][2 * (e & 1)], x[i][2 * k + (e >> 1)][2 * (e & 1) + 1]); \
    EACH(n, (padded) / 16) { \
      uint b_[2][2]; \
      LDM4T(b_[0][0], b_[0][1], b_[1][0], b_[1][1], \
            (tile) + (lane & 15) * (2 * (padded) + 16) + (lane >> 4) * 16 \
                + 16 * k * (2 * (padded) + 16) + 32 * n); \
      EACH(i, MI) EACH(m, 2) MMA(sums[i][2 * n + m], a_[i], b_[m]); \
    } \
  }
#define STORE_RESULTS(x, r, factor, there, at, features, padded, put) \
  STORE_ROW(x, r, factor, there, at, features, padded, put)
