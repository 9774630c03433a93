"""Threefry2x32-20 in NumPy, written from the paper."""

import numpy as np

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry(key, counter):
    """Both words, over uint32 arrays."""
    with np.errstate(over="ignore"):
        k = [np.uint32(key[0]), np.uint32(key[1])]
        k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
        x, y = (np.asarray(c, np.uint32) for c in counter)
        x, y = x + k[0], y + k[1]
        for group in range(5):
            for r in ROTATIONS[group % 2]:
                x = x + y
                y = (y << np.uint32(r)) | (y >> np.uint32(32 - r))
                y = y ^ x
            x = x + k[(group + 1) % 3]
            y = y + k[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def kept(key, shape, limit, first=0):
    """Which elements of an array dropout keeps: those whose word at their place, counted from
    `first`, is below `limit`; each 2**32 places after the first have a key of their own."""
    places = first + np.arange(np.prod(shape), dtype=np.uint64)
    high, low = (places >> np.uint64(32)).astype(np.uint32), places.astype(np.uint32)
    words = np.empty(places.size, np.uint32)
    for block in np.unique(high):
        here = high == block
        own = key if block == 0 else threefry(key, ([block], [0xFFFFFFFE]))
        own = [int(np.ravel(w)[0]) for w in own]
        words[here] = threefry(own, (low[here], 0 * low[here]))[0]
    return (words < limit).reshape(shape)
