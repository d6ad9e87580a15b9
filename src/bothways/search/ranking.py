"""Ranks the documents of an open index, and finds the passages to show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bothways import atomic
from bothways.errors import BothwaysError
from bothways.progress import Watch, watch_nothing
from bothways.search.dense import nearest_documents
from bothways.search.fuse import mean_of_scaled
from bothways.search.lexical import FILES, Lexical, best_passage
from bothways.search.npy import damaged
from bothways.search.segment import Segment

_FOLDER = "bm25"


@dataclass(frozen=True)
class SearchHit:
    """A document that was found."""

    id: str
    score: float
    """A cosine or inner product, a BM25 score, a fused score, or that of the reranker."""
    passage: str
    """The part of the document that fits the query best; of a short document all of it."""
    start: int
    """Where the passage begins in the document."""
    end: int
    """Where it ends."""


@dataclass(frozen=True)
class Ranked:
    """A document in a ranking, by its number in the index."""

    document: int
    score: float
    row: int | None = None
    """The passage that was found, by its number in the index; None if words of the whole document were counted."""


class Rankings:
    """The rankings of an index in one state of it."""

    def __init__(self, home: Path, segments: Sequence[Segment], state: int) -> None:
        self._home, self._segments, self._state = home, segments, state
        self._first = np.cumsum([0, *(len(segment.ids) for segment in segments)]).tolist()
        self._first_row = np.cumsum([0, *(len(segment.vectors) for segment in segments)]).tolist()
        self._lexical: Lexical | None = None

    def dense(
        self, vectors: NDArray[np.float32], k: int, *, is_exact: bool, device: torch.device
    ) -> list[list[Ranked]]:
        """By the vectors of queries (Q, W)."""
        found = nearest_documents(self._segments, vectors, k, is_exact=is_exact, device=device)
        return [[Ranked(each.document, each.score, each.row) for each in one] for one in found]

    def bm25(self, query: str, k: int) -> list[Ranked]:
        """By the words of a query."""
        return [Ranked(*each) for each in zip(*self.lexical().top(query, k), strict=True)]

    def hit(self, query: str, found: Ranked) -> SearchHit:
        """The document with the passage to show."""
        owner = int(np.searchsorted(self._first, found.document, "right")) - 1
        segment, document = self._segments[owner], found.document - self._first[owner]
        id, text = segment.document(document)
        rows = range(*segment.first_rows[document : document + 2].tolist())
        spans = segment.passages[rows.start : rows.stop, 1:].tolist()
        try:
            if found.row is not None:
                start, end = spans[found.row - self._first_row[owner] - rows.start]
            else:
                start, end = spans[best_passage(query, [text[start:end] for start, end in spans])]
        except (IndexError, ValueError) as error:  # passages that are not in the order of their documents
            raise damaged(self._home) from error
        return SearchHit(id, found.score, text[start:end], start, end)

    # ------------------------------------------------------------------ words

    def lexical(self, watch: Watch = watch_nothing) -> Lexical:
        """The BM25 index of the documents, which is made and kept if there is none of this state."""
        if self._lexical is None:
            self._lexical = Lexical.open(self._home / _FOLDER, self._state) or self._build(watch)
        return self._lexical

    def _build(self, watch: Watch) -> Lexical:
        built = Lexical.build(watch(self._texts(), "counting words"))
        try:
            with atomic.new_folder(self._home / _FOLDER, replaces=FILES) as folder:
                built.save(folder, self._state)
        except BothwaysError as error:
            if error.code != "unwritable":  # an index that may only be read is searched all the same
                raise
        return built

    def _texts(self) -> Iterator[tuple[int, str]]:
        """The numbers and texts of all documents that were not deleted."""
        for first, segment in zip(self._first, self._segments, strict=False):
            yield from ((first + document, text) for document, text in segment.texts())


def fused(dense: Sequence[Ranked], bm25: Sequence[Ranked], depth: int) -> list[Ranked]:
    """Both rankings in one. A document shows the passage of the ranking in which it stands higher.

    Scores are scaled over the best `depth` of each, so that they do not depend on how many were found. By words,
    documents that are not among fewer than `depth` have the score 0.
    """
    places = [{each.document: (place, each) for place, each in enumerate(ranking)} for ranking in (dense, bm25)]
    scores = [[(each.document, each.score) for each in ranking] for ranking in (dense, bm25)]
    lowest = [ranking[depth - 1].score if len(ranking) >= depth else None for ranking in (dense, bm25)]
    found = mean_of_scaled(scores, [lowest[0], 0.0 if lowest[1] is None else lowest[1]])
    best = [min((own[document] for own in places if document in own), key=lambda at: at[0]) for document, _ in found]
    return [replace(each, score=score) for (_, each), (_, score) in zip(best, found, strict=True)]
