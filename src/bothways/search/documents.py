"""Reads the documents of a corpus: lines of text, rows of tables and JSON, and the files of a folder."""

import glob
import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.notes import Notes, row_error
from bothways.data.retrieval import Document
from bothways.data.sources import ROWS, Paths, kind_of, name_of, read_plain, rows_of, text_of
from bothways.errors import BothwaysError, name_list
from bothways.text.arrow import dataset_folder
from bothways.text.columns import find_text, first_like
from bothways.text.document_files import DOCUMENTS, is_document, is_readable, read_document
from bothways.text.files import files_of_kinds, is_pattern, no_known_files
from bothways.text.streams import COMPRESSED, STDIN

_KINDS = (*DOCUMENTS, *ROWS)
_IDS, _TITLES = ("_id", "id", "docid", "编号"), ("title", "标题")

Hashes = NDArray[np.uint64]
"""64 bits of a hash of each id: 8 bytes a document, where the ids themselves would fill the memory."""
ReadAgain = Callable[[], Iterable[Document]]


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus."""

    path: Path
    id: str = ""
    """The id of the one document that this file is; empty: it has one document for each line or row."""


def find_corpus(paths: Paths, but: Path) -> list[CorpusFile]:
    """The files that these paths stand for: files, folders, and patterns such as `news/*.jsonl`.

    A folder in BEIR's layout is its corpus.jsonl. In any other folder each .txt, .md, .html and .pdf file is a
    document. Files in the folder `but` are left out: it is the index. A file named twice comes once.
    """
    named: list[CorpusFile] = []
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if path == STDIN:
            raise BothwaysError("a corpus is read twice, and standard input once: put it into a file", "stdin-once")
        if path.is_dir() and not dataset_folder(path):
            named += _in_folder(path, but)
        elif is_pattern(path):
            if not (names := sorted(glob.glob(str(path), recursive=True))):
                raise no_known_files(path, ", ".join(_KINDS))
            named += [_one(Path(name)) for name in names]
        elif path.exists():
            named.append(_one(path))
        else:
            raise BothwaysError(f"there is no file {path}", "no-file", path)
    found: dict[Path, CorpusFile] = {}
    for file in named:
        if but.resolve() not in (place := file.path.resolve()).parents:
            found.setdefault(place, file)
    if not found:
        raise BothwaysError("no input file was given", "no-input")
    return list(found.values())


def _in_folder(folder: Path, but: Path) -> list[CorpusFile]:
    for suffix in ("", *COMPRESSED):
        if (beir := folder / f"corpus.jsonl{suffix}").is_file():
            return [CorpusFile(beir)]
    files = files_of_kinds(folder, lambda file: is_readable(file) or kind_of(file) in ROWS, but)
    if not files:
        raise no_known_files(folder, ", ".join(_KINDS))
    return [CorpusFile(file, file.relative_to(folder).as_posix() if is_document(file) else "") for file in files]


def _one(file: Path) -> CorpusFile:
    if not is_document(file) and kind_of(file) not in ROWS:
        raise BothwaysError(
            f"{file} is not of a known kind: expected {', '.join(_KINDS)}, or .gz or .xz of it",
            "unknown-file-kind",
            file,
        )
    return CorpusFile(file, file.name if is_document(file) and kind_of(file) != ".txt" else "")


class Corpus:
    """The documents of some files, as a stream that can be read several times.

    Lines of .txt are documents, and blank lines none. Rows have a text under `field`, or in the column with a usual
    name, before which their `title` is put, and an id under `_id` or `id`. Documents without an id have the number of
    their line or row as id, counted from `first` + 1 through all files.
    """

    def __init__(self, files: Sequence[CorpusFile], field: str | None = None, first: int = 0) -> None:
        self.files, self.field, self.first = files, field, first
        self.firsts: list[int] = []
        """The number before the first document of each file, after all was read."""
        self.last = first
        """The last number, after all was read."""
        self.count = 0
        """The number of documents, after all was read."""

    def __iter__(self) -> Iterator[Document]:
        number, firsts, count = self.first, [], 0
        for file in self.files:
            first = number
            firsts.append(first)
            for number, document in self._read(file, first):  # noqa: B007 - the last one is used
                if document is not None:
                    count += 1
                    yield document
        self.firsts, self.last, self.count = firsts, number, count

    def _read(self, file: CorpusFile, first: int) -> Iterator[tuple[int, Document | None]]:
        """The documents of a file with their numbers; None for a blank line."""
        kind, name = kind_of(file.path), name_of(file.path)
        if file.id:
            text = read_document(file.path).replace("\r\n", "\n").strip()
            yield first + 1, Document(file.id, text, name)
        elif kind == ".txt":
            for line, text in enumerate(map(str.strip, read_plain(file.path)), 1):
                found = Document(str(first + line), text, f"{name}, line {line}") if text else None
                yield first + line, found
        else:
            rows = rows_of(file.path, kind, read_plain(file.path), Notes(whole=True))
            names: tuple[str, ...] = ()
            for number, (where, row) in enumerate(rows, first + 1):
                id_name = first_like(_IDS, row)
                names = names or find_text(self.field, [own for own in row if own != id_name], name)
                yield number, Document(_id_of(row, where, number), _text_of(row, where, names), where)


def _id_of(row: dict[str, Any], where: str, number: int) -> str:
    name = first_like(_IDS, row)
    if name is None:
        return str(number)
    value = row[name]
    if not isinstance(value, str | int) or value == "":
        raise row_error(where, f"has no id under {name!r}: expected a text or a whole number", "no-id")
    return str(value)


def _text_of(row: dict[str, Any], where: str, names: tuple[str, ...]) -> str:
    if missing := next((name for name in names if name not in row), None):
        has = name_list(row) or "none"
        raise row_error(where, f"has no text under {missing!r}: its fields are {has}", "not-text")
    title = first_like(_TITLES, row)
    parts = names if title is None or title in names else (title, *names)
    return " ".join(text for name in parts if (text := text_of(row.get(name), where, name))).strip()


# ---------------------------------------------------------------------- ids


def hash_of(id: str) -> int:
    """64 bits of a hash of an id."""
    return int.from_bytes(hashlib.blake2b(id.encode(), digest_size=8).digest(), "little")


def hashes_of(documents: Iterable[Document]) -> Hashes:
    """The hash of each id, in order."""
    return np.frombuffer(array("Q", (hash_of(document.id) for document in documents)), np.uint64)


def refuse_repeated(hashes: Hashes, known: Hashes, read: ReadAgain, where: Path) -> None:
    """Refuse ids that two documents have, or a document of the corpus and one that the index `where` has.

    `read` reads the corpus once more: that is needed only if there is such an id.
    """
    values, counts = np.unique(hashes, return_counts=True)
    suspects = set(values[(counts > 1) | np.isin(values, known)].tolist())
    if not suspects:
        return
    old = set(np.intersect1d(values, known).tolist())
    seen: dict[str, str] = {}
    for document in read():
        if (value := hash_of(document.id)) not in suspects:
            continue
        if value in old:
            says = f"has the id {document.id!r}, which {where} already has: delete that document first"
            raise row_error(document.where, says, "repeated-id")
        if document.id in seen:
            says = f"has the id {document.id!r} of {seen[document.id]}: give each document its own id"
            raise row_error(document.where, says, "repeated-id")
        seen[document.id] = document.where
