// One pass of Fourier transforms along the middle axis of (outer, LENGTH * parts, step).
//
// A line of LENGTH elements lies at (j * parts + p) * step + q for all j, and goes to
// (p * LENGTH + k) * step + q (Stockham's order: after the last pass nothing is out of place); `step`
// is the array's inner times what earlier passes transformed.  Where parts > 1, results are turned
// by exp(SIGN 2 pi i p k / (LENGTH parts)).  Inside a line the same is
// done with butterflies of a few values: STAGES, a text of one STAGE for each.
//
// Macros: V (R or a vector of W of them), LENGTH, SIGN, SCALE, FINE and LEVELS (of the table),
// GIVEN_REAL / GIVEN_PAIR / GIVEN_COMPLEX, WANT_RE, WANT_IM, WANT_COMPLEX, TURN (parts > 1),
// STRIDE (what an element of the line is in the table), TURN_STRIDE (the same of p k).

#define UNROLL _Pragma("unroll")
#define TIMES(re_, im_, w_) { \
    const V old_ = re_; \
    re_ = old_ * (w_).x - im_ * (w_).y; \
    im_ = old_ * (w_).y + im_ * (w_).x; \
  }

R2 fft_product(R2 a, R2 b) { return (R2)(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x); }

// exp(SIGN 2 pi i at / whole)
R2 fft_root(const __global R2* roots, INDEX_T at) {
#if LEVELS == 2
  const R2 w = fft_product(roots[at % FINE], roots[FINE + at / FINE]);
#else
  const R2 w = roots[at];
#endif
  return (R2)(w.x, -SIGN * w.y);
}

#if GIVEN_PAIR
#define SOURCE const __global B_T* restrict k_re, const __global B_T* restrict k_im
#define READ_ONE(re_, im_, at_) { re_ = B_LOAD(k_re, at_); im_ = B_LOAD(k_im, at_); }
#define READ_LANES(re_, im_, at_) { re_ = B_LOADV(k_re, at_); im_ = B_LOADV(k_im, at_); }
#elif GIVEN_REAL
#define SOURCE const __global B_T* restrict k_re
#define READ_ONE(re_, im_, at_) { re_ = B_LOAD(k_re, at_); im_ = (R)0; }
#define READ_LANES(re_, im_, at_) { re_ = B_LOADV(k_re, at_); im_ = (R)0; }
#else
#define SOURCE const __global R* restrict k_re
#define READ_ONE(re_, im_, at_) { \
    const R2 value_ = vload2(at_, k_re); \
    re_ = value_.x; \
    im_ = value_.y; \
  }
#define READ_LANES(re_, im_, at_) { \
    const V low_ = VLOAD(0, k_re + 2 * (at_)), high_ = VLOAD(1, k_re + 2 * (at_)); \
    LANES_APART(re_, im_, low_, high_) \
  }
#endif

#if WANT_COMPLEX
#define RESULT EPILOGUE_PARAMS
#define PUT_ONE(re_, im_, at_) EPILOGUE((R2)(re_, im_), at_)
#define PUT_LANES(re_, im_, at_) { \
    const INDEX_T first_ = at_; \
    union { V v; R one[W]; } some_re_, some_im_; \
    some_re_.v = re_; \
    some_im_.v = im_; \
    UNROLL for (int l_ = 0; l_ < W; l_++) PUT_ONE(some_re_.one[l_], some_im_.one[l_], first_ + l_) \
  }
#else
#if WANT_RE && WANT_IM
#define RESULT , __global OUT_T* restrict k_out_re, __global OUT_T* restrict k_out_im
#elif WANT_RE
#define RESULT , __global OUT_T* restrict k_out_re
#else
#define RESULT , __global OUT_T* restrict k_out_im
#endif
#if WANT_RE
#define PUT_RE(v_, at_) OUT_STORE(k_out_re, at_, v_);
#define LANES_RE(v_, at_) OUT_STOREV(k_out_re, at_, v_);
#else
#define PUT_RE(v_, at_)
#define LANES_RE(v_, at_)
#endif
#if WANT_IM
#define PUT_IM(v_, at_) OUT_STORE(k_out_im, at_, v_);
#define LANES_IM(v_, at_) OUT_STOREV(k_out_im, at_, v_);
#else
#define PUT_IM(v_, at_)
#define LANES_IM(v_, at_)
#endif
#define PUT_ONE(re_, im_, at_) { PUT_RE(re_, at_) PUT_IM(im_, at_) }
#define PUT_LANES(re_, im_, at_) { LANES_RE(re_, at_) LANES_IM(im_, at_) }
#endif

