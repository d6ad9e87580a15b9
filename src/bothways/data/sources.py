"""The files that examples come from, and the rows in them: .jsonl, .json, .csv, .tsv, .parquet, standard input."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bothways.data.notes import Notes
from bothways.errors import BothwaysError
from bothways.text.files import find_separator, mended, parse_csv, parse_jsonl, parse_tsv, read_parquet
from bothways.text.streams import PACKED, STDIN, Meter, read_whole_lines
from bothways.text.streams import name_of as name_of

Paths = Path | str | Iterable[Path | str]
RawRow = tuple[str, dict[str, Any]]
"""Where it stands, as in `train.tsv, line 12`, and its values by the names of the columns."""
Namer = Callable[[list[str]], list[str] | None]
"""The names of the columns for a table whose first row has none; None if it has."""

TABLES = (".csv", ".tsv", ".parquet")
WITH_HEADER = (".csv", ".tsv")
"""Tables whose first line names the columns, or is a row like all others."""
ROWS = (".jsonl", ".ndjson", ".json", *TABLES)


def find_sources(paths: Paths, kinds: tuple[str, ...]) -> list[Path]:
    """Files whatever their kind, and of folders all of these kinds, sorted, without hidden ones."""
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path == STDIN or path.is_file():
            found.append(path)
        elif path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file() and kind_of(file) in kinds)
            inside = [file for file in inside if not any(p.startswith(".") for p in file.relative_to(path).parts)]
            if not inside:
                raise BothwaysError(f"there is no file of a known kind in {path}: expected {', '.join(kinds)}")
            found += inside
        else:
            raise BothwaysError(f"there is no file {path}")
    if not found:
        raise BothwaysError("no input file was given")
    return found


def kind_of(path: Path) -> str:
    """.tsv, .jsonl and so on in small letters, whatever compression follows it; empty for standard input."""
    plain = path.with_suffix("") if path.suffix.lower() in PACKED else path
    return plain.suffix.lower()


def read_plain(path: Path) -> Iterator[str]:
    """The lines of a file or of standard input; a \\r at an end stays."""
    return read_whole_lines(path, Meter())


def peek(lines: Iterable[str]) -> tuple[str, Iterator[str]]:
    """The first line that is not blank, and all lines."""
    rest = iter(lines)
    before = []
    for line in rest:
        before.append(line)
        if line.strip():
            break
    return (before[-1].strip() if before else ""), itertools.chain(before, rest)


def open_json(path: Path) -> tuple[str, Iterator[str]]:
    """The kind of a file and its lines. One that its name says nothing of is .json if it begins like it."""
    kind, lines = kind_of(path), read_plain(path)
    if kind in ROWS:
        return kind, lines
    first, lines = peek(lines)
    return ".json" if first.startswith(("{", "[")) else kind, lines


def rows_of(
    path: Path, kind: str, lines: Iterable[str], notes: Notes, namer: Namer = lambda first: None
) -> Iterator[RawRow]:
    """The rows of a file of a kind, each a dictionary."""
    name = name_of(path)
    if kind == ".tsv":
        yield from _table(name, parse_tsv(Path(name), lines), notes, namer)
        return
    if kind == ".csv":
        first, lines = peek(lines)
        # Without a header the marks of a text count as well, so commas are believed if there are some.
        separator = "," if "," in first and namer(first.split(",")) else find_separator(first)
        yield from _table(name, parse_csv(Path(name), lines, separator), notes, namer)
        return
    for where, value in values_of(path, kind, lines):
        if not isinstance(value, dict):
            raise BothwaysError(f"{where} holds no object with names and values: found {_short(value)}")
        yield where, value


def values_of(path: Path, kind: str, lines: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """What the lines of .jsonl, the items of .json and the rows of .parquet hold.

    A .json file that is one object gives that object. Many are called .json and hold a line of JSON for each row.
    """
    name = name_of(path)
    if kind == ".parquet":
        yield from ((f"{name}, row {number}", row) for number, row in read_parquet(path))
    elif kind in (".jsonl", ".ndjson"):
        yield from ((f"{name}, line {number}", value) for number, value in parse_jsonl(Path(name), lines))
    elif kind == ".json":
        held = list(lines)
        value = _whole(name, held)
        if value is None:
            yield from values_of(path, ".jsonl", held)
        elif isinstance(value, list):
            yield from ((f"{name}, item {number}", item) for number, item in enumerate(value, 1))
        else:
            yield name, value
    else:
        raise BothwaysError(f"{name} is not a kind of file known here: expected {', '.join(ROWS)}, or .gz or .xz of it")


def _whole(name: str, lines: list[str]) -> Any:
    """The one value that the lines hold together, or None if each line is one."""
    try:
        return json.loads("\n".join(lines))
    except (ValueError, RecursionError) as error:
        if str(error).startswith("Extra data"):
            return None
        raise BothwaysError(f"{name} is not JSON: {error}") from error


def _table(name: str, rows: Iterator[tuple[int, list[str]]], notes: Notes, namer: Namer) -> Iterator[RawRow]:
    """The rows of a table; those whose number of cells is wrong are left out and noted, unless they are most.

    Columns without a name may be many; nobody asks for them.
    """
    first = next(rows, None)
    if first is None:
        raise BothwaysError(f"{name} is empty: expected a table whose first line names its columns")
    given = namer(first[1])
    header = given or first[1]
    named = [name for name in header if name]
    if len(set(named)) < len(named):
        raise BothwaysError(
            f"{name} has two columns of one name in its first line: {', '.join(header)}; if that is no header, count "
            f"the columns, as in --text 1 --label 2"
        )
    whole, damaged, begin = 0, 0, ""
    for number, cells in itertools.chain([first] if given else [], rows):
        where = f"{name}, line {number}"
        if len(cells) == len(header):
            whole += 1
            if any(cell[:1] == cell[-1:] == '"' and '""' in cell[1:-1] for cell in cells):
                notes.add("quoted-cells", where)
            yield where, dict(zip(header, cells, strict=True))
        else:
            if notes.whole:
                raise BothwaysError(
                    f"{where} has {len(cells)} columns, and its first line names {len(header)}: mend it, or leave it "
                    f"out, so that every row has its answer"
                )
            damaged, begin = damaged + 1, begin or where
            notes.add("wrong-cell-count", where, len(header))
    if damaged > whole:
        raise BothwaysError(
            f"{begin} does not have the {len(header)} columns of the first line, nor do {damaged - 1} others: "
            f"is the file of another kind than its name says?"
        )


def text_of(value: Any, where: str, what: str) -> str:
    """A text with half characters mended; None is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BothwaysError(f"{where} has no text under {what}: found {_short(value)}")
    return mended(value)


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
