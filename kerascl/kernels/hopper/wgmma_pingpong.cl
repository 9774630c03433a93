// How PINGPONG teams of wgmma.cl's consumers take a work-group's tiles in turn: one computes its
// epilogue and stores while the next multiplies.  All tiles have CHUNKS stages, which the producer
// fills in the order of the tiles.
//
// A team that has waited for all stages of its tile, and begun their products, passes the turn at the
// products to the next.  That also makes the next team's waits safe: parity alone tells a barrier's
// phases apart, so of a stage that is waited for all loads before must have come.  Nor can turns be
// mistaken for each other: between two that a team passes it has taken one, which the other passed
// after the first.  Nobody passes the very first: its wait is for the phase before a barrier's first,
// whose parity is 1.

#define TURNS (base + RING + 16 * STAGES)  // a barrier of each team
#define TURN_BYTES (8 * PINGPONG)
#define INIT_TURNS \
  if (tid == 0) \
    UNROLL for (int t = 0; t < PINGPONG; ++t) BAR_INIT(TURNS + 8 * t, 4 * TILE_CONSUMERS);
#define SKIP_TILES(count) { \
    const int ahead_ = stage + (count) * CHUNKS; \
    phase ^= (uint)(ahead_ / STAGES) & 1; \
    stage = ahead_ % STAGES; }
#define BEGIN_TURNS \
  const int team = consumer / TILE_CONSUMERS; \
  uint turn = team == 0; \
  SKIP_TILES(team)
#define TAKE_TURN { \
    BAR_WAIT(TURNS + 8 * team, turn) \
    turn ^= 1; }
#define PASS_TURN if (lane == 0) BAR_ARRIVE(TURNS + 8 * ((team + 1) % PINGPONG));
#define END_TURN SKIP_TILES(PINGPONG - 1)
