"""Texts as token sequences that fit the model: whole, cut, or as overlapping windows."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Literal, get_args

import numpy as np
import tokenizers

from bothways.data.words import Place
from bothways.engine.reads import Part, Reads, View, inside_of, text_ranges, with_views
from bothways.engine.sequences import Sequences
from bothways.engine.token_ids import TokenIds
from bothways.errors import BothwaysError, require_choice
from bothways.model.model import Model
from bothways.text.tokenizer import Encoding, TextInput, kept_lengths
from bothways.text.windows import TextWindow, windows

Long = Literal["window", "cut", "error"]
UNKNOWN = 0.02
"""Share of unknown tokens above which a report mentions them."""
_ADDING = Lock()
"""Held while counts are added to a tally that threads share. One for all: a lock in a tally could not be pickled."""


@dataclass(frozen=True)
class WindowSettings:
    """The `[window]` section of a recipe: how to handle long texts."""

    length: int = 0
    """Maximum tokens of a sequence, special tokens included. 0: the model's maximum length."""
    overlap: int = 128
    """Tokens that neighbouring windows share, at most a quarter of a window."""
    long: Long = "window"
    """Longer texts: read them in windows, cut them, or raise an error."""

    def __post_init__(self) -> None:
        require_choice("window.long", self.long, get_args(Long))
        if self.length < 0 or self.overlap < 0:
            raise BothwaysError(
                f"window.length is {self.length} and window.overlap is {self.overlap}: expected 0 or more",
                "out-of-range",
                min(self.length, self.overlap),
            )


@dataclass
class Tally:
    """Counts of what was read: no text is cut without being counted."""

    texts: int = 0
    tokens: int = 0
    in_windows: int = 0
    """Texts read in more than one window."""
    windows: int = 0
    """Sequences, of all texts together."""
    cut: int = 0
    """Texts that were cut."""
    tokens_cut: int = 0
    """Tokens lost by cutting."""
    empty: int = 0
    """Empty texts, and pairs with an empty text. They get an answer too, so that no row is missing."""
    unknown: int = 0
    """Unknown tokens ([UNK])."""

    def add(self, other: "Tally") -> None:
        """Add the counts of another. Several threads may do so at once."""
        with _ADDING:
            for name, count in vars(other).items():
                setattr(self, name, getattr(self, name) + count)

    def __str__(self) -> str:
        parts = [f"{_counted(self.texts, 'text')}, {_counted(self.tokens, 'token')}"]
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.cut:
            parts.append(f"{_counted(self.cut, 'text')} cut, {_counted(self.tokens_cut, 'token')} lost")
        if self.in_windows:
            parts.append(f"{_counted(self.in_windows, 'long text')} read in windows, nothing lost")
        if self.unknown > UNKNOWN * self.tokens:
            parts.append(f"{self.unknown / self.tokens:.0%} of the tokens are words that this model's vocabulary lacks")
        return "; ".join(parts)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


