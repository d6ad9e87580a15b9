"""The scores of all spans of a context that may be the answer to a question.

V windows of all contexts · N tokens of all windows · K tokens of the longest answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.engine.reads import Read
from bothways.engine.sequences import Indices, ragged

Table = NDArray[np.float64]
_FAR = 600.0
"""Numbers so far below the highest have exponentials near the smallest that there are."""


@dataclass(frozen=True)
class SpanScores:
    """The scores of all spans of a context."""

    read: Read
    windows: list["SpanWindow"]
    logits: list[Table]
    """For each window (tokens, 2): the start and the end logit of the tokens of its sequence."""
    longest: int
    """K."""
    may_be_none: bool
    """Whether the model was trained on questions without an answer: only then is none a possible answer."""
    null: float
    """The score of no answer."""
    top: float
    """The score of the best span; -inf without any."""
    total: float
    """The logarithm of the sum over all spans of the exponentials of their scores."""
    first: int
    """The first token of the best span, in the whole text."""
    more: int
    """The number of its other tokens."""

    def best(self, count: int = 1) -> list[tuple[int, int, float]]:
        """The best spans as (start, end, probability), in characters; none overlaps a better one."""
        if self.top == -np.inf:
            return []
        if count == 1 and (only := self._in_characters(self.first, self.more, self.top)):
            return [only]
        left = [window.table(logits, self.longest) for window, logits in zip(self.windows, self.logits, strict=True)]
        found: list[tuple[int, int, float]] = []
        while True:
            top = max(range(len(left)), key=lambda w: left[w].max(initial=-np.inf))
            score = float(left[top].max(initial=-np.inf))
            if score == -np.inf:
                return found
            token, more = divmod(int(left[top].argmax()), self.longest)
            first = self.windows[top].own + token
            if span := self._in_characters(first, more, score):
                found.append(span)
            if len(found) == count:
                return found
            for table, window in zip(left, self.windows, strict=True):  # drop the spans that overlap it
                firsts = window.own + np.arange(len(table))[:, None]
                lasts = firsts + np.arange(self.longest)
                table[(firsts <= first + more) & (lasts >= first)] = -np.inf

    def _in_characters(self, first: int, more: int, score: float) -> tuple[int, int, float] | None:
        """Start, end and probability of a span; None if it has no characters."""
        offsets = self.read.offsets
        begin, end = int(offsets[first, 0]), int(offsets[first + more, 1])
        return (begin, end, float(np.exp(score - self.everything))) if begin < end else None

    @cached_property
    def everything(self) -> float:
        """The logarithm of the sum over all possible answers."""
        return float(np.logaddexp(self.total, self.null)) if self.has_none else self.total

    @property
    def has_none(self) -> bool:
        """Whether no answer is a possible answer; without any span it is the only one."""
        return self.may_be_none or self.margin == np.inf

    @property
    def none(self) -> float:
        """The probability of no answer."""
        return float(np.exp(self.null - self.everything)) if self.has_none else 0.0

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


def span_scores(
    reads: Sequence[Read], logits: Table, lengths: Indices, longest: int, may_be_none: bool
) -> list[SpanScores]:
    """The scores of each context, from the logits (N, 2) of all windows, whose `lengths` are given.

    Spans are not listed: for a start, the best end and the sum over all ends are found among K neighbouring tokens.
    """
    windows = [window for read in reads for window in read_windows(read)]
    counts = np.array([len(read.given) or 1 for read in reads], np.int64)
    owners, starts = np.repeat(np.arange(len(reads)), counts), np.cumsum(lengths) - lengths
    own, first, stop, end = np.array([(w.own, w.first, w.stop, w.end) for w in windows], np.int64).reshape(-1, 4).T
    can_begin, can_end = np.maximum(stop - first, 0), np.maximum(end - first, 0)
    # The end logits of each window, and after them K - 1 that are never the end.
    room = can_end + longest - 1
    places, last = np.cumsum(room) - room, logits[ragged(starts + first, can_end), 1]
    ends = np.full(int(room.sum()), -np.inf)
    ends[ragged(places, can_end)] = last
    # Of each token with which a span can begin: its context, its place among the ends, its start logit, and the score
    # of the best span that begins there.
    context, at = np.repeat(owners, can_begin), ragged(places, can_begin)
    begin = logits[ragged(starts + first, can_begin), 0]
    best = begin + among_next(ends, longest, np.maximum)[at]
    top, highest_end = _highest(best, context, len(reads)), _highest(last, np.repeat(owners, can_end), len(reads))
    null = -_highest(-logits[starts].sum(1), owners, len(reads))
    # Numbers are made small by the highest of each context before exponentials are summed.
    with np.errstate(divide="ignore", invalid="ignore"):  # contexts without tokens
        shifted = np.exp(ends - np.repeat(highest_end[owners], room))
        highest = _highest(begin, context, len(reads))
        sums = np.exp(begin - highest[context]) * among_next(shifted, longest, np.add)[at]
        total = np.log(np.bincount(context, sums, len(reads))) + highest + highest_end
    winner = np.zeros(len(reads), np.int64)
    winners = np.flatnonzero(best == top[context])[::-1]
    winner[context[winners]] = winners  # of equal ones the first: it is written last
    has_any = top > -np.inf
    firsts, more = np.zeros(len(reads), np.int64), np.zeros(len(reads), np.int64)
    firsts[has_any] = ragged(own, can_begin)[winner[has_any]]
    more[has_any] = ends[at[winner[has_any]][:, None] + np.arange(longest)].argmax(1)
    rows = [logits[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
    stops = np.cumsum(counts)
    parts = [slice(stop - count, stop) for stop, count in zip(stops.tolist(), counts.tolist(), strict=True)]
    for i in np.flatnonzero(top < highest + highest_end - _FAR).tolist():  # where the sums may be 0
        tables = [window.table(own, longest) for window, own in zip(windows[parts[i]], rows[parts[i]], strict=True)]
        total[i] = np.logaddexp.reduce(np.concatenate(tables), axis=None)
    numbers = zip(*(column.tolist() for column in (null, top, total, firsts, more)), strict=True)
    return [
        SpanScores(read, windows[part], rows[part], longest, may_be_none, *scores)
        for read, part, scores in zip(reads, parts, numbers, strict=True)
    ]


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