#if LINES
// A work-item transforms W lines at a time, a lane each, in stretches of k_scratch that stay in its
// caches.  Lanes are neighbours along an axis of `count` lines, of which there are `rows`: along
// `step` (ALONG_STEP), along the parts (ALONG_PARTS: step is 1), along outer (ALONG_OUTER: step and
// parts are 1), or any W lines (ALONG_ALL).  Of the first two SIDE vectors are read side by side,
// each into its ASIDE vectors of scratch: whole lines of memory.
#define STEP_IS_1 (ALONG_PARTS || ALONG_OUTER)

// Element l of vector k becomes element k of vector l: lanes are dealt out log2(W) times.
void fft_transpose(V* v) {
#if W > 1
  UNROLL for (int n = 1; n < W; n *= 2) {
    V next[W];
    UNROLL for (int k = 0; k < W / 2; k++) {
      next[k] = (V)(v[2 * k].even, v[2 * k + 1].even);
      next[k + W / 2] = (V)(v[2 * k].odd, v[2 * k + 1].odd);
    }
    UNROLL for (int k = 0; k < W; k++) v[k] = next[k];
  }
#endif
}

#define HERE(i_) here[2 * (i_)]
#define HERE_IM(i_) here[2 * (i_) + 1]
#define THERE(i_) there[2 * (i_)]
#define THERE_IM(i_) there[2 * (i_) + 1]
#define READ_HERE(re_, im_, i_) { re_ = HERE(i_); im_ = HERE_IM(i_); }
#define READ_THERE(re_, im_, i_) { re_ = THERE(i_); im_ = THERE_IM(i_); }
#define WRITE_HERE(re_, im_, i_) { HERE(i_) = re_; HERE_IM(i_) = im_; }
#define WRITE_THERE(re_, im_, i_) { THERE(i_) = re_; THERE_IM(i_) = im_; }
#define READ_SOURCE(re_, im_, i_) READ_LANES(re_, im_, from + (INDEX_T)(i_) * parts * step)
#define WRITE_RESULT(re_, im_, i_) { \
    V put_re_ = SCALE * (re_), put_im_ = SCALE * (im_); \
    TURN_LANES(put_re_, put_im_, i_) \
    PUT_LANES(put_re_, put_im_, to + (INDEX_T)(i_) * step) \
  }

#define STAGE(r_, m_, l_, READ, WRITE) \
  for (int p_ = 0; p_ < m_; p_++) { \
    R2 w_[r_]; \
    if (m_ > 1) { UNROLL for (int k_ = 1; k_ < r_; k_++) w_[k_] = own[p_ * k_ * l_]; } \
    for (int q_ = 0; q_ < l_; q_++) { \
      V re_[r_], im_[r_]; \
      UNROLL for (int j_ = 0; j_ < r_; j_++) \
        READ(re_[j_], im_[j_], (j_ * m_ + p_) * l_ + q_) \
      fft_butterfly_##r_(re_, im_); \
      UNROLL for (int k_ = 0; k_ < r_; k_++) { \
        if (m_ > 1 && k_) TIMES(re_[k_], im_[k_], w_[k_]) \
        WRITE(re_[k_], im_[k_], (p_ * r_ + k_) * l_ + q_) \
      } \
    } \
  }

#if !TURN
#define TURN_LANES(re_, im_, k_)
#elif ALONG_STEP
#define TURN_LANES(re_, im_, k_) { \
    const R2 turn_ = fft_root(k_roots, part * (k_) * TURN_STRIDE); \
    TIMES(re_, im_, turn_) \
  }
#elif ALONG_PARTS
// exp(… (part + lane) k) is one number for all lanes times one that all units share
#define TURN_LANES(re_, im_, k_) { \
    const R2 turn_ = fft_root(k_roots, part * (k_) * TURN_STRIDE); \
    TIMES(re_, im_, turn_) \
    const V lane_re_ = lanes[2 * (k_)], lane_im_ = lanes[2 * (k_) + 1], now_ = re_; \
    re_ = now_ * lane_re_ - im_ * lane_im_; \
    im_ = now_ * lane_im_ + im_ * lane_re_; \
  }
#else
#define TURN_LANES(re_, im_, k_) { \
    union { V v; R one[W]; } turned_re_, turned_im_; \
    for (int l_ = 0; l_ < W; l_++) { \
      const R2 turn_ = fft_root(k_roots, part_of[l_] * (k_) * TURN_STRIDE); \
      turned_re_.one[l_] = turn_.x; \
      turned_im_.one[l_] = turn_.y; \
    } \
    const V now_ = re_; \
    re_ = now_ * turned_re_.v - im_ * turned_im_.v; \
    im_ = now_ * turned_im_.v + im_ * turned_re_.v; \
  }
