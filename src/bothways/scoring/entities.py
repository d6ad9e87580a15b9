"""Scores of tagged sentences: entities in BIO, and plain tags.

N sentences · T types or tags · E cells, each a type in a sentence · K kinds of sentence, here one for each
"""

import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Column, Floats, Resamplable, divide, group_sums, no_rows, sum_rows
from bothways.scoring.counting import Detail, details, f1_score, macro_f1

Entity = tuple[str, int, int]
"""Its type, its first word, and the word after its last."""

_COUNTED = 8  # gold, predicted, right; gold and predicted that overlap; right boundaries; words, right words


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence in BIO, read as conlleval reads them: I- after another type begins a new one.

    >>> entities(["B-PER", "I-PER", "O", "I-LOC", "I-ORG"])
    [('PER', 0, 2), ('LOC', 3, 4), ('ORG', 4, 5)]
    """
    found: list[Entity] = []
    for place, tag in enumerate(tags):
        letter, _, kind = tag.partition("-")
        if tag == "O":
            continue
        if letter not in ("B", "I") or not kind:
            raise BothwaysError(f"{tag!r} is no tag in BIO: expected O, B-TYPE or I-TYPE")
        if letter == "I" and found and found[-1][0] == kind and found[-1][2] == place:
            found[-1] = (kind, found[-1][1], place + 1)
        else:
            found.append((kind, place, place + 1))
    return found


class Entities:
    """Entities against gold ones, and the words' tags.

    Strict scores count what has the same type and boundaries, as conlleval and seqeval do. `overlap_` counts a
    predicted entity as right, and a gold one as found, if one of the same type on the other side shares a word
    with it. `boundary_` asks for the same boundaries and no type. Without any entity these are 0.

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
        """Count one sentence: a tag in BIO for each word."""
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
        """The sentences as one score sees them: how many entities, how many right."""
        counted = self._sentences.values().reshape(-1, _COUNTED)
        if name in _FORMULAS:
            return sum_rows(counted, _FORMULAS[name], self._examples)
        if name != "macro_f1":
            no_rows(name, [*_FORMULAS, "macro_f1"])
        return Resamplable(np.arange(len(counted)), lambda counts: macro_f1(*self._of_types(counts)), self._examples)

    def per_type(self) -> dict[str, Detail]:
        """Strict precision, recall, F1 and support of each type, by name."""
        found = details(list(self._types), *self._of_types(np.ones(len(self._sentences) // _COUNTED)))
        return dict(sorted(found.items()))

    def _of_types(self, counts: Floats) -> tuple[Floats, Floats, Floats]:
        """Right, in the gold and predicted of each type, if sentences occur so often. (..., N) → three (..., T)."""
        sentence, kind, gold, predicted, right = self._cells.values().reshape(-1, 5).astype(np.int64).T
        often = counts[..., sentence]
        sums = [group_sums(often * some, kind, len(self._types)) for some in (right, gold, predicted)]
        return sums[0], sums[1], sums[2]


class Tags:
    """Plain tags of words, such as parts of speech. What is drawn again is the sentence, not the word.

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
        """Count one sentence: a tag for each word."""
        _same_length(gold, predicted)
        self._lengths.extend([len(gold)])
        for column, tags in ((self._gold, gold), (self._predicted, predicted)):
            column.extend([self._tags.setdefault(tag, len(self._tags)) for tag in tags])
        self._examples = _checksum(gold, self._examples)

    def scores(self) -> dict[str, float]:
        """accuracy of words; sentence_accuracy, the part of the sentences without an error; macro_f1 of the tags."""
        return {name: self.rows(name).value() for name in ("accuracy", "sentence_accuracy", "macro_f1")}

    def rows(self, name: str) -> Resamplable:
        """The sentences as one score sees them."""
        lengths = self._lengths.values()
        if name == "macro_f1":
            return Resamplable(np.arange(len(lengths)), lambda counts: macro_f1(*self._of_tags(counts)), self._examples)
        if name not in ("accuracy", "sentence_accuracy"):
            no_rows(name, ["accuracy", "sentence_accuracy", "macro_f1"])
        sentence = np.repeat(np.arange(len(lengths)), lengths)
        right = np.bincount(sentence, self._gold.values() == self._predicted.values(), minlength=len(lengths))
        whole = np.stack([right == lengths, np.ones(len(lengths))], -1)
        words = np.stack([right, lengths], -1)
        return sum_rows(
            words if name == "accuracy" else whole,
            lambda sums: divide(sums[..., 0], sums[..., 1], np.nan),
            self._examples,
        )

    def per_tag(self) -> dict[str, Detail]:
        """Precision, recall, F1 and support of each tag, by name."""
        return dict(sorted(details(list(self._tags), *self._of_tags(np.ones(len(self._lengths)))).items()))

    def _of_tags(self, counts: Floats) -> tuple[Floats, Floats, Floats]:
        gold, predicted = self._gold.values().astype(np.int64), self._predicted.values().astype(np.int64)
        often = np.repeat(counts, self._lengths.values(), axis=-1)
        size = len(self._tags)
        right = group_sums(often * (gold == predicted), gold, size)
        return right, group_sums(often, gold, size), group_sums(often, predicted, size)


def _same_length(gold: Sequence[str], predicted: Sequence[str]) -> None:
    if len(gold) != len(predicted):
        raise BothwaysError(
            f"{len(gold)} gold tags and {len(predicted)} predicted: expected one of each for every word"
        )


def _checksum(gold: Sequence[str], so_far: int) -> int:
    return zlib.crc32(("\t".join(gold) + "\n").encode(), so_far)


def _overlapping(some: set[Entity], others: set[Entity]) -> int:
    """How many of `some` share a word with one of the others that has their type."""
    return sum(
        any(kind == other and start < after and begin < end for other, begin, after in others)
        for kind, start, end in some
    )


def _ratio(above: int, below: int) -> Callable[[Floats], Floats]:
    return lambda sums: divide(sums[..., above], sums[..., below])


def _overlap_f1(sums: Floats) -> Floats:
    """Right gold and right predicted may differ in number, so this is the mean of the two ratios themselves."""
    precision, recall = divide(sums[..., 4], sums[..., 1]), divide(sums[..., 3], sums[..., 0])
    return divide(2 * precision * recall, precision + recall)


_FORMULAS: dict[str, Callable[[Floats], Floats]] = {
    "precision": _ratio(2, 1),
    "recall": _ratio(2, 0),
    "f1": lambda sums: f1_score(sums[..., 2], sums[..., 0], sums[..., 1]),
    "overlap_precision": _ratio(4, 1),
    "overlap_recall": _ratio(3, 0),
    "overlap_f1": _overlap_f1,
    "boundary_precision": _ratio(5, 1),
    "boundary_recall": _ratio(5, 0),
    "boundary_f1": lambda sums: f1_score(sums[..., 5], sums[..., 0], sums[..., 1]),
    "token_accuracy": lambda sums: divide(sums[..., 7], sums[..., 6], np.nan),
}
