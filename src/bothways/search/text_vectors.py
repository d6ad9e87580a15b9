"""The vectors of texts, of length 1, in a temporary file: memory does not grow with the number of texts."""

import tempfile
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.engine.engine import Engine
from bothways.engine.reader import Tally
from bothways.errors import BothwaysError
from bothways.model.device import Device, Precision
from bothways.model.model import Model
from bothways.model.static import StaticModel, is_static, load_static
from bothways.predict.encode import encode_blocks
from bothways.predict.encode_options import Long
from bothways.predict.features import Features, text_recipe
from bothways.predict.roles import PROMPT_NAMES, Role
from bothways.progress import Watch
from bothways.search.products import Matrix, Rows, release

AnyModel = Model | StaticModel | Path | str | None
"""A model, a static model, or the folder of one; None: the model in the box."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class TextEncoder:
    """What turns texts into vectors: an encoder, or a static model."""

    source: Engine | StaticModel
    long: Long = "error"

    @classmethod
    def open(
        cls, model: AnyModel, *, long: Long = "error", device: Device | None = None, dtype: Precision | None = None
    ) -> "TextEncoder":
        """Open a model folder, or take a model. For `long`, `device` and `dtype` see `encode`."""
        if isinstance(model, str | Path) and is_static(Path(model)):
            model = load_static(model)
        if isinstance(model, StaticModel):
            return cls(model, long)
        return cls(Engine(model, device=device, dtype=dtype), long)

    def blocks(self, texts: Iterable[str], prompt_name: str | None = None) -> Iterator[NDArray[np.float32]]:
        """The vectors of some texts at a time. Warns at the end if texts were cut."""
        if isinstance(self.source, StaticModel):
            yield from self.source.blocks(texts)
            return
        tally, recipe = Tally(), text_recipe(self.source.model, Features(long=self.long), prompt_name=prompt_name)
        yield from encode_blocks(texts, self.source, recipe, tally)
        if tally.cut:
            warnings.warn(str(tally), stacklevel=2)

    def prompt_name(self, role: Role) -> str | None:
        """The name of the folder's prompt for a role; None if it has none."""
        sentence = None if isinstance(self.source, StaticModel) else self.source.model.sentence
        known = sentence.prompts if sentence is not None else {}
        return next((name for name in PROMPT_NAMES[role] if name in known), None)


@contextmanager
def stored_vectors(
    texts: Sequence[str], encoder: TextEncoder, watch: Watch, what: str = "encoding", prompt_name: str | None = None
) -> Iterator[Matrix]:
    """The vectors of texts as a memory-mapped (texts, width) of rows of length 1."""
    with stored(encoder.blocks(watch(texts, what), prompt_name), len(texts)) as matrix:
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