class Reader:
    """Tokenizes texts and divides long ones into windows. Several threads may share one."""

    def __init__(
        self,
        model: Model,
        settings: WindowSettings,
        part: Part = "longer",
        long_setting: str = "window.long",
        has_offsets: bool = True,
    ) -> None:
        """Windows divide the longer text of a pair, or its second. Errors call the setting `long` by `long_setting`.

        Without offsets of tokens and words, tokenizing takes two thirds of the time.
        """
        limit = model.config.encoder.max_length
        if settings.length > limit:
            raise BothwaysError(
                f"window.length is {settings.length}, and this model reads at most {limit} tokens",
                "too-long",
                (settings.length, limit),
            )
        self.tokenizer, self.settings, self.part = model.require_tokenizer(), settings, part
        self.length, self.segments = settings.length or limit, model.config.encoder.segments
        self.long_setting, self.has_offsets, self.tally = long_setting, has_offsets, Tally()
        self.token_ids = TokenIds(self.tokenizer, self.segments > 0)
        unknown = self.tokenizer.roles.get("unk_token")
        self.unknown = self.tokenizer.id(unknown) if unknown else -1

    def __call__(self, texts: Sequence[str] | Sequence[tuple[str, ...]], before: int = 0) -> Reads:
        """Each item is one text or a pair. `before`: the number of texts before them, for errors."""
        plain = [text if isinstance(text, str) else text[0] if len(text) == 1 else (text[0], text[1]) for text in texts]
        if self.has_offsets:
            return self._read_encodings(plain, self.tokenizer.raw_batch(plain), before)
        self._require_segments(plain)
        return self._read(
            plain, self.token_ids(plain), lambda: self.tokenizer.raw_batch(plain, has_offsets=False), before
        )

    def by_words(self, texts: Sequence[str], words: Sequence[Sequence[Place]], before: int = 0) -> Reads:
        """Texts in given words. No token spans two: "don't" as "do" and "n't" is not cut into "don" and "'t"."""
        found = self.tokenizer.raw_batch(texts)
        parted = {i: places for i, places in enumerate(map(_split_points, texts, words, found)) if places}
        spaced = list(texts)
        for i, places in parted.items():
            spaced[i] = _with_spaces(texts[i], places)
        for i, encoding in zip(parted, self.tokenizer.raw_batch([spaced[i] for i in parted]), strict=True):
            found[i] = encoding
        return replace(self._read_encodings(spaced, found, before), parted=parted)

    def _read_encodings(self, texts: Sequence[TextInput], encodings: list[tokenizers.Encoding], before: int) -> Reads:
        """With offsets. What is cut is tokenized again, so that an encoding has no more tokens than are read."""
        self._require_segments(texts)
        lost, cut = 0, 0
        for i, encoding in enumerate(encodings):
            if self.settings.long == "cut" and len(encoding) > self.length:
                encodings[i] = self.tokenizer.cut([texts[i]], self.length)[0].raw
                lost, cut = lost + len(encoding) - self.length, cut + 1
        segments = (encoding.type_ids for encoding in encodings) if self.segments > 0 else None
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        # One after the other: each list of numbers is freed before the next is made.
        sequences = Sequences.of((encoding.ids for encoding in encodings), segments, lengths)
        self.tally.add(Tally(cut=cut, tokens_cut=lost))
        return self._read(texts, sequences, lambda: encodings, before)

    def _read(
        self,
        texts: Sequence[TextInput],
        whole: Sequences,
        encode: Callable[[], Sequence[tokenizers.Encoding]],
        before: int,
    ) -> Reads:
        """From the sequences of whole texts. Those that are too long are divided, or cut."""
        counts = Tally(texts=len(texts), empty=_count_empty(texts), tokens=len(whole.ids))
        counts.unknown = int((whole.ids == self.unknown).sum())
        long = np.flatnonzero(whole.lengths > self.length).tolist()
        views: dict[int, tuple[View, ...]] = {}
        encodings = encode() if self.has_offsets else ()
        again = [] if self.has_offsets else self.tokenizer.raw_batch([texts[i] for i in long], has_offsets=False)
        for number, i in enumerate(long):
            encoding = Encoding(encodings[i] if self.has_offsets else again[number])
            if self.settings.long == "cut":
                views[i] = (self._cut(encoding),)
                counts.unknown += views[i][0].ids.count(self.unknown) - encoding.ids.count(self.unknown)
                counts.cut += 1
                counts.tokens_cut += len(encoding) - self.length
            else:
                views[i] = tuple(self._windows(encoding, before + i + 1))
                counts.in_windows += 1
        counts.tokens -= counts.tokens_cut
        sequences = with_views(whole, views)
        counts.windows = len(sequences)
        self.tally.add(counts)
        return Reads(encode, sequences, len(texts), self.part, views, around=self.tokenizer.around)

    def _require_segments(self, texts: Sequence[TextInput]) -> None:
        """Refuse pairs if the model has too few segments."""
        if 0 < self.segments <= self._segments_of_pairs and not all(isinstance(text, str) for text in texts):
            raise BothwaysError(
                f"a pair of texts needs two segments, and this model has {self.segments}",
                "too-few-segments",
                self.segments,
            )

    def _cut(self, encoding: Encoding) -> View:
        """The sequence of a text or pair that is truncated as by `Tokenizer.cut`, without tokenizing it again."""
        ids, segments, whole = encoding.ids, encoding.segments, TextWindow(0, self.length, 0, self.length)
        if encoding.raw.n_sequences == 1:
            before, after = self.tokenizer.around
            kept_lengths([len(ids)], self.length - before - after, self.length)
            first, rest = self.length - after, len(ids) - after
            return View(ids[:first] + ids[rest:], segments[:first] + segments[rest:], 0, whole)
        texts = text_ranges(encoding)
        room = self.length - (len(encoding) - sum(map(len, texts)))
        kept = kept_lengths(list(map(len, texts)), room, self.length)
        dropped = {i for text, length in zip(texts, kept, strict=True) for i in text[length:]}
        places = [i for i in range(len(encoding)) if i not in dropped]
        return View([ids[i] for i in places], [segments[i] for i in places], 0, whole)

    @cached_property
    def _segments_of_pairs(self) -> int:
        """The highest segment id that a pair of texts gets."""
        return max(self.tokenizer("a", "a").segments, default=0)

    def _windows(self, encoding: Encoding, number: int) -> Iterator[View]:
        """`number`: which text it is, counted from 1, for errors."""
        inside = inside_of(encoding, self.part)
        outside = len(encoding) - len(inside)
        room = self.length - outside
        if self.settings.long == "error":
            raise BothwaysError(
                f"text {number:,} has {len(encoding):,} tokens and this model reads at most {self.length}: set "
                f"{self.long_setting} to window to read it in windows, or to cut to drop "
                f"{len(encoding) - self.length:,} tokens",
                "too-long",
                (number, len(encoding)),
            )
        if room < self.length // 8:
            raise BothwaysError(
                f"pair {number:,} has {outside:,} tokens beside the text that is read in windows, and this model reads "
                f"at most {self.length}, which leaves too little room: shorten it, or set {self.long_setting} to cut",
                "no-room-for-windows",
                (number, outside),
            )
        ids, segments = encoding.ids, encoding.segments
        for w in windows(len(inside), room, min(self.settings.overlap, room // 4)):
            start, end = inside.start + w.start, inside.start + w.end
            yield View(
                [*ids[: inside.start], *ids[start:end], *ids[inside.stop :]],
                [*segments[: inside.start], *segments[start:end], *segments[inside.stop :]],
                w.start,
                TextWindow(start, end, inside.start + w.own, inside.start + w.own_end),
            )


def _count_empty(texts: Sequence[TextInput]) -> int:
    """The number of empty texts, and of pairs with an empty text."""
    return sum(
        not text or text.isspace() if isinstance(text, str) else not all(part.strip() for part in text)
        for text in texts
    )


def _split_points(text: str, words: Sequence[Place], encoding: tokenizers.Encoding) -> tuple[int, ...]:
    """Where words begin inside a token that began with another word."""
    offsets = encoding.offsets
    if {start for start, _ in offsets}.issuperset([first for first, _ in words]):
        return ()
    found = []
    tokens = sorted((start, end) for start, end in offsets if start < end)
    for first, _ in words:
        start, end = tokens[place - 1] if (place := bisect_left(tokens, (first, 0))) else (first, first)
        # Some tokenizers count the space before a word to its first token.
        if first < end and text[start:first].strip():
            found.append(first)
    return tuple(sorted(set(found)))


def _with_spaces(text: str, places: Sequence[int]) -> str:
    return " ".join(text[first:last] for first, last in pairwise((0, *places, len(text))))
