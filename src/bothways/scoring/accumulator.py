"""The protocol of all accumulators of scores, and how a score is bootstrapped.

N examples · K kinds of example · ... any number of bootstrap rounds

An accumulator takes predictions and gold labels by `add`, batch by batch, and returns `scores()` at the end. It keeps
a few bytes per example and never a logit. A score is a function of the number of examples of each kind: of the cells
of the confusion matrix for F1, of right and wrong predictions for accuracy. `rows(name)` returns that function and the
kind of each example. `significance.py` needs nothing else: it draws new counts, and compares two models by drawing the
same examples for both. With few kinds, a million examples cost as little as a thousand.

Scores are fractions between 0 and 1, not percentages. Without examples every score is nan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bothways.errors import BothwaysError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
ScoreFunction = Callable[[Floats], Floats]
"""Examples of each kind (..., K) → scores (...)."""


@dataclass(frozen=True, eq=False)
class Resamplable:
    """The examples and the function of one score, ready for the bootstrap."""

    kinds: Ints
    """(N,) The kind of each example, from 0 to K - 1; examples of one kind have the same effect on the score."""
    score: ScoreFunction
    examples: int
    """A checksum of the gold labels: equal for two models that were scored on the same examples."""

    def counts(self) -> Ints:
        """The number of examples of each kind. (K,)."""
        return np.bincount(self.kinds)

    def value(self) -> float:
        """The score of all examples."""
        return float(self.score(self.counts().astype(np.float64))) if len(self.kinds) else float("nan")


class Accumulator(Protocol):
    """Scores predictions batch by batch. The arguments of `add` depend on the task."""

    def scores(self) -> dict[str, float]:
        """Every score by name."""
        ...

    def rows(self, name: str) -> Resamplable:
        """The examples for the score of that name; an error for a score that cannot be bootstrapped."""
        ...


class Column:
    """An array that grows by batches, with a compact data type.

    >>> column = Column(np.uint8)
    >>> column.extend([1, 2])
    >>> column.extend([3])
    >>> column.values()
    array([1, 2, 3], dtype=uint8)
    """

    def __init__(self, dtype: DTypeLike):
        self._dtype = np.dtype(dtype)
        self._bytes = bytearray()

    def extend(self, values: ArrayLike) -> None:
        self._bytes += np.asarray(values, self._dtype).tobytes()

    def values(self) -> NDArray[Any]:
        return np.frombuffer(bytes(self._bytes), self._dtype)

    def __len__(self) -> int:
        return len(self._bytes) // self._dtype.itemsize


def mean_rows(values: NDArray[Any], examples: int) -> Resamplable:
    """Rows of a score that is the mean of one value per example. values: (N,)."""
    distinct, kinds = np.unique(values, return_inverse=True)
    distinct = distinct.astype(np.float64)
    return Resamplable(kinds, lambda counts: counts @ distinct / counts.sum(-1), examples)


def sum_rows(values: NDArray[Any], formula: ScoreFunction, examples: int) -> Resamplable:
    """Rows of a score that is a formula over sums. values: (N, S); formula: sums (..., S) → scores (...)."""
    distinct, kinds = np.unique(values, axis=0, return_inverse=True)
    distinct = distinct.astype(np.float64)
    return Resamplable(kinds.reshape(-1), lambda counts: formula(counts @ distinct), examples)


def ratio_of_sums(numerator: int, denominator: int, otherwise: float = 0.0) -> ScoreFunction:
    """The formula, for `sum_rows`, of one sum divided by another."""
    return lambda sums: divide(sums[..., numerator], sums[..., denominator], otherwise)


def group_sums(values: Floats, groups: Ints, size: int) -> Floats:
    """The sum of each group. values: (..., K), groups: (K,) of integers below `size` → (..., size)."""
    sums = np.zeros((*values.shape[:-1], size))
    if len(groups):
        order = np.argsort(groups, kind="stable")
        present, starts = np.unique(groups[order], return_index=True)
        sums[..., present] = np.add.reduceat(values[..., order], starts, axis=-1)
    return sums


def divide(numerator: Floats, denominator: Floats, otherwise: float = 0.0) -> Floats:
    """numerator / denominator, and `otherwise` where the denominator is 0, without a warning."""
    numerator, denominator = np.broadcast_arrays(numerator, denominator)
    ratio: Floats = np.divide(numerator, denominator, out=np.full(numerator.shape, otherwise), where=denominator != 0)
    return ratio


def shape_error(gold: tuple[int, ...], name: str, other: tuple[int, ...], expected: str) -> BothwaysError:
    """The error for gold labels and predictions whose shapes do not fit."""
    return BothwaysError(
        f"gold of shape {gold} and {name} of {other}: expected {expected}", "shape-mismatch", (gold, other)
    )


def require_score(name: str, names: list[str]) -> None:
    """Refuse a score that does not exist or that cannot be bootstrapped."""
    if name not in names:
        raise BothwaysError(
            f"the score {name!r} cannot be bootstrapped: expected one of {', '.join(names)}", "unknown-score", name
        )
