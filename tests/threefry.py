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
