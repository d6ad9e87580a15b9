"""What an objective is: it changes what the model reads, and says how wrong the model was.

Objectives add up: each gets the draft that those before it made. N tokens · B sequences · M asked for.
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.pretraining.rows import Rows
from bothways.pretraining.select import Selection
from bothways.pretraining.shards import Numbers
from bothways.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Room:
    """The most that one batch can hold. The compiler wants every batch to have the same shape, so fillers fill it."""

    tokens: int
    sequences: int
    length: int
    even: bool = False
    """Every sequence has the full length, so real ones and fillers together are always `sequences`."""

    @property
    def rows(self) -> int:
        """Sequences with fillers: enough of them to hold every token that is left, however few are real."""
        return self.sequences if self.even else self.sequences + -(-self.tokens // self.length)


@dataclass(frozen=True)
class Target:
    """What an objective wants to know when it computes its loss: one number for each asked token or sequence."""

    values: Numbers
    most: int
    """How many there can be."""
    filler: int
    """What stands in the places that are left; no loss reads it."""


@dataclass
class Draft:
    """A batch in the making."""

    rows: Rows
    ids: Numbers
    """(N,) what the model will read."""
    targets: dict[str, Target] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    """By loss, how many terms it sums up."""
    selection: Selection | None = None


@dataclass(frozen=True)
class Words:
    """The facts about a vocabulary that masking needs."""

    mask: int
    ordinary: Numbers
    """Every id that is a word or a piece of one: what a random replacement is drawn from."""

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Words | None":
        """None if the vocabulary has no mask token."""
        if tokenizer.mask is None:
            return None
        ordinary = sorted(set(range(tokenizer.size)) - tokenizer.wordless_ids)
        return cls(tokenizer.id(tokenizer.mask), np.array(ordinary))


@dataclass(frozen=True)
class Score:
    """One loss over a batch: the sum of its terms; and for evaluation, if something was guessed, what and what was
    wanted."""

    loss: Tensor
    logits: Tensor = field(default_factory=lambda: torch.tensor(0.0))
    wanted: Tensor = field(default_factory=lambda: torch.tensor(0))

    @property
    def right(self) -> Tensor:
        """How many were guessed right; not a number if nothing was guessed."""
        if not self.wanted.ndim:
            return torch.full_like(self.loss, torch.nan)
        return (self.logits.argmax(-1) == self.wanted).sum()


class Objective(Protocol):
    """One file in objectives/ each."""

    heads: tuple[str, ...]
    """The heads of the model that it trains."""

    def parts(self, model: Model) -> nn.Module | None:
        """What it trains beside the model, if anything."""

    def prepare(self, draft: Draft, room: Room, rate: float | None) -> None:
        """Change the draft's ids and add targets and counts. In numpy, on the CPU, ahead of time.

        `rate` is the share of tokens that this phase asks for, if it differs from the objective's own.
        """

    def losses(
        self, model: Model, parts: nn.Module | None, states: Tensor, batch: Batch, targets: dict[str, Tensor]
    ) -> dict[str, Score]:
        """By name. Each name has a count in the draft."""
