"""Scores of numbers, such as the likeness of two sentences.

B in a batch · N examples · K kinds of example
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Column, Floats, Resamplable, Whole, divide, group_sums, mean_rows, no_rows

_NAMES = ["pearson", "spearman", "mean_squared_error", "mean_absolute_error"]
_NOISE = 1e-13  # a spread this small beside the values themselves is what rounding left


class Numbers:
    """Predicted numbers against gold ones.

    A correlation with numbers that are all equal is not defined; it is 0 here, for such a model says nothing.

    >>> numbers = Numbers()
    >>> numbers.add([0.0, 2.5, 5.0], [0.1, 0.2, 0.9])
    >>> round(numbers.scores()["spearman"], 3)
    1.0
    """

    def __init__(self) -> None:
        self._gold, self._predicted = Column(np.float64), Column(np.float64)

    def add(self, gold: ArrayLike, predicted: ArrayLike) -> None:
        """Count a batch. Both: (B,)."""
        truth, guess = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
        if truth.ndim != 1 or truth.shape != guess.shape:
            raise BothwaysError(f"gold of shape {truth.shape} and predictions of {guess.shape}: expected (B,) twice")
        if not (np.isfinite(truth).all() and np.isfinite(guess).all()):
            raise BothwaysError("a number is infinite or none at all: expected finite gold and predictions")
        self._gold.extend(truth)
        self._predicted.extend(guess)

    def scores(self) -> dict[str, float]:
        """pearson, spearman (equal numbers share their mean rank), mean_squared_error, mean_absolute_error."""
        return {name: self.rows(name).value() for name in _NAMES}

    def rows(self, name: str) -> Resamplable:
        """The pairs as one score sees them: each with its error, or each pair of numbers as a kind."""
        if name not in _NAMES:
            no_rows(name, _NAMES)
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
    """Pearson's correlation of values that occur so often. All: (..., K) → (...)."""
    total = counts.sum(-1, keepdims=True)
    deviations = []
    for values in (first, second):
        centred = values - (counts * values).sum(-1, keepdims=True) / total
        spread = (counts * centred**2).sum(-1, keepdims=True)
        real = spread > _NOISE**2 * (counts * values**2).sum(-1, keepdims=True)
        deviations.append(divide(centred, np.sqrt(np.where(real, spread, 0.0))))
    found: Floats = (counts * deviations[0] * deviations[1]).sum(-1)
    return np.clip(found, -1.0, 1.0)


def _ranks(counts: Floats, places: Whole) -> Floats:
    """Ranks from 1, equal values at their mean. places: (K,) the order of each kind's value → (..., K)."""
    together = group_sums(counts, places, int(places.max()) + 1)
    return (together.cumsum(-1) - (together - 1) / 2)[..., places]
