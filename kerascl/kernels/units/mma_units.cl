// NVIDIA's exchange between lanes of a warp: from the lane whose number differs in these bits.
#define SHUFFLE_XOR(to, from, bits) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, " #bits ", 31, -1;" : "=f"(to) : "f"(from))
