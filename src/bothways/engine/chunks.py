"""Texts in chunks: the look-ahead in which the engine sorts sequences by length."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

from bothways.prefetch import map_ahead

T = TypeVar("T")
R = TypeVar("R")
_TEXTS = {"cpu": 1_024, "cuda": 16_384}
"""Texts of a chunk, by device."""
_CHARACTERS = {"cpu": 2_000_000, "cuda": 1_000_000}
"""A chunk ends when it has so many. On a GPU: four batches, so that the next chunk is tokenized meanwhile."""

_AHEAD = 2
"""Chunks that are read in advance for a GPU."""


def chunks(examples: Iterable[T], device: torch.device | None = None, share: float = 1.0) -> Iterator[list[T]]:
    """Consecutive examples or plain texts as lists: up to 1,024, on a GPU 16,384, and fewer if they are long.

    `share`: chunks of this share of the usual size, for results that take more memory.
    """
    kind = "cuda" if device is not None and device.type == "cuda" else "cpu"
    most, longest = _TEXTS[kind] * share, _CHARACTERS[kind] * share
    some: list[T] = []
    total = 0
    for example in examples:
        some.append(example)
        total += _characters(example)
        if total >= longest or len(some) >= most:
            yield some
            some, total = [], 0
    if some:
        yield some


def read_ahead(
    read: Callable[[list[T], int], R], examples: Iterable[T], device: torch.device, share: float = 1.0
) -> Iterator[R]:
    """`read` of each chunk of the examples and the number of examples before it.

    While a GPU computes, the next chunks are read in the background. Tokenizing runs on all cores, but not its
    beginning and its end: so there are several threads.
    """
    found = _numbered(chunks(examples, device, share))
    if device.type != "cuda":
        return (read(*chunk) for chunk in found)
    return map_ahead(lambda chunk: read(*chunk), found, _AHEAD, threads=_AHEAD)


def _numbered(found: Iterable[list[T]]) -> Iterator[tuple[list[T], int]]:
    before = 0
    for some in found:
        yield some, before
        before += len(some)


def _characters(example: Any) -> int:
    if isinstance(example, str):
        return len(example)
    values = vars(example).values()
    return sum(
        len(part)
        for value in values
        for part in (value if isinstance(value, tuple) else (value,))
        if isinstance(part, str)
    )
