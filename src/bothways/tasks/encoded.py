"""Examples as the model reads them: one, many at once, and as training samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from bothways.engine.reads import Read, Reads, View
from bothways.engine.sequences import Indices, Sequences


@dataclass(frozen=True)
class EncodedExample:
    """An example as the model reads it."""

    example: Any
    source: Reads
    """Those of many examples."""
    first: int
    """Its first read."""
    count: int = 1
    """The number of its reads."""

    @cached_property
    def reads(self) -> list[Read]:
        """One; for multiple choice, one per option."""
        return self.source[self.first : self.first + self.count]

    @property
    def views(self) -> list[View]:
        return [view for read in self.reads for view in read.views]

    @property
    def windows(self) -> int:
        """The number of windows of its text; of several reads, such as options, the most that one has."""
        return max(len(read.views) for read in self.reads)

    @property
    def is_cut(self) -> bool:
        """Whether a part of it is not read."""
        return any(read.is_cut for read in self.reads)


@dataclass(frozen=True)
class StreamedExample(EncodedExample):
    """A long example after it was read as a stream of windows, which are gone."""

    streamed: int = 0
    """The number of these windows."""
    was_cut: bool = False

    @property
    def windows(self) -> int:
        return self.streamed

    @property
    def is_cut(self) -> bool:
        return self.was_cut


@dataclass(frozen=True)
class EncodedChunk(Sequence[EncodedExample]):
    """Many examples as the model reads them. An `EncodedExample` is made when it is asked for."""

    examples: Sequence[Any]
    reads: Reads
    sizes: Indices | None = None
    """The number of reads of each example; None: one each."""

    @property
    def sequences(self) -> Sequences:
        return self.reads.sequences

    @cached_property
    def counts(self) -> Indices:
        """The number of sequences of each example."""
        if self.sizes is None:
            return self.reads.counts
        ends, total = np.cumsum(self.sizes), np.concatenate([[0], np.cumsum(self.reads.counts)])
        counts: Indices = total[ends] - total[ends - self.sizes]
        return counts

    def __len__(self) -> int:
        return len(self.examples)

    def __iter__(self) -> Iterator[EncodedExample]:
        if self.sizes is None:
            for i, example in enumerate(self.examples):
                yield EncodedExample(example, self.reads, i)
            return
        first = 0
        for example, size in zip(self.examples, self.sizes.tolist(), strict=True):
            yield EncodedExample(example, self.reads, first, size)
            first += size

    @overload
    def __getitem__(self, i: int) -> EncodedExample: ...
    @overload
    def __getitem__(self, i: slice) -> list[EncodedExample]: ...
    def __getitem__(self, i: int | slice) -> EncodedExample | list[EncodedExample]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        if self.sizes is None:
            return EncodedExample(self.examples[i], self.reads, i)
        return EncodedExample(self.examples[i], self.reads, int(self.sizes[:i].sum()), int(self.sizes[i]))


@dataclass(frozen=True, slots=True)
class Sample:
    """One training sample: a sequence with its target, or several sequences that belong together."""

    ids: list[NDArray[np.int32]]
    segments: list[NDArray[np.uint8]]
    target: Any

    @classmethod
    def of(cls, views: Sequence[View], target: Any) -> "Sample":
        ids = [np.asarray(view.ids, np.int32) for view in views]
        return cls(ids, [np.asarray(view.segments, np.uint8) for view in views], target)

    def __len__(self) -> int:
        return sum(map(len, self.ids))
