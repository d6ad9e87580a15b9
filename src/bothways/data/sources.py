"""Finds data files and reads their rows: .jsonl, .json, .csv, .tsv, .parquet, standard input."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bothways.data.notes import Notes, row_error
from bothways.errors import BothwaysError
from bothways.text.files import (
    find_separator,
    parse_csv,
    parse_jsonl,
    parse_tsv,
    read_parquet,
    replace_surrogates,
    visible_files,
)
from bothways.text.streams import COMPRESSED, STDIN, Meter, read_whole_lines
from bothways.text.streams import name_of as name_of

Paths = Path | str | Iterable[Path | str]
RawRow = tuple[str, dict[str, Any]]
"""The place of a row, such as `train.tsv, line 12`, and its values by column."""
NameColumns = Callable[[list[str]], list[str] | None]
"""The first row of a table → the names of its columns if that row is no header, else None."""

TABLES = (".csv", ".tsv", ".parquet")
WITH_HEADER = (".csv", ".tsv")
"""Tables whose first line is a header, or a row if there is none."""
ROWS = (".jsonl", ".ndjson", ".json", *TABLES)


def find_sources(paths: Paths, kinds: tuple[str, ...]) -> list[Path]:
    """The files given, and the files of these kinds in the folders given, sorted, without hidden ones."""
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path == STDIN or path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = [file for file in visible_files(path) if kind_of(file) in kinds]
            if not inside:
                raise BothwaysError(
                    f"there is no file of a known kind in {path}: expected {', '.join(kinds)}", "no-known-files", path
                )
            found += inside
        else:
            raise BothwaysError(f"there is no file {path}", "no-file", path)
    if not found:
        raise BothwaysError("no input file was given", "no-input")
    return found


def kind_of(path: Path) -> str:
    """.tsv, .jsonl and so on in lower case, without the suffix of a compression; empty for standard input."""
    plain = path.with_suffix("") if path.suffix.lower() in COMPRESSED else path
    return plain.suffix.lower()


def read_plain(path: Path) -> Iterator[str]:
    """The lines of a file or of standard input, with a \\r at the end if there is one."""
    return read_whole_lines(path, Meter())


def peek(lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, and all lines."""
    rest = iter(lines)
    read = []
    for line in rest:
        read.append(line)
        if line.strip():
            break
    return (read[-1].strip() if read else ""), itertools.chain(read, rest)


def open_json(path: Path) -> tuple[str, Iterator[str]]:
    """The kind of a file and its lines. A file with another suffix is .json if it begins with a bracket."""
    kind, lines = kind_of(path), read_plain(path)
    if kind in ROWS:
        return kind, lines
    first, lines = peek(lines)
    return ".json" if first.startswith(("{", "[")) else kind, lines


def rows_of(
    path: Path, kind: str, lines: Iterable[str], notes: Notes, name_columns: NameColumns = lambda first: None
) -> Iterator[RawRow]:
    """The rows of a file of this kind, each a dictionary."""
    name = name_of(path)
    if kind == ".tsv":
        yield from _table(name, parse_tsv(Path(name), lines), notes, name_columns)
        return
    if kind == ".csv":
        first, lines = peek(lines)
        # Without a header the first line has punctuation of its text, so a comma is the separator if there is one.
        separator = "," if "," in first and name_columns(first.split(",")) else find_separator(first)
        yield from _table(name, parse_csv(Path(name), lines, separator), notes, name_columns)
        return
    for where, value in values_of(path, kind, lines):
        if not isinstance(value, dict):
            raise row_error(where, f"is not a JSON object: found {_short(value)}", "not-an-object")
        yield where, value


def values_of(path: Path, kind: str, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """The values of the lines of .jsonl, of the items of .json and of the rows of .parquet.

    A .json file with one object yields that object. A .json file may also hold JSON lines.
    """
    name = name_of(path)
    if kind == ".parquet":
        yield from ((f"{name}, row {number}", row) for number, row in read_parquet(path))
    elif kind in (".jsonl", ".ndjson"):
        yield from ((f"{name}, line {number}", value) for number, value in parse_jsonl(Path(name), lines))
    elif kind == ".json":
        held = list(lines)
        value = _parse_whole(name, held)
        if value is None:
            yield from values_of(path, ".jsonl", held)
        elif isinstance(value, list):
            yield from ((f"{name}, item {number}", item) for number, item in enumerate(value, 1))
        else:
            yield name, value
    else:
        raise BothwaysError(
            f"{name} is not of a known kind: expected {', '.join(ROWS)}, or .gz or .xz of it", "unknown-file-kind", path
        )


def _parse_whole(name: str, lines: list[str]) -> Any:
    """The one JSON value of the whole file, or None if each line is a value."""
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        if str(error).startswith("Extra data"):
            return None
        raise BothwaysError(f"{name} is not JSON: {error}", "not-json", name) from error


def _table(
    name: str, rows: Iterator[tuple[int, list[str]]], notes: Notes, name_columns: NameColumns
) -> Iterator[RawRow]:
    """The rows of a table. Rows with a wrong number of cells are left out and noted; an error if they are most.

    Several columns may have an empty name: nothing reads them.
    """
    first = next(rows, None)
    if first is None:
        raise BothwaysError(f"{name} is empty: expected a table whose first line names its columns", "empty-file", name)
    given = name_columns(first[1])
    header = given or first[1]
    named = [column for column in header if column]
    if len(set(named)) < len(named):
        says = f"{name} has two columns of one name in its first line: {', '.join(header)}"
        advice = "if that is no header, count the columns, as in `text` 1 and `label` 2"
        raise BothwaysError(f"{says}; {advice}", "repeated-column", name)
    whole, damaged, first_damaged = 0, 0, ""
    for number, cells in itertools.chain([first] if given else [], rows):
        where = f"{name}, line {number}"
        if len(cells) == len(header):
            whole += 1
            if any(cell[:1] == cell[-1:] == '"' and '""' in cell[1:-1] for cell in cells):
                notes.add("quoted-cells", where)
            yield where, dict(zip(header, cells, strict=True))
        else:
            if notes.whole:
                says = f"has {len(cells)} columns, and its first line names {len(header)}: repair or remove this row"
                raise row_error(where, says, "wrong-cell-count")
            damaged, first_damaged = damaged + 1, first_damaged or where
            notes.add("wrong-cell-count", where, len(header))
    if damaged > whole:
        says = f"and {damaged - 1} other rows do not have the {len(header)} columns of the first line"
        raise row_error(first_damaged, f"{says}: is the suffix of the file wrong?", "wrong-cell-count")


def text_of(value: Any, where: str, what: str) -> str:
    """A text, without lone surrogates; None is an empty text."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise row_error(where, f"has no text under {what}: found {_short(value)}", "not-text")
    return replace_surrogates(value)


def _short(value: Any) -> str:
    shown = json.dumps(value, ensure_ascii=False, default=str)
    return shown if len(shown) <= 60 else f"{shown[:57]}…"


def first_rows(path: Path) -> list[Any]:
    """What the first rows of a file hold: of a table one row, else up to twenty values; none of what cannot be read."""
    kind, lines = open_json(path)
    if kind not in ROWS:
        return []
    try:
        if kind in TABLES:
            return [row for _, row in itertools.islice(rows_of(path, kind, itertools.islice(lines, 200), Notes()), 1)]
        return [value for _, value in itertools.islice(values_of(path, kind, lines), 20)]
    except BothwaysError:
        return []  # the reader of the task reports it
