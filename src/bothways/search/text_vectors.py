"""The vectors of texts, of length 1, in a temporary file: memory does not grow with the number of texts."""

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bothways.errors import BothwaysError
from bothways.predict.roles import Role, RoleEncoder
from bothways.progress import Watch
from bothways.search.products import Matrix, Rows, release

_ROWS_AT_ONCE = 4096


@contextmanager
def stored_vectors(
    texts: Sequence[str], encoder: RoleEncoder, watch: Watch, what: str = "encoding", role: Role | None = None
) -> Iterator[Matrix]:
    """The vectors of texts as a memory-mapped (texts, width) of rows of length 1. Warns if texts were cut."""
    lost, names = encoder.tally.cut, ", ".join(name for name, text in encoder.prompts.items() if text)
    if role is None and encoder.prompts.get("query"):
        warnings.warn(f"this model was trained with prompts ({names}), and these texts get none", stacklevel=1)
    with stored(encoder.blocks(watch(texts, what), role), len(texts)) as matrix:
        if encoder.tally.cut > lost:
            warnings.warn(str(encoder.tally), stacklevel=1)
        yield matrix


@contextmanager
def given_vectors(vectors: Matrix, rows: Rows) -> Iterator[Matrix]:
    """Some rows of given vectors, in the same form."""
    if vectors.ndim != 2:
        raise BothwaysError(f"the vectors are {vectors.shape}: expected a matrix", "bad-shape", vectors.shape)

    def parts() -> Iterator[Matrix]:
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            yield vectors[rows[begin : begin + _ROWS_AT_ONCE]]
            release(vectors)

    with stored(parts(), len(rows)) as matrix:
        yield matrix


@contextmanager
def stored(blocks: Iterable[Matrix], rows: int) -> Iterator[Matrix]:
    """Vectors divided by their length, in a temporary file that is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="bothways-") as folder:
        path, width = Path(folder) / "vectors", 0
        with path.open("wb") as file:
            for block in blocks:
                width = block.shape[1]
                lengths = np.sqrt(np.square(block.astype(np.float64)).sum(1, keepdims=True))
                file.write((block / np.maximum(lengths, 1e-12)).astype("<f4").data)
        if not rows:
            yield np.zeros((0, width), np.float32)
            return
        yield np.memmap(path, "<f4", "r", shape=(rows, width))


def require_match(texts: Sequence[str], vectors: Matrix | None) -> None:
    """Refuse vectors that are not one for each text."""
    if vectors is not None and len(vectors) != len(texts):
        raise BothwaysError(
            f"there are {len(texts):,} texts and {len(vectors):,} vectors: expected as many",
            "length-mismatch",
            (len(texts), len(vectors)),
        )


@dataclass(frozen=True)
class Distinct:
    """Equal texts count once: each stands for all texts that are equal to it."""

    texts: list[str]
    first: Rows
    """The number of each one's first occurrence."""
    owners: Rows
    """For every text, the number of the distinct text that it is equal to."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Distinct":
        numbers: dict[str, int] = {}
        owners = np.fromiter((numbers.setdefault(text, len(numbers)) for text in texts), np.int64, len(texts))
        first = np.full(len(numbers), len(texts), np.int64)
        np.minimum.at(first, owners, np.arange(len(texts)))
        return cls(list(numbers), first, owners)
