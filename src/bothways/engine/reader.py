"""Texts as token sequences that fit the model: whole, cut, or as overlapping windows."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from threading import Lock
from typing import Literal, get_args, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.data.words import Place
from bothways.engine.sequences import Indices, Sequences
from bothways.errors import BothwaysError, require_choice
from bothways.model.model import Model
from bothways.text.tokenizer import Encoding, TextInput, kept_lengths
from bothways.text.windows import TextWindow, windows

Long = Literal["window", "cut", "error"]
Part = Literal["longer", "second"]
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


@dataclass(frozen=True)
class View:
    """One sequence: a text or a pair, or one window of it."""

    ids: list[int]
    segments: list[int]
    shift: int
    """Token t of the encoding, if the window holds it, is token t - shift of this sequence."""
    window: TextWindow
    """The tokens of the encoding that are read here, and those whose results count here."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Read:
    """A text or a pair as the model reads it."""

    encoding: Encoding
    part: Part = "longer"
    given: tuple[View, ...] = ()
    """The sequences of a text that is not one sequence as it stands: windows, or a cut one."""
    parted: tuple[int, ...] = ()
    """Character positions before which a space was inserted, so that no token spans two words."""

    @cached_property
    def inside(self) -> range:
        """The tokens of the encoding that windows divide: those of one text, without special tokens."""
        return _inside(self.encoding, self.part)

    @cached_property
    def views(self) -> Sequence[View]:
        """Its sequences: one, or several windows."""
        inside, encoding = self.inside, self.encoding
        whole = TextWindow(inside.start, inside.stop, inside.start, inside.stop)
        return self.given or (View(encoding.ids, encoding.segments, 0, whole),)

    def places(self) -> NDArray[np.int64]:
        """(tokens inside, 2) start and end of each in the original text."""
        found = np.array(self.encoding.offsets, np.int64).reshape(-1, 2)[self.inside.start : self.inside.stop]
        spaces = np.array(self.parted, np.int64) + np.arange(len(self.parted))
        return found - np.searchsorted(spaces, found)


