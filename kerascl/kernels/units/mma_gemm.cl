// GEMM over arbitrary strides for mma_tile.cl, beside gemm_simt.cl: where rows, columns and depths
// lie, and how many elements there are from there on.
typedef struct {
  INDEX_T base;
  int left;
} Place;

#define A_ROW_T Place
#define B_ROW_T Place
#define A_DEPTH_T Place
#define B_DEPTH_T Place
// Whole copies never read past the end: such rows read the last ones and are never stored.
#define A_CLAMP(m) (A_WHOLE ? min((int)(m), M - (A_ALONG_K ? 1 : A_CE)) : (int)(m))
#define B_CLAMP(n) (B_WHOLE ? min((int)(n), N - (B_ALONG_K ? 1 : B_CE)) : (int)(n))
#define A_ROW(x, m) x.base = (INDEX_T)A_CLAMP(m) * aRow; x.left = M - (int)(m);
#define B_ROW(x, n) x.base = (INDEX_T)B_CLAMP(n) * bCol; x.left = N - (int)(n);
#define A_DEPTH(x, k) x.base = (INDEX_T)(k) * aK; x.left = kto - (k);
#define B_DEPTH(x, k) x.base = (INDEX_T)(k) * bK; x.left = kto - (k);
#define A_NEXT(x) x.base += BK * aK; x.left -= BK;
#define B_NEXT(x) x.base += BK * bK; x.left -= BK;
#undef A_AT
#undef B_AT
#define A_AT(r, d) (r.base + d.base)
#define B_AT(r, d) (r.base + d.base)
#define A_COUNT(r, d) (A_WHOLE ? A_CE : (r.left > 0) & (d.left > 0) ? min(A_ALONG_K ? d.left : r.left, A_CE) : 0)
#define B_COUNT(r, d) (B_WHOLE ? B_CE : (r.left > 0) & (d.left > 0) ? min(B_ALONG_K ? d.left : r.left, B_CE) : 0)
