// Where results of products on NVIDIA's matrix units lie: of 16 x 8, lane 4 g + t4 holds the rows g,
// g + 8 (slowest) by the columns 2 t4, 2 t4 + 1, so four neighbours share a row.
#define ROW(i, e) (16 * (i) + 8 * ((e) >> 1))  // of result e of a fragment, from row0
#define COLUMN(j, e) (8 * (j) + 2 * t4 + ((e) & 1))
#define QUAD(x, other, both) { \
    float other; \
    SHUFFLE_XOR(other, x, 1); \
    x = both; \
    SHUFFLE_XOR(other, x, 2); \
    x = both; }
