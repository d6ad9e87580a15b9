"""Ranges of different lengths in one array."""

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


def ragged(starts: Indices, counts: Indices) -> Indices:
    """All numbers of several ranges, given by their starts and lengths, one range after the other.

    >>> import numpy as np
    >>> from bothways.ragged import ragged
    >>> ragged(np.array([10, 3]), np.array([2, 3])).tolist()
    [10, 11, 3, 4, 5]
    """
    ends = np.cumsum(counts)
    found: Indices = np.repeat(starts - ends + counts, counts) + np.arange(ends[-1] if len(ends) else 0)
    return found
