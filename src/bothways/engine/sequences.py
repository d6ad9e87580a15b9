"""Token sequences in bulk: arrays instead of one object for each text.

S sequences · N tokens of all sequences · B sequences of a batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.lazy import Tensor, torch
from bothways.model.batch import Batch
from bothways.ragged import Indices as Indices
from bothways.ragged import ragged as ragged


@dataclass(frozen=True)
class Sequences:
    """S token sequences, one after the other."""

    ids: NDArray[np.int32]
    """(N,) token ids."""
    lengths: Indices
    """(S,) tokens of each sequence."""
    segments: NDArray[np.uint8] | None = None
    """(N,) segment ids; None: all are 0."""

    @classmethod
    def of(
        cls,
        ids: Iterable[Sequence[int]],
        segments: Iterable[Sequence[int]] | None = None,
        lengths: Indices | None = None,
    ) -> "Sequences":
        """From lists of token ids, and of the segment of each token. With `lengths` the lists are not kept in memory.

        >>> from bothways.engine.sequences import Sequences
        >>> Sequences.of([[101, 7592, 102], [101, 102]]).ids.tolist()
        [101, 7592, 102, 101, 102]
        """
        if lengths is None:
            ids = list(ids)
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        total = int(lengths.sum())
        flat = np.fromiter(chain.from_iterable(ids), np.int32, total)
        if segments is None:
            return cls(flat, lengths)
        return cls(flat, lengths, np.fromiter(chain.from_iterable(segments), np.uint8, total))

    def __len__(self) -> int:
        return len(self.lengths)

    @cached_property
    def starts(self) -> Indices:
        """(S,) the first token of each sequence."""
        starts: Indices = np.cumsum(self.lengths) - self.lengths
        return starts

    def batch(self, picked: Indices, device: "torch.device") -> Batch:
        """The given sequences as a packed batch on a device. A GPU is not waited for."""
        lengths = self.lengths[picked]
        rows = ragged(self.starts[picked], lengths)
        size = len(rows)
        segment_ids = np.zeros(0, np.uint8) if self.segments is None else self.segments[rows]
        parts = (self.ids[rows], np.zeros(1), np.cumsum(lengths), segment_ids)
        packed = on_device(np.concatenate([part.astype(np.int32) for part in parts]), device)
        ids, cu_seqlens, segments = packed.split([size, len(lengths) + 1, len(segment_ids)])
        before = cu_seqlens[:-1].repeat_interleave(cu_seqlens.diff(), output_size=size)
        return Batch(
            ids.long(),
            segments.long() if len(segments) else torch.zeros(size, dtype=torch.long, device=device),
            torch.arange(size, device=device) - before,
            cu_seqlens.clone(),  # compiled code may read a view from the start of its storage
            int(lengths.max()),
        )


def on_device(values: NDArray[Any], device: "torch.device") -> Tensor:
    """A copy of an array on a device. A GPU is not waited for."""
    found = torch.from_numpy(values)
    # From pinned memory a GPU copies by itself; for other memory, torch waits for what it computes.
    return (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)


def by_budget(lengths: Indices, budget: int) -> Iterator[Indices]:
    """Indices of sequences, in groups of similar length and at most `budget` tokens.

    A sequence longer than the budget is a group of its own.

    >>> import numpy as np
    >>> [group.tolist() for group in by_budget(np.array([3, 9, 2, 4]), budget=9)]
    [[2, 0, 3], [1]]
    """
    order = np.argsort(lengths, kind="stable")
    ends = np.cumsum(lengths[order])
    first = 0
    while first < len(order):
        before = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, before + budget, "right")), first + 1)
        yield order[first:last]
        first = last
