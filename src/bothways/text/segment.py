"""Word boundaries for whole-word masking: from the tokenizer, from spaces, or from a segmenter."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from bothways.errors import BothwaysError, missing_package, require_choice

Segmenter = Callable[[str], Iterable[str]]
"""A text → its words in order; anything between them is white space."""
WordBoundaries = Literal["pieces", "spaces", "jieba"]
"""What marks a word: the tokenizer's pieces, spaces in the text, or the segmenter jieba."""


def find_segmenter(words: WordBoundaries) -> Segmenter | None:
    """The segmenter of that name; None for the tokenizer's own words."""
    require_choice("words", words, get_args(WordBoundaries))
    if words == "pieces":
        return None
    if words == "spaces":
        return str.split
    try:
        import jieba
    except ImportError:
        raise missing_package("`words` jieba", "jieba") from None
    jieba.setLogLevel("ERROR")
    segmenter: Segmenter = jieba.cut
    return segmenter


def word_starts(text: str, words: Iterable[str]) -> list[int]:
    """The offsets in a text at which its words begin.

    >>> word_starts("今天 天气很好", ["今天", "天气", "很", "好"])
    [0, 3, 5, 6]
    """
    found, place = [], 0
    for word in words:
        if not (word := word.strip()):
            continue
        start = text.find(word, place)
        if start < 0 or text[place:start].strip():
            says = f"the segmenter returned {word!r}, which is not the next word of {text[place:][:30]!r}"
            raise BothwaysError(says, "bad-segmentation", word)
        found.append(start)
        place = start + len(word)
    return found
