// What attention_mma.cl has of NVIDIA's instructions beside those of nv_sm80.cl and mma_units.cl.
#define EXP2(to, x) asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(to) : "f"(x))
// Two 16-bit floats in a word, the first in its low bits.
#define PACK(to, first, second) \
  asm("cvt.rn." ELEMENT_NAME "x2.f32 %0, %1, %2;" : "=r"(to) : "f"(second), "f"(first))
#define GET_FLOATS(a, b, at) \
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(at) : "memory")
#define GET_WORD(to, at) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to) : "r"(at) : "memory")
#define PUT_WORD(at, x) asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(x) : "memory")
// So many bytes of local memory; LARGE: beyond 48 KiB, which the rewrite "sm_90a" makes of these.
#if LARGE
#define LOCAL_MEMORY(nbytes) \
  __local uint memory[1024] __attribute__((aligned(1024))); \
  asm volatile("//#shared %0" ::"n"(nbytes)); \
  asm volatile("//#entry .minnctapersm %0" ::"n"(RESIDENT));
#else
#define LOCAL_MEMORY(nbytes) __local uint memory[(nbytes) / 4] __attribute__((aligned(128)));
#endif
