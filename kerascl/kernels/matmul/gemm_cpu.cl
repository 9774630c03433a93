// GEMM for CPUs over cpu_micro.cl.  Operands that the product kernel cannot stream directly are
// first packed, converted to the accumulator type: panels [batch][panel][k][MR or NR].
#define BATCH_ENTRY(p, Off, s0, s1, s2) \
  ((p) + (Off) + (batch / B2 / B1) * (s0) + (batch / B2 % B1) * (s1) + (batch % B2) * (s2))

#ifndef ONE_THREAD
#define CAT_(x, y) x##y
#define CAT(x, y) CAT_(x, y)
#define ONE_THREAD __attribute__((reqd_work_group_size(1, 1, 1)))
#endif

#if defined(PACK) || B_MODE == 1
#ifdef PACK
#define V CAT(ACC_T, VL)
#define VLOAD CAT(vload, VL)
#define VSTORE CAT(vstore, VL)
#else
#define LANES NR
#endif
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); ++i)

#if SAME_TYPE && VL > 1
// VL lanes, sLane apart, of VL depths that lie side by side.  Each round of the transposition turns the
// bits of (row, column) by one place.
inline void pack_square(__global const B_T* from, const INDEX_T sLane, const int lanes,
    __global ACC_T* to) {
  V t[VL], u[VL];
  EACH(j, VL) t[j] = j < lanes ? VLOAD(0, from + j * sLane) : (V)(0);
  EACH(round, (VL > 1) + (VL > 2) + (VL > 4) + (VL > 8)) {
    EACH(j, VL / 2) {
      u[2 * j].even = t[j].lo; u[2 * j].odd = t[j + VL / 2].lo;
      u[2 * j + 1].even = t[j].hi; u[2 * j + 1].odd = t[j + VL / 2].hi;
    }
    EACH(j, VL) t[j] = u[j];
  }
  EACH(k, VL) VSTORE(t[k], 0, to + k * LANES);
}
#endif

// LANES rows (or columns) side by side for each of `steps` <= 16 depths, which begin at at[]; those past
// `lanes` are zero.
inline void pack_steps(__global const B_T* from, const INDEX_T* at, const int steps, const int lanes,
    const INDEX_T sLane, __global ACC_T* to) {
  if (sLane == 1) {
    for (int k = 0; k < steps; ++k) {
      __global const B_T* row = from + at[k];
#if SAME_TYPE && VL > 1
      if (lanes >= LANES) {
        EACH(j, LANES / VL) VSTORE(VLOAD(j, row), j, to + k * LANES);
        continue;
      }
#endif
      for (int j = 0; j < LANES; ++j)
        to[k * LANES + j] = j < lanes ? (ACC_T)B_LOAD(row, j) : (ACC_T)0;
    }
    return;
  }
#if SAME_TYPE && VL > 1
  if (steps == 16 && at[1] - at[0] == 1 && at[15] - at[0] == 15) {
    for (int k = 0; k < 16; k += VL)
      for (int j = 0; j < LANES; j += VL)
        pack_square(from + at[k] + j * sLane, sLane, lanes - j, to + k * LANES + j);
    return;
  }
#endif
  // Gathers are no faster than single elements, and a third of the program's compilation.
  _Pragma("clang loop vectorize(disable) unroll(disable)")
  for (int j = 0; j < LANES; ++j)
    _Pragma("clang loop vectorize(disable) unroll(disable)")
    for (int k = 0; k < steps; ++k)
      to[k * LANES + j] = j < lanes ? (ACC_T)B_LOAD(from, at[k] + j * sLane) : (ACC_T)0;
}
#endif

