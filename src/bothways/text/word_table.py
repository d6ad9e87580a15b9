"""A hash table from words to their tokens, whose lookups are array operations: a million words at once.

W words that are looked up · N tokens of all words.
"""

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bothways.ragged import Indices

Hashes = NDArray[np.uint64]
Pieces = Sequence[tuple[int, tuple[int, int]]]
"""The id of each token of a word, and where it begins and ends in the word."""

MOST = 2**17
"""Words that are kept."""
_TOKENS = 8
"""Tokens that are kept, for each word that is."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_EMPTY = np.uint64(0)


class WordTable:
    """The tokens of words by the 64-bit hash of each. One thread at a time may look up or add words."""

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
        """Where the tokens of each word begin in the two pools, and where the last one's end."""
        self.ids = np.zeros(2 * self.most, np.int32)
        """The ids of the tokens of all words, in the order in which they were added."""
        self.places = np.zeros((2 * self.most, 2), np.int32)
        """Where each of these tokens begins and ends in its word."""
        self.size = 0

    @property
    def is_full(self) -> bool:
        """Whether it has more than is kept."""
        return self.size > MOST or self.begins[self.size] > _TOKENS * MOST

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

    def has_room(self, words: int) -> bool:
        """Whether so many more words can be added."""
        return self.size + words <= self.most and not self.is_full

    def add(self, hashes: Hashes, pieces: Sequence[Pieces]) -> None:
        """Add different words that are not known, and their tokens."""
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        begin, total = int(self.begins[self.size]), int(lengths.sum())
        while begin + total > len(self.ids):
            self.ids = np.concatenate([self.ids, np.zeros_like(self.ids)])
            self.places = np.concatenate([self.places, np.zeros_like(self.places)])
        tokens = list(chain.from_iterable(pieces))
        self.ids[begin : begin + total] = [id for id, _ in tokens]
        self.places[begin : begin + total] = np.array([place for _, place in tokens], np.int32).reshape(-1, 2)
        self.begins[self.size + 1 : self.size + 1 + len(pieces)] = begin + np.cumsum(lengths)
        left, places = np.arange(len(pieces)), self._places(hashes)
        while len(left):
            is_free = self.hashes[places] == _EMPTY
            taken, first = np.unique(places[is_free], return_index=True)  # of several words, one gets the place
            winners = left[is_free][first]
            self.hashes[taken], self.entries[taken] = hashes[winners], self.size + winners
            goes_on = ~np.isin(left, winners)
            left, places = left[goes_on], (places[goes_on] + 1) % len(self.hashes)
        self.size += len(pieces)
