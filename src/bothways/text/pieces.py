"""Long texts in pieces, with the same tokens as the whole: memory does not grow with the length of a text.

A tokenizer first divides a text into words, and each word into tokens by itself. So a text can be cut between two
words, where no step before that looks across: at a single space between two letters or digits; for BERT's WordPiece
also beside Chinese characters and punctuation. Each piece is tokenized with the word before it, whose tokens are then
dropped: what a tokenizer does to the beginning of a text, such as adding a space, is not done in its middle.

Whether a tokenizer allows this is read from its steps, all of which must be known here. Texts that cannot be cut are
tokenized whole, up to `LONGEST_WHOLE` characters.
"""

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import tokenizers

from bothways.errors import BothwaysError
from bothways.ragged import Indices, ragged
from bothways.text.word_cache import Ids

PIECE = 2**16
"""Characters of a piece, about: few enough that its encoding takes some 10 MB."""
LONGEST_WHOLE = 2**20
"""Characters that are tokenized at once where there is no place to cut: some 300 MB in the tokenizer."""
_AT_ONCE = 8
"""Pieces that are tokenized at once, on several cores."""
_NEAR = (2**8, 2**12)
"""Characters before the end of a piece in which a place to cut is looked for first."""

_SPACE = re.compile(r"(?<=[^\W_]) (?=[^\W_])")
_ALNUM, _MARKS, _HAN = "0-9A-Za-z", r"!-/:-@\[-`{-~，。！？；：、“”《》（）「」『』【】", "\u3400-\u4dbf\u4e00-\u9fff"
_WORDPIECE = re.compile(rf"(?<=[{_MARKS}{_HAN}])(?=[{_ALNUM}{_MARKS}{_HAN}])|(?<=[{_ALNUM}])(?=[{_MARKS}{_HAN}])")
_WORDPIECE_MARKS = re.compile(rf"(?<=[{_MARKS}])(?=[{_ALNUM}{_MARKS}])|(?<=[{_ALNUM}])(?=[{_MARKS}])")
_BYTES = re.compile(rf"(?<=[{_HAN}])(?=[，。！？；：、])")

_NORMALIZERS = ("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "Precompiled")
_AT_ENDS = ("Strip", "Prepend")
"""Normalizers that change only the ends of a text: a piece has a word before it, and ends with a letter."""
_SPACE_REPLACED = (" {2,}", r"\A | \z")
_SPLIT_AT_SPACES = ("BertPreTokenizer", "WhitespaceSplit", "Whitespace")
_LOCAL = ("Punctuation", "Digits")


class Piece(NamedTuple):
    """A part of a text."""

    text: str
    """With what stands before it."""
    before: int
    """The characters at its beginning that belong to the piece before."""
    start: int
    """Where its text, with what stands before it, begins in the whole text."""


@dataclass(frozen=True)
class Cutter:
    """Knows where texts can be cut for one tokenizer."""

    places: tuple[re.Pattern[str], ...]
    """What matches where a text can be cut, at its beginning; none: nowhere."""
    added: tuple[str, ...]
    """Added tokens, folded: no cut is beside or inside one."""

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer) -> "Cutter":
        words = [one.content for one in backend.get_added_tokens_decoder().values()]
        # An empty one, or one with spaces in it, may be anywhere.
        is_odd = any(not word.strip() or re.search(r"\w \w", word) for word in words)
        found = () if is_odd else _places(_state(backend.normalizer), _state(backend.pre_tokenizer))
        return cls(found, tuple(sorted({_folded(word) for word in words})))

    def pieces(self, blocks: Iterable[str]) -> Iterator[Piece]:
        """A text, given in consecutive blocks, in pieces of about `PIECE` characters."""
        rest, before, start = "", 0, 0  # what is not given yet, behind its `before` first characters
        for block in _in_parts(blocks):
            rest += block
            if len(rest) - before < PIECE:
                continue
            context, end = self._last_place(rest, before)
            if not end:
                require_whole(len(rest) - before)
                continue
            yield Piece(rest[:end], before, start)
            rest, before, start = rest[context:], end - context, start + context
        require_whole(len(rest) - before)
        yield Piece(rest, before, start)

    def _last_place(self, text: str, before: int) -> tuple[int, int]:
        """The last place to cut after the first `before` characters, and the one before it; 0, 0 if there is none.

        The last characters of the text are left alone: what follows them is not known yet.
        """
        last = len(text) - self._reach
        for near in (*_NEAR, len(text)):
            first = max(before + 1, last - near)
            found = sorted({match.start() for place in self.places for match in place.finditer(text, first, last)})
            good = list(islice((at for at in reversed(found) if self._is_safe(text, at)), 2))
            if len(good) == 2:
                return good[1], good[0]
        return 0, 0

    @property
    def _reach(self) -> int:
        """Characters on each side of a cut that are looked at."""
        return 2 + max(map(len, self.added), default=0)

    def _is_safe(self, text: str, at: int) -> bool:
        left, right = text[at - 1], text[at + 1] if text[at] == " " else text[at]
        if not (_is_stable(left) and _is_stable(right)):
            return False
        near = _folded(text[max(0, at - self._reach) : at + self._reach])
        return not any(word in near for word in self.added)


