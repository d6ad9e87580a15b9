"""Finds data files and reads their rows: tables of every kind, JSON, exports of annotation tools, standard input.

`rows_of` is the one place that turns a source into rows with their places; every reader of labelled data begins there.
"""

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from bothways.data.brat import ANN, read_brat, without_annotated
from bothways.data.docbin import docbin_rows
from bothways.data.exports import plain_row, plain_rows
from bothways.data.notes import Notes, row_error
from bothways.errors import BothwaysError
from bothways.json_files import parse_row
from bothways.text.arrow import dataset_folder
from bothways.text.document_files import is_document
from bothways.text.files import (
    each_once,
    files_of_kinds,
    files_of_pattern,
    is_pattern,
    no_known_files,
    replace_surrogates,
    visible_files,
)
from bothways.text.frames import is_frame
from bothways.text.streams import STDIN, Meter, read_whole, read_whole_lines
from bothways.text.streams import name_of as name_of
from bothways.text.tables import BINARY as BINARY_TABLES
from bothways.text.tables import TABLES as TABLES
from bothways.text.tables import WITH_HEADER as WITH_HEADER
from bothways.text.tables import NameColumns, Row, parse_jsonl, table_rows
from bothways.text.tables import kind_of as kind_of
from bothways.text.tables import peek as peek

Paths = Path | str | Iterable[Path | str]

SPACY = ".spacy"
ROWS = (".jsonl", ".ndjson", ".json", SPACY, *TABLES)
BINARY = (*BINARY_TABLES, SPACY)
"""Files that are no text."""


def find_sources(paths: Paths, kinds: tuple[str, ...]) -> list[Path]:
    """The files given, and the files of these kinds that folders and patterns such as `data/*.csv` stand for.

    Those of a folder or pattern are sorted, without hidden ones; a file named twice comes once. A folder that
    `datasets` saved is one source.
    """
    found: list[Path] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path == STDIN or is_frame(path) or path.is_file() or dataset_folder(path):
            found.append(_no_document(path))
        elif path.is_dir() or is_pattern(path):
            files_in = files_of_kinds if path.is_dir() else files_of_pattern
            inside = without_annotated(files_in(path, lambda file: kind_of(file) in kinds))
            if not inside:
                documents = sum(is_document(file) for file in visible_files(path)) if path.is_dir() else 0
                only = f" (documents, of which it has {documents:,}, hold no rows)" if documents else ""
                raise no_known_files(path, ", ".join(kinds) + only)
            found += inside
        else:
            raise BothwaysError(f"there is no file {path}", "no-file", path)
    if not found:
        raise BothwaysError("no input file was given", "no-input")
    return each_once(found)


def _no_document(path: Path) -> Path:
    """Refuse a document whose lines are no texts, such as a page in HTML."""
    if path != STDIN and not is_frame(path) and is_document(path) and kind_of(path) != ".txt":
        raise BothwaysError(
            f"{path} is a document ({kind_of(path)}), and rows or lines are expected: save its texts as lines of .txt "
            "or rows of .csv",
            "is-a-document",
            path,
        )
    return path


def read_plain(path: Path) -> Iterator[str]:
    """The lines of a file or of standard input, with a \\r at the end if there is one."""
    return read_whole_lines(path, Meter())


def open_json(path: Path) -> tuple[str, Iterator[str]]:
    """The kind of a file and its lines. A file with another suffix is .json if it begins with a bracket."""
    kind, lines = kind_of(path), read_plain(path)
    if kind in ROWS:
        return kind, lines
    first, lines = peek(lines)
    return ".json" if first.startswith(("{", "[")) else kind, lines


def rows_of(
    path: Path, kind: str, lines: Iterable[str], notes: Notes, name_columns: NameColumns = lambda first: None
) -> Iterator[Row]:
    """The rows of a file of this kind, each with its place and a dictionary."""
    for where, value in values_of(path, kind, lines, notes, name_columns):
        if not isinstance(value, dict):
            raise row_error(where, f"is not a JSON object: found {_short(value)}", "not-an-object")
        yield where, value


def values_of(
    path: Path,
    kind: str,
    lines: Iterable[str],
    notes: Notes | None = None,
    name_columns: NameColumns = lambda first: None,
) -> Iterator[tuple[str, Any]]:
    """The values of the lines of .jsonl and of the items of .json, and the rows of all other kinds.

    A .json file with one object yields that object. A .json file may also hold JSON lines. Exports of annotation tools
    come as plain rows.
    """
    name, notes = name_of(path), notes if notes is not None else Notes()
    if kind in TABLES:
        yield from table_rows(path, kind, lines, notes, name_columns=name_columns)
    elif kind in (".jsonl", ".ndjson"):
        for number, value in parse_jsonl(path, lines):
            yield from plain_row(f"{name}, line {number}", value)
    elif kind == ".json":
        whole = "\n".join(lines) if path == STDIN else read_whole(path)
        value = _parse_whole(name, whole)
        if value is None:
            yield from values_of(path, ".jsonl", whole.split("\n"))
        elif isinstance(value, list):
            yield from plain_rows([(f"{name}, item {number}", item) for number, item in enumerate(value, 1)], notes)
        else:
            yield from plain_rows([(name, value)], notes)
    elif kind == SPACY:
        yield from ((f"{name}, document {number}", row) for number, row in enumerate(docbin_rows(path), 1))
    elif kind == ANN:
        yield name, read_brat(path, notes)
    else:
        raise BothwaysError(
            f"{name} is not of a known kind: expected {', '.join(ROWS)}, or .gz or .xz of it", "unknown-file-kind", path
        )


def _parse_whole(name: str, whole: str) -> Any:
    """The one JSON value of the whole file, or None if each line is a value."""
    try:
        return parse_row(whole, name)
    except BothwaysError as error:
        if str(error.__cause__).startswith("Extra data"):
            return None
        raise


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
    if kind_of(path) == ANN:
        return []
    kind, lines = open_json(path)
    if kind not in ROWS:
        return []
    try:
        if kind in TABLES:
            return [row for _, row in itertools.islice(rows_of(path, kind, itertools.islice(lines, 200), Notes()), 1)]
        return [value for _, value in itertools.islice(values_of(path, kind, lines), 20)]
    except BothwaysError:
        return []  # the reader of the task reports it
