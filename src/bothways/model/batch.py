"""The packed batch: all sequences concatenated along one dimension, without padding.

N tokens in the batch · B sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.lazy import Tensor, torch

Numbers = Sequence[int] | NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Batch:
    """B sequences, packed into N tokens. Sequence b holds the tokens cu_seqlens[b] to cu_seqlens[b+1] - 1."""

    ids: Tensor
    """(N,) token ids."""
    segments: Tensor
    """(N,) segment ids (token_type_ids): 0 for sentence A, 1 for sentence B."""
    positions: Tensor
    """(N,) position of each token within its sequence, from 0."""
    cu_seqlens: Tensor
    """(B+1,) int32: cumulative sequence lengths, that is the start of each sequence, and N at the end."""
    max_seqlen: int
    """Length of the longest sequence, or an upper bound of it."""
    attended: Tensor | None = None
    """(N,) False for tokens that no token attends to, such as ColBERT's query expansion; None: all are attended to."""

    @classmethod
    def pack(cls, ids: Sequence[Numbers], segments: Sequence[Numbers] | None = None) -> "Batch":
        """Pack sequences of token ids. Without `segments`, all tokens are in segment 0.

        >>> from bothways.model.batch import Batch
        >>> batch = Batch.pack([[101, 7592, 102], [101, 102]])
        >>> batch.positions.tolist(), batch.cu_seqlens.tolist()
        ([0, 1, 2, 0, 1], [0, 3, 5])
        """
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        if not len(lengths) or not lengths.all():
            raise ValueError("a batch needs at least one sequence, and every sequence at least one token")
        # In numpy: small operations of torch take several times as long, and training packs a batch for each step.
        ends = lengths.cumsum()
        positions = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
        flat = _concatenate(ids)
        segment_ids = torch.zeros_like(flat) if segments is None else _concatenate(segments)
        cu_seqlens = torch.from_numpy(np.concatenate([[0], ends]).astype(np.int32))
        return cls(flat, segment_ids, torch.from_numpy(positions), cu_seqlens, int(lengths.max()))

    @property
    def size(self) -> int:
        """B, the number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def first(self) -> Tensor:
        """(B,) index of each sequence's first token, [CLS].

        Batches of a fixed shape may end with empty sequences: their index is that of the last token.
        """
        return self.cu_seqlens[:-1].clamp(max=self.ids.shape[0] - 1)

    @property
    def owners(self) -> Tensor:
        """(N,) index of the sequence that each token belongs to."""
        token = torch.arange(len(self.ids), device=self.cu_seqlens.device).int()
        # Not in cu_seqlens[1:]: compiled for a GPU, torch 2.11 may search from the start of a view's storage.
        return torch.searchsorted(self.cu_seqlens, token, right=True) - 1

    @property
    def is_even(self) -> bool:
        """Whether all sequences have the same length, so that (N, …) can be viewed as (B, max_seqlen, …).

        Computed from shapes alone: it does not wait for a GPU.
        """
        return self.size * self.max_seqlen == self.ids.shape[0]

    @property
    def lengths(self) -> Tensor:
        """(B,) length of each sequence."""
        return self.cu_seqlens.diff()

    def to(self, device: "torch.device | str") -> "Batch":
        """The same batch on another device."""
        ids, segments, positions, cu_seqlens = (tensor.to(device, non_blocking=True) for tensor in self._tensors)
        attended = None if self.attended is None else self.attended.to(device, non_blocking=True)
        return Batch(ids, segments, positions, cu_seqlens, self.max_seqlen, attended)

    def pin(self) -> "Batch":
        """The same batch in page-locked memory, from which a GPU copies asynchronously."""
        ids, segments, positions, cu_seqlens = (tensor.pin_memory() for tensor in self._tensors)
        attended = None if self.attended is None else self.attended.pin_memory()
        return Batch(ids, segments, positions, cu_seqlens, self.max_seqlen, attended)

    @property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.ids, self.segments, self.positions, self.cu_seqlens


def _concatenate(rows: Sequence[Numbers]) -> Tensor:
    return torch.from_numpy(np.concatenate(rows).astype(np.int64))