#endif

__kernel void fft_lines(const __global R2* restrict k_roots, SOURCE, __global V* k_scratch,
                        INDEX_T parts, INDEX_T step, INDEX_T rows, INDEX_T count, INDEX_T blocks
                        RESULT) {
  const INDEX_T worker = (INDEX_T)get_global_id(0);
  __global V* stretch = k_scratch + worker * SCRATCH;
  __global V* here = stretch;
  __global V* there = here + 2 * LENGTH;
  __global V* tables = stretch + SIDE * ASIDE;
#if STRIDE == 1 && LEVELS == 1 && SIGN < 0
  const __global R2* own = k_roots;
#else
  __global R2* own = (__global R2*)(tables + 2 * LENGTH);
  for (int i = 0; i < LENGTH; i++) own[i] = fft_root(k_roots, (INDEX_T)i * STRIDE);
#endif
#if TURN && ALONG_PARTS
  __global V* lanes = tables;
  for (int k = 0; k < LENGTH; k++) {
    for (int l = 0; l < W; l++) {
      const R2 turn = fft_root(k_roots, (INDEX_T)l * k * TURN_STRIDE);
      ((__global R*)(lanes + 2 * k))[l] = turn.x;
      ((__global R*)(lanes + 2 * k + 1))[l] = turn.y;
    }
  }
#endif
  for (INDEX_T unit = worker; unit < rows * blocks; unit += (INDEX_T)get_global_size(0)) {
    const INDEX_T row = unit / blocks;
    // the last of a row's blocks lies over the one before
    const INDEX_T first = max((INDEX_T)0, min(unit % blocks * (W * SIDE), count - W * SIDE));
#if ALONG_STEP
    const INDEX_T part = row % parts, base = row / parts * LENGTH * parts * step;
    const INDEX_T from = base + part * step + first;
    const INDEX_T to = base + part * LENGTH * step + first;
#elif ALONG_PARTS
    const INDEX_T from = row * LENGTH * parts + first, to = (row * parts + first) * LENGTH;
#elif ALONG_OUTER
    const INDEX_T from = first * LENGTH, to = from;
#else
    INDEX_T from_of[W], to_of[W], part_of[W];
    for (int l = 0; l < W; l++) {
      const INDEX_T line = min(first + l, count - 1);
      const INDEX_T q = line % step, p = line / step % parts;
      const INDEX_T base = line / step / parts * LENGTH * parts * step + q;
      part_of[l] = p;
      from_of[l] = base + p * step;
      to_of[l] = base + p * LENGTH * step;
    }
#endif
#if ALONG_ALL
    for (int l = 0; l < W; l++) {
      for (int j = 0; j < LENGTH; j++) {
        R re, im;
        READ_ONE(re, im, from_of[l] + (INDEX_T)j * parts * step)
        ((__global R*)(here + 2 * j))[l] = re;
        ((__global R*)(here + 2 * j + 1))[l] = im;
      }
    }
#elif ALONG_OUTER
    for (int j = 0; j < LENGTH; j += W) {
      if (j + W <= LENGTH) {
        V re[W], im[W];
        UNROLL for (int l = 0; l < W; l++) READ_LANES(re[l], im[l], from + l * LENGTH + j)
        fft_transpose(re);
        fft_transpose(im);
        UNROLL for (int l = 0; l < W; l++) WRITE_HERE(re[l], im[l], j + l)
      } else {
        for (int l = 0; l < W; l++) {
          for (int q = j; q < LENGTH; q++) {
            R re, im;
            READ_ONE(re, im, from + l * LENGTH + q)
            ((__global R*)(here + 2 * q))[l] = re;
            ((__global R*)(here + 2 * q + 1))[l] = im;
          }
        }
      }
    }
#elif SIDE > 1
    for (int j = 0; j < LENGTH; j++) {
      UNROLL for (int n = 0; n < SIDE; n++) {
        V re, im;
        READ_LANES(re, im, from + (INDEX_T)j * parts * step + n * W)
        here[n * ASIDE + 2 * j] = re;
        here[n * ASIDE + 2 * j + 1] = im;
      }
    }
#endif
    for (int n = 0; n < SIDE; n++) {
      __global V* here = stretch + n * ASIDE;
      __global V* there = here + 2 * LENGTH;
#if ALONG_PARTS
      const INDEX_T part = first + n * W;
#endif
      STAGES
#if ALONG_ALL || STEP_IS_1
      __global V* done = DONE;
#endif
#if ALONG_ALL
      for (int k = 0; k < LENGTH; k++) {
        union { V v; R one[W]; } re, im;
        re.v = SCALE * done[2 * k];
        im.v = SCALE * done[2 * k + 1];
        TURN_LANES(re.v, im.v, k)
        for (int l = 0; l < W; l++) PUT_ONE(re.one[l], im.one[l], to_of[l] + (INDEX_T)k * step)
      }
#elif STEP_IS_1
      for (int k = 0; k < LENGTH; k += W) {
        if (k + W <= LENGTH) {
          V re[W], im[W];
          UNROLL for (int l = 0; l < W; l++) {
            re[l] = SCALE * done[2 * (k + l)];
            im[l] = SCALE * done[2 * (k + l) + 1];
            TURN_LANES(re[l], im[l], k + l)
          }
          fft_transpose(re);
          fft_transpose(im);
          UNROLL for (int l = 0; l < W; l++)
            PUT_LANES(re[l], im[l], to + (INDEX_T)(n * W + l) * LENGTH + k)
        } else {
          for (int q = k; q < LENGTH; q++) {
            union { V v; R one[W]; } re, im;
            re.v = SCALE * done[2 * q];
            im.v = SCALE * done[2 * q + 1];
            TURN_LANES(re.v, im.v, q)
            for (int l = 0; l < W; l++)
              PUT_ONE(re.one[l], im.one[l], to + (INDEX_T)(n * W + l) * LENGTH + q)
          }
        }
      }
#endif
    }
#if ALONG_STEP && SIDE > 1
    for (int k = 0; k < LENGTH; k++) {
      UNROLL for (int n = 0; n < SIDE; n++) {
        V re = SCALE * DONE[n * ASIDE + 2 * k], im = SCALE * DONE[n * ASIDE + 2 * k + 1];
        TURN_LANES(re, im, k)
        PUT_LANES(re, im, to + (INDEX_T)k * step + n * W)
      }
    }
#endif
  }
}
#endif

