"""Texts and pairs with their labels, for classification and regression, out of tables, JSON and fastText's lines."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

from bothways.data.columns import Columns, Layout, find_layout, names_without_header
from bothways.data.examples import Gold, Text
from bothways.data.labels import Kind, as_kind, number_of
from bothways.data.notes import Notes
from bothways.data.sources import (
    ROWS,
    TABLES,
    WITH_HEADER,
    Paths,
    find_sources,
    kind_of,
    name_of,
    peek,
    read_plain,
    rows_of,
    text_of,
)
from bothways.errors import BothwaysError, require_choice
from bothways.text.files import mended
from bothways.text.streams import STDIN

USUAL = Columns()
MARK = "__label__"
"""What fastText puts before a label."""
_NO_NUMBER = re.compile(r"nan|n/?a|null|none|[+-]?inf(inity)?", re.IGNORECASE)
"""What tables have in a column of numbers where a number is missing, or is none."""


def read_texts_labelled(
    paths: Paths,
    columns: Columns = USUAL,
    kind: Kind | Literal["auto"] = "auto",
    notes: Notes | None = None,
) -> Iterator[Text]:
    """The texts or pairs of files with their labels, one after the other; memory does not grow with a file.

    Of `kind` auto a label is what the file has: text and whole numbers come as text, numbers with a point as in JSON's
    4.5 as numbers, lists as tuples of names; a cell of a table is always text. `label_kind` says what they are together
    and `as_kind` brings them into that form. With kind multi a cell such as `joy|awe` or `joy, awe` is several labels.
    Where all other labels of a file are numbers, `nan` and `NA` are missing ones, and `inf` is a number too.

    A .txt file, or standard input, is what its first line says: JSON, a table with tabs, fastText's lines with labels,
    or else a text without a label in each line.
    """
    require_choice("kind", kind, ("auto", *get_args(Kind)))
    notes = notes if notes is not None else Notes()
    for path in find_sources(paths, (*ROWS, ".txt")):
        for example in _file(path, columns, kind, notes):
            yield example if kind == "auto" else as_kind(example, kind)


def _file(path: Path, columns: Columns, kind: str, notes: Notes) -> Iterator[Text]:
    form, lines = kind_of(path), read_plain(path)
    if form not in ROWS:
        first, lines = peek(lines)
        form = _form(first, columns)
    if form == ".txt":
        yield from _lines(path, lines, first)
        return
    rows = _Rows(path, form, columns)
    for where, row, layout in rows.read(lines, notes):
        yield _example(row, layout, where, kind, rows, notes)


@dataclass(frozen=True)
class _Rows:
    """The rows of a file, whose columns are known."""

    path: Path
    form: str
    columns: Columns

    def read(self, lines: Iterable[str], notes: Notes) -> Iterator[tuple[str, dict[str, Any], Layout]]:
        """Where each row stands, its values, and which of them are text and label."""
        name, columns = name_of(self.path), self.columns
        layouts: dict[tuple[str, ...], Layout] = {}
        namer = partial(names_without_header, columns)
        for where, row in rows_of(self.path, self.form, lines, notes, namer):
            names = tuple(row)
            if names not in layouts:
                place = name if self.form in TABLES else where
                layouts[names] = find_layout(columns, names, place, has_header=self.form in WITH_HEADER)
                if layouts[names].label is None:
                    place = f"{name} with the columns {', '.join(names)}"
                    notes.add("no-label-column", place)
            yield where, row, layouts[names]

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all labels are numbers, but for words such as nan: told by a reading of its own, if one is met."""
        if self.path == STDIN:  # it cannot be read twice
            return False
        seen = False
        for _, row, layout in self.read(read_plain(self.path), Notes()):
            label = row[layout.label] if layout.label is not None else None
            if label is None or label == "" or _NO_NUMBER.fullmatch(str(label).strip()):
                continue
            if number_of(str(label).strip()) is None:
                return False
            seen = True
        return seen


def _form(first: str, columns: Columns) -> str:
    """What a file is that does not say it by its name, from its first line: JSON, a table with tabs, or plain lines."""
    if first.startswith("{"):
        return ".jsonl"
    cells = first.split("\t")
    if first.startswith(MARK) or (len(cells) == 1 and columns == USUAL):
        return ".txt"
    try:
        find_layout(columns, names_without_header(columns, cells) or cells, "")
    except BothwaysError:
        return ".txt" if columns == USUAL else ".tsv"  # who names columns is told that they are not there
    return ".tsv"


def _lines(path: Path, lines: Iterable[str], first: str) -> Iterator[Text]:
    """Lines of text, or of fastText with labels before it; then blank ones are left out."""
    marked = first.startswith(MARK)
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not marked:
            yield Text((line,), None, f"{name_of(path)}, line {number}")
        elif words := line.split():
            labels = tuple(word.removeprefix(MARK) for word in words if word.startswith(MARK))
            text = " ".join(word for word in words if not word.startswith(MARK))
            gold = None if not labels else labels[0] if len(labels) == 1 else labels
            yield Text((text,), gold, f"{name_of(path)}, line {number}")


def _example(row: dict[str, Any], layout: Layout, where: str, kind: str, rows: _Rows, notes: Notes) -> Text:
    texts = tuple(" ".join(text_of(row[name], where, name) for name in names) for names in layout.texts)
    value = row[layout.label] if layout.label is not None else None
    # MNLI, SNLI, OCNLI: the annotators did not agree.
    if value == "-" and len(texts) == 2:
        notes.add("no-agreement", where)
        return Text(texts, None, where)
    if not all(text.strip() for text in texts):
        notes.add("empty-text", where)
    gold = _gold(value, where, kind)
    if isinstance(gold, str) and _NO_NUMBER.fullmatch(gold) and rows.are_numbers:
        gold = float(gold) if "inf" in gold.lower() else None
    if gold is None and layout.label is not None:
        notes.add("empty-label", where)
    return Text(texts, gold, where)


def _gold(value: Any, where: str, kind: str) -> Gold | None:
    """A label as it stands in a file."""
    if isinstance(value, str) and kind == "multi":
        parts = value.split("|" if "|" in value else ",")
        return tuple(part for part in map(str.strip, parts) if part)
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float):
        return value
    if isinstance(value, str | int):
        return _name(value)
    if isinstance(value, list) and all(isinstance(part, str | int) for part in value):
        return tuple(map(_name, value))
    raise BothwaysError(f"{where} has the label {value!r}: expected text, a number or a list of these")


def _name(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else mended(str(value)).strip()
