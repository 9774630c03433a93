// Gradients of max pooling by cells of x: blocks as large as the strides.  Cell u of a dimension
// holds the elements at u * S - p + q, q = 0 … S - 1, which lie in windows u - k at place q + k * S.
// Work-items as in pool.cl, over the cells.
#define UNROLL _Pragma("unroll")
#define CELLS(size_, S_, p_) (((size_) - 1 + (p_)) / (S_) - (p_) / (S_) + 1)
#define TAP(qz_, qy_, qx_) (((qz_) * KH + (qy_)) * KW + (qx_))

// The cell (uz, uy, ux) of work-item (w, h, d).
#define FOR_EACH_CELL \
  const int cells_d = CELLS(id, SD, pd), cells_h = CELLS(ih, SH, ph), cells_w = CELLS(iw, SW, pw); \
  FOR_EACH_RESULT(cells_d, cells_h, cells_w) \
    const int uz = d + pd / SD, uy = h + ph / SH, ux = w + pw / SW;

#if defined(EPILOGUE_VECTORS) && LANES == 4
#define STORE_ROW { \
    ACC_T lanes_[4 * SW]; \
    const INDEX_T first_ = AT(n, z, y, x0, id, ih, iw); \
    UNROLL for (int qx = 0; qx < SW; qx++) ACC_SPILL(dx[qx], lanes_ + 4 * qx); \
    EPILOGUE_VECTORS(SW, 4, lanes_, first_, channels) \
  }
#else
#define STORE_ROW \
  UNROLL for (int qx = 0; qx < SW; qx++) STORE(dx[qx], AT(n, z, y, x0 + qx, id, ih, iw))
#endif

// Stores a cell row by row; VALUE is the gradient of its element (qz, qy, qx).
#define STORE_CELL(VALUE) \
  UNROLL for (int qz = 0; qz < SD; qz++) { \
    const int z = uz * SD - pd + qz; \
    if (!INSIDE(z, id)) continue; \
    UNROLL for (int qy = 0; qy < SH; qy++) { \
      const int y = uy * SH - ph + qy, x0 = ux * SW - pw; \
      if (!INSIDE(y, ih)) continue; \
      A_CV dx[SW]; \
      UNROLL for (int qx = 0; qx < SW; qx++) dx[qx] = VALUE; \
      if (x0 >= 0 && x0 + SW <= iw) { STORE_ROW } \
      else { \
        UNROLL for (int qx = 0; qx < SW; qx++) \
          if (INSIDE(x0 + qx, iw)) STORE(dx[qx], AT(n, z, y, x0 + qx, id, ih, iw)) \
      } \
    } \
  }

#if POOL_MAX_CELL_GRAD
// Windows no larger than strides: the cell's own window is the only one.
__kernel void pool_max_cell_grad(const __global A_T* restrict k_x,
                                 const __global A_T* restrict k_dy SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_CELL
    A_CV grad = A_SPLAT(0), best = A_SPLAT(0);
    MASK_T place = (MASK_T)(-1);
    if (uz < od && uy < oh && ux < ow) {
      A_CV v[KD * KH * KW];
      int live[KD * KH * KW];
      UNROLL for (int kz = 0; kz < KD; kz++)
        UNROLL for (int ky = 0; ky < KH; ky++)
          UNROLL for (int kx = 0; kx < KW; kx++) {
            const int z = uz * SD - pd + kz, y = uy * SH - ph + ky, x = ux * SW - pw + kx;
            const int k = TAP(kz, ky, kx);
            live[k] = WHOLE || (INSIDE(z, id) && INSIDE(y, ih) && INSIDE(x, iw));
            v[k] = live[k] ? A_LOADV(k_x, AT(n, z, y, x, id, ih, iw)) : A_SPLAT(0);
          }
      grad = A_LOADV(k_dy, AT(n, uz, uy, ux, od, oh, ow));
      bool some = false;
      UNROLL for (int k = 0; k < KD * KH * KW; k++) {
        if (!live[k]) continue;
        const MASK_T take = some ? ((v[k] > best) | ((v[k] != v[k]) & (best == best)))
                                 : (MASK_T)(ALL_LANES);
        best = take ? v[k] : best;
        place = take ? (MASK_T)(k) : place;
        some = true;
      }
    }
#define SHARE(tap_) (place == (MASK_T)(tap_) ? grad : A_SPLAT(0))
    STORE_CELL((qz < KD && qy < KH && qx < KW) ? SHARE(TAP(qz, qy, qx)) : A_SPLAT(0))
  END_EACH_RESULT
}
#endif

#if POOL_MAX_CELL_GATHER
// Windows that overlap: those that reach into the cell, with their places, are loaded once.
__kernel void pool_max_cell_gather(const __global PLACE_T* restrict k_places,
                                   const __global A_T* restrict k_dy SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_CELL
    MASK_T place[NZ * NY * NX];
    A_CV grad[NZ * NY * NX];
    UNROLL for (int kz = 0; kz < NZ; kz++)
      UNROLL for (int ky = 0; ky < NY; ky++)
        UNROLL for (int kx = 0; kx < NX; kx++) {
          const int zo = uz - kz, yo = uy - ky, xo = ux - kx, k = (kz * NY + ky) * NX + kx;
          place[k] = (MASK_T)(-1);
          grad[k] = A_SPLAT(0);
          if (INSIDE(zo, od) && INSIDE(yo, oh) && INSIDE(xo, ow)) {
            const INDEX_T o = AT(n, zo, yo, xo, od, oh, ow);
            place[k] = LOAD_PLACES(k_places, o);
            grad[k] = A_LOADV(k_dy, o);
          }
        }
    A_CV sums[SD * SH * SW];
    UNROLL for (int q = 0; q < SD * SH * SW; q++) {
      const int qz = q / (SH * SW), qy = q / SW % SH, qx = q % SW;
      sums[q] = A_SPLAT(0);
      UNROLL for (int k = NZ * NY * NX - 1; k >= 0; k--) {
        const int kz = qz + k / (NY * NX) * SD, ky = qy + k / NX % NY * SH, kx = qx + k % NX * SW;
        if (kz < KD && ky < KH && kx < KW)
          sums[q] += place[k] == (MASK_T)(TAP(kz, ky, kx)) ? grad[k] : A_SPLAT(0);
      }
    }
    STORE_CELL(sums[(qz * SH + qy) * SW + qx])
  END_EACH_RESULT
}
#endif