#ifdef PACK
// Panels of LANES rows (or columns) side by side for each depth.  The depth may have two levels, INNER
// elements apart by sK inside steps of sOuter.  A panel wholly past the end is a source of zeros: its
// first ZEROS elements are written.
// Work-items: (blocks of BLOCK depths, runs of RUN panels, batch entries).
__kernel ONE_THREAD void gemm_pack(__global const B_T* restrict src, __global ACC_T* restrict dst,
    const int COUNT, const int K, const int INNER, const int ZEROS, const int BLOCK,
    const int PANELS, const int RUN, const int B1, const int B2, const INDEX_T Off,
    const INDEX_T sLane, const INDEX_T sK, const INDEX_T sOuter, const INDEX_T s0, const INDEX_T s1,
    const INDEX_T s2) {
  const int batch = get_group_id(2);
  const int kfrom = get_group_id(0) * BLOCK, kto = min(K, kfrom + BLOCK);
  const int first = get_group_id(1) * RUN, last = min(PANELS, first + RUN);
  __global const B_T* from = BATCH_ENTRY(src, Off, s0, s1, s2);
  for (int k0 = kfrom; k0 < kto; k0 += 16) {
    INDEX_T at[16];
    for (int k = k0; k < k0 + 16; ++k) at[k - k0] = k / INNER * sOuter + k % INNER * sK;
    for (int panel = first; panel < last; ++panel) {
      const int lanes = COUNT - panel * LANES;
      if (lanes <= 0 && k0 * LANES >= ZEROS) break;
      pack_steps(from + (INDEX_T)panel * LANES * sLane, at, min(kto - k0, 16), lanes, sLane,
          dst + (((INDEX_T)batch * PANELS + panel) * K + k0) * LANES);
    }
  }
}
#endif

#ifdef PRODUCT
// A_MODE 0: rows with unit depth stride; 1: MR rows side by side; 2: any strides.
// B_MODE 0: columns side by side where they lie; 1: any strides, each work-item packs a panel of its
// own (into `own`) and uses it for all its rows; 2: panels.  With B_COMPUTED(to, j), b does not lie
// in memory: behind B_FIXED(k) that leaves B_WIDE columns, from the j-th times B_WIDE on.
// A tile is MR rows by NR columns in one slice of the depth.  Tiles are counted down the rows of a
// block of CHUNK row panels, then along the columns, then block by block, slice by slice.  A
// work-item does PER tiles; GROUP of them at a time go through the slice in steps of DEPTH, so that
// what they read of b stays cached for all rows.  Their sums wait in `sums` meanwhile (STEPWISE).
#if STEPWISE
#define SUMS_PARAM , __global ACC_T* restrict sums
#else
#define SUMS_PARAM
#endif
#if B_MODE == 1
#define OWN_PARAM , __global ACC_T* restrict own
#define PANEL_T ACC_T
#else
#define OWN_PARAM
#define PANEL_T B_T
#endif
#if FETCH
#define FETCH_STEP { \
  _Pragma("unroll") for (int v_ = 0; v_ < FETCH; ++v_) MICRO_FETCH(fetch + v_ * VL) \
  fetch += bK; }
