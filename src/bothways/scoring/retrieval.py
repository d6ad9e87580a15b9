"""Metrics of retrieval against graded relevance judgements, equal to those of trec_eval (pytrec_eval).

D documents retrieved for a query · R of these are relevant · C cutoffs
"""

import zlib
from collections.abc import Mapping, Sequence
from itertools import repeat

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import BothwaysError, require_range
from bothways.scoring.accumulator import (
    Column,
    Floats,
    Ints,
    Resamplable,
    divide,
    mean_rows,
    require_score,
    shape_error,
)

_BY_CUTOFF = ("ndcg", "mrr", "map", "recall", "precision")


class Retrieval:
    """nDCG, MRR, MAP, recall and precision of the documents retrieved for each query.

    Documents are ranked by score. As in trec_eval, scores are rounded to 32-bit floats first, and of equal scores the
    document whose id is larger as a string comes first. A document without a judgement, or with a judgement of 0 or
    below, is not relevant. A judged query without a relevant document scores 0.

    A judged query for which nothing was retrieved scores 0 too. pytrec_eval leaves out a query that the results do not
    name, so the mean of its output is higher than ours where a system returned nothing.

    >>> retrieval = Retrieval(cutoffs=[10])
    >>> retrieval.add("q1", {"paris": 2, "lyon": 1}, ["berlin", "paris"], [0.9, 0.8])
    >>> retrieval.add("q2", {"北京": 1}, ["北京", "上海"], [0.9, 0.8])
    >>> retrieval.scores()["mrr@10"]
    0.75
    """

    def __init__(self, cutoffs: Sequence[int] = (1, 10, 100)):
        require_range("cutoffs", list(cutoffs), min(cutoffs, default=0) > 0, "one or more numbers from 1")
        self._cutoffs: Ints = np.unique(np.asarray(cutoffs, np.int64))
        self._names = [*(f"{kind}@{k}" for kind in _BY_CUTOFF for k in self._cutoffs), "map"]
        self._values = Column(np.float64)
        self._queries: dict[str, None] = {}
        self._examples = 0
        self.without_relevant = 0
        """Judged queries without a relevant document: each scores 0."""
        self.without_results = 0
        """Judged queries for which nothing was retrieved: each scores 0."""

    def add(self, query: str, judgements: Mapping[str, int], documents: Sequence[str], scores: ArrayLike) -> None:
        """Add one query. judgements: the relevance of each judged document; documents: the ids retrieved, in any order;
        scores: (D,).
        """
        matches = np.asarray(scores, np.float64)
        if matches.shape != (len(documents),):
            raise shape_error((len(documents),), "scores", matches.shape, "one score for each document")
        self._check(query, judgements, documents, matches)
        every = np.array(sorted(judgements.values(), reverse=True))
        relevances = np.fromiter(map(judgements.get, documents, repeat(0)), np.int64, len(documents))
        self._queries[query] = None
        self._examples = zlib.crc32(_bytes_of(query, judgements), self._examples)
        self.without_relevant += int(every[0] < 1)
        self.without_results += not len(documents)
        self._values.extend(self._of_query(relevances[_order(documents, matches)], every[every > 0]))

    def scores(self) -> dict[str, float]:
        """The means over the judged queries: ndcg@k, mrr@k, map@k, recall@k and precision@k of each cutoff, and map.

        The gain of nDCG is the relevance, as in trec_eval's ndcg_cut. `map` has no cutoff.
        """
        return {name: self.rows(name).value() for name in self._names}

    def by_query(self) -> dict[str, dict[str, float]]:
        """The scores of each query by its id."""
        rows = self._values.values().reshape(-1, len(self._names)).tolist()
        return {query: dict(zip(self._names, row, strict=True)) for query, row in zip(self._queries, rows, strict=True)}

    def rows(self, name: str) -> Resamplable:
        """The queries, each with its value of the score."""
        require_score(name, self._names)
        values = self._values.values().reshape(-1, len(self._names))
        return mean_rows(values[:, self._names.index(name)], self._examples)

    def _check(self, query: str, judgements: Mapping[str, int], documents: Sequence[str], matches: Floats) -> None:
        if query in self._queries:
            raise BothwaysError(f"query {query!r} was added before: add each query once", "repeated-id", query)
        if not judgements:
            raise BothwaysError(f"query {query!r} has no judgements: add the judged queries only", "unjudged", query)
        if not all(isinstance(grade, int | np.integer) and abs(int(grade)) < 2**31 for grade in judgements.values()):
            says = f"query {query!r} has a relevance that is no integer of 32 bits: expected grades such as 0, 1 and 2"
            raise BothwaysError(says, "bad-relevance", query)
        if np.isnan(matches).any():
            raise BothwaysError(f"query {query!r} has a score that is nan: expected numbers", "not-finite", query)
        if len(set(documents)) < len(documents):
            raise BothwaysError(f"query {query!r} has one document twice in its results", "repeated-id", query)

    def _of_query(self, ranked: Ints, ideal: Ints) -> Floats:
        """The scores in the order of their names. ranked: (D,) relevances by rank; ideal: those of all relevant."""
        ranks = np.flatnonzero(ranked > 0) + 1  # (R,)
        found = np.searchsorted(ranks, self._cutoffs, "right")  # (C,) relevant documents up to each cutoff
        gains, best = _discounted(ranked[ranks - 1], ranks), _discounted(ideal, np.arange(1, len(ideal) + 1))
        precisions = _sums(np.arange(1, len(ranks) + 1) / ranks)
        total = np.float64(max(len(ideal), 1))
        by_cutoff = [
            divide(gains[found], best[np.minimum(self._cutoffs, len(ideal))]),
            (found > 0) / np.float64(ranks[0] if len(ranks) else 1),
            precisions[found] / total,
            found / total,
            found / self._cutoffs,
        ]
        return np.append(np.concatenate(by_cutoff), precisions[-1] / total)


