"""Joins rankings of different kinds into one."""

from collections.abc import Sequence


def mean_of_scaled(
    rankings: Sequence[Sequence[tuple[int, float]]], lowest: Sequence[float | None]
) -> list[tuple[int, float]]:
    """Items with their fused scores, best first: the mean of the rankings' scores, each scaled to lie between 0 and 1.

    The best item of a ranking has 1; what it lacks, and what is not above `lowest`, has 0. None: the score of the last
    item. Of equal scores the item that comes first in the first ranking comes first.

    >>> mean_of_scaled([[(7, 0.9), (3, 0.8), (5, 0.5)], [(3, 12.0), (9, 6.0)]], [None, 0.0])
    [(3, 0.875), (7, 0.5), (9, 0.25), (5, 0.0)]
    """
    fused: dict[int, float] = {}
    for ranking, low in zip(rankings, lowest, strict=True):
        if not ranking:
            continue
        best = ranking[0][1]
        zero = ranking[-1][1] if low is None else low
        for item, score in ranking:
            scaled = (score - zero) / (best - zero) if best > zero else float(score >= zero)
            fused[item] = fused.get(item, 0.0) + max(scaled, 0.0) / len(rankings)
    return sorted(fused.items(), key=lambda found: -found[1])
