// BYTES(to, x, y, which): four of the eight bytes of two words, the lowest first; x has those from 0 on, y
// those from 4 on, and each digit of `which`, a number in hexadecimal, is one of them.  (NVIDIA's OpenCL
// compiler takes no immediate operand there, so the number is part of the text.)
#ifdef KCL_PTX
#define BYTES(to, x, y, which) asm("prmt.b32 %0, %1, %2, " #which ";" : "=r"(to) : "r"(x), "r"(y));
#else
#define BYTE_OF(x, y, which, k) \
  ((uint)((((ulong)(y) << 32 | (x)) >> 8 * ((which) >> 4 * k & 7)) & 255) << 8 * k)
#define BYTES(to, x, y, which) \
  to = BYTE_OF(x, y, which, 0) | BYTE_OF(x, y, which, 1) | BYTE_OF(x, y, which, 2) | BYTE_OF(x, y, which, 3);
#endif
