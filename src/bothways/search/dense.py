"""The nearest documents by their vectors: exact, or exact among candidates that a faster way finds.

Q queries · W width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.search.nearest import nearest
from bothways.search.products import BUDGET, exact_scores, pairs_at_once
from bothways.search.segment import Segment

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]
_OVERSAMPLING = {"int8": 4, "binary": 32, "graph": 16}
"""Candidates for each answer, by the way that finds them; `tests/test_search_vectors.py` measures their recall."""
_LEAST_CANDIDATES = 100
_GROWTH = 4


@dataclass(frozen=True)
class Found:
    """A document that was found by a passage."""

    document: int
    """Its number, counted through all segments."""
    row: int
    """The number of the passage, counted through all segments."""
    score: float


def nearest_documents(
    segments: Sequence[Segment], queries: Vectors, k: int, *, is_exact: bool, device: torch.device
) -> list[list[Found]]:
    """For each query (Q, W) the k documents whose best passage has the greatest inner product, best first.

    Of equal scores the earlier passage comes first.
    """
    places = _Places(segments)
    rows = sum(len(segment.vectors) for segment in segments)
    want = min(k, rows)
    while True:
        ranked = _ranked(segments, queries, max(want, 1), is_exact, device)
        found = [places.documents(*one, k) for one in ranked]
        # Some passages are of one document, or of a deleted one: then more are needed.
        if want >= rows or all(len(one) >= k for one in found):
            return found
        want = min(want * _GROWTH, rows)


class _Places:
    """Documents of rows, counted through all segments."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._rows = np.cumsum([0, *(len(segment.vectors) for segment in segments)])
        self._documents = np.cumsum([0, *(len(segment.ids) for segment in segments)])

    def documents(self, rows: Rows, scores: Vectors, k: int) -> list[Found]:
        """Ranked rows → the first k documents that were not deleted, each once."""
        found: dict[int, Found] = {}
        owners = np.searchsorted(self._rows, rows, "right") - 1
        for row, owner, score in zip(rows.tolist(), owners.tolist(), scores.tolist(), strict=True):
            segment = self._segments[owner]
            own = segment.document_of(row - self._rows[owner])
            document = own + int(self._documents[owner])
            if segment.live[own] and document not in found:
                found[document] = Found(document, row, score)
                if len(found) == k:
                    break
        return list(found.values())


def _ranked(
    segments: Sequence[Segment], queries: Vectors, k: int, is_exact: bool, device: torch.device
) -> list[tuple[Rows, Vectors]]:
    """For each query the best rows of all segments with their scores, best first."""
    per_query: list[list[tuple[Rows, Vectors]]] = [[] for _ in queries]
    before = 0
    for segment in segments:
        for query, (rows, scores) in enumerate(_of_segment(segment, queries, k, is_exact, device)):
            per_query[query].append((rows + before, scores))
        before += len(segment.vectors)
    return [_merged(parts, k) for parts in per_query]


def _merged(parts: Sequence[tuple[Rows, Vectors]], k: int) -> tuple[Rows, Vectors]:
    rows = np.concatenate([rows for rows, _ in parts])
    scores = np.concatenate([scores for _, scores in parts])
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


def _of_segment(
    segment: Segment, queries: Vectors, k: int, is_exact: bool, device: torch.device
) -> list[tuple[Rows, Vectors]]:
    way = None if is_exact else segment.codes or segment.graph
    if not len(segment.vectors):
        return [(np.zeros(0, np.int64), np.zeros(0, np.float32)) for _ in queries]
    kind = "graph" if segment.codes is None else segment.codes.kind
    many = max(_LEAST_CANDIDATES, k * _OVERSAMPLING[kind])
    # Candidates that are half of all rows save nothing, and a graph may not reach them all.
    if way is None or 2 * many >= len(segment.vectors):
        scores, rows = nearest(queries, segment.vectors, k, device=device)
        return list(zip(rows, scores, strict=True))
    found = []
    for query, rows in zip(queries, way.candidates(queries, many), strict=True):
        rows = np.sort(rows)  # read from disk in order
        vectors = torch.from_numpy(np.array(segment.vectors[rows]))
        places = torch.stack([torch.zeros(len(rows), dtype=torch.long), torch.arange(len(rows))], 1)
        again = exact_scores(torch.from_numpy(query[None]), vectors, places, pairs_at_once(len(query), BUDGET))
        found.append((rows, again.numpy()))
    return found
