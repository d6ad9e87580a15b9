"""Metrics of token classification: entities in BIO, and plain tags.

N sentences · T types or tags
"""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from bothways.data.schemes import WORD, Span, spans
from bothways.errors import BothwaysError
from bothways.scoring.accumulator import (
    Column,
    Floats,
    Resamplable,
    divide,
    group_sums,
    ratio_of_sums,
    require_score,
    sum_rows,
)
from bothways.scoring.counting import LabelScores, f1_score, macro_f1, scores_by_label

_COUNTED = 8  # gold, predicted, right; gold and predicted that overlap; right boundaries; words, right words


def entities(tags: Sequence[str]) -> list[Span]:
    """The entities of one sentence in BIO, read as conlleval does: I- after another type begins a new one. Without
    types, as in word segmentation, they are words.

    >>> entities(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [('PER', 0, 2), ('LOC', 3, 4), ('ORG', 4, 5)]
    """
    for tag in tags:
        if tag not in ("O", "B", "I") and not (tag.startswith(("B-", "I-")) and len(tag) > 2):
            raise BothwaysError(f"{tag!r} is not a BIO tag: expected O, B-TYPE or I-TYPE", "bad-tag", tag)
    return [(kind or WORD, first, end) for kind, first, end in spans(tags)]


class Entities:
    """Precision, recall and F1 of entities, and the accuracy of tags.

    Strict scores need the same type and boundaries, as in conlleval and seqeval. For `overlap_` it is enough that
    gold and predicted entity have the same type and share a word. For `boundary_` the boundaries must be the same,
    not the type. Without any entity these are 0.

    >>> tagged = Entities()
    >>> tagged.add(["B-PER", "I-PER", "O", "B-LOC"], ["B-PER", "O", "O", "B-LOC"])
    >>> scores = tagged.scores()
    >>> scores["f1"], scores["overlap_f1"], scores["token_accuracy"]
    (0.5, 1.0, 0.75)
    """

    def __init__(self) -> None:
        self._sentences = Column(np.int32)
        self._cells = Column(np.int32)  # sentence, type, gold, predicted, right
        self._types: dict[str, int] = {}
        self._examples = 0

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one sentence: a BIO tag for each word."""
        _same_length(gold, predicted)
        truth, guess = set(entities(gold)), set(entities(predicted))
        right = truth & guess
        overlaps = _overlapping(truth, guess), _overlapping(guess, truth)
        boundaries = len({entity[1:] for entity in truth} & {entity[1:] for entity in guess})
        words = sum(a == b for a, b in zip(gold, predicted, strict=True))
        number = len(self._sentences) // _COUNTED
        self._sentences.extend([len(truth), len(guess), len(right), *overlaps, boundaries, len(gold), words])
        by_type = [Counter(entity[0] for entity in some) for some in (truth, guess, right)]
        for kind in sorted(by_type[0] | by_type[1]):
            self._cells.extend(
                [number, self._types.setdefault(kind, len(self._types)), *(counter[kind] for counter in by_type)]
            )
        self._examples = _checksum(gold, self._examples)

    def scores(self) -> dict[str, float]:
        """precision, recall, f1; macro_f1, the mean F1 of the types; overlap_ and boundary_ precision, recall
        and f1; token_accuracy."""
        return {name: self.rows(name).value() for name in [*_FORMULAS, "macro_f1"]}

    def rows(self, name: str) -> Resamplable:
        """The sentences for one score, with their counts of entities."""
        counted = self._sentences.values().reshape(-1, _COUNTED)
        if name in _FORMULAS:
            return sum_rows(counted, _FORMULAS[name], self._examples)
        require_score(name, [*_FORMULAS, "macro_f1"])
        return Resamplable(np.arange(len(counted)), lambda counts: macro_f1(*self._of_types(counts)), self._examples)

    def per_type(self) -> dict[str, LabelScores]:
        """Strict precision, recall, F1 and support of each type, by name."""
        found = scores_by_label(list(self._types), *self._of_types(np.ones(len(self._sentences) // _COUNTED)))
        return dict(sorted(found.items()))

    def _of_types(self, counts: Floats) -> tuple[Floats, Floats, Floats]:
        """Right, gold and predicted counts of each type, for counts of sentences. (..., N) → three (..., T)."""
        sentence, kind, gold, predicted, right = self._cells.values().reshape(-1, 5).astype(np.int64).T
        repeats = counts[..., sentence]
        sums = [group_sums(repeats * some, kind, len(self._types)) for some in (right, gold, predicted)]
        return sums[0], sums[1], sums[2]


class Tags:
    """Accuracy of plain tags, such as parts of speech. The bootstrap draws sentences, not words.

    >>> tags = Tags()
    >>> tags.add(["DET", "NOUN"], ["DET", "VERB"])
    >>> tags.scores()["accuracy"]
    0.5
    """

    def __init__(self) -> None:
        self._lengths, self._gold, self._predicted = Column(np.int32), Column(np.int32), Column(np.int32)
        self._tags: dict[str, int] = {}
        self._examples = 0

    def add(self, gold: Sequence[str], predicted: Sequence[str]) -> None:
        """Add one sentence: a tag for each word."""
        _same_length(gold, predicted)
        self._lengths.extend([len(gold)])
        for column, tags in ((self._gold, gold), (self._predicted, predicted)):
            column.extend([self._tags.setdefault(tag, len(self._tags)) for tag in tags])
        self._examples = _checksum(gold, self._examples)

    def scores(self) -> dict[str, float]:
        """accuracy of words; sentence_accuracy, the share of sentences without an error; macro_f1 of the tags."""
        return {name: self.rows(name).value() for name in ("accuracy", "sentence_accuracy", "macro_f1")}

    def rows(self, name: str) -> Resamplable:
        """The sentences for one score."""
        lengths = self._lengths.values()
        if name == "macro_f1":
            return Resamplable(np.arange(len(lengths)), lambda counts: macro_f1(*self._of_tags(counts)), self._examples)
        require_score(name, ["accuracy", "sentence_accuracy", "macro_f1"])
        sentence = np.repeat(np.arange(len(lengths)), lengths)
        right = np.bincount(sentence, self._gold.values() == self._predicted.values(), minlength=len(lengths))
        whole = np.stack([right == lengths, np.ones(len(lengths))], -1)
        words = np.stack([right, lengths], -1)
        return sum_rows(words if name == "accuracy" else whole, ratio_of_sums(0, 1, np.nan), self._examples)

    def per_tag(self) -> dict[str, LabelScores]:
        """Precision, recall, F1 and support of each tag, by name."""
        return dict(sorted(scores_by_label(list(self._tags), *self._of_tags(np.ones(len(self._lengths)))).items()))

    def _of_tags(self, counts: Floats) -> tuple[Floats, Floats, Floats]:
        gold, predicted = self._gold.values().astype(np.int64), self._predicted.values().astype(np.int64)
        repeats = np.repeat(counts, self._lengths.values(), axis=-1)
        size = len(self._tags)
        right = group_sums(repeats * (gold == predicted), gold, size)
        return right, group_sums(repeats, gold, size), group_sums(repeats, predicted, size)


def _same_length(gold: Sequence[str], predicted: Sequence[str]) -> None:
    if len(gold) != len(predicted):
        says = f"{len(gold)} gold tags and {len(predicted)} predicted: expected one of each for every word"
        raise BothwaysError(says, "count-mismatch", (len(gold), len(predicted)))


def _checksum(gold: Sequence[str], so_far: int) -> int:
    return zlib.crc32(("\t".join(gold) + "\n").encode(), so_far)


def _overlapping(some: set[Span], others: set[Span]) -> int:
    """The number of `some` that share a word with one of the others of the same type."""
    return sum(
        any(kind == other and start < after and begin < end for other, begin, after in others)
        for kind, start, end in some
    )


def _overlap_f1(sums: Floats) -> Floats:
    """The harmonic mean of precision and recall, whose numerators may differ."""
    precision, recall = divide(sums[..., 4], sums[..., 1]), divide(sums[..., 3], sums[..., 0])
    return divide(2 * precision * recall, precision + recall)


_FORMULAS: dict[str, Callable[[Floats], Floats]] = {
    "precision": ratio_of_sums(2, 1),
    "recall": ratio_of_sums(2, 0),
    "f1": lambda sums: f1_score(sums[..., 2], sums[..., 0], sums[..., 1]),
    "overlap_precision": ratio_of_sums(4, 1),
    "overlap_recall": ratio_of_sums(3, 0),
    "overlap_f1": _overlap_f1,
    "boundary_precision": ratio_of_sums(5, 1),
    "boundary_recall": ratio_of_sums(5, 0),
    "boundary_f1": lambda sums: f1_score(sums[..., 5], sums[..., 0], sums[..., 1]),
    "token_accuracy": ratio_of_sums(7, 6, np.nan),
}
