"""What makes two rows the same, and what a row is called when it is shown."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.data.examples import Choice, Question, Tagged, Text
from bothways.data.labels import names_of


@dataclass(frozen=True)
class Named:
    """A row that is to be shown."""

    where: str
    gold: str
    text: str


def name_rows(examples: Iterable[Any], wanted: Iterable[int]) -> dict[int, Named]:
    """The rows with these numbers, by reading once more as far as the last of them."""
    numbers = set(wanted)
    found = {}
    for number, example in enumerate(islice(examples, max(numbers, default=-1) + 1)):
        if number in numbers:
            text = " | ".join(" ".join(part.split()) for part in texts_of(example) if part)
            found[number] = Named(example.where, _shown(example), cut(text, 60))
    return found


def texts_of(example: Any) -> Sequence[str]:
    """All texts by which an example is known; the order of options does not matter."""
    match example:
        case Text():
            return example.texts
        case Tagged():
            return (example.text,)
        case Question():
            return (example.question, example.context)
    return (example.question, example.context, *sorted(example.options))


def mark_of(example: Any) -> str | None:
    """The gold in a form in which equal ones are equal: 5.000 and 5.0, labels in any order, the option's text.

    A question may have several right answers, so of these only whether there is one.
    """
    gold = example.gold
    match example:
        case _ if gold is None:
            return None
        case Text():
            return "\x1f".join(sorted(_as_number(name) for name in names_of(gold)))
        case Tagged():
            return "\x1f".join(gold)
        case Question():
            return "an answer" if gold else "no answer"
    return normal(example.options[gold])


def hashed(texts: Iterable[str]) -> int:
    """Eight bytes for texts, the same whatever their white space and case; never 0, which stands for none.

    >>> hashed(["The cat"]) == hashed([" the   CAT"]), hashed(["a", "b"]) == hashed(["a b"])
    (True, False)
    """
    held = "\x1f".join(map(normal, texts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(held, digest_size=8).digest(), "big") or 1


def short(where: str, files: Sequence[str]) -> str:
    """A place without the folders of its file, and without the file if there is only one.

    >>> short("data/a.tsv, line 3", ["data/a.tsv"]), short("data/a.tsv, line 3", ["data/a.tsv", "data/b.tsv"])
    ('line 3', 'a.tsv, line 3')
    """
    if len(files) == 1 and where.startswith(f"{files[0]}, "):
        return where[len(files[0]) + 2 :]
    names = [Path(file).name for file in files]
    for file, name in zip(files, names, strict=True):
        if where.startswith(file) and names.count(name) == 1:
            return name + where[len(file) :]
    return where


def normal(text: str) -> str:
    return " ".join(text.split()).casefold()


def _as_number(name: str) -> str:
    try:
        return repr(float(name))
    except ValueError:
        return name


def _shown(example: Any) -> str:
    """The gold, for a person; tags are too many to show."""
    match example:
        case Text() if example.gold is not None:
            return ", ".join(names_of(example.gold)) or "no label"
        case Question() if example.gold is not None:
            return cut(example.gold[0][0], 40) if example.gold else "no answer"
        case Choice() if example.gold is not None:
            return cut(example.options[example.gold], 40)
    return ""


def cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"
