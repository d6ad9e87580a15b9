"""Token ids of plain texts from a cache of words: in a small part of the time that tokenizing each text anew takes.

BERT splits a text into words before it splits words into pieces, and most words are frequent. A text is plain if it has
only characters whose treatment is known: printable ASCII, Chinese characters, and the punctuation of both. Many texts
are split and looked up by a few array operations, during which other threads run.

C characters of all texts · W words · N token ids.
"""

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bothways.ragged import Indices, ragged
from bothways.text.encode_batch import BatchEncoder, marks_of
from bothways.text.word_table import MOST, Hashes, WordTable

_PUNCTUATION = "“”‘’–—…·、。，！？；：（）《》〈〉「」『』【】"
_ODD = re.compile(rf"[^ -~{_PUNCTUATION}]")
_ODD_BESIDE_CHINESE = re.compile(rf"[^ -~{_PUNCTUATION}\u3400-\u4dbf\u4e00-\u9fff]")
_END = "\n"
"""After each text: no plain text contains it."""
_SPACE, _LETTER, _ALONE, _END_KIND = range(4)
_KINDS = np.full(128, _ALONE, np.uint8)
"""Of ASCII characters. All others that a plain text may have are words by themselves."""
_KINDS[[i for i in range(128) if chr(i).isalnum()]] = _LETTER
_KINDS[[ord(" "), ord(_END)]] = _SPACE, _END_KIND
_BASE = 0x5851F42D4C957F2D
"""Of the polynomial that hashes a word: odd, and so invertible modulo 2^64."""
_AT_ONCE = 2**20
"""Characters that are hashed at once; a longer text is not plain."""

Ids = tuple[NDArray[np.int32], Indices]
"""Token ids of texts, one text after the other, and the length of each text."""


class WordCache:
    """The ids of words, for BERT's WordPiece. Several threads may share one."""

    def __init__(self, backend: tokenizers.Tokenizer, marks: str) -> None:
        """`marks`: the characters with which added tokens begin; texts that contain one are not plain."""
        self.backend, self.model, self.marks = backend, backend.model, marks
        self.encode_others = BatchEncoder(backend)
        normalizer = backend.normalizer
        assert isinstance(normalizer, BertNormalizer)
        self.lowers = normalizer.lowercase
        self.odd = _ODD_BESIDE_CHINESE if normalizer.handle_chinese_chars else _ODD
        self.table, self.lock = WordTable(), Lock()

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "WordCache | None":
        """None for other tokenizers, and if added tokens may be in any text."""
        marks = marks_of(backend)
        if marks is None:
            return None
        parts = (backend.normalizer, backend.pre_tokenizer, backend.model)
        kinds = (BertNormalizer, BertPreTokenizer, WordPiece)
        return cls(backend, marks) if all(map(isinstance, parts, kinds)) else None

    def __reduce__(self) -> tuple[type["WordCache"], tuple[tokenizers.Tokenizer, str]]:
        """A copy begins with no words."""
        return WordCache, (self.backend, self.marks)

    def is_plain(self, text: str) -> bool:
        is_known = len(text) < _AT_ONCE and ((text.isascii() and text.isprintable()) or not self.odd.search(text))
        return is_known and not any(mark in text for mark in self.marks)

    def ids(self, texts: Sequence[str]) -> Ids:
        """The token ids of texts, without special tokens, one text after the other; and the length of each."""
        is_plain = np.fromiter(map(self.is_plain, texts), bool, len(texts))
        if is_plain.all():
            return self.plain_ids(texts)
        own, others = np.flatnonzero(is_plain), np.flatnonzero(~is_plain)
        encoded = self.encode_others([texts[i] for i in others.tolist()], specials=False, has_offsets=False)
        counts = np.fromiter(map(len, encoded), np.int64, len(encoded))
        found = np.fromiter(chain.from_iterable(one.ids for one in encoded), np.int32, int(counts.sum()))
        return in_order((own, self.plain_ids([texts[i] for i in own.tolist()])), (others, (found, counts)))

    def plain_ids(self, texts: Sequence[str]) -> Ids:
        """`ids` of plain texts."""
        joined = "".join([f"{text}{_END}" for text in texts])
        joined = joined.lower() if self.lowers else joined
        if joined.isascii():
            codes: NDArray[np.uint8] | NDArray[np.uint32] = np.frombuffer(joined.encode("ascii"), np.uint8)
        else:
            codes = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        kinds = _KINDS[np.minimum(codes, 127)]
        begins, ends = words_in(kinds)
        hashes = hashes_of(codes, begins, ends)
        with self.lock:
            table, entries = self._entries(joined, hashes, begins, ends)
        counts = table.begins[entries + 1] - table.begins[entries]
        total = np.cumsum(counts)
        found = table.pool[ragged(table.begins[entries], counts)]
        return found, np.diff(total[kinds[begins] == _END_KIND], prepend=0)

    def _entries(self, joined: str, hashes: Hashes, begins: Indices, ends: Indices) -> tuple[WordTable, Indices]:
        """The number of each word in a table that has them all."""
        table = self.table
        while True:
            entries = table.find(hashes)
            unknown = np.flatnonzero(entries < 0)
            if not len(unknown):
                return table, entries
            new, first = np.unique(hashes[unknown], return_index=True)
            places = zip(begins[unknown[first]].tolist(), ends[unknown[first]].tolist(), strict=True)
            words = [joined[begin:end] for begin, end in places]
            found = [[piece.id for piece in self.model.tokenize(word)] if word != _END else [] for word in words]
            if not table.add(new, found):  # it is full: begin anew
                table = WordTable(len(np.unique(hashes)))
                if table.most == MOST:  # else only for these texts
                    self.table = table


