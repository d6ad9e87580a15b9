"""Metrics of single-label classification, with calibration.

B in a batch · N examples · C classes · K kinds of example
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import BothwaysError, name_list
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
from bothways.scoring.calibration import Bin, bin_of, reliability_table
from bothways.scoring.counting import LabelScores, f1_score, macro_f1, never_predicted, scores_by_label

BINS = 15
_LEAST_PROBABILITY = float(np.finfo(np.float64).eps)
_TOLERANCE = 0.02  # 16-bit probabilities do not add up to exactly 1


class Classes:
    """Accuracy, F1, Matthews' correlation, confusion matrix and calibration of one class per text.

    The most probable class is predicted, the first of equal ones. Matthews' correlation is 0 where it is undefined:
    with one class only, in gold or predictions. Macro F1 is the mean over the classes that occur in either.

    >>> classes = Classes(["bad", "good"])
    >>> classes.add([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    >>> round(classes.scores()["accuracy"], 3)
    0.667
    >>> classes.confusion()
    array([[1, 0],
           [1, 1]])
    """

    def __init__(self, labels: Sequence[str]):
        self.labels = checked_labels(labels)
        dtype = np.min_scalar_type(len(self.labels) - 1)
        self._gold, self._predicted = Column(dtype), Column(dtype)
        self._losses, self._briers, self._confidences = Column(np.float32), Column(np.float32), Column(np.float32)
        self._bins = Column(np.uint8)

    def add(self, gold: ArrayLike, probabilities: ArrayLike) -> None:
        """Add a batch. gold: (B,) class indices, probabilities: (B, C)."""
        indices, p = self._checked(np.asarray(gold), np.asarray(probabilities, np.float64))
        of_gold = p[np.arange(len(indices)), indices]
        confidences = p.max(-1)
        # Σ (p - y)², halved for two classes, where the Brier score is that of one of them.
        briers = np.maximum((p**2).sum(-1) - 2 * of_gold + 1, 0) / (2 if len(self.labels) == 2 else 1)
        self._gold.extend(indices)
        self._predicted.extend(p.argmax(-1))
        self._losses.extend(-np.log(np.clip(of_gold, _LEAST_PROBABILITY, 1.0)))
        self._briers.extend(briers)
        self._confidences.extend(confidences)
        self._bins.extend(bin_of(confidences, BINS))

    def scores(self) -> dict[str, float]:
        """accuracy, macro_f1, micro_f1, weighted_f1, matthews, negative_log_likelihood, calibration_error, brier;
        with two classes positive_f1, the F1 of the second class, as in GLUE.

        The likelihood is in nats, and probabilities are at least 2e-16. The calibration error has 15 bins.
        """
        return {name: self.rows(name).value() for name in self._names()}

    def rows(self, name: str) -> Resamplable:
        """The texts for one score: as cells of the confusion matrix, or each with its loss."""
        gold = self._gold.values().astype(np.int64)
        # By name: another model may have the same labels with other indices.
        names = np.array([zlib.crc32(label.encode(errors="surrogatepass")) for label in self.labels], np.uint32)
        examples = zlib.crc32(names[gold].tobytes())
        if name == "negative_log_likelihood":
            return mean_rows(self._losses.values(), examples)
        if name == "brier":
            return mean_rows(self._briers.values(), examples)
        if name == "calibration_error":
            return self._calibration_rows(examples)
        require_score(name, self._names())
        size, formula = len(self.labels), _FORMULAS[name]
        cells, kinds = np.unique(gold * size + self._predicted.values(), return_inverse=True)
        return Resamplable(
            kinds, lambda counts: formula(*_margins(counts, cells // size, cells % size, size)), examples
        )

    def per_class(self) -> dict[str, LabelScores]:
        """Precision, recall, F1 and support of each class."""
        table = self.confusion().astype(np.float64)
        return scores_by_label(self.labels, np.diag(table), table.sum(1), table.sum(0))

    def never_predicted(self) -> str:
        """A sentence about classes that occur and were never predicted; "" if there are none."""
        return never_predicted(self.labels, self.confusion().sum(1), self.confusion().sum(0))

    def confusion(self) -> Ints:
        """The confusion matrix: gold classes in rows, predicted ones in columns. (C, C)."""
        size = len(self.labels)
        cells = self._gold.values().astype(np.int64) * size + self._predicted.values()
        return np.bincount(cells, minlength=size**2).reshape(size, size)

    def reliability(self) -> list[Bin]:
        """Accuracy and confidence in the 15 bins of the calibration error."""
        right = (self._gold.values() == self._predicted.values()).astype(np.float64)
        confidences = self._confidences.values().astype(np.float64)
        return reliability_table(self._bins.values().astype(np.int64), confidences, right, BINS)

    def _names(self) -> list[str]:
        names = [*_FORMULAS, "negative_log_likelihood", "calibration_error", "brier"]
        return [name for name in names if name != "positive_f1" or len(self.labels) == 2]

    def _calibration_rows(self, examples: int) -> Resamplable:
        """Σ over bins of |right - confidence| / N: each text is a kind of its own."""
        gaps = (self._gold.values() == self._predicted.values()) - self._confidences.values().astype(np.float64)
        bins = self._bins.values().astype(np.int64)

        def score(counts: Floats) -> Floats:
            return divide(np.abs(group_sums(counts * gaps, bins, BINS)).sum(-1), counts.sum(-1))

        return Resamplable(np.arange(len(gaps)), score, examples)

    def _checked(self, gold: NDArray[Any], probabilities: Floats) -> tuple[Ints, Floats]:
        size = len(self.labels)
        if not gold.size and not probabilities.size:
            gold, probabilities = np.zeros(0, np.int64), np.zeros((0, size))
        if gold.ndim != 1 or probabilities.shape != (len(gold), size):
            raise shape_error(gold.shape, "probabilities", probabilities.shape, f"(B,) and (B, {size})")
        if len(gold) and (gold.dtype.kind not in "iub" or gold.min() < 0 or gold.max() >= size):
            raise BothwaysError(f"gold must be class indices: integers from 0 to {size - 1}", "out-of-range")
        sums = probabilities.sum(-1)
        if not (np.abs(sums - 1) <= _TOLERANCE).all() or (probabilities < 0).any():
            raise BothwaysError("probabilities do not add up to 1: pass the softmax of the logits", "not-probabilities")
        return gold.astype(np.int64), probabilities


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels as a tuple; an error if there is none or one is repeated."""
    if not labels or len(set(labels)) < len(labels):
        raise BothwaysError(
            f"labels are {name_list(labels) or 'empty'}: expected one or more, each once", "bad-labels", tuple(labels)
        )
    return tuple(labels)


def shown_name(score: str, labels: Sequence[str]) -> str:
    """The name of a score for people: positive_f1 is shown with its label.

    >>> shown_name("positive_f1", ["no", "yes"]), shown_name("accuracy", ["no", "yes"])
    ('positive_f1 (yes)', 'accuracy')
    """
    return f"{score} ({labels[1]})" if score == "positive_f1" else score


def positive_label(scores: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """The label of positive_f1, for programs; empty without that score."""
    return {"positive_label": labels[1]} if "positive_f1" in scores else {}


def _margins(counts: Floats, gold: Ints, predicted: Ints, size: int) -> tuple[Floats, Floats, Floats]:
    """Right, gold and predicted counts of each class, from counts of cells. (..., K) → three (..., C)."""
    right = group_sums(counts * (gold == predicted), gold, size)
    return right, group_sums(counts, gold, size), group_sums(counts, predicted, size)


def _accuracy(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return divide(right.sum(-1), gold.sum(-1), np.nan)


def _weighted_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return divide((f1_score(right, gold, predicted) * gold).sum(-1), gold.sum(-1), np.nan)


def _positive_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return f1_score(right, gold, predicted)[..., 1]


def _matthews(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Gorodkin's R_K of C classes, which is Matthews' correlation for two."""
    total = gold.sum(-1)
    covariance = right.sum(-1) * total - (gold * predicted).sum(-1)
    variances = [total**2 - (one**2).sum(-1) for one in (gold, predicted)]
    return divide(covariance, np.sqrt(variances[0]) * np.sqrt(variances[1]))


_FORMULAS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "accuracy": _accuracy,
    "macro_f1": macro_f1,
    "micro_f1": _accuracy,  # the same where every text has one class
    "weighted_f1": _weighted_f1,
    "matthews": _matthews,
    "positive_f1": _positive_f1,
}
