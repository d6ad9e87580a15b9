"""Exact search in one pass over a corpus: the best documents of each query, in memory that does not grow with it.

Q queries · B documents of a block · W width · k documents kept for each query
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bothways.model.device import Device
from bothways.predict.roles import SIMILARITIES
from bothways.search.nearest import nearest

Vectors = NDArray[np.float32]
_AT_ONCE = 2**22
"""Distances that are computed at a time."""


class TopDocuments:
    """The k best documents of each query. Of equal scores the larger id is kept, as in trec_eval and MTEB.

    Of the documents that are not among the best, only the ids are held.

    >>> found = TopDocuments(np.eye(2, dtype=np.float32), 1, "dot", "cpu")
    >>> found.add(["d1", "d2", "北京"], np.array([[1, 0], [1, 0], [0, 1]], np.float32))
    >>> found.of(0), found.of(1)
    ((['d2'], [1.0]), (['北京'], [1.0]))
    """

    def __init__(self, queries: Vectors, k: int, similarity: str, device: Device | None = None) -> None:
        """queries: (Q, W). similarity: one of `SIMILARITIES`. device: as in `nearest`."""
        self._k, self._similarity, self._device = k, similarity, device
        self._queries = self._prepared(queries)
        self._ids: list[str] = []
        self._scores = np.zeros((len(queries), 0), np.float32)
        """(Q, k), or fewer columns as long as there are fewer documents."""
        self._numbers = np.zeros((len(queries), 0), np.int64)

    def __len__(self) -> int:
        """The documents of the corpus so far."""
        return len(self._ids)

    def add(self, ids: Sequence[str], vectors: Vectors) -> None:
        """Some documents of the corpus, each with an id of its own. vectors: (B, W)."""
        # `nearest` prefers the lower row of two with equal scores, so the larger id gets it.
        order = np.array(sorted(range(len(ids)), key=ids.__getitem__, reverse=True), np.int64)
        scores, rows = self._nearest(self._prepared(vectors)[order])
        numbers = len(self._ids) + order[rows]
        self._ids.extend(ids)
        self._scores = np.concatenate([self._scores, scores], 1)
        self._numbers = np.concatenate([self._numbers, numbers], 1)
        if self._scores.shape[1] > self._k:
            self._keep_best()

    def of(self, query: int) -> tuple[list[str], list[float]]:
        """The ids of the best documents of a query, and their scores, in no order."""
        return [self._ids[number] for number in self._numbers[query]], self._scores[query].tolist()

    def _prepared(self, vectors: Vectors) -> Vectors:
        """Vectors whose inner product is their cosine, if that is the similarity."""
        if self._similarity != "cosine":
            return vectors
        lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        unit: Vectors = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
        return unit

    def _nearest(self, documents: Vectors) -> tuple[Vectors, NDArray[np.int64]]:
        """The best of a block for each query: scores and rows, (Q, k) each or fewer columns."""
        if self._similarity in ("cosine", "dot"):
            return nearest(self._queries, documents, self._k, device=self._device)
        block, found = torch.from_numpy(documents), []
        for some in torch.from_numpy(self._queries).split(max(1, _AT_ONCE // len(documents))):
            found.append(SIMILARITIES[self._similarity](some, block).sort(dim=1, descending=True, stable=True))
        scores, rows = (torch.cat(parts)[:, : self._k].numpy() for parts in zip(*found, strict=True))
        return scores, rows

    def _keep_best(self) -> None:
        """Keep the best k of the candidates of each query."""
        order = np.argsort(-self._scores, axis=1, kind="stable")
        ranked = np.take_along_axis(self._scores, order, 1)
        for row in np.flatnonzero(ranked[:, self._k - 1] == ranked[:, self._k]):
            # The last one kept has the score of others that are left out: the larger ids stay.
            names = [self._ids[number] for number in self._numbers[row]]
            keys = list(zip(self._scores[row].tolist(), names, strict=True))
            order[row] = sorted(range(len(keys)), key=keys.__getitem__, reverse=True)
        kept = order[:, : self._k]
        self._scores = np.take_along_axis(self._scores, kept, 1)
        self._numbers = np.take_along_axis(self._numbers, kept, 1)
