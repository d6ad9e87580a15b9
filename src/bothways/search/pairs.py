"""The most similar pairs of texts, and groups of near-duplicates, by the cosine of their vectors.

All pairs are compared, block by block: memory does not grow with the number of texts.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError, require_range
from bothways.model.device import Device, Precision
from bothways.predict.encode_options import Long
from bothways.predict.given_texts import texts_of
from bothways.predict.roles import RoleEncoder
from bothways.predict.source import AnyModel, open_source
from bothways.progress import Watch, watch_nothing
from bothways.search.products import (
    BUDGET,
    Matrix,
    Rows,
    VectorBlock,
    block_of,
    compute_device,
    exact_scores,
    is_at_least,
    pairs_at_once,
    rounding_bound,
    square_side,
)
from bothways.search.text_vectors import (
    Distinct,
    given_vectors,
    require_match,
    stored_vectors,
)
from bothways.text.frames import not_a_text

TOP, MOST = 100, 100_000
"""Pairs by default: without a bound on their score, and with one."""
THRESHOLD = 0.95
"""Cosine from which texts are near-duplicates."""
_CROWDED = 8
"""If a block has more candidates for each answer, its own best answers tighten the bound."""


class SimilarPair(NamedTuple):
    """Two texts and the cosine of their vectors."""

    score: float
    first: int
    """The number of the text that comes first, counted from 0."""
    second: int


def similar_pairs(
    texts: Any,
    model: AnyModel = None,
    *,
    text: str | None = None,
    top: int | None = None,
    above: float | None = None,
    vectors: Matrix | None = None,
    long: Long = "error",
    device: Device | None = None,
    dtype: Precision | None = None,
    budget: int = BUDGET,
    watch: Watch = watch_nothing,
) -> list[SimilarPair]:
    """The most similar pairs among texts, best first: the `top` best, or all whose cosine is `above` or more.

    Equal texts are compared once, under the number of the first: `near_duplicates` finds them. By default there are
    100 pairs, and with `above` at most 100,000. `vectors` are those of the texts, if they are known: a (texts, width)
    matrix, perhaps memory-mapped. `budget` bounds the memory in bytes. Of a table `text` names the column of the texts.
    For the rest see `encode`.
    """
    texts = texts_of(texts, text)
    require_texts(texts, vectors)
    limit = top if top is not None else TOP if above is None else MOST
    require_range("`top`", limit, limit >= 1, "at least 1")
    require_range("`above`", above, above is None or -1 <= above <= 1, "between -1 and 1")
    distinct = Distinct.of(texts)
    with _vectors(distinct, model, vectors, long, device, dtype, watch) as matrix:
        best = _BestPairs(limit + (top is None), -math.inf if above is None else above)
        for left, right, places in _squares(matrix, device, budget, watch):
            best.add(left, right, places, pairs_at_once(matrix.shape[1], budget))
    scores, first, second = best.sorted()
    if top is None and above is not None and len(scores) > limit:
        warnings.warn(
            f"there are more than {limit:,} pairs at {above} or above: name a number with `top`", stacklevel=2
        )
    columns = (scores, distinct.first[first], distinct.first[second])
    return [SimilarPair(*row) for row in zip(*(column[:limit].tolist() for column in columns), strict=True)]


def near_duplicates(
    texts: Any,
    model: AnyModel = None,
    *,
    text: str | None = None,
    threshold: float = THRESHOLD,
    vectors: Matrix | None = None,
    long: Long = "error",
    device: Device | None = None,
    dtype: Precision | None = None,
    budget: int = BUDGET,
    watch: Watch = watch_nothing,
) -> list[list[int]]:
    """Groups of texts that say almost the same: the numbers of their texts, in order; the largest group first.

    Two texts are in one group if their cosine is at least `threshold`, or if a chain of such pairs joins them. Equal
    texts are always in one group. For the other arguments see `similar_pairs`.
    """
    texts = texts_of(texts, text)
    require_texts(texts, vectors)
    require_range("`threshold`", threshold, -1 <= threshold <= 1, "between -1 and 1")
    distinct = Distinct.of(texts)
    with _vectors(distinct, model, vectors, long, device, dtype, watch) as matrix:
        parents: Rows = np.arange(len(matrix))
        for left, right, (begin, other) in _squares(matrix, device, budget, watch):
            found = is_at_least(left, right, threshold, pairs_at_once(matrix.shape[1], budget))
            _join(parents, found.nonzero().cpu().numpy() + np.array([begin, other]))
    return _groups(_roots(parents)[distinct.owners])


def require_texts(texts: Sequence[str], vectors: Matrix | None) -> None:
    """Refuse a single string, what is not a text, and vectors that are not one for each text."""
    if isinstance(texts, str):
        raise BothwaysError(
            "a list of texts was expected, and one string was given: put it in a list", "bad-input", texts
        )
    for text in texts:
        if not isinstance(text, str):
            raise not_a_text(text)
    require_match(texts, vectors)


def _vectors(
    distinct: Distinct,
    model: AnyModel,
    vectors: Matrix | None,
    long: Long,
    device: Device | None,
    dtype: Precision | None,
    watch: Watch,
) -> AbstractContextManager[Matrix]:
    """The vectors of distinct texts: computed, or those that are given."""
    if vectors is not None:
        return given_vectors(vectors, distinct.first)
    return stored_vectors(distinct.texts, RoleEncoder(open_source(model, None, device, dtype), long=long), watch)


def _squares(
    matrix: Matrix, device: Device | None, budget: int, watch: Watch
) -> Iterator[tuple[VectorBlock, VectorBlock, tuple[int, int]]]:
    """All pairs of blocks of a matrix, each once, with the numbers of their first rows."""
    where, side = compute_device(device), square_side(matrix.shape[1], budget)
    starts = list(range(0, len(matrix), side))
    pairs = [(begin, other) for begin in starts for other in starts if begin <= other]
    left, held = None, -1
    for begin, other in watch(pairs, "comparing"):
        if begin != held:
            left, held = block_of(where, matrix, slice(begin, begin + side)), begin
        assert left is not None
        right = left if other == begin else block_of(where, matrix, slice(other, other + side))
        yield left, right, (begin, other)


class _BestPairs:
    """The best pairs so far."""

    def __init__(self, limit: int, bound: float) -> None:
        self.limit, self.bound = limit, bound
        self.scores, self.first, self.second = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64)

    def add(self, left: VectorBlock, right: VectorBlock, places: tuple[int, int], at_once: int) -> None:
        """Take in the pairs of two blocks, which begin at these rows."""
        found = self._candidates(left, right, is_diagonal=places[0] == places[1])
        scores = exact_scores(left.vectors, right.vectors, found, at_once)
        kept = scores >= self.bound
        pairs = found[kept].cpu().numpy() + np.array(places)
        self.scores = np.concatenate([self.scores, scores[kept].cpu().numpy()])
        self.first, self.second = np.concatenate([self.first, pairs[:, 0]]), np.concatenate([self.second, pairs[:, 1]])
        if len(self.scores) > self.limit + min(self.limit, 1000):
            self.sorted()

    def _candidates(self, left: VectorBlock, right: VectorBlock, is_diagonal: bool) -> Tensor:
        """(candidates, 2): all that may be among the best pairs."""
        products, margin = left.vectors @ right.vectors.T, rounding_bound(left, right)
        found = products >= self.bound - margin
        if is_diagonal:
            found = found.triu(1)
        count = int(found.sum())
        if count > _CROWDED * self.limit:
            # So many pairs have products as great as this, and so have exact scores almost as great.
            own = products[found].topk(self.limit, sorted=True).values[-1]
            found &= products >= own - 2 * margin
        return found.nonzero()

    def sorted(self) -> tuple[NDArray[np.float32], Rows, Rows]:
        """The best pairs: by score, then by the number of the first text, then of the second."""
        order = np.lexsort((self.second, self.first, -self.scores))[: self.limit]
        self.scores, self.first, self.second = self.scores[order], self.first[order], self.second[order]
        if len(order) == self.limit:
            self.bound = max(self.bound, float(self.scores[-1]))
        return self.scores, self.first, self.second


def _roots(parents: Rows) -> Rows:
    """The root of each node of a forest."""
    while True:
        above = parents[parents]
        if np.array_equal(above, parents):
            return parents
        parents = above


def _join(parents: Rows, pairs: Rows) -> None:
    """Join the trees of each pair of nodes; the lower root stays."""
    while len(pairs):
        parents[:] = _roots(parents)
        roots = np.sort(parents[pairs], axis=1)
        pairs = np.unique(roots[roots[:, 0] != roots[:, 1]], axis=0)
        np.minimum.at(parents, pairs[:, 1], pairs[:, 0])


def _groups(labels: Rows) -> list[list[int]]:
    """The numbers of equal labels, where there are several: the largest group first, then by their first number."""
    order = np.argsort(labels, kind="stable")
    parts: Iterable[Rows] = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted((part.tolist() for part in parts if len(part) > 1), key=lambda group: (-len(group), group[0]))
