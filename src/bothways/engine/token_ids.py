"""Token ids of many texts in arrays, with special tokens: from a cache of words where texts are plain.

T texts · N tokens of all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bothways.engine.sequences import Sequences, ragged
from bothways.text.encoding import TextInput
from bothways.text.tokenizer import Tokenizer
from bothways.text.word_cache import Ids

_SEVERAL = 16
"""Fewer texts are tokenized each by itself, which takes less time then."""


class TokenIds:
    """Encodes texts, or pairs of texts, to the ids of the tokenizer. Several threads may share one."""

    def __init__(self, tokenizer: Tokenizer, has_segments: bool) -> None:
        self.tokenizer, self.has_segments = tokenizer, has_segments
        self._frames: dict[int, _Frame | None] = {}

    def __call__(self, texts: Sequence[TextInput]) -> Sequences:
        kinds, words = set(map(type, texts)), self.tokenizer.words if len(texts) >= _SEVERAL else None
        frame = self.frame(1 if kinds == {str} else 2) if kinds in ({str}, {tuple}) else None
        if words is None or frame is None:
            return self._from_encodings(texts)
        given: Sequence[Any] = texts
        parts = [given] if kinds == {str} else list(zip(*given, strict=True))
        return frame.around([words.ids(part) for part in parts], self.has_segments and frame.has_segments)

    def frame(self, texts: int) -> "_Frame | None":
        """What stands around one text, or two."""
        if texts not in self._frames:
            self._frames[texts] = _Frame.of(self.tokenizer, texts)
        return self._frames[texts]

    def _from_encodings(self, texts: Sequence[TextInput]) -> Sequences:
        found = self.tokenizer.raw_batch(texts, has_offsets=False)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        # One after the other: each list of numbers is freed before the next is made.
        segments = (one.type_ids for one in found) if self.has_segments else None
        return Sequences.of((one.ids for one in found), segments, lengths)


@dataclass(frozen=True)
class _Frame:
    """The special tokens before, between and after texts, and the segments of all."""

    specials: tuple[tuple[tuple[int, int], ...], ...]
    """One more than there are texts: the id and the segment of each special token before the next text."""
    segments: tuple[int, ...]
    """Of each text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, texts: int) -> "_Frame | None":
        """None if the tokenizer puts the texts in another order."""
        found = tokenizer(*["a"] * texts)
        specials: list[list[tuple[int, int]]] = [[]]
        segments: list[int] = []
        for id, segment, source in zip(found.ids, found.segments, found.sources, strict=True):
            if source is None:
                specials[-1].append((id, segment))
            elif source == len(segments):
                segments.append(segment)
                specials.append([])
            elif specials[-1] or source != len(segments) - 1:
                return None
        return cls(tuple(map(tuple, specials)), tuple(segments)) if len(segments) == texts else None

    @property
    def has_segments(self) -> bool:
        """Whether a token has another segment than 0."""
        return any(self.segments) or any(segment for some in self.specials for _, segment in some)

    def around(self, parts: Sequence[Ids], has_segments: bool) -> Sequences:
        """Texts, or the first and the second texts of pairs, with the special tokens."""
        lengths = np.sum([length for _, length in parts], axis=0) + sum(map(len, self.specials))
        total, at = int(lengths.sum()), np.cumsum(lengths) - lengths
        ids, segments = np.empty(total, np.int32), np.zeros(total, np.uint8)
        for number, specials in enumerate(self.specials):
            for id, segment in specials:
                ids[at], segments[at] = id, segment
                at = at + 1
            if number < len(parts):
                rows = ragged(at, parts[number][1])
                ids[rows], segments[rows] = parts[number][0], self.segments[number]
                at = at + parts[number][1]
        return Sequences(ids, lengths, segments if has_segments else None)
