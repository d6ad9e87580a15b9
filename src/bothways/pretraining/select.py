"""Select the tokens to predict: single tokens, whole words, or spans of words.

Exactly max(1, round(rate · n)) of a sequence's n ordinary tokens, as in BERT; whole words and spans as far as they
fit into that number, because words are never split. All sequences of a batch are processed at once.

B sequences · N tokens · M selected tokens · U units (tokens, words or spans).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bothways.hash_rng import mix, uniform
from bothways.pretraining.sampler import RawSequences
from bothways.pretraining.shards import Numbers, ranges

Unit = Literal["token", "word", "span"]

_ORDER, _LENGTH, _START = range(200, 203)
_MISSES = 100  # consecutive rejected spans after which a sequence counts as full


@dataclass(frozen=True)
class Selection:
    """Selected units in the order of the text. Unit u is the tokens start[u] … end[u]-1."""

    start: Numbers
    end: Numbers

    @property
    def tokens(self) -> Numbers:
        """(M,) the positions of the selected tokens."""
        return ranges(self.start, self.sizes)

    @property
    def sizes(self) -> Numbers:
        return self.end - self.start

    @property
    def unit(self) -> Numbers:
        """(M,) the unit of each selected token."""
        return np.repeat(np.arange(len(self.start)), self.sizes)


def geometric(mean: float, longest: int) -> tuple[float, ...]:
    """Relative frequencies of spans of 1, 2 … `longest` words: geometric with p = 1/mean (SpanBERT)."""
    return tuple((1 - 1 / mean) ** np.arange(longest))


SPANBERT = geometric(5.0, 10)


def select(rows: RawSequences, unit: Unit, rate: float, shares: Sequence[float] = SPANBERT) -> Selection:
    """Select tokens to predict; spans have 1, 2, 3 … words with these relative frequencies."""
    candidates = ~rows.special
    sizes = np.add.reduceat(candidates.astype(np.int64), rows.cu_seqlens[:-1])
    budget = np.where(sizes > 0, np.maximum(1, np.floor(rate * sizes + 0.5)), 0).astype(np.int64)
    starts = _units(rows, candidates, words=unit != "token")
    ends = _ends(starts, candidates)
    if unit == "span":
        return _spans(rows, starts, ends, budget, shares)
    return _fill(rows, starts, ends, budget)


def _units(rows: RawSequences, candidates: NDArray[np.bool_], words: bool) -> Numbers:
    """(U,) the start of each token or word; the first token after a special token always starts a word."""
    if not words:
        return np.flatnonzero(candidates)
    after_special = np.concatenate([[True], rows.special[:-1]])
    return np.flatnonzero(candidates & (rows.word_starts | after_special))


def _ends(starts: Numbers, candidates: NDArray[np.bool_]) -> Numbers:
    """(U,) the end of each unit: at the next unit, or at the next special token."""
    bounds = np.flatnonzero(~candidates)
    next_special = np.append(bounds, len(candidates))[np.searchsorted(bounds, starts)]
    ends: Numbers = np.minimum(np.append(starts[1:], len(candidates)), next_special)
    return ends


def _fill(rows: RawSequences, starts: Numbers, ends: Numbers, budget: Numbers) -> Selection:
    """Select units in random order while they fit their sequence's budget."""
    sequence = np.searchsorted(rows.cu_seqlens, starts, side="right") - 1
    draw = mix(rows.keys[sequence], starts - rows.cu_seqlens[sequence], _ORDER)
    order = np.argsort((sequence.astype(np.uint64) << np.uint64(40)) | (draw >> np.uint64(24)))
    sequence, size = sequence[order], (ends - starts)[order]
    taken = np.zeros(len(order), bool)
    left, remaining = np.arange(len(order)), budget.copy()
    while len(left):
        # Select from the front of each sequence's list while the sum fits. The first unit that does not fit is dropped
        # for good, since the budget only shrinks: the same as trying one unit after the other.
        left = left[size[left] <= remaining[sequence[left]]]
        if not len(left):
            break
        own, total = sequence[left], np.cumsum(size[left])
        opens = np.concatenate([[True], own[1:] != own[:-1]])
        total -= np.repeat((total - size[left])[opens], np.diff(np.append(np.flatnonzero(opens), len(left))))
        fits = total <= remaining[own]
        taken[left[fits]] = True
        remaining -= np.bincount(own[fits], size[left][fits], len(remaining)).astype(np.int64)
        stopped = ~fits & np.concatenate([[False], fits[:-1]])
        left = left[~fits & ~stopped]
    chosen = np.sort(order[taken])
    return Selection(starts[chosen], ends[chosen])


def _spans(rows: RawSequences, starts: Numbers, ends: Numbers, budget: Numbers, shares: Sequence[float]) -> Selection:
    """Select spans of whole words at random places, one after the other, with a free token between spans."""
    words = np.searchsorted(starts, rows.cu_seqlens)  # sequence b has the words words[b] … words[b+1]-1
    chances = np.cumsum(shares)
    chances = chances / chances[-1]
    remaining = budget.copy()
    covered = np.zeros(len(rows.ids) + 3, np.int64)  # one free position on either side, and one for reduceat
    found: list[NDArray[np.int64]] = []
    active = np.flatnonzero((remaining > 0) & (np.diff(words) > 0))
    misses = np.zeros(len(active), np.int64)
    for attempt in itertools.count():
        if not len(active):
            break
        keys = rows.keys[active]
        length = 1 + np.searchsorted(chances, uniform(mix(keys, _LENGTH, attempt)), side="right")
        first, total = words[active], np.diff(words)[active]
        word = first + (uniform(mix(keys, _START, attempt)) * total).astype(np.int64)
        start = starts[word]
        # The last word that ends before the next special token and within the budget.
        limit = np.minimum(_next_special(rows, start), start + remaining[active])
        last = np.minimum(word + length, words[active + 1]) - 1
        last = np.minimum(last, np.searchsorted(ends, limit, side="right") - 1)
        fits = last >= word
        end = np.where(fits, ends[np.maximum(last, 0)], start)
        # The token on either side must be free: sbo reads it.
        fits &= np.add.reduceat(covered, np.stack([start, end + 2], 1).ravel())[::2] == 0
        for s, e in zip(start[fits], end[fits], strict=True):
            covered[s + 1 : e + 1] = 1
        found.append(np.stack([start[fits], end[fits]], 1))
        remaining[active[fits]] -= (end - start)[fits]
        misses = np.where(fits, 0, misses + 1)
        is_open = (remaining[active] > 0) & (misses < _MISSES)
        active, misses = active[is_open], misses[is_open]
    spans = np.concatenate(found) if found else np.empty((0, 2), np.int64)
    spans = spans[np.argsort(spans[:, 0])]
    return Selection(spans[:, 0], spans[:, 1])


def _next_special(rows: RawSequences, start: Numbers) -> Numbers:
    """The first special token after each position."""
    bounds = np.flatnonzero(rows.special)
    return bounds[np.searchsorted(bounds, start)]
