// Pooling over windows of up to three spatial dimensions.
//
// Arrays are (planes, D, H, W, channels): channels-first data has one channel
// and batch * channels planes.  Work-item (t, h, slab), over the domain of the
// result: t = w * (channels / LANES) + channel block, slab = plane * D + d.
// KD KH KW and SD SH SW (window, strides) are macros: loops unroll and the
// divisions by strides are by constants.

#define SIZES_PARAMS \
  , int planes, int channels, int id, int ih, int iw, int od, int oh, int ow, int pd, int ph, int pw

#define AT(n_, d_, h_, w_, D_, H_, W_) \
  ((((((INDEX_T)(n_) * (D_) + (d_)) * (H_) + (h_)) * (W_)) + (w_)) * channels + c)

// FLAT: one and two spatial dimensions have D = 1.
#define FOR_EACH_RESULT(D_, H_, W_) \
  const int blocks = channels / LANES; \
  const int t = (int)get_global_id(0), h = (int)get_global_id(1); \
  if (t >= (W_) * blocks || h >= (H_)) return; \
  const int w = blocks == 1 ? t : t / blocks, c = (t - w * blocks) * LANES; \
  const INDEX_T slabs = (INDEX_T)planes * (D_); \
  for (INDEX_T slab = (INDEX_T)get_global_id(2); slab < slabs; slab += (INDEX_T)get_global_size(2)) { \
    const INDEX_T n = FLAT ? slab : slab / (D_); \
    const int d = FLAT ? 0 : (int)(slab - n * (D_));

#define END_EACH_RESULT }

#if defined(EPILOGUE_VECTOR) && LANES == 4
#define STORE(v_, i_) { \
    ACC_T lanes_[LANES]; \
    ACC_SPILL((v_), lanes_); \
    const INDEX_T first_ = (i_); \
    EPILOGUE_VECTOR(4, lanes_, first_) \
  }
#else
#define STORE(v_, i_) { \
    ACC_T lanes_[LANES]; \
    ACC_SPILL((v_), lanes_); \
    const INDEX_T first_ = (i_); \
    for (int lane_ = 0; lane_ < LANES; lane_++) EPILOGUE(lanes_[lane_], first_ + lane_) \
  }
#endif

#define INSIDE(z_, size_) ((uint)(z_) < (uint)(size_))

// Elements of a window that lie inside the input, along one dimension.
#define EXTENT(o_, S_, K_, p_, size_) \
  (min((o_) * (S_) - (p_) + (K_), (size_)) - max((o_) * (S_) - (p_), 0))

#if COUNT_PAD
#define COUNT(zo_, yo_, xo_) (KD * KH * KW)
#else
#define COUNT(zo_, yo_, xo_) \
  ((FLAT ? 1 : EXTENT(zo_, SD, KD, pd, id)) * EXTENT(yo_, SH, KH, ph, ih) * EXTENT(xo_, SW, KW, pw, iw))
#endif

