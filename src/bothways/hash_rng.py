"""Randomness as a function: the same key always gives the same number, in any order and on any machine.

There is no generator and no state. A number is named by its key, for example (seed, epoch, place, token), so a
training run can be resumed, split over machines or asked for its millionth sample without drawing the others.
Keys are arrays of uint64 and everything is done for a whole array at once.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 6  # of the Feistel network; four already look random


def mix(*parts: ArrayLike) -> Keys:
    """One key out of several whole numbers, or arrays of them that broadcast.

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
    """A number from 0 up to 1 for each key."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(keys: Keys, limit: ArrayLike) -> NDArray[np.int64]:
    """A whole number from 0 up to `limit` for each key."""
    numbers: NDArray[np.int64] = (uniform(keys) * np.asarray(limit)).astype(np.int64)
    return numbers


def permute(places: ArrayLike, size: int, key: ArrayLike) -> NDArray[np.int64]:
    """Where a shuffle of `size` things puts each of `places`, without making the shuffle.

    A Feistel network is a permutation of all numbers of some bits, whatever its round function; what falls
    beyond `size` is sent through again until it falls inside.

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
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mix(np.asarray(key), turn, right) & low)
        found[~inside] = (left << np.uint64(half)) | right
        inside = found < size
    return found.astype(np.int64)


def _scramble(key: Keys) -> Keys:
    """SplitMix64's finaliser: every bit of the input moves every bit of the output."""
    key = (key ^ (key >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key = (key ^ (key >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    scrambled: Keys = key ^ (key >> np.uint64(31))
    return scrambled
