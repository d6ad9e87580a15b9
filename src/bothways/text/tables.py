"""Rows of tables of every kind, each with its place: .csv, .tsv, .xlsx, .parquet, .arrow, saved data sets.

Raw texts (`files.py`) and labelled data (`data/sources.py`) are both read from here.
"""

import csv
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from bothways.errors import BothwaysError, name_list
from bothways.json_files import parse_row
from bothways.printable import counted
from bothways.text.arrow import ChooseColumns, arrow_rows, dataset_folder
from bothways.text.excel import excel_rows
from bothways.text.frames import is_frame
from bothways.text.long_text import LONGEST_LINE
from bothways.text.streams import COMPRESSED, Meter, name_of

Row = tuple[str, dict[str, Any]]
"""The place of a row, such as `train.tsv, line 12`, and its values by column."""
NameColumns = Callable[[list[str]], list[str] | None]
"""The first row of a table → the names of its columns if that row is no header, else None."""

BINARY = (".parquet", ".arrow", ".xlsx")
"""Tables that are no text; they are not read from standard input, nor compressed."""
WITH_HEADER = (".csv", ".tsv", ".xlsx")
"""Tables whose first line is a header, or a row if there is none."""
TABLES = (".csv", ".tsv", *BINARY)

_QUOTED = re.compile(r'"[^"]*(?:"|$)')


class Noting(Protocol):
    """What counts the rows that a reader left out or found odd."""

    whole: bool
    """True if no row may be left out."""

    def add(self, code: str, where: str, value: object = None) -> None: ...


class Strict:
    """Refuses every damaged row, and counts nothing."""

    whole = True

    def add(self, code: str, where: str, value: object = None) -> None:
        pass


def kind_of(path: Path) -> str:
    """.tsv, .jsonl and so on in lower case, without the suffix of a compression; empty for standard input.

    A folder that `datasets` saved is .arrow, and so is a table in memory.
    """
    if is_frame(path) or dataset_folder(path):
        return ".arrow"
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return plain.suffix.lower()


def table_rows(
    path: Path,
    kind: str,
    lines: Iterable[str],
    notes: Noting,
    *,
    name_columns: NameColumns = lambda first: None,
    choose: ChooseColumns = lambda names: None,
    meter: Meter | None = None,
) -> Iterator[Row]:
    """The rows of a table of this kind.

    `lines` are those of a table that is text. `choose` picks the columns to read from .parquet and .arrow, where others
    cost nothing; other tables are read whole. Rows with a wrong number of cells are left out and noted.
    """
    name, meter = name_of(path), meter or Meter()
    if kind in BINARY:
        require_uncompressed(path)
    if kind in (".parquet", ".arrow"):
        yield from ((f"{name}, row {number}", row) for number, row in enumerate(arrow_rows(path, meter, choose), 1))
        return
    unit = "line"
    if kind == ".tsv":
        cells = parse_tsv(lines)
    elif kind == ".xlsx":
        cells, unit = excel_rows(path, meter), "row"
    else:
        first, lines = peek(lines)
        # Without a header the first line has punctuation of its text, so a comma is the separator if there is one.
        separator = "," if "," in first and name_columns(first.split(",")) else find_separator(first)
        cells = parse_csv(path, lines, separator)
    yield from _with_header(name, unit, cells, notes, name_columns)


def require_uncompressed(path: Path) -> None:
    """Refuse a .gz or .xz of a kind of file that is not read from one: its reader would say something else."""
    if path.suffix.lower() in COMPRESSED:
        says = f"{path} is compressed, and a {kind_of(path)} file is read only as it is: decompress it"
        raise BothwaysError(says, "compressed-file", path)


def _with_header(
    name: str, unit: str, rows: Iterator[tuple[int, list[str]]], notes: Noting, name_columns: NameColumns
) -> Iterator[Row]:
    """The rows of a table. Rows with a wrong number of cells are left out and noted; an error if they are most.

    Several columns may have an empty name: nothing reads them.
    """
    first = next(rows, None)
    if first is None:
        raise BothwaysError(
            f"{name} is empty: expected a table whose first {unit} names its columns", "empty-file", name
        )
    given = name_columns(first[1])
    header = given or first[1]
    named = [column for column in header if column]
    if len(set(named)) < len(named):
        says = f"{name} has two columns of one name in its first {unit}: {name_list(header)}"
        advice = "if that is no header, count the columns, as in `text` 1 and `label` 2"
        raise BothwaysError(f"{says}; {advice}", "repeated-column", name)
    whole, damaged, first_damaged = 0, 0, ""
    for number, cells in itertools.chain([first] if given else [], rows):
        where = f"{name}, {unit} {number}"
        if len(cells) == len(header):
            whole += 1
            if any(cell[:1] == cell[-1:] == '"' and '""' in cell[1:-1] for cell in cells):
                notes.add("quoted-cells", where)
            yield where, dict(zip(header, cells, strict=True))
        else:
            if notes.whole:
                says = f"has {counted(len(cells), 'column')}, and its first {unit} names {len(header)}"
                says += ": repair or remove this row"
                raise BothwaysError(f"{where} {says}", "wrong-cell-count", where)
            damaged, first_damaged = damaged + 1, first_damaged or where
            notes.add("wrong-cell-count", where, len(header))
    if damaged > whole:
        which = f"and {counted(damaged - 1, 'other row')} do" if damaged > 1 else "does"
        says = f"{which} not have the {counted(len(header), 'column')} of the first {unit}"
        advice = "is the suffix of the file wrong?"
        raise BothwaysError(f"{first_damaged} {says}: {advice}", "wrong-cell-count", first_damaged)


def peek(lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, and all lines."""
    rest = iter(lines)
    read = []
    for line in rest:
        read.append(line)
        if line.strip():
            break
    return (read[-1].strip() if read else ""), itertools.chain(read, rest)


def find_separator(header: str) -> str:
    """The separator of a .csv file: a comma, unless there are more semicolons or tabs outside of quotes.

    >>> find_separator("text,label"), find_separator("text;label"), find_separator('"a; b; c",label')
    (',', ';', ',')
    """
    unquoted = _QUOTED.sub("", header)
    return max(",;\t", key=unquoted.count)


def parse_csv(path: Path, lines: Iterable[str], separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, with the number of its last line. A quoted cell may contain line ends."""
    # Without a limit, an unclosed quote would fill the memory.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    rows = csv.reader((line + "\n" for line in lines), delimiter=separator, strict=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num, row
    except csv.Error as error:
        where = f"{name_of(path)}, line {rows.line_num}"
        if "new-line character" in str(error):
            says = "has a carriage return in its middle: expected line feeds, or quotes around a cell of several lines"
        else:
            says = f"is not CSV: {error}; is a quote before it not closed, or not doubled?"
        raise BothwaysError(f"{where} {says}", "not-csv", where) from error


def parse_tsv(lines: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The cells of each line, without quoting: in .tsv files such as GLUE's, quotes are text."""
    for number, line in enumerate(lines, 1):
        if line := line.removesuffix("\r"):
            yield number, line.split("\t")


def parse_jsonl(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, Any]]:
    """The JSON value of each line, with the line number; empty lines are skipped."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        yield number, parse_row(line, f"{name_of(path)}, line {number}")
