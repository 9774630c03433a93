// A recurrence over all its steps in one launch.  A work-group owns ROWS rows of the batch for the
// whole sequence, so that no step waits for another group (persistent kernels: Diamos et al., 2016,
// "Persistent RNNs: stashing recurrent weights on-chip").
//
// Each step multiplies the operand (ROWS x PARTS*DEPTH, local) by the weights ((PARTS*DEPTH) x
// WIDTH), one partial sum for each part, and then runs the cell, which is elementwise.  KEEP*VEC of
// the DEPTH weights of a column stay in registers.
//
// From Python: CELL (statements over x0…, p(0)…, c0…), FETCH(to, t), STORE, START, FINISH.
#define COLUMNS (PARTS * WIDTH)
#define DEEP (PARTS * DEPTH)
#define CAT_(x, y) x##y
#define CAT(x, y) CAT_(x, y)
#if VEC == 1
#define V ACC_T
#define SUM(v) (v)
#define WEIGHTS(k, n) W_LOAD(pW, (k) * WIDTH + (n))
#else
#define V CAT(ACC_T, 4)
#define SUM(v) (((v).x + (v).y) + ((v).z + (v).w))
#define WEIGHTS(k, n) (V)(W_LOAD(pW, (k) * WIDTH + (n)), W_LOAD(pW, ((k) + 1) * WIDTH + (n)), \
    W_LOAD(pW, ((k) + 2) * WIDTH + (n)), W_LOAD(pW, ((k) + 3) * WIDTH + (n)))
#endif
#if FMA && defined(FP_FAST_FMAF)
#define MULADD(x, y, z) fma(x, y, z)
#else
#define MULADD(x, y, z) ((x) * (y) + (z))
#endif

// Every (row, unit) of the group, always by the same work-item.
#if FLAT
#define CELLS ((ROWS * UNITS + ITEMS - 1) / ITEMS)
#define EACH_CELL \
  _Pragma("unroll") for (int i = 0; i < CELLS; ++i) { \
    const int cell = i * ITEMS + lane, r = cell / UNITS, u = cell % UNITS, row = first + r; \
    if (cell < ROWS * UNITS)
#else
#define BLOCKS ((UNITS + ITEMS - 1) / ITEMS)
#define CELLS (ROWS * BLOCKS)
#define EACH_CELL \
  for (int i = 0; i < CELLS; ++i) { \
    const int r = i / BLOCKS, u = i % BLOCKS * ITEMS + lane, cell = r * UNITS + u, row = first + r; \
    if (UNITS % ITEMS == 0 || u < UNITS)
#endif
#define END_CELL }
#define IS_OWN (row >= own)

#define PRODUCT \
  for (int j = 0; j < (COLUMNS + ITEMS - 1) / ITEMS; ++j) { \
    const int column = j * ITEMS + lane; \
    if (COLUMNS % ITEMS == 0 || column < COLUMNS) { \
      const int part = PARTS == 1 ? 0 : column / WIDTH, n = column - part * WIDTH; \
      const __local V* v = (const __local V*)(operand + part * DEPTH); \
      V sum[ROWS]; \
      _Pragma("unroll") for (int r = 0; r < ROWS; ++r) sum[r] = (V)(0); \
      FROM_KEPT \
      _Pragma("unroll 4") for (int k = KEEP; k < DEPTH / VEC; ++k) { \
        const V w = WEIGHTS(part * DEPTH + k * VEC, n); \
        _Pragma("unroll") for (int r = 0; r < ROWS; ++r) \
          sum[r] = MULADD(v[r * (DEEP / VEC) + k], w, sum[r]); \
      } \
      _Pragma("unroll") for (int r = 0; r < ROWS; ++r) product[r * COLUMNS + column] = SUM(sum[r]); \
    } \
  }
#if KEEP
#define FROM_KEPT \
  _Pragma("unroll") for (int k = 0; k < KEEP; ++k) \
    _Pragma("unroll") for (int r = 0; r < ROWS; ++r) \
      sum[r] = MULADD(v[r * (DEEP / VEC) + k], kept[k], sum[r]);
#else
#define FROM_KEPT
#endif

// Product k of the current cell: the sum over the parts.
#if PARTS == 1
#define P(k) product[r * COLUMNS + (k) * UNITS + u]
#else
inline ACC_T parts(const __local ACC_T* p) {
  ACC_T sum = p[0];
  for (int k = 1; k < PARTS; ++k) sum += p[k * WIDTH];
  return sum;
}
#define P(k) parts(product + r * COLUMNS + (k) * UNITS + u)
#endif

__kernel NARROW __attribute__((reqd_work_group_size(ITEMS, 1, 1))) void recurrent(
    const __global W_T* restrict pW PARAMS) {
  const int lane = get_local_id(0), own = (int)get_group_id(0) * ROWS;
  const int first = min(own, BATCH - ROWS);  // the last group takes rows of its neighbour along
  __local ACC_T operand[ROWS * DEEP] __attribute__((aligned(64)));
  __local ACC_T product[ROWS * COLUMNS] __attribute__((aligned(64)));
  __local ACC_T carry[STATES * ROWS * UNITS] __attribute__((aligned(64)));
#if KEEP
  V kept[KEEP];
  {
    const int column = min(lane, COLUMNS - 1), part = column / WIDTH, n = column - part * WIDTH;
    _Pragma("unroll") for (int k = 0; k < KEEP; ++k) kept[k] = WEIGHTS(part * DEPTH + k * VEC, n);
  }
#endif
  EACH_CELL { START } END_CELL
#if AHEAD
  ACC_T ahead[CELLS][FETCHES];
  EACH_CELL { FETCH(ahead[i], REVERSE ? STEPS - 1 : 0) } END_CELL
#endif
  barrier(CLK_LOCAL_MEM_FENCE);
  for (int s = 0; s < STEPS; ++s) {
    const int t = REVERSE ? STEPS - 1 - s : s;
    PRODUCT
    barrier(CLK_LOCAL_MEM_FENCE);
    EACH_CELL {
      ACC_T x[FETCHES];
#if AHEAD
      const int next = REVERSE ? max(t - 1, 0) : min(t + 1, STEPS - 1);
      _Pragma("unroll") for (int f = 0; f < FETCHES; ++f) x[f] = ahead[i][f];
      FETCH(ahead[i], next)
#else
      FETCH(x, t)
#endif
      CELL
      STORE(t)
    } END_CELL
    barrier(CLK_LOCAL_MEM_FENCE);
  }
#if LAST_PRODUCT
  PRODUCT
  barrier(CLK_LOCAL_MEM_FENCE);
#endif
  EACH_CELL if (IS_OWN) { FINISH } END_CELL
}
