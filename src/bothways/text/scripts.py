"""Writing systems: which ones a vocabulary has, and texts in others, which a model cannot read.

C characters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bothways.text.encoding import TextInput

_RANGES = (
    (0x0041, 0x005A, "Latin"), (0x0061, 0x007A, "Latin"), (0x00C0, 0x024F, "Latin"), (0x0370, 0x03FF, "Greek"),
    (0x0400, 0x052F, "Cyrillic"), (0x0531, 0x058F, "Armenian"),
    (0x05D0, 0x05F4, "Hebrew"), (0x0620, 0x06FF, "Arabic"), (0x0900, 0x097F, "Devanagari"),
    (0x0980, 0x09FF, "Bengali"), (0x0A00, 0x0A7F, "Gurmukhi"), (0x0A80, 0x0AFF, "Gujarati"), (0x0B80, 0x0BFF, "Tamil"),
    (0x0C00, 0x0C7F, "Telugu"), (0x0C80, 0x0CFF, "Kannada"), (0x0D00, 0x0D7F, "Malayalam"),
    (0x0D80, 0x0DFF, "Sinhala"), (0x0E00, 0x0E7F, "Thai"), (0x0E80, 0x0EFF, "Lao"), (0x0F00, 0x0FFF, "Tibetan"),
    (0x1000, 0x109F, "Burmese"), (0x10A0, 0x10FF, "Georgian"), (0x1100, 0x11FF, "Korean"),
    (0x1200, 0x139F, "Ethiopic"), (0x1780, 0x17FF, "Khmer"), (0x1E00, 0x1EFF, "Latin"), (0x1F00, 0x1FFF, "Greek"),
    (0x3041, 0x30FF, "Japanese"), (0x3400, 0x4DBF, "Chinese"), (0x4E00, 0x9FFF, "Chinese"),
    (0xAC00, 0xD7AF, "Korean"), (0xF900, 0xFAFF, "Chinese"), (0x20000, 0x3FFFF, "Chinese"),
)  # fmt: skip
"""The letters of the main writing systems: first and last code point. Others are not judged."""
SCRIPTS = tuple(dict.fromkeys(name for *_, name in _RANGES))
_STARTS = np.array([first for first, *_ in _RANGES])
_ENDS = np.array([last for _, last, _ in _RANGES])
_NUMBERS = np.array([SCRIPTS.index(name) for *_, name in _RANGES])
_LATIN, _CHINESE, _JAPANESE = (SCRIPTS.index(name) for name in ("Latin", "Chinese", "Japanese"))
_IS_ALPHABET = np.array([name not in ("Chinese", "Japanese", "Korean") for name in SCRIPTS])
_TOY, _ENOUGH_WORDS, _ENOUGH_CHARACTERS = 1_000, 100, 2_000
_MORE_THAN_NAMES = 0.5
"""A vocabulary of Chinese reads Latin words too if it has this many for each Chinese character."""
_LOOKED_AT, _MOST_TEXTS = 128, 1_000
"""Characters of a text, and texts, that are looked at."""
_FEWEST, _FEWEST_LATIN = 2, 12
"""Letters in an unknown script that are judged at all: a text in any script may hold a brand in Latin letters."""
_SHARE, _SHARE_OF_LATIN = 0.25, 0.5
"""Share of unknown letters from which a text is strange."""
_WEIGHTS = np.where(_IS_ALPHABET, 3, 10)
"""What a letter of an alphabet counts, beside a character that is half a word. In whole numbers, shares are exact."""


@dataclass(frozen=True)
class Strange:
    """Texts whose letters are, to a good share, of a script that is not known."""

    start: str
    """Of the first one, from its first letter of that script."""
    script: str
    """Its script that is not known."""
    is_mostly: bool
    """Whether more than half of the first one is of that script."""
    letters: int
    """Of that script, in the start of the first one."""
    texts: int
    """How many there are, of those that were looked at."""


def script_numbers(text: str) -> NDArray[np.int64]:
    """(C,) the place of each character's script in `SCRIPTS`, -1 for what is no letter of one."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.int64)
    places = np.searchsorted(_STARTS, codes, "right") - 1
    is_inside = (places >= 0) & (codes <= _ENDS[places])
    return np.where(is_inside, _NUMBERS[places], -1)


