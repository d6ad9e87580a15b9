"""The inference engine: token sequences in, packed batches by length and token budget, results in the order they came.

Everything that answers goes through `run`: encode, predict, evaluate, fill, likelihood. Memory does not grow with the
number of sequences. There is no shared state, so that several threads may call it with one model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import torch

from bothways.model.batch import Batch, Numbers
from bothways.model.model import Model

TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 65_536}
"""Tokens of a batch by device: enough to fill it, few enough to stay in a CPU's cache."""
_LOOK_AHEAD = 2**20
"""Tokens that are read ahead, to find sequences of similar length."""
_EXAMPLES_AT_ONCE = 1_024
_CHARACTERS_AT_ONCE = 2_000_000


class TokenSequence(Protocol):
    """What goes through a model."""

    @property
    def ids(self) -> Numbers: ...
    @property
    def segments(self) -> Numbers: ...


S = TypeVar("S", bound=TokenSequence)
R = TypeVar("R")
T = TypeVar("T")
Forward = Callable[[Batch, list[S]], Sequence[R]]
"""A batch on the device, and the sequences it holds → one result for each of them."""


class Engine:
    """A model on a device, in a precision, ready to answer."""

    def __init__(
        self,
        model: Model,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Without a device or a dtype the model stays as it is. `max_tokens` is the token budget of a batch."""
        self.model = model.to(device=device, dtype=dtype).eval()
        self.max_tokens = max_tokens

    def run(self, sequences: Iterable[S], forward: Forward[S, R]) -> Iterator[R]:
        """The result of each sequence, in order."""
        return run(sequences, forward, self.model.device, self.max_tokens)


def run(
    sequences: Iterable[S], forward: Forward[S, R], device: torch.device, max_tokens: int | None = None
) -> Iterator[R]:
    """The result of each sequence, in order. `forward` is called with packed batches of similar lengths."""
    budget = max_tokens or TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])
    for window in _windows(sequences, lambda sequence: len(sequence.ids), _LOOK_AHEAD):
        found: list[Any] = [None] * len(window)
        lengths = [len(sequence.ids) for sequence in window]
        for numbers in by_budget(lengths, budget):
            members = [window[i] for i in numbers]
            batch = Batch.pack([member.ids for member in members], [member.segments for member in members])
            with torch.inference_mode():
                results = forward(batch.to(device), members)
            for number, result in zip(numbers, results, strict=True):
                found[number] = result
        yield from found


def by_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """The numbers of sequences in groups of similar length, of at most `budget` tokens together.

    >>> list(by_budget([3, 9, 2, 4], budget=9))
    [[2, 0, 3], [1]]
    """
    group: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and tokens + lengths[number] > budget:
            yield group
            group, tokens = [], 0
        group.append(number)
        tokens += lengths[number]
    if group:
        yield group


def chunks(examples: Iterable[T]) -> Iterator[list[T]]:
    """Some examples, or plain texts, at a time: a thousand, or fewer long ones."""
    for window in _windows(examples, _characters, _CHARACTERS_AT_ONCE, _EXAMPLES_AT_ONCE):
        yield window


def _windows(items: Iterable[T], size: Callable[[T], int], most: int, count: int = 2**62) -> Iterator[list[T]]:
    """Lists of neighbours, closed when their sizes add up to `most`, or when they are `count`."""
    some: list[T] = []
    total = 0
    for item in items:
        some.append(item)
        total += size(item)
        if total >= most or len(some) >= count:
            yield some
            some, total = [], 0
    if some:
        yield some


def _characters(example: Any) -> int:
    values = [example] if isinstance(example, str) else vars(example).values()
    return sum(
        len(part)
        for value in values
        for part in (value if isinstance(value, tuple) else (value,))
        if isinstance(part, str)
    )
