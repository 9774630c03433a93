"""What attention's kernels for Hopper take from the hardware beside what `emulator` has."""

DEVICE = r"""
// A producer writes into the stage that it waited for, before its own arrival.
inline void emu_put(emu_t* emu, uint at, uint word) {
  const uint part = emu_part(at);
  EMU_MUST(part < STAGES && at % 4 == 0, OPERAND)
  const uint n = part < STAGES ? emu->waits[(EMU_KINDS - 1) * STAGES + part] : 0;
  EMU_MUST(n > 0 && n <= emu->generations, CLOSED)
  if (n > 0 && n <= emu->generations)
    *(__global uint*)(emu->ring + (n - 1) * (ulong)EMU_GENERATION + (at - EMU_BASE)) = word;
}
// wgmma_attention.cl: two shapes, whose results are waited for one after the other.
#define WGMMA_A_S(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_S, EMU_B_MN_S) emu->owed[0] = emu->committed + 1; }
#define WGMMA_A_O(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_O, EMU_B_MN_O) emu->owed[1] = emu->committed + 1; }
// wgmma_attention_gradient.cl: two more sums, and products whose rows are in either place.
#define WGMMA_A_P(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_P, EMU_B_MN_P) emu->owed[1] = emu->committed + 1; }
#define WGMMA_A_K(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_K, EMU_B_MN_K) emu->owed[2] = emu->committed + 1; }
#define WGMMA_A_V(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_V, EMU_B_MN_V) emu->owed[3] = emu->committed + 1; }
#define WGMMA_S(d, a, b, add) { emu_wgmma(emu, d, a, b, add); emu->owed[0] = emu->committed + 1; }
#define WGMMA_P(d, a, b, add) { emu_wgmma(emu, d, a, b, add); emu->owed[1] = emu->committed + 1; }
#if EMU_BESIDE  // where local memory is that consumers write, of one generation
#define WGMMA_K(d, a, b, add) { \
    emu_wgmma_of(emu, d, a, b, add, EMU_N_K, 0, EMU_B_MN_K); emu->owed[2] = emu->committed + 1; }
#define WGMMA_Q(d, a, b, add) { \
    emu_wgmma_of(emu, d, a, b, add, EMU_N_Q, EMU_A_MN_Q, EMU_B_MN_Q); \
    emu->owed[4] = emu->committed + 1; }
#endif
#define WGMMA_KEEP_Q(d) EMU_MUST(emu->owed[4] <= emu->done, PENDING)
inline __global uint* emu_beside(emu_t* emu, uint at) {
  const uint part = emu_part(at);
  EMU_MUST(part >= STAGES && at - EMU_BASE < EMU_RING && at % 4 == 0, OPERAND)
  EMU_MUST(part < EMU_PLACES && emu->last[part] <= emu->done, HELD)
  return (__global uint*)(emu->ring + (at - EMU_BASE));
}
#define PUT_SLOPE(at, word) *emu_beside(emu, at) = (word)
#define SEE_SLOPES
#define KEEP4(at, v) \
    for (int i_ = 0; i_ < 4; ++i_) *emu_beside(emu, (at) + 4 * i_) = as_uint((v)[i_])
#define KEPT4(v, at) \
    for (int i_ = 0; i_ < 4; ++i_) (v)[i_] = as_float(*emu_beside(emu, (at) + 4 * i_))
#define ONLY_HERE(x)
#define PUT_LOGITS(there, to, low, high) \
    if (there) { \
      ((__global float*)(to))[0] = low; \
      ((__global float*)(to))[1] = high; }
#define WGMMA_KEEP_P(d) EMU_MUST(emu->owed[1] <= emu->done, PENDING)
#define WGMMA_KEEP_K(d) EMU_MUST(emu->owed[2] <= emu->done, PENDING)
#define WGMMA_KEEP_V(d) EMU_MUST(emu->owed[3] <= emu->done, PENDING)
#if HAS_DROPOUT  // draws exchange what barriers of all carry here
#endif
#define GET_FLOATS(a, b, at) { \
    a = as_float(*(__global uint*)emu_at(emu, at)); \
    b = as_float(*(__global uint*)emu_at(emu, (at) + 4)); }
#define PUT_WORD(at, x) emu_put(emu, at, x)
#define WGMMA_KEEP_S(d) EMU_MUST(emu->owed[0] <= emu->done, PENDING)
#define WGMMA_KEEP_O(d) EMU_MUST(emu->owed[1] <= emu->done, PENDING)
#define SHUFFLE_XOR(to, from, bits) SHUFFLE(to, from, bits)
#define PASS_TURN
#define TAKE_TURN
#define BEGIN_TURNS
#define EXP2(to, x) to = exp2(x)
#define PACK(to, first, second) { \
    ushort both_[2]; \
    X_STORE((__private X_T*)both_, 0, first); \
    X_STORE((__private X_T*)both_, 1, second); \
    to = both_[0] | (uint)both_[1] << 16; }
"""
