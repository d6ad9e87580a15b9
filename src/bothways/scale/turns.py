"""A unit in turns, so that a kill loses seconds of work and not a whole unit.

A turn ends after some seconds, where all rows that were drawn have their results: what follows is then batched as if
there had been no break, so that the numbers are the same, to the last bit, wherever turns end.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from bothways.scale.units import GOES_ON, Counts

T = TypeVar("T")
Result = TypeVar("Result")
SECONDS = 20.0
"""A turn ends after so many, at the end of what the engine reads at a time."""


class Turn(Iterable[T]):
    """Rows for the engine, until time is up."""

    def __init__(self, rows: Iterator[T], device: str) -> None:
        """On a GPU a turn is the whole unit: the engine draws rows in advance, and begins with small batches."""
        self._rows, self._is_timed = rows, device == "cpu"
        self._end = time.monotonic() + SECONDS
        self._drawn = self._answered = 0
        self._is_cut = False

    def __iter__(self) -> Iterator[T]:
        while not self._is_over():
            try:
                row = next(self._rows)
            except StopIteration:
                return
            self._drawn += 1
            yield row
        self._is_cut = True

    def answers(self, results: Iterable[Result], rows: Callable[[Result], int] = lambda _: 1) -> Iterator[Result]:
        """The results as they come. `rows`: the number of rows that one of them is of."""
        for result in results:
            self._answered += rows(result)
            yield result

    def counts(self) -> Counts:
        """Whether the unit goes on after this turn."""
        return {GOES_ON: True} if self._is_cut else {}

    def _is_over(self) -> bool:
        is_whole = self._drawn == self._answered > 0
        return self._is_timed and is_whole and time.monotonic() >= self._end


def rows_of(block: Any) -> int:
    """The rows of a block of vectors of texts."""
    return len(block[0]["text"])
