"""One pass over labelled files: counts, first places, and hashes of 64 bits of each text and gold; no texts.

Two different texts in a file of a million rows have the same hash with a probability of about 1 in 37 million.
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.findings import DataCounts, PlacedNotes, cut, normal
from bothways.data.words import is_cjk
from bothways.doctor.hashes import Hashes
from bothways.errors import BothwaysError
from bothways.progress import Watch
from bothways.tasks.task import Task
from bothways.text.columns import Columns
from bothways.text.same_text import same_key

_SHORT = 5.0
"""Texts with fewer words repeat by chance; two CJK characters count as a word."""


@dataclass(frozen=True)
class Row:
    """A row as findings show it."""

    where: str
    gold: str
    text: str


class Survey(DataCounts):
    """The counts of some files, and the hashes of their rows."""

    def __init__(
        self, task: type[Task], files: tuple[str, ...], columns: Columns, is_dev: bool = False, settings: Any = None
    ) -> None:
        """`settings`: those of the task with which the files are read, if not the usual ones."""
        super().__init__(files, columns, is_dev)
        self.task, self.settings = task, settings
        self.characters = self.cjk = 0
        self._texts, self._golds, self._shared = array("Q"), array("Q"), array("Q")
        self._short = array("B")
        self._loose, self._sentences, self._owners = array("Q"), array("Q"), array("Q")

    def read(self, notes: PlacedNotes | None = None) -> Iterable[Any]:
        """The examples, from the beginning each time."""
        return self.task.read(self.files, self.columns, PlacedNotes() if notes is None else notes, self.settings)

    def run(self, watch: Watch) -> None:
        what = "reading development data" if self.is_dev else "reading"
        for example in watch(self.read(self.notes), what, self.files):
            self._add(example)
        if not self.rows:
            names = ", ".join(self.files)
            raise BothwaysError(f"{names}: no examples were found", "no-examples", names)

    def _add(self, example: Any) -> None:
        self.rows += 1
        texts, where = self.task.texts_of(example), example.where
        whole = " ".join(texts)
        cjk = 0 if whole.isascii() else sum(map(is_cjk, whole))
        self.characters += len(whole) - whole.count(" ")
        self.cjk += cjk
        gold, shared = self.task.gold_key(example), self.task.shared_text(example)
        is_empty = self.task.is_empty(example)
        for what, is_so in (("empty", is_empty), ("unlabelled", gold is None), ("damaged", "\ufffd" in whole)):
            if is_so:
                self.fault(what, where)
        self._texts.append(0 if is_empty else hashed(texts))
        self._short.append(len(whole.split()) + cjk / 2 < _SHORT)
        keys = [same_key(text) for text in texts]
        self._loose.append(0 if is_empty else hashed(sorted(keys)))
        self._golds.append(0 if gold is None else hashed([gold]))
        if shared is not None:
            self._shared.append(hashed([shared]) if shared.strip() else 0)
        elif len(keys) > 1:
            longer = [key for text, key in zip(texts, keys, strict=True) if _words(text) >= _SHORT]
            self._sentences.extend(hashed([key]) for key in longer)
            self._owners.extend([self.rows - 1] * len(longer))
        self.task.survey(example, self)

    @property
    def text_hashes(self) -> Hashes:
        """Of each row; 0 if it is empty."""
        return np.frombuffer(self._texts, np.uint64)

    @property
    def loose_hashes(self) -> Hashes:
        """Of each row, whatever its punctuation and the order of its texts; 0 if it is empty."""
        return np.frombuffer(self._loose, np.uint64)

    @property
    def sentence_hashes(self) -> tuple[Hashes, Hashes]:
        """Of each text of pairs that is not short, whatever its punctuation; and the row of each."""
        return np.frombuffer(self._sentences, np.uint64), np.frombuffer(self._owners, np.uint64)

    @property
    def gold_hashes(self) -> Hashes:
        """Of each row; 0 if it is not labelled."""
        return np.frombuffer(self._golds, np.uint64)

    @property
    def shared_hashes(self) -> Hashes:
        """The texts that several rows may share: 0 if a row has none; empty if the task has none."""
        return np.frombuffer(self._shared, np.uint64)

    @property
    def is_short(self) -> NDArray[np.bool_]:
        """Rows so short that they may repeat by chance."""
        return np.frombuffer(self._short, np.uint8).astype(bool)

    def show(self, wanted: Iterable[int]) -> dict[int, Row]:
        """The rows with these numbers. Reads the files again, up to the last of them."""
        numbers = set(wanted)
        found = {}
        for number, example in enumerate(islice(self.read(), max(numbers, default=-1) + 1)):
            if number in numbers:
                text = " | ".join(" ".join(part.split()) for part in self.task.texts_of(example) if part)
                found[number] = Row(example.where, self.task.shown_gold(example), cut(text, 60))
        return found


def _words(text: str) -> float:
    return len(text.split()) + (0 if text.isascii() else sum(map(is_cjk, text)) / 2)


def hashed(texts: Iterable[str]) -> int:
    """A hash of 64 bits that ignores white space and case; never 0, which stands for none.

    >>> hashed(["The cat"]) == hashed([" the   CAT"]), hashed(["a", "b"]) == hashed(["a b"])
    (True, False)
    """
    joined = "\x1f".join(map(normal, texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "big") or 1
