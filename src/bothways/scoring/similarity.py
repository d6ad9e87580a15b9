"""Metrics of sentence vectors: whether cosines agree with scores, and positives are found among all other texts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.scoring.accumulator import Resamplable
from bothways.scoring.ranking import Ranking
from bothways.scoring.regression import Regression

_AT_ONCE = 1_024
"""Anchors that are compared with all documents at a time."""


class Similarity:
    """Spearman and Pearson of the cosine for scored pairs; for others MRR and accuracy of finding the positive.

    All positives and negatives are candidates. A text that is a positive of several equal anchors is relevant to each.

    >>> import numpy as np
    >>> found = Similarity()
    >>> found.add(("a", "b"), np.array([[1.0, 0], [0.9, 0.1]]))
    >>> found.add(("c", "d"), np.array([[0, 1.0], [0.2, 0.8]]))
    >>> found.scores()["mrr@10"]
    1.0
    """

    def __init__(self) -> None:
        self._scored, self._pairs = Regression(), 0
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._relevant: dict[str, set[str]] = {}
        self._documents: dict[str, NDArray[np.float32]] = {}
        self._ranking: Ranking | None = None

    def add(self, texts: Sequence[str], vectors: NDArray[np.floating], gold: float | None = None) -> None:
        """One example: the texts are an anchor, its positive, and negatives. With a gold score, a pair."""
        lengths = np.maximum(np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True), 1e-12)
        unit = vectors / lengths
        if gold is not None:
            self._scored.add([gold], [float(unit[0] @ unit[1])])
            self._pairs += 1
            return
        self._ranking = None
        self._vectors[texts[0]] = unit[0].astype(np.float32)
        self._relevant.setdefault(texts[0], set()).add(texts[1])
        self._documents.update(zip(texts[1:], unit[1:].astype(np.float32), strict=True))

    def scores(self) -> dict[str, float]:
        """spearman and pearson; mrr@10, accuracy@1 and the others of Ranking."""
        found = {} if not self._relevant else self._ranked().scores()
        if self._pairs:
            found |= {name: self._scored.scores()[name] for name in ("spearman", "pearson")}
        return found

    def rows(self, name: str) -> Resamplable:
        """The pairs, or the anchors, for one score."""
        return self._ranked().rows(name) if "@" in name or name == "map" else self._scored.rows(name)

    def _ranked(self) -> Ranking:
        if self._ranking is None:
            self._ranking = Ranking(10)
            names, matrix = list(self._documents), np.array(list(self._documents.values()))
            place = {name: i for i, name in enumerate(names)}
            anchors = list(self._vectors)
            for first in range(0, len(anchors), _AT_ONCE):
                some = anchors[first : first + _AT_ONCE]
                for anchor, row in zip(some, np.array([self._vectors[a] for a in some]) @ matrix.T, strict=True):
                    gold = np.zeros(len(names))
                    gold[[place[text] for text in self._relevant[anchor]]] = 1
                    self._ranking.add(gold, row)
        return self._ranking
