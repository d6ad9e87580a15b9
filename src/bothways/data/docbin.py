"""Reads .spacy files, the training data of spaCy 3, without spaCy: zlib around msgpack, with an array of hashes.

The layout is that of `DocBin.to_bytes` in spaCy's spacy/tokens/_serialize.py: `attrs` numbers the columns of `tokens`
(uint64), `lengths` counts the tokens of each document (int32), `spaces` says which have a space after them (bool), and
`strings` holds every text of which `tokens` has the hash. Words that are symbols of spaCy have a small number instead.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bothways.data.exports import label_of
from bothways.errors import BothwaysError
from bothways.json_files import LARGEST

_ORTH, _ENT_IOB, _ENT_TYPE = 65, 77, 78
_BEGIN, _INSIDE = 3, 1
_SYMBOLS = {
    64: "ID ORTH LOWER NORM SHAPE PREFIX SUFFIX LENGTH CLUSTER LEMMA POS TAG DEP ENT_IOB ENT_TYPE HEAD SENT_START "
    "SPACY PROB LANG ADJ ADP ADV AUX CONJ CCONJ DET INTJ NOUN NUM PART PRON PROPN PUNCT SCONJ SYM VERB X EOL SPACE",
    380: "PERSON NORP FACILITY ORG GPE LOC PRODUCT EVENT WORK_OF_ART LANGUAGE LAW DATE TIME PERCENT MONEY QUANTITY "
    "ORDINAL CARDINAL acomp advcl advmod agent amod appos attr aux auxpass cc ccomp complm conj cop csubj csubjpass "
    "dep det dobj expl hmod hyph infmod intj iobj mark meta neg nmod nn npadvmod nsubj nsubjpass num number oprd obj "
    "obl parataxis partmod pcomp pobj poss possessive preconj prep prt punct quantmod relcl rcmod root xcomp acl "
    "ENT_KB_ID MORPH ENT_ID IDX _",
}
"""The texts that spaCy numbers instead of hashing (its symbols.pxd), by the number of the first of each run."""
NUMBERS = {name: first + i for first, names in _SYMBOLS.items() for i, name in enumerate(names.split())}


def docbin_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The documents of a .spacy file: `text`; `tokens` and `entities` if it has some; `label` from its categories."""
    try:
        yield from _documents(unpack(_decompressed(path)), path)
    except (zlib.error, LookupError, ValueError, TypeError, AttributeError, RecursionError, struct.error) as error:
        says = f"{path} is not a .spacy file of spaCy 3, or it is damaged: write it again with DocBin.to_disk"
        raise BothwaysError(says, "damaged-file", path) from error
    except OSError as error:
        raise BothwaysError(f"{path} cannot be read: {error.strerror or error}", "unreadable-file", path) from error


def _decompressed(path: Path) -> bytes:
    stream = zlib.decompressobj()
    with path.open("rb") as file:
        content = stream.decompress(file.read(LARGEST), LARGEST)
        if stream.unconsumed_tail or file.read(1):
            says = f"{path} has more than {LARGEST:,} bytes, which are read at once: write its documents into several"
            raise BothwaysError(says, "too-long-file", path)
    if not stream.eof:
        raise ValueError("cut short")
    return content


def _documents(packed: Any, path: Path) -> Iterator[dict[str, Any]]:
    attributes = list(packed["attrs"])
    tokens = np.frombuffer(packed["tokens"], np.uint64).reshape(-1, len(attributes))
    spaces = np.frombuffer(packed["spaces"], bool)
    ends = np.cumsum(np.frombuffer(packed["lengths"], np.int32)).tolist()
    texts = {0: "", **{NUMBERS.get(text) or hash_of(text): text for text in packed["strings"]}}
    cats = packed.get("cats") or [{}] * len(ends)
    flags = packed.get("flags") or [{}] * len(ends)
    columns = [attributes.index(one) if one in attributes else None for one in (_ORTH, _ENT_IOB, _ENT_TYPE)]
    for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        part = [[0] * (last - first) if c is None else tokens[first:last, c].tolist() for c in columns]
        if unknown := [one for one in (*part[0], *part[2]) if one not in texts]:
            where = f"{path}, document {number + 1}"
            says = (
                f"{where} has the word {unknown[0]}, which the file does not list: write it again with DocBin.to_disk"
            )
            raise BothwaysError(says, "damaged-file", where)
        words, types = [texts[one] for one in part[0]], [texts[one] for one in part[2]]
        gaps = [True] * len(words) if flags[number].get("has_unknown_spaces") else spaces[first:last].tolist()
        yield _row(words, gaps, part[1], types, cats[number])


