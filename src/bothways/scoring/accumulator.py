"""What every accumulator offers, and the one protocol through which its scores are drawn again.

N examples · K kinds of example · ... any number of rounds

An accumulator takes answers and gold by `add`, batch by batch, and gives `scores()` at the end. It keeps a few
bytes for each example and never a logit. A score is a function of how many examples there are of each kind:
of a confusion table's cells for an F1, of the right and the wrong for an accuracy. `rows(name)` gives that
function and each example's kind. `significance.py` needs nothing else: it draws new counts, and two models are
compared by drawing the same examples for both. Where there are few kinds, a million examples cost what a
thousand cost.

Scores are fractions between 0 and 1 where the field prints percents. Of no examples every score is nan.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from bothways.errors import BothwaysError

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
ScoreFunction = Callable[[Floats], Floats]
"""Counts of each kind (..., K) → scores (...)."""


@dataclass(frozen=True, eq=False)
class Resamplable:
    """The examples as one score sees them."""

    kinds: Whole
    """(N,) Each example's kind, from 0 to K - 1; examples of one kind count alike, and none is without examples."""
    score: ScoreFunction
    examples: int
    """A checksum of the gold answers: two models were asked the same if theirs are equal."""

    def counts(self) -> Whole:
        """How many examples of each kind were added. (K,)."""
        return np.bincount(self.kinds)

    def value(self) -> float:
        """The score of the examples as they are."""
        return float(self.score(self.counts().astype(np.float64))) if len(self.kinds) else float("nan")


class Accumulator(Protocol):
    """What scores answers as they come. Its `add` takes what its task needs."""

    def scores(self) -> dict[str, float]:
        """Every score by name."""
        ...

    def rows(self, name: str) -> Resamplable:
        """The examples as the score of that name sees them; an error for what cannot be drawn again."""
        ...


class Column:
    """Numbers that arrive in batches, in as few bytes as their kind needs.

    >>> column = Column(np.uint8)
    >>> column.extend([1, 2])
    >>> column.extend([3])
    >>> column.values()
    array([1, 2, 3], dtype=uint8)
    """

    def __init__(self, kind: DTypeLike):
        self._kind = np.dtype(kind)
        self._bytes = bytearray()

    def extend(self, values: ArrayLike) -> None:
        self._bytes += np.asarray(values, self._kind).tobytes()

    def values(self) -> NDArray[Any]:
        return np.frombuffer(bytes(self._bytes), self._kind)

    def __len__(self) -> int:
        return len(self._bytes) // self._kind.itemsize


def mean_rows(values: NDArray[Any], examples: int) -> Resamplable:
    """Rows of a score that is the mean of one value for each example. values: (N,)."""
    distinct, kinds = np.unique(values, return_inverse=True)
    distinct = distinct.astype(np.float64)
    return Resamplable(kinds, lambda counts: counts @ distinct / counts.sum(-1), examples)


def sum_rows(values: NDArray[Any], formula: ScoreFunction, examples: int) -> Resamplable:
    """Rows of a score that is a formula over sums. values: (N, S); formula: sums (..., S) → scores (...)."""
    distinct, kinds = np.unique(values, axis=0, return_inverse=True)
    distinct = distinct.astype(np.float64)
    return Resamplable(kinds.reshape(-1), lambda counts: formula(counts @ distinct), examples)


def group_sums(values: Floats, groups: Whole, size: int) -> Floats:
    """The sums over each group. values: (..., K), groups: (K,) of numbers below `size` → (..., size)."""
    sums = np.zeros((*values.shape[:-1], size))
    if len(groups):
        order = np.argsort(groups, kind="stable")
        present, starts = np.unique(groups[order], return_index=True)
        sums[..., present] = np.add.reduceat(values[..., order], starts, axis=-1)
    return sums


def divide(above: Floats, below: Floats, otherwise: float = 0.0) -> Floats:
    """above / below, and `otherwise` where below is 0; never a warning."""
    above, below = np.broadcast_arrays(above, below)
    ratio: Floats = np.divide(above, below, out=np.full(above.shape, otherwise), where=below != 0)
    return ratio


def no_rows(name: str, names: list[str]) -> NoReturn:
    """Refuse a score that does not exist or that cannot be drawn again."""
    raise BothwaysError(f"{name!r} cannot be drawn again: expected one of {', '.join(names)}")
