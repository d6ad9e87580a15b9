"""Precision, recall and F1 from the counts of right, gold and predicted labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.label_checks import listed
from bothways.scoring.accumulator import Floats, divide


@dataclass(frozen=True)
class LabelScores:
    """The scores of one label. 0 where there is no prediction, or no gold label."""

    precision: float
    recall: float
    f1: float
    support: int
    """The number of gold labels."""


def f1_score(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """The harmonic mean of precision and recall; 0 without gold labels and predictions."""
    return divide(2 * right, gold + predicted)


def macro_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """The mean F1 of the labels that occur in gold or predictions, as in scikit-learn. (..., C) → (...)."""
    occur = gold + predicted > 0
    return divide(f1_score(right, gold, predicted).sum(-1), occur.sum(-1).astype(np.float64))


def scores_by_label(names: Sequence[str], right: Floats, gold: Floats, predicted: Floats) -> dict[str, LabelScores]:
    """The scores of each label. Counts: (C,)."""
    columns = [divide(right, predicted), divide(right, gold), f1_score(right, gold, predicted)]
    return {
        name: LabelScores(float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(names, *columns, gold, strict=True)
    }


def never_predicted(names: Sequence[str], gold: NDArray[Any], predicted: NDArray[Any]) -> str:
    """A sentence about labels that occur and were never predicted; "" if there are none. Counts: (C,).

    >>> never_predicted(["joy", "awe"], np.array([3, 1]), np.array([0, 0]))
    'nothing was predicted: no text got a label'
    >>> never_predicted(["joy", "awe"], np.array([3, 1]), np.array([4, 0]))
    "never predicted, although the data have it: 'awe'"
    """
    if gold.sum() and not predicted.sum():
        return "nothing was predicted: no text got a label"
    missing = [name for name, has, got in zip(names, gold, predicted, strict=True) if has and not got]
    them = "it" if len(missing) == 1 else "them"
    return f"never predicted, although the data have {them}: {listed(missing)}" if missing else ""
