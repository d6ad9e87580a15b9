"""Counter-based random numbers: the same key always gives the same number, in any order and on any machine.

There is no generator and no state. A number is a hash of its key, for example (seed, epoch, position, token), so a
training run can be resumed, split over machines or asked for its millionth sample without drawing the others.
Keys are arrays of uint64, and all functions are vectorised.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6  # of the Feistel network; four already look random


def mix(*parts: ArrayLike) -> Keys:
    """One key from several integers, or from arrays of them that broadcast.

    >>> from bothways.hash_rng import mix
    >>> bool(mix(0, 1) == mix(0, 1)), bool(mix(0, 1) == mix(1, 0))
    (True, False)
    """
    key = np.zeros(1, np.uint64)
    for part in parts:
        number = np.atleast_1d(np.asarray(part))
        number = number if number.dtype == np.uint64 else number.astype(np.int64).view(np.uint64)
        key = _scramble(key * np.uint64(3) + number + _GOLDEN)
    return key if any(np.ndim(part) for part in parts) else key.reshape(())


def uniform(keys: Keys) -> NDArray[np.float64]:
    """A uniform float in [0, 1) for each key."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(keys: Keys, limit: ArrayLike) -> NDArray[np.int64]:
    """A uniform integer in [0, limit) for each key."""
    numbers: NDArray[np.int64] = (uniform(keys) * np.asarray(limit)).astype(np.int64)
    return numbers


def permute(places: ArrayLike, size: int, key: ArrayLike) -> NDArray[np.int64]:
    """The new positions of `places` in a random permutation of `size` items, without computing all of it.

    A Feistel network permutes all integers of a number of bits, whatever its round function; a result of `size` or
    more goes through it again until it is below (cycle walking).

    >>> from bothways.hash_rng import permute
    >>> sorted(permute(range(5), 5, key=7).tolist())
    [0, 1, 2, 3, 4]
    """
    half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
    low = np.uint64((1 << half) - 1)
    found = np.atleast_1d(np.asarray(places, np.int64)).astype(np.uint64)
    inside = np.zeros(found.shape, bool)
    while not inside.all():
        left, right = found[~inside] >> np.uint64(half), found[~inside] & low
        for step in range(_ROUNDS):
            left, right = right, left ^ (mix(np.asarray(key), step, right) & low)
        found[~inside] = (left << np.uint64(half)) | right
        inside = found < size
    return found.astype(np.int64)


def _scramble(key: Keys) -> Keys:
    """SplitMix64's finaliser: every bit of the input affects every bit of the output."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: Keys = key ^ (key >> np.uint64(31))
    return scrambled
