// Tiles and operands of attention_mma.cl in TF32.  Tiles are float32, cut to TF32 where they become
// operands.  Of 16 x 8 by 8 x 8, lane 4 g + t holds depths t and t + 4 of rows g, g + 8 and of column
// g.  As the order of depth is free, columns 2 t and 2 t + 1 of a block of eight, which it holds as
// results, are its depths t and t + 4 of the next product.  As the order of results is free, too,
// column g of fragment p of 32 features is feature 4 g + p: one load serves four products.
#define WP ((WIDTH + 15) / 16 * 16)
#define DP ((DEPTH + 15) / 16 * 16)
#define ATTENTION attention_mma
#define ATTENTION_GRADIENT attention_mma_grad
// Copies are asynchronous but those of 16-bit floats, which become float32 on the way.
#if X_BYTES == 4 && VECTORS
#define CHUNK 4
#define STEP(step) 1
#define MOVE(to, from) COPY_FULL(CP16, to, from)
#define MOVE_SOME(to, from, i, n) COPY_SOME(CP16, to, (from) + ((n) ? (i) : 0), n)
#else
#define CHUNK 1
#define STEP(step) (step)
#if X_BYTES == 4
#define MOVE(to, from) COPY_FULL(CP4, to, from)
#define MOVE_SOME(to, from, i, n) COPY_SOME(CP4, to, (from) + ((n) ? (i) : 0), n)
#else
#define MOVE(to, from) PUT_WORD(to, as_uint(X_LOAD(from, 0)))
#define MOVE_SOME(to, from, i, n) PUT_WORD(to, (n) ? as_uint(X_LOAD(from, i)) : 0u)
#endif
#endif
#if X_BYTES == 4
#define OPERAND(word) ROUNDED(word)
#else
#define OPERAND(word) (word)  // exact
#endif

#define KEEP(at, from, row, step, left, features, padded)
#define HOLD(name, at, from, row, step, left, features, padded) \
  uint name[MI][(padded) / 8][4]; \
  EACH(i, MI) EACH(s, (padded) / 8) EACH(e, 4) { \
    const int r_ = lid / 32 * WARP_ROWS + g + 16 * i + 8 * (e & 1); \
    const int c_ = 8 * s + t4 + 4 * (e >> 1); \
    const float x_ = r_ < (left) && c_ < (features) \
        ? X_LOAD(from, (INDEX_T)r_ * (row) + c_ * STEP(step)) : 0.0f; \
    name[i][s][e] = OPERAND(as_uint(x_)); \
  }

// x[MI][NC] = own rows times the rows of a local tile.
#define PRODUCTS(x, own, tile, padded) \
  float x[MI][NC][4]; \
  EACH(i, MI) EACH(j, NC) EACH(e, 4) x[i][j][e] = 0; \
  EACH(s, (padded) / 16) { \
    uint b_[NC][2][2]; \
    EACH(j, NC) { \
      LDM4(b_[j][0][0], b_[j][0][1], b_[j][1][0], b_[j][1][1], \
           (tile) + (lane & 7) * (4 * (padded) + 16) + (lane >> 3) * 16 \
               + 8 * j * (4 * (padded) + 16) + 64 * s); \
      EACH(m, 2) EACH(n, 2) b_[j][m][n] = OPERAND(b_[j][m][n]); \
    } \
    EACH(m, 2) EACH(j, NC) EACH(i, MI) MMA(x[i][j], own[i][2 * s + m], b_[j][m]); \
  }
// sums[MI][parts] += x[MI][NC] times the columns' features in a local tile.
#define ADD_PRODUCT(sums, x, tile, padded) \
  EACH(j, NC) { \
    uint a_[MI][4]; \
    EACH(i, MI) EACH(e, 4) a_[i][e] = ROUNDED(as_uint(x[i][j][2 * (e & 1) + (e >> 1)])); \
    EACH(n, (padded) / 32) { \
      uint b_[4][2]; \
      EACH(m, 2) { \
        LDS4(b_[0][m], b_[1][m], b_[2][m], b_[3][m], \
             (tile) + 2 * t4 * (4 * (padded) + 16) + 16 * g \
                 + (8 * j + m) * (4 * (padded) + 16) + 128 * n); \
        EACH(p, 4) b_[p][m] = OPERAND(b_[p][m]); \
      } \
      EACH(p, 4) EACH(i, MI) MMA(sums[i][4 * n + p], a_[i], b_[p]); \
    } \
    if ((padded) % 32) { /* the last 16 features: feature 2 g + p */ \
      uint b_[2][2]; \
      EACH(m, 2) { \
        float first_, second_; \
        GET_FLOATS(first_, second_, \
                   (tile) + 2 * t4 * (4 * (padded) + 16) + 8 * g \
                       + (8 * j + m) * (4 * (padded) + 16) + (padded) / 32 * 128); \
        b_[0][m] = OPERAND(as_uint(first_)); \
        b_[1][m] = OPERAND(as_uint(second_)); \
      } \
      EACH(p, 2) EACH(i, MI) MMA(sums[i][(padded) / 8 - 2 + p], a_[i], b_[p]); \
    } \
  }
// Rows r of fragments, times `factor`: a lane has eight neighbours of each 32, four of the last 16.
#define STORE_RESULTS(x, r, factor, there, at, features, padded, put) \
  EACH(n_, (padded) / 32) { \
    float v_[8]; \
    EACH(p_, 4) EACH(e_, 2) v_[4 * e_ + p_] = x[4 * n_ + p_][2 * (r) + e_] * (factor); \
    STORE_NEIGHBOURS(8, v_, 32 * n_ + 8 * t4, there, at, features, put) \
  } \
  if ((padded) % 32) { \
    float v_[4]; \
    EACH(p_, 2) EACH(e_, 2) \
      v_[2 * e_ + p_] = x[(padded) / 8 - 2 + p_][2 * (r) + e_] * (factor); \
    STORE_NEIGHBOURS(4, v_, (padded) / 32 * 32 + 4 * t4, there, at, features, put) \
  }
#define STORE_NEIGHBOURS(count, v, d, there, at, features, put) \
  if ((features) % 8 == 0) { \
    if ((there) && (d) < (features)) put(count, v, (at) + (d)) \
  } else { \
    EACH(c_, count) if ((there) && (d) + c_ < (features)) put##_ONE(v[c_], (at) + (d) + c_) \
  }
