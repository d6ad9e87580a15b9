"""Tokens of texts from a cache of words: in a small part of the time that tokenizing each text anew takes.

BERT splits a text into words before it splits words into pieces, and most words are frequent. Many texts are split and
looked up by a few array operations, during which other threads run. Only words that were not seen before are left to
the tokenizer.

C characters of all texts · W words · N tokens.
"""

import secrets
from collections.abc import Sequence
from functools import cache
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from bothways.ragged import Indices, ragged
from bothways.text.encode_batch import BatchEncoder, marks_of
from bothways.text.word_table import Hashes, Pieces, WordTable

Codes = NDArray[Any]
"""The code points of characters, as uint8 or uint32."""
Kinds = NDArray[np.uint8]

_PUNCTUATION = "“”‘’–—…·、。，！？；：（）《》〈〉「」『』【】"
_CHINESE = (range(0x3400, 0x4DC0), range(0x4E00, 0xA000))
_END = "\n"
"""After each text."""
_SPACE, _LETTER, _ALONE, _MARK, _TEXT_END = range(5)
"""Kinds of characters. _ALONE: a word by itself. _MARK: an added token may begin with it. _LETTER: any other. What is
no letter or digit of ASCII may be anything, and the tokenizer decides about the word that it is in."""
_KNOWN = 2**16
"""Characters with higher code points are of the kind _LETTER."""
_BASE = secrets.randbits(61) * 8 + 5
"""Of the polynomial that hashes a word: invertible modulo 2^64, and unknown to those who would choose words that share
a hash, so that one of them gets the tokens of the other."""
_LONGEST = 64
"""Characters of a word; a text with a longer one is left to the tokenizer: some share a hash whatever the base."""
_AT_ONCE = 2**20
"""Characters that are hashed at once; a longer text is left to the tokenizer."""


class Ids(NamedTuple):
    """Tokens of texts, one text after the other, without special tokens."""

    ids: NDArray[np.int32]
    """(N,)."""
    lengths: Indices
    """(texts,) the number of tokens of each."""
    offsets: NDArray[np.int32] | None = None
    """(N, 2) the span of each token in its text."""


