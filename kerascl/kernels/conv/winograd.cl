// Winograd's minimal filtering (Lavin and Gray, 2016) of 3 x 3 convolutions with stride one: TILE x
// TILE outputs from EDGE x EDGE pixels, EDGE = TILE + 2, with EDGE * EDGE products for each channel
// where the definition takes 9 * TILE * TILE.  The products of one place of the tile, over channels,
// are a matrix product; EDGE * EDGE of them lie one after the other.
//
// The filter gradient is the adjoint of the forward pass: dy goes through the transposed transform of
// outputs, its products with the transformed pixels, summed over tiles, through that of weights.
//
// Work-items do PER items each; an item is one tile and LANES channels.  Channels are the fastest
// where they lie side by side, else tiles.  With FLIP the kernel is turned round (data gradient).
#if TILE == 2
#define EDGE 4
#define TO_INPUT(o, i) \
  o(0) = i(0) - i(2); o(1) = i(1) + i(2); o(2) = i(2) - i(1); o(3) = i(1) - i(3);
#define TO_WEIGHTS(o, i) { \
  const ACC_T s_ = (i(0) + i(2)) * (ACC_T)0.5, t_ = i(1) * (ACC_T)0.5; \
  o(0) = i(0); o(1) = s_ + t_; o(2) = s_ - t_; o(3) = i(2); }
#define TO_OUTPUT(o, i) { \
  const P_CV s_ = i(1) + i(2), t_ = i(1) - i(2); \
  o(0) = i(0) + s_; o(1) = t_ - i(3); }
#define TO_GRADIENT(o, i) o(0) = i(0); o(1) = i(0) + i(1); o(2) = i(0) - i(1); o(3) = -i(1);
#define TO_FILTER(o, i) { \
  const ACC_T s_ = (i(1) + i(2)) * (ACC_T)0.5; \
  o(0) = i(0) + s_; o(1) = (i(1) - i(2)) * (ACC_T)0.5; o(2) = s_ + i(3); }
#else
#define EDGE 6
#define TO_INPUT(o, i) { \
  const P_CV s_ = i(4) - 4 * i(2), t_ = i(3) - 4 * i(1); \
  const P_CV u_ = i(4) - i(2), v_ = 2 * (i(3) - i(1)); \
  o(0) = 4 * i(0) - 5 * i(2) + i(4); o(1) = s_ + t_; o(2) = s_ - t_; \
  o(3) = u_ + v_; o(4) = u_ - v_; o(5) = 4 * i(1) - 5 * i(3) + i(5); }
#define TO_WEIGHTS(o, i) { \
  const ACC_T s_ = (i(0) + i(2)) / (ACC_T)-6, t_ = i(1) / (ACC_T)-6; \
  const ACC_T u_ = i(0) / (ACC_T)24 + i(2) / (ACC_T)6, v_ = i(1) / (ACC_T)12; \
  o(0) = i(0) / (ACC_T)4; o(1) = s_ + t_; o(2) = s_ - t_; \
  o(3) = u_ + v_; o(4) = u_ - v_; o(5) = i(2); }
#define TO_OUTPUT(o, i) { \
  const P_CV s_ = i(1) + i(2), t_ = i(1) - i(2), u_ = i(3) + i(4), v_ = i(3) - i(4); \
  o(0) = i(0) + s_ + u_; o(1) = t_ + 2 * v_; o(2) = s_ + 4 * u_; o(3) = t_ + 8 * v_ + i(5); }
#define TO_GRADIENT(o, i) { \
  const P_CV s_ = i(0) + i(2), t_ = i(1) + i(3); \
  const P_CV u_ = i(0) + 4 * i(2), v_ = 2 * i(1) + 8 * i(3); \
  o(0) = i(0); o(1) = s_ + t_; o(2) = s_ - t_; o(3) = u_ + v_; o(4) = u_ - v_; o(5) = i(3); }
#define TO_FILTER(o, i) { \
  const ACC_T s_ = (i(1) + i(2)) / (ACC_T)-6, t_ = (i(1) - i(2)) / (ACC_T)-6; \
  const ACC_T u_ = i(3) + i(4), v_ = i(3) - i(4); \
  o(0) = i(0) / (ACC_T)4 + s_ + u_ / (ACC_T)24; o(1) = t_ + v_ / (ACC_T)12; \
  o(2) = s_ + u_ / (ACC_T)6 + i(5); }
#endif

