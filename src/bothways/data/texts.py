"""Reads texts and pairs with labels, for classification and regression: tables, JSON, fastText lines."""

import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, get_args

from bothways.data.examples import Gold, LongInput, Text
from bothways.data.labels import LabelKind, as_kind, number_of
from bothways.data.notes import Notes, row_error
from bothways.data.several_labels import (
    MARKS,
    find_separator,
    indicated,
    indicator_columns,
    list_cell,
    require_names,
    split_cell,
)
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
from bothways.text.columns import Columns, ResolvedColumns, find_columns, names_without_header
from bothways.text.files import replace_surrogates
from bothways.text.long_text import LongText, beginning_of
from bothways.text.same_text import is_blank
from bothways.text.streams import STDIN, read_any_lines, refuse_long

_USUAL_COLUMNS = Columns()
_FASTTEXT_LABEL = "__label__"
_MISSING_NUMBER = re.compile(r"nan|n/?a|null|none|[+-]?inf(inity)?", re.IGNORECASE)
"""How tables write a missing or infinite value in a column of numbers."""
_MOST_CELLS = 100_000
"""Different cells that are looked at to find what separates their labels."""


def read_texts_labelled(
    paths: Paths,
    columns: Columns = _USUAL_COLUMNS,
    kind: LabelKind | Literal["auto"] = "auto",
    notes: Notes | None = None,
    separator: str = "",
) -> Iterator[Text]:
    """Stream the texts or pairs of the files with their labels, in constant memory.

    With `kind` auto a label keeps the type that the file has: text and whole numbers are text, JSON's floats such as
    4.5 are numbers, lists are tuples of names; a cell of a table is text, or a list such as `['joy', 'awe']`.
    `label_kind` finds the kind of all labels together and `as_kind` converts a label to it. With kind multi a cell such
    as `joy|awe` has several labels, and an empty one has none; without `separator`, all cells together show it. Where
    all other labels of a file are numbers, `nan` and `NA` are missing labels, and `inf` is a number.

    The first line of a .txt file or of standard input decides how it is read: as JSON lines, a tab-separated table,
    fastText lines with labels, or else one unlabelled text per line.
    """
    require_choice("kind", kind, ("auto", *get_args(LabelKind)))
    notes = notes if notes is not None else Notes()
    sources = find_sources(paths, (*ROWS, ".txt"))
    separator = separator or (_separator(sources, columns) if kind == "multi" else "")
    for path in sources:
        for example in _file(path, columns, kind, separator, notes):
            yield example if kind == "auto" else as_kind(example, kind)


def read_any_inputs(file: str, columns: Columns, notes: Notes) -> Iterator[Text | LongInput]:
    """As `read_texts_labelled`, with lines of plain text of any length."""
    for path in find_sources(file, (*ROWS, ".txt")):
        if kind_of(path) in ROWS:
            yield from _file(path, columns, "auto", "", notes)
            continue
        read = read_any_lines(path)
        held = list(_until_text(read))
        first, lines = beginning_of(held[-1]).strip() if held else "", itertools.chain(held, read)
        kind = _kind_of_first_line(first, columns)
        if kind != ".txt" or first.startswith(_FASTTEXT_LABEL):
            yield from _of_lines(path, kind, refuse_long(path, lines), first, columns, "auto", "", notes)
            continue
        for number, line in enumerate(lines, 1):
            where = f"{name_of(path)}, line {number}"
            yield Text((line,), None, where) if isinstance(line, str) else LongInput(line, where)


def _until_text(lines: Iterator[str | LongText]) -> Iterator[str | LongText]:
    """The lines up to the first that is not blank."""
    for line in lines:
        yield line
        if beginning_of(line).strip():
            return


def _file(path: Path, columns: Columns, kind: str, separator: str, notes: Notes) -> Iterator[Text]:
    file_kind, lines, first = _opened(path, columns)
    yield from _of_lines(path, file_kind, lines, first, columns, kind, separator, notes)


