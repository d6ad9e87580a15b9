"""Divides long documents into passages that a model reads whole."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bothways.engine.token_ids import TokenIds
from bothways.errors import BothwaysError
from bothways.text.encoding import Encoding
from bothways.text.plain_ids import LONG
from bothways.text.same_text import is_blank
from bothways.text.tokenizer import Tokenizer
from bothways.text.windows import windows

Span = tuple[int, int]
"""The first character of a passage, and the one after its last."""
_OVERLAP = 128  # tokens that neighbouring passages share, at most a quarter of a passage; as windows elsewhere
_LEAST_ROOM = 8


class PassageSplitter:
    """Finds the passages of documents: the whole text if the model reads it at once, else overlapping windows.

    A passage begins and ends with a whole word, unless a word is longer than what passages share.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, prompt: str = "") -> None:
        """`max_length`: tokens of a sequence, with special tokens and the prompt."""
        self.tokenizer, self._token_ids = tokenizer, TokenIds(tokenizer, False, True)
        self.specials = tokenizer.specials_around(1)
        self.room = max_length - self.specials - (len(tokenizer(prompt)) - self.specials if prompt else 0)
        if self.room < _LEAST_ROOM:
            raise BothwaysError(
                f"the prompt {prompt!r} leaves room for {max(self.room, 0)} tokens of a document, and this model reads "
                f"{max_length}: give a shorter prompt",
                "no-room",
                prompt,
            )

    def __call__(self, texts: Sequence[str]) -> list[list[Span]]:
        """The passages of each text. An empty text has none."""
        found: list[list[Span]] = [[] if is_blank(text) else [(0, len(text))] for text in texts]
        # A token has at least one byte of the text, so most texts need not be tokenized to know that they fit.
        doubtful = [i for i, text in enumerate(texts) if len(text) * (1 if text.isascii() else 4) > self.room]
        for i in [i for i in doubtful if len(texts[i]) > LONG]:
            found[i] = list(self._in_pieces(texts[i]))
            doubtful.remove(i)
        if not doubtful:
            return found
        lengths: NDArray[np.int64] = self._token_ids([texts[i] for i in doubtful]).sequences.lengths - self.specials
        long = [i for i, length in zip(doubtful, lengths.tolist(), strict=True) if length > self.room]
        for i, encoding in zip(long, self.tokenizer.batch([texts[i] for i in long]) if long else (), strict=True):
            found[i] = self._divide(texts[i], encoding)
        return found

    def _in_pieces(self, text: str) -> Iterator[Span]:
        """The passages of a very long text, piece by piece: between two pieces, passages share nothing."""
        for piece in self._token_ids.plain.cutter.pieces([text]):
            first = piece.start + piece.before
            yield from ((first + start, first + end) for start, end in self([piece.text[piece.before :]])[0])

    def _divide(self, text: str, encoding: Encoding) -> list[Span]:
        inside = [place for place, source in enumerate(encoding.sources) if source is not None]
        offsets, words = encoding.offsets, encoding.words
        begins = np.array([n for n, place in enumerate(inside) if n == 0 or words[place] != words[inside[n - 1]]])
        found = []
        parts = windows(len(inside), self.room, min(_OVERLAP, self.room // 4))
        for part, after in zip(parts, [*parts[1:], None], strict=True):
            start = next(iter(_between(begins, part.start, part.own)), part.start)
            end = part.end
            if after is not None:
                end = max(_between(begins, after.start, part.end), default=part.end)
                end = end if end > after.start else part.end
            found.append(_stripped(text, offsets[inside[start]][0], offsets[inside[end - 1]][1]))
        return found


def _between(begins: NDArray[np.int64], first: int, last: int) -> list[int]:
    """The beginnings of words from `first` to `last`."""
    at, stop = np.searchsorted(begins, [first, last + 1])
    found: list[int] = begins[at:stop].tolist()
    return found


def _stripped(text: str, start: int, end: int) -> Span:
    """Without white space at both ends: some tokenizers count the space before a word to its first token."""
    passage = text[start:end]
    start += len(passage) - len(passage.lstrip())
    return start, start + len(passage.strip())
