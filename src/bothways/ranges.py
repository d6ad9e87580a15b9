"""The ranges of numbers, declared with the fields of a dataclass: `rate: Annotated[float, Range(0, 1)]`.

Every number of a dataclass has a range: without a declaration, integers have 64 bits, and other numbers are finite.
"""

import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar

from bothways.errors import require_range

_LARGEST = 2**31 - 1  # of what is counted: an index of 32 bits


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`; without them if `above` and `below`."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a number is in the range. NaN and infinity never are.

        >>> [Range(0, 1, above=True).holds(x) for x in (0, 0.5, 1, math.nan)]
        [False, True, True, False]
        """
        if isinstance(value, float) and not math.isfinite(value):
            return False
        if isinstance(value, int) and value.bit_length() > 1_023:  # too large for any other number to compare with
            return False
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return bool(low and high)

    def __str__(self) -> str:
        if self.least == -math.inf and self.most == math.inf:
            return "a finite number"
        low = f"above {_shown(self.least)}" if self.above else f"{_shown(self.least)} or more"
        high = f"below {_shown(self.most)}" if self.below else f"at most {_shown(self.most)}"
        return " and ".join([low] * (self.least > -math.inf) + [high] * (self.most < math.inf))


def _shown(number: float) -> str:
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


Count = Annotated[int, Range(0, _LARGEST)]
Size = Annotated[int, Range(1, _LARGEST)]
Positive = Annotated[float, Range(0, above=True)]
NotNegative = Annotated[float, Range(0)]
Share = Annotated[float, Range(0, 1)]
Probability = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class Declared:
    """What a field of a dataclass may hold, if it holds numbers."""

    range: Range
    whole: bool
    """Whether only integers are numbers of this field."""
    others: tuple[type, ...] = ()
    """The kinds of its other values, such as None."""

    def fault(self, value: object) -> bool:
        """Whether a value is no number, or one out of range."""
        is_number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return not (is_number and self.range.holds(value))

    @property
    def expected(self) -> str:
        return f"a{'n integer' if self.whole else ' number'}, {self.range}"


_UNDECLARED = {int: Range(-(2**63), 2**63 - 1), float: Range()}


@cache
def declared(kind: type) -> Mapping[str, Declared]:
    """The fields of a dataclass that hold numbers, also in a tuple or a table, and what each may hold."""
    hints = typing.get_type_hints(kind, include_extras=True)
    names = [field.name for field in fields(kind)]
    return {name: found for name in names if (found := _declared(hints[name])) is not None}


def _declared(hint: Any, given: Range | None = None) -> Declared | None:
    if hint in (int, float):
        return Declared(given or _UNDECLARED[hint], hint is int)
    if typing.get_origin(hint) is Annotated:
        inner, *notes = typing.get_args(hint)
        return _declared(inner, next((note for note in notes if isinstance(note, Range)), given))
    parts = typing.get_args(hint)
    found = next((one for part in parts if (one := _declared(part, given))), None)
    if typing.get_origin(hint) in (tuple, dict):
        return found
    if found is not None and typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = (type(None),) * (type(None) in parts) + (str,) * any(_is_text(part) for part in parts)
        return replace(found, others=others)
    return None


def _is_text(hint: Any) -> bool:
    return hint is str or typing.get_origin(hint) is typing.Literal


def faults(values: Any) -> Iterator[tuple[str, Any, Declared]]:
    """The fields of a dataclass with a number out of its range: the name, the value, and what it may be."""
    for name, allowed in declared(values.__class__).items():
        value = getattr(values, name)
        if any(allowed.fault(number) for number in _parts(value, allowed)):
            yield name, value, allowed


def _parts(value: object, allowed: Declared) -> Iterator[object]:
    """What must be numbers: the value or its parts, but what else its field may hold."""
    if isinstance(value, allowed.others) and not isinstance(value, bool):
        return
    if isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _parts(part, allowed)
    else:
        yield value


class Bounded:
    """A dataclass that refuses numbers out of the ranges of its fields."""

    section: ClassVar[str] = ""
    """The part of a recipe that it describes, for errors."""

    def __post_init__(self) -> None:
        for name, value, allowed in faults(self):
            where = f"{self.section}.{name}" if self.section else name
            require_range(where, value, False, str(allowed.range))