@dataclass(frozen=True)
class Reads(Sequence[Read]):
    """Many texts or pairs as the model reads them. A `Read` is made when it is asked for."""

    encodings: Sequence[tokenizers.Encoding]
    sequences: Sequences
    """Those of all texts."""
    part: Part = "longer"
    views: Mapping[int, tuple[View, ...]] = field(default_factory=dict)
    """The windows of long texts, and cut texts, by the number of the text."""
    parted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """As in `Read`, by the number of the text."""
    around: tuple[int, int] = (0, 0)
    """The number of special tokens before and after a text that is not a pair."""

    def __len__(self) -> int:
        return len(self.encodings)

    @overload
    def __getitem__(self, i: int) -> Read: ...
    @overload
    def __getitem__(self, i: slice) -> list[Read]: ...
    def __getitem__(self, i: int | slice) -> Read | list[Read]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        return Read(Encoding(self.encodings[i]), self.part, self.views.get(i, ()), self.parted.get(i, ()))

    @cached_property
    def counts(self) -> Indices:
        """(texts,) the number of sequences of each."""
        counts = np.ones(len(self), np.int64)
        for i, views in self.views.items():
            counts[i] = len(views)
        return counts

    @property
    def has_windows(self) -> bool:
        """Whether a text has several sequences."""
        return len(self.sequences) > len(self)


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
        unknown = self.tokenizer.roles.get("unk_token")
        self.unknown = self.tokenizer.id(unknown) if unknown else -1

    def __call__(self, texts: Sequence[str] | Sequence[tuple[str, ...]], before: int = 0) -> Reads:
        """Each item is one text or a pair. `before`: the number of texts before them, for errors."""
        plain = [text if isinstance(text, str) else text[0] if len(text) == 1 else (text[0], text[1]) for text in texts]
        return self._read(plain, self.tokenizer.raw_batch(plain, has_offsets=self.has_offsets), before)

    def by_words(self, texts: Sequence[str], words: Sequence[Sequence[Place]], before: int = 0) -> Reads:
        """Texts in given words. No token spans two: "don't" as "do" and "n't" is not cut into "don" and "'t"."""
        found = self.tokenizer.raw_batch(texts)
        parted = {i: places for i, places in enumerate(map(_split_points, texts, words, found)) if places}
        spaced = list(texts)
        for i, places in parted.items():
            spaced[i] = _with_spaces(texts[i], places)
        for i, encoding in zip(parted, self.tokenizer.raw_batch([spaced[i] for i in parted]), strict=True):
            found[i] = encoding
        return replace(self._read(spaced, found, before), parted=parted)

    def _read(self, texts: Sequence[TextInput], encodings: list[tokenizers.Encoding], before: int) -> Reads:
        has_pairs = not all(isinstance(text, str) for text in texts)
        if has_pairs and 0 < self.segments <= self._segments_of_pairs:
            raise BothwaysError(
                f"a pair of texts needs two segments, and this model has {self.segments}",
                "too-few-segments",
                self.segments,
            )
        counts = Tally(texts=len(texts), empty=_count_empty(texts))
        lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
        counts.tokens = int(lengths.sum())
        views: dict[int, tuple[View, ...]] = {}
        for i in np.flatnonzero(lengths > self.length).tolist():
            if self.settings.long == "cut" and self.has_offsets:
                kept = self.tokenizer.cut([texts[i]], self.length)[0]
                encodings[i] = kept.raw
            elif self.settings.long == "cut":
                views[i] = (self._cut(Encoding(encodings[i])),)
            else:
                views[i] = tuple(self._windows(Encoding(encodings[i]), before + i + 1))
                counts.in_windows += 1
                continue
            counts.cut += 1
            counts.tokens_cut += int(lengths[i]) - self.length
        counts.tokens -= counts.tokens_cut
        sequences = self._sequences(encodings, views, has_pairs)
        counts.windows = len(sequences)
        if counts.in_windows:  # which overlap
            counts.unknown = sum(encoding.ids.count(self.unknown) for encoding in encodings)
        else:
            counts.unknown = int((sequences.ids == self.unknown).sum())
        self.tally.add(counts)
        return Reads(encodings, sequences, self.part, views, around=self.tokenizer.around)

    def _sequences(
        self, encodings: Sequence[tokenizers.Encoding], views: Mapping[int, Sequence[View]], has_pairs: bool
    ) -> Sequences:
        """All texts, those that are too long as their windows."""
        rows: list[View | tokenizers.Encoding] = list(encodings)
        for i in sorted(views, reverse=True):
            rows[i : i + 1] = views[i]
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        has_segments = self.segments > 0 and (self._segments_of_pairs if has_pairs else self._segments_of_texts) > 0
        segments = (row.segments if isinstance(row, View) else row.type_ids for row in rows) if has_segments else None
        # One after the other: each list of numbers is freed before the next is made.
        return Sequences.of((row.ids for row in rows), segments, lengths)

    def _cut(self, encoding: Encoding) -> View:
        """The sequence of a text or pair that is truncated as by `Tokenizer.cut`, without tokenizing it again."""
        ids, segments, whole = encoding.ids, encoding.segments, TextWindow(0, self.length, 0, self.length)
        if encoding.raw.n_sequences == 1:
            before, after = self.tokenizer.around
            kept_lengths([len(ids)], self.length - before - after, self.length)
            first, rest = self.length - after, len(ids) - after
            return View(ids[:first] + ids[rest:], segments[:first] + segments[rest:], 0, whole)
        texts = _ranges(encoding)
        room = self.length - (len(encoding) - sum(map(len, texts)))
        kept = kept_lengths(list(map(len, texts)), room, self.length)
        dropped = {i for text, length in zip(texts, kept, strict=True) for i in text[length:]}
        places = [i for i in range(len(encoding)) if i not in dropped]
        return View([ids[i] for i in places], [segments[i] for i in places], 0, whole)

    @cached_property
    def _segments_of_pairs(self) -> int:
        """The highest segment id that a pair of texts gets."""
        return max(self.tokenizer("a", "a").segments, default=0)

    @cached_property
    def _segments_of_texts(self) -> int:
        return max(self.tokenizer("a").segments, default=0)

    def _windows(self, encoding: Encoding, number: int) -> Iterator[View]:
        """`number`: which text it is, counted from 1, for errors."""
        inside = _inside(encoding, self.part)
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


def _ranges(encoding: Encoding) -> list[range]:
    """The tokens of the first text and of the second, without special tokens."""
    sources = encoding.sources
    found = []
    for number in (0, 1):
        count = sources.count(number)  # which are consecutive
        start = sources.index(number) if count else 0
        found.append(range(start, start + count))
    return found


def _inside(encoding: Encoding, part: Part) -> range:
    ranges = _ranges(encoding)
    if not ranges[1] and 1 not in encoding.segments:
        return ranges[0] or range(min(1, len(encoding)), min(1, len(encoding)))
    return ranges[1] if part == "second" or len(ranges[1]) > len(ranges[0]) else ranges[0]


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
