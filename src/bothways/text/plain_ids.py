"""The tokens of texts in arrays, without special tokens: of long texts in pieces."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from bothways.text.pieces import Cutter, ids_in_pieces
from bothways.text.tokenizer import Tokenizer
from bothways.text.word_cache import Ids, ids_of

LONG = 2**17
"""Longer texts, in characters, are tokenized in pieces."""


class PlainIds:
    """Encodes texts. Several threads may share one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @cached_property
    def cutter(self) -> Cutter:
        """Where long texts can be cut."""
        return Cutter.of(self.tokenizer.backend)

    def __call__(self, texts: Sequence[str], has_offsets: bool = False) -> Ids:
        """The tokens of texts that are not long."""
        if self.tokenizer.words is not None:
            return self.tokenizer.words.ids(texts, has_offsets)
        return ids_of(self.tokenizer.raw_batch(texts, specials=False, has_offsets=has_offsets), has_offsets)

    def stream(self, blocks: Iterable[str], has_offsets: bool = False) -> Iterator[Ids]:
        """The tokens of one text of any length, given in consecutive blocks: some at a time."""
        return ids_in_pieces(blocks, self.cutter, self, has_offsets)

    def any_length(self, texts: Sequence[str], has_offsets: bool = False) -> Ids:
        """The tokens of texts of any length."""
        if all(len(text) <= LONG for text in texts):
            return self(texts, has_offsets)
        found = [self._joined(self.stream([text], has_offsets)) for text in texts]
        offsets = [one.offsets for one in found if one.offsets is not None]
        return Ids(
            np.concatenate([one.ids for one in found]),
            np.concatenate([one.lengths for one in found]),
            np.concatenate(offsets) if has_offsets else None,
        )

    @staticmethod
    def _joined(parts: Iterable[Ids]) -> Ids:
        """The tokens of one text, from those of its pieces."""
        found = list(parts)
        offsets = [some.offsets.astype(np.int32) for some in found if some.offsets is not None]
        ids = np.concatenate([some.ids for some in found])
        return Ids(ids, np.array([len(ids)]), np.concatenate(offsets) if offsets else None)
