"""Keeps the worst errors in constant memory."""

import heapq
import math
from typing import Generic, TypeVar

from bothways.errors import BothwaysError

T = TypeVar("T")


class Worst(Generic[T]):
    """The `size` items with the largest losses. A loss of nan counts as infinite.

    >>> worst = Worst[str](2)
    >>> for loss, text in [(0.1, "good"), (3.0, "bad"), (0.7, "fair")]:
    ...     worst.add(loss, text)
    >>> worst.items()
    [(3.0, 'bad'), (0.7, 'fair')]
    """

    def __init__(self, size: int):
        if size < 0:
            raise BothwaysError(f"`size` must be 0 or more, not {size}", "out-of-range", size)
        self._size = size
        self._seen = 0
        self._heap: list[tuple[float, int, T]] = []

    def add(self, loss: float, item: T) -> None:
        """Keep the item if it is among the worst so far; of equal losses the earliest are kept."""
        self._seen += 1
        # The number is unique, so that items are never compared.
        entry = (math.inf if math.isnan(loss) else float(loss), -self._seen, item)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        elif self._heap and entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def items(self) -> list[tuple[float, T]]:
        """Losses and items, the worst first."""
        return [(loss, item) for loss, _, item in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
