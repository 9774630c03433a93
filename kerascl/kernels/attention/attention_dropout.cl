// Dropout's numbers, drawn where they are needed.  SHARE is what a row's results are multiplied by: exact
// division takes many registers, so there is one for a row.
#if HAS_DROPOUT
#define KEY_PARAM , __global const uint* restrict pKey
#define KEY_SIZES , const int keyOff, const int keyStep, const ulong firstFour, \
    const uint keepLimit, const float keepFactor
#define DRAW_KEY const uint key0 = pKey[keyOff], key1 = pKey[keyOff + keyStep];
#if FAR
#define COUNTER ulong
#define DRAW(counter) kcl_philox(key0, key1, counter)
#else
#define COUNTER uint
#define DRAW(counter) kcl_philox_block(key0, counter, key1)
#endif
// Which four of a row of weights that of key s is of; see kerascl/philox.py.
#define FOUR_OF(t, s) ((COUNTER)firstFour + \
    ((COUNTER)(b * HEADS + h) * (uint)T + (uint)(t)) * ((uint)(S + 3) / 4u) + (uint)(s) / 4u)
#if COARSE
#define WORD(t, s) kcl_quarter(DRAW(FOUR_OF(t, s)), s)
#else
#define WORD(t, s) DRAW(4u * FOUR_OF(t, s) + (uint)(s) % 4u).x
#endif
#define KEPT(x, word) ((word) < keepLimit ? (x) : 0.0f)
#define SHARE(sum) (keepFactor / (sum))
#else
#define KEY_PARAM
#define KEY_SIZES
#define DRAW_KEY
#define KEPT(x, word) (x)
#define SHARE(sum) (1.0f / (sum))
#endif
