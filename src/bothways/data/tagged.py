"""Sentences whose words carry tags: in columns as of CoNLL-2003, in CoNLL-U, in JSON."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from bothways.data.columns import Columns, Layout, find_layout
from bothways.data.conllu import is_conllu, read_conllu
from bothways.data.examples import Tagged
from bothways.data.notes import Notes
from bothways.data.schemes import detect, parse, problems, to_bio
from bothways.data.sources import WITH_HEADER, Paths, find_sources, kind_of, name_of, read_plain, rows_of
from bothways.data.spans import FIELDS, find_field, read_spans
from bothways.data.words import join_words
from bothways.errors import BothwaysError
from bothways.text.files import mended
from bothways.text.streams import STDIN

_JSON = (".jsonl", ".ndjson", ".json", ".parquet")
KINDS = (".conll", ".conllu", ".bio", ".bioes", ".bmes", ".iob", ".iob2", ".txt", ".tsv", *_JSON)
WORDS = ("tokens", "words", "token", "chars")
TAGS = ("tags", "ner_tags", "labels", "ner", "pos", "pos_tags", "upos", "tag", "label")
_LINES = 200
"""Of a table so many are looked at."""
_BLANKS = re.compile(r"[ \t]+")

Reader = Callable[[Notes], Iterator[Tagged]]
"""Reads a file from its beginning, each time it is called."""


def read_tagged(paths: Paths, column: str | int | None = None, notes: Notes | None = None) -> Iterator[Tagged]:
    """The sentences of files, with the tags of entities in BIO whatever scheme a file has; plain tags stay.

    `column` says where the tags are: in columns a number from 1, else it is the last one; in CoNLL-U one of its names,
    else upos; in JSON the name of a field. The scheme is found in a first reading of each file. Tags that break it are
    noted, and read as conlleval does: I-PER after O begins an entity.
    """
    notes = notes if notes is not None else Notes()
    for path in find_sources(paths, KINDS):
        read, plain = reader_of(path, column)
        if plain:
            yield from read(notes)
        else:
            yield from _in_bio(path, read, notes)


def require_tags(paths: Paths) -> None:
    """Refuse files in which, as their first row shows, a text has one label and not one for each word."""
    for path in find_sources(paths, KINDS):
        if path == STDIN:  # it cannot be read twice
            continue
        if (label := _label_of_row(path)) is not None:
            raise BothwaysError(
                f"{name_of(path)} has no tags: it holds one label a row, under {label}, and a tagger learns and "
                f"answers one for each word; for one label a row the task is classify"
            )


def _label_of_row(path: Path) -> str | None:
    """The column with the one label that each text has; None if the file is of another kind."""
    kind = kind_of(path)
    if kind not in (*WITH_HEADER, ".txt", *_JSON) or not (head := _head(path, ".tsv" if kind == ".txt" else kind)):
        return None
    row, label = head[0], head[1].label
    is_one = label is not None and isinstance(row[label], str | int | float)
    return label if is_one and not any(isinstance(value, list) for value in row.values()) else None


def holds_texts(path: Path) -> bool:
    """Whether a table has a text in each row, and not a word: any .csv, and a .tsv that names its columns."""
    if kind_of(path) != ".tsv":
        return kind_of(path) == ".csv"
    if not (head := _head(path, ".tsv")):
        return False
    row, layout = head
    return layout.label is not None or any(" " in row[name] for text in layout.texts for name in text)


def _head(path: Path, kind: str) -> tuple[dict[str, Any], Layout] | None:
    """A file's first row, and which of its columns are text and label; None if no names say so."""
    lines = read_plain(path) if kind in _JSON else islice(read_plain(path), _LINES)
    try:
        _, row = next(rows_of(path, kind, lines, Notes()), ("", {}))
        return row, find_layout(Columns(), list(row), "")
    except BothwaysError:  # columns of words have no names
        return None


def read_sentences(path: Path, notes: Notes) -> Iterator[Tagged]:
    """The sentences of lines of JSON, whatever tags they have, in one reading: to be answered."""
    return _rows(path, ".jsonl", read_plain(path), None, notes)


def _in_bio(path: Path, read: Reader, notes: Notes) -> Iterator[Tagged]:
    seen: dict[str, str] = {}

    def golds() -> Iterator[tuple[str, ...]]:
        for example in read(Notes()):
            gold = example.gold or ()
            seen.update(dict.fromkeys(set(gold) - seen.keys(), example.where))
            yield gold

    try:
        scheme = detect(golds())
    except BothwaysError as error:
        raise error if name_of(path) in str(error) else BothwaysError(f"{name_of(path)}: {error}") from error
    odd = [tag for tag in seen if parse(tag) is None]
    if odd and any(tag[1:2] == "-" and parse(tag) for tag in seen):
        notes.add(
            "mixed-tags",
            f"{seen[odd[0]]} with {odd[0]}",
        )
    for example in read(notes):
        if example.gold is None or scheme == "plain":
            yield example
            continue
        for _, problem in problems(example.gold, scheme):
            notes.add("broken-tags", f"{example.where} ({problem})", scheme)
        yield replace(example, gold=to_bio(example.gold, scheme))