// Item -> tile `p` of this launch, its image and first output, and channel `c` of `channels`.
#if CHANNELS_FIRST
#define SPLIT_ITEM(channels) const int p = item % TILES, c = item / TILES * LANES;
#else
#define SPLIT_ITEM(channels) \
  const int blocks_ = (channels) / LANES, p = item / blocks_, c = (item - p * blocks_) * LANES;
#endif
#define PLACE(channels) \
  SPLIT_ITEM(channels) \
  int rest_ = p + FIRST; \
  const int col = rest_ % TILES_W * TILE; \
  rest_ /= TILES_W; \
  const int row = rest_ % TILES_H * TILE; \
  const int image = rest_ / TILES_H;
#define ITEMS \
  const int from_ = (int)get_global_id(0) * PER, to_ = min(COUNT, from_ + PER); \
  for (int item = from_; item < to_; ++item)

// Element of channel c in tile p of the matrices [EDGE * EDGE][TILES][channels] (channels last) or
// [EDGE * EDGE][channels][TILES].
#if CHANNELS_FIRST
#define ELEMENT(place, channels) (((INDEX_T)(place) * (channels) + c) * TILES + p)
#else
#define ELEMENT(place, channels) (((INDEX_T)(place) * TILES + p) * (channels) + c)
#endif

#if WEIGHTS
// u[place][channel][filter] from w[tap][channel][filter].
__kernel NARROW void winograd_weights(__global const B_T* restrict w, __global ACC_T* restrict u,
                               const int COUNT) {
  const int at = (int)get_global_id(0);
  if (at >= COUNT) return;
  ACC_T g[3][3], h[EDGE][3], o[EDGE];
#pragma unroll
  for (int k = 0; k < 9; ++k) g[k / 3][k % 3] = B_LOAD(w, (INDEX_T)(FLIP ? 8 - k : k) * COUNT + at);
#pragma unroll
  for (int k = 0; k < 3; ++k) {
#define IN_(r) g[r][k]
#define OUT_(r) h[r][k]
    TO_WEIGHTS(OUT_, IN_)
#undef IN_
#undef OUT_
  }
#pragma unroll
  for (int r = 0; r < EDGE; ++r) {
#define IN_(k) h[r][k]
#define OUT_(k) o[k]
    TO_WEIGHTS(OUT_, IN_)
#undef IN_
#undef OUT_
#pragma unroll
    for (int k = 0; k < EDGE; ++k) u[(INDEX_T)(r * EDGE + k) * COUNT + at] = o[k];
  }
}
#endif

#if INPUT
__kernel NARROW GROUP void winograd_input(__global const A_T* restrict x, __global ACC_T* restrict v PARAMS) {
  ITEMS {
    PLACE(CIN)
    const int top = row - PAD1, left = col - PAD2;
    const INDEX_T at = image * aN + ((INDEX_T)top * IN2 + left) * aP + c * aC;
    P_CV d[EDGE][EDGE], o[EDGE];
    INDEX_T to = ELEMENT(0, CIN);
    const bool whole = top >= 0 && left >= 0 && top + EDGE <= IN1 && left + EDGE <= IN2;
    if (whole) {
#pragma unroll
      for (int k = 0; k < EDGE * EDGE; ++k)
        d[k / EDGE][k % EDGE] = A_LOADV(x, at + ((INDEX_T)(k / EDGE) * IN2 + k % EDGE) * aP);
    } else {
#pragma unroll
      for (int k = 0; k < EDGE * EDGE; ++k) {
        const bool in_ = (uint)(top + k / EDGE) < (uint)IN1 && (uint)(left + k % EDGE) < (uint)IN2;
        d[k / EDGE][k % EDGE] = (P_CV)(0);
        if (in_) d[k / EDGE][k % EDGE] = A_LOADV(x, at + ((INDEX_T)(k / EDGE) * IN2 + k % EDGE) * aP);
      }
    }
#pragma unroll
    for (int k = 0; k < EDGE; ++k) {
#define IN_(r) d[r][k]
#define OUT_(r) o[r]
      TO_INPUT(OUT_, IN_)
#undef IN_
#undef OUT_
#pragma unroll
      for (int r = 0; r < EDGE; ++r) d[r][k] = o[r];
    }
#pragma unroll
    for (int r = 0; r < EDGE; ++r) {
#define IN_(k) d[r][k]
#define OUT_(k) o[k]
      TO_INPUT(OUT_, IN_)
#undef IN_
#undef OUT_
#pragma unroll
      for (int k = 0; k < EDGE; ++k, to += (INDEX_T)CIN * TILES) SAVE(o[k], v, to);
    }
  }
}
#endif

