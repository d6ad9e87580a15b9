"""Counts what the readers left out, repaired or found odd, by code: nothing is dropped silently."""

from dataclasses import dataclass, field

from bothways.errors import BothwaysError

SENTENCES = {
    "wrong-cell-count": "Rows that do not have the {value} columns of their file were left out",
    "quoted-cells": "Rows have quoted cells with doubled quotes; they were kept as they are, as in GLUE's .tsv files",
    "no-label-column": "Files or rows have no usual column for the label, only {value}; they were read without one",
    "empty-text": "Examples have an empty text; they were kept",
    "empty-label": "Rows have an empty label; they were read without one",
    "no-agreement": "Pairs have the label -, because the annotators did not agree; they were read without a label",
    "repeated-question-id": "Questions had the id of an earlier question; they were given a new one",
    "ambiguous-answer": "Answers without an offset occur several times in their context; the first place was taken",
    "answer-not-found": "Answers are not in their context",
    "answer-moved": "Answers were not at their offset; the nearest place was taken",
    "answer-not-an-option": "Questions have an answer that is not an option, such as {value!r}; it was dropped",
    "rejected-annotation": "Texts that the annotator rejected or ignored were left out",
    "several-annotations": "Texts were annotated several times; the ground truth, or else the first, was taken",
    "unread-annotation": "Annotations that are neither labels nor choices, such as {value}, were left out",
    "split-entity": "Entities in several pieces were left out",
    "empty-entity": "Entities that contain no word were left out",
    "overlapping-entity": "Entities that share a word with the one before were left out",
    "widened-entity": "Entities that begin or end inside a word were widened to whole words",
    "text-mismatch": "Sentences whose # text does not contain their words were rebuilt from the words",
    "joined-words": "Words that are written as one and cannot be split have their tags joined by +",
    "mixed-tags": "Files mix entity tags with plain tags such as {value}; all were kept as they are",
    "broken-tags": "Tags that break the {value[0]} scheme, such as {value[1]}, were read as conlleval reads them",
    "numeric-tags": "Sentences have numbers as tags; they were kept as plain tags",
    "repeated-judgement": "Judgements occur twice with the same relevance; one was kept",
    "unknown-document": "Judgements name a document that is not in the corpus; it counts as not retrieved",
    "no-label-predicted": "Texts got no label, because none reached its threshold",
    "unlabelled-row": "Rows without a label were left out",
    "unknown-tags": "Texts have tags that the model does not know",
}
"""By code. `{value}` is what was found first: a number of columns, a tag, a scheme and a fault."""


def row_error(where: str, fault: str, code: str) -> BothwaysError:
    """The error for one row: its place, what is wrong with it, and the code."""
    return BothwaysError(f"{where} {fault}", code, where)


@dataclass
class Notes:
    """How often each code was noted. Prints one sentence per code.

    >>> notes = Notes()
    >>> notes.add("empty-text", "train.tsv, line 7")
    >>> notes.add("empty-text", "train.tsv, line 9")
    >>> print(notes)
    Examples have an empty text; they were kept: 2, first in train.tsv, line 7.
    """

    counts: dict[str, int] = field(default_factory=dict)
    """By code."""
    first: dict[str, str] = field(default_factory=dict)
    """By code: where it was noted first."""
    values: dict[str, object] = field(default_factory=dict)
    """By code: what was found where it was noted first, or None."""
    columns: str = ""
    """The columns that were taken from the first rows, as in `text = review, label = stars`."""
    whole: bool = False
    """True if every row needs a prediction: a row that would be left out is then an error."""

    def add(self, code: str, where: str, value: object = None) -> None:
        self.counts[code] = self.counts.get(code, 0) + 1
        self.first.setdefault(code, where)
        self.values.setdefault(code, value)

    def took(self, **columns: str | None) -> None:
        """Tell which columns of a table were taken, by their part; the first to tell is kept."""
        self.columns = self.columns or ", ".join(f"{part} = {name}" for part, name in columns.items() if name)

    def sentence(self, code: str) -> str:
        return SENTENCES[code].format(value=self.values[code])

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        return "\n".join(
            f"{self.sentence(code)}: {count:,}, first in {self.first[code]}." for code, count in self.counts.items()
        )
