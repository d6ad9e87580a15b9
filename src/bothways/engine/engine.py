"""The inference engine: packs token sequences into batches of similar length and returns results in input order.

encode, predict, evaluate, fill and sentence scores all go through `run`. It streams in constant memory. It shares no
state, so several threads may call it with one model.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from bothways.errors import BothwaysError
from bothways.model.batch import Batch, Numbers
from bothways.model.load import load
from bothways.model.model import Model

TOKENS_AT_ONCE = {"cpu": 4_096, "cuda": 65_536}
"""Default token budget of a batch, by device: enough to keep it busy, few enough to stay in a CPU's cache."""
_LOOK_AHEAD = 2**20
"""Tokens that are read ahead, to sort sequences by length."""
_SEQUENCES_AHEAD = 2**15
"""As many sequences at most, however short."""
_EXAMPLES_AT_ONCE = 1_024
_CHARACTERS_AT_ONCE = 2_000_000


class TokenSequence(Protocol):
    """What a model reads: token ids, and the segment of each."""

    @property
    def ids(self) -> Numbers: ...
    @property
    def segments(self) -> Numbers: ...


S = TypeVar("S", bound=TokenSequence)
R = TypeVar("R")
T = TypeVar("T")
Forward = Callable[[Batch, list[S]], Sequence[R]]
"""A batch on the device and the sequences it holds → one result for each sequence."""


class Engine:
    """A model in evaluation mode on a device, with a token budget."""

    def __init__(
        self,
        model: Model,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """The model itself is moved, as by `Module.to`. `max_tokens` is the token budget of a batch."""
        self.model = model.to(device=_checked(device), dtype=dtype).eval()
        self.max_tokens = max_tokens

    def run(self, sequences: Iterable[S], forward: Forward[S, R]) -> Iterator[R]:
        """One result for each sequence, in input order."""
        return run(sequences, forward, self.model.device, self.max_tokens)


def on_device(model: Model | Path | str | None, device: torch.device | str | None = None) -> Model:
    """A model that stays where it is, or the model of a folder on a GPU if there is one, unless `device` is given.

    The default model is the one in the box.
    """
    if isinstance(model, Model):
        return Engine(model, device=device).model
    return Engine(load(model), device=device or "auto").model


def _checked(device: torch.device | str | None) -> torch.device | None:
    """A device that is there; "auto" is a GPU if there is one."""
    if device is None:
        return None
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except RuntimeError:
        raise BothwaysError(
            f"`device` cannot be {device!r}: expected auto, cpu, cuda, cuda:1 or mps", "unknown-choice", device
        ) from None
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise BothwaysError(f"`device` is {device}, and torch finds no such GPU", "no-gpu", str(device))
    return found


def run(
    sequences: Iterable[S], forward: Forward[S, R], device: torch.device, max_tokens: int | None = None
) -> Iterator[R]:
    """One result for each sequence, in input order. `forward` gets packed batches of sequences of similar length.

    A sequence longer than the token budget is a batch of its own.
    """
    budget = max_tokens or TOKENS_AT_ONCE.get(device.type, TOKENS_AT_ONCE["cpu"])
    for window in _windows(sequences, lambda sequence: len(sequence.ids), _LOOK_AHEAD, _SEQUENCES_AHEAD):
        found: list[Any] = [None] * len(window)
        lengths = [len(sequence.ids) for sequence in window]
        for indices in by_budget(lengths, budget):
            members = [window[i] for i in indices]
            batch = Batch.pack([member.ids for member in members], [member.segments for member in members])
            with torch.inference_mode():
                results = forward(batch.to(device), members)
            for i, result in zip(indices, results, strict=True):
                found[i] = result
        yield from found


def by_budget(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Indices of sequences, in groups of similar length and at most `budget` tokens.

    >>> list(by_budget([3, 9, 2, 4], budget=9))
    [[2, 0, 3], [1]]
    """
    group: list[int] = []
    tokens = 0
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and tokens + lengths[i] > budget:
            yield group
            group, tokens = [], 0
        group.append(i)
        tokens += lengths[i]
    if group:
        yield group


def chunks(examples: Iterable[T]) -> Iterator[list[T]]:
    """Lists of up to 1,024 examples or plain texts, fewer if they are long."""
    return _windows(examples, _characters, _CHARACTERS_AT_ONCE, _EXAMPLES_AT_ONCE)


def _windows(items: Iterable[T], size: Callable[[T], int], max_size: int, max_count: int) -> Iterator[list[T]]:
    """Consecutive items as lists. A list ends when its sizes reach `max_size` or its length `max_count`."""
    some: list[T] = []
    total = 0
    for item in items:
        some.append(item)
        total += size(item)
        if total >= max_size or len(some) >= max_count:
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
