"""Splits long texts into overlapping windows, of which each token belongs to exactly one."""

from dataclasses import dataclass

from bothways.errors import BothwaysError


@dataclass(frozen=True)
class TextWindow:
    """The tokens from `start` to `end`; this window gives the predictions of those from `own` to `own_end`."""

    start: int
    end: int
    own: int
    own_end: int


def windows(length: int, room: int, overlap: int) -> list[TextWindow]:
    """Cover `length` tokens by windows of at most `room` that share `overlap` tokens with the next.

    A shared token belongs to the window in which it has more context: the overlap is split in the middle.

    >>> [(w.start, w.end, w.own, w.own_end) for w in windows(10, 6, 2)]
    [(0, 6, 0, 5), (4, 10, 5, 10)]
    """
    if not 0 <= overlap < room:
        raise BothwaysError(f"windows of {room} tokens cannot overlap by {overlap}", "out-of-range", overlap)
    starts = list(range(0, max(length - overlap, 1), room - overlap))
    found = []
    for start in starts:
        end = min(start + room, length)
        own = start if start == 0 else start + overlap // 2
        own_end = end if end == length else end - (overlap - overlap // 2)
        found.append(TextWindow(start, end, own, own_end))
    return found
