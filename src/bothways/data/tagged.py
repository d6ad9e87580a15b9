"""Reads sentences with a tag for each word: columns as in CoNLL-2003, CoNLL-U, rows of JSON and tables, brat."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.data.brat import ANN
from bothways.data.conllu import COLUMNS, is_conllu, read_conllu
from bothways.data.examples import Tagged
from bothways.data.notes import Notes, row_error
from bothways.data.schemes import detect, parse, problems, to_bio
from bothways.data.sources import (
    BINARY,
    SPACY,
    WITH_HEADER,
    Paths,
    find_sources,
    kind_of,
    name_of,
    read_plain,
    rows_of,
)
from bothways.data.spans import FIELDS, find_field, read_spans
from bothways.data.words import join_words
from bothways.errors import BothwaysError, name_list
from bothways.printable import counted
from bothways.text.columns import Columns, ResolvedColumns, find_columns, is_usual_label
from bothways.text.files import replace_surrogates
from bothways.text.streams import STDIN

ROW_KINDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow", SPACY, ANN)
"""Files whose rows have words with tags, or a text with entities."""
KINDS = (".conll", ".conllu", ".conllup", ".bio", ".bioes", ".bmes", ".iob", ".iob2", ".txt", ".tsv", *ROW_KINDS)
WORDS = ("tokens", "words", "token", "chars")
TAGS = ("tags", "ner_tags", "labels", "ner", "pos", "pos_tags", "upos", "tag", "label")
_LINES = 200
"""The lines of a table that are read to recognise it."""
_USUAL = Columns()
_BLANKS = re.compile(r"[ \t]+")

ReadFile = Callable[[Notes], Iterator[Tagged]]
"""Reads a file from its beginning each time it is called."""


def read_tagged(paths: Paths, column: str | int | None = None, notes: Notes | None = None) -> Iterator[Tagged]:
    """Stream the sentences of the files, with entity tags in BIO whatever the scheme of a file; plain tags stay.

    `column` says where the tags are: in files of columns a number from 1, by default the last; in CoNLL-U the name of a
    column or of a key of MISC, such as ner or entity, by default upos; in JSON the name of a field. A first pass over
    each file detects its scheme. Tags that break it are noted, and read as conlleval does: I-PER after O begins an
    entity.
    """
    notes = notes if notes is not None else Notes()
    for path in find_sources(paths, KINDS):
        read, is_plain = reader_of(path, column)
        if is_plain:
            yield from read(notes)
        else:
            yield from _in_bio(path, read, notes)


def require_tags(paths: Paths) -> None:
    """Refuse files whose first row has one label per text instead of one tag per word."""
    for path in find_sources(paths, KINDS):
        if path == STDIN:  # it cannot be read twice
            continue
        if (label := _label_of_row(path)) is not None:
            says = f"{name_of(path)} has no tags: it holds one label a row, under {label}"
            advice = "token classification needs one for each word; for one label a row the task is classify"
            raise BothwaysError(f"{says}, and {advice}", "no-tags", path)


def _label_of_row(path: Path) -> str | None:
    """The column with one label per text; None if the file is of another kind."""
    kind = kind_of(path)
    if kind not in (*WITH_HEADER, ".txt", *ROW_KINDS) or not (head := _head(path, ".tsv" if kind == ".txt" else kind)):
        return None
    row, label = head[0], head[1].label
    is_one = label is not None and isinstance(row[label], str | int | float)
    return label if is_one and not any(isinstance(value, list) for value in row.values()) else None


def holds_texts(path: Path, text: str | None = None) -> bool:
    """Whether each row of a table is a text, not a word. `text`: the name of its column, if the user gives it.

    So are those of any .csv or .xlsx, of a .tsv with known column names, and of other tables without lists.
    """
    kind = kind_of(path)
    if kind in (".parquet", ".arrow", ".jsonl", ".ndjson", ".json"):
        head = _head(path, kind, Columns(text, reads_label=False))
        return head is not None and not any(isinstance(value, list) for value in head[0].values())
    if kind != ".tsv":
        return kind in WITH_HEADER
    if not (head := _head(path, ".tsv", Columns(text, reads_label=False))):
        return False
    row, columns = head
    return any(is_usual_label(name) for name in row) or any(" " in row[name] for text in columns.texts for name in text)


def _head(path: Path, kind: str, columns: Columns = _USUAL) -> tuple[dict[str, Any], ResolvedColumns] | None:
    """The first row of a file, and its text and label columns; None if they have no usual names."""
    lines = read_plain(path) if kind in ROW_KINDS else islice(read_plain(path), _LINES)
    try:
        _, row = next(rows_of(path, kind, lines, Notes()), ("", {}))
        return row, find_columns(columns, list(row), "")
    except BothwaysError:  # a file of columns has no header
        return None


def read_sentences(path: Path, notes: Notes) -> Iterator[Tagged]:
    """The sentences of JSON lines with their tags as they are, in one pass: for prediction."""
    return _rows(path, ".jsonl", read_plain(path), None, notes)


def _in_bio(path: Path, read: ReadFile, notes: Notes) -> Iterator[Tagged]:
    seen: dict[str, str] = {}

    def golds() -> Iterator[tuple[str, ...]]:
        for example in read(Notes()):
            gold = example.gold or ()
            seen.update(dict.fromkeys(set(gold) - seen.keys(), example.where))
            yield gold

    try:
        scheme = detect(golds())
    except BothwaysError as error:
        if name_of(path) in str(error):
            raise
        raise BothwaysError(f"{name_of(path)}: {error}", error.code, error.value) from error
    plain = [tag for tag in seen if parse(tag) is None]
    if plain and any(tag[1:2] == "-" and parse(tag) for tag in seen):
        notes.add("mixed-tags", seen[plain[0]], plain[0])
    for example in read(notes):
        if example.gold is None or scheme == "plain":
            yield example
            continue
        for _, problem in problems(example.gold, scheme):
            notes.add("broken-tags", example.where, (scheme, problem))
        yield replace(example, gold=to_bio(example.gold, scheme))


def reader_of(path: Path, column: str | int | None) -> tuple[ReadFile, bool]:
    """The function that reads a file, and whether its tags are always plain."""
    name, kind = name_of(path), kind_of(path)
    held = list(read_plain(path)) if path == STDIN else None  # it cannot be read twice

    def lines() -> Iterable[str]:
        return read_plain(path) if held is None else held

    if kind not in (*ROW_KINDS, *BINARY):
        first = _first(lines())
        is_analysed = kind in (".conllu", ".conllup") or is_conllu(first)
        kind = ".jsonl" if first.startswith("{") else ".conllu" if is_analysed else ""
    if kind == ".conllu":
        asked = str(column or "upos").lower()
        return lambda notes: read_conllu(name, lines(), asked, notes), asked in COLUMNS
    if kind:
        return lambda notes: _rows(path, kind, lines(), column, notes), False
    return lambda notes: _columns(name, lines(), column), False


def _first(lines: Iterable[str]) -> str:
    """The first line that is neither blank nor a comment."""
    return next((line.strip("\r\n ") for line in lines if line.strip() and not line.startswith("# ")), "")


def _columns(name: str, lines: Iterable[str], column: str | int | None) -> Iterator[Tagged]:
    """One word per line, with columns, and a blank line after each sentence; with one column there are no tags."""
    index = -1 if column is None else _number(column) - 1
    width, begin = 0, 0
    words, tags = list[str](), list[str]()
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n\t ")
        if not line:
            if words:
                yield _sentence(words, tags if width > 1 else None, f"{name}, line {begin}")
            words, tags = [], []
            continue
        if line.startswith(("-DOCSTART-", "# id ")):  # CoNLL-2003's and MultiCoNER's
            continue
        cells = line.split("\t") if "\t" in line else _BLANKS.split(line)
        width = width or len(cells)
        if len(cells) != width or index >= width:
            where, expected = f"{name}, line {number}", max(width, index + 1)
            raise row_error(where, f"has {len(cells)} columns: expected {expected}", "wrong-cell-count")
        begin = begin if words else number
        words.append(cells[0] or " ")  # a space, in files with one character per line
        tags.append(cells[index])
    if words:
        yield _sentence(words, tags if width > 1 else None, f"{name}, line {begin}")


def _number(column: str | int) -> int:
    if not str(column).isdecimal() or int(column) < 1:
        raise BothwaysError(
            f"`label` cannot be {column!r} for a file of columns: expected a number from 1", "bad-column", column
        )
    return int(column)


def _rows(path: Path, kind: str, lines: Iterable[str], column: str | int | None, notes: Notes) -> Iterator[Tagged]:
    """Rows of JSON or .parquet, each with tokens and tags, or with a text and the offsets of its entities."""
    for where, row in rows_of(path, kind, lines, notes):
        field = None if column is None else str(column)
        if field is not None and field not in row:
            raise BothwaysError(f"{where} has no field {field!r}: its fields are {name_list(row)}", "no-column", field)
        key = next((name for name in WORDS if _is_texts(row.get(name))), None)
        if key:
            tags = field or _tag_field(row, key, where)
            notes.took(words=key, label=tags)
            yield _tokens(row, key, tags, where, notes)
        elif isinstance(row.get("text"), str):
            marks = field or find_field(row)
            notes.took(text="text", label=marks)
            if (example := read_spans(row, marks, where, notes)) is not None:
                yield example
        else:
            names, tags = ", ".join((*WORDS, "text")), ", ".join(dict.fromkeys((*TAGS, *FIELDS)))
            says = f"has neither tokens nor a text: its fields are {name_list(row)}"
            raise row_error(where, f"{says}, and one of {names} was expected, with {tags}", "unknown-layout")


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _tag_field(row: dict[str, Any], key: str, where: str) -> str | None:
    found = [name for name in TAGS if name != key and isinstance(row.get(name), list)]
    if len(found) > 1:
        says = f"{where} could have its tags in {' or '.join(found)}: name one with `label`"
        raise BothwaysError(says, "ambiguous-column", tuple(found))
    return found[0] if found else None


def _tokens(row: dict[str, Any], key: str, field: str | None, where: str, notes: Notes) -> Tagged:
    words = [replace_surrogates(word) for word in row[key]]
    if field is None:
        return _sentence(words, None, where)
    tags = row[field]
    if not isinstance(tags, list) or not all(isinstance(tag, str | int) for tag in tags):
        raise row_error(where, f"has no list of tags in {field}", "no-tags")
    if len(tags) != len(words):
        raise row_error(
            where,
            f"has {counted(len(words), 'word')} in {key} and {counted(len(tags), 'tag')} in {field}",
            "count-mismatch",
        )
    if any(isinstance(tag, int) for tag in tags):
        notes.add("numeric-tags", where)
    return _sentence(words, list(map(str, tags)), where)


def _sentence(words: list[str], tags: list[str] | None, where: str) -> Tagged:
    text, places = join_words(words)
    return Tagged(text, places, None if tags is None else tuple(tags), where)