// The elements (z, y, x) of window (d, h, w) that lie inside the input; (kz, ky, kx) is their place in
// it, p their index.
#define FOR_EACH_ELEMENT \
  for (int kz = 0; kz < KD; kz++) { \
    const int z = d * SD - pd + kz; \
    if (!INSIDE(z, id)) continue; \
    for (int ky = 0; ky < KH; ky++) { \
      const int y = h * SH - ph + ky; \
      if (!INSIDE(y, ih)) continue; \
      for (int kx = 0; kx < KW; kx++) { \
        const int x = w * SW - pw + kx; \
        if (!INSIDE(x, iw)) continue; \
        const INDEX_T p = AT(n, z, y, x, id, ih, iw);

#define END_EACH_ELEMENT }}}

// The windows (zo, yo, xo) that cover input position (d, h, w), ascending; (kz, ky, kx) is its place
// there.  At most NZ * NY * NX: the loops unroll.
#define NZ ((KD + SD - 1) / SD)
#define NY ((KH + SH - 1) / SH)
#define NX ((KW + SW - 1) / SW)
#define FOR_EACH_WINDOW \
  const int zlast = (d + pd) / SD, ylast = (h + ph) / SH, xlast = (w + pw) / SW; \
  for (int jz = NZ - 1; jz >= 0; jz--) { \
    const int zo = zlast - jz, kz = d + pd - zo * SD; \
    if (kz >= KD || !INSIDE(zo, od)) continue; \
    for (int jy = NY - 1; jy >= 0; jy--) { \
      const int yo = ylast - jy, ky = h + ph - yo * SH; \
      if (ky >= KH || !INSIDE(yo, oh)) continue; \
      for (int jx = NX - 1; jx >= 0; jx--) { \
        const int xo = xlast - jx, kx = w + pw - xo * SW; \
        if (kx >= KW || !INSIDE(xo, ow)) continue; \
        const INDEX_T o = AT(n, zo, yo, xo, od, oh, ow);

#define END_EACH_WINDOW }}}

#define SAME(u_, v_) (((u_) == (v_)) | (((u_) != (u_)) & ((v_) != (v_))))

#if POOL_MAX
__kernel void pool_max(const __global A_T* restrict k_x SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(od, oh, ow)
    A_CV best = A_SPLAT(ACC_LOWEST);
    FOR_EACH_ELEMENT
      const A_CV v = A_LOADV(k_x, p);
      best = ((v > best) | (v != v)) ? v : best;
    END_EACH_ELEMENT
    STORE(best, AT(n, d, h, w, od, oh, ow))
  END_EACH_RESULT
}
#endif

// The first maximum's place in each window (row-major, of the whole window), for pool_max_place_grad.
#if POOL_MAX_PLACE
__kernel void pool_max_place(const __global A_T* restrict k_x,
                             __global PLACE_T* restrict k_places SIZES_PARAMS) {
  FOR_EACH_RESULT(od, oh, ow)
    A_CV best = A_SPLAT(0);
    MASK_T place = (MASK_T)(0);
    bool some = false;
    FOR_EACH_ELEMENT
      const A_CV v = A_LOADV(k_x, p);
      const MASK_T here = (MASK_T)((kz * KH + ky) * KW + kx);
      const MASK_T take = some ? ((v > best) | ((v != v) & (best == best))) : (MASK_T)(ALL_LANES);
      best = take ? v : best;
      place = take ? here : place;
      some = true;
    END_EACH_ELEMENT
    STORE_PLACES(place, k_places, AT(n, d, h, w, od, oh, ow));
  END_EACH_RESULT
}
#endif

#if POOL_MAX_PLACE_GRAD
__kernel void pool_max_place_grad(const __global PLACE_T* restrict k_places,
                                  const __global A_T* restrict k_dy SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(id, ih, iw)
    A_CV sum = A_SPLAT(0);
    FOR_EACH_WINDOW
      const MASK_T hit = LOAD_PLACES(k_places, o) == (MASK_T)((kz * KH + ky) * KW + kx);
      sum += hit ? A_LOADV(k_dy, o) : A_SPLAT(0);
    END_EACH_WINDOW
    STORE(sum, AT(n, d, h, w, id, ih, iw))
  END_EACH_RESULT
}
#endif

#if POOL_MAX_GRAD
__kernel void pool_max_grad(const __global A_T* restrict k_x, const __global A_T* restrict k_y,
                            const __global A_T* restrict k_dy SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(id, ih, iw)
    const A_CV mine = A_LOADV(k_x, AT(n, d, h, w, id, ih, iw));
    A_CV sum = A_SPLAT(0);
    FOR_EACH_WINDOW
      const A_CV top = A_LOADV(k_y, o);
      MASK_T hit = SAME(mine, top);
      if (!LANES_ANY(hit)) continue;
      // Only the first of several equal maxima takes the gradient.
      const int z0 = zo * SD - pd, y0 = yo * SH - ph, x0 = xo * SW - pw;
      for (int z = max(z0, 0); z <= d; z++) {
        const int yend = z < d ? min(y0 + KH, ih) : h + 1;
        for (int y = max(y0, 0); y < yend; y++) {
          const int xend = (z < d || y < h) ? min(x0 + KW, iw) : w;
          for (int x = max(x0, 0); x < xend; x++) {
            const A_CV v = A_LOADV(k_x, AT(n, z, y, x, id, ih, iw));
            hit &= ~SAME(v, top);
          }
        }
      }
      sum += hit ? A_LOADV(k_dy, o) : A_SPLAT(0);
    END_EACH_WINDOW
    STORE(sum, AT(n, d, h, w, id, ih, iw))
  END_EACH_RESULT
}
#endif

#if POOL_MAX_SELECT
__kernel void pool_max_select(const __global A_T* restrict k_x, const __global A_T* restrict k_y,
                              const __global A_T* restrict k_gx SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(od, oh, ow)
    const A_CV top = A_LOADV(k_y, AT(n, d, h, w, od, oh, ow));
    A_CV pick = A_SPLAT(0);
    MASK_T open = (MASK_T)(ALL_LANES);
    FOR_EACH_ELEMENT
      const A_CV v = A_LOADV(k_x, p);
      const MASK_T hit = SAME(v, top) & open;
      if (LANES_ANY(hit)) {
        pick = hit ? A_LOADV(k_gx, p) : pick;
        open &= ~hit;
      }
    END_EACH_ELEMENT
    STORE(pick, AT(n, d, h, w, od, oh, ow))
  END_EACH_RESULT
}
#endif

#if POOL_AVERAGE
// Sums of large windows carry along what each addition rounds off (Kahan), unless it is infinite.
#if KD * KH * KW > 256
#define ADD(v_) { \
    const A_CV more_ = (v_) - lost, next_ = sum + more_; \
    lost = (next_ - sum) - more_; \
    lost = lost == lost ? lost : A_SPLAT(0); \
    sum = next_; \
  }
#else
#define ADD(v_) sum += (v_);
#endif

__kernel void pool_average(const __global A_T* restrict k_x SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(od, oh, ow)
    A_CV sum = A_SPLAT(0);
#if KD * KH * KW > 256
    A_CV lost = A_SPLAT(0);
#endif
    FOR_EACH_ELEMENT
      ADD(A_LOADV(k_x, p))
    END_EACH_ELEMENT
    STORE(sum / A_SPLAT(max(COUNT(d, h, w), 1)), AT(n, d, h, w, od, oh, ow))
  END_EACH_RESULT
}
#endif

#if POOL_AVERAGE_GRAD
__kernel void pool_average_grad(const __global A_T* restrict k_dy SIZES_PARAMS EPILOGUE_PARAMS) {
  FOR_EACH_RESULT(id, ih, iw)
    A_CV sum = A_SPLAT(0);
    FOR_EACH_WINDOW
      sum += A_LOADV(k_dy, o) / A_SPLAT(COUNT(zo, yo, xo));
    END_EACH_WINDOW
    STORE(sum, AT(n, d, h, w, id, ih, iw))
  END_EACH_RESULT
}
#endif
