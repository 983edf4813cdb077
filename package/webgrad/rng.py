"""The counter-based generator, in NumPy: Threefry-2x32-20 (Salmon et al., SC 2011).

The same function as `wg_threefry` of the WGSL prelude: a word of random bits is a pure function of a key
and a counter, so masks are predictable and independent of how a program is scheduled.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

U32 = NDArray[np.uint32]

PARITY = 0x1BD11BDA  # the key schedule's third word is the exclusive or of this and the key's words
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))  # four rounds each, alternating
ROUNDS = 20


def threefry2x32(
    key0: ArrayLike, key1: ArrayLike, counter0: ArrayLike, counter1: ArrayLike
) -> tuple[U32, U32]:
    """Two words of random bits for each (key, counter); the four arrays broadcast.

    Returns ``(x0, x1)``, uint32 arrays of the common shape.
    """
    words = [np.asarray(a, np.uint32) for a in (key0, key1, counter0, counter1)]
    k0, k1, x0, x1 = np.broadcast_arrays(*words)
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(PARITY))
    with np.errstate(over="ignore"):
        x0, x1 = x0 + k0, x1 + k1
        for group in range(ROUNDS // 4):
            for turn in ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = x0 ^ ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn)))
            x0 = x0 + keys[(group + 1) % 3]
            x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.asarray(x0, np.uint32), np.asarray(x1, np.uint32)


def uniform(bits: ArrayLike) -> NDArray[np.float32]:
    """Floats in [0, 1) from the top 24 bits: every value is exact, and none is 1."""
    top = np.asarray(bits, np.uint32) >> np.uint32(8)
    return np.asarray(top.astype(np.float32) * np.float32(2.0**-24), np.float32)
