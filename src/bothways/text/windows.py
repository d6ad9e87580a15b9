"""Texts longer than a model reads, as overlapping windows that together answer for every token once."""

from dataclasses import dataclass

from bothways.errors import BothwaysError


@dataclass(frozen=True)
class Window:
    """Tokens start … end-1 are read; those from `own` to `own_end` are answered for here and nowhere else."""

    start: int
    end: int
    own: int
    own_end: int


def windows(length: int, room: int, overlap: int) -> list[Window]:
    """Cover `length` tokens by windows of at most `room` that share `overlap` tokens with the next.

    A shared token belongs to the window in which it has more context: the overlap is split in the middle.

    >>> [(w.start, w.end, w.own, w.own_end) for w in windows(10, 6, 2)]
    [(0, 6, 0, 5), (4, 10, 5, 10)]
    """
    if not 0 <= overlap < room:
        raise BothwaysError(f"windows of {room} tokens cannot overlap by {overlap}")
    starts = list(range(0, max(length - overlap, 1), room - overlap))
    found = []
    for start in starts:
        end = min(start + room, length)
        own = start if start == 0 else start + overlap // 2
        own_end = end if end == length else end - (overlap - overlap // 2)
        found.append(Window(start, end, own, own_end))
    return found
