"""Which task a labelled file is for, as its name and its first rows tell."""

import re
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.data.columns import LABELS
from bothways.data.multiple_choice import OPTIONS
from bothways.data.notes import Notes
from bothways.data.schemes import parse
from bothways.data.sources import ROWS, TABLES, find_sources, kind_of, open_json, read_plain, rows_of, values_of
from bothways.data.spans import find_field
from bothways.data.tagged import KINDS, WORDS
from bothways.errors import BothwaysError
from bothways.tasks.recipe import DataSettings

_COLUMNS = tuple(kind for kind in KINDS if kind not in (*ROWS, ".txt"))
_ENDING = re.compile(r"(?:ending|option|choice)_?\d")
_LINES = 200


def guess_task(file: str) -> str:
    """classify, tag, answer or choose. A pair with a number is classify, of the kind regression: say score if not."""
    path = find_sources(file, (*KINDS, ".csv"))[0]
    if kind_of(path) in _COLUMNS:
        return "tag"
    if kind_of(path) not in (".json", ".jsonl", ".ndjson", ".csv", ".parquet") and _is_columns(read_plain(path)):
        return "tag"
    found = {_of_value(value) for value in _first_values(path)} - {"classify"}
    return sorted(found)[0] if found else "classify"


def label_column(file: str, data: DataSettings) -> str:
    """The name of the column that holds the labels; empty if it has none."""
    if data.label:
        return data.label
    path = find_sources(file, ROWS)[0]
    rows = [value for value in _first_values(path)[:1] if isinstance(value, dict)]
    found = [name for row in rows for name in row if str(name).strip().lower() in LABELS]
    return found[0] if len(found) == 1 else ""


def _first_values(path: Path) -> list[Any]:
    kind, lines = open_json(path)
    if kind not in ROWS:
        return []
    try:
        if kind in TABLES:
            return [row for _, row in islice(rows_of(path, kind, islice(lines, _LINES), Notes()), 1)]
        return [value for _, value in islice(values_of(path, kind, lines), 20)]
    except BothwaysError:
        return []  # the reader of the task will say what is wrong


def _of_value(value: Any) -> str:
    match value:
        case [list(), list(), *_]:
            return "choose"
        case {"article": _, "questions": list(), "options": list()}:
            return "choose"
        case {"paragraphs": list()} | {"data": list()} | {"context_text": str(), "qas": list()}:
            return "answer"
        case {"question": str(), "context": str(), "answers": _}:
            return "answer"
        case {"question": {"choices": _}}:
            return "choose"
        case dict():
            return _of_row(value)
    return "classify"


def _of_row(row: dict[Any, Any]) -> str:
    if any(isinstance(row.get(name), list | dict) for name in OPTIONS):
        return "choose"
    if sum(bool(_ENDING.fullmatch(str(name))) for name in row) > 1:
        return "choose"
    if any(isinstance(row.get(name), list) for name in WORDS):
        return "tag"
    if isinstance(row.get("text"), str) and (field := find_field(row)) and any(map(_is_place, row[field])):
        return "tag"
    return "answer" if {"question", "context", "answer"} <= row.keys() else "classify"


def _is_place(value: Any) -> bool:
    match value:
        case [int(), int(), str()] | {"start": int()} | {"start_offset": int()}:
            return True
    return False


def _is_columns(lines: Iterable[str]) -> bool:
    """Words with tags of entities in columns: each line ends with a tag, and blank lines part sentences."""
    tags, widths = list[str](), set[int]()
    for line in islice(lines, _LINES):
        cells = line.split()
        if cells and not line.startswith(("#", "-DOCSTART-")):
            tags.append(cells[-1])
            widths.add(len(cells))
            if len(widths) > 1 or len(cells) < 2 or not parse(tags[-1]):
                return False
    return len(tags) > 1 and "O" in tags
