"""Segments: documents, their passages and their vectors on disk, in a folder that appears as a whole.

documents.jsonl   a line for each document: id and text
lines.npy         (documents + 1,) where each line begins
ids.npy           (documents,) 64-bit hashes of the ids
passages.npy      (rows, 3) the document of each passage, its first character and the one after its last
vectors.npy       (rows, W) the vector of each passage, in fp32
counts.json       what was read to make it
codes.npy, ranges.npy, graph.usearch   faster ways to candidates, if there are any
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.ragged import ragged
from bothways.search.documents import Hashes, hash_of
from bothways.search.hnsw import GRAPH, Graph, write_graph
from bothways.search.npy import NpyWriter, damaged, read_npy
from bothways.search.products import release
from bothways.search.quantize import CODES, RANGES, Codes, write_codes
from bothways.search.search_options import Quantize

Passages = NDArray[np.int64]
Vectors = NDArray[np.float32]
_FILES = ("documents.jsonl", "lines.npy", "ids.npy", "passages.npy", "vectors.npy", "counts.json")
FILES = (*_FILES, CODES, RANGES, GRAPH)
_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class DocumentBlock:
    """Some documents with their passages."""

    lines: Sequence[bytes]
    """As in documents.jsonl."""
    ids: Hashes
    passages: Passages
    """(rows, 3), with documents counted from the first of the block."""
    vectors: Vectors
    """(rows, W)."""


@dataclass(frozen=True)
class Faster:
    """The faster ways to candidates that a segment gets."""

    quantize: Quantize | None = None
    graph: bool = False


_NOTHING = Faster()


def write_segment(
    folder: Path, blocks: Iterable[DocumentBlock], width: int, tally: Tally, faster: Faster = _NOTHING
) -> None:
    """Write a segment by blocks, atomically. Counts of `tally` are those after the last block."""
    with atomic.new_folder(folder, replaces=FILES) as fresh:
        with _writers(fresh, width) as (text, lines, ids, passages, vectors):
            size = 0
            lines.add(np.zeros(1, np.int64))
            for block in blocks:
                first = np.array([ids.rows, 0, 0])
                text.writelines(block.lines)
                ends = size + np.cumsum([len(line) for line in block.lines], dtype=np.int64)
                size = int(ends[-1]) if len(ends) else size
                lines.add(ends)
                ids.add(block.ids)
                passages.add(block.passages + first)
                vectors.add(block.vectors)
        (fresh / "counts.json").write_text(json.dumps(vars(tally)) + "\n", encoding="utf-8")
        if faster.quantize or faster.graph:
            found = np.load(fresh / "vectors.npy", mmap_mode="r")
            if faster.quantize:
                write_codes(fresh, found, faster.quantize)
            if faster.graph:
                write_graph(fresh, found)


@contextmanager
def _writers(folder: Path, width: int) -> Iterator[tuple[Any, NpyWriter, NpyWriter, NpyWriter, NpyWriter]]:
    with ExitStack() as stack:
        text = stack.enter_context((folder / "documents.jsonl").open("wb"))
        kinds: Mapping[str, tuple[Any, int]] = {
            "lines": (np.int64, 0),
            "ids": (np.uint64, 0),
            "passages": (np.int64, 3),
            "vectors": (np.float32, width),
        }
        lines, ids, passages, vectors = (
            stack.enter_context(NpyWriter(folder / f"{name}.npy", *kind)) for name, kind in kinds.items()
        )
        yield text, lines, ids, passages, vectors


class Segment:
    """A segment that is read. Its arrays are memory-mapped."""

    def __init__(self, folder: Path, deleted: Iterable[int] = ()) -> None:
        missing = next((name for name in _FILES if not (folder / name).exists()), None)
        if missing:
            raise BothwaysError(f"{folder / missing} is missing: build the index again", "no-file", folder / missing)
        self._folder = folder
        self.ids: Hashes = read_npy(folder / "ids.npy", [np.uint64], None)
        self.lines: NDArray[np.int64] = read_npy(folder / "lines.npy", [np.int64], len(self.ids) + 1)
        self.passages: Passages = read_npy(folder / "passages.npy", [np.int64], None, 3)
        self.vectors: Vectors = read_npy(folder / "vectors.npy", [np.float32], len(self.passages), None)
        size = (folder / "documents.jsonl").stat().st_size
        if self.lines[0] != 0 or self.lines[-1] != size:
            raise damaged(folder / "lines.npy")
        self._text = np.memmap(folder / "documents.jsonl", np.uint8, "r") if size else np.zeros(0, np.uint8)
        self.tally = _read_tally(folder / "counts.json")
        """What was read to make it."""
        self.live = np.ones(len(self.ids), np.bool_)
        """(documents,) False for those that were deleted."""
        try:
            self.live[np.array([range(len(self.ids))[number] for number in deleted], np.int64)] = False
        except (IndexError, TypeError) as error:
            raise damaged(folder.parents[1] / "manifest.json") from error
        self.codes = Codes(folder) if (folder / CODES).exists() else None
        self.graph = Graph(folder, self.vectors.shape[1]) if (folder / GRAPH).exists() else None

    @cached_property
    def first_rows(self) -> NDArray[np.int64]:
        """(documents + 1,) the first passage of each document."""
        return np.searchsorted(self.passages[:, 0], np.arange(len(self.ids) + 1))

    def line(self, document: int) -> bytes:
        """The line of a document in documents.jsonl."""
        return self._text[self.lines[document] : self.lines[document + 1]].tobytes()

    def document(self, document: int) -> tuple[str, str]:
        """The id and the text of a document."""
        try:
            found = json.loads(self.line(document))
            return str(found["id"]), str(found["text"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise damaged(self._folder / "documents.jsonl") from error

    def document_of(self, row: int) -> int:
        """The document of a passage."""
        found = int(self.passages[row, 0])
        if not 0 <= found < len(self.ids):
            raise damaged(self._folder / "passages.npy")
        return found

    def find(self, id: str) -> int | None:
        """The number of the document with this id, unless it was deleted."""
        for place in np.flatnonzero((self.ids == np.uint64(hash_of(id))) & self.live).tolist():
            if self.document(place)[0] == id:
                return int(place)
        return None

    def blocks(self) -> Iterator[DocumentBlock]:
        """The documents that were not deleted, some at a time."""
        first = 0
        while first < len(self.ids):
            # As many documents as have so many passages, and at least one.
            last = int(np.searchsorted(self.first_rows, self.first_rows[first] + _ROWS_AT_ONCE, "right")) - 1
            last = min(max(last, first + 1), first + _ROWS_AT_ONCE, len(self.ids))
            yield self._block(first + np.flatnonzero(self.live[first:last]))
            self.release()
            first = last

    def texts(self) -> Iterator[tuple[int, str]]:
        """The numbers and texts of the documents that were not deleted."""
        for count, document in enumerate(np.flatnonzero(self.live).tolist()):
            if count % _ROWS_AT_ONCE == 0:
                self.release()
            yield document, self.document(document)[1]

    def release(self) -> None:
        """Give what was read of the largest files back to the system, so that memory stays flat."""
        release(self.vectors)
        release(self._text)

    def _block(self, documents: NDArray[np.int64]) -> DocumentBlock:
        begins, ends = self.first_rows[documents], self.first_rows[documents + 1]
        rows = ragged(begins, ends - begins)
        passages = np.array(self.passages[rows])
        passages[:, 0] = np.repeat(np.arange(len(documents)), ends - begins)
        lines = [self.line(document) for document in documents.tolist()]
        return DocumentBlock(lines, self.ids[documents], passages, self.vectors[rows])


def _read_tally(path: Path) -> Tally:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        total = Tally()
        total.add(Tally(**found))
        return total
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(path) from error


def line_of(id: str, text: str) -> bytes:
    """A document as a line of documents.jsonl."""
    return (json.dumps({"id": id, "text": text}, ensure_ascii=False) + "\n").encode()
