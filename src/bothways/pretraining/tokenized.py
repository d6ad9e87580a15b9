"""Documents of raw text as tokens, in chunks: the part of packing that can be done for each file alone."""

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import tokenizers
from numpy.typing import NDArray

from bothways.model.readable import check_readable
from bothways.prefetch import prefetch
from bothways.text.segment import Segmenter, WordBoundaries, find_segmenter, word_starts
from bothways.text.tokenizer import Tokenizer
from bothways.text.word_cache import Ids, WordCache

_CHUNK = 1 << 19  # characters tokenised at once: enough to keep all cores busy, about 30 MB of encodings


@dataclass(frozen=True)
class Document:
    """A document to tokenise."""

    digest: int
    """64 bits that depend on its text alone."""
    sentences: list[str]
    place: "Place" = ("", "")


Place = tuple[str, str]
"""The split and the source of a document."""


@dataclass(frozen=True)
class Tokenized:
    """Documents as tokens, concatenated."""

    ids: NDArray[np.int64]
    words: NDArray[np.bool_]
    """Whether a word starts at each token."""
    lengths: NDArray[np.int64]
    """The tokens of each sentence."""
    sentences: NDArray[np.int64]
    """The sentences of each document."""


def digest_of(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def tokenize(
    documents: Iterator[Document], tokenizer: Tokenizer, words: WordBoundaries | Segmenter
) -> Iterator[tuple[list[Document], Tokenized]]:
    """Chunks of documents with their tokens. Two threads work ahead: one reads, one tokenises (on all cores)."""
    encoder = _Encoder(tokenizer, words if callable(words) else find_segmenter(words))
    with closing(prefetch(_chunks(documents), 2)) as chunks, closing(prefetch(encoder.run(chunks), 2)) as encoded:
        for chunk, found in encoded:
            check_readable([sentence for document in chunk for sentence in document.sentences[:1]], tokenizer)
            yield chunk, encoder.tokenized(chunk, found)


class _Encoder:
    """Sentences to ids and word starts. "[MASK]" in a raw text is ordinary text, not the special token."""

    def __init__(self, tokenizer: Tokenizer, segmenter: Segmenter | None) -> None:
        self.segmenter = segmenter
        self.backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
        self.backend.encode_special_tokens = True
        self.starts: NDArray[np.bool_] | None = None
        self.special_text: re.Pattern[str] | None = None
        """The special tokens as text, which must be broken up: Unigram has them in its vocabulary."""
        if tokenizer.kind == "Unigram":
            specials = sorted((tokenizer.piece(i) for i in tokenizer.special_ids), key=len, reverse=True)
            self.special_text = re.compile("|".join(map(re.escape, specials)))
        if tokenizer.kind == "WordPiece":
            prefix = self.backend.model.continuing_subword_prefix
            self.starts = np.array([not piece.startswith(prefix) for piece in tokenizer.pieces])
        # Without word boundaries, which WordPiece marks in its pieces.
        self.is_fast = self.starts is not None and self.segmenter is None
        self.cache = WordCache.of(self.backend) if self.is_fast else None

    def run(self, chunks: Iterable[list[Document]]) -> Iterator[tuple[list[Document], Ids | list[tokenizers.Encoding]]]:
        """The chunks, and the ids of all their sentences, or an encoding for each."""
        encode = self.backend.encode_batch_fast if self.is_fast else self.backend.encode_batch
        for chunk in chunks:
            texts = [sentence for document in chunk for sentence in document.sentences]
            if self.special_text is not None:
                texts = [self.special_text.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text) for text in texts]
            yield chunk, self.cache.ids(texts) if self.cache else encode(texts, add_special_tokens=False)

    def tokenized(self, chunk: Sequence[Document], found: Ids | list[tokenizers.Encoding]) -> Tokenized:
        encodings: list[tokenizers.Encoding] = []
        if isinstance(found, tuple):
            ids, lengths = found[0].astype(np.int64), found[1]
        else:
            encodings = found
            lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
            ids = np.fromiter(itertools.chain.from_iterable(e.ids for e in encodings), np.int64, int(lengths.sum()))
        sentences = (sentence for document in chunk for sentence in document.sentences)
        words = self.words(ids, lengths, sentences, encodings)
        return Tokenized(ids, words, lengths, np.array([len(document.sentences) for document in chunk], np.int64))

    def words(
        self,
        ids: NDArray[np.int64],
        lengths: NDArray[np.int64],
        sentences: Iterable[str],
        encodings: Sequence[tokenizers.Encoding],
    ) -> NDArray[np.bool_]:
        """Whether a word starts at each token. The first token of a sentence always starts one."""
        if self.starts is not None:
            starts = self.starts[ids]
        else:
            numbers = itertools.chain.from_iterable(e.word_ids for e in encodings)
            words = np.fromiter((-1 if n is None else n for n in numbers), np.int64, len(ids))
            starts = np.ones(len(ids), bool)
            starts[1:] = words[1:] != words[:-1]
        begins = np.cumsum(lengths) - lengths
        if self.segmenter is not None:
            for sentence, encoding, begin in zip(sentences, encodings, begins, strict=True):
                firsts = [start for start, _ in encoding.offsets]
                known = np.isin(firsts, word_starts(sentence, self.segmenter(sentence)))
                starts[begin : begin + len(firsts)] &= known
        starts[begins[lengths > 0]] = True
        return starts


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    size = 0
    for document in documents:
        chunk.append(document)
        size += sum(map(len, document.sentences))
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
