"""The nearest rows of a matrix by inner product: exact, in bounded memory.

Q queries of a block · C rows of the corpus of a block · W width.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.errors import BothwaysError, require_range
from bothways.model.device import Device
from bothways.search.products import (
    BUDGET,
    BYTES_PER_SCORE,
    Matrix,
    Rows,
    VectorBlock,
    block_of,
    compute_device,
    exact_scores,
    pairs_at_once,
    rounding_bound,
)

_QUERIES_AT_ONCE = 1024
_CROWDED = 8
"""If a block has more candidates for each answer, its own best answers tighten the bound."""
Scores = NDArray[np.float32]


def nearest(
    queries: Matrix,
    corpus: Matrix,
    k: int,
    *,
    budget: int = BUDGET,
    device: Device | None = None,
) -> tuple[Scores, Rows]:
    """The k rows of the corpus with the greatest inner product with each query: scores and row numbers, best first.

    Both are (queries, k), or (queries, rows) if the corpus has fewer than k rows. The corpus may be a memory-mapped
    array of fp32 or fp16 of any size: `budget` bounds the memory in bytes, beside the answers. Of equal scores the
    lower row comes first, and the answer is the same for every budget. `device` is cpu, cuda, or auto, the default: a
    GPU if there is one. For cosine similarity give rows of length 1.

    >>> scores, rows = nearest(np.eye(2, 3), np.eye(3), 2, device="cpu")
    >>> rows.tolist(), scores.tolist()
    ([[0, 1], [1, 0]], [[1.0, 0.0], [1.0, 0.0]])
    """
    blocks = list(nearest_blocks(queries, corpus, k, budget=budget, device=device))
    width = min(k, len(corpus))
    if not blocks:
        return np.zeros((0, width), np.float32), np.zeros((0, width), np.int64)
    return np.concatenate([scores for scores, _ in blocks]), np.concatenate([rows for _, rows in blocks])


def nearest_blocks(
    queries: Matrix,
    corpus: Matrix,
    k: int,
    *,
    at_most: Scores | None = None,
    budget: int = BUDGET,
    device: Device | None = None,
) -> Iterator[tuple[Scores, Rows]]:
    """`nearest` as a stream: the answers to some queries at a time, in order.

    `at_most`: for each query, the greatest score that counts. Where fewer than k rows have no more, the last answers
    have the score -inf and the row -1.
    """
    require_range("`k`", k, k >= 1, "at least 1")
    if queries.ndim != 2 or corpus.ndim != 2 or queries.shape[1] != corpus.shape[1]:
        raise BothwaysError(
            f"the queries are {queries.shape} and the corpus {corpus.shape}: expected two matrices of one width",
            "bad-shape",
            (queries.shape, corpus.shape),
        )
    where = compute_device(device)
    plan = plan_blocks(len(queries), queries.shape[1], min(k, len(corpus)), budget)
    for begin in range(0, len(queries), plan.queries):
        block = block_of(where, queries, slice(begin, begin + plan.queries))
        caps = at_most[begin : begin + plan.queries] if at_most is not None else np.full(len(block.vectors), np.inf)
        best = _Best.empty(torch.from_numpy(caps.astype(np.float32)).to(where), min(k, len(corpus)))
        for first in range(0, len(corpus), plan.rows):
            best.add(block, block_of(where, corpus, slice(first, first + plan.rows)), first, plan.pairs)
        yield best.scores.cpu().numpy(), best.rows.cpu().numpy()


@dataclass(frozen=True)
class BlockPlan:
    """How many queries, rows of the corpus, and pairs of both are handled at a time."""

    queries: int
    rows: int
    pairs: int


def plan_blocks(queries: int, width: int, k: int, budget: int) -> BlockPlan:
    """Blocks that fit the budget: an eighth each for queries, their answers and pairs, the rest for scores and rows."""
    share = budget // 8
    at_once = min(queries, _QUERIES_AT_ONCE, share // (8 * width or 1), share // (36 * k or 1))
    at_once = max(1, at_once)
    rows = 5 * share // (at_once * BYTES_PER_SCORE + 12 * width)
    return BlockPlan(at_once, max(1, rows), pairs_at_once(width, budget))


@dataclass
class _Best:
    """The best answers so far to the queries of a block, (Q, k) each, best first."""

    scores: Tensor
    rows: Tensor
    caps: Tensor
    """(Q,) the greatest score that counts."""

    @classmethod
    def empty(cls, caps: Tensor, k: int) -> "_Best":
        scores = torch.full((len(caps), k), -torch.inf, device=caps.device)
        return cls(scores, torch.full((len(caps), k), -1, dtype=torch.int64, device=caps.device), caps)

    def add(self, queries: VectorBlock, corpus: VectorBlock, first: int, pairs: int) -> None:
        """Take in a block of the corpus whose first row is `first`. Blocks come in order."""
        places = self._candidates(queries, corpus)
        if not len(places):
            return
        scores = exact_scores(queries.vectors, corpus.vectors, places, pairs)
        is_low = scores <= self.caps[places[:, 0]]
        places, scores = places[is_low], scores[is_low]
        if not len(places):
            return
        query, row = places.T
        self._merge(query, row + first, scores)

    def _candidates(self, queries: VectorBlock, corpus: VectorBlock) -> Tensor:
        """(candidates, 2): query and row of all that may belong to the best, by query and then by row."""
        products, k = queries.vectors @ corpus.vectors.T, self.scores.shape[1]
        margin = rounding_bound(queries, corpus)
        bound, caps = self.scores[:, -1:] - margin, self.caps[:, None]
        found = (products >= bound) & (products <= caps + margin)
        if int(found.sum()) > _CROWDED * k * len(products) and products.shape[1] > k:
            # k rows of this block alone have products as great as these, and so have exact scores almost as great.
            sure = torch.where(products <= caps - margin, products, -torch.inf)
            own = sure.topk(k, sorted=True).values[:, -1:]
            found &= products >= own - 2 * margin
        return found.nonzero()

    def _merge(self, query: Tensor, row: Tensor, scores: Tensor) -> None:
        """Sort candidates in. Those of a query come in the order of their rows, after all rows seen before."""
        counts = torch.bincount(query, minlength=len(self.scores))
        place = torch.arange(len(query), device=query.device) - (counts.cumsum(0) - counts)[query]
        shape = len(self.scores), int(counts.max())
        new_scores, new_rows = scores.new_full(shape, -torch.inf), row.new_full(shape, -1)
        new_scores[query, place], new_rows[query, place] = scores, row
        scores, rows = torch.cat([self.scores, new_scores], 1), torch.cat([self.rows, new_rows], 1)
        # A stable sort leaves equal scores in the order of their rows.
        order = scores.sort(dim=1, descending=True, stable=True).indices[:, : self.scores.shape[1]]
        self.scores, self.rows = scores.gather(1, order), rows.gather(1, order)
