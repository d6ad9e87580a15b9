"""The scores of all spans of a context that may be the answer to a question.

V windows of all contexts · N tokens of all windows · K tokens of the longest answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bothways.engine.reader import Read
from bothways.engine.sequences import Indices, ragged

Table = NDArray[np.float64]


@dataclass(frozen=True)
class SpanScores:
    """The scores of all spans of a context."""

    read: Read
    starts: list[int]
    """For each window, the first token of the encoding that it predicts."""
    tables: list[Table]
    """For each window (tokens, K): the score of the span that begins at a token and has this many more."""
    null: float
    """The score of no answer."""
    may_be_none: bool
    """Whether the model was trained on questions without an answer: only then is none a possible answer."""
    top: float
    """The score of the best span; -inf without any."""
    rest: float
    """The logarithm of the sum over all spans of the exponentials of their scores minus `top`."""

    def best(self, count: int = 1) -> list[tuple[int, int, float]]:
        """The best spans as (start, end, probability), in characters; none overlaps a better one."""
        raw, left = self.read.encoding.raw, self.tables
        found: list[tuple[int, int, float]] = []
        while True:
            top = max(range(len(left)), key=lambda w: left[w].max(initial=-np.inf))
            score = float(left[top].max(initial=-np.inf))
            if score == -np.inf:
                return found
            token, more = divmod(int(left[top].argmax()), left[top].shape[1])
            first = self.starts[top] + token
            begin, last = raw.token_to_chars(first), raw.token_to_chars(first + more)
            if begin is not None and last is not None and last[1] > begin[0]:
                found.append((begin[0], last[1], float(np.exp(score - self.everything))))
            if len(found) == count:
                return found
            if left is self.tables:
                left = [table.copy() for table in left]
            for table, start in zip(left, self.starts, strict=True):  # drop the spans that overlap it
                firsts = start + np.arange(len(table))[:, None]
                lasts = firsts + np.arange(table.shape[1])
                table[(firsts <= first + more) & (lasts >= first)] = -np.inf

    @cached_property
    def everything(self) -> float:
        """The logarithm of the sum over all possible answers."""
        spans = self.top + self.rest if self.top > -np.inf else -np.inf
        return float(np.logaddexp(spans, self.null)) if self.has_none else float(spans)

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
    """The tokens of one sequence of a context: counted in the encoding, and in the sequence."""

    own: int
    """The first token of the encoding that the window predicts."""
    first: int
    """The same in the sequence."""
    stop: int
    """In the sequence: after the last token that the window predicts."""
    end: int
    """In the sequence: after the last token that it reads."""


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


@dataclass(frozen=True)
class SpanTables:
    """The tables of all windows, one below the other."""

    rows: Table
    """(predicted tokens of all windows, K)."""
    ends: Indices
    """(V,) the rows up to the end of each window's table."""
    null: NDArray[np.float64]
    """(V,) the score of no answer in each window."""


def span_tables(logits: Table, lengths: Indices, windows: Sequence[SpanWindow], longest: int) -> SpanTables:
    """From the logits (N, 2) of all windows, whose `lengths` are given, the scores of all their spans."""
    starts = np.cumsum(lengths) - lengths
    first, stop, end = (
        starts + np.fromiter((getattr(window, name) for window in windows), np.int64, len(windows))
        for name in ("first", "stop", "end")
    )
    counts = np.maximum(stop - first, 0)
    begins = ragged(first, counts)
    lasts = begins[:, None] + np.arange(longest)
    is_inside = lasts < np.repeat(end, counts)[:, None]
    table = logits[begins, 0][:, None] + logits[np.where(is_inside, lasts, 0), 1]
    table[~is_inside] = -np.inf
    return SpanTables(table, np.cumsum(counts), logits[starts].sum(1))


def scores_of(
    reads: Sequence[Read], windows: Sequence[SpanWindow], owners: Indices, tables: SpanTables, may_be_none: bool
) -> list[SpanScores]:
    """The scores of each context. `owners`: (V,) the context of each window."""
    begins = np.concatenate([[0], tables.ends])[:-1]
    sizes = tables.ends - begins
    top, null = np.full(len(reads), -np.inf), np.full(len(reads), np.inf)
    context = np.repeat(owners, sizes)
    np.maximum.at(top, context, tables.rows.max(1, initial=-np.inf))
    np.minimum.at(null, owners, tables.null)
    shifted = np.exp(tables.rows - top[context][:, None]).sum(1)
    with np.errstate(divide="ignore"):  # a context without tokens
        rest = np.log(np.bincount(context, shifted, len(reads)))
    found = []
    window = 0
    for i, read in enumerate(reads):
        own = range(window, window + (len(read.given) or 1))
        window = own.stop
        found.append(
            SpanScores(
                read,
                [windows[w].own for w in own],
                [tables.rows[begins[w] : tables.ends[w]] for w in own],
                float(null[i]),
                may_be_none,
                float(top[i]),
                float(rest[i]),
            )
        )
    return found
