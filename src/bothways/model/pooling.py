"""Pooling: the one place where the hidden states of tokens become the vector of a text.

N tokens in the batch · B sequences · M pooling modes · W width.
"""

from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor

from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.pooling_modes import PoolingMode

_SUMS = ("mean", "mean_sqrt_len_tokens", "weightedmean")


@dataclass(frozen=True)
class Pooling:
    """One or several modes, whose vectors are concatenated.

    | mode                 | the vector of a text                                                     |
    |----------------------|--------------------------------------------------------------------------|
    | cls                  | the state of its first token, averaged over windows                      |
    | lasttoken            | the state of its last token, averaged over windows                       |
    | mean                 | the mean of all states                                                   |
    | mean_sqrt_len_tokens | the sum of all states, divided by the square root of their number        |
    | weightedmean         | the mean of all states, the n-th of which has the weight n               |
    | max                  | in each dimension the largest number                                     |
    """

    modes: tuple[PoolingMode, ...] = ("mean",)

    def __post_init__(self) -> None:
        if not self.modes:
            raise BothwaysError("a pooling needs at least one mode", "unknown-choice", ())
        for mode in self.modes:
            require_choice("a pooling mode", mode, get_args(PoolingMode))

    def __call__(self, states: Tensor, batch: Batch) -> Tensor:
        """The vector of each sequence, over all its tokens: (N, W) → (B, M · W)."""
        if self.modes == ("cls",):
            return states[batch.first]
        return self.finish(self.partial(states, Counted.whole(batch))).to(states.dtype)

    def partial(self, states: Tensor, counted: "Counted") -> "Partial":
        """What the counted tokens of a batch add to the vectors of their texts."""
        size, owners = len(counted.first), counted.owners
        wide = (states if counted.rows is None else states[counted.rows]).float()
        values, weights = [], []
        for mode in self.modes:
            weight = torch.ones(size, device=states.device)
            if mode in _SUMS:
                each = (counted.positions + 1).float() if mode == "weightedmean" else torch.ones_like(owners).float()
                weight = _summed(each[:, None], owners, counted.counts)[:, 0]
                value = _summed(wide * each[:, None] if mode == "weightedmean" else wide, owners, counted.counts)
            elif mode == "max":
                value = wide.new_full((size, wide.shape[1]), -torch.inf)
                value = value.scatter_reduce(0, owners[:, None].expand_as(wide), wide, "amax")
            else:
                value = states[counted.first if mode == "cls" else counted.last].float()
            values.append(value)
            weights.append(weight)
        return Partial(torch.stack(values, 1), torch.stack(weights, 1))

    def merged(self, part: "Partial", counts: Tensor) -> "Partial":
        """The windows of texts as one for each text, which has so many consecutive ones."""
        values, size = [], len(counts)
        owners = torch.arange(size, device=counts.device).repeat_interleave(counts)
        for i, mode in enumerate(self.modes):
            value = part.values[:, i]
            if mode == "max":
                empty = value.new_full((size, value.shape[1]), -torch.inf)
                values.append(empty.scatter_reduce(0, owners[:, None].expand_as(value), value, "amax"))
            else:
                values.append(_summed(value, owners, counts))
        return Partial(torch.stack(values, 1), _summed(part.weights, owners, counts))

    def finish(self, part: "Partial") -> Tensor:
        """The vectors: (B, M · W) in fp32."""
        vectors = []
        for i, mode in enumerate(self.modes):
            value, weight = part.values[:, i], part.weights[:, i, None].clamp(min=1)
            if mode == "mean_sqrt_len_tokens":
                weight = weight.sqrt()
            vectors.append(value if mode == "max" else value / weight)
        return torch.cat(vectors, 1)


def _summed(rows: Tensor, owners: Tensor, counts: Tensor) -> Tensor:
    """(C, W) → (B, W): the sum of the rows of each sequence, which are consecutive."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return rows.new_zeros(len(counts), rows.shape[1]).index_add(0, owners, rows)
    # In a fixed order: atomic additions on a GPU give other last digits each time.
    return torch.segment_reduce(rows, "sum", lengths=counts, axis=0, unsafe=True)


@dataclass(frozen=True)
class Counted:
    """The tokens of a batch that are pooled, C of them."""

    rows: Tensor | None
    """(C,) their places in the batch; None: all tokens."""
    owners: Tensor
    """(C,) the sequence of each, in ascending order."""
    counts: Tensor
    """(B,) the number of tokens of each sequence that are pooled."""
    positions: Tensor
    """(C,) the position of each in its text, counted from 0."""
    first: Tensor
    """(B,) the place in the batch of each sequence's first token."""
    last: Tensor
    """(B,) the place in the batch of each sequence's last token."""

    @classmethod
    def whole(cls, batch: Batch) -> "Counted":
        """All tokens of a batch, each sequence of which is a text."""
        last = (batch.cu_seqlens[1:] - 1).clamp(min=0)
        return cls(None, batch.owners, batch.lengths.long(), batch.positions, batch.first, last)


@dataclass(frozen=True)
class Partial:
    """The vectors of some texts as far as their tokens were read."""

    values: Tensor
    """(B, M, W): sums, maxima or single states, by mode."""
    weights: Tensor
    """(B, M): what a sum will be divided by."""