def score_results(
    judgements: Mapping[str, Mapping[str, int]],
    results: Mapping[str, Mapping[str, float]],
    cutoffs: Sequence[int] = (1, 10, 100),
) -> Retrieval:
    """Score the results of all judged queries: by query, the relevance and the score of each document.

    These are the dictionaries of pytrec_eval and BEIR. A judged query without results scores 0; results of queries
    without judgements are ignored.

    >>> found = score_results({"q1": {"d1": 1}, "q2": {"d1": 1}}, {"q1": {"d1": 0.5, "d2": 0.4}}, cutoffs=[1])
    >>> found.scores()["recall@1"]
    0.5
    """
    retrieval = Retrieval(cutoffs)
    for query, judged in judgements.items():
        mine = results.get(query, {})
        retrieval.add(query, judged, list(mine), np.fromiter(mine.values(), np.float64, len(mine)))
    return retrieval


def _order(documents: Sequence[str], matches: Floats) -> Ints:
    """The places of the documents in trec_eval's order: by score, then by id, both from large to small. (D,)."""
    with np.errstate(over="ignore"):  # a score beyond 3.4e38 is infinite, as in trec_eval
        keys = -matches.astype(np.float32)
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    if (ranked[1:] == ranked[:-1]).any():
        # Ids are sorted only where it matters: it takes longer than everything else. Python orders strings by code
        # point, which is the order of their UTF-8 bytes, which trec_eval compares.
        by_id = np.array(sorted(range(len(documents)), key=documents.__getitem__, reverse=True))
        order = by_id[np.argsort(keys[by_id], kind="stable")]
    return order


def _discounted(gains: Ints, ranks: Ints) -> Floats:
    """The discounted cumulative gain after 0, 1, … of these documents. (R,) → (R + 1,)."""
    return _sums(gains / np.log2(ranks + 1))


def _sums(values: Floats) -> Floats:
    """The sums of the first 0, 1, … values. (R,) → (R + 1,)."""
    return np.concatenate([[0.0], np.cumsum(values)])


def _bytes_of(query: str, judgements: Mapping[str, int]) -> bytes:
    """What two models must share to be compared on this query."""
    return repr((query, sorted((document, int(grade)) for document, grade in judgements.items()))).encode()
