"""The scores of all spans of a context that may be the answer to a question.

V windows of all contexts · N tokens of all windows · K tokens of the longest answer.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bothways.engine.reads import Read, Reads
from bothways.engine.sequences import Indices, ragged

Table = NDArray[np.float64]
_FAR = 600.0
"""Numbers so far below the highest have exponentials near the smallest that there are."""


@dataclass(frozen=True)
class SpanScores:
    """The scores of all spans of a context."""

    read: Read
    logits: Table
    """(N, 2): the start and the end logit of all tokens of many contexts."""
    start: int
    """The first of this context."""
    longest: int
    """K."""
    has_none: bool
    """Whether no answer is a possible answer; without any span it is the only one."""
    null: float
    """The score of no answer."""
    top: float
    """The score of the best span; -inf without any."""
    everything: float
    """The logarithm of the sum over all possible answers of the exponentials of their scores."""
    begin: int
    """The first character of the best span."""
    end: int
    """The one after its last character."""

    def best(self, count: int = 1) -> list[tuple[int, int, float]]:
        """The best spans as (start, end, probability), in characters; none overlaps a better one."""
        return [(begin, end, math.exp(score - self.everything)) for begin, end, score in self.ranked(count)]

    def ranked(self, count: int = 1) -> list[tuple[int, int, float]]:
        """The same with their scores: the start logit plus the end logit."""
        if self.top == -np.inf:
            return []
        if count == 1 and self.begin < self.end:
            return [(self.begin, self.end, self.top)]
        windows = read_windows(self.read)
        left = [window.table(rows, self.longest) for window, rows in zip(windows, self._rows(), strict=True)]
        found: list[tuple[int, int, float]] = []
        while True:
            top = max(range(len(left)), key=lambda w: left[w].max(initial=-np.inf))
            score = float(left[top].max(initial=-np.inf))
            if score == -np.inf:
                return found
            token, more = divmod(int(left[top].argmax()), self.longest)
            first = windows[top].own + token
            begin, end = int(self.read.offsets[first, 0]), int(self.read.offsets[first + more, 1])
            if begin < end:
                found.append((begin, end, score))
            if len(found) == count:
                return found
            for table, window in zip(left, windows, strict=True):  # drop the spans that overlap it
                firsts = window.own + np.arange(len(table))[:, None]
                lasts = firsts + np.arange(self.longest)
                table[(firsts <= first + more) & (lasts >= first)] = -np.inf

    def _rows(self) -> list[Table]:
        """The logits of each window."""
        ends = self.start + np.cumsum([len(view) for view in self.read.views])
        return [self.logits[first:last] for first, last in pairwise([self.start, *ends.tolist()])]

    @property
    def none(self) -> float:
        """The probability of no answer; 0 without any span, as nothing was read that could tell."""
        return math.exp(self.null - self.everything) if self.has_none and self.top > -np.inf else 0.0

    @property
    def margin(self) -> float:
        """The score of no answer minus that of the best span."""
        return self.null - self.top


@dataclass(frozen=True)
class SpanWindow:
    """The tokens of one sequence of a context: counted in the whole text, and in the sequence."""

    own: int
    """The first token of the whole text that the window predicts."""
    first: int
    """The same in the sequence."""
    stop: int
    """In the sequence: after the last token that the window predicts."""
    end: int
    """In the sequence: after the last token that it reads."""

    def table(self, logits: Table, longest: int) -> Table:
        """(predicted tokens, K): the score of the span that begins at a token and has this many more."""
        begins = np.arange(self.first, self.stop)
        lasts = begins[:, None] + np.arange(longest)
        scores = logits[begins, 0][:, None] + logits[np.minimum(lasts, len(logits) - 1), 1]
        found: Table = np.where(lasts < self.end, scores, -np.inf)
        return found


def read_windows(read: Read) -> list[SpanWindow]:
    """The windows of a context; one if it is not long."""
    if not read.given:
        inside = read.inside
        return [SpanWindow(inside.start, inside.start, inside.stop, inside.stop)]
    return [
        SpanWindow(w.own, w.own - view.shift, w.own_end - view.shift, w.end - view.shift)
        for view in read.given
        for w in (view.window,)
    ]


def span_scores(reads: Reads, numbers: Indices, logits: Table, longest: int, may_be_none: bool) -> list[SpanScores]:
    """The scores of some contexts, from the logits (N, 2) of all their windows.

    Spans are not listed: for a start, the best end and the sum over all ends are found among K neighbouring tokens.
    """
    found = _Windows.of(reads, numbers)
    spans = _Spans.of(found, logits, longest)
    null = -_highest(-logits[found.starts].sum(1), found.owners, len(numbers))
    has_none = may_be_none | (spans.top == -np.inf)
    everything = np.where(has_none, np.logaddexp(spans.total, null), spans.total)
    begin, end = _characters(reads, numbers, spans)
    starts = found.starts[np.searchsorted(found.owners, np.arange(len(numbers)))]
    columns = (starts, has_none, null, spans.top, everything, begin, end)
    return [
        SpanScores(reads[number], logits, start, longest, *rest)
        for number, (start, *rest) in zip(
            numbers.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True
        )
    ]


@dataclass(frozen=True)
class _Windows:
    """The windows of contexts, (V,) each. For the names see `SpanWindow`."""

    owners: Indices
    """The context of each."""
    starts: Indices
    """Its first token among all logits."""
    own: Indices
    first: Indices
    stop: Indices
    end: Indices

    @classmethod
    def of(cls, reads: Reads, numbers: Indices) -> "_Windows":
        counts = reads.counts[numbers]
        lengths = reads.sequences.lengths[ragged((np.cumsum(reads.counts) - reads.counts)[numbers], counts)]
        own, stop = np.repeat(reads.inside[numbers], counts, axis=0).T
        first, end, places = own.copy(), stop.copy(), np.cumsum(counts) - counts
        for i in np.flatnonzero(counts > 1).tolist():
            for place, w in enumerate(read_windows(reads[int(numbers[i])]), int(places[i])):
                own[place], first[place], stop[place], end[place] = w.own, w.first, w.stop, w.end
        owners = np.repeat(np.arange(len(numbers)), counts)
        return cls(owners, np.cumsum(lengths) - lengths, own, first, stop, end)


@dataclass(frozen=True)
class _Spans:
    """The best span of each context, and the sum over all."""

    top: Table
    total: Table
    first: Indices
    """The first token of the best span, in the whole text."""
    more: Indices
    """The number of its other tokens."""

    @classmethod
    def of(cls, found: _Windows, logits: Table, longest: int) -> "_Spans":
        size = int(found.owners.max(initial=-1)) + 1
        first = found.starts + found.first
        can_begin, can_end = np.maximum(found.stop - found.first, 0), np.maximum(found.end - found.first, 0)
        # The end logits of each window, and after them K - 1 that are never the end.
        room = can_end + longest - 1
        places, last = np.cumsum(room) - room, logits[ragged(first, can_end), 1]
        ends = np.full(int(room.sum()), -np.inf)
        ends[ragged(places, can_end)] = last
        # Of each token with which a span can begin: its context, its place among the ends, its start logit, and the
        # score of the best span that begins there.
        context, at = np.repeat(found.owners, can_begin), ragged(places, can_begin)
        begin = logits[ragged(first, can_begin), 0]
        best = begin + among_next(ends, longest, np.maximum)[at]
        top, highest_end = _highest(best, context, size), _highest(last, np.repeat(found.owners, can_end), size)
        highest = _highest(begin, context, size)
        # Numbers are made small by the highest of each context before exponentials are summed.
        with np.errstate(divide="ignore", invalid="ignore"):  # contexts without tokens
            shifted = np.exp(ends - np.repeat(highest_end[found.owners], room))
            sums = np.exp(begin - highest[context]) * among_next(shifted, longest, np.add)[at]
            total = np.log(np.bincount(context, sums, size)) + highest + highest_end
        for i in np.flatnonzero(top < highest + highest_end - _FAR).tolist():  # where the sums may be 0
            total[i] = _summed(found, logits, longest, i)
        winners, winner = np.flatnonzero(best == top[context])[::-1], np.zeros(size, np.int64)
        winner[context[winners]] = winners  # of equal ones the first: it is written last
        has_any, token, more = top > -np.inf, np.zeros(size, np.int64), np.zeros(size, np.int64)
        token[has_any] = ragged(found.own, can_begin)[winner[has_any]]
        more[has_any] = ends[at[winner[has_any]][:, None] + np.arange(longest)].argmax(1)
        return cls(top, total, token, more)


def _summed(found: _Windows, logits: Table, longest: int, context: int) -> float:
    """The logarithm of the sum over all spans of one context, without shortcuts."""
    tables = []
    for v in np.flatnonzero(found.owners == context).tolist():
        window = SpanWindow(*(int(numbers[v]) for numbers in (found.own, found.first, found.stop, found.end)))
        tables.append(window.table(logits[found.starts[v] :], longest))
    return float(np.logaddexp.reduce(np.concatenate(tables), axis=None))


def _characters(reads: Reads, numbers: Indices, spans: _Spans) -> tuple[Indices, Indices]:
    """Where the best spans begin and end in their texts."""
    offsets, starts = reads.tokens.offsets, reads.tokens.sequences.starts[numbers]
    assert offsets is not None  # questions are read with offsets
    return offsets[starts + spans.first, 0], offsets[starts + spans.first + spans.more, 1]


def among_next(values: Table, count: int, combine: np.ufunc) -> Table:
    """The sum, or the maximum, of each value and the `count` - 1 after it; without the last `count` - 1 values.

    >>> import numpy as np
    >>> among_next(np.array([1.0, 2, 3, 4, 5]), 3, np.add).tolist()
    [6.0, 9.0, 12.0]
    """
    results = len(values) - count + 1
    found: Table | None = None
    done, size, of_size = 0, 1, values  # of_size: of `size` values, which are doubled
    while True:
        if count & size:
            part = of_size[done : done + results]
            found = part if found is None else combine(found, part)
            done += size
        if 2 * size > count:
            return found if found is not None else values
        of_size = combine(of_size[:-size], of_size[size:])
        size *= 2


def _highest(values: Table, groups: Indices, count: int) -> Table:
    """The highest value of each group; -inf if it has none."""
    found = np.full(count, -np.inf)
    np.maximum.at(found, groups, values)
    return found
