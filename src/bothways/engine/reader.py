"""Texts as token sequences that fit the model: whole, cut, or as overlapping windows."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Literal, get_args

import numpy as np
import tokenizers

from bothways.data.words import Place
from bothways.engine.reads import Part, Read, Reads, View, with_views
from bothways.engine.token_ids import TokenIds, characters_of
from bothways.engine.tokens import Tokens
from bothways.errors import BothwaysError, require_choice
from bothways.model.facts import ModelFacts
from bothways.printable import counted
from bothways.ranges import Bounded, Count
from bothways.text.encoding import TextInput
from bothways.text.pieces import LONGEST_WHOLE
from bothways.text.same_text import is_blank
from bothways.text.windows import TextWindow, windows

Long = Literal["window", "cut", "error"]
UNKNOWN = 0.02
"""Share of unknown tokens above which a report mentions them."""
_ADDING = Lock()
"""Held while counts are added to a tally that threads share. One for all: a lock in a tally could not be pickled."""


@dataclass(frozen=True)
class WindowSettings(Bounded):
    """The `[window]` section of a recipe: how to handle long texts."""

    section = "window"

    length: Count = 0
    """Maximum tokens of a sequence, special tokens included. 0: the model's maximum length."""
    overlap: Count = 128
    """Tokens that neighbouring windows share, at most a quarter of a window."""
    long: Long = "window"
    """Longer texts: read them in windows, cut them, or raise an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("window.long", self.long, get_args(Long))


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
        parts = [f"{counted(self.texts, 'text')}, {counted(self.tokens, 'token')}"]
        if self.empty:
            parts.append(f"{self.empty:,} empty")
        if self.cut:
            parts.append(f"{counted(self.cut, 'text')} cut, {counted(self.tokens_cut, 'token')} lost")
        if self.in_windows:
            parts.append(f"{counted(self.in_windows, 'long text')} read in windows, nothing lost")
        if self.unknown > UNKNOWN * self.tokens:
            parts.append(f"{self.unknown / self.tokens:.0%} of the tokens are words that this model's vocabulary lacks")
        return "; ".join(parts)


class Reader:
    """Tokenizes texts and divides long ones into windows. Several threads may share one."""

    def __init__(
        self,
        model: ModelFacts,
        settings: WindowSettings,
        part: Part = "longer",
        long_setting: str = "window.long",
        has_offsets: bool = True,
    ) -> None:
        """Windows divide the longer text of a pair, or its second. Errors call the setting `long` by `long_setting`.

        Without the offsets of tokens, tokenizing takes less time.
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
        self.token_ids = TokenIds(self.tokenizer, self.segments > 0, model.sentence is not None)
        unknown = self.tokenizer.roles.get("unk_token")
        self.unknown = self.tokenizer.id(unknown) if unknown else -1

    def __call__(self, texts: Sequence[str] | Sequence[tuple[str, ...]], before: int = 0) -> Reads:
        """Each item is one text or a pair. `before`: the number of texts before them, for errors."""
        plain = [text if isinstance(text, str) else text[0] if len(text) == 1 else (text[0], text[1]) for text in texts]
        self._require_segments(plain)
        return self._read(plain, self.token_ids(plain, self.has_offsets), before)

    def by_words(self, texts: Sequence[str], words: Sequence[Sequence[Place]], before: int = 0) -> Reads:
        """Texts in given words. No token spans two: "don't" as "do" and "n't" is not cut into "don" and "'t"."""
        found = self.token_ids(texts, has_offsets=True)
        parted = split_points(texts, words, found)
        spaced = list(texts)
        for i, places in parted.items():
            spaced[i] = _with_spaces(texts[i], places)
        if parted:
            found = found.replaced(list(parted), self.token_ids([spaced[i] for i in parted], has_offsets=True))
        return replace(self._read(spaced, found, before), parted=parted)

    def _read(self, texts: Sequence[TextInput], tokens: Tokens, before: int) -> Reads:
        """From the tokens of whole texts. Those that are too long are divided, or cut."""
        counts = Tally(texts=len(texts), empty=_count_empty(texts))
        long = np.flatnonzero(tokens.sequences.lengths > self.length)
        views: dict[int, tuple[View, ...]] = {}
        if self.settings.long == "cut" and len(long):
            whole, tokens = len(tokens.sequences.ids), tokens.cut(self.length)
            counts.cut, counts.tokens_cut = len(long), whole - len(tokens.sequences.ids)
        counts.tokens = len(tokens.sequences.ids)
        counts.unknown = int((tokens.sequences.ids == self.unknown).sum())
        cut = frozenset(long.tolist()) if self.settings.long == "cut" else frozenset()
        found = Reads(tokens, tokens.sequences, lambda: self._encodings(texts), self.part, views, cut=cut)
        if self.settings.long != "cut" and len(long):
            views |= {i: tuple(self._windows(found[i], before + i + 1)) for i in long.tolist()}
            counts.in_windows = len(views)
            found = replace(found, sequences=with_views(tokens.sequences, views))
        counts.windows = len(found.sequences)
        self.tally.add(counts)
        return found

    def _encodings(self, texts: Sequence[TextInput]) -> list[tokenizers.Encoding]:
        """As the tokenizer makes them; what is cut has no more tokens than are read.

        They are large, so that there are none of very long texts.
        """
        if (longest := max(map(characters_of, texts), default=0)) > LONGEST_WHOLE:
            raise BothwaysError(
                f"a text has {longest:,} characters, and vectors of tokens and words are made of at most "
                f"{LONGEST_WHOLE:,}: divide it into lines",
                "too-long",
                longest,
            )
        found = self.tokenizer.raw_batch(texts)
        for i, encoding in enumerate(found):
            if self.settings.long == "cut" and len(encoding) > self.length:
                found[i] = self.tokenizer.cut([texts[i]], self.length)[0].raw
        return found

    def _require_segments(self, texts: Sequence[TextInput]) -> None:
        """Refuse pairs if the model has too few segments."""
        if 0 < self.segments <= self._segments_of_pairs and not all(isinstance(text, str) for text in texts):
            raise BothwaysError(
                f"a pair of texts needs two segments, and this model has {self.segments}",
                "too-few-segments",
                self.segments,
            )

    @cached_property
    def _segments_of_pairs(self) -> int:
        """The highest segment id that a pair of texts gets."""
        return max(self.tokenizer("a", "a").segments, default=0)

    def _windows(self, read: Read, number: int) -> Iterator[View]:
        """`number`: which text it is, counted from 1, for errors."""
        inside = read.inside
        outside = len(read) - len(inside)
        room = self.length - outside
        if self.settings.long == "error":
            raise too_many_tokens(number, len(read), self)
        if room < self.length // 8:
            raise BothwaysError(
                f"pair {number:,} has {outside:,} tokens beside the text that is read in windows, and this model reads "
                f"at most {self.length}, which leaves too little room: shorten it, or set {self.long_setting} to cut",
                "no-room-for-windows",
                (number, outside),
            )
        ids, segments = read.ids, read.segments
        for w in windows(len(inside), room, min(self.settings.overlap, room // 4)):
            start, end = inside.start + w.start, inside.start + w.end
            rows = np.r_[: inside.start, start:end, inside.stop : len(read)]
            window = TextWindow(start, end, inside.start + w.own, inside.start + w.own_end)
            yield View(ids[rows], segments[rows], w.start, window)


def too_many_tokens(number: int, length: int, reader: Reader) -> BothwaysError:
    """The error for a text of this length in tokens."""
    return BothwaysError(
        f"text {number:,} has {length:,} tokens and this model reads at most {reader.length}: set "
        f"{reader.long_setting} to window to read it in windows, or to cut to drop {length - reader.length:,} tokens",
        "too-long",
        (number, length),
    )


def _count_empty(texts: Sequence[TextInput]) -> int:
    """The number of empty texts, and of pairs with an empty text."""
    return sum(is_blank(text) if isinstance(text, str) else any(map(is_blank, text)) for text in texts)


def split_points(texts: Sequence[str], words: Sequence[Sequence[Place]], tokens: Tokens) -> dict[int, tuple[int, ...]]:
    """Where words begin inside a token that began with another word, by the number of the text."""
    assert tokens.offsets is not None
    counts = np.fromiter(map(len, words), np.int64, len(words))
    firsts = np.fromiter((first for some in words for first, _ in some), np.int64, int(counts.sum()))
    stretch = max(firsts.max(initial=0), tokens.offsets.max(initial=0)) + 1
    numbers = np.arange(len(texts))
    begins = tokens.offsets[:, 0] + np.repeat(numbers, tokens.sequences.lengths) * stretch
    owners = np.repeat(numbers, counts)
    doubtful = np.unique(owners[~np.isin(firsts + owners * stretch, begins)])
    starts, lengths = tokens.sequences.starts, tokens.sequences.lengths
    found = {
        i: _split_points(texts[i], words[i], tokens.offsets[starts[i] : starts[i] + lengths[i]].tolist())
        for i in doubtful.tolist()
    }
    return {i: places for i, places in found.items() if places}


def _split_points(text: str, words: Sequence[Place], offsets: Sequence[Sequence[int]]) -> tuple[int, ...]:
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
