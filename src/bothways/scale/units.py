"""Units of work, the files that hold their results, and the plan that these files depend on.

The rows of a file are divided into units. A unit's results are a part, part-00003.npy, and its counts, part-00003.json.
The counts are written last, so a unit with counts is done. If they say that it goes on, what follows is a unit with a
part of its own, part-00003+21504.npy, by its first row. The parts of v.npy are in v.npy.parts until they are joined.
"""

import itertools
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from bothways import atomic
from bothways.errors import BothwaysError, require_range
from bothways.text.arrow import count_rows, data_files
from bothways.text.excel import count_excel_rows
from bothways.text.streams import COMPRESSED, STDIN, Meter, read_blocks
from bothways.text.tables import kind_of

T = TypeVar("T")
Counts = dict[str, Any]
"""What a worker counted in a unit, as JSON has it. All have "rows"."""
PLAN, COUNTS = "plan.json", "counts"
GOES_ON = "goes_on"
"""In the counts of a unit of which the beginning is done."""


@dataclass(frozen=True)
class Unit:
    """Consecutive rows of one file: what a worker does at a time."""

    file: str
    first: int
    """Number of its first row in the file, counted from 0."""
    rows: int | None
    """None: all that follow. The last unit of a file has it, because the number of rows is only estimated."""
    part: Path
    """The file for its results."""

    @property
    def counts(self) -> Path:
        """The file for its counts."""
        return self.part.with_suffix(".json")

    def after(self, rows: int) -> "Unit":
        """What follows its first rows."""
        first = self.first + rows
        part = self.part.with_name(f"{self.part.stem.partition('+')[0]}+{first}{self.part.suffix}")
        return replace(self, first=first, rows=None if self.rows is None else self.rows - rows, part=part)

    def __str__(self) -> str:
        last = f"{self.first + self.rows:,}" if self.rows else "the last"
        return f"rows {self.first + 1:,} to {last} of {self.file}"


TellOf = Callable[[Unit, Counts], None]
"""Hears how far a unit is."""


def tell_nobody(unit: Unit, far: Counts) -> None:
    """For those who do not ask."""


@dataclass(frozen=True)
class Output:
    """One result file."""

    path: Path
    rows: int
    """The rows that its input is expected to have."""
    units: tuple[Unit, ...]
    """What it is joined from; none if it is done."""

    @property
    def parts(self) -> Path:
        return parts_of(self.path)


def parts_of(out: Path) -> Path:
    """The folder of the parts of an output: v.npy.parts for v.npy."""
    return out.with_name(out.name + ".parts")


def plan_output(file: Path, out: Path, rows_per_part: int, suffix: str) -> Output:
    """The units of one input."""
    units, rows = plan_units(file, parts_of(out), rows_per_part, suffix)
    return Output(out, rows, tuple(units))


def plan_units(file: Path, folder: Path, rows_per_part: int, suffix: str, number: int = 0) -> tuple[list[Unit], int]:
    """The units of a file, with parts in a folder that are numbered from `number`; the rows that are expected."""
    require_range("`rows_per_part`", rows_per_part, rows_per_part > 0, "1 or more")
    rows = estimate_rows(file)
    units = []
    for i, first in enumerate(range(0, max(rows, 1), rows_per_part), number):
        size = rows_per_part if first + rows_per_part < rows else None
        units.append(Unit(str(file), first, size, folder / f"part-{i:05}{suffix}"))
    return units, rows


def require_rereadable(files: Iterable[Path]) -> None:
    """Refuse standard input."""
    if STDIN in files:
        raise BothwaysError("standard input cannot be divided into parts: put the text into a file", "stdin-once")


def estimate_rows(file: Path) -> int:
    """The rows of .parquet, .arrow and .xlsx; 1 for .json, .spacy and .ann, which are read at once; else the lines.

    Rows that span lines and empty lines make it an estimate.
    """
    kind = kind_of(file)
    if kind in (".parquet", ".arrow"):
        return count_rows(file)
    if kind in (".json", ".spacy", ".ann", ".xlsx"):
        return count_excel_rows(file) if kind == ".xlsx" else 1
    lines, last = 0, "\n"
    for block in read_blocks(file, Meter(), 2**20):
        lines, last = lines + block.count("\n"), block[-1:]
    return lines + (last != "\n")


def unique_names(files: Sequence[Path], suffix: str) -> list[str]:
    """Names of results: those of the inputs with another suffix, and -2, -3 after a name that is taken.

    >>> unique_names([Path("a/x.txt.gz"), Path("b/x.csv"), Path("y.txt")], ".npy")
    ['x.npy', 'x-2.npy', 'y.npy']
    """
    names: list[str] = []
    for file in files:
        stem = (file.with_suffix("") if file.suffix.lower() in COMPRESSED else file).stem
        taken = (f"{stem}{f'-{n}' if n > 1 else ''}{suffix}" for n in itertools.count(1))
        names.append(next(name for name in taken if name not in names))
    return names