def known_scripts(pieces: Sequence[str]) -> frozenset[str]:
    """The scripts that a vocabulary has words of; of Chinese, enough characters.

    The letters alone do not count: nearly every vocabulary has those of many scripts, which the model hardly saw. Nor
    do the names and brands in Latin letters of a vocabulary of Chinese.

    A vocabulary of fewer than 1,000 pieces is a toy, which is not judged.
    """
    if len(pieces) < _TOY:
        return frozenset(SCRIPTS)
    counts = _counts(pieces)
    is_pure = (counts > 0).sum(1) == 1
    words = ((counts >= 3) & is_pure[:, None]).sum(0)
    found = {name for name, count in zip(SCRIPTS, words.tolist(), strict=True) if count >= _ENOUGH_WORDS}
    single = np.flatnonzero(is_pure & (counts[:, _CHINESE] == 1)).tolist()
    characters = len({pieces[i].removeprefix("##") for i in single})
    if characters >= min(_ENOUGH_CHARACTERS, 0.1 * len(pieces)):
        found.add("Chinese")
        if words[_LATIN] < _MORE_THAN_NAMES * characters:
            found.discard("Latin")
    return frozenset(found)


def starts_of(texts: Sequence[TextInput], known: frozenset[str]) -> list[str]:
    """The beginnings of some texts that may be in a script that is not known: in ASCII there are Latin letters only."""
    flat = (text if isinstance(text, str) else " ".join(text) for text in texts)
    has_latin = "Latin" in known
    return list(islice((text[:_LOOKED_AT] for text in flat if not (has_latin and text.isascii())), _MOST_TEXTS))


def find_strange(starts: Sequence[str], known: frozenset[str]) -> Strange | None:
    """The texts a good share of whose letters is of a script that is not known.

    Of Latin, which names are written in everywhere, it is more than half.
    """
    counts = _counts(starts)
    counts[counts[:, _JAPANESE] > 0, _CHINESE] = 0  # Japanese is written with Chinese characters too
    weighted = counts * _WEIGHTS
    all_letters = weighted.sum(1)
    unknown = np.where([name in known for name in SCRIPTS], 0, weighted)
    latin = (counts[:, _LATIN] >= _FEWEST_LATIN) & (unknown[:, _LATIN] > _SHARE_OF_LATIN * all_letters)
    unknown[~latin, _LATIN] = 0
    is_other = np.arange(len(SCRIPTS)) != _LATIN
    is_enough = (counts * (unknown > 0))[:, is_other].sum(1) >= _FEWEST
    others = is_enough & (unknown[:, is_other].sum(1) > _SHARE * all_letters)
    found = np.flatnonzero(latin | others)
    if not len(found):
        return None
    first = int(found[0])
    script = int(unknown[first].argmax())
    is_mostly = 2 * counts[first, script] > counts[first].sum()
    place = int((script_numbers(starts[first]) == script).argmax())  # of a pair, in the text that is meant
    return Strange(starts[first][place:], SCRIPTS[script], bool(is_mostly), int(counts[first, script]), len(found))


def _counts(texts: Sequence[str]) -> NDArray[np.int64]:
    """The letters of each text by script: (texts, scripts)."""
    numbers = script_numbers("".join(texts))
    owners = np.repeat(np.arange(len(texts)), np.fromiter(map(len, texts), np.int64, len(texts)))
    is_letter = numbers >= 0
    cells = owners[is_letter] * len(SCRIPTS) + numbers[is_letter]
    return np.bincount(cells, minlength=len(texts) * len(SCRIPTS)).reshape(-1, len(SCRIPTS))
