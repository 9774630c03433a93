"""Products whose left operand is in registers, beside what `emulator` has."""

DEVICE = r"""
// wgmma_register_blocked.cl and wgmma_transposed.cl: the left operand comes from registers.
#define REGISTERS(change, n)
#define PREFETCH(p)
#define WARP_SYNC
#define ROUND_TF32(w) w = EMU_ROUNDED(w)
#if EMU_SIZE == 4
// Registers 0 to 3 of lane t: rows g and g + 8 at k = t, then at k = t + 4.
#define EMU_LEFT(d, x0, x1, b, add, columns, b_mn) { \
    float rows_[2][EMU_K]; \
    emu_hold(emu, x0); \
    emu_hold(emu, x1); \
    for (int i_ = 0; i_ < 4; ++i_) \
      emu->lanes[4 * emu->tid + i_] = EMU_CUT(i_ < 2 ? (x0)[i_] : (x1)[i_ - 2]); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (int i_ = 0; i_ < 2 * EMU_K; ++i_) \
      rows_[i_ & 1][i_ >> 1] = as_float( \
          emu->lanes[(emu->tid / 4 * 4 + i_ / 2 % 4) * 4 + i_ / 8 * 2 + i_ % 2]); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    emu_product(emu, d, rows_[0], rows_[1], b, add, columns, b_mn); }
#else
inline float emu_half(uint pair, int high) {
  const ushort v = pair >> 16 * high;
#if EMU_BF16
  return as_float((uint)v << 16);
#else
  return vload_half(0, (const half*)&v);
#endif
}
// Registers 0 to 3 of lane t: rows g and g + 8 at k = 2 t and 2 t + 1, then both at k + 8.
#define EMU_LEFT(d, x0, x1, b, add, columns, b_mn) { \
    float rows_[2][EMU_K]; \
    emu_hold(emu, x0); \
    emu_hold(emu, x1); \
    for (int i_ = 0; i_ < 4; ++i_) \
      emu->lanes[4 * emu->tid + i_] = i_ < 2 ? (x0)[i_] : (x1)[i_ - 2]; \
    barrier(CLK_LOCAL_MEM_FENCE); \
    for (int k_ = 0; k_ < EMU_K; ++k_) \
      for (int h_ = 0; h_ < 2; ++h_) \
        rows_[h_][k_] = emu_half( \
            emu->lanes[(emu->tid / 4 * 4 + k_ % 8 / 2) * 4 + k_ / 8 * 2 + h_], k_ & 1); \
    barrier(CLK_LOCAL_MEM_FENCE); \
    emu_product(emu, d, rows_[0], rows_[1], b, add, columns, b_mn); }
#endif
#define WGMMA_A(d, x0, x1, b, add) EMU_LEFT(d, x0, x1, b, add, EMU_N, EMU_B_MN)
"""