class WordCache:
    """The tokens of words, for BERT's WordPiece. Several threads may share one."""

    def __init__(self, backend: tokenizers.Tokenizer, marks: str) -> None:
        """`marks`: the characters with which added tokens begin."""
        self.backend, self.model, self.marks = backend, backend.model, marks
        self.encode = BatchEncoder(backend)
        normalizer = backend.normalizer
        assert isinstance(normalizer, BertNormalizer)
        self.lowers = normalizer.lowercase
        self.kinds = kinds_of_characters(marks, normalizer.handle_chinese_chars)
        self.strips = any(one.lstrip or one.rstrip for one in backend.get_added_tokens_decoder().values())
        """Whether an added token may take the spaces beside it into its span."""
        self.table, self.lock = WordTable(), Lock()

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "WordCache | None":
        """None for other tokenizers, and if added tokens may be in any text, or in several words of a text."""
        marks = marks_of(backend)
        has_spaces = any(set(one.content) & set(" \t\n\r") for one in backend.get_added_tokens_decoder().values())
        if marks is None or has_spaces:
            return None
        parts = (backend.normalizer, backend.pre_tokenizer, backend.model)
        kinds = (BertNormalizer, BertPreTokenizer, WordPiece)
        return cls(backend, marks) if all(map(isinstance, parts, kinds)) else None

    def __reduce__(self) -> tuple[type["WordCache"], tuple[tokenizers.Tokenizer, str]]:
        """A copy begins with no words."""
        return WordCache, (self.backend, self.marks)

    def ids(self, texts: Sequence[str], has_offsets: bool = False) -> Ids:
        """The tokens of texts, without special tokens."""
        is_whole = np.fromiter(map(len, texts), np.int64, len(texts)) >= _AT_ONCE
        if has_offsets and self.strips:
            is_whole |= np.fromiter((any(mark in text for mark in self.marks) for text in texts), bool, len(texts))
        return self._apart(texts, is_whole, has_offsets) if is_whole.any() else self._by_words(texts, has_offsets)

    def _apart(self, texts: Sequence[str], is_whole: NDArray[np.bool_], has_offsets: bool) -> Ids:
        """Some texts by their words, and others as wholes."""
        words, whole = (np.flatnonzero(some) for some in (~is_whole, is_whole))
        found = self._by_words([texts[i] for i in words.tolist()], has_offsets)
        return in_order((words, found), (whole, self._by_texts([texts[i] for i in whole.tolist()], has_offsets)))

    def _by_texts(self, texts: Sequence[str], has_offsets: bool) -> Ids:
        return ids_of(self.encode(texts, specials=False, has_offsets=has_offsets), has_offsets)

    def _by_words(self, texts: Sequence[str], has_offsets: bool) -> Ids:
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        joined = "".join([f"{text}{_END}" for text in texts])
        codes = codes_of(joined)
        kinds = self.kinds[codes if codes.dtype == np.uint8 else np.minimum(codes, _KNOWN - 1)]
        kinds[np.cumsum(sizes + 1) - 1] = _TEXT_END
        raw = join_marked(kinds)
        if self.lowers:
            codes = lowered(codes, raw)
        begins, ends = words_in(kinds)
        if (ends - begins > _LONGEST).any():
            is_whole = np.zeros(len(texts), bool)
            is_whole[np.searchsorted(np.cumsum(sizes + 1), begins[ends - begins > _LONGEST], "right")] = True
            return self._apart(texts, is_whole, has_offsets)
        hashes = hashes_of(codes, begins, ends)
        with self.lock:
            table, entries = self._entries(joined, hashes, begins, ends)
        counts = table.begins[entries + 1] - table.begins[entries]
        rows, last = ragged(table.begins[entries], counts), np.flatnonzero(kinds[begins] == _TEXT_END)
        lengths = np.diff(np.cumsum(counts)[last], prepend=0)
        if not has_offsets:
            return Ids(table.ids[rows], lengths)
        words = np.diff(last, prepend=-1)
        places = begins - np.repeat(np.cumsum(sizes + 1) - sizes - 1, words)  # of each word in its text
        return Ids(table.ids[rows], lengths, np.repeat(places.astype(np.int32), counts)[:, None] + table.places[rows])

    def _entries(self, joined: str, hashes: Hashes, begins: Indices, ends: Indices) -> tuple[WordTable, Indices]:
        """The number of each word in a table that has them all."""
        table = self.table
        while True:
            entries = table.find(hashes)
            unknown = np.flatnonzero(entries < 0)
            if not len(unknown):
                return table, entries
            new, first = np.unique(hashes[unknown], return_index=True)
            if not table.has_room(len(new)):  # begin anew
                table = WordTable(len(np.unique(hashes)))
                continue
            places = zip(begins[unknown[first]].tolist(), ends[unknown[first]].tolist(), strict=True)
            table.add(new, self._pieces([joined[begin:end] for begin, end in places]))
            if not table.is_full:  # else only for these texts
                self.table = table

    def _pieces(self, words: Sequence[str]) -> list[Pieces]:
        """The tokens of words that are not known yet."""
        found: list[Pieces] = [()] * len(words)
        others = []
        for i, word in enumerate(words):
            if word.isascii() and word.isalnum():
                pieces = self.model.tokenize(word.lower() if self.lowers else word)
                found[i] = [(piece.id, piece.offsets) for piece in pieces]
            elif word != _END:
                others.append(i)
        encoded = self.encode([words[i] for i in others], specials=False, has_offsets=True)
        for i, one in zip(others, encoded, strict=True):
            found[i] = list(zip(one.ids, one.offsets, strict=True))
        return found


