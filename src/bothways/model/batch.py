"""The one layout of a batch: all its tokens, one sequence after the other, no padding.

N tokens in the batch · B sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Batch:
    """B sequences as N tokens in a row. Sequence b holds the tokens cu[b] … cu[b+1]-1."""

    ids: Tensor
    """(N,) which token."""
    segments: Tensor
    """(N,) sentence A is 0, sentence B is 1."""
    positions: Tensor
    """(N,) the place in its own sequence, from 0."""
    cu_seqlens: Tensor
    """(B+1,) int32: where each sequence starts, and N at the end."""
    longest: int
    """The length of the longest sequence, or more."""

    @classmethod
    def pack(cls, ids: Sequence[Numbers], segments: Sequence[Numbers] | None = None) -> "Batch":
        """Put sequences one after the other.

        >>> from bothways.model.batch import Batch
        >>> batch = Batch.pack([[101, 7592, 102], [101, 102]])
        >>> batch.positions.tolist(), batch.cu.tolist()
        ([0, 1, 2, 0, 1], [0, 3, 5])
        """
        lengths = torch.tensor([len(sequence) for sequence in ids])
        if not len(lengths) or not lengths.all():
            raise ValueError("a batch needs at least one sequence, and every sequence at least one token")
        flat = _flat(ids)
        kinds = torch.zeros_like(flat) if segments is None else _flat(segments)
        cu_seqlens = torch.cat([torch.zeros(1, dtype=lengths.dtype), lengths.cumsum(0)])
        positions = torch.arange(len(flat)) - cu_seqlens[:-1].repeat_interleave(lengths)
        return cls(flat, kinds, positions, cu_seqlens.int(), int(lengths.max()))

    @property
    def size(self) -> int:
        """B, the number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def first(self) -> Tensor:
        """(B,) where each sequence's first token, [CLS], stands; for an empty filler at the end, the last token."""
        return self.cu_seqlens[:-1].clamp(max=self.ids.shape[0] - 1)

    @property
    def owners(self) -> Tensor:
        """(N,) which sequence each token is of."""
        return torch.searchsorted(
            self.cu_seqlens[1:], torch.arange(len(self.ids), device=self.cu_seqlens.device).int(), right=True
        )

    @property
    def is_even(self) -> bool:
        """Whether all sequences are equally long, so that (N, …) is (B, longest, …). Known from shapes alone."""
        return self.size * self.longest == self.ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        """(B,) the length of each sequence."""
        return self.cu_seqlens.diff()

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        ids, segments, positions, cu_seqlens = (part.to(device, non_blocking=True) for part in self._parts)
        return Batch(ids, segments, positions, cu_seqlens, self.longest)

    def pin(self) -> "Batch":
        """The same batch in memory that a GPU copies from without waiting."""
        ids, segments, positions, cu_seqlens = (part.pin_memory() for part in self._parts)
        return Batch(ids, segments, positions, cu_seqlens, self.longest)

    @property
    def _parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.ids, self.segments, self.positions, self.cu_seqlens


def _flat(rows: Sequence[Numbers]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(row, np.int64) for row in rows]))
