"""One long text as a stream of windows: neither its tokens nor its windows are held together."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bothways.engine.reader import Reader, Tally, too_many_tokens
from bothways.engine.sequences import Indices, Sequences
from bothways.errors import BothwaysError
from bothways.model.readable import check_readable
from bothways.text.long_text import LongText, blocks_of

STREAMED = 2**20
"""Characters of a text that streams, if what is asked of it can be put together from its windows."""
_WINDOWS = 128
"""Windows of a chunk."""

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class WindowChunk:
    """Some consecutive windows of a text."""

    sequences: Sequences
    kept: tuple[Indices, Indices, Indices]
    """(S,) each: the first token that counts, the one after the last, and how far the window is into the text."""
    has_windows: bool = True


def streams(text: object) -> bool:
    """Whether a text is long enough to be read by a `LongReader`."""
    return isinstance(text, LongText) or (isinstance(text, str) and len(text) > STREAMED)


class _Window(NamedTuple):
    ids: Ids
    first: int
    """The first token that counts."""
    last: int
    """The one after the last that counts."""
    start: int
    """How far it is into the text."""


class LongReader:
    """Reads one long text, which may be read once, and counts in the tally of its reader what that would count."""

    def __init__(self, reader: Reader, number: int) -> None:
        """`number`: which text it is, counted from 1, for errors."""
        self.reader, self.number = reader, number
        self.windows = 0
        self.is_cut = False

    def __call__(self, text: str | LongText, prompt: str = "") -> Iterator[WindowChunk]:
        """The windows of a text after the prompt; to be cut: its beginning, and its other tokens are counted."""
        reader, frame = self.reader, self.reader.token_ids.frame(1)
        check_readable(
            [text if isinstance(text, str) else text.beginning], reader.tokenizer, reader.token_ids.for_vectors
        )
        if frame is None:
            raise BothwaysError(
                f"text {self.number:,} has {len(text):,} characters, and this model's tokenizer reads it only as a "
                f"whole: divide it into lines of at most {STREAMED:,}",
                "too-long",
                len(text),
            )
        self.before, self.after = (np.array(some, np.int32).reshape(-1, 2) for some in frame.specials)
        self.segment, self.has_segments = frame.segments[0], reader.segments > 0 and frame.has_segments
        counts = Tally(texts=1, tokens=len(self.before) + len(self.after))
        room = reader.length - counts.tokens
        blocks = (block for some in ([prompt], blocks_of(text)) for block in some if block)
        ids = self._counted((found.ids for found in reader.token_ids.plain.stream(blocks)), counts, room)
        yield from self._chunks(self._windows(ids, room))
        counts.windows = self.windows
        counts.in_windows = int(self.windows > 1)
        reader.tally.add(counts)

    def _counted(self, parts: Iterable[Ids], counts: Tally, room: int) -> Iterator[Ids]:
        """The tokens that are read; all are counted."""
        specials, long, read = counts.tokens, self.reader.settings.long, 0
        for ids in parts:
            own = ids if long == "window" else ids[: max(0, room - read)]
            read += len(ids)
            counts.tokens += len(own)
            counts.tokens_cut += len(ids) - len(own)
            counts.unknown += int((own == self.reader.unknown).sum())
            yield own
        if counts.tokens_cut and long == "error":
            raise too_many_tokens(self.number, read + specials, self.reader)
        self.is_cut = counts.tokens_cut > 0
        counts.cut = int(self.is_cut)

    def _windows(self, parts: Iterable[Ids], room: int) -> Iterator[_Window]:
        overlap = min(self.reader.settings.overlap, room // 4)
        held, start = np.zeros(0, np.int32), 0
        for ids in parts:
            held = np.concatenate([held, ids])
            while len(held) > room:  # there is another window after this one
                yield self._window(held[:room], start, overlap, False)
                held, start = held[room - overlap :], start + room - overlap
        yield self._window(held, start, overlap, True)

    def _window(self, own: Ids, start: int, overlap: int, is_last: bool) -> _Window:
        self.windows += 1
        first = 0 if start == 0 else len(self.before) + overlap // 2
        last = len(self.before) + len(own) + (len(self.after) if is_last else overlap // 2 - overlap)
        return _Window(np.concatenate([self.before[:, 0], own, self.after[:, 0]]), first, last, start)

    def _chunks(self, windows: Iterator[_Window]) -> Iterator[WindowChunk]:
        while some := list(islice(windows, _WINDOWS)):
            ids, first, last, start = zip(*some, strict=True)
            lengths = np.fromiter(map(len, ids), np.int64, len(ids))
            segments = np.concatenate(list(map(self._segments, ids))) if self.has_segments else None
            kept = np.array(first), np.array(last), np.array(start)
            yield WindowChunk(Sequences(np.concatenate(ids), lengths, segments), kept)

    def _segments(self, ids: Ids) -> NDArray[np.uint8]:
        own = np.full(len(ids) - len(self.before) - len(self.after), self.segment)
        return np.concatenate([self.before[:, 1], own, self.after[:, 1]]).astype(np.uint8)
