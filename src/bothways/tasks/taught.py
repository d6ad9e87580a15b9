"""Vectors of the training texts by other models: teachers to learn from, or a guide that finds false negatives.

They are computed once, before the first step. S different texts · W widths of all models.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways.data.examples import Text
from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Engine
from bothways.engine.reader import Reader, WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import F, Tensor, torch
from bothways.model.batch import Batch
from bothways.progress import Watch
from bothways.tasks.embed_settings import EmbedSettings, loss_of
from bothways.tasks.encoded import EncodedChunk

if TYPE_CHECKING:
    from torch import nn


class Taught:
    """The vectors of texts by one model or several, of which each text has all, one after the other.

    Each model's vector has the length 1, so that the cosine of two texts is the mean of the models' cosines.
    """

    def __init__(self, folders: Sequence[str], texts: Iterable[str], device: "torch.device", watch: Watch) -> None:
        self.rows: dict[str, int] = {}
        for text in texts:
            self.rows.setdefault(text, len(self.rows))
        parts = [_vectors(folder, list(self.rows), device, watch) for folder in folders]
        self.vectors = np.concatenate(parts, 1)
        """(S, W) in half precision, which keeps cosines to 1e-3."""

    @property
    def width(self) -> int:
        return int(self.vectors.shape[1])

    def of(self, rows: Sequence[int]) -> Tensor:
        """(texts, W)."""
        return torch.from_numpy(self.vectors[list(rows)]).float()


def texts_taught(settings: EmbedSettings, source: str, examples: Sequence[Any]) -> Iterator[str]:
    """The text that a teacher or guide reads for every text of every example of a file; none if its loss needs none."""
    if settings.teachers and loss_of(settings, source, examples) != "distill":
        return
    is_translated = settings.of(source).translations
    for example in examples:
        yield from example.texts[:1] * len(example.texts) if is_translated else example.texts


def _vectors(folder: str, texts: Sequence[str], device: "torch.device", watch: Watch) -> NDArray[np.float16]:
    """(S, width of the model)."""
    engine = Engine(folder, device=str(device), dtype="auto")
    model = engine.weights("a teacher")
    if model.sentence is None:
        raise BothwaysError(
            f"{folder} has no modules of sentence-transformers, which say how a vector is made", "no-task-head", folder
        )
    sentence = model.sentence
    reader = Reader(model, WindowSettings(sentence.max_length or 0, long="cut"), has_offsets=False)

    def read(some: list[Text], before: int) -> EncodedChunk:
        return EncodedChunk(some, reader([example.texts[0] for example in some], before))

    def forward(batch: Batch, chunk: EncodedChunk, picked: Indices) -> Tensor:
        pooled = sentence.pooling(engine.states(batch), batch)
        return F.normalize(sentence(pooled.to(next(sentence.parameters(), pooled).dtype)).float(), dim=1)

    found = np.empty((len(texts), sentence.width(model.config.encoder.width)), np.float16)
    given = (Text((text,)) for text in watch(texts, f"vectors by {Path(folder).name}"))
    done = 0
    for chunk, rows in engine.run(read_ahead(read, given, engine.device), forward):
        found[done : done + len(chunk)] = rows
        done += len(chunk)
    if reader.tally.cut:
        warnings.warn(f"vectors by {folder}: {reader.tally}", stacklevel=2)
    return found


def new_linear(inputs: int, outputs: int, seed: int, bias: bool = False) -> "nn.Linear":
    """A layer that only training needs, drawn by the seed of the run."""
    from torch import nn

    layer = nn.Linear(inputs, outputs, bias=bias)
    if bias:
        nn.init.zeros_(layer.bias)
    nn.init.normal_(layer.weight, std=inputs**-0.5, generator=torch.Generator().manual_seed(seed))
    return layer
