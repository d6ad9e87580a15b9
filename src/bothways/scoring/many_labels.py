"""Metrics of multi-label classification.

B in a batch · N examples · L labels · K kinds of example
"""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import BothwaysError
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
from bothways.scoring.classification import checked_labels
from bothways.scoring.counting import LabelScores, f1_score, never_predicted, scores_by_label

_NAMES = ["micro_f1", "macro_f1", "exact_match"]
_MOST_EXACT = 1_000_000
_BINS = 4096
_LARGEST_LOGIT = 20.0
_PRIOR = 4.0
"""Gold labels that the common threshold counts for, beside the own one of a label: 2 to 10 give the highest F1 on other
data in simulations, where the own threshold alone overfits labels with fewer than ten."""


class ManyLabels:
    """F1, exact match and average precision of any number of labels per text.

    A label is predicted if its probability reaches its threshold. Macro F1 is the mean over all labels, as in
    scikit-learn; a label without gold and predictions has 0. Average precision is exact up to a million probabilities.
    Beyond, to bound memory, it comes from a histogram of log-odds, 4,096 bins between -20 and 20: log-odds less than
    0.01 apart count as equal. It is nan for a label without gold, which the mean leaves out.

    >>> many = ManyLabels(["joy", "fear"])
    >>> many.add([[1, 0], [1, 1]], [[0.9, 0.2], [0.3, 0.7]])
    >>> many.scores()["exact_match"]
    0.5
    """

    def __init__(self, labels: Sequence[str], thresholds: ArrayLike = 0.5):
        self.labels = checked_labels(labels)
        self._thresholds = np.asarray(thresholds, np.float64)
        if self._thresholds.shape not in {(), (len(self.labels),)}:
            says = f"{self._thresholds.shape} thresholds for {len(self.labels)} labels: expected one, or one per label"
            raise BothwaysError(says, "shape-mismatch", self._thresholds.shape)
        self._gold, self._predicted = Column(np.uint8), Column(np.uint8)  # one bit per label
        self._chances: Column | None = Column(np.float64)
        self._histogram = np.zeros((len(self.labels), 2, _BINS), np.int64)

    def add(self, gold: ArrayLike, probabilities: ArrayLike) -> None:
        """Add a batch. gold: (B, L) zeros and ones, probabilities: (B, L), each between 0 and 1."""
        truth, chances = self._checked(np.asarray(gold), np.asarray(probabilities, np.float64))
        self._gold.extend(np.packbits(truth, axis=-1))
        self._predicted.extend(np.packbits(chances >= self._thresholds, axis=-1))
        if self._chances is None:
            self._fold(truth, chances)
            return
        self._chances.extend(chances)
        if len(self._chances) > _MOST_EXACT:
            self._fold(self._bits(self._gold), self._chances.values())
            self._chances = None

    def scores(self) -> dict[str, float]:
        """micro_f1, macro_f1, exact_match, macro_average_precision."""
        found = {name: self.rows(name).value() for name in _NAMES}
        precisions = [value for value in self.average_precisions().values() if not np.isnan(value)]
        return {**found, "macro_average_precision": float(np.mean(precisions)) if precisions else float("nan")}

    def rows(self, name: str) -> Resamplable:
        """The texts for one score, with their gold and predicted labels."""
        require_score(name, _NAMES)  # average precision is not among them: its histogram has no texts
        gold, predicted = self._bits(self._gold), self._bits(self._predicted)
        examples = zlib.crc32(gold.tobytes())
        if name == "exact_match":
            return mean_rows((gold == predicted).all(-1), examples)
        both, kinds = np.unique(np.hstack([gold, predicted]), axis=0, return_inverse=True)
        of_gold, of_predicted = np.hsplit(both.astype(np.float64), 2)
        of_right, formula = of_gold * of_predicted, _micro_f1 if name == "micro_f1" else _mean_f1

        def score(counts: Floats) -> Floats:
            return formula(counts @ of_right, counts @ of_gold, counts @ of_predicted)

        return Resamplable(kinds.reshape(-1), score, examples)

    def per_label(self) -> dict[str, LabelScores]:
        """Precision, recall, F1 and support of each label."""
        gold, predicted = self._bits(self._gold), self._bits(self._predicted)
        return scores_by_label(self.labels, *(b.sum(0).astype(np.float64) for b in (gold & predicted, gold, predicted)))

    def average_precisions(self) -> dict[str, float]:
        """Σ over scores of (gain in recall) × precision, as in scikit-learn; nan for a label without gold."""
        found = {}
        for number, label in enumerate(self.labels):
            _, no, yes = self._levels(number)
            precision = divide(yes.cumsum(), (yes + no).cumsum())
            found[label] = float(divide((precision * yes).sum(), yes.sum(), np.nan))
        return found

    def best_thresholds(self) -> dict[str, float]:
        """The threshold with the best F1 of each label; 0.5 for a label without gold."""
        return {label: self._best_threshold(number)[0] for number, label in enumerate(self.labels)}

    def tuned_thresholds(self) -> dict[str, float]:
        """Thresholds for other data: that with the best F1 of each label, drawn towards the best of all together.

        The log-odds are averaged, so that the own threshold of a label counts for as much as it has gold labels, and
        the common one for four; the common one itself is drawn towards 0.5 in the same way.
        """
        common = _averaged(*self._best_threshold(None), 0.5)
        return {label: _averaged(*self._best_threshold(i), common) for i, label in enumerate(self.labels)}

    def rescored(self, thresholds: Mapping[str, float]) -> "ManyLabels | None":
        """The same texts with other thresholds; None if their probabilities are no longer kept."""
        if self._chances is None:
            return None
        found = ManyLabels(self.labels, [thresholds[label] for label in self.labels])
        found.add(self._bits(self._gold), self._chances.values().reshape(-1, len(self.labels)))
        return found

    def never_predicted(self) -> str:
        """A sentence about labels that occur and were never predicted; "" if there are none."""
        return never_predicted(self.labels, self._bits(self._gold).sum(0), self._bits(self._predicted).sum(0))

    def _best_threshold(self, label: int | None) -> tuple[float, float]:
        """The threshold with the best F1, 0.5 without gold labels; and the number of these."""
        edges, no, yes = self._levels(label)
        right, predicted, gold = yes.cumsum(), (yes + no).cumsum(), float(yes.sum())
        best = f1_score(right, np.full_like(right, gold), predicted).argmax() if gold else None
        return (0.5 if best is None else float(edges[best])), gold

    def _levels(self, label: int | None) -> tuple[Floats, Floats, Floats]:
        """The distinct probabilities of a label, or of all, highest first: lower edges, texts without and with it."""
        which = slice(None) if label is None else [label]
        if self._chances is None:
            no, yes = self._histogram[which, :, ::-1].sum(0).astype(np.float64)
            return 1 / (1 + np.exp(_LARGEST_LOGIT - np.arange(_BINS)[::-1] * (2 * _LARGEST_LOGIT / _BINS))), no, yes
        chances = self._chances.values().reshape(-1, len(self.labels))[:, which].reshape(-1)
        levels, places = np.unique(chances, return_inverse=True)
        gold = self._bits(self._gold)[:, which].reshape(-1)
        every, yes = np.zeros(len(levels)), np.zeros(len(levels))
        np.add.at(every, places, 1)
        np.add.at(yes, places, gold)
        edges = (levels + np.concatenate([[0.0], levels[:-1]])) / 2  # half-way, so that rounding changes no prediction
        return edges[::-1], (every - yes)[::-1], yes[::-1]

    def _fold(self, gold: NDArray[Any], chances: Floats) -> None:
        """Add probabilities, (B, L), to the histogram."""
        chances = chances.reshape(-1, len(self.labels))
        np.add.at(self._histogram, (np.arange(len(self.labels)), gold.astype(np.int64), _histogram_bin(chances)), 1)

    def _bits(self, column: Column) -> NDArray[np.uint8]:
        packed = column.values().reshape(-1, -(-len(self.labels) // 8))
        return np.unpackbits(packed, axis=-1, count=len(self.labels))

    def _checked(self, gold: NDArray[Any], probabilities: Floats) -> tuple[NDArray[np.bool_], Floats]:
        size = len(self.labels)
        if not gold.size and not probabilities.size:
            gold, probabilities = np.zeros((0, size)), np.zeros((0, size))
        if gold.shape != probabilities.shape or gold.shape[1:] != (size,):
            raise shape_error(gold.shape, "probabilities", probabilities.shape, f"(B, {size}) twice")
        if not ((gold == 0) | (gold == 1)).all():
            raise BothwaysError("gold must be zeros and ones, with a column for each label", "out-of-range")
        if not ((probabilities >= 0) & (probabilities <= 1)).all():
            raise BothwaysError(
                "probabilities are not between 0 and 1: pass the sigmoid of the logits", "not-probabilities"
            )
        return gold.astype(bool), probabilities


def _histogram_bin(probabilities: Floats) -> Ints:
    least = np.exp(-2 * _LARGEST_LOGIT)
    odds = np.log(np.maximum(probabilities, least)) - np.log(np.maximum(1 - probabilities, least))
    return np.clip((odds + _LARGEST_LOGIT) * (_BINS / (2 * _LARGEST_LOGIT)), 0, _BINS - 1).astype(np.int64)


def _averaged(threshold: float, gold: float, common: float) -> float:
    """The mean of two thresholds in log-odds, weighted by their gold labels."""
    own, other = (float(np.log(p / (1 - p))) for p in np.clip([threshold, common], 1e-9, 1 - 1e-9))
    return float(1 / (1 + np.exp(-(gold * own + _PRIOR * other) / (gold + _PRIOR))))


def _micro_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return f1_score(right.sum(-1), gold.sum(-1), predicted.sum(-1))


def _mean_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    mean: Floats = f1_score(right, gold, predicted).mean(-1)
    return mean
