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
// Before the use of a stage by who may not have waited for all uses before; 0 and 1 are the parities
// of the first waits for loads and for what is handed back.
#define BAR_WAIT_USE(bar, use, first) BAR_WAIT(bar, ((use) & 1) ^ (first))
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

// The operands of a product: k (or rows) and rows (or k), then batches if there are any.
#if BATCHED
#define TMA_MATRIX(to, map, bar, x, y, u, v, w) TMA5(to, map, bar, x, y, u, v, w)
#else
#define TMA_MATRIX(to, map, bar, x, y, u, v, w) TMA2(to, map, bar, x, y)
#endif
#define DECODE_BATCH \
    const int i2 = plane % BATCH2, i1 = plane / BATCH2 % BATCH1, i0 = plane / BATCH2 / BATCH1; \
    const int a2 = i2 * A_BATCH2, a1 = i1 * A_BATCH1, a0 = i0 * A_BATCH0; \
    const int b2 = i2 * B_BATCH2, b1 = i1 * B_BATCH1, b0 = i0 * B_BATCH0;

// Launches of SEVERAL products of equal shapes (kernel.py): the tiles of one behind those of the other,
// each with two tensor maps and buffers of its own.  Tiles are taken in ascending order, so that a
// buffer that was replaced is not asked for again.
#ifndef SEVERAL
#define SEVERAL 1
#define SEVERAL_PARAMS
#define WRITE_SEVERAL_MAPS
#define TAKE_BUFFERS
#endif
#define ALL_TILES (SEVERAL * TILES)
#define NTH_PRODUCT(tile) const int nth_ = SEVERAL > 1 ? (tile) / TILES : 0;

// Place (pm, pn) of tile `at` of a plane of TILES_M rows and TILES_N columns of them, in bands of
// eight rows so that the tiles under way share operands in the cache.
#define DECODE_BAND(at, pm, pn) { \
    const int band = (at) / (8 * TILES_N), first = band * 8, high = min(TILES_M - first, 8); \
    const int in = (at) - band * (8 * TILES_N); \
    pn = in / high; \
    pm = first + in - pn * high; }

// The tile that a work-group takes after another, of `groups` work-groups: in every second turn they
// come in the reverse order, so that who had a long tile gets a short one.
#define NEXT_IN_TURN(tile) \
    (((tile) / groups + 1) * groups + \
     ((tile) / groups & 1 ? (int)get_group_id(0) : groups - 1 - (int)get_group_id(0)))

// A hint: to bring a line of memory into the second cache.
#define PREFETCH(p) asm volatile("prefetch.global.L2 [%0];" :: "l"((ulong)(p)))

// What is one for all lanes of a warp, and known to be so.
#define SAME_IN_WARP(name, value) \
  int name; \
  asm volatile("shfl.sync.idx.b32 %0, %1, 0, 31, -1;" : "=r"(name) : "r"(value))
// Where the ring lies in shared memory, of which there are so many bytes after the rewrite.
#define RING_AT(base, nbytes) \
  uint base; \
  asm("{ .reg .u64 t; cvta.to.shared.u64 t, %1; cvt.u32.u64 %0, t; }" : "=r"(base) : "l"(ring)); \
  asm volatile("//#shared %0" :: "n"(nbytes))
#define BARRIERS_READY \
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); \
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define GROUP_SYNC asm volatile("bar.sync 0;" ::: "memory")
#define WARP_SYNC asm volatile("bar.warp.sync -1;" ::: "memory")
// Behind the ring: a stage has come; so many consumers have handed it back.
#define RING_BARRIERS(consumers) \
  const uint full = base + RING, empty = full + 8 * STAGES; \
  if (tid == 0) { \
    UNROLL for (int s = 0; s < STAGES; ++s) { \
      BAR_INIT(full + 8 * s, 1); \
      BAR_INIT(empty + 8 * s, consumers); \
    } \
    BARRIERS_READY; \
  } \
  GROUP_SYNC;

// More or fewer registers for each lane of a warpgroup.
#define REGISTERS(change, n) \
  asm volatile("//@ setmaxnreg." #change ".sync.aligned.u32 " #n ";" ::: "memory")
#ifdef MANY_REGISTERS  // more than there are for each lane: a producer warpgroup gives its own
#define PRODUCERS 128
#define TAKE_REGISTERS REGISTERS(inc, 232)
#define GIVE_REGISTERS REGISTERS(dec, 40)
#else
#define PRODUCERS 32
#define TAKE_REGISTERS
#define GIVE_REGISTERS
#endif

// wgmma's descriptors: 128-byte swizzle; 1024 bytes between groups of eight rows; panels.
#define DESCRIPTOR(mn) ((1UL << 62) | (64UL << 32) | ((mn) ? (ulong)(BK * 8) << 16 : 1UL << 16))
// K-major, so many times 16 bytes between groups of eight rows.
#define DESCRIPTOR_OF(step) ((1UL << 62) | ((ulong)(step) << 32) | (1UL << 16))
#define K_STEP(mn) ((mn) ? DEPTH * 8 : 2)
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

// Two lanes exchange pairs p and q: the one without the bit ends with both p, the other with both q.
#define EXCHANGE_FOUR(to, p0, p1, q0, q1, bit, distance) { \
    float give0, give1, got0, got1; \
    SELECT(give0, p0, q0, bit); \
    SELECT(give1, p1, q1, bit); \
    SHUFFLE(got0, give0, distance); \
    SHUFFLE(got1, give1, distance); \
    SELECT(to[0], got0, p0, bit); \
    SELECT(to[1], got1, p1, bit); \
    SELECT(to[2], q0, got0, bit); \
    SELECT(to[3], q1, got1, bit); }
// Four lanes, told apart by two bits, exchange the pairs of d: each ends with one pair of each lane.
#define EXCHANGE(p, q, bit, distance) { \
    float give_, got_; \
    SELECT(give_, p, q, bit); \
    SHUFFLE(got_, give_, distance); \
    SELECT(p, got_, p, bit); \
    SELECT(q, q, got_, bit); }
#define EXCHANGE_EIGHT(d, low, near, high, far) \
    EXCHANGE(d[0], d[2], low, near) EXCHANGE(d[1], d[3], low, near) \
    EXCHANGE(d[4], d[6], low, near) EXCHANGE(d[5], d[7], low, near) \
    EXCHANGE(d[0], d[4], high, far) EXCHANGE(d[1], d[5], high, far) \
    EXCHANGE(d[2], d[6], high, far) EXCHANGE(d[3], d[7], high, far)

// Shared memory by address: the ring's, and beside it.
#define LDS2(to0, to1, at) \
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to0), "=r"(to1) : "r"(at) : "memory")
#define LDS4(to, at) \
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" \
               : "=r"((to)[0]), "=r"((to)[1]), "=r"((to)[2]), "=r"((to)[3]) : "r"(at) : "memory")
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
