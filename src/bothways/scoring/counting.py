"""Precision, recall and F1 from three counts: how many were right, in the gold, and predicted."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bothways.scoring.accumulator import Floats, divide


@dataclass(frozen=True)
class Detail:
    """The scores of one label. 0 where nothing was predicted, or nothing was there to be found."""

    precision: float
    recall: float
    f1: float
    support: int
    """How many there are in the gold."""


def f1_score(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """The harmonic mean of precision and recall; 0 where there is neither gold nor prediction."""
    return divide(2 * right, gold + predicted)


def macro_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """The mean F1 of the labels that occur in gold or predictions, as scikit-learn means it. (..., C) → (...)."""
    occur = gold + predicted > 0
    return divide(f1_score(right, gold, predicted).sum(-1), occur.sum(-1).astype(np.float64))


def details(names: Sequence[str], right: Floats, gold: Floats, predicted: Floats) -> dict[str, Detail]:
    """One Detail for each name. Counts: (C,)."""
    columns: list[NDArray[np.float64]] = [
        divide(right, predicted),
        divide(right, gold),
        f1_score(right, gold, predicted),
    ]
    return {
        name: Detail(float(precision), float(recall), float(f1), int(support))
        for name, precision, recall, f1, support in zip(names, *columns, gold, strict=True)
    }
