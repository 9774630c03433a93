"""Philox' text, in each of its forms, against NumPy; and how independent what it gives is.

Keys of statistics are fixed, so each test has one outcome; bounds are five standard deviations.
"""

import itertools
import math

import numpy as np
import pytest

from kerascl import dtypes, philox
from kerascl.kernels.contract.plan import Launch, Plan, Ref
from tests.kernels.harness import poisoned, run_outputs
from tests.philox import blocks, kept
from tests.philox import philox as numpy_philox

# "kat_vectors" of the authors' Random123 library, of seven rounds: counter, key, answer.
KNOWN = [
    ((0, 0), 0, (0x257A3673, 0xCD26BE2A)),
    ((0xFFFFFFFF,) * 2, 0xFFFFFFFF, (0xAB302C4D, 0x3DC9D239)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xBEDBBE6B, 0xE4C770B3)),
]
FORMS = {"wide": "#define KCL_WIDE_PRODUCTS\n", "apart": ""}
ONE = """
__kernel void blocks(__global const ulong* numbers, __global const uint* keys, __global uint* out) {
  const size_t i = get_global_id(0);
  vstore2(kcl_philox(keys[2 * i], keys[2 * i + 1], numbers[i]), i, out);
}
"""
MANY = """
__kernel void blocks(__global const ulong* numbers, __global const uint* keys, __global uint* out) {
  const size_t i = get_global_id(0) * LANES;
  WORDS first, second;
  for (int j = 0; j < LANES; ++j) ((uint*)&first)[j] = (uint)numbers[i + j];
  first = kcl_philox_lanes(keys[2 * i], keys[2 * i + 1], first, &second);
  for (int j = 0; j < LANES; ++j) {
    out[2 * (i + j)] = ((uint*)&first)[j];
    out[2 * (i + j) + 1] = ((uint*)&second)[j];
  }
}
"""


def words(source, keys, numbers, dev, lanes=1):
    """Both words of each block, uint32 (blocks, 2)."""
    args = (Ref("numbers"), Ref("keys"), Ref("out"))
    launch = Launch(source, "blocks", args, (len(numbers) // lanes,), None)
    inputs = {"numbers": numbers.astype(np.uint64), "keys": keys.astype(np.uint32)}
    outs = {"out": poisoned((len(numbers), 2), dtypes.uint32)}
    return run_outputs(Plan([launch], []), inputs, outs, dev)["out"]


def source_of(form):
    return "#undef KCL_WIDE_PRODUCTS\n" + FORMS[form] + philox.SOURCE + ONE


@pytest.mark.parametrize("form", FORMS)
def test_known_answers(form, dev):
    counters, keys, answers = (np.array(x) for x in zip(*KNOWN, strict=True))
    for key, counter, answer in zip(keys, counters, answers, strict=True):
        assert [int(w) for w in numpy_philox(key, counter)] == answer.tolist()
    found = words(source_of(form), np.stack([keys, counters[:, 1]], 1), counters[:, 0], dev)
    np.testing.assert_array_equal(found, answers)


@pytest.mark.parametrize("form", FORMS)
def test_blocks(form, dev, rng):
    """Of random keys, with numbers within and beyond 32 bits."""
    keys = rng.integers(2**32, size=(200, 2))
    numbers = rng.integers(2**64, size=200, dtype=np.uint64)
    numbers >>= rng.integers(64, size=200, dtype=np.uint64)
    numbers[:4] = 0, 2**32 - 1, 2**32, 2**64 - 1
    found = words(source_of(form), keys, numbers, dev)
    expected = [[int(w[0]) for w in blocks(*x)] for x in zip(keys, numbers[:, None], strict=True)]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_lanes(lanes, dev, rng):
    key, numbers = rng.integers(2**32, size=2), rng.integers(2**32, size=48)
    source = f"#define LANES {lanes}\n#define WORDS uint{lanes}\n" + philox.vectors(lanes) + MANY
    found = words(source, np.tile(key, (48, 1)), numbers, dev, lanes)
    np.testing.assert_array_equal(found, np.stack(blocks(key, numbers), 1))


@pytest.mark.parametrize("shape", [(4,), (7,), (3, 5, 7), (2, 3, 8)], ids=str)
@pytest.mark.parametrize("odd", [0, 1], ids=["coarse", "fine"])
def test_what_trials_compare_with(odd, shape, rng):
    key, limit = rng.integers(2**32, size=2), (int(rng.integers(1, 2**16)) << 16) + odd
    np.testing.assert_array_equal(philox.kept(key, shape, limit), kept(key, shape, limit))


COUNT = 2**20  # blocks, of four numbers each


def words_of(key, dev):
    """The words of a key's first blocks."""
    return words(source_of("wide"), np.tile(key, (COUNT, 1)), np.arange(COUNT), dev)


def numbers_of(key, dev):
    """The numbers of 16 bits of a key's first blocks, in order."""
    found = words_of(key, dev)
    return np.stack([found & 0xFFFF, found >> 16], -1).reshape(-1)


KEYS = [(0, 0), (42, 3), (0x9E3779B9, 0xD256D193)]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_numbers_of_a_key(key, dev):
    """Each of 2**16 values comes as often as it should, and masks repeat nothing of neighbours."""
    numbers = numbers_of(np.array(key), dev)
    counts = np.bincount(numbers, minlength=2**16)
    expected = len(numbers) / 2**16
    freedom = 2**16 - 1
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)
    for limit in (0x8000, 0xE666):
        p = limit / 2**16
        mask = ((numbers < limit) - p) / math.sqrt(p * (1 - p))
        assert abs(mask.mean()) < 5 / math.sqrt(len(mask))
        for distance in (1, 2, 3, 4, 5, 64, 196, 197, 768, 1024, 65536):
            together = (mask[distance:] * mask[:-distance]).mean()
            assert abs(together) < 5 / math.sqrt(len(mask) - distance), distance


# What seeds and counters of neighbouring layers and steps differ in, and single bits.
NEAR = [
    (1, 0), (0, 1), (0, 2), (1, 1), (2**31, 0), (0, 2**31), (2**31, 2**31), (0x9E3779B9, 0),
    (0xFFFFFFFF, 0xFFFFFFFF),
]  # fmt: skip


@pytest.mark.parametrize("base", [(0, 0), (12345, 7)], ids=str)
def test_words_of_related_keys(base, dev):
    """Each of a block's 64 bits differs from that under another key half of the time."""
    first = words_of(np.array(base), dev)
    for difference in [*NEAR, (2, 2)]:
        other = words_of(np.array(base) ^ np.array(difference), dev)
        differ = np.unpackbits((first ^ other).view(np.uint8).reshape(COUNT, 8), axis=1)
        counts = differ.sum(0, dtype=int)
        assert abs(counts - COUNT / 2).max() < 5 * math.sqrt(COUNT / 4), difference


def test_masks_of_related_keys(dev):
    """Keys that differ by little, each with each."""
    base = np.array([12345, 7])
    masks = []
    for difference in [(0, 0), *NEAR]:
        numbers = numbers_of(base ^ np.array(difference), dev)
        masks.append(np.where(numbers < 0xE666, 1 - 0.9, -0.9).astype(np.float32))
    spread = math.sqrt(0.09 / len(masks[0]))
    for (i, one), (j, other) in itertools.combinations(enumerate(masks), 2):
        centred = (one - one.mean(dtype=float)) * (other - other.mean(dtype=float))
        assert abs(centred.mean(dtype=float)) < 5 * spread * math.sqrt(0.09), (i, j)
