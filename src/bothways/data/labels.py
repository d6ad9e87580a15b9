"""The kind of the labels of a data set, and their names in a fixed order."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from bothways.data.examples import Gold, Text
from bothways.data.notes import row_error
from bothways.errors import BothwaysError

LabelKind = Literal["single", "multi", "regression"]
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def label_kind(golds: Iterable[Gold | None]) -> LabelKind:
    """The kind of all labels together: several per row, numbers to predict, or one name per row.

    It is regression if all labels are numbers and at least one has a fraction. So 0 and 1, stars from 1 to 5, and 0.0
    and 1.0 are names of classes: choose regression explicitly if they are not.

    >>> label_kind(["0", "1", None]), label_kind(["5.000", "3.800"]), label_kind([("joy", "love"), ()])
    ('single', 'regression', 'multi')
    """
    found = {gold for gold in golds if gold is not None}
    if not found:
        raise BothwaysError("none of these examples has a label: name its column with `label`", "no-labels")
    if any(isinstance(gold, tuple) for gold in found):
        return "multi"
    numbers = [number_of(gold) for gold in found]
    if all(number is not None for number in numbers) and any(number % 1 for number in numbers if number):
        return "regression"
    return "single"


def label_names(examples: Iterable[Text]) -> tuple[str, ...]:
    """The distinct names of all labels: in numeric order if all are numbers, else sorted as text.

    >>> label_names([Text(("a",), "10"), Text(("b",), "9"), Text(("c",))]), label_names([Text(("a",), ("joy", "awe"))])
    (('9', '10'), ('awe', 'joy'))
    """
    names = {name for example in examples if example.gold is not None for name in names_of(example.gold)}
    if all(_NUMBER.fullmatch(name) for name in names):
        return tuple(sorted(names, key=lambda name: (float(name), name)))
    return tuple(sorted(names))


def as_number(example: Text) -> float:
    """The gold label as a finite number."""
    number = None if example.gold is None else number_of(example.gold)
    if number is None:
        raise row_error(example.where, f"has the label {example.gold!r}: expected a number", "not-a-number")
    if not math.isfinite(number):
        raise row_error(example.where, f"has the score {example.gold}: expected a finite number", "not-finite")
    return number


def as_kind(example: Text, kind: LabelKind) -> Text:
    """The example with its label in the form of this kind: a name, a tuple of names, or a number.

    >>> as_kind(Text(("a", "b"), "3.800"), "regression").gold, as_kind(Text(("a",), 1.0), "single").gold
    (3.8, '1')
    """
    gold = example.gold
    if gold is None:
        return example
    if kind == "regression":
        return replace(example, gold=as_number(example))
    if isinstance(gold, float):
        as_number(example)  # infinity is not the name of a class
    names = names_of(gold)
    if kind == "multi":
        return replace(example, gold=names)
    if len(names) != 1:
        raise row_error(
            example.where, f"has {len(names)} labels, and one was expected: is the kind multi?", "several-labels"
        )
    return replace(example, gold=names[0])


def names_of(gold: Gold) -> tuple[str, ...]:
    """The label names of one row; 1.0 becomes 1.

    >>> names_of(("joy", "awe")), names_of("joy"), names_of(1.0)
    (('joy', 'awe'), ('joy',), ('1',))
    """
    if isinstance(gold, tuple):
        return gold
    if isinstance(gold, float):
        return (str(int(gold)) if gold.is_integer() else str(gold),)
    return (gold,)


def number_of(gold: Gold) -> float | None:
    """The number that a label is or spells; None if it is not a number."""
    if isinstance(gold, float):
        return gold
    return float(gold) if isinstance(gold, str) and _NUMBER.fullmatch(gold) else None
