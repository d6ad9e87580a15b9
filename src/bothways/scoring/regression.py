"""Metrics of regression, such as semantic similarity.

B in a batch · N examples · K kinds of example
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import (
    Column,
    Floats,
    Ints,
    Resamplable,
    divide,
    group_sums,
    mean_rows,
    require_score,
    shape_error,
)

_NAMES = ["pearson", "spearman", "mean_squared_error", "mean_absolute_error"]
_NOISE = 1e-13  # a relative standard deviation below this is rounding noise


class Regression:
    """Correlations and errors of predicted numbers.

    The correlation with a constant is undefined; it is 0 here.

    >>> regression = Regression()
    >>> regression.add([0.0, 2.5, 5.0], [0.1, 0.2, 0.9])
    >>> round(regression.scores()["spearman"], 3)
    1.0
    """

    def __init__(self) -> None:
        self._gold, self._predicted = Column(np.float64), Column(np.float64)

    def add(self, gold: ArrayLike, predicted: ArrayLike) -> None:
        """Add a batch. Both: (B,)."""
        truth, guess = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
        if truth.ndim != 1 or truth.shape != guess.shape:
            raise shape_error(truth.shape, "predictions", guess.shape, "(B,) twice")
        if not (np.isfinite(truth).all() and np.isfinite(guess).all()):
            raise BothwaysError("a number is infinite or nan: expected finite gold and predictions", "not-finite")
        self._gold.extend(truth)
        self._predicted.extend(guess)

    def scores(self) -> dict[str, float]:
        """pearson, spearman (ties share their mean rank), mean_squared_error, mean_absolute_error."""
        return {name: self.rows(name).value() for name in _NAMES}

    def rows(self, name: str) -> Resamplable:
        """The examples for one score: each with its error, or each distinct (gold, predicted) as a kind."""
        require_score(name, _NAMES)
        gold, predicted = self._gold.values(), self._predicted.values()
        examples = zlib.crc32(gold.tobytes())
        if name == "mean_squared_error":
            return mean_rows((gold - predicted) ** 2, examples)
        if name == "mean_absolute_error":
            return mean_rows(np.abs(gold - predicted), examples)
        pairs, kinds = np.unique(np.stack([gold, predicted]), axis=1, return_inverse=True)
        if name == "spearman":
            gold_places, predicted_places = (np.unique(values, return_inverse=True)[1] for values in pairs)

            def score(counts: Floats) -> Floats:
                return _correlation(counts, _ranks(counts, gold_places), _ranks(counts, predicted_places))

        else:

            def score(counts: Floats) -> Floats:
                return _correlation(counts, pairs[0], pairs[1])

        return Resamplable(kinds.reshape(-1), score, examples)


def _correlation(counts: Floats, first: Floats, second: Floats) -> Floats:
    """Pearson's correlation of values weighted by counts. All: (..., K) → (...)."""
    total = counts.sum(-1, keepdims=True)
    deviations = []
    for values in (first, second):
        centred = values - (counts * values).sum(-1, keepdims=True) / total
        spread = (counts * centred**2).sum(-1, keepdims=True)
        is_real = spread > _NOISE**2 * (counts * values**2).sum(-1, keepdims=True)
        deviations.append(divide(centred, np.sqrt(np.where(is_real, spread, 0.0))))
    found: Floats = (counts * deviations[0] * deviations[1]).sum(-1)
    return np.clip(found, -1.0, 1.0)


def _ranks(counts: Floats, places: Ints) -> Floats:
    """Ranks from 1, ties at their mean. places: (K,) the position of each kind's value in sorted order → (..., K)."""
    ties = group_sums(counts, places, int(places.max()) + 1)
    return (ties.cumsum(-1) - (ties - 1) / 2)[..., places]
