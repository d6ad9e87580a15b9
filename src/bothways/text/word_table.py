"""A hash table from words to token ids, whose lookups are array operations: a million words at once.

W words that are looked up · N their token ids.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bothways.ragged import Indices

Hashes = NDArray[np.uint64]

MOST = 2**17
"""Words that are kept."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(0)


class WordTable:
    """The token ids of words by the 64-bit hash of each. One thread at a time may look up or add words."""

    def __init__(self, most: int = 0) -> None:
        """`most`: the number of words for which there is room, or more."""
        self.most = max(most, MOST)
        # At most a quarter of the places are taken, so that few words share one.
        self.bits = (4 * self.most - 1).bit_length()
        self.hashes = np.zeros(2**self.bits, np.uint64)
        """Of the word in each place; words that share a place stand in the next free ones."""
        self.entries = np.zeros(2**self.bits, np.int64)
        """The number of the word in each place."""
        self.begins = np.zeros(self.most + 1, np.int64)
        """Where the ids of each word begin in the pool, and where the last one's end."""
        self.pool = np.zeros(4 * self.most, np.int32)
        """The ids of all words, in the order in which they were added."""
        self.size = 0

    def find(self, hashes: Hashes) -> Indices:
        """(W,) the number of each word; -1 if it is not known."""
        found = np.full(len(hashes), -1, np.int64)
        left, places = np.arange(len(hashes)), self._places(hashes)
        while len(left):
            there = self.hashes[places]
            is_here = there == hashes[left]
            found[left[is_here]] = self.entries[places[is_here]]
            goes_on = ~is_here & (there != _EMPTY)
            left, places = left[goes_on], (places[goes_on] + 1) % len(self.hashes)
        return found

    def _places(self, hashes: Hashes) -> Indices:
        return ((hashes * _SPREAD) >> np.uint64(64 - self.bits)).astype(np.int64)

    def add(self, hashes: Hashes, ids: Sequence[Sequence[int]]) -> bool:
        """Add different words that are not known, and their token ids. False if there is no room for them."""
        if self.size + len(ids) > self.most:
            return False
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        ends = self.begins[self.size] + np.cumsum(lengths)
        if len(ids) and ends[-1] > len(self.pool):
            self.pool = np.concatenate([self.pool, np.zeros(ends[-1], np.int32)])
        self.pool[self.begins[self.size] : self.begins[self.size] + lengths.sum()] = list(chain.from_iterable(ids))
        self.begins[self.size + 1 : self.size + 1 + len(ids)] = ends
        left, places = np.arange(len(ids)), self._places(hashes)
        while len(left):
            is_free = self.hashes[places] == _EMPTY
            taken, first = np.unique(places[is_free], return_index=True)  # of several words, one gets the place
            winners = left[is_free][first]
            self.hashes[taken], self.entries[taken] = hashes[winners], self.size + winners
            goes_on = ~np.isin(left, winners)
            left, places = left[goes_on], (places[goes_on] + 1) % len(self.hashes)
        self.size += len(ids)
        return True
