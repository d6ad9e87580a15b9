"""Texts as sequences of at most so many tokens: whole where they fit, in overlapping windows where they do not."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
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
"""The share of unknown tokens from which on they are told of."""


@dataclass(frozen=True)
class WindowSettings:
    """The `[window]` part of a recipe: how long texts are met."""

    length: int = 0
    """Tokens that go through the model at once, specials included; 0: as many as it reads."""
    overlap: int = 128
    """Tokens that two neighbouring windows share; a quarter of the window if that is less."""
    long: Long = "window"
    """Texts beyond that: read them in windows, cut them, or refuse them."""

    def __post_init__(self) -> None:
        require_choice("window.long", self.long, get_args(Long))
        if self.length < 0 or self.overlap < 0:
            raise BothwaysError("window.length and window.overlap must be 0 or more")


@dataclass
class Tally:
    """What happened to the texts: nothing is shortened without a word."""

    texts: int = 0
    tokens: int = 0
    in_windows: int = 0
    """Texts that needed more than one window."""
    windows: int = 0
    """Sequences in all."""
    cut: int = 0
    """Texts that were cut …"""
    tokens_cut: int = 0
    """… and the tokens that were lost."""
    empty: int = 0
    """Texts, or pairs of which one, without a letter: they are answered all the same, so that no row is missing."""
    unknown: int = 0
    """Tokens that stand for what the vocabulary does not have: told if they are more than a few."""

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
    """One sequence: a text or a pair, or a window of it."""

    ids: list[int]
    segments: list[int]
    shift: int
    """Token t of the encoding, if it is in the window, is token t - shift of this sequence."""
    window: TextWindow
    """The tokens of the encoding that are read, and those that are answered for here."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Read:
    """A text or a pair as the model will see it."""

    encoding: Encoding
    inside: range
    """The tokens of the encoding over which windows go: one of the texts, without specials."""
    views: list[View]
    parted: tuple[int, ...] = ()
    """Places of the text before which a space was put, so that no token has a part of two words."""

    def places(self) -> NDArray[np.int64]:
        """(tokens inside, 2) where each of them begins and ends in the text as it was given."""
        found = np.array(self.encoding.offsets, np.int64).reshape(-1, 2)[self.inside.start : self.inside.stop]
        spaces = np.array(self.parted, np.int64) + np.arange(len(self.parted))
        return found - np.searchsorted(spaces, found)


class Reader:
    """Encodes texts and lays windows over them."""

    def __init__(
        self, model: Model, settings: WindowSettings, part: Part = "longer", switch: str = "window.long"
    ) -> None:
        """Of a pair, windows go over its longer text or its second. `switch` is where a user sets `long`."""
        limit = model.config.encoder.max_length
        if settings.length > limit:
            raise BothwaysError(f"window.length is {settings.length}, and this model reads {limit} tokens")
        self.tokenizer, self.settings, self.part = model.require_tokenizer(), settings, part
        self.length, self.segments = settings.length or limit, model.config.encoder.segments
        self.switch, self.tally = switch, Tally()
        unknown = self.tokenizer.roles.get("unk_token")
        self.unknown = self.tokenizer.id(unknown) if unknown else -1

    def __call__(self, texts: Sequence[tuple[str, ...]]) -> list[Read]:
        """One text each, or two."""
        found = self.tokenizer.batch([t[0] if len(t) == 1 else (t[0], t[1]) for t in texts])
        return [self._read(text, encoding) for text, encoding in zip(texts, found, strict=True)]

    def by_words(self, texts: Sequence[str], words: Sequence[Sequence[Place]]) -> list[Read]:
        """Texts of which no token has a part of two words: "do" and "n't" are two, though "don" may be one piece."""
        found = self.tokenizer.batch(texts)
        parted = [_torn(*given) for given in zip(texts, words, found, strict=True)]
        spaced = {i: _with_spaces(texts[i], places) for i, places in enumerate(parted) if places}
        again = dict(zip(spaced, self.tokenizer.batch(list(spaced.values())), strict=True))
        return [
            replace(self._read((spaced.get(i, text),), again.get(i, found[i])), parted=parted[i])
            for i, text in enumerate(texts)
        ]

    def _read(self, text: tuple[str, ...], encoding: Encoding) -> Read:
        self.tally.texts += 1
        self.tally.empty += not all(part.strip() for part in text)
        if len(text) > 1 and 0 < self.segments <= max(encoding.segments, default=0):
            raise BothwaysError(f"a pair of texts needs two segments, and this model has {self.segments}")
        if len(encoding) > self.length and self.settings.long == "cut":
            encoding = self.tokenizer(*text, limit=self.length, long="cut")
            self.tally.cut += 1
            self.tally.tokens_cut += encoding.cut
        inside = self._inside(encoding)
        self.tally.tokens += len(encoding)
        self.tally.unknown += encoding.ids.count(self.unknown)
        if len(encoding) <= self.length:
            views = [
                View(
                    encoding.ids, encoding.segments, 0, TextWindow(inside.start, inside.stop, inside.start, inside.stop)
                )
            ]
        else:
            views = self._windows(encoding, inside)
            self.tally.in_windows += 1
        self.tally.windows += len(views)
        return Read(encoding, inside, views)

    def _inside(self, encoding: Encoding) -> range:
        sources = encoding.sources
        places = [[i for i, source in enumerate(sources) if source == n] for n in (0, 1)]
        ranges = [range(p[0], p[-1] + 1) if p else range(0) for p in places]
        if not ranges[1] and 1 not in encoding.segments:
            return ranges[0] or range(min(1, len(sources)), min(1, len(sources)))
        return ranges[1] if self.part == "second" or len(ranges[1]) > len(ranges[0]) else ranges[0]

    def _windows(self, encoding: Encoding, inside: range) -> list[View]:
        room = self.length - (len(encoding) - len(inside))
        if self.settings.long == "error":
            raise BothwaysError(
                f"text {self.tally.texts:,} has {len(encoding):,} tokens and this model reads {self.length}: "
                f"set {self.switch} to window to read it in parts, or to cut to drop {len(encoding) - self.length:,}"
            )
        if room < self.length // 8:
            beside = len(encoding) - len(inside)
            raise BothwaysError(
                f"pair {self.tally.texts:,} has {beside:,} tokens beside the text that windows go over, and this model "
                f"reads {self.length}: too little room is left for windows; shorten it, or set {self.switch} to cut"
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


def _torn(text: str, words: Sequence[Place], encoding: Encoding) -> tuple[int, ...]:
    """Where words begin in the midst of a token that another word has begun."""
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
