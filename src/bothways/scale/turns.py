"""A unit in turns, so that a kill loses seconds of work and not a whole unit.

A turn ends after some seconds, where all rows that were drawn have their results: what follows is then batched as if
there had been no break, so that the numbers are the same, to the last bit, wherever turns end.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from bothways.progress import hear_ticks
from bothways.scale.units import GOES_ON, Counts

T = TypeVar("T")
Result = TypeVar("Result")
SECONDS = 20.0
"""A turn ends after so many, at the end of what the engine reads at a time."""
_TELL_SECONDS = 0.2  # between two tellings: each is a message of a worker
Tell = Callable[[Counts], None]
_listeners: list[Tell] = []


@contextmanager
def told_to(listener: Tell) -> Iterator[None]:
    """Inside this block the listener hears how far a unit is."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.pop()


class Teller:
    """Tells how far a unit is, now and then."""

    def __init__(self) -> None:
        self._due = 0.0

    def __call__(self, **counts: int) -> None:
        if _listeners and time.monotonic() >= self._due:
            self._due = time.monotonic() + _TELL_SECONDS
            _listeners[-1](counts)


class Turn(Iterable[T]):
    """Rows for the engine, until time is up."""

    def __init__(self, rows: Iterator[T], device: str) -> None:
        """On a GPU a turn is the whole unit: the engine draws rows in advance, and begins with small batches."""
        self._rows, self._is_timed = rows, device == "cpu"
        self._end = time.monotonic() + SECONDS
        self._drawn = self._answered = 0
        self._ahead = 0, 0
        """What was drawn before the engine drew what it computes now, and then."""
        self._far, self._tell = 0, Teller()
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
        with hear_ticks(self._tick):
            for result in results:
                self._answered += rows(result)
                self._tell_at(self._answered)
                yield result

    def _tick(self, finished: int, read: int) -> None:
        """The engine has computed so many of the sequences that it read ahead."""
        if self._ahead[1] != self._drawn:
            self._ahead = self._ahead[1], self._drawn
        before, drawn = self._ahead
        self._tell_at(before + (drawn - before) * finished // read)

    def _tell_at(self, rows: int) -> None:
        self._far = max(self._far, rows)
        self._tell(rows=self._far)

    def counts(self) -> Counts:
        """Whether the unit goes on after this turn."""
        return {GOES_ON: True} if self._is_cut else {}

    def _is_over(self) -> bool:
        is_whole = self._drawn == self._answered > 0
        return self._is_timed and is_whole and time.monotonic() >= self._end


def rows_of(block: Any) -> int:
    """The rows of a block of vectors of texts."""
    return len(block[0]["text"])
