"""The memory plan never gives two live values the same block, and reuses dead ones."""

import random

import pytest

from kerascl.compiler.program.memory import ALIGNMENT, arena, plan


def random_lives(seed) -> list[tuple[int, int, int]]:
    rng = random.Random(seed)
    lives = []
    for _ in range(rng.randrange(1, 60)):
        first = rng.randrange(0, 40)
        lives.append((rng.randrange(0, 5000), first, first + rng.randrange(0, 12)))
    return lives


@pytest.mark.parametrize("seed", range(100))
def test_live_values_never_share(seed):
    lives = random_lives(seed)
    places, sizes = plan(lives)
    for i, (nbytes, first, last) in enumerate(lives):
        assert nbytes <= sizes[places[i]]
        for j in range(i):
            _, begin, end = lives[j]
            if first <= end and begin <= last:
                assert places[i] != places[j]
    assert sum(sizes) <= sum(max(n, 1) for n, _, _ in lives)


def test_a_chain_needs_two_blocks():
    places, sizes = plan([(1000, k, k + 1) for k in range(50)])
    assert sizes == [1000, 1000]
    assert len(set(places)) == 2


def test_lower_bound_is_reached_for_disjoint_lives():
    _, sizes = plan([(512 + k, 3 * k, 3 * k + 2) for k in range(20)])
    assert sizes == [531]


def test_small_values_leave_large_blocks_to_large_ones():
    places, sizes = plan([(4000, 0, 1), (100, 0, 1), (4000, 2, 3), (100, 2, 3)])
    assert sizes == [4000, 100]
    assert places == [0, 1, 0, 1]


@pytest.mark.parametrize("seed", range(100))
def test_live_values_never_overlap_in_an_arena(seed):
    lives = random_lives(seed)
    offsets, total = arena(lives)
    for i, (nbytes, first, last) in enumerate(lives):
        assert offsets[i] % ALIGNMENT == 0
        assert 0 <= offsets[i] <= offsets[i] + nbytes <= total
        for j in range(i):
            other, begin, end = lives[j]
            if first <= end and begin <= last:
                assert offsets[i] + nbytes <= offsets[j] or offsets[j] + other <= offsets[i]


def test_an_arena_is_no_larger_than_what_lives_at_once():
    # 3000 and 1000 bytes die before 2000 and 2000 are born: whole blocks would take 5000
    lives = [(3072, 0, 1), (1024, 0, 1), (2048, 2, 3), (2048, 2, 3)]
    assert arena(lives)[1] == 4096
    assert sum(plan(lives)[1]) == 5120
    assert arena([])[1] > 0
