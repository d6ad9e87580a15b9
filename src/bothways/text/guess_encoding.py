"""Guesses the encoding of a text that is not UTF-8, by the characters that are frequent in its language."""

import codecs
import re
from collections import Counter

SAMPLE = 2**16
"""Bytes that a guess needs at most."""

_CHINESE = (
    "，。、！？：；（）《》「」“”　的一是不了在人有我他中大和地到以要就出可也你生能而子那得下自之年好很"
    "上家成分作用心小多天都然行道力理看本同去方法新想好公日面全部"
)
_JAPANESE = "、。「」・ー　のにはをたがでてとしれさいるなからりもうすまこきくよあえだどッンスルトイクラリアシ"
_RUSSIAN = "оеаинтсрвлкмдпуяыьгзбчйхжшюцщ"
_FREQUENT: dict[str, tuple[float, str]] = {
    "gb18030": (0.15, _CHINESE + "这个们来为国说时会对于着过发后里没还开与学现动样进种从当长问实点车产经东业电机间书"),
    "big5": (0.15, _CHINESE + "這個們來為國說時會對於著過發後裡沒還開與學現動樣進種從當長問實點車產經東業電機間書"),
    "cp932": (0.35, _JAPANESE),
    "euc_jp": (
        0.35,
        _JAPANESE,
    ),
    "cp949": (0.2, "이다는을의에가고한하지로를은도기사리서자대인그나어시아있일수정해들스것보제부라전과만여구상면요"),
    "cp1251": (0.6, _RUSSIAN),
    "koi8-r": (0.6, _RUSSIAN),
}
"""The frequent characters of a language, and the share of all its characters that they have at least. Of Cyrillic only
small letters: in the other one of the two encodings they are capitals."""
_EUROPEAN: dict[str, str] = {
    "cp1252": "éèêëàâäáãåçùûüúöôóòõíîïñßæøœÉÀÄÖÜÅÇØÆ’‘“”„–—…«»€£°©®§·•\xa0¡¿ºª",
    "cp1250": "ąęłóśżźćńĄĘŁÓŚŻŹĆŃěščřžýáíéůúďťňĚŠČŘŽÝÁÍÉŮÚöüőűäÖÜŐŰÄßăâîșşţ’‘“”„–—…«»€°§\xa0",
    "cp1254": "ğışöüçİŞÖÜÇĞâî’‘“”–—…\xa0",
}
"""Characters beside ASCII of languages with Latin letters, in which most of them stand alone."""
_LENGTH, _SHARE = 1.6, 0.7
_ENOUGH = 8
"""Bytes beside ASCII without which other languages are not guessed."""
_RUNS = re.compile(rb"[\x80-\xff]+")
_BINARY = {
    b"PK\x03\x04": "a zip archive, as workbooks and .docx are, and no text: end the name of a workbook in .xlsx, save "
    "other documents as .txt",
    b"\xd0\xcf\x11\xe0": "an old file of Excel or Word, and no text: save it as .xlsx, .csv or .txt",
    b"PAR1": "a parquet file: end its name in .parquet",
    b"\x1f\x8b": "compressed: end its name in .gz",
    b"\xfd7zXZ": "compressed: end its name in .xz",
    b"%PDF-": "a PDF, and no text: save it as .txt",
    b"\x89PNG": "a picture, and no text",
    b"\xff\xd8\xff": "a picture, and no text",
}
"""How files begin that are no text, whatever their name."""


def binary_kind(block: bytes) -> str:
    """What a file is that begins so and is no text, with advice; else empty."""
    return next((what for start, what in _BINARY.items() if block.startswith(start)), "")


_MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def marked_encoding(start: bytes) -> str | None:
    """The encoding that the first bytes of a file tell: by their mark, or by the zeros of UTF-16 without one."""
    if found := next((name for mark, name in _MARKS.items() if start.startswith(mark)), None):
        return found
    if b"\0" not in start:
        return None
    even, odd = start[::2].count(0), start[1::2].count(0)
    enough = len(start) // 8  # of the ASCII characters every second byte, of Chinese ones few
    return "utf-16-le" if odd > enough > even else "utf-16-be" if even > enough > odd else None


def guess_encoding(sample: bytes) -> str | None:
    """The encoding of a sample that is not valid UTF-8; None if that is not clear, or if it is damaged UTF-8.

    >>> guess_encoding("今天的天气很好，我们去公园。".encode("gbk")), guess_encoding("café, 3 €".encode("cp1252"))
    ('gb18030', 'cp1252')
    >>> guess_encoding("很好。".encode() * 9 + b"\\xff")
    """
    as_utf8 = sample.decode("utf-8", "replace")
    damaged = as_utf8.count("\ufffd")
    valid = sum(not character.isascii() for character in as_utf8) - damaged
    runs = [len(run) for run in _RUNS.findall(sample)]
    is_european = sum(runs) <= _LENGTH * len(runs)
    # Valid by chance: 0.3 for each invalid sequence in GBK, up to 0.8 in one line of it; hardly any in cp1252.
    if valid > damaged * (0.2 if is_european else 1):
        return None
    if is_european:
        shares = {name: _share(sample, name, letters) for name, letters in _EUROPEAN.items()}
        best = max(shares, key=lambda name: shares[name])
        return best if shares[best] >= _SHARE else None
    if sum(runs) < _ENOUGH:
        return None
    ratios = {name: _share(sample, name, letters) / least for name, (least, letters) in _FREQUENT.items()}
    best = max(ratios, key=lambda name: ratios[name])
    return best if ratios[best] >= 1 else None


def _share(sample: bytes, encoding: str, frequent: str) -> float:
    """The share of frequent characters among those beside ASCII; 0 if the sample is not in this encoding."""
    try:  # the sample may end inside a character
        text = codecs.getincrementaldecoder(encoding)().decode(sample)
    except UnicodeDecodeError:
        return 0.0
    counts = Counter(text)
    others = sum(count for character, count in counts.items() if not character.isascii())
    return sum(counts[character] for character in set(frequent)) / max(others, 1)
