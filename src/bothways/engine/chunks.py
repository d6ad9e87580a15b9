"""Texts in chunks: the look-ahead in which the engine sorts sequences by length."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeGuard, TypeVar

from bothways.prefetch import map_ahead


class Device(Protocol):
    """torch's name for where work is done."""

    @property
    def type(self) -> str: ...


T = TypeVar("T")
R = TypeVar("R")
_TEXTS = {"cpu": 1_024, "cuda": 16_384}
"""Texts of a chunk, by device."""
_CHARACTERS = {"cpu": 2_000_000, "cuda": 1_000_000}
"""A chunk ends when it has so many. On a GPU: four batches, so that the next chunk is tokenized meanwhile."""

_FIRST = 0.125
"""The size of the first chunk for a GPU; each has twice the size of the one before, up to the usual size."""
_AT_ONCE = 256
"""Texts that are drawn together, if they are short."""
_AHEAD = 2
"""Chunks that are read in advance for a GPU."""


def chunks(examples: Iterable[T], device: Device | None = None, share: float = 1.0) -> Iterator[list[T]]:
    """Consecutive examples or plain texts as lists: up to 1,024, on a GPU 16,384, and fewer if they are long.

    `share`: chunks of this share of the usual size, for results that take more memory.
    """
    kind = "cuda" if device is not None and device.type == "cuda" else "cpu"
    # The first chunks for a GPU are small, so that it soon has something to do.
    part = share * (_FIRST if kind == "cuda" else 1.0)
    most, longest = _size_of(kind, part)
    stream, some, total, step = iter(examples), list[T](), 0, 1
    # Some at a time: more and more, as long as they are short.
    while block := list(islice(stream, min(step, most - len(some)))):
        size = sum(map(len, block)) if _are_strings(block) else sum(map(_characters, block))
        some += block
        total += size
        step = min(2 * step, _AT_ONCE) if size * 16 < longest else 1
        if total >= longest or len(some) >= most:
            yield some
            some, total, part = [], 0, min(2 * part, share)
            most, longest = _size_of(kind, part)
    if some:
        yield some


def _size_of(kind: str, share: float) -> tuple[int, float]:
    """The most texts and characters of a chunk."""
    return max(1, int(_TEXTS[kind] * share)), _CHARACTERS[kind] * share


def _are_strings(block: list[Any]) -> TypeGuard[list[str]]:
    return set(map(type, block)) == {str}


def read_ahead(
    read: Callable[[list[T], int], R],
    examples: Iterable[T],
    device: Device,
    share: float = 1.0,
    first: int = 0,
) -> Iterator[R]:
    """`read` of each chunk of the examples and the number of its first example, which is `first` for the first chunk.

    While a GPU computes, the next chunks are read in the background. Tokenizing runs on all cores, but not its
    beginning and its end: so there are several threads.
    """
    found = _numbered(chunks(examples, device, share), first)
    if device.type != "cuda":
        return (read(*chunk) for chunk in found)
    return map_ahead(lambda chunk: read(*chunk), found, _AHEAD, threads=_AHEAD)


def _numbered(found: Iterable[list[T]], first: int) -> Iterator[tuple[list[T], int]]:
    for some in found:
        yield some, first
        first += len(some)


def _characters(example: Any) -> int:
    # What is neither a text nor an example is refused when it is read.
    return len(example) if isinstance(example, str) else getattr(example, "characters", 0)
