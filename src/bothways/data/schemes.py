"""Schemes of entity tags: detection and conversion to BIO.

A tag is a letter with a type, as in B-PER, or O outside of all entities. The letters of an entity of one word and of
three words:

    BIO (IOB2)  B          B I I
    IOB1        I          I I I    B only where an entity of the same type ends right before
    BIOES       S          B I E
    BILOU       U          B I L
    BMES        S          B M E

A type may be missing, as in Chinese word segmentation; `B_PER` is read as B-PER.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Literal, get_args

from bothways.errors import BothwaysError

Scheme = Literal["plain", "BIO", "IOB1", "BIOES", "BILOU", "BMES"]
"""Plain tags, such as parts of speech, mark no entities."""
Span = tuple[str, int, int]
"""An entity: its type, its first word, and the end (exclusive)."""

WORD = "word"
_TAG = re.compile(r"([BIESMLU])(?:[-_](.+))?", re.DOTALL)
_SAME = {"M": "I", "L": "E", "U": "S"}
"""Letters of BMES and BILOU, with their equivalents in BIOES."""
_LETTERS: dict[Scheme, str] = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU", "BMES": "BMES"}


def detect(sequences: Iterable[Sequence[str]]) -> Scheme:
    """The scheme of the tags of these sentences.

    BIO and IOB1 have the same letters: it is IOB1 if more entities begin with I than with a B that IOB1 would not use.

    >>> detect([["B-PER", "I-PER", "O"]]), detect([["I-PER", "I-PER", "B-PER"]]), detect([["NOUN", "VERB"]])
    ('BIO', 'IOB1', 'plain')
    """
    pairs: Counter[tuple[str, str]] = Counter()
    for tags in sequences:
        pairs.update(zip(("O", *tags), tags, strict=False))
    seen = {tag for _, tag in pairs}
    parts = [parse(tag) for tag in seen]
    letters = {part[0] for part in parts if part} - {"O"}
    # A bare S or M alone is a plain tag: word segmentation also has a bare B.
    untyped = any(part and part[0] != "O" and not part[1] for part in parts) and "B" not in seen
    if None in parts or untyped:
        return "plain"
    if letters <= set("BI"):
        begun = {"B": 0, "I": 0, "O": 0}
        for (before, tag), count in pairs.items():
            if before == "O" or before[1:] != tag[1:]:
                begun[tag[0]] += count
        return "IOB1" if begun["I"] > begun["B"] else "BIO"
    for scheme in ("BIOES", "BILOU", "BMES"):
        if letters <= set(_LETTERS[scheme]):
            return scheme
    found = "".join(sorted(letters))
    says = (
        f"the tags begin with {', '.join(found)}, which is no known scheme: expected {', '.join(get_args(Scheme)[1:])}"
    )
    raise BothwaysError(says, "unknown-scheme", found)


@lru_cache(maxsize=2**14)
def parse(tag: str) -> tuple[str, str] | None:
    """The letter and the type of a tag; None for a plain tag."""
    if tag == "O":
        return "O", ""
    match = _TAG.fullmatch(tag)
    return (match[1], match[2] or "") if match else None


def is_begin(tag: str) -> bool:
    """Whether an entity in BIO begins here."""
    return tag == "B" or tag.startswith("B-")


def type_of(tag: str) -> str:
    """The type of a tag in BIO. Entities without one are words: they come from word segmentation."""
    return tag[2:] or WORD


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The same entities in BIO; plain tags are returned as they are.

    Where tags break the scheme, entities are those of conlleval: I after O begins one, and so does a change of type.

    >>> to_bio(["B-PER", "E-PER", "S-LOC", "O", "I-ORG"], "BIOES")
    ('B-PER', 'I-PER', 'B-LOC', 'O', 'B-ORG')
    """
    return tuple(tags) if scheme == "plain" else from_spans(spans(tags), len(tags))


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities in tags of any scheme.

    >>> spans(["B-PER", "I-PER", "O", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4)]
    """
    found: list[Span] = []
    open_type: str | None = None
    first = 0
    for index, tag in enumerate([*tags, "O"]):
        if tag == "O" and open_type is None:
            continue
        letter, kind = _entity(tag)
        goes_on = letter in ("I", "E") and open_type == kind
        if not goes_on:
            if open_type is not None:
                found.append((open_type, first, index))
            first, open_type = index, None if letter == "O" else kind
        if letter in ("E", "S"):
            found.append((kind, first, index + 1))
            open_type = None
    return found


def from_spans(entities: Iterable[Span], length: int, scheme: Scheme = "BIO") -> tuple[str, ...]:
    """The tags of a sentence of `length` words from its entities, which must not overlap.

    >>> from_spans([("PER", 0, 2), ("LOC", 3, 4)], 4, "BIOES")
    ('B-PER', 'E-PER', 'O', 'S-LOC')
    """
    tags = ["O"] * length
    inside = "M" if scheme == "BMES" else "I"
    single, last = {"BIOES": ("S", "E"), "BMES": ("S", "E"), "BILOU": ("U", "L")}.get(scheme, ("B", "I"))
    end_of: dict[int, str] = {}
    for kind, first, end in sorted(entities, key=lambda span: span[1]):
        letters = single if end - first == 1 else "B" + inside * (end - first - 2) + last
        if scheme == "IOB1" and end_of.get(first) != kind:
            letters = "I" + letters[1:]
        tags[first:end] = [f"{letter}-{kind}" if kind else letter for letter in letters]
        end_of[end] = kind
    return tuple(tags)


def problems(tags: Sequence[str], scheme: Scheme) -> list[tuple[int, str]]:
    """Where tags break the scheme: the index of the word, and the fault.

    >>> problems(["O", "I-PER", "B-LOC"], "BIO"), problems(["B-PER", "O"], "BIOES")
    ([(1, 'I-PER after O')], [(0, 'B-PER before O, though no entity of BIOES ends with it')])
    """
    if scheme == "plain":
        return []
    found = []
    closing = scheme in ("BIOES", "BILOU", "BMES")
    for index, (before, tag) in enumerate(zip(["O", *tags], [*tags, "O"], strict=True)):
        (was, old), (letter, kind) = _entity(before), _entity(tag)
        is_open = was in ("B", "I")
        goes_on = is_open and old == kind and letter in ("I", "E")
        after = f"after {before}" if index else "at the beginning"
        if closing and is_open and not goes_on:
            place = f"before {tag}" if index < len(tags) else "at the end"
            found.append((index - 1, f"{before} {place}, though no entity of {scheme} ends with it"))
        if letter != "O" and tag[0] not in _LETTERS[scheme]:
            found.append((index, f"{tag} is not of {scheme}"))
        elif scheme == "IOB1":
            if letter == "B" and not (is_open and old == kind):
                found.append((index, f"{tag} {after}"))
        elif letter in ("I", "E") and not goes_on:
            found.append((index, f"{tag} {after}"))
    return found


@lru_cache(maxsize=2**14)
def _entity(tag: str) -> tuple[str, str]:
    """The letter in BIOES, and the type."""
    part = parse(tag)
    if part is None:
        raise BothwaysError(
            f"{tag!r} is not an entity tag: expected O or a letter with a type, as in B-PER", "bad-tag", tag
        )
    return _SAME.get(part[0], part[0]), part[1]
