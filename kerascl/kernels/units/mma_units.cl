// NVIDIA's exchange between lanes of a warp: from the lane whose number differs in these bits.
#define SHUFFLE_XOR(to, from, bits) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, " #bits ", 31, -1;" : "=f"(to) : "f"(from))
// Whether a warp, which has no rows of its own or meets none of a block, works on it; its lanes agree.
#define WORKS(x) (x)
