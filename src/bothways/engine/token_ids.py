"""Many texts as tokens in arrays, with special tokens: from a cache of words where the tokenizer has one.

T texts · N tokens of all of them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import tokenizers

from bothways.engine.sequences import Indices, Sequences, ragged
from bothways.engine.tokens import NO_TEXT, Tokens, joined
from bothways.model.readable import check_readable
from bothways.text.encoding import TextInput
from bothways.text.pieces import require_whole
from bothways.text.plain_ids import LONG, PlainIds
from bothways.text.tokenizer import Tokenizer
from bothways.text.word_cache import Ids

_SEVERAL = 16
"""Fewer texts are tokenized each by itself, which takes less time then."""


class TokenIds:
    """Encodes texts, or pairs of texts, as the tokenizer does. Several threads may share one."""

    def __init__(self, tokenizer: Tokenizer, has_segments: bool, for_vectors: bool = False) -> None:
        """`for_vectors`: of whole texts, which matters only for what is said of texts that cannot be read."""
        self.tokenizer, self.has_segments, self.plain = tokenizer, has_segments, PlainIds(tokenizer)
        self.for_vectors = for_vectors
        self._frames: dict[int, _Frame | None] = {}

    def __call__(self, texts: Sequence[TextInput], has_offsets: bool = False) -> Tokens:
        check_readable(texts, self.tokenizer, self.for_vectors)
        long = [i for i, text in enumerate(texts) if characters_of(text) > LONG]
        if not long:
            return self._encoded(texts, has_offsets)
        found = [self._in_pieces(texts[i], has_offsets) for i in long]
        if len(texts) == 1:
            return found[0]
        others = list(texts)
        for i in long:
            others[i] = "" if isinstance(texts[i], str) else ("", "")
        return self._encoded(others, has_offsets).replaced(long, joined(found))

    def _in_pieces(self, text: TextInput, has_offsets: bool) -> Tokens:
        """One long text, or a pair with one."""
        parts = [text] if isinstance(text, str) else list(text)
        frame = self.frame(len(parts))
        if frame is None:
            require_whole(characters_of(text))
            return self._from_encodings([text], has_offsets)
        found = [self.plain.any_length([part], has_offsets) for part in parts]
        return frame.around(found, self.has_segments and frame.has_segments)

    def _encoded(self, texts: Sequence[TextInput], has_offsets: bool) -> Tokens:
        """Texts that are not long."""
        kinds, words = set(map(type, texts)), self.tokenizer.words if len(texts) >= _SEVERAL else None
        frame = self.frame(1 if kinds == {str} else 2) if kinds in ({str}, {tuple}) else None
        if words is None or frame is None:
            return self._from_encodings(texts, has_offsets)
        given: Sequence[Any] = texts
        parts = [given] if kinds == {str} else list(zip(*given, strict=True))
        found = [words.ids(part, has_offsets) for part in parts]
        return frame.around(found, self.has_segments and frame.has_segments)

    def frame(self, texts: int) -> "_Frame | None":
        """What stands around one text, or two."""
        if texts not in self._frames:
            self._frames[texts] = _Frame.of(self.tokenizer, texts)
        return self._frames[texts]

    def _from_encodings(self, texts: Sequence[TextInput], has_offsets: bool) -> Tokens:
        found = self.tokenizer.raw_batch(texts, has_offsets=has_offsets)
        lengths = np.fromiter(map(len, found), np.int64, len(found))
        # One after the other: each list of numbers is freed before the next is made.
        segments = (one.type_ids for one in found) if self.has_segments else None
        sequences = Sequences.of((one.ids for one in found), segments, lengths)
        ranges = self._ranges(texts, found, lengths)
        if not has_offsets:
            return Tokens(sequences, ranges)
        numbers = np.fromiter(_flat(one.offsets for one in found), np.int32, 2 * int(lengths.sum()))
        return Tokens(sequences, ranges, numbers.reshape(-1, 2), found)

    def _ranges(self, texts: Sequence[TextInput], found: list[tokenizers.Encoding], lengths: Indices) -> Indices:
        before, after = self.tokenizer.around
        ranges = np.full((len(texts), 2, 2), NO_TEXT, np.int64)
        ranges[:, 0, 0], ranges[:, 0, 1] = np.minimum(before, lengths), np.maximum(lengths - after, before)
        pairs = [i for i, text in enumerate(texts) if not isinstance(text, str)]
        frame = self.frame(2) if pairs else None
        for i in pairs:
            ranges[i] = _ranges_of(found[i], frame)
        return ranges


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

    def around(self, parts: Sequence[Ids], has_segments: bool) -> Tokens:
        """Texts, or the first and the second texts of pairs, with the special tokens."""
        lengths = np.sum([part.lengths for part in parts], axis=0) + sum(map(len, self.specials))
        total, starts = int(lengths.sum()), np.cumsum(lengths) - lengths
        ids, segments, at = np.empty(total, np.int32), np.zeros(total, np.uint8), starts
        offsets = None if parts[0].offsets is None else np.zeros((total, 2), np.int32)
        ranges = np.full((len(lengths), 2, 2), NO_TEXT, np.int64)
        for number, specials in enumerate(self.specials):
            for id, segment in specials:
                ids[at], segments[at] = id, segment
                at = at + 1
            if number < len(parts):
                own = parts[number]
                rows = ragged(at, own.lengths)
                ids[rows], segments[rows] = own.ids, self.segments[number]
                if offsets is not None and own.offsets is not None:
                    offsets[rows] = own.offsets
                ranges[:, number] = np.stack([at, at + own.lengths], 1) - starts[:, None]
                at = at + own.lengths
        return Tokens(Sequences(ids, lengths, segments if has_segments else None), ranges, offsets)


def characters_of(text: TextInput) -> int:
    """Those of both texts of a pair."""
    return len(text) if isinstance(text, str) else sum(map(len, text))


def _ranges_of(encoding: tokenizers.Encoding, frame: _Frame | None) -> list[tuple[int, int]]:
    """The tokens of the first text of a pair, and of the second, without special tokens."""
    sources = encoding.sequence_ids
    counts = [sources.count(number) for number in (0, 1)]  # which are consecutive
    if frame is None:
        starts = [sources.index(number) if count else 0 for number, count in enumerate(counts)]
    else:
        first = len(frame.specials[0])
        starts = [first, first + counts[0] + len(frame.specials[1])]
    return [(start, start + count) for start, count in zip(starts, counts, strict=True)]


def _flat(rows: Iterable[Iterable[tuple[int, int]]]) -> Iterator[int]:
    return chain.from_iterable(chain.from_iterable(rows))
