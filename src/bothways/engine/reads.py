"""Texts as the model reads them: one sequence each, or several windows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, overload

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.engine.sequences import Indices, Sequences
from bothways.text.encoding import Encoding
from bothways.text.windows import TextWindow

Part = Literal["longer", "second"]


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
        return inside_of(self.encoding, self.part)

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

    encode: Callable[[], Sequence[tokenizers.Encoding]]
    """Makes the encodings of all texts."""
    sequences: Sequences
    """Those of all texts."""
    size: int
    """The number of texts."""
    part: Part = "longer"
    views: Mapping[int, tuple[View, ...]] = field(default_factory=dict)
    """The windows of long texts, and cut texts, by the number of the text."""
    parted: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """As in `Read`, by the number of the text."""
    around: tuple[int, int] = (0, 0)
    """The number of special tokens before and after a text that is not a pair."""

    def __len__(self) -> int:
        return self.size

    @cached_property
    def encodings(self) -> Sequence[tokenizers.Encoding]:
        """Those of all texts. Where no offsets are needed, they are made only if they are asked for."""
        return self.encode()

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


def with_views(whole: Sequences, views: Mapping[int, Sequence[View]]) -> Sequences:
    """The sequences of whole texts, but those of some texts replaced by their windows."""
    if not views:
        return whole
    ids, lengths, segments, done = [], [], [], 0
    for i in [*sorted(views), len(whole)]:
        first, last = (int(whole.lengths[:n].sum()) for n in (done, i))
        own = views.get(i, ())
        ids += [whole.ids[first:last], *(np.array(view.ids, np.int32) for view in own)]
        lengths += [whole.lengths[done:i], np.array([len(view) for view in own], np.int64)]
        if whole.segments is not None:
            segments += [whole.segments[first:last], *(np.array(view.segments, np.uint8) for view in own)]
        done = i + 1
    return Sequences(np.concatenate(ids), np.concatenate(lengths), np.concatenate(segments) if segments else None)


def text_ranges(encoding: Encoding) -> list[range]:
    """The tokens of the first text and of the second, without special tokens."""
    sources = encoding.sources
    found = []
    for number in (0, 1):
        count = sources.count(number)  # which are consecutive
        start = sources.index(number) if count else 0
        found.append(range(start, start + count))
    return found


def inside_of(encoding: Encoding, part: Part) -> range:
    ranges = text_ranges(encoding)
    if not ranges[1] and 1 not in encoding.segments:
        return ranges[0] or range(min(1, len(encoding)), min(1, len(encoding)))
    return ranges[1] if part == "second" or len(ranges[1]) > len(ranges[0]) else ranges[0]
