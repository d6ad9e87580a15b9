"""Texts and pairs of texts as tokens in arrays: where each text is in its sequence, and each token in its text.

T texts or pairs · N tokens of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, Sequences, ragged
from bothways.text.tokenizer import kept_lengths

Offsets = NDArray[np.int32]
NO_TEXT = -1
"""Where the second text begins and ends if there is none."""


@dataclass(frozen=True)
class Tokens:
    """T texts or pairs, each as one sequence, however long."""

    sequences: Sequences
    ranges: Indices
    """(T, 2, 2) the first token of the first and of the second text in their sequence, and the one after the last."""
    offsets: Offsets | None = None
    """(N, 2) the span of each token in its own text; (0, 0) for special tokens. None if it was not asked for."""
    encodings: Sequence[tokenizers.Encoding] | None = None
    """As the tokenizer made them, if it did, with offsets."""

    def __len__(self) -> int:
        return len(self.sequences)

    def take(self, rows: Indices) -> "Tokens":
        """Some of the texts, in the given order."""
        old, lengths = self.sequences, self.sequences.lengths[rows]
        places = ragged(old.starts[rows], lengths)
        return Tokens(
            Sequences(old.ids[places], lengths, None if old.segments is None else old.segments[places]),
            self.ranges[rows],
            None if self.offsets is None else self.offsets[places],
            None if self.encodings is None else [self.encodings[i] for i in rows.tolist()],
        )

    def replaced(self, rows: Sequence[int], others: "Tokens") -> "Tokens":
        """With other tokens for some of the texts."""
        order = np.arange(len(self))
        order[list(rows)] = len(self) + np.arange(len(others))
        return joined([self, others]).take(order)

    def cut(self, limit: int) -> "Tokens":
        """Texts of at most `limit` tokens. Others lose their ends; the longer text of a pair loses tokens first."""
        drops = np.zeros((len(self), 2), np.int64)
        sizes = self.ranges[:, :, 1] - self.ranges[:, :, 0]
        for i in np.flatnonzero(self.sequences.lengths > limit).tolist():
            texts = 1 + int(self.ranges[i, 1, 0] != NO_TEXT)
            own = sizes[i, :texts].tolist()
            room = limit - int(self.sequences.lengths[i]) + sum(own)
            drops[i, :texts] = np.subtract(own, kept_lengths(own, room, limit))
        old, is_kept = self.sequences, np.ones(len(self.sequences.ids), bool)
        is_kept[ragged((old.starts[:, None] + self.ranges[:, :, 1] - drops).ravel(), drops.ravel())] = False
        lengths = old.lengths - drops.sum(1)
        # What is dropped from one text moves the other, if that comes later.
        is_later = self.ranges[:, ::-1, 0] < self.ranges[:, :, 0]
        ranges = self.ranges - np.where(is_later, drops[:, ::-1], 0)[:, :, None]
        ranges[:, :, 1] -= drops
        return replace(
            self,
            sequences=Sequences(old.ids[is_kept], lengths, None if old.segments is None else old.segments[is_kept]),
            ranges=ranges,
            offsets=None if self.offsets is None else self.offsets[is_kept],
            encodings=None,
        )


def joined(parts: Sequence[Tokens]) -> Tokens:
    """The texts of all."""
    if len(parts) == 1:
        return parts[0]
    found = [part.sequences for part in parts]
    segments = None
    if any(some.segments is not None for some in found):
        segments = np.concatenate(
            [np.zeros(len(some.ids), np.uint8) if some.segments is None else some.segments for some in found]
        )
    sequences = Sequences(
        np.concatenate([some.ids for some in found]), np.concatenate([some.lengths for some in found]), segments
    )
    offsets = [part.offsets for part in parts if part.offsets is not None]
    encodings = [part.encodings for part in parts if part.encodings is not None]
    return Tokens(
        sequences,
        np.concatenate([part.ranges for part in parts]),
        np.concatenate(offsets) if len(offsets) == len(parts) else None,
        [one for some in encodings for one in some] if len(encodings) == len(parts) else None,
    )