def _of_lines(
    path: Path,
    file_kind: str,
    lines: Iterable[str],
    first: str,
    columns: Columns,
    kind: str,
    separator: str,
    notes: Notes,
) -> Iterator[Text]:
    """The examples of a file of this kind."""
    if file_kind == ".txt":
        yield from _lines(path, lines, first)
        return
    rows = _Rows(path, file_kind, columns, separator)
    for where, row, found in rows.read(lines, notes):
        yield _example(row, found, where, kind, rows, notes)


def _opened(path: Path, columns: Columns) -> tuple[str, Iterator[str], str]:
    """The kind of a file and its lines; the first of them if only that tells the kind."""
    kind, lines = kind_of(path), read_plain(path)
    if kind in ROWS:
        return kind, lines, ""
    first, lines = peek(lines)
    return _kind_of_first_line(first, columns), lines, first


def _separator(sources: Iterable[Path], columns: Columns) -> str:
    """What separates the labels of a cell, from all cells; of standard input, any of the usual marks."""
    cells: set[str] = set()
    for path in sources:
        if path == STDIN:  # it cannot be read twice
            return MARKS
        kind, lines, _ = _opened(path, columns)
        if kind == ".txt":
            continue
        for where, row, found in _Rows(path, kind, columns).read(lines, Notes()):
            value = row[found.label] if found.label is not None else None
            if isinstance(value, str) and len(cells) < _MOST_CELLS and list_cell(value, where) is None:
                cells.add(value)
    return find_separator(cells)


def find_indicators(paths: Paths, columns: Columns) -> tuple[str, ...]:
    """The columns of the files that hold only 0 and 1, one for each label; empty if there are not several."""

    def rows() -> Iterator[dict[str, Any]]:
        for path in find_sources(paths, (*ROWS, ".txt")):
            kind, lines, _ = _opened(path, columns)
            for _, row, found in _Rows(path, kind, columns).read(lines, Notes()) if kind != ".txt" else ():
                texts = {name for names in found.texts for name in names}
                yield {name: value for name, value in row.items() if name not in texts}

    found = indicator_columns(rows())
    return () if any("+" in name for name in found) else found  # which joins the names of columns


@dataclass(frozen=True)
class _Rows:
    """The rows of a file, with their text and label columns."""

    path: Path
    kind: str
    columns: Columns
    separator: str = ""

    def read(self, lines: Iterable[str], notes: Notes) -> Iterator[tuple[str, dict[str, Any], ResolvedColumns]]:
        """The place of each row, its values, and its text and label columns."""
        name, columns = name_of(self.path), self.columns
        known: dict[tuple[str, ...], ResolvedColumns] = {}
        name_columns = partial(names_without_header, columns)
        for where, row in rows_of(self.path, self.kind, lines, notes, name_columns):
            names = tuple(row)
            if names not in known:
                place = name if self.kind in TABLES else where
                is_written, is_typed = self.kind in WITH_HEADER, self.kind in (".parquet", ".arrow")
                known[names] = find_columns(columns, names, place, has_header=is_written, has_types=is_typed)
                text, *pair = (" + ".join(some) for some in known[names].texts)
                label = " + ".join(known[names].indicators) or known[names].label
                split = f", separated by {self.separator}" if self.separator not in ("", MARKS) else ""
                notes.took(text=text, pair=next(iter(pair), None), label=label and label + split)
                if label is None and columns.reads_label:
                    notes.add("no-label-column", name, ", ".join(names))
            yield where, row, known[names]

    @cached_property
    def are_lists(self) -> bool:
        """Whether a cell of this table is a list, so that an empty one has no label; found by a second pass."""
        return self.kind in TABLES and any(
            isinstance(label, str) and list_cell(label, where) is not None for where, label in self._labels()
        )

    def _labels(self) -> Iterator[tuple[str, Any]]:
        """The labels of the file, from its beginning; none of standard input, which cannot be read twice."""
        if self.path != STDIN:
            for where, row, found in self.read(read_plain(self.path), Notes()):
                yield where, row[found.label] if found.label is not None else None

    @cached_property
    def are_numbers(self) -> bool:
        """Whether all labels are numbers or stand for a missing number; found by a second pass over the file."""
        seen = False
        for _, label in self._labels():
            if label is None or label == "" or _MISSING_NUMBER.fullmatch(str(label).strip()):
                continue
            if number_of(str(label).strip()) is None:
                return False
            seen = True
        return seen


