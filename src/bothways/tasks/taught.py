"""Vectors of the training texts by other models: teachers to learn from, or a guide that finds false negatives.

They are computed once, before the first step. S different texts · W widths of all models.
"""

import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bothways import atomic
from bothways.data.examples import Text
from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Engine
from bothways.engine.reader import Reader, WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError
from bothways.lazy import F, Tensor, torch
from bothways.model.batch import Batch
from bothways.model.fingerprint import fingerprint
from bothways.progress import Watch
from bothways.tasks.embed_settings import EmbedSettings, loss_of
from bothways.tasks.encoded import EncodedChunk

if TYPE_CHECKING:
    from torch import nn

_BLOCK = 65_536  # rows of vectors that are read at a time


class Taught:
    """The vectors of texts by one model or several, of which each text has all, one after the other.

    Each model's vector has the length 1, so that the cosine of two texts is the mean of the models' cosines.
    """

    def __init__(
        self,
        folders: Sequence[str],
        texts: Iterable[str],
        device: "torch.device",
        watch: Watch,
        keep: str = "",
        center: float = 0.0,
    ) -> None:
        """`keep`: a folder where vectors are kept, and looked for. `center`: so much of each model's
        mean is subtracted."""
        self.rows: dict[str, int] = {}
        for text in texts:
            self.rows.setdefault(text, len(self.rows))
        self.parts = [_kept_vectors(folder, list(self.rows), device, watch, keep) for folder in folders]
        """(S, width of a model) each, in half precision, which keeps cosines to 1e-3."""
        self.means = [center * _mean(part).to(device) if center else None for part in self.parts]

    @property
    def width(self) -> int:
        return sum(part.shape[1] for part in self.parts)

    def of(self, rows: Sequence[int]) -> Tensor:
        """(texts, W) as they are kept, in half precision: `finish` makes of them what is learned from."""
        return torch.from_numpy(np.concatenate([part[list(rows)] for part in self.parts], axis=1))

    def finish(self, kept: Tensor) -> Tensor:
        """(texts, W), on the device of the training, where it takes no time."""
        each = kept.float().split([part.shape[1] for part in self.parts], 1)
        pairs = zip(each, self.means, strict=True)
        return torch.cat([one if mean is None else F.normalize(one - mean, dim=1) for one, mean in pairs], 1)


def texts_taught(settings: EmbedSettings, source: str, examples: Sequence[Any]) -> Iterator[str]:
    """The text that a teacher or guide reads for every text of every example of a file; none if its loss needs none."""
    if settings.teachers and loss_of(settings, source, examples) != "distill":
        return
    is_translated = settings.of(source).translations
    for example in examples:
        yield from example.texts[:1] * len(example.texts) if is_translated else example.texts


def _mean(vectors: NDArray[np.float16]) -> Tensor:
    total = np.zeros(vectors.shape[1])
    for start in range(0, len(vectors), _BLOCK):
        total += vectors[start : start + _BLOCK].sum(0, dtype=np.float64)
    return torch.from_numpy(total / max(1, len(vectors))).float()


def _kept_vectors(
    folder: str, texts: Sequence[str], device: "torch.device", watch: Watch, keep: str
) -> NDArray[np.float16]:
    """(S, width of the model), read from the folder `keep` if they are there, else computed and put there."""
    if not keep:
        return _vectors(folder, texts, device, watch)
    state = hashlib.sha256(json.dumps(fingerprint(Path(folder)), sort_keys=True).encode())
    for text in texts:
        state.update(f"{len(text)} {text}".encode(errors="surrogatepass"))
    file = Path(keep, f"{Path(folder).name}-{state.hexdigest()[:16]}.npy")
    if not file.exists():
        with atomic.new_file(file) as fresh, fresh.open("wb") as out:
            np.save(out, _vectors(folder, texts, device, watch))
    kept: NDArray[np.float16] = np.load(file, mmap_mode="r")
    return kept


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
