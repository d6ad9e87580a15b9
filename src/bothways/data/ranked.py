"""Reads queries with their documents, as pairs with a relevance: the training data of rerankers.

| rows                                     | pairs                                                                  |
|------------------------------------------|------------------------------------------------------------------------|
| query, document, label                   | one, as in `read_texts_labelled`                                       |
| query, positive, negative, negative_2 …  | one for each document: positives have the label 1, negatives 0         |
| query, documents, labels (two lists)     | one for each document                                                  |

A positive or negative column may hold one text or a list of texts.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bothways.data.examples import Text
from bothways.data.notes import Notes, row_error
from bothways.data.sources import ROWS, find_sources, first_rows, open_json, rows_of, text_of
from bothways.data.texts import read_texts_labelled
from bothways.errors import BothwaysError, name_list
from bothways.text.columns import NEGATIVE, POSITIVE, Columns, named_like, plain_name
from bothways.text.same_text import is_blank
from bothways.text.streams import STDIN

_QUERIES = ("query", "anchor", "question", "text")
_DOCUMENTS = ("documents", "docs", "passages")
_LABELS = ("labels", "label", "scores")


def read_ranked(files: Sequence[Path | str], columns: Columns, notes: Notes) -> Iterator[Text]:
    """The pairs of files, each in one of the forms above. Where the user names a pair or label column, in the first."""
    for path in find_sources(files, (*ROWS, ".txt")):
        first = [] if path == STDIN or columns.pair or columns.label else first_rows(path)
        if first and isinstance(first[0], dict) and _is_ranked(first[0]):
            yield from _read(path, columns, notes)
        else:
            yield from read_texts_labelled([path], columns, "auto", notes)


def _is_ranked(row: dict[str, Any]) -> bool:
    return bool(named_like(row, POSITIVE)) or any(isinstance(row.get(name), list) for name in _DOCUMENTS)


def _read(path: Path, columns: Columns, notes: Notes) -> Iterator[Text]:
    kind, lines = open_json(path)
    for where, row in rows_of(path, kind, lines, notes):
        query = text_of(row[_query_column(row, columns, where)], where, "the query")
        for document, gold in _documents(row, where):
            if is_blank(query) or is_blank(document):
                notes.add("empty-text", where)
            yield Text((query, document), gold, where)


def _query_column(row: dict[str, Any], columns: Columns, where: str) -> str:
    wanted = (columns.text,) if columns.text else _QUERIES
    found = next((own for name in wanted for own in row if plain_name(own) == plain_name(name)), None)
    if found is None:
        says = f"{where} has no column for the query ({name_list(row)}): name it with `text`"
        raise BothwaysError(says, "no-text-column", tuple(row))
    return found


def _documents(row: dict[str, Any], where: str) -> Iterator[tuple[str, float]]:
    """The documents of a row with their labels."""
    for pattern, gold in ((POSITIVE, 1.0), (NEGATIVE, 0.0)):
        for name in named_like(row, pattern):
            value = row[name]
            for text in value if isinstance(value, list) else [value]:
                if text is not None and text != "":  # rows may have different numbers of negatives
                    yield text_of(text, where, name), gold
    for name in _DOCUMENTS:
        if not isinstance(texts := row.get(name), list):
            continue
        labels = next((row[key] for key in _LABELS if isinstance(row.get(key), list)), None)
        if labels is None or len(labels) != len(texts) or not all(isinstance(one, int | float) for one in labels):
            raise row_error(
                where, f"has {len(texts)} {name}: expected a list of as many numbers in labels", "bad-label"
            )
        yield from ((text_of(text, where, name), float(gold)) for text, gold in zip(texts, labels, strict=True))
