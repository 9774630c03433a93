"""The memory plan never gives two live values the same bytes, and reuses dead ones."""

import random

import pytest

from kerascl.compiler.memory import plan


@pytest.mark.parametrize("seed", range(100))
def test_live_values_never_overlap(seed):
    rng = random.Random(seed)
    lives = []
    for _ in range(rng.randrange(1, 60)):
        first = rng.randrange(0, 40)
        lives.append((rng.randrange(0, 5000), first, first + rng.randrange(0, 12)))
    align = rng.choice([1, 64, 128])
    offsets, total = plan(lives, align)
    assert all(offset % align == 0 for offset in offsets)
    assert max(o + n for o, (n, _, _) in zip(offsets, lives, strict=True)) <= total
    for i, (n, first, last) in enumerate(lives):
        for j in range(i):
            m, begin, end = lives[j]
            if first <= end and begin <= last and n and m:
                apart = offsets[i] + n <= offsets[j] or offsets[j] + m <= offsets[i]
                assert apart, (i, j)


def test_a_chain_needs_two_places():
    offsets, total = plan([(1000, k, k + 1) for k in range(50)], 8)
    assert total == 2000
    assert set(offsets) == {0, 1000}


def test_lower_bound_is_reached_for_disjoint_lives():
    _, total = plan([(512, 3 * k, 3 * k + 2) for k in range(20)], 64)
    assert total == 512
