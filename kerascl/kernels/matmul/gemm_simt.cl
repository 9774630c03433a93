// GEMM over arbitrary strides: what gemm_tile.cl needs to know.  A work-group computes one tile
// of one batch entry over one slice of k ("split"); depth slices go to a workspace.
#define PARAMS \
  , const int M, const int N, const int K, const int SPLITS, const int KSLICE, const int B1, \
  const int B2, const INDEX_T aOff, const INDEX_T bOff, const INDEX_T aRow, const INDEX_T aK, \
  const INDEX_T bK, const INDEX_T bCol, const INDEX_T a0, const INDEX_T a1, const INDEX_T a2, \
  const INDEX_T b0, const INDEX_T b1, const INDEX_T b2

// Bands of 8 row tiles keep the panels that concurrent groups read in the cache.
#define GROUP_SETUP \
  const int tilesM = (M + BM - 1) / BM, tilesN = (N + BN - 1) / BN; \
  const int z_ = (int)get_group_id(0) / (tilesM * tilesN); \
  const int t_ = (int)get_group_id(0) % (tilesM * tilesN); \
  const int band_ = t_ / (8 * tilesN), high_ = min(tilesM - 8 * band_, 8); \
  const int in_ = t_ - band_ * 8 * tilesN; \
  const int row0 = (8 * band_ + in_ % high_) * BM, col0 = in_ / high_ * BN; \
  const int split = z_ % SPLITS, batch = z_ / SPLITS; \
  const int kfrom = split * KSLICE, kto = min(K, kfrom + KSLICE); \
  const int i2_ = batch % B2, i1_ = batch / B2 % B1, i0_ = batch / B2 / B1; \
  pA += aOff + i0_ * a0 + i1_ * a1 + i2_ * a2; \
  pB += bOff + i0_ * b0 + i1_ * b1 + i2_ * b2;

#define K_TABLE_DECL
#define K_FIRST
#define K_TABLE(buf)
#define K_NEXT
#define A_STATE_DECL INDEX_T baseA[AI];
#define B_STATE_DECL INDEX_T baseB[BI];
#define A_ROW_STATE(s, m) { baseA[s] = (m) * aRow; }
#define B_COL_STATE(s, n) baseB[s] = (n) * bCol;
#define A_AT(s, kk, k, buf) (baseA[s] + (k) * aK)
#define B_AT(s, kk, k, buf) (baseB[s] + (k) * bK)
#define A_VALID(s, kk, buf) 1
#define OUT_ROW(m) const INDEX_T outRow = ((INDEX_T)batch * M + (m)) * N;
#define OUT_AT(n) (outRow + (n))
