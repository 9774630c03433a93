"""What wgmma_attention.cl takes from the hardware beside what `emulator` has."""

DEVICE = r"""
// wgmma_attention.cl: two shapes, whose results are waited for one after the other.
#define WGMMA_A_S(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_S, EMU_B_MN_S) emu->owed[0] = emu->committed + 1; }
#define WGMMA_A_O(d, x0, x1, b, add) { \
    EMU_LEFT(d, x0, x1, b, add, EMU_N_O, EMU_B_MN_O) emu->owed[1] = emu->committed + 1; }
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
