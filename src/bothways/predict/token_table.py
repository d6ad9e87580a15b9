"""Distils an encoder into a static model: the encoder reads every token of its vocabulary once, by itself.

After Model2Vec (Tulkens and van Dongen 2024): principal components of the token vectors, weighted by how rare each
token is (SIF: Arora et al. 2017).

V tokens of the vocabulary · W width.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.engine.engine import Engine
from bothways.errors import BothwaysError, require_range
from bothways.model.batch import Batch
from bothways.model.device import Device, Precision
from bothways.model.model import Model
from bothways.model.pooling import Pooling
from bothways.model.static import StaticModel
from bothways.progress import Watch, watch_nothing

WIDTH = 256
_TOKENS_AT_ONCE = 1024
_SIF = 1e-4
"""A token of probability p has the weight a / (a + p), with this a."""

Counts = NDArray[np.float64]


def distil_static(
    model: Model | Path | str | None = None,
    *,
    width: int | None = WIDTH,
    texts: Iterable[str] | None = None,
    device: Device | None = None,
    dtype: Precision | None = None,
    watch: Watch = watch_nothing,
) -> StaticModel:
    """A static model from an encoder: a table of token vectors, hundreds of times as fast on a CPU, and less exact.

    `width` is the number of principal components; None, or more than the encoder's width, keeps that. Frequent tokens
    weigh less: their frequency is counted in `texts`. Without texts it is that of the output bias of a masked language
    model, or else it is guessed from the order of the vocabulary. For the other arguments see `encode`.
    """
    require_range("`width`", width, width is None or width >= 1, "at least 1")
    engine = Engine(model, device=device, dtype=dtype)
    tokenizer = engine.weights("a static model").require_tokenizer()
    kept = np.array([i for i in range(tokenizer.size) if i not in tokenizer.wordless_ids], np.int64)
    if not len(kept):
        raise BothwaysError("this tokenizer has only special tokens", "no-tokens")
    vectors = torch.cat(list(_vectors(engine, kept, watch)))
    vectors = principal_components(vectors, width or vectors.shape[1])
    if texts is not None:
        shares = _counted(StaticModel(tokenizer, vectors), texts, kept, watch)
    else:
        shares = _guessed(engine.weights("a static model"), kept)
    weights = torch.from_numpy(_SIF / (_SIF + shares))
    table = torch.zeros(tokenizer.size, vectors.shape[1])
    table[torch.from_numpy(kept)] = (vectors.double() * weights[:, None]).float()
    return StaticModel(tokenizer, table)


def _vectors(engine: Engine, ids: NDArray[np.int64], watch: Watch) -> Iterator[Tensor]:
    """The mean of the states of each token alone and the special tokens around it: (V, W) in parts."""
    model = engine.model
    tokenizer, pooling = model.require_tokenizer(), Pooling()
    first, last = tokenizer.around
    frame = tokenizer("a").ids
    before, after = frame[:first], frame[len(frame) - last :]
    for begin in watch(range(0, len(ids), _TOKENS_AT_ONCE), "encoding the vocabulary"):
        batch = Batch.pack([[*before, token, *after] for token in ids[begin : begin + _TOKENS_AT_ONCE].tolist()])
        with torch.inference_mode(), engine.around(len(batch.ids)):
            batch = batch.to(engine.device)
            found = pooling(engine.states(batch), batch).float().cpu()
        yield found


def principal_components(vectors: Tensor, width: int) -> Tensor:
    """(V, W) → (V, width): coordinates on the axes of greatest variance, in float64 and rounded once."""
    centred = vectors.double() - vectors.double().mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    axes = axes.flip(1)[:, :width]  # eigh sorts upwards
    # Either sign is right: the one that makes the largest entry positive is always the same.
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    found: Tensor = (centred @ (axes * signs)).float()
    return found


def _guessed(model: Model, kept: NDArray[np.int64]) -> Counts:
    """The shares of tokens that the model was trained on, or Zipf's law over the order of the vocabulary.

    The output bias of a masked language model is near the logarithm of how often it saw each token.
    """
    bias = getattr(model.heads["masked"], "bias", None) if "masked" in model.heads else None
    if isinstance(bias, Tensor) and float(bias.detach().abs().sum()) > 0:
        found: Counts = bias.detach().double().cpu()[torch.from_numpy(kept)].softmax(0).numpy()
        return found
    shares: Counts = 1.0 / np.arange(1, len(kept) + 1)
    shares /= shares.sum()
    return shares


def _counted(model: StaticModel, texts: Iterable[str], kept: NDArray[np.int64], watch: Watch) -> Counts:
    """The shares of tokens in texts; one that does not occur counts as one half."""
    counts = np.zeros(model.tokenizer.size)
    for ids in model.token_ids(watch(texts, "counting tokens")):
        counts += np.bincount(ids, minlength=len(counts))
    found: Counts = np.maximum(counts[kept], 0.5)
    found /= found.sum()
    return found
