"""Metrics of rankings, of scored pairs, and of predictions that are right or wrong."""

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Column, Floats, Resamplable, mean_rows, require_score, shape_error
from bothways.scoring.regression import Regression


class Ranking:
    """MRR, nDCG, MAP and recall of documents ranked by score.

    Of equal scores the less relevant document comes first, so a model with constant scores gets the worst result.
    A query without relevant documents has no score; `without_relevant` counts those.

    >>> ranking = Ranking(k=10)
    >>> ranking.add([0, 1, 0], [0.9, 0.8, 0.1])
    >>> ranking.scores()["mrr@10"]
    0.5
    """

    def __init__(self, k: int = 10):
        if k < 1:
            raise BothwaysError(f"k must be 1 or more, not {k}", "out-of-range", k)
        self._k = k
        self._names = [f"mrr@{k}", f"ndcg@{k}", "map", f"recall@{k}", "accuracy@1"]
        self._values = Column(np.float64)
        self._examples = 0
        self.without_relevant = 0

    def add(self, gold: ArrayLike, scores: ArrayLike, missed: Sequence[float] = ()) -> None:
        """Add one query. gold: (D,) relevances, 0 for irrelevant; scores: (D,).

        `missed` holds the relevances of relevant documents that were not ranked: they count in recall, in map, and in
        the ideal order of ndcg.
        """
        relevances, ranks = np.asarray(gold, np.float64), np.asarray(scores, np.float64)
        if relevances.ndim != 1 or relevances.shape != ranks.shape:
            raise shape_error(relevances.shape, "scores", ranks.shape, "(D,) twice")
        every = np.append(relevances, np.asarray(missed, np.float64))
        if np.isnan(ranks).any() or not (np.isfinite(every) & (every >= 0)).all():
            raise BothwaysError("scores must not be nan, and relevances must be finite and 0 or more", "out-of-range")
        self._examples = zlib.crc32(every.tobytes() + b"|", self._examples)
        if not every.any():
            self.without_relevant += 1
            return
        self._values.extend(self._of_query(relevances[np.lexsort((relevances, -ranks))], every))

    def scores(self) -> dict[str, float]:
        """mrr@k, ndcg@k (with linear gain), map, recall@k, accuracy@1."""
        return {name: self.rows(name).value() for name in self._names}

    def rows(self, name: str) -> Resamplable:
        """The queries, each with its value of the score."""
        require_score(name, self._names)
        values = self._values.values().reshape(-1, len(self._names))
        return mean_rows(values[:, self._names.index(name)], self._examples)

    def _of_query(self, ranked: Floats, every: Floats) -> list[float]:
        relevant = ranked > 0
        places = np.flatnonzero(relevant) + 1
        total = int((every > 0).sum())
        reciprocal = 1 / places[0] if len(places) and places[0] <= self._k else 0.0
        gain = _dcg(ranked[: self._k]) / _dcg(np.sort(every)[::-1][: self._k])
        precision = float((np.arange(1, len(places) + 1) / places).sum()) / total
        recall = int(relevant[: self._k].sum()) / total
        return [reciprocal, gain, precision, recall, float(relevant[:1].any())]


class ScoredPairs(Regression):
    """Regression scores of pairs; where a first text occurs in several pairs, also the scores of their ranking.

    >>> pairs = ScoredPairs(k=10)
    >>> pairs.add_pair("capital of France", 0.0, 0.9)
    >>> pairs.add_pair("capital of France", 1.0, 0.8)
    >>> pairs.scores()["mrr@10"]
    0.5
    """

    def __init__(self, k: int = 10):
        super().__init__()
        self._k = k
        self._queries = Column(np.int64)

    def add_pair(self, first: str, gold: float, predicted: float) -> None:
        """Add one pair."""
        self.add([gold], [predicted])
        digest = hashlib.blake2b(first.encode(errors="surrogatepass"), digest_size=8).digest()
        self._queries.extend(np.frombuffer(digest, np.int64))

    def scores(self) -> dict[str, float]:
        """Those of Regression, and of Ranking if a first text occurs in several pairs."""
        ranking = self._ranking()
        return super().scores() | (ranking.scores() if ranking else {})

    def rows(self, name: str) -> Resamplable:
        """The pairs, or the queries, for one score."""
        ranking = self._ranking() if "@" in name or name == "map" else None
        return ranking.rows(name) if ranking else super().rows(name)

    def _ranking(self) -> Ranking | None:
        queries = self._queries.values()
        order = np.argsort(queries, kind="stable")
        starts = np.flatnonzero(np.diff(queries[order])) + 1
        groups = [group for group in np.split(order, starts) if len(group) > 1]
        ranking = Ranking(self._k)
        gold, predicted = self._gold.values(), self._predicted.values()
        for group in groups:
            ranking.add(gold[group], predicted[group])
        return ranking if len(groups) > ranking.without_relevant else None


def _dcg(relevances: Floats) -> float:
    return float((relevances / np.log2(np.arange(2, len(relevances) + 2))).sum())


class Accuracy:
    """Accuracy of predictions that are right or wrong, such as in multiple choice.

    >>> accuracy = Accuracy()
    >>> accuracy.add([True, False, True, True])
    >>> accuracy.scores()
    {'accuracy': 0.75}
    """

    def __init__(self) -> None:
        self._right = Column(np.bool_)

    def add(self, right: ArrayLike) -> None:
        """Add a batch of booleans. (B,)."""
        self._right.extend(np.asarray(right, np.bool_).reshape(-1))

    def scores(self) -> dict[str, float]:
        """accuracy."""
        return {"accuracy": self.rows("accuracy").value()}

    def rows(self, name: str) -> Resamplable:
        """The predictions, right or wrong."""
        require_score(name, ["accuracy"])
        return mean_rows(self._right.values(), 0)