def _kind_of_first_line(first: str, columns: Columns) -> str:
    """The kind of a file without a telling suffix: .jsonl, .tsv or .txt."""
    if first.startswith("{"):
        return ".jsonl"
    cells = first.split("\t")
    if first.startswith(_FASTTEXT_LABEL) or (len(cells) == 1 and columns.are_usual):
        return ".txt"
    try:
        find_columns(columns, names_without_header(columns, cells) or cells, "")
    except BothwaysError:
        return ".txt" if columns.are_usual else ".tsv"  # reading it as a table reports the missing column
    return ".tsv"


def _lines(path: Path, lines: Iterable[str], first: str) -> Iterator[Text]:
    """One text per line, or fastText lines with labels, of which blank ones are left out."""
    has_labels = first.startswith(_FASTTEXT_LABEL)
    for number, line in enumerate(lines, 1):
        line = line.removesuffix("\r")
        if not has_labels:
            yield Text((line,), None, f"{name_of(path)}, line {number}")
        elif words := line.split():
            labels = tuple(w.removeprefix(_FASTTEXT_LABEL) for w in words if w.startswith(_FASTTEXT_LABEL))
            text = " ".join(word for word in words if not word.startswith(_FASTTEXT_LABEL))
            gold = None if not labels else labels[0] if len(labels) == 1 else labels
            yield Text((text,), gold, f"{name_of(path)}, line {number}")


def _example(row: dict[str, Any], columns: ResolvedColumns, where: str, kind: str, rows: _Rows, notes: Notes) -> Text:
    texts = tuple(" ".join(text_of(row[name], where, name) for name in names) for names in columns.texts)
    value = row[columns.label] if columns.label is not None else None
    # MNLI, SNLI, OCNLI: the annotators did not agree.
    if value == "-" and len(texts) == 2:
        notes.add("no-agreement", where)
        return Text(texts, None, where)
    if any(map(is_blank, texts)):
        notes.add("empty-text", where)
    if columns.indicators:
        gold: Gold | None = indicated(row, columns.indicators, where)
    else:
        gold = _gold(value, where, kind, rows.separator)
    if value == "" and gold is None and rows.are_lists:
        gold = ()
    if isinstance(gold, str) and _MISSING_NUMBER.fullmatch(gold) and rows.are_numbers:
        gold = float(gold) if "inf" in gold.lower() else None
    if gold is None and (columns.label is not None or columns.indicators):
        notes.add("empty-label", where)
    return Text(texts, gold, where)


def _gold(value: Any, where: str, kind: str, separator: str) -> Gold | None:
    """The label of a row, from its value in the file. `separator`: what separates several, or MARKS: any of these."""
    if isinstance(value, str):
        if (names := list_cell(value, where)) is not None:
            value = names
        elif kind == "multi":
            mark = separator if separator != MARKS else next((mark for mark in MARKS if mark in value), "")
            return tuple(map(_name, split_cell(value, mark)))
    if isinstance(value, dict) and set(value) == {"choices"}:  # several choices in Label Studio's JSON-MIN
        value = value["choices"]
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float):
        return value
    if isinstance(value, str | int):
        return _name(value)
    if isinstance(value, list) and all(isinstance(part, str | int | float) for part in value):
        require_names(value, where)
        if not any(isinstance(part, float) for part in value):
            return tuple(map(_name, value))
    raise row_error(where, f"has the label {value!r}: expected text, a number or a list of these", "bad-label")


def _name(value: str | int) -> str:
    return str(value).lower() if isinstance(value, bool) else replace_surrogates(str(value)).strip()
