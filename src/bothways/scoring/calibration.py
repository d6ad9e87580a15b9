"""Whether a model is as sure as it is right, and the numbers that make it so."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Floats, Whole, divide

COLDEST, HOTTEST = 0.01, 100.0
_STEPS = 100


@dataclass(frozen=True)
class Bin:
    """The answers whose confidence is above `low` and at most `high`."""

    low: float
    high: float
    count: int
    confidence: float
    """Their mean; nan in an empty bin."""
    accuracy: float
    """The part of them that is right; nan in an empty bin."""


def bin_of(confidences: Floats, bins: int) -> Whole:
    """Which of the equal-width bins each confidence is in; a bin holds its upper edge, and the first one 0."""
    return np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)


def reliability(confidences: ArrayLike, right: ArrayLike, bins: int = 15) -> list[Bin]:
    """The table of a reliability plot: accuracy beside confidence, for each bin of confidence.

    >>> for bin in reliability([0.9, 0.8, 0.3], [True, False, False], bins=2):
    ...     print(bin.low, bin.high, bin.count, round(bin.confidence, 2), bin.accuracy)
    0.0 0.5 1 0.3 0.0
    0.5 1.0 2 0.85 0.5
    """
    confidences, right = np.asarray(confidences, np.float64), np.asarray(right, np.float64)
    if confidences.shape != right.shape or confidences.ndim != 1:
        raise BothwaysError(
            f"confidences of shape {confidences.shape} and right of {right.shape}: expected one of each for every row"
        )
    return bins_table(bin_of(confidences, bins), confidences, right, bins)


def bins_table(where: Whole, confidences: Floats, right: Floats, bins: int) -> list[Bin]:
    """The table of rows whose bins are known. All: (N,)."""
    counts, confidence, accuracy = (
        np.bincount(where, weights, minlength=bins).astype(np.float64) for weights in (None, confidences, right)
    )
    confidence, accuracy = divide(confidence, counts, np.nan), divide(accuracy, counts, np.nan)
    return [
        Bin(i / bins, (i + 1) / bins, int(counts[i]), float(confidence[i]), float(accuracy[i])) for i in range(bins)
    ]


def fit_temperature(logits: ArrayLike, gold: ArrayLike) -> float:
    """The temperature by which to divide logits so that they are as sure as they are right.

    logits: (N, C), gold: (N,) class numbers; or logits: (N,) log-odds of the second of two classes. It minimises
    the negative log likelihood, which is convex in 1 / temperature: Newton's steps, and a bisection where they
    would leave the bracket. The answer lies between 0.01 and 100: a dev set without an error asks for 0. Logits that
    are all alike keep 1.

    >>> round(fit_temperature([[4.0, 0.0]] * 4, [0, 0, 0, 1]), 3)  # says 98 % where 75 % are right
    3.641
    """
    values, numbers = _checked(np.asarray(logits, np.float64), np.asarray(gold))
    values = values - values.max(-1, keepdims=True)  # exp cannot overflow
    low, high, inverse = 1 / HOTTEST, 1 / COLDEST, 1.0
    for _ in range(_STEPS):
        slope, bend = _slope(values, numbers, inverse)
        if slope == 0:
            break
        low, high = (low, inverse) if slope > 0 else (inverse, high)
        step = inverse - slope / bend if bend > 0 else np.inf
        previous, inverse = inverse, step if low < step < high else (low * high) ** 0.5
        if abs(inverse - previous) <= 1e-12 * inverse:
            break
    return 1 / inverse


def _checked(logits: Floats, gold: NDArray[np.int64]) -> tuple[Floats, Whole]:
    if logits.ndim == 1:
        logits = np.stack([np.zeros_like(logits), logits], -1)
    if logits.ndim != 2 or gold.shape != logits.shape[:1] or not len(gold):
        raise BothwaysError(
            f"logits of shape {logits.shape} and gold of {gold.shape}: expected (N, C) and (N,), with N at least 1"
        )
    gold = gold.astype(np.int64)
    if gold.min() < 0 or gold.max() >= logits.shape[1] or not np.isfinite(logits).all():
        raise BothwaysError(f"expected finite logits and gold numbers from 0 to {logits.shape[1] - 1}")
    return logits, gold


def _slope(logits: Floats, gold: Whole, inverse: float) -> tuple[float, float]:
    """The first and second derivative of the negative log likelihood by 1 / temperature."""
    weights = np.exp(inverse * logits)
    weights /= weights.sum(-1, keepdims=True)
    mean = (weights * logits).sum(-1)
    spread = (weights * logits**2).sum(-1) - mean**2
    return float((mean - logits[np.arange(len(gold)), gold]).mean()), float(spread.mean())


def thresholds(scores: ArrayLike, gold: ArrayLike) -> Floats:
    """For each label the threshold with the best F1: at or above it, a score means yes. Both (N, L) → (L,).

    It lies midway between two scores; of several as good, the highest. 0.5 for a label without gold.

    >>> thresholds([[0.1], [0.2], [0.4], [0.9]], [[0], [1], [1], [1]])
    array([0.15])
    """
    scores, gold = np.asarray(scores, np.float64), np.asarray(gold, bool)
    if scores.ndim != 2 or scores.shape != gold.shape:
        raise BothwaysError(f"scores of shape {scores.shape} and gold of {gold.shape}: expected (N, L) twice")
    return np.array([_threshold(scores[:, i], gold[:, i]) for i in range(scores.shape[1])])


def _threshold(scores: Floats, gold: NDArray[np.bool_]) -> float:
    if not gold.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    right = np.cumsum(gold[order])
    ends = np.append(ranked[:-1] > ranked[1:], True)  # equal scores are accepted together
    f1 = np.where(ends, 2 * right / (np.arange(1, len(ranked) + 1) + gold.sum()), -1.0)
    last = int(np.argmax(f1))
    if last == len(ranked) - 1:
        return float(ranked[last])
    middle = ranked[last + 1] + (ranked[last] - ranked[last + 1]) / 2
    return float(middle if middle > ranked[last + 1] else ranked[last])