#if LOCAL
// A work-group of GROUP transforms COUNT lines at a time, ITEMS work-items a line, which hold all
// values of the line in registers between barriers.
#define PLACE(i_) ((i_) ^ (((i_) >> 5) & 31))  // strides fall on different banks
#define ROOM ((LENGTH + 31) / 32 * 32)
#define READ_SOURCE(re_, im_, i_) { \
    if (inside) READ_ONE(re_, im_, from + (INDEX_T)(i_) * parts * step) else re_ = im_ = (R)0; \
  }
#define READ_TILE(re_, im_, i_) { \
    const int place_ = slot * ROOM + PLACE(i_); \
    re_ = tile_re[place_]; \
    im_ = tile_im[place_]; \
  }
#define WRITE_TILE(re_, im_, i_) { \
    const int place_ = slot * ROOM + PLACE(i_); \
    tile_re[place_] = re_; \
    tile_im[place_] = im_; \
  }
#if TURN
#define WRITE_RESULT(re_, im_, i_) if (inside) { \
    R put_re_ = SCALE * (re_), put_im_ = SCALE * (im_); \
    const R2 turn_ = fft_root(k_roots, part * (i_) * TURN_STRIDE); \
    TIMES(put_re_, put_im_, turn_) \
    PUT_ONE(put_re_, put_im_, to + (INDEX_T)(i_) * step) \
  }
#else
#define WRITE_RESULT(re_, im_, i_) if (inside) { \
    PUT_ONE(SCALE * (re_), SCALE * (im_), to + (INDEX_T)(i_) * step) \
  }
#endif

#define STAGE(r_, m_, l_, READ, WRITE) { \
    enum { TIMES_ = (m_ * l_ + ITEMS - 1) / ITEMS }; \
    R re_[r_ * TIMES_], im_[r_ * TIMES_]; \
    UNROLL for (int n_ = 0; n_ < TIMES_; n_++) { \
      const int id_ = item + n_ * ITEMS; \
      if (id_ < m_ * l_) { \
        UNROLL for (int j_ = 0; j_ < r_; j_++) \
          READ(re_[n_ * r_ + j_], im_[n_ * r_ + j_], j_ * m_ * l_ + id_) \
      } \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); \
    UNROLL for (int n_ = 0; n_ < TIMES_; n_++) { \
      const int id_ = item + n_ * ITEMS; \
      if (id_ < m_ * l_) { \
        const int p_ = id_ / l_, q_ = id_ % l_; \
        fft_butterfly_##r_(re_ + n_ * r_, im_ + n_ * r_); \
        UNROLL for (int k_ = 0; k_ < r_; k_++) { \
          if (m_ > 1 && k_) { \
            const R2 w_ = fft_root(k_roots, (INDEX_T)(p_ * k_ * l_) * STRIDE); \
            TIMES(re_[n_ * r_ + k_], im_[n_ * r_ + k_], w_) \
          } \
          WRITE(re_[n_ * r_ + k_], im_[n_ * r_ + k_], (p_ * r_ + k_) * l_ + q_) \
        } \
      } \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  }