def _row(
    words: list[str], gaps: list[bool], marks: list[int], types: list[str], cats: dict[str, float]
) -> dict[str, Any]:
    text, places = "", []
    for word, gap in zip(words, gaps, strict=True):
        places.append((len(text), len(text) + len(word)))
        text += word + " " * gap
    row: dict[str, Any] = {"text": text}
    if any(marks):  # 0: nobody looked for entities here
        entities: list[list[Any]] = []
        for mark, kind, (start, end) in zip(marks, types, places, strict=True):
            if mark == _BEGIN:
                entities.append([start, end, kind])
            elif mark == _INSIDE and entities:
                entities[-1][1] = end
        row["tokens"] = [{"start": start, "end": end} for start, end in places if text[start:end].strip()]
        row["entities"] = entities
    return {**row, "label": label_of(cats)} if cats else row


# ---------------------------------------------------------------------- hashes

_M, _MASK = 0xC6A4A7935BD1E995, 2**64 - 1


def hash_of(text: str) -> int:
    """The hash by which spaCy knows a text: MurmurHash64A with seed 1.

    >>> hash_of("apple"), hash_of("banana")
    (8566208034543834098, 2525716904149915114)
    """
    data = text.encode("utf-8", "surrogatepass")
    h = 1 ^ (len(data) * _M & _MASK)
    whole = len(data) // 8 * 8
    for (k,) in struct.iter_unpack("<Q", data[:whole]):
        k = k * _M & _MASK
        h = (h ^ ((k ^ k >> 47) * _M & _MASK)) * _M & _MASK
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _MASK
    h = (h ^ h >> 47) * _M & _MASK
    return h ^ h >> 47


# ---------------------------------------------------------------------- msgpack

_NUMBERS = dict(zip(range(0xCA, 0xD4), (">f", ">d", ">B", ">H", ">I", ">Q", ">b", ">h", ">i", ">q"), strict=True))
_SIZES = {
    **{0xC4 + i: ("bytes", n) for i, n in enumerate((1, 2, 4))},
    **{0xD9 + i: ("str", n) for i, n in enumerate((1, 2, 4))},
    **{0xDC + i: ("list", n) for i, n in enumerate((2, 4))},
    **{0xDE + i: ("dict", n) for i, n in enumerate((2, 4))},
}
"""By the first byte: what follows, and the bytes of its size."""


def unpack(data: bytes) -> Any:
    """The value that msgpack bytes hold; its extensions, which .spacy files do not have, are refused.

    >>> unpack(b"\\x82\\xa1a\\x01\\xa1b\\x93\\xc3\\xff\\xc0")
    {'a': 1, 'b': [True, -1, None]}
    """
    return _value(memoryview(data), 0)[0]


def _value(data: memoryview, at: int) -> tuple[Any, int]:
    """The value that begins at a byte, and the place after it."""
    code, at = data[at], at + 1
    if code <= 0x7F or code >= 0xE0:
        return (code if code <= 0x7F else code - 256), at
    if code in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[code], at
    if form := _NUMBERS.get(code):
        return struct.unpack_from(form, data, at)[0], at + struct.calcsize(form)
    if code <= 0xBF:
        kind, size = (
            ("dict", code & 15) if code <= 0x8F else ("list", code & 15) if code <= 0x9F else ("str", code & 31)
        )
    elif code in _SIZES:
        kind, width = _SIZES[code]
        size, at = int.from_bytes(data[at : at + width], "big"), at + width
    else:
        raise ValueError(f"byte {code} of msgpack")
    if kind in ("bytes", "str"):
        if at + size > len(data):
            raise ValueError("cut short")
        found = bytes(data[at : at + size])
        return (found if kind == "bytes" else found.decode("utf-8", "surrogatepass")), at + size
    values = []
    for _ in range(size * (2 if kind == "dict" else 1)):
        value, at = _value(data, at)
        values.append(value)
    return (dict(zip(values[::2], values[1::2], strict=True)) if kind == "dict" else values), at
