"""Texts as the model reads them: one sequence each, or several windows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, Sequences
from bothways.engine.tokens import NO_TEXT, Offsets, Tokens
from bothways.text.windows import TextWindow

Part = Literal["longer", "second"]


@dataclass(frozen=True)
class View:
    """One sequence: a text or a pair, or one window of it."""

    ids: NDArray[np.int32]
    segments: NDArray[np.uint8]
    shift: int
    """Token t of the whole text, if the window holds it, is token t - shift of this sequence."""
    window: TextWindow
    """The tokens of the whole text that are read here, and those whose results count here."""

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Read:
    """A text or a pair as the model reads it."""

    source: "Reads"
    """Those of many texts."""
    number: int
    """Which of them it is."""

    def __len__(self) -> int:
        """The number of its tokens, however many windows it has."""
        return int(self.source.tokens.sequences.lengths[self.number])

    @property
    def _rows(self) -> slice:
        start = int(self.source.tokens.sequences.starts[self.number])
        return slice(start, start + len(self))

    @property
    def ids(self) -> NDArray[np.int32]:
        return self.source.tokens.sequences.ids[self._rows]

    @property
    def segments(self) -> NDArray[np.uint8]:
        segments = self.source.tokens.sequences.segments
        return np.zeros(len(self), np.uint8) if segments is None else segments[self._rows]

    @property
    def offsets(self) -> Offsets:
        """(tokens, 2) the span of each token in its own text, as it was tokenized."""
        offsets = self.source.tokens.offsets
        assert offsets is not None  # the reader was made with offsets
        return offsets[self._rows]

    @property
    def in_texts(self) -> int:
        """The number of its tokens without special tokens."""
        ranges = self.source.tokens.ranges[self.number]
        return int((ranges[:, 1] - ranges[:, 0]).sum())

    @property
    def inside(self) -> range:
        """The tokens that windows divide: those of one text, without special tokens."""
        first, stop = self.source.inside[self.number].tolist()
        return range(first, stop)

    @property
    def given(self) -> tuple[View, ...]:
        """The windows of a long text; none if it is one sequence."""
        return self.source.views.get(self.number, ())

    @property
    def views(self) -> Sequence[View]:
        """Its sequences: one, or several windows."""
        inside = self.inside
        whole = TextWindow(inside.start, inside.stop, inside.start, inside.stop)
        return self.given or (View(self.ids, self.segments, 0, whole),)

    @property
    def is_cut(self) -> bool:
        """Whether a part of the text is not read."""
        return self.number in self.source.cut

    def places(self) -> NDArray[np.int64]:
        """(tokens inside, 2) start and end of each in the original text."""
        found = self.offsets[self.inside.start : self.inside.stop].astype(np.int64)
        parted = self.source.parted.get(self.number, ())
        return found - np.searchsorted(np.array(parted, np.int64) + np.arange(len(parted)), found)


@dataclass(frozen=True)
class Reads(Sequence[Read]):
    """Many texts or pairs as the model reads them. A `Read` is made when it is asked for."""

    tokens: Tokens
    """Those of all texts; what was cut is not among them."""
    sequences: Sequences
    """Those of all texts, with windows for long ones."""
    encode: Callable[[], Sequence[tokenizers.Encoding]]
    """Makes the encodings of all texts."""
    part: Part = "longer"
    views: Mapping[int, tuple[View, ...]] = field(default_factory=dict)
    """The windows of long texts, by the number of the text."""
    parted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Character positions before which a space was inserted, so that no token spans two words; by number."""
    cut: frozenset[int] = frozenset()
    """The numbers of the texts that were cut."""

    @classmethod
    def none(cls) -> "Reads":
        """Of no texts."""
        nothing = Sequences(np.zeros(0, np.int32), np.zeros(0, np.int64))
        return cls(Tokens(nothing, np.zeros((0, 2, 2), np.int64)), nothing, lambda: ())

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def encodings(self) -> Sequence[tokenizers.Encoding]:
        """Those of all texts, made only if they are asked for."""
        return self.tokens.encodings or self.encode()

    @cached_property
    def inside(self) -> Indices:
        """(texts, 2) the tokens of each that windows divide: the first, and the one after the last."""
        first, second = self.tokens.ranges[:, 0], self.tokens.ranges[:, 1]
        is_longer = (second[:, 1] - second[:, 0] > first[:, 1] - first[:, 0]) | (self.part == "second")
        return np.where((is_longer & (second[:, 0] != NO_TEXT))[:, None], second, first)

    @overload
    def __getitem__(self, i: int) -> Read: ...
    @overload
    def __getitem__(self, i: slice) -> list[Read]: ...
    def __getitem__(self, i: int | slice) -> Read | list[Read]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        return Read(self, range(len(self))[i])

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


def with_views(whole: Sequences, views: Mapping[int, Sequence[View]]) -> Sequences:
    """The sequences of whole texts, but those of some texts replaced by their windows."""
    if not views:
        return whole
    ids, lengths, segments, done = [], [], [], 0
    for i in [*sorted(views), len(whole)]:
        first, last = (int(whole.lengths[:n].sum()) for n in (done, i))
        own = views.get(i, ())
        ids += [whole.ids[first:last], *(view.ids for view in own)]
        lengths += [whole.lengths[done:i], np.array([len(view) for view in own], np.int64)]
        if whole.segments is not None:
            segments += [whole.segments[first:last], *(view.segments for view in own)]
        done = i + 1
    return Sequences(np.concatenate(ids), np.concatenate(lengths), np.concatenate(segments) if segments else None)
