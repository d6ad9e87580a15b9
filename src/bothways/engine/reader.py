"""Texts as token sequences that fit the model: whole, cut, or as overlapping windows."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.data.words import Place
from bothways.errors import BothwaysError, require_choice
from bothways.model.model import Model
from bothways.text.tokenizer import Encoding
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
    inside: range
    """The tokens of the encoding that windows divide: those of one text, without special tokens."""
    views: list[View]
    parted: tuple[int, ...] = ()
    """Character positions before which a space was inserted, so that no token spans two words."""

    def places(self) -> NDArray[np.int64]:
        """(tokens inside, 2) start and end of each in the original text."""
        found = np.array(self.encoding.offsets, np.int64).reshape(-1, 2)[self.inside.start : self.inside.stop]
        spaces = np.array(self.parted, np.int64) + np.arange(len(self.parted))
        return found - np.searchsorted(spaces, found)


class Reader:
    """Tokenizes texts and divides long ones into windows. Several threads may share one."""

    def __init__(
        self, model: Model, settings: WindowSettings, part: Part = "longer", long_setting: str = "window.long"
    ) -> None:
        """Windows divide the longer text of a pair, or its second. Errors call the setting `long` by `long_setting`."""
        limit = model.config.encoder.max_length
        if settings.length > limit:
            raise BothwaysError(
                f"window.length is {settings.length}, and this model reads at most {limit} tokens",
                "too-long",
                (settings.length, limit),
            )
        self.tokenizer, self.settings, self.part = model.require_tokenizer(), settings, part
        self.length, self.segments = settings.length or limit, model.config.encoder.segments
        self.long_setting, self.tally = long_setting, Tally()
        unknown = self.tokenizer.roles.get("unk_token")
        self.unknown = self.tokenizer.id(unknown) if unknown else -1

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> list[Read]:
        """Each item is one text or a pair."""
        return self._read_all(texts, self.tokenizer.batch([t[0] if len(t) == 1 else (t[0], t[1]) for t in texts]))

    def by_words(self, texts: Sequence[str], words: Sequence[Sequence[Place]]) -> list[Read]:
        """Texts in given words. No token spans two: "don't" as "do" and "n't" is not cut into "don" and "'t"."""
        found = self.tokenizer.batch(texts)
        parted = [_split_points(*given) for given in zip(texts, words, found, strict=True)]
        spaced = {i: _with_spaces(texts[i], places) for i, places in enumerate(parted) if places}
        again = dict(zip(spaced, self.tokenizer.batch(list(spaced.values())), strict=True))
        reads = self._read_all(
            [(spaced.get(i, text),) for i, text in enumerate(texts)], [again.get(i, one) for i, one in enumerate(found)]
        )
        return [replace(read, parted=places) for read, places in zip(reads, parted, strict=True)]

    def _read_all(self, texts: Sequence[tuple[str, ...]], encodings: Sequence[Encoding]) -> list[Read]:
        counts, before = Tally(), self.tally.texts
        reads = [
            self._read(text, encoding, counts, number)
            for number, (text, encoding) in enumerate(zip(texts, encodings, strict=True), before + 1)
        ]
        self.tally.add(counts)
        return reads

    def _read(self, text: tuple[str, ...], encoding: Encoding, counts: Tally, number: int) -> Read:
        """`number`: which text it is, counted from 1, for errors."""
        counts.texts += 1
        counts.empty += not all(part.strip() for part in text)
        if len(text) > 1 and 0 < self.segments <= max(encoding.segments, default=0):
            raise BothwaysError(
                f"a pair of texts needs two segments, and this model has {self.segments}",
                "too-few-segments",
                self.segments,
            )
        if len(encoding) > self.length and self.settings.long == "cut":
            encoding = self.tokenizer(*text, limit=self.length, long="cut")
            counts.cut += 1
            counts.tokens_cut += encoding.cut
        inside = self._inside(encoding)
        counts.tokens += len(encoding)
        counts.unknown += encoding.ids.count(self.unknown)
        if len(encoding) <= self.length:
            views = [
                View(
                    encoding.ids, encoding.segments, 0, TextWindow(inside.start, inside.stop, inside.start, inside.stop)
                )
            ]
        else:
            views = self._windows(encoding, inside, number)
            counts.in_windows += 1
        counts.windows += len(views)
        return Read(encoding, inside, views)

    def _inside(self, encoding: Encoding) -> range:
        sources = encoding.sources
        places = [[i for i, source in enumerate(sources) if source == n] for n in (0, 1)]
        ranges = [range(p[0], p[-1] + 1) if p else range(0) for p in places]
        if not ranges[1] and 1 not in encoding.segments:
            return ranges[0] or range(min(1, len(sources)), min(1, len(sources)))
        return ranges[1] if self.part == "second" or len(ranges[1]) > len(ranges[0]) else ranges[0]

    def _windows(self, encoding: Encoding, inside: range, number: int) -> list[View]:
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
        views = []
        for w in windows(len(inside), room, min(self.settings.overlap, room // 4)):
            start, end = inside.start + w.start, inside.start + w.end
            views.append(
                View(
                    [*ids[: inside.start], *ids[start:end], *ids[inside.stop :]],
                    [*segments[: inside.start], *segments[start:end], *segments[inside.stop :]],
                    w.start,
                    TextWindow(start, end, inside.start + w.own, inside.start + w.own_end),
                )
            )
        return views


def _split_points(text: str, words: Sequence[Place], encoding: Encoding) -> tuple[int, ...]:
    """Where words begin inside a token that began with another word."""
    found = []
    tokens = sorted(offsets for offsets in encoding.offsets if offsets[0] < offsets[1])
    for first, _ in words:
        start, end = tokens[place - 1] if (place := bisect_left(tokens, (first, 0))) else (first, first)
        # Some tokenizers count the space before a word to its first token.
        if first < end and text[start:first].strip():
            found.append(first)
    return tuple(sorted(set(found)))


def _with_spaces(text: str, places: Sequence[int]) -> str:
    return " ".join(text[first:last] for first, last in pairwise((0, *places, len(text))))
