// Operands of a convolution of few channels laid out anew for wgmma.cl, see wgmma_stem.py.  With LOW
// also what rounding to tf32 (to nearest, ties to even, as TMA does) loses of each element.
#if LOW
#define PUT(out, low, at, v) { \
    const uint word_ = (v), rounded_ = (word_ + 0xfffu + ((word_ >> 13) & 1u)) & 0xffffe000u; \
    out[at] = word_; \
    low[at] = (word_ & 0x7f800000u) != 0x7f800000u \
        ? as_uint(as_float(word_) - as_float(rounded_)) : 0u; }
#else
#define PUT(out, low, at, v) out[at] = v;
#endif

#ifdef IMAGES
// Rows of WIDE pixels of PIXEL channels: PAD zero pixels, the image's, and zeros.  A work-item writes
// one pixel.
__kernel void stem_images(__global const WORD* restrict in, __global WORD* restrict out,
    __global WORD* restrict low, const INDEX_T PIXELS, const int WIDE, const int WIDTH,
    const int PAD) {
  const INDEX_T pixel = get_global_id(0);
  if (pixel >= PIXELS) return;
  const INDEX_T row = pixel / WIDE;
  const int w = (int)(pixel - row * WIDE) - PAD, inside = w >= 0 && w < WIDTH;
  WORD v[PIXEL];
  _Pragma("unroll") for (int c = 0; c < PIXEL; ++c)
    v[c] = inside && c < CHANNELS ? in[(row * WIDTH + w) * CHANNELS + c] : (WORD)0;
  _Pragma("unroll") for (int c = 0; c < PIXEL; ++c) PUT(out, low, pixel * PIXEL + c, v[c])
}
#else
// [row of taps][filter][STEP]: RUN pixels of PIXEL channels, as the images have them, and zeros.
__kernel void stem_weights(__global const WORD* restrict in, __global WORD* restrict out,
    __global WORD* restrict low, const INDEX_T TOTAL, const int STEP, const int FILTERS) {
  const INDEX_T at = get_global_id(0);
  if (at >= TOTAL) return;
  const int k = at % STEP, f = at / STEP % FILTERS, i = at / STEP / FILTERS;
  const int j = k / PIXEL, c = k % PIXEL;
  WORD v = 0;
  if (j < RUN && c < CHANNELS) v = in[((INDEX_T)(i * RUN + j) * CHANNELS + c) * FILTERS + f];
  PUT(out, low, at, v)
}
#endif
