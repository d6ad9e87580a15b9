"""Joins rankings of different kinds into one."""

from collections.abc import Sequence

RANK_CONSTANT = 60
"""k of Cormack, Clarke and Büttcher (2009), who found little difference between 60 and its neighbours."""


def reciprocal_rank_fusion(rankings: Sequence[Sequence[int]], constant: int = RANK_CONSTANT) -> list[tuple[int, float]]:
    """Items with their fused scores, best first: the sum of 1 / (constant + rank) over the rankings that have an item.

    Only ranks count, so that scores of different kinds, such as cosines and BM25, need no common scale. Of equal scores
    the item that comes first in the first ranking comes first.

    >>> [item for item, _ in reciprocal_rank_fusion([[7, 3, 5], [3, 9]])]
    [3, 7, 9, 5]
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, item in enumerate(ranking, 1):
            scores[item] = scores.get(item, 0.0) + 1 / (constant + rank)
    return sorted(scores.items(), key=lambda found: -found[1])