// As STAGE, of r_ values that would not fit registers: results k and r_ - k are sums over the tile.
#define SUMS(r_, m_, l_, READ, WRITE) { \
    enum { HALF_ = r_ / 2, ALL_ = (HALF_ + 1) * m_ * l_, TIMES_ = (ALL_ + ITEMS - 1) / ITEMS }; \
    R re_[2 * TIMES_], im_[2 * TIMES_]; \
    UNROLL for (int n_ = 0; n_ < TIMES_; n_++) { \
      const int id_ = item + n_ * ITEMS; \
      if (id_ < ALL_) { \
        const int k_ = id_ / (m_ * l_), at_ = id_ % (m_ * l_); \
        R even_re_, even_im_, odd_re_ = (R)0, odd_im_ = (R)0; \
        READ(even_re_, even_im_, at_) \
        int turn_ = 0; \
        BOUNDED for (int j_ = 1; j_ <= HALF_; j_++) { \
          R x_re_, x_im_, y_re_, y_im_; \
          READ(x_re_, x_im_, j_ * m_ * l_ + at_) \
          READ(y_re_, y_im_, (r_ - j_) * m_ * l_ + at_) \
          turn_ += k_; \
          if (turn_ >= r_) turn_ -= r_; \
          const R c_ = fft_cos_##r_[turn_], s_ = fft_sin_##r_[turn_]; \
          even_re_ += c_ * (x_re_ + y_re_); \
          even_im_ += c_ * (x_im_ + y_im_); \
          odd_re_ += s_ * (x_re_ - y_re_); \
          odd_im_ += s_ * (x_im_ - y_im_); \
        } \
        re_[2 * n_] = even_re_ - odd_im_; \
        im_[2 * n_] = even_im_ + odd_re_; \
        re_[2 * n_ + 1] = even_re_ + odd_im_; \
        im_[2 * n_ + 1] = even_im_ - odd_re_; \
      } \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); \
    UNROLL for (int n_ = 0; n_ < TIMES_; n_++) { \
      const int id_ = item + n_ * ITEMS; \
      if (id_ < ALL_) { \
        const int first_ = id_ / (m_ * l_), at_ = id_ % (m_ * l_); \
        const int p_ = at_ / l_, q_ = at_ % l_; \
        UNROLL for (int h_ = 0; h_ < 2; h_++) { \
          const int k_ = h_ ? r_ - first_ : first_; \
          if (k_ < r_) { \
            if (m_ > 1 && k_) { \
              const R2 w_ = fft_root(k_roots, (INDEX_T)(p_ * k_ * l_) * STRIDE); \
              TIMES(re_[2 * n_ + h_], im_[2 * n_ + h_], w_) \
            } \
            WRITE(re_[2 * n_ + h_], im_[2 * n_ + h_], (p_ * r_ + k_) * l_ + q_) \
          } \
        } \
      } \
    } \
    barrier(CLK_LOCAL_MEM_FENCE); \
  }

// Neighbouring work-items take neighbouring lines where these lie side by side.
#define SHARE(across_) { \
    slot = (across_) ? lid % COUNT : lid / ITEMS; \
    item = (across_) ? lid / COUNT : lid % ITEMS; \
    const INDEX_T line = (INDEX_T)get_group_id(0) * COUNT + slot; \
    inside = line < lines; \
    const INDEX_T base = line / step / parts * LENGTH * parts * step + line % step; \
    part = line / step % parts; \
    from = base + part * step; \
    to = base + part * LENGTH * step; \
  }

__kernel NARROW __attribute__((reqd_work_group_size(GROUP, 1, 1)))
void fft_local(const __global R2* restrict k_roots, SOURCE, INDEX_T parts, INDEX_T step,
               INDEX_T lines RESULT) {
  __local R tile_re[COUNT * ROOM], tile_im[COUNT * ROOM];
  const int lid = (int)get_local_id(0);
  int slot, item;
  bool inside;
  INDEX_T part, from, to;
  STAGES
}
#endif