def ids_of(encoded: Sequence[tokenizers.Encoding], has_offsets: bool = False) -> Ids:
    """The tokens of texts that were encoded without special tokens."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    ids = np.fromiter(chain.from_iterable(one.ids for one in encoded), np.int32, int(lengths.sum()))
    if not has_offsets:
        return Ids(ids, lengths)
    return Ids(ids, lengths, np.array([place for one in encoded for place in one.offsets], np.int32).reshape(-1, 2))


def in_order(*groups: tuple[Indices, Ids]) -> Ids:
    """The tokens of several groups of texts, each with the numbers of its texts, in the order of all texts."""
    lengths = np.empty(sum(len(numbers) for numbers, _ in groups), np.int64)
    for numbers, some in groups:
        lengths[numbers] = some.lengths
    starts = np.cumsum(lengths) - lengths
    ids = np.empty(int(lengths.sum()), np.int32)
    offsets = None if any(some.offsets is None for _, some in groups) else np.empty((len(ids), 2), np.int32)
    for numbers, some in groups:
        rows = ragged(starts[numbers], some.lengths)
        ids[rows] = some.ids
        if offsets is not None and some.offsets is not None:
            offsets[rows] = some.offsets
    return Ids(ids, lengths, offsets)


# ---------------------------------------------------------------------- characters and words


def kinds_of_characters(marks: str, splits_chinese: bool) -> Kinds:
    """The kind of each character, by its code point."""
    kinds = np.full(_KNOWN, _LETTER, np.uint8)
    alone = [chr(i) for i in range(33, 127) if not chr(i).isalnum()]
    kinds[[ord(character) for character in (*alone, *_PUNCTUATION)]] = _ALONE
    kinds[[ord(character) for character in " \t\n\r"]] = _SPACE
    for some in _CHINESE if splits_chinese else ():
        kinds[some.start : some.stop] = _ALONE
    kinds[[ord(mark) for mark in marks if ord(mark) < _KNOWN]] = _MARK
    return kinds


def codes_of(text: str) -> Codes:
    """(C,)."""
    if text.isascii():
        return np.frombuffer(text.encode("ascii"), np.uint8)
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def lowered(codes: Codes, raw: Indices) -> Codes:
    """Code points with the letters of ASCII in lower case, but not where they are `raw`."""
    small: Codes = codes + (codes - codes.dtype.type(ord("A")) < 26).astype(codes.dtype) * 32
    small[raw] = codes[raw]
    return small


def join_marked(kinds: Kinds) -> Indices:
    """Make one word of what stands between two spaces if it has a mark, in place: an added token may be in it.

    Returns its characters, in which upper and lower case differ.
    """
    marks = np.flatnonzero(kinds == _MARK)
    if not len(marks):
        return marks
    spaces = np.flatnonzero((kinds == _SPACE) | (kinds == _TEXT_END))
    after = np.unique(np.searchsorted(spaces, marks))
    begins = np.where(after > 0, spaces[after - 1] + 1, 0)
    rows = ragged(begins, spaces[after] - begins)
    kinds[rows] = _LETTER
    return rows


def words_in(kinds: Kinds) -> tuple[Indices, Indices]:
    """(W,) where words begin and end: runs of letters, and single characters that are words."""
    is_letter = np.concatenate([[False], kinds == _LETTER, [False]])
    is_alone = kinds > _LETTER
    begins = np.flatnonzero(is_alone | (is_letter[1:-1] & ~is_letter[:-2]))
    ends = np.flatnonzero(is_alone | (is_letter[1:-1] & ~is_letter[2:])) + 1
    return begins, ends


def hashes_of(codes: Codes, begins: Indices, ends: Indices) -> Hashes:
    """(W,) a polynomial of the characters of each word, modulo 2^64; never 0.

    Two words share a hash by a chance of one in 10^11 or less, whoever chose them.
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
