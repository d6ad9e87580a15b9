"""Scores of classes: which of several each text is, and how sure the model was.

B in a batch · N examples · C classes · K kinds of example
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Column, Floats, Resamplable, Whole, divide, group_sums, mean_rows, no_rows
from bothways.scoring.calibration import Bin, bin_of, bins_table
from bothways.scoring.counting import Detail, details, f1_score, macro_f1

BINS = 15
_SMALLEST = float(np.finfo(np.float64).eps)
_SLACK = 0.02  # 16-bit probabilities add up to 1 only so far


class Classes:
    """One of several classes: a confusion table and how sure the model was.

    Predicted is the most probable class, the first of equal ones. Matthews' correlation is 0 where it is not
    defined: one class only, in gold or predictions. Macro F1 is the mean over the classes that occur in either.

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
        number = np.min_scalar_type(len(self.labels) - 1)
        self._gold, self._predicted = Column(number), Column(number)
        self._losses, self._briers, self._confidences = Column(np.float32), Column(np.float32), Column(np.float32)
        self._bins = Column(np.uint8)

    def add(self, gold: ArrayLike, probabilities: ArrayLike) -> None:
        """Count a batch. gold: (B,) class numbers, probabilities: (B, C)."""
        numbers, chances = self._checked(np.asarray(gold), np.asarray(probabilities, np.float64))
        of_gold = chances[np.arange(len(numbers)), numbers]
        confidences = chances.max(-1)
        # Σ (p - y)², halved for two classes, where Brier's score is that of one of them.
        briers = np.maximum((chances**2).sum(-1) - 2 * of_gold + 1, 0) / (2 if len(self.labels) == 2 else 1)
        self._gold.extend(numbers)
        self._predicted.extend(chances.argmax(-1))
        self._losses.extend(-np.log(np.clip(of_gold, _SMALLEST, 1.0)))
        self._briers.extend(briers)
        self._confidences.extend(confidences)
        self._bins.extend(bin_of(confidences, BINS))

    def scores(self) -> dict[str, float]:
        """accuracy, macro_f1, micro_f1, weighted_f1, matthews, negative_log_likelihood, calibration_error, brier;
        with two classes positive_f1, the F1 of the second as GLUE counts it.

        The likelihood is in nats, and no probability counts as less than 2e-16. The calibration error has 15 bins.
        """
        return {name: self.rows(name).value() for name in self._names()}

    def rows(self, name: str) -> Resamplable:
        """The texts as one score sees them: as cells of the confusion table, or each with its loss."""
        gold = self._gold.values().astype(np.int64)
        # By name: another model may know the same labels under other numbers.
        names = np.array([zlib.crc32(label.encode(errors="surrogatepass")) for label in self.labels], np.uint32)
        examples = zlib.crc32(names[gold].tobytes())
        if name == "negative_log_likelihood":
            return mean_rows(self._losses.values(), examples)
        if name == "brier":
            return mean_rows(self._briers.values(), examples)
        if name == "calibration_error":
            return self._calibration_rows(examples)
        if name not in self._names():
            no_rows(name, self._names())
        size, formula = len(self.labels), _FORMULAS[name]
        cells, kinds = np.unique(gold * size + self._predicted.values(), return_inverse=True)
        return Resamplable(
            kinds, lambda counts: formula(*_margins(counts, cells // size, cells % size, size)), examples
        )

    def per_class(self) -> dict[str, Detail]:
        """Precision, recall, F1 and support of each class."""
        table = self.confusion().astype(np.float64)
        return details(self.labels, np.diag(table), table.sum(1), table.sum(0))

    def confusion(self) -> Whole:
        """How often each class (row) was taken for each (column). (C, C)."""
        size = len(self.labels)
        cells = self._gold.values().astype(np.int64) * size + self._predicted.values()
        return np.bincount(cells, minlength=size**2).reshape(size, size)

    def reliability(self) -> list[Bin]:
        """Accuracy beside confidence, in the 15 bins of the calibration error."""
        right = (self._gold.values() == self._predicted.values()).astype(np.float64)
        confidences = self._confidences.values().astype(np.float64)
        return bins_table(self._bins.values().astype(np.int64), confidences, right, BINS)

    def _names(self) -> list[str]:
        names = [*_FORMULAS, "negative_log_likelihood", "calibration_error", "brier"]
        return [name for name in names if name != "positive_f1" or len(self.labels) == 2]

    def _calibration_rows(self, examples: int) -> Resamplable:
        """Σ over bins of |right - sure| / N: each text is a kind of its own."""
        over = (self._gold.values() == self._predicted.values()) - self._confidences.values().astype(np.float64)
        bins = self._bins.values().astype(np.int64)

        def score(counts: Floats) -> Floats:
            return divide(np.abs(group_sums(counts * over, bins, BINS)).sum(-1), counts.sum(-1))

        return Resamplable(np.arange(len(over)), score, examples)

    def _checked(self, gold: NDArray[Any], probabilities: Floats) -> tuple[Whole, Floats]:
        size = len(self.labels)
        if not gold.size and not probabilities.size:
            gold, probabilities = np.zeros(0, np.int64), np.zeros((0, size))
        if gold.ndim != 1 or probabilities.shape != (len(gold), size):
            raise BothwaysError(
                f"gold of shape {gold.shape} and probabilities of {probabilities.shape}: expected (B,) and (B, {size})"
            )
        if len(gold) and (gold.dtype.kind not in "iub" or gold.min() < 0 or gold.max() >= size):
            raise BothwaysError(f"gold is not a class number: expected whole numbers from 0 to {size - 1}")
        sums = probabilities.sum(-1)
        if not (np.abs(sums - 1) <= _SLACK).all() or (probabilities < 0).any():
            raise BothwaysError("probabilities do not add up to 1: pass the softmax of the logits")
        return gold.astype(np.int64), probabilities


def checked_labels(labels: Sequence[str]) -> tuple[str, ...]:
    """The labels' names, refused if there is none or one is there twice."""
    if not labels or len(set(labels)) < len(labels):
        raise BothwaysError(f"labels are {', '.join(labels) or 'empty'}: expected one name or more, each of them once")
    return tuple(labels)


def shown_name(score: str, labels: Sequence[str]) -> str:
    """A score's name for people: that of one label says of which.

    >>> shown_name("positive_f1", ["no", "yes"]), shown_name("accuracy", ["no", "yes"])
    ('positive_f1 (yes)', 'accuracy')
    """
    return f"{score} ({labels[1]})" if score == "positive_f1" else score


def positive_label(scores: Iterable[str], labels: Sequence[str]) -> dict[str, str]:
    """The label that positive_f1 is of, for programs; nothing without that score."""
    return {"positive_label": labels[1]} if "positive_f1" in scores else {}


def _margins(counts: Floats, gold: Whole, predicted: Whole, size: int) -> tuple[Floats, Floats, Floats]:
    """Right, in the gold and predicted of each class, from counts of cells. (..., K) → three (..., C)."""
    right = group_sums(counts * (gold == predicted), gold, size)
    return right, group_sums(counts, gold, size), group_sums(counts, predicted, size)


def _accuracy(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return divide(right.sum(-1), gold.sum(-1), np.nan)


def _weighted_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return divide((f1_score(right, gold, predicted) * gold).sum(-1), gold.sum(-1), np.nan)


def _positive_f1(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    return f1_score(right, gold, predicted)[..., 1]


def _matthews(right: Floats, gold: Floats, predicted: Floats) -> Floats:
    """Gorodkin's correlation of C classes, which is Matthews' for two."""
    total = gold.sum(-1)
    together = right.sum(-1) * total - (gold * predicted).sum(-1)
    apart = [total**2 - (one**2).sum(-1) for one in (gold, predicted)]
    return divide(together, np.sqrt(apart[0]) * np.sqrt(apart[1]))


_FORMULAS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "accuracy": _accuracy,
    "macro_f1": macro_f1,
    "micro_f1": _accuracy,  # the same where every text has one class
    "weighted_f1": _weighted_f1,
    "matthews": _matthews,
    "positive_f1": _positive_f1,
}