#if OUTPUT
__kernel NARROW GROUP void winograd_output(__global const ACC_T* restrict m PARAMS EPILOGUE_PARAMS) {
  ITEMS {
    PLACE(COUT)
    P_CV d[TILE][EDGE], o[TILE];
#pragma unroll
    for (int k = 0; k < EDGE; ++k) {
#define IN_(r) P_LOADV(m, ELEMENT((r) * EDGE + k, COUT))
      P_CV in_[EDGE];
#pragma unroll
      for (int r = 0; r < EDGE; ++r) in_[r] = IN_(r);
#undef IN_
#define IN_(r) in_[r]
#define OUT_(r) d[r][k]
      TO_OUTPUT(OUT_, IN_)
#undef IN_
#undef OUT_
    }
    const int rows = min(TILE, OUT1 - row), cols = min(TILE, OUT2 - col);
#pragma unroll
    for (int r = 0; r < TILE; ++r) {
#define IN_(k) d[r][k]
#define OUT_(k) o[k]
      TO_OUTPUT(OUT_, IN_)
#undef IN_
#undef OUT_
      if (r < rows) {
        for (int k = 0; k < cols; ++k) {
          ACC_T lanes_[LANES];
          P_SPILL(o[k], lanes_);
          const INDEX_T to = image * oN + ((INDEX_T)(row + r) * OUT2 + col + k) * oP + c * oC;
          for (int lane = 0; lane < LANES; ++lane) EPILOGUE(lanes_[lane], to + lane * oC)
        }
      }
    }
  }
}
#endif

#if GRADIENT
// Tiles of dy, zeros beyond its edges.
__kernel NARROW GROUP void winograd_gradient(__global const B_T* restrict dy,
                                      __global ACC_T* restrict v PARAMS) {
  ITEMS {
    PLACE(COUT)
    const INDEX_T at = image * bN + ((INDEX_T)row * OUT2 + col) * bP + c * bC;
    P_CV d[EDGE][TILE], o[EDGE];
#pragma unroll
    for (int k = 0; k < TILE; ++k) {
      P_CV in_[TILE];
#pragma unroll
      for (int r = 0; r < TILE; ++r) {
        in_[r] = (P_CV)(0);
        if (row + r < OUT1 && col + k < OUT2)
          in_[r] = B_LOADV(dy, at + ((INDEX_T)r * OUT2 + k) * bP);
      }
#define IN_(r) in_[r]
#define OUT_(r) d[r][k]
      TO_GRADIENT(OUT_, IN_)
#undef IN_
#undef OUT_
    }
#pragma unroll
    for (int r = 0; r < EDGE; ++r) {
#define IN_(k) d[r][k]
#define OUT_(k) o[k]
      TO_GRADIENT(OUT_, IN_)
#undef IN_
#undef OUT_
#pragma unroll
      for (int k = 0; k < EDGE; ++k) SAVE(o[k], v, ELEMENT(r * EDGE + k, COUT));
    }
  }
}
#endif

#if FILTER
// dw[tap][channel][filter] from sums[part][place][channel][filter]; parts are STEP elements apart.
__kernel NARROW void winograd_filter(__global const ACC_T* restrict sums, const int COUNT, const int PARTS,
                              const INDEX_T STEP EPILOGUE_PARAMS) {
  const int at = (int)get_global_id(0);
  if (at >= COUNT) return;
  ACC_T d[EDGE][EDGE], h[3][EDGE], o[3];
#pragma unroll
  for (int k = 0; k < EDGE * EDGE; ++k) d[k / EDGE][k % EDGE] = sums[(INDEX_T)k * COUNT + at];
  for (int part = 1; part < PARTS; ++part) {
#pragma unroll
    for (int k = 0; k < EDGE * EDGE; ++k)
      d[k / EDGE][k % EDGE] += sums[part * STEP + (INDEX_T)k * COUNT + at];
  }
#pragma unroll
  for (int k = 0; k < EDGE; ++k) {
#define IN_(r) d[r][k]
#define OUT_(r) h[r][k]
    TO_FILTER(OUT_, IN_)
#undef IN_
#undef OUT_
  }
#pragma unroll
  for (int r = 0; r < 3; ++r) {
#define IN_(k) h[r][k]
#define OUT_(k) o[k]
    TO_FILTER(OUT_, IN_)
#undef IN_
#undef OUT_
#pragma unroll
    for (int k = 0; k < 3; ++k) EPILOGUE(o[k], (INDEX_T)(3 * r + k) * COUNT + at)
  }
}
#endif
