"""Reads a retrieval collection in BEIR's layout: corpus.jsonl, queries.jsonl and qrels/test.tsv."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.data.notes import Notes, row_error
from bothways.data.sources import name_of, peek, read_plain, rows_of, text_of
from bothways.errors import BothwaysError, name_list
from bothways.text.same_text import is_blank
from bothways.text.streams import COMPRESSED
from bothways.text.tables import Row

_HEADER = ["query-id", "corpus-id", "score"]
_TREC = ["query-id", "iteration", "corpus-id", "score"]
_GRADE = re.compile(r"([+-]?\d{1,9})(\.0*)?")
"""A relevance: 1, and 1.0 as pandas writes it."""


@dataclass(frozen=True)
class Document:
    """A document of the corpus."""

    id: str
    text: str
    """Title and text, joined by a space and without white space around them, as in BEIR."""
    where: str = ""
    """The file and line it came from."""

    @property
    def characters(self) -> int:
        return len(self.text)


@dataclass(frozen=True)
class Collection:
    """The judged queries of a collection, and the files that hold the rest."""

    queries: dict[str, str]
    """The text of each judged query by its id, in the order of the file."""
    judgements: dict[str, dict[str, int]]
    """By query and document: the relevance, 0 for a document that was judged as not relevant."""
    corpus_file: Path
    judgements_file: Path

    def documents(self, notes: Notes | None = None) -> Iterator[Document]:
        """Stream the corpus. Only ids are kept in memory.

        After the last document, judgements of documents that the corpus does not have are noted. It is an error if all
        are of this kind.
        """
        notes = notes if notes is not None else Notes()
        seen: set[str] = set()
        for where, row in _json_rows(self.corpus_file, seen):
            title = text_of(row.get("title"), where, "title")
            text = f"{title} {_text(row, where)}".strip()
            if not text:
                notes.add("empty-text", where)
            yield Document(str(row["_id"]), text, where)
        self._check_judged(seen, notes)

    def _check_judged(self, seen: set[str], notes: Notes) -> None:
        judged = {document for of_query in self.judgements.values() for document in of_query}
        if judged <= seen:
            return
        # The places of judgements are not kept, so the file is read again.
        rows = _judgement_rows(self.judgements_file)
        missing = [(where, document) for where, _, document, _ in rows if document not in seen]
        if judged.isdisjoint(seen):
            where, document = missing[0]
            says = f"judges the document {document!r}, and no judged document is in {self.corpus_file}"
            raise row_error(where, f"{says}: do the two files belong together?", "unknown-document")
        for where, document in missing:
            notes.add("unknown-document", where, document)


def read_collection(folder: Path | str, split: str = "test", notes: Notes | None = None) -> Collection:
    """Read the judged queries and the judgements of a folder in BEIR's layout; `documents` then streams the corpus.

    corpus.jsonl has `_id`, `title` (optional) and `text`, and queries.jsonl has `_id` and `text`. The judgements are in
    qrels/test.tsv or qrels_test.tsv, for a `split` called test: columns query-id, corpus-id and score with or without a
    header, or TREC's `query 0 document relevance`. Each file may be .gz or .xz. Queries without judgements are left
    out.
    """
    notes = notes if notes is not None else Notes()
    folder = Path(folder)
    if not folder.is_dir():
        raise BothwaysError(f"there is no folder {folder}", "no-folder", folder)
    corpus, asked = _find(folder, "corpus.jsonl"), _find(folder, "queries.jsonl")
    judged = _find(folder, f"qrels/{split}.tsv", f"qrels_{split}.tsv")
    judgements = _read_judgements(judged, notes)
    queries = {}
    seen: set[str] = set()
    for where, row in _json_rows(asked, seen):
        if (name := str(row["_id"])) in judgements:
            queries[name] = _text(row, where)
            if is_blank(queries[name]):
                notes.add("empty-text", where)
    for where, query, _, _ in _judgement_rows(judged) if queries.keys() < judgements.keys() else ():
        if query not in queries:
            raise row_error(where, f"judges the query {query!r}, which is not in {asked}", "unknown-query")
    return Collection(queries, judgements, corpus, judged)


def _find(folder: Path, *names: str) -> Path:
    """The first of these files that exists, plain or compressed."""
    for name in names:
        for suffix in ("", *COMPRESSED):
            if (path := folder / f"{name}{suffix}").is_file():
                return path
    wanted = f"{' or '.join(names)}, plain or as {' or '.join(COMPRESSED)}"
    raise BothwaysError(f"{folder} is not in BEIR's layout: expected a file {wanted}", "no-file", folder / names[0])


def _json_rows(path: Path, seen: set[str]) -> Iterator[Row]:
    """The rows of a file of JSON lines, each with an `_id` of its own, which is added to `seen`."""
    for where, row in rows_of(path, ".jsonl", read_plain(path), Notes()):
        name = row.get("_id")
        if not isinstance(name, str | int) or name == "":
            has = name_list(row) or "none"
            raise row_error(where, f"has no id under '_id': expected a text; its fields are {has}", "no-id")
        if str(name) in seen:
            raise row_error(where, f"has the _id {name!r} of an earlier row: remove one of the two", "repeated-id")
        seen.add(str(name))
        yield where, row
    if not seen:
        raise BothwaysError(
            f"{name_of(path)} is empty: expected lines of JSON with an _id and a text", "empty-file", path
        )


def _text(row: dict[str, Any], where: str) -> str:
    if "text" not in row:
        raise row_error(where, f"has no text under 'text': its fields are {name_list(row)}", "not-text")
    return text_of(row["text"], where, "text")


def _read_judgements(path: Path, notes: Notes) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for where, query, document, grade in _judgement_rows(path):
        mine = found.setdefault(query, {})
        if mine.get(document, grade) != grade:
            says = f"gives {document!r} the relevance {grade} for {query!r}, and an earlier line gives {mine[document]}"
            raise row_error(where, f"{says}: keep one of the two", "repeated-judgement")
        if document in mine:
            notes.add("repeated-judgement", where)
        mine[document] = grade
    if not found:
        raise BothwaysError(f"{path} has no judgements: expected lines after its header", "empty-file", path)
    return found


def _judgement_rows(path: Path) -> Iterator[tuple[str, str, str, int]]:
    """The place, the query, the document and the relevance of each judgement."""
    first, lines = peek(read_plain(path))
    if "\t" not in first:
        lines = _with_tabs(lines)
    for where, row in rows_of(path, ".tsv", lines, Notes(whole=True), _columns):
        if not set(_HEADER) <= row.keys():
            says = f"has the columns {name_list(row)}: expected {name_list(_HEADER)}, or TREC's four columns"
            raise row_error(where, says, "no-column")
        grade = _GRADE.fullmatch(row["score"].strip())
        if not grade:
            raise row_error(where, f"has the relevance {row['score']!r}: expected an integer", "bad-relevance")
        yield where, row["query-id"], row["corpus-id"], int(grade[1])


def _with_tabs(lines: Iterable[str]) -> Iterator[str]:
    return ("\t".join(line.split()) for line in lines)


def _columns(first: list[str]) -> list[str] | None:
    """The columns of judgements without a header: their last cell is a number."""
    names = {3: _HEADER, 4: _TREC}.get(len(first))
    return names if names and _GRADE.fullmatch(first[-1].strip()) else None
