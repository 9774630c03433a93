// NVIDIA's matrix units on single fragments (compute capability 8.0 and more): d += a b, 16 x 8 x 8
// in TF32.  Lane 4 g + t holds of a the rows g, g + 8 (fastest) by columns t, t + 4; of b the rows t,
// t + 4 of column g; of d the columns 2 t, 2 t + 1 (fastest) of rows g, g + 8.
#define MATRIX_UNITS  // memory that an emulation needs
#define MMA_TF32(d, a, b0, b1) \
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 " \
               "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};" \
               : "+f"((d)[0]), "+f"((d)[1]), "+f"((d)[2]), "+f"((d)[3]) \
               : "r"(as_uint((a)[0])), "r"(as_uint((a)[1])), "r"(as_uint((a)[2])), \
                 "r"(as_uint((a)[3])), "r"(as_uint(b0)), "r"(as_uint(b1)))
// From the lane whose number differs in these bits.
#define SHUFFLE_XOR(to, from, bits) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, " #bits ", 31, -1;" : "=f"(to) : "f"(from))
// The units cut the lower 13 bits: half a unit of the last bit kept is added in the mean, as in
// mma_tile.cl.  What comes from 16 bits is exact.
#if X_BYTES == 4
#define ROUNDED(x) ((x) * 1.00035222f)
#endif
#define ROUNDED_SUM(x) ((x) * 1.00035222f)
