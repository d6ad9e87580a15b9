"""Confidence intervals, comparisons of two models, and summaries of several seeds.

R rounds · K kinds of example
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from bothways.errors import BothwaysError
from bothways.scoring.accumulator import Accumulator, Floats, Ints, Resamplable, group_sums

_MOST_COUNTS = 2_000_000


@dataclass(frozen=True)
class Comparison:
    """The first model's score minus the second's, with its confidence interval."""

    difference: float
    low: float
    high: float
    p: float
    """The two-sided p-value."""


@dataclass(frozen=True)
class Summary:
    """Several runs of one recipe."""

    mean: float
    sd: float
    """The sample standard deviation (n - 1); nan for one run."""
    n: int


def interval(
    accumulator: Accumulator, name: str, level: float = 0.95, rounds: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The confidence interval of a score: the percentile bootstrap over examples.

    The time grows with the number of kinds of examples, not of examples: the scores of a confusion matrix take no
    longer for a million rows. Means of real numbers and rank correlations have as many kinds as rows. (nan, nan) if
    there are no examples.

    >>> from bothways.scoring.ranking import Accuracy
    >>> accuracy = Accuracy()
    >>> accuracy.add([True] * 80 + [False] * 20)
    >>> interval(accuracy, "accuracy")
    (0.72, 0.88)
    """
    _check(level, rounds)
    rows = accumulator.rows(name)
    generator = np.random.default_rng(seed)
    drawn = [rows.score(counts) for counts in _draws(generator, rows.counts(), rounds)]
    return _between(np.concatenate(drawn), level) if drawn else (math.nan, math.nan)


def compare(
    first: Accumulator, second: Accumulator, name: str, level: float = 0.95, rounds: int = 1000, seed: int = 0
) -> Comparison:
    """Whether two models differ on the same examples, added in the same order: the paired bootstrap.

    p is the share of rounds whose difference deviates from the measured one by at least the measured one, which is
    counted as a round itself: it is never below 1 / (rounds + 1).
    """
    _check(level, rounds)
    a, b = first.rows(name), second.rows(name)
    if len(a.kinds) != len(b.kinds) or a.examples != b.examples:
        sizes = len(a.kinds), len(b.kinds)
        says = f"the two models were not scored on the same examples in the same order ({sizes[0]:,} and {sizes[1]:,})"
        raise BothwaysError(f"{says}: give both the same file", "different-examples", sizes)
    if not len(a.kinds):
        return Comparison(math.nan, math.nan, math.nan, math.nan)
    difference = a.value() - b.value()
    drawn = _differences(a, b, rounds, seed)
    low, high = _between(drawn, level)
    drawn = drawn[~np.isnan(drawn)]
    # The tolerance is for sums that differ in their last digit only.
    extreme = int((np.abs(drawn - difference) >= abs(difference) * (1 - 1e-9)).sum())
    return Comparison(difference, low, high, (extreme + 1) / (len(drawn) + 1))


def summary(values: Iterable[float]) -> Summary:
    """Mean and standard deviation of one score over several seeds.

    >>> summary([0.5, 0.75, 1.0])
    Summary(mean=0.75, sd=0.25, n=3)
    """
    numbers = list(values)
    if not numbers:
        raise BothwaysError("there are no scores to summarise: expected one or more", "no-scores")
    mean = math.fsum(numbers) / len(numbers)
    if len(numbers) == 1:
        return Summary(mean, math.nan, 1)
    variance = math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1)
    return Summary(mean, math.sqrt(variance), len(numbers))


def _check(level: float, rounds: int) -> None:
    if not 0 < level < 1 or rounds < 1:
        says = f"level {level} and {rounds} rounds: expected a level between 0 and 1, and one round or more"
        raise BothwaysError(says, "out-of-range", (level, rounds))


def _draws(generator: np.random.Generator, counts: Ints, rounds: int) -> Iterator[Floats]:
    """New counts of each kind, a few rounds at a time. (K,) → (R, K)."""
    if not len(counts):
        return
    total = int(counts.sum())
    at_once = max(1, _MOST_COUNTS // len(counts))
    for start in range(0, rounds, at_once):
        some = min(at_once, rounds - start)
        yield generator.multinomial(total, counts / total, size=some).astype(np.float64)


def _differences(a: Resamplable, b: Resamplable, rounds: int, seed: int) -> Floats:
    """The difference in each round, in which the same examples are drawn for both."""
    width = int(b.kinds.max()) + 1
    pairs, counts = np.unique(a.kinds * width + b.kinds, return_counts=True)
    of_a, of_b = pairs // width, pairs % width
    return np.concatenate(
        [
            a.score(group_sums(drawn, of_a, int(a.kinds.max()) + 1)) - b.score(group_sums(drawn, of_b, width))
            for drawn in _draws(np.random.default_rng(seed), counts, rounds)
        ]
    )


def _between(scores: Floats, level: float) -> tuple[float, float]:
    scores = scores[~np.isnan(scores)]  # a round may draw no example that the score depends on
    if not len(scores):
        return math.nan, math.nan
    low, high = np.quantile(scores, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
