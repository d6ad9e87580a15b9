"""Pooling: the one place where the hidden states of tokens become the vector of a text.

N tokens in the batch · B sequences · M pooling modes · W width.
"""

from dataclasses import dataclass
from typing import get_args

from bothways.errors import BothwaysError, require_choice
from bothways.model import arrays
from bothways.model.arrays import Array
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

    def __call__(self, states: Array, batch: Batch) -> Array:
        """The vector of each sequence, over all its tokens: (N, W) → (B, M · W)."""
        if self.modes == ("cls",):
            return states[batch.first]
        return self.finish(self.partial(states, Counted.whole(batch))).to(states.dtype)

    def partial(self, states: Array, counted: "Counted") -> "Partial":
        """What the counted tokens of a batch add to the vectors of their texts."""
        owners, counts = counted.owners, counted.counts
        wide = arrays.to_fp32(states if counted.rows is None else states[counted.rows])
        values, weights = [], []
        for mode in self.modes:
            weight = arrays.to_fp32(counts * 0 + 1)
            if mode in _SUMS:
                each = arrays.to_fp32(counted.positions + 1 if mode == "weightedmean" else owners * 0 + 1)
                weight = arrays.sums(each[:, None], owners, counts)[:, 0]
                value = arrays.sums(wide * each[:, None] if mode == "weightedmean" else wide, owners, counts)
            elif mode == "max":
                value = arrays.maxima(wide, owners, counts)
            else:
                value = arrays.to_fp32(states[counted.first if mode == "cls" else counted.last])
            values.append(value)
            weights.append(weight)
        return Partial(arrays.stacked(values), arrays.stacked(weights))

    def merged(self, part: "Partial", owners: Array, counts: Array) -> "Partial":
        """The windows of texts as one for each text, which has so many consecutive ones. `owners`: the text of each."""
        values = []
        for i, mode in enumerate(self.modes):
            combine = arrays.maxima if mode == "max" else arrays.sums
            values.append(combine(part.values[:, i], owners, counts))
        return Partial(arrays.stacked(values), arrays.sums(part.weights, owners, counts))

    def finish(self, part: "Partial") -> Array:
        """The vectors: (B, M · W) in fp32."""
        vectors = []
        for i, mode in enumerate(self.modes):
            value, weight = part.values[:, i], part.weights[:, i, None].clip(min=1)
            if mode == "mean_sqrt_len_tokens":
                weight = weight**0.5
            vectors.append(value if mode == "max" else value / weight)
        return arrays.joined(vectors)


@dataclass(frozen=True)
class Counted:
    """The tokens of a batch that are pooled, C of them."""

    rows: Array | None
    """(C,) their places in the batch; None: all tokens."""
    owners: Array
    """(C,) the sequence of each, in ascending order."""
    counts: Array
    """(B,) the number of tokens of each sequence that are pooled."""
    positions: Array
    """(C,) the position of each in its text, counted from 0."""
    first: Array
    """(B,) the place in the batch of each sequence's first token."""
    last: Array
    """(B,) the place in the batch of each sequence's last token."""

    @classmethod
    def whole(cls, batch: Batch) -> "Counted":
        """All tokens of a batch, each sequence of which is a text."""
        last = (batch.cu_seqlens[1:] - 1).clip(min=0)
        return cls(None, batch.owners, batch.lengths, batch.positions, batch.first, last)


@dataclass(frozen=True)
class Partial:
    """The vectors of some texts as far as their tokens were read."""

    values: Array
    """(B, M, W): sums, maxima or single states, by mode."""
    weights: Array
    """(B, M): what a sum will be divided by."""
