"""Splits a text into words, and joins words into a text."""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

Place = tuple[int, int]
"""Start and end of a word in a text."""

_CJK = (
    (0x2E80, 0x303F),  # radicals and punctuation
    (0x3040, 0x30FF),  # kana
    (0x31C0, 0x33FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFE30, 0xFE4F),
    (0xFF00, 0xFFEF),  # full-width forms
    (0x20000, 0x3FFFF),
)
_SHARED = frozenset("“”‘’…—·")
"""Punctuation of both Western and Chinese texts, which has no space beside a Chinese character."""
_CLITIC = re.compile(
    r"""(?: (?:(?<=[^\W\d_])|(?<=[\u0300-\u036f])|(?<=[a-z]\.)|(?<!\S)) ['’](?:s|m|d|re|ve|ll)
    | (?<=[0-9])['’]s
    | n['’]t
    | (?<=\bcan)not
    )(?!\w)""",
    re.IGNORECASE | re.VERBOSE,
)
"""English clitics, which treebanks split off as words."""
_WHOLE = re.compile(
    r"""(?:https?://|www\.)[!#-;=?-~]*[\w/]         # links
    | (?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+      # addresses
    | (?<![\w.,:/０-９])[0-9０-９]+(?:[.,:/．：／][0-9０-９]+)+  # 3.14, 5,000, 10:30, 8/16/2000, full-width too
    | (?<![\w.])(?:[a-z]\.){2,}(?:[a-z](?!\w))?      # U.S., e.g., a.k.a
    | (?<!\w)(?-i:Mr|Mrs|Ms|Dr|St|Inc|Jr)\.          # not the end of a sentence
    | (?<!\w)(?:(?-i:[OD]['’][A-Z])\w+|o['’]clock|ma['’]am)  # O'Brien
    | (?<![\w)])[:;]-?(?:[()]+|[DP])(?!\w)           # :-)
    | ([!?.*=~#$<>+-])\1+                            # ... and --""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
"""Words that contain or consist of punctuation."""
_WIDE = re.compile("[０-９Ａ-Ｚａ-ｚ]")
"""Full-width digits and letters, which Chinese texts have among their characters."""
_REMEMBERED = 32
"""The longest parts of texts that are kept in a cache."""
_ASCII = re.compile("[A-Za-z0-9]+|[^A-Za-z0-9 ]")


@lru_cache(maxsize=2**16)
def is_cjk(character: str) -> bool:
    """Whether a character belongs to a script without spaces: Chinese characters, kana, and their punctuation."""
    code = ord(character)
    return code >= 0x2E80 and any(first <= code <= last for first, last in _CJK)


def split_words(text: str) -> list[Place]:
    """The spans of the words: runs of letters and digits, single punctuation marks, and each CJK character.

    As in the Penn Treebank and Universal Dependencies, English n't, 's, 'll and the like, and cannot, are split, and
    3.14, U.S., Mr., ..., links and addresses are not.

    >>> text = "Don't go to John's in 北京!"
    >>> [text[first:last] for first, last in split_words(text)]
    ['Do', "n't", 'go', 'to', 'John', "'s", 'in', '北', '京', '!']
    >>> text = "２０２４年ＡＩ课，１０：３０开始"
    >>> [text[first:last] for first, last in split_words(text)]
    ['２０２４', '年', 'ＡＩ', '课', '，', '１０：３０', '开', '始']
    """
    spans = _unbroken_spans(text)
    return _split_ascii(text, spans) if text.isascii() and text.isprintable() else _split(text, spans)


def _split_ascii(text: str, spans: dict[int, int]) -> list[Place]:
    """As `_split`, in a third of the time."""
    words: list[Place] = []
    place = 0
    for start in sorted(spans):
        if start >= place:
            words += map(re.Match.span, _ASCII.finditer(text, place, start))
            words.append((start, spans[start]))
            place = spans[start]
    words += map(re.Match.span, _ASCII.finditer(text, place))
    return words


def _split(text: str, spans: dict[int, int]) -> list[Place]:
    """Any text, character by character."""
    words: list[Place] = []
    first = -1  # start of the open run, or -1
    until = 0  # end of the latest unbroken span
    for index, character in enumerate(text):
        kind = _class_of(character)
        if kind == "attached":
            if first < 0 and words and words[-1][1] == index:
                words.append((words.pop()[0], index + 1))
            continue
        begins = index >= until and index in spans
        is_cut = begins or index == until
        until = spans[index] if begins else until
        runs = index < until or kind == "run"
        if first >= 0 and (not runs or is_cut):
            words.append((first, index))
            first = -1
        if runs:
            first = index if first < 0 else first
        elif kind == "mark":
            words.append((index, index + 1))
    return [*words, (first, len(text))] if first >= 0 else words


def _unbroken_spans(text: str) -> dict[int, int]:
    """Starts and ends of clitics and of words with punctuation, by start; `split_words` skips nested ones."""
    spans = {}
    has_cannot = "cannot" in text.lower()
    place = 0
    for part in text.split(" "):  # none of them contains a space
        if has_cannot or not part.isalnum():
            for start, end in _unbroken_in(part) if len(part) <= _REMEMBERED else _unbroken_in.__wrapped__(part):
                spans[place + start] = place + end
        place += len(part) + 1
    return spans


@lru_cache(maxsize=2**16)
def _unbroken_in(part: str) -> tuple[Place, ...]:
    """Those of a text without spaces; of two that begin together, the second counts."""
    found = []
    for match in (*_CLITIC.finditer(part), *_WHOLE.finditer(part)):
        end = match.end()
        while end < len(part) and _class_of(part[end]) == "attached":
            end += 1
        found.append((match.start(), end))
    return tuple(found)


def join_words(words: Sequence[str]) -> tuple[str, tuple[Place, ...]]:
    """The text of these words with spaces between them, but none between two CJK characters; and their spans.

    >>> join_words(["Apple", "在", "北京", "。"])
    ('Apple 在北京。', ((0, 5), (6, 7), (7, 9), (9, 10)))
    """
    parts: list[str] = []
    places: list[Place] = []
    length, last = 0, ""
    for word in words:
        if places and spaced(last, word[:1]):
            parts.append(" ")
            length += 1
        parts.append(word)
        places.append((length, length + len(word)))
        length += len(word)
        last = word[-1:]
    return "".join(parts), tuple(places)


def spaced(left: str, right: str) -> bool:
    """Whether a space belongs between two words, given the last character of one and the first of the other."""
    if not left or not right:
        return True
    first, second = is_cjk(left), is_cjk(right)
    return not ((first and second) or (first and right in _SHARED) or (second and left in _SHARED))


@lru_cache(maxsize=2**16)
def _class_of(character: str) -> Literal["space", "attached", "run", "mark"]:
    """Combining marks, skin tones and invisible characters are attached to the one before; letters and digits run."""
    kind = unicodedata.category(character)
    if character.isspace():
        return "space"
    if kind[0] == "M" or kind in ("Cc", "Cf") or "\U0001f3fb" <= character <= "\U0001f3ff":
        return "attached"
    return "run" if kind[0] in "LN" and (_WIDE.match(character) or not is_cjk(character)) else "mark"