class Encode(Protocol):
    """The tokens of texts, without special tokens."""

    def __call__(self, texts: Sequence[str], has_offsets: bool = False) -> Ids: ...


def ids_in_pieces(blocks: Iterable[str], cutter: Cutter, encode: Encode, has_offsets: bool = False) -> Iterator[Ids]:
    """The tokens of one text, given in consecutive blocks: those of some pieces at a time.

    Offsets are places in the whole text, in 64 bits.
    """
    pieces = cutter.pieces(blocks)
    while some := list(islice(pieces, _AT_ONCE)):
        found = encode([piece.text for piece in some], has_offsets)
        before: Indices = encode([piece.text[: piece.before] for piece in some]).lengths
        rows = ragged(np.cumsum(found.lengths) - found.lengths + before, found.lengths - before)
        if found.offsets is None:
            yield Ids(found.ids[rows], np.array([len(rows)]))
            continue
        shifts = np.repeat([piece.start for piece in some], found.lengths)[rows]
        yield Ids(found.ids[rows], np.array([len(rows)]), found.offsets[rows] + shifts[:, None])


def _in_parts(blocks: Iterable[str]) -> Iterator[str]:
    for block in blocks:
        if len(block) <= PIECE:
            yield block
        else:
            yield from (block[first : first + PIECE] for first in range(0, len(block), PIECE))


def require_whole(characters: int) -> None:
    """Refuse so many characters without a place to cut."""
    if characters > LONGEST_WHOLE:
        raise BothwaysError(
            f"a text has {LONGEST_WHOLE:,} characters in which this model's tokenizer allows no cut, such as between "
            "two words, and that many at most are tokenized at once: put spaces into it, or leave it out",
            "too-long",
            characters,
        )


def _folded(text: str) -> str:
    """Without what normalizers remove, so that an added token is found however it is written."""
    if text.isascii():
        return text.lower()
    plain = unicodedata.normalize("NFKD", text.casefold())
    return "".join(character for character in plain if not unicodedata.combining(character))


def _is_stable(character: str) -> bool:
    """Whether a normalizer keeps a character apart from its neighbours."""
    if character.isascii():
        return True
    is_jamo = "\u1100" <= character <= "\u11ff" or "\ua960" <= character <= "\ua97f" or character >= "\ud7b0"
    return not is_jamo and unicodedata.is_normalized("NFKC", character)


# ---------------------------------------------------------------------- the steps of a tokenizer


def _state(part: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__())))


def _flat(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if state["type"] != "Sequence":
        yield state
        return
    for part in state.get("normalizers", state.get("pretokenizers", ())):
        yield from _flat(part)


def _places(normalizers: list[dict[str, Any]], splits: list[dict[str, Any]]) -> tuple[re.Pattern[str], ...]:
    """What matches where a text can be cut; nothing if a step is not known."""
    if not all(map(_is_known, normalizers)) or not all(_splits_at_spaces(one) or _is_local(one) for one in splits):
        return ()
    if [one["type"] for one in normalizers + splits] == ["BertNormalizer", "BertPreTokenizer"]:
        return _SPACE, _WORDPIECE if normalizers[0]["handle_chinese_chars"] else _WORDPIECE_MARKS
    if not any(map(_splits_at_spaces, splits)):
        return ()
    is_bytes = len(splits) == 1 and splits[0]["type"] == "ByteLevel"
    return (_SPACE, _BYTES) if is_bytes else (_SPACE,)


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Replace":
        pattern = step["pattern"]
        # What has no space in it is on one side of the cut.
        return pattern.get("Regex") in _SPACE_REPLACED or not re.search(r"\s|^$", pattern.get("String", " "))
    return step["type"] in (*_NORMALIZERS, *_AT_ENDS)


def _splits_at_spaces(step: dict[str, Any]) -> bool:
    match step["type"]:
        case "ByteLevel":
            return bool(step["use_regex"])
        case "Metaspace":
            return bool(step.get("split", True))
        case "Split":
            return bool(step["pattern"] == {"String": " "}) and not step["invert"] and step["behavior"] == "Removed"
    return step["type"] in _SPLIT_AT_SPACES


def _is_local(step: dict[str, Any]) -> bool:
    """Whether a step looks at single characters, so that words stay apart."""
    if step["type"] == "Split":
        return bool(step["pattern"] == {"Regex": "."})
    return step["type"] == "ByteLevel" or step["type"] in _LOCAL