def reader_of(path: Path, column: str | int | None) -> tuple[Reader, bool]:
    """How to read a file, and whether its tags are plain in any case."""
    name, kind = name_of(path), kind_of(path)
    held = list(read_plain(path)) if path == STDIN else None  # it cannot be read twice

    def lines() -> Iterable[str]:
        return read_plain(path) if held is None else held

    first = "" if kind == ".parquet" else _first(lines())
    if kind not in _JSON:
        kind = ".jsonl" if first.startswith("{") else ".conllu" if kind == ".conllu" or is_conllu(first) else ""
    if kind == ".conllu":
        return lambda notes: read_conllu(name, lines(), str(column or "upos").lower(), notes), True
    if kind:
        return lambda notes: _rows(path, kind, lines(), column, notes), False
    return lambda notes: _columns(name, lines(), column), False


def _first(lines: Iterable[str]) -> str:
    """The first line that says what a file is: not blank, and no comment."""
    return next((line.strip("\r\n ") for line in lines if line.strip() and not line.startswith("# ")), "")


def _columns(name: str, lines: Iterable[str], column: str | int | None) -> Iterator[Tagged]:
    """Words in lines of columns, with a blank line after each sentence; with one column they have no tags."""
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
        if line.startswith(("-DOCSTART-", "# id ")):  # the second is MultiCoNER's
            continue
        cells = line.split("\t") if "\t" in line else _BLANKS.split(line)
        width = width or len(cells)
        if len(cells) != width or index >= width:
            raise BothwaysError(f"{name}, line {number} has {len(cells)} columns: expected {max(width, index + 1)}")
        begin = begin if words else number
        words.append(cells[0] or " ")  # a space is a character too, where every one has a line
        tags.append(cells[index])
    if words:
        yield _sentence(words, tags if width > 1 else None, f"{name}, line {begin}")


def _number(column: str | int) -> int:
    if not str(column).isdecimal() or int(column) < 1:
        raise BothwaysError(f"the column of tags cannot be {column!r} in a file of columns: expected a number from 1")
    return int(column)


def _rows(path: Path, kind: str, lines: Iterable[str], column: str | int | None, notes: Notes) -> Iterator[Tagged]:
    """Rows of JSON or .parquet, each with tokens and tags, or with a text and the places of entities in it."""
    for where, row in rows_of(path, kind, lines, notes):
        field = None if column is None else str(column)
        if field is not None and field not in row:
            raise BothwaysError(f"{where} has no field {field!r}: its fields are {', '.join(row)}")
        key = next((name for name in WORDS if _texts(row.get(name))), None)
        if key:
            yield _tokens(row, key, field or _tag_field(row, key, where), where, notes)
        elif isinstance(row.get("text"), str):
            if (example := read_spans(row, field or find_field(row), where, notes)) is not None:
                yield example
        else:
            raise BothwaysError(
                f"{where} has neither tokens nor a text: its fields are {', '.join(row)}, and one of "
                f"{', '.join((*WORDS, 'text'))} was expected, with {', '.join(dict.fromkeys((*TAGS, *FIELDS)))}"
            )


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _tag_field(row: dict[str, Any], key: str, where: str) -> str | None:
    found = [name for name in TAGS if name != key and isinstance(row.get(name), list)]
    if len(found) > 1:
        raise BothwaysError(f"{where} could have its tags in {' or '.join(found)}: name one with --column")
    return found[0] if found else None


def _tokens(row: dict[str, Any], key: str, field: str | None, where: str, notes: Notes) -> Tagged:
    words = [mended(word) for word in row[key]]
    if field is None:
        return _sentence(words, None, where)
    tags = row[field]
    if not isinstance(tags, list) or not all(isinstance(tag, str | int) for tag in tags):
        raise BothwaysError(f"{where} has no list of tags in {field}")
    if len(tags) != len(words):
        raise BothwaysError(f"{where} has {len(words)} words in {key} and {len(tags)} tags in {field}")
    if any(isinstance(tag, int) for tag in tags):
        notes.add("numeric-tags", where)
    return _sentence(words, list(map(str, tags)), where)


def _sentence(words: list[str], tags: list[str] | None, where: str) -> Tagged:
    text, places = join_words(words)
    return Tagged(text, places, None if tags is None else tuple(tags), where)