#else
#define FETCH_STEP
#endif
#ifndef B_PARAMS
#define B_PARAMS , __global const B_T* restrict pB
#endif
__kernel ONE_THREAD void gemm_cpu(__global const A_T* restrict pA B_PARAMS
    SUMS_PARAM OWN_PARAM, const int M, const int N, const int K, const int SPLITS, const int KSLICE,
    const int DEPTH, const int CHUNK, const int GROUP, const int TILES, const int PER,
    const int B1, const int B2, const INDEX_T aOff, const INDEX_T bOff, const INDEX_T aPanel,
    const INDEX_T aRow, const INDEX_T aK, const INDEX_T bPanel, const INDEX_T bK, const INDEX_T bN,
    const INDEX_T a0, const INDEX_T a1, const INDEX_T a2, const INDEX_T b0, const INDEX_T b1,
    const INDEX_T b2 EPILOGUE_PARAMS) {
  const int rowPanels = (M + MR - 1) / MR, panels = (N + NR - 1) / NR;
  const int last = min(TILES, ((int)get_group_id(0) + 1) * PER);
  int first = (int)get_group_id(0) * PER, done = 0;
  while (first < last) {
    const int to = min(last, first + GROUP);
#if B_MODE != 1
    __global const B_T* home = pB;
#endif
    for (int tile = first; tile < to;) {
      const int entry = tile / (rowPanels * panels), split = entry % SPLITS, batch = entry / SPLITS;
      int place = tile - entry * rowPanels * panels;
      const int block = place / (CHUNK * panels) * CHUNK, rows = min(CHUNK, rowPanels - block);
      place -= block * panels;
      const int kfrom = split * KSLICE + done, kto = min(K, (split + 1) * KSLICE);
      const int depth = min(DEPTH, kto - kfrom);
      __global const A_T* aStart = BATCH_ENTRY(pA, aOff, a0, a1, a2) + kfrom * aK;
#ifndef B_COMPUTED
      __global const B_T* bPanels = BATCH_ENTRY(pB, bOff, b0, b1, b2) + kfrom * bK;
#endif
      int q = block + place % rows;
      for (int panel = place / rows; tile < to && panel < panels; ++panel, q = block) {
        const int qFrom = q, qTo = min(block + rows, q + to - tile), here = tile - q;
        tile += qTo - q;
        // A slice may end before the others do.
        if (STEPWISE && depth <= 0) continue;
        // A ragged last panel of a direct operand is moved back inside; what it repeats is not
        // stored.
        const int n0 = panel * NR, nBack = B_MODE == 0 ? max(n0 + NR - N, 0) : 0;
        const int nTo = min(NR, N - n0 + nBack);
#if B_MODE == 1
        const INDEX_T bStep = NR;
        __global ACC_T* bStart = own + (INDEX_T)get_group_id(0) * DEPTH * NR;
#ifdef B_COMPUTED
        for (int k = 0; k < depth; ++k) {
          B_FIXED(kfrom + k)
          _Pragma("clang loop vectorize(enable)")
          for (int j = 0; j < nTo / B_WIDE; ++j)
            B_COMPUTED(bStart + k * NR + j * B_WIDE, n0 / B_WIDE + j)
        }
        // What is past the last column is not stored, but multiplied.
        for (int k = 0; k < depth; ++k)
          for (int j = nTo; j < NR; ++j) bStart[k * NR + j] = 0;
#else
        for (int k0 = 0; k0 < depth; k0 += 16) {
          INDEX_T at[16];
          for (int k = 0; k < 16; ++k) at[k] = (k0 + k) * bK;
          pack_steps(
              bPanels + panel * bPanel, at, min(depth - k0, 16), N - n0, bN, bStart + k0 * NR);
        }
#endif
#else
        const INDEX_T bStep = bK;
        __global const B_T* bStart = bPanels + panel * bPanel - nBack;
#endif
#if FETCH
        // Each run down the rows fetches the panel after it into the cache, some vectors for each
        // tile.
        if (tile - first <= qTo - qFrom) home = bStart;
        __global const B_T* next =
            tile < to ? bPanels + (panel + 1) % panels * bPanel : home + DEPTH * bK;
#endif
        for (; q < qTo; ++q) {
          const int m0 = q * MR;
          __global const PANEL_T* b = bStart;
          MICRO_ZERO
#if FETCH
          __global const B_T* fetch = next + min((q - qFrom) * FETCH, NV - FETCH) * VL;
#endif
#if A_MODE == 1
          const int mBack = A_DIRECT ? max(m0 + MR - M, 0) : 0;
          __global const A_T* a = aStart + q * aPanel - mBack;
#define A_EL(r) a[r]
#define NEXT b += bStep, a += aK
          MICRO_STEPS(depth, A_EL, b, NEXT, FETCH_STEP)
#else
          const int mBack = 0;
          __global const A_T* a[MR];
#pragma unroll
          for (int r = 0; r < MR; ++r) a[r] = aStart + min(m0 + r, M - 1) * aRow;
#if A_MODE == 0
#define A_EL(r) a[r][k]
#else
#define A_EL(r) a[r][k * aK]
#endif
          MICRO_STEPS(depth, A_EL, b, b += bStep, FETCH_STEP)
#endif
#if STEPWISE
          __global ACC_T* sum =
              sums + ((INDEX_T)get_group_id(0) * GROUP + here - first + q) * (MR * NR);
          if (done > 0) { MICRO_ADD(sum) }
          if (kfrom + depth < kto) {
            MICRO_LEAVE(sum)
            continue;
          }
#endif
          MICRO_SPILL
          const int end = min(MR, M - m0 + mBack);
          for (int r = mBack; r < end; ++r) {
            const INDEX_T at = ((INDEX_T)batch * M + m0 - mBack + r) * N + n0 - nBack;
            MICRO_ROW(r, nBack, nTo, at, 1)
          }
        }
      }
    }
    done += DEPTH;
    if (done >= KSLICE) {
      done = 0;
      first = to;
    }
  }
}
#endif