def in_order(*groups: tuple[Indices, Ids]) -> Ids:
    """The ids of several groups of texts, each with the numbers of its texts, in the order of all texts."""
    lengths = np.empty(sum(len(numbers) for numbers, _ in groups), np.int64)
    for numbers, (_, counts) in groups:
        lengths[numbers] = counts
    starts = np.cumsum(lengths) - lengths
    ids = np.empty(int(lengths.sum()), np.int32)
    for numbers, (own, counts) in groups:
        ids[ragged(starts[numbers], counts)] = own
    return ids, lengths


def words_in(kinds: NDArray[np.uint8]) -> tuple[Indices, Indices]:
    """(W,) where words begin and end: runs of letters and digits, and single characters that are words."""
    is_letter = np.concatenate([[False], kinds == _LETTER, [False]])
    is_alone = kinds > _LETTER
    begins = np.flatnonzero(is_alone | (is_letter[1:-1] & ~is_letter[:-2]))
    ends = np.flatnonzero(is_alone | (is_letter[1:-1] & ~is_letter[2:])) + 1
    return begins, ends


def hashes_of(codes: NDArray[Any], begins: Indices, ends: Indices) -> Hashes:
    """(W,) a polynomial of the characters of each word, modulo 2^64; never 0.

    Two words share a hash by a chance of one in 10^19.
    """
    found = np.empty(len(begins), np.uint64)
    first = 0
    while first < len(begins):
        last = int(np.searchsorted(ends, begins[first] + _AT_ONCE, "right"))
        begin, end = begins[first:last] - begins[first], ends[first:last] - begins[first]
        part = codes[begins[first] : ends[last - 1]].astype(np.uint64) + np.uint64(1)
        powers, inverses = _powers(len(part).bit_length())
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(part * powers[: len(part)])])
        # The power at which a word begins is divided out.
        found[first:last] = (sums[end] - sums[begin]) * inverses[begin]
        first = last
    return np.maximum(found, np.uint64(1))


@cache
def _powers(bits: int) -> tuple[Hashes, Hashes]:
    """The first 2^bits powers of the base, from 0 on, and of its inverse."""
    both = [np.full(2**bits, base, np.uint64) for base in (_BASE, pow(_BASE, -1, 2**64))]
    for numbers in both:
        numbers[0] = 1
    return np.multiply.accumulate(both[0]), np.multiply.accumulate(both[1])
