"""Where words begin in a script that writes no spaces: as a segmenter says, or spaces that somebody has put there."""

from collections.abc import Callable, Iterable
from typing import Literal, get_args

from bothways.errors import BothwaysError, require_choice

Segmenter = Callable[[str], Iterable[str]]
"""A text → its words, in order; what is between them is white space."""
MaskingVocabulary = Literal["pieces", "spaces", "jieba"]
"""Who says what a word is: the tokenizer's pieces, spaces in the text, or the segmenter jieba."""


def find_segmenter(words: MaskingVocabulary) -> Segmenter | None:
    """The segmenter of that name; None where the tokenizer decides."""
    require_choice("words", words, get_args(MaskingVocabulary))
    if words == "pieces":
        return None
    if words == "spaces":
        return str.split
    try:
        import jieba
    except ImportError:
        raise BothwaysError("words by jieba need it: pip install 'bothways[chinese]'") from None
    jieba.setLogLevel("ERROR")
    cut: Segmenter = jieba.cut
    return cut


def word_starts(text: str, words: Iterable[str]) -> list[int]:
    """The places in a text where its words begin.

    >>> word_starts("今天 天气很好", ["今天", "天气", "很", "好"])
    [0, 3, 5, 6]
    """
    found, place = [], 0
    for word in words:
        if not (word := word.strip()):
            continue
        start = text.find(word, place)
        if start < 0 or text[place:start].strip():
            raise BothwaysError(f"the segmenter gave {word!r}, which is not what comes next in {text[place:][:30]!r}")
        found.append(start)
        place = start + len(word)
    return found