# ---------------------------------------------------------------------- rows by number


class Cursor(Generic[T]):
    """The rows of files by number. It goes on reading where it stands, and opens a file again only to go back.

    A worker gets units in ascending order, so it reads each file once, however many units there are.
    """

    def __init__(self, read: Callable[[str], Iterator[T]]) -> None:
        self._read = read
        self._file, self._row = "", 0
        self._items: Iterator[T] = iter(())

    def seek(self, file: str, row: int) -> None:
        """Stand before this row."""
        if file != self._file or row < self._row:
            self._file, self._row, self._items = file, 0, self._read(file)
        deque(itertools.islice(self._items, row - self._row), maxlen=0)
        self._row = row

    def take(self, rows: int | None) -> Iterator[T]:
        """The next rows; None: all the rest."""
        for item in itertools.islice(self._items, rows):
            self._row += 1
            yield item


# ---------------------------------------------------------------------- plan and counts


def state_of(file: Path) -> list[int]:
    """Size and time of an input; of a saved data set, those of its files."""
    facts = [part.stat() for part in data_files(file)]
    return [sum(one.st_size for one in facts), max((one.st_mtime_ns for one in facts), default=0)]


@contextmanager
def planned(home: Path, plan: Mapping[str, Any]) -> Iterator[None]:
    """The only work in the folder of parts, by this plan. After an error before a part is done, nothing of it stays."""
    with atomic.only_writer(home):
        _keep_plan(home, plan)
        try:
            yield
        except BaseException:
            if not _is_begun(home):
                for folder in (*home.glob("*.parts"), home):
                    atomic.clear(folder)
                    for left in folder.glob("part-*"):
                        left.unlink()
                    if folder != home:
                        with suppress(OSError):
                            folder.rmdir()
                (home / PLAN).unlink(missing_ok=True)
            raise


def _is_begun(home: Path) -> bool:
    """Whether a part or a result is done."""
    return any(home.rglob("part-*.json")) or any((home / COUNTS).glob("*.json"))


def _keep_plan(home: Path, plan: Mapping[str, Any]) -> None:
    """Write the plan to the folder of parts, or refuse to go on with parts that another plan made."""
    path = home / PLAN
    if not path.exists() or not _is_begun(home):
        write_json(path, plan)
        return
    old, new = read_json(path), json.loads(json.dumps(plan))
    if json.dumps(old) != json.dumps(new):  # the order of inputs counts too
        raise BothwaysError(
            f"{home} was begun with {_difference(old, new)}: delete {home} to start again", "other-plan", path
        )


def _difference(old: Any, new: Any) -> str:
    """The first difference of two plans, for a person."""
    if not isinstance(old, dict):
        return "a plan that cannot be read"
    for part in ("options", "model", "inputs"):
        before, now = old.get(part) or {}, new.get(part) or {}
        for name in [name for name in {**before, **now} if before.get(name) != now.get(name)]:
            if part == "options":
                return f"`{name}` {before.get(name)!r}, and now it is {now.get(name)!r}"
            what = "another" if name in before and name in now else "no" if name in now else "a further"
            return f"{what} {name} of the {'model' if part == 'model' else 'inputs'}"
    return "the inputs in another order" if old.get("verb") == new.get("verb") else f"`{old.get('verb')}`"


def done_of(unit: Unit) -> tuple[list[tuple[Unit, Counts]], Unit | None]:
    """What is done of a unit: it, or its beginning and what follows, each with its counts; and what is left."""
    done: list[tuple[Unit, Counts]] = []
    left: Unit | None = unit
    while left is not None and left.counts.exists():
        counts = read_json(left.counts)
        goes_on = counts.pop(GOES_ON, False)
        done.append((left, counts))
        left = left.after(counts["rows"]) if goes_on else None
    return done, left


def sum_of(counts: Iterable[Mapping[str, Any]]) -> Counts:
    """Counts of several, added."""
    total: Counts = {}
    for one in counts:
        add_counts(total, one)
    return total


def write_json(path: Path, value: Any) -> None:
    with atomic.new_file(path) as fresh:
        fresh.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BothwaysError(f"{path} cannot be read ({error}): delete {path.parent}", "damaged-file", path) from error


def add_counts(total: Counts, more: Mapping[str, Any]) -> None:
    """Add numbers to numbers, and mappings to mappings. Of "width", "values" and what is no number the first stays."""
    for name, value in more.items():
        if name == "values":
            total[name] = {**value, **total.get(name, {})}
        elif isinstance(value, Mapping):
            add_counts(total.setdefault(name, {}), value)
        elif isinstance(value, int) and name != "width":
            total[name] = total.get(name, 0) + value
        else:
            total.setdefault(name, value)
