"""One reading of labelled files: counts, first places, and eight bytes for each text and each gold, never the texts.

Two different texts share eight bytes by chance once in some 37 million files of a million rows.
"""

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Choice, Gold, Question, Tagged, Text
from bothways.data.labels import names_of
from bothways.data.notes import Notes
from bothways.data.words import is_cjk, split_words
from bothways.doctor.identity import cut, hashed, mark_of, normal, texts_of

KEEP = 5
"""So many places of each thing are named."""
_NAMES = 10_000
"""Of so many labels the places are held."""
_SHORT = 5.0
"""Texts of fewer words come up again by chance; two CJK characters count as a word."""

Hashes = NDArray[np.uint64]


@dataclass
class Spots:
    """How often something was met, and where first."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.first) < KEEP and where not in self.first:
            self.first.append(where)


@dataclass
class Extent:
    """A length: how much on average, and where most."""

    count: int = 0
    total: int = 0
    most: int = -1
    where: str = ""

    def add(self, value: int, where: str) -> None:
        self.count += 1
        self.total += value
        if value > self.most:
            self.most, self.where = value, where

    @property
    def mean(self) -> float:
        return self.total / max(self.count, 1)


@dataclass
class Noted(Notes):
    """Notes that remember more than the first place."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, code: str, where: str, value: object = None) -> None:
        super().add(code, where, value)
        some = self.places.setdefault(code, [])
        if len(some) < KEEP and where not in some:
            some.append(where)


class Survey:
    """What the examples of some files are, taken together."""

    def __init__(self) -> None:
        self.notes = Noted()
        self.rows = self.characters = self.cjk = 0
        self.empty, self.unlabelled, self.damaged = Spots(), Spots(), Spots()
        self.lost, self.same_options, self.single = Spots(), Spots(), Spots()
        """Answers that are not in their text; questions with two equal options; rows with one text only."""
        self.golds: Counter[Gold] = Counter()
        """Of texts, as the file has them."""
        self.names: Counter[str] = Counter()
        """Of all others: tags, places of the right option, whether there is an answer."""
        self.chance: dict[str, float] = {}
        """How often each place would be right by chance."""
        self.places: dict[str, list[str]] = {}
        """Where each name stands first."""
        self.extents: dict[str, Extent] = {}
        self._texts, self._marks, self._groups = array("Q"), array("Q"), array("Q")
        self._short = array("B")

    # ------------------------------------------------------------------ each row

    @property
    def texts(self) -> Hashes:
        """Of each row; 0 if it is empty."""
        return np.frombuffer(self._texts, np.uint64)

    @property
    def marks(self) -> Hashes:
        """The gold of each row; 0 if it has none."""
        return np.frombuffer(self._marks, np.uint64)

    @property
    def groups(self) -> Hashes:
        """What questions are asked on; empty for other tasks."""
        return np.frombuffer(self._groups, np.uint64)

    @property
    def is_short(self) -> NDArray[np.bool_]:
        """Whether a row has so few words that meeting it twice means little."""
        return np.frombuffer(self._short, np.uint8).astype(bool)

    def add(self, example: Any) -> None:
        self.rows += 1
        texts, where = texts_of(example), example.where
        whole = " ".join(texts)
        cjk = 0 if whole.isascii() else sum(map(is_cjk, whole))
        self.characters += len(whole) - whole.count(" ")
        self.cjk += cjk
        if "\ufffd" in whole:
            self.damaged.add(where)
        if empty := _is_empty(example):
            self.empty.add(where)
        self._texts.append(0 if empty else hashed(texts))
        self._short.append(len(whole.split()) + cjk / 2 < _SHORT)
        mark = mark_of(example)
        self._marks.append(0 if mark is None else hashed([mark]))
        if mark is None:
            self.unlabelled.add(where)
        self._count(example)

    def _count(self, example: Any) -> None:
        where = example.where
        match example:
            case Text():
                self._extent("characters in a text", sum(map(len, example.texts)), where)
                if example.gold is not None:
                    self.golds[example.gold] += 1
                    self._place(names_of(example.gold), where)
                if len(example.texts) < 2:
                    self.single.add(where)
            case Tagged():
                self._extent("words in a sentence", len(example.words), where)
                self.names.update(example.gold or ())
                self._place(set(example.gold or ()), where)
            case Question():
                self._groups.append(hashed([example.context]))
                self._extent("words in a question", len(split_words(example.question)), where)
                self._extent("characters in a text", len(example.context), where)
                self._count_answers(example)
            case Choice():
                self._groups.append(hashed([example.context]))
                self._extent("options of a question", len(example.options), where)
                if example.context:
                    self._extent("characters in a text", len(example.context), where)
                self._count_options(example)

    def _count_answers(self, example: Question) -> None:
        if example.gold is None:
            return
        self.names["an answer" if example.gold else "no answer"] += 1
        for text, start in example.gold:
            self._extent("characters in an answer", len(text), example.where)
            if start < 0:
                self.lost.add(f"{example.where} ({cut(text, 40)!r})")

    def _count_options(self, example: Choice) -> None:
        if len({normal(option) for option in example.options}) < len(example.options):
            self.same_options.add(example.where)
        if example.gold is not None:
            self.names[f"option {example.gold + 1}"] += 1
            for number in range(len(example.options)):
                name = f"option {number + 1}"
                self.chance[name] = self.chance.get(name, 0.0) + 1 / len(example.options)

    def _extent(self, name: str, value: int, where: str) -> None:
        self.extents.setdefault(name, Extent()).add(value, where)

    def _place(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if (some := self.places.get(name)) is not None:
                if len(some) < KEEP:
                    some.append(where)
            elif len(self.places) < _NAMES:
                self.places[name] = [where]


def _is_empty(example: Any) -> bool:
    match example:
        case Choice():
            return not (example.context + example.question).strip() or not all(map(str.strip, example.options))
    return not all(map(str.strip, texts_of(example)))
