// What the kernels with warpgroup matrix instructions share: barriers, TMA and its tensor maps.
// Lines that begin with //@ inside asm are switched on by the rewrite "sm_90a", see wgmma.py.

#define UNROLL _Pragma("unroll")

#define BAR_INIT(bar, n) \
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(n) : "memory")
#define BAR_EXPECT(bar, n) \
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(n) : "memory")
#define BAR_ARRIVE(bar) \
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory")
// A wait that cannot end is a fault of this file: better a dead context than a dead machine.  (The
// instruction "trap" would make ptxas wait for wgmma here.)
#define BAR_WAIT(bar, parity) { \
  uint done_ = 0; \
  for (int z_ = 0; !done_; ++z_) { \
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; " \
                 "selp.u32 %0, 1, 0, p; }" : "=r"(done_) : "r"(bar), "r"(parity) : "memory"); \
    if (z_ > 50000000) asm volatile("st.global.u32 [%0], %1;" :: "l"(0UL), "r"(0) : "memory"); \
  } }
#define TMA(dims, at, to, map, bar, ...) \
  asm volatile("cp.async.bulk.tensor." dims ".shared::cluster.global.tile" \
               ".mbarrier::complete_tx::bytes [%0], [%1, {" at "}], [%2];" \
               :: "r"(to), "l"(map), "r"(bar), __VA_ARGS__ : "memory")
#define TMA2(to, map, bar, x, y) TMA("2d", "%3, %4", to, map, bar, "r"(x), "r"(y))
#define TMA3(to, map, bar, x, y, z) \
  TMA("3d", "%3, %4, %5", to, map, bar, "r"(x), "r"(y), "r"(z))
#define TMA4(to, map, bar, x, y, z, w) \
  TMA("4d", "%3, %4, %5, %6", to, map, bar, "r"(x), "r"(y), "r"(z), "r"(w))
#define TMA5(to, map, bar, x, y, z, w, v) \
  TMA("5d", "%3, %4, %5, %6, %7", to, map, bar, "r"(x), "r"(y), "r"(z), "r"(w), "r"(v))

#define WG_FENCE asm volatile("//@ wgmma.fence.sync.aligned;" ::: "memory")
#define WG_COMMIT asm volatile("//@ wgmma.commit_group.sync.aligned;" ::: "memory")
#define WG_WAIT(n) asm volatile("//@ wgmma.wait_group.sync.aligned " #n ";" ::: "memory")

// A tensor map: the address, words 1 to 7 from the host, bytes of a box, the swizzle's span.
inline void write_map(__global ulong* to, ulong address, ulong8 w) {
  __global ulong2* t = (__global ulong2*)to;
  t[0] = (ulong2)(address, w.s0);
  t[1] = (ulong2)(w.s1, w.s2);
  t[2] = (ulong2)(w.s3, w.s4);
  t[3] = (ulong2)(w.s5, w.s6);
  t[4] = (ulong2)(w.s7, 1024UL);
  t[5] = t[6] = t[7] = (ulong2)(0UL, 0UL);
}
#define MAP_RELEASE asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory")
#define MAP_ACQUIRE(map) \
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(map) : "memory")

#define SHUFFLE(to, from, distance) \
  asm volatile("shfl.sync.bfly.b32 %0, %1, " #distance ", 31, -1;" : "=f"(to) : "f"(from))
// Not ?:, which may become a choice between addresses and take the accumulators out of registers.
#define SELECT(to, yes, no, bit) \
  asm("{ .reg .pred p; setp.ne.b32 p, %3, 0; selp.f32 %0, %1, %2, p; }" \
      : "=f"(to) : "f"(yes), "f"(no), "r"(bit))

// Shared memory by address, beside the ring.
#define SHARED_PUT(at, v) asm volatile("st.shared.f32 [%0], %1;" :: "r"(at), "f"(v) : "memory")
#define SHARED_GET(v, at) asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory")

// A barrier of the consumers alone, as the producer goes its own way.
#define TEAMS_SYNC asm volatile("bar.sync 1, %0;" :: "n"(NWG * 128) : "memory")
#define FENCE_GPU asm volatile("fence.acq_rel.gpu;" ::: "memory")
// Whether this group's consumers are the last of `count` groups to arrive at a counter, which is
// zero again then: they see what all have left in memory.  See arrival.py.
#define LAST_TEAM(last, counter, count, flag) \
  float last; \
  TEAMS_SYNC; \
  if (tid == 0) { \
    FENCE_GPU; \
    const int last_ = atomic_inc(counter) == (count) - 1; \
    if (last_) *(counter) = 0; \
    FENCE_GPU; \
    SHARED_PUT(flag, (float)last_); \
  } \
  TEAMS_SYNC; \
  SHARED_GET(last, flag);
