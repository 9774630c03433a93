// One spatial axis of a convolution seen as a gather: output position p of a class and tap j meet
// input position p * in_step + j * in_tap + in_first and kernel tap j * w_step + w_first, and the
// result lands at p * out_step + out_first.
//
// A forward convolution has one class.  A data gradient with stride s has s classes (residues of
// position + pad): inside one class every tap either meets all positions or none, so no work is
// wasted on taps that fall between the strides.
typedef struct {
  int size, taps, in_step, in_tap, in_first, out_step, out_first, w_step, w_first;
} Axis;

Axis conv_axis(int class_, int out, int kernel_, int stride, int dilation, int pad) {
  Axis x;
#if DATA_GRAD
  int first = (class_ - pad) % stride;
  first += first < 0 ? stride : 0;
  int step = 1, tap = 0;
  while (step * dilation % stride != 0) ++step;
  while (tap < step && tap * dilation % stride != class_) ++tap;
  const bool some = tap < step && tap < kernel_;
  x.size = first < out ? (out - first + stride - 1) / stride : 0;
  x.taps = some ? (kernel_ - tap + step - 1) / step : 0;
  x.in_step = 1;
  x.in_tap = -(step * dilation / stride);
  x.in_first = some ? (first + pad - tap * dilation) / stride : 0;
  x.out_step = stride;
  x.out_first = first;
  x.w_step = step;
  x.w_first = tap;
#else
  x.size = out;
  x.taps = kernel_;
  x.in_step = stride;
  x.in_tap = dilation;
  x.in_first = -pad;
  x.out_step = 1;
  x.out_first = 0;
  x.w_step = 1;
  x.w_first = 0;
#endif
  return x;
}
