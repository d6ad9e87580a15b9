"""BM25: documents ranked by the words they share with a query. Needs the extra bm25 (bm25s)."""

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.errors import BothwaysError, missing_package
from bothways.search.npy import read_npy
from bothways.search.quantize import best_rows
from bothways.text.bm25 import K1, B, tokens

if TYPE_CHECKING:
    import bm25s

METHOD = "lucene"
_PARAMETERS = "params.index.json"
_OWN_FILES = ("documents.npy", "state.json")
_ARRAYS = tuple(f"{name}.csc.index.npy" for name in ("data", "indices", "indptr"))
FILES = (*_OWN_FILES, *_ARRAYS, _PARAMETERS, "vocab.index.json")
"""Those of a saved index. If no document has a word, bm25s has nothing to save."""


def has_bm25s() -> bool:
    """Whether the extra is installed."""
    try:
        import bm25s  # noqa: F401
    except ImportError:
        return False
    return True


def _bm25s() -> Any:
    if not has_bm25s():
        raise missing_package("BM25", "bm25s")
    import bm25s

    return bm25s


@dataclass(frozen=True)
class _TokenIds:
    """The tokens of all documents as bm25s reads them: 4 bytes each, and the list of one document at a time."""

    ids: "_Lists"
    vocab: dict[str, int]


@dataclass(frozen=True)
class _Lists:
    flat: NDArray[np.int32]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        for end in self.ends.tolist():
            yield self.flat[start:end].tolist()
            start = end


class Lexical:
    """The BM25 index of some documents, which are known by numbers."""

    def __init__(self, bm25: "bm25s.BM25 | None", documents: NDArray[np.int64]) -> None:
        self._bm25, self._documents = bm25, documents

    @classmethod
    def build(cls, documents: Iterable[tuple[int, str]]) -> "Lexical":
        """From the numbers and texts of documents, numbers ascending."""
        module = _bm25s()
        flat, ends, numbers = array("i"), array("q"), array("q")
        vocabulary: dict[str, int] = {}
        for number, text in documents:
            flat.extend([vocabulary.setdefault(token, len(vocabulary)) for token in tokens(text)])
            ends.append(len(flat))
            numbers.append(number)
        bm25 = None
        if vocabulary:
            bm25 = module.BM25(method=METHOD, k1=K1, b=B)
            lists = _Lists(np.frombuffer(flat, np.int32), np.frombuffer(ends, np.int64))
            bm25.index(_TokenIds(lists, vocabulary), create_empty_token=False, show_progress=False)
        return cls(bm25, np.array(numbers, np.int64))

    def save(self, folder: Path, state: object) -> None:
        """Write to an empty folder. `state`: what the documents were, for `open`."""
        if self._bm25 is not None:
            self._bm25.save(folder, show_progress=False)
        np.save(folder / "documents.npy", self._documents)
        (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")

    @classmethod
    def open(cls, folder: Path, state: object) -> "Lexical | None":
        """The index in a folder, memory-mapped; None if there is none of this state."""
        if not all((folder / name).exists() for name in _OWN_FILES):
            return None
        module = _bm25s()
        try:
            if json.loads((folder / "state.json").read_text(encoding="utf-8")) != state:
                return None
            bm25 = module.BM25.load(folder, mmap=True) if (folder / _PARAMETERS).exists() else None
            documents = read_npy(folder / "documents.npy", [np.int64], None)
            return cls(bm25, documents) if bm25 is None or _fits(bm25, documents) else None
        except Exception:  # bm25s and numpy raise errors of many kinds at damaged files: it is built again
            return None

    def top(self, query: str, k: int) -> tuple[list[int], list[float]]:
        """The k best documents with their scores. Documents without any word of the query are left out."""
        ids = self._bm25.get_tokens_ids(tokens(query)) if self._bm25 is not None else []
        if self._bm25 is None or not ids:
            return [], []
        try:
            scores: NDArray[np.float32] = self._bm25.get_scores_from_ids(ids)
        except (IndexError, ValueError, TypeError) as error:
            raise BothwaysError("the index of words is damaged: delete its folder bm25", "damaged-file") from error
        rows = best_rows(scores, k)
        rows = rows[scores[rows] > 0]
        return self._documents[rows].tolist(), scores[rows].tolist()


def _fits(bm25: "bm25s.BM25", documents: NDArray[np.int64]) -> bool:
    """Whether the arrays of a loaded index belong together."""
    data, rows, ends = (bm25.scores[name] for name in ("data", "indices", "indptr"))
    return (
        data.ndim == rows.ndim == ends.ndim == 1
        and data.dtype == np.float32
        and len(data) == len(rows) == ends[-1]
        and bool(np.all(np.diff(ends) >= 0))
        and bm25.scores["num_docs"] == len(documents)
        and len(ends) > max(bm25.vocab_dict.values())
    )


def best_passage(query: str, passages: Sequence[str]) -> int:
    """The passage with the most different words of the query, and of these the one with the most in all."""
    wanted = set(tokens(query))
    found = [[token for token in tokens(passage) if token in wanted] for passage in passages]
    return max(range(len(passages)), key=lambda i: (len(set(found[i])), len(found[i]), -i))
