"""What checks of labelled data count and report: plain values that the tasks and `bothways doctor` share."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bothways.data.notes import Notes
from bothways.text.columns import Columns

Severity = Literal["error", "warning", "ok"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "ok")
BLOCKING = ("labels", "pairs")
"""An error with one of these codes as its `what` makes training impossible."""
MAX_PLACES = 5
"""Places named for each finding."""
_MAX_NAMES = 10_000
"""Labels whose places are kept."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    severity: Severity
    what: str
    """The code of the check, the same for all data: duplicates, leakage, balance …"""
    says: str
    """A sentence with the count."""
    do: str = ""
    """What to do."""
    count: int = 0
    places: tuple[str, ...] = ()
    """The first places where it occurs."""
    settings: tuple[str, ...] = ()
    """Recipe settings that help, as in answer.max_answer_length=50."""


@dataclass(frozen=True)
class Share:
    """A label, an entity type, a tag, or the number of the correct option."""

    name: str
    count: int
    share: float
    """Of the labelled rows; for tags and entities, of all of them."""


@dataclass
class Spots:
    """How often something occurs, and the first places."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str) -> None:
        self.count += 1
        if len(self.first) < MAX_PLACES and where not in self.first:
            self.first.append(where)


@dataclass
class Lengths:
    """The distribution of a length, and where the longest is."""

    values: Counter[int] = field(default_factory=Counter)
    longest: int = -1
    where: str = ""

    def add(self, value: int, where: str) -> None:
        self.values[value] += 1
        if value > self.longest:
            self.longest, self.where = value, where

    @property
    def mean(self) -> float:
        return sum(value * count for value, count in self.values.items()) / max(self.values.total(), 1)


@dataclass
class PlacedNotes(Notes):
    """Notes that keep several places of each code."""

    places: dict[str, Spots] = field(default_factory=dict)

    def add(self, code: str, where: str, value: object = None) -> None:
        super().add(code, where, value)
        self.places.setdefault(code, Spots()).add(where)


@dataclass
class DataCounts:
    """What is counted in labelled files. Every task adds what its own checks need, and no texts."""

    files: Sequence[str] = ()
    columns: Columns = field(default_factory=Columns)
    """As the user names them."""
    is_dev: bool = False
    """Whether these are development data."""
    notes: PlacedNotes = field(default_factory=PlacedNotes)
    """What the reader noted."""
    rows: int = 0
    golds: Counter[Any] = field(default_factory=Counter)
    """Gold values as the files have them."""
    names: Counter[str] = field(default_factory=Counter)
    """Gold values under the names by which a task counts them."""
    expected: dict[str, float] = field(default_factory=dict)
    """How often each name would occur by chance."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The first places of each label."""
    faults: dict[str, Spots] = field(default_factory=dict)
    """Rows with a fault, by the code of the finding."""
    lengths: dict[str, Lengths] = field(default_factory=dict)
    """By what is measured, as in "words in a sentence"."""

    @property
    def labelled(self) -> int:
        """Rows with a label."""
        return self.rows - self.faults.get("unlabelled", Spots()).count

    def fault(self, what: str, where: str) -> None:
        self.faults.setdefault(what, Spots()).add(where)

    def measure(self, name: str, value: int, where: str) -> None:
        self.lengths.setdefault(name, Lengths()).add(value, where)

    def place(self, names: Iterable[str], where: str) -> None:
        for name in names:
            if (some := self.places.get(name)) is not None:
                if len(some) < MAX_PLACES:
                    some.append(where)
            elif len(self.places) < _MAX_NAMES:
                self.places[name] = [where]

    def short(self, places: Iterable[str]) -> tuple[str, ...]:
        """Places as they are shown."""
        return tuple(short(where, self.files) for where in places)

    def label_places(self, names: Iterable[str]) -> tuple[str, ...]:
        """The first place of each label, with its name."""
        found = [f"{short(where, self.files)} ({name})" for name in names for where in self.places.get(name, [])[:1]]
        return tuple(found[:MAX_PLACES])

    def rows_with(self, what: str, severity: Severity, has: str, do: str) -> list[Finding]:
        """The finding for the rows with a fault; none if there are no such rows."""
        spots = self.faults.get(what)
        if spots is None:
            return []
        says = f"{spots.count:,} of {self.rows:,} rows {have(spots.count)} {has}."
        return [Finding(severity, what, says, do, spots.count, self.short(spots.first))]


def short(where: str, files: Sequence[str]) -> str:
    """A place without the folder of its file, and without the file if there is only one.

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


def have(count: int) -> str:
    """has or have."""
    return "has" if count == 1 else "have"


def normal(text: str) -> str:
    """A text without differences in white space and case."""
    return " ".join(text.split()).casefold()


def cut(text: str, length: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= length else text[: length - 1] + "…"


def percent(part: float, whole: float) -> str:
    """A share, never rounded to 0 % or 100 %.

    >>> percent(1, 8), percent(1, 100_000), percent(99_999, 100_000), percent(3, 3)
    ('12.5 %', 'under 0.1 %', 'over 99.9 %', '100 %')
    """
    share = 100 * part / whole if whole else 0.0
    if 0 < share < 0.1:
        return "under 0.1 %"
    if 99.9 < share < 100:
        return "over 99.9 %"
    return f"{share:.3g} %" if share in (0, 100) else f"{share:.1f} %"
