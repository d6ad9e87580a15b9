"""Embeddings: vectors of texts, tokens or words from the hidden states of any layers.

N tokens in a batch · J jobs in it · W width of the result.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.engine.engine import Engine, chunks, on_device
from bothways.engine.reader import Read, Reader, Tally, View, WindowSettings
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.model.pooling import Counted, Partial
from bothways.predict.encode_options import Combine, Long, Per, Pool
from bothways.predict.features import STATIC, Features, TextRecipe, text_recipe
from bothways.text.tokenizer import Encoding

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class TokenVectors:
    """The vectors of the tokens or words of one text."""

    texts: list[str]
    """Each subword piece, or each word as written in the text."""
    offsets: list[tuple[int, int]]
    """Start and end of each in the text."""
    vectors: Vectors
    """(tokens or words, W)."""


@dataclass(frozen=True)
class _Job:
    """One sequence to run: a text, or one window of it."""

    text: int
    view: View
    keep: slice
    """The rows whose vectors count: all of a text, or those that belong to this window."""

    @property
    def ids(self) -> list[int]:
        return self.view.ids

    @property
    def segments(self) -> list[int]:
        return self.view.segments


def encode(
    texts: Iterable[str],
    model: Model | Path | str | None = None,
    *,
    pool: Pool | Sequence[Pool] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
    device: str | None = None,
) -> Vectors:
    """One vector for each text: (texts, W). The default model is the one in the box.

    A folder of sentence-transformers makes the vector as its own files say: its prompts, pooling, Dense and Normalize
    modules and maximum length. Other folders give the mean over all tokens. `pool` names another pooling, or several
    (see `Pooling`); then, or with other `layers`, there are no Dense and Normalize. `prompt` is put before every text;
    `prompt_name` is the name of one of the folder's prompts. For the rest see `Features`.

    `device` is cpu, cuda, or auto: a GPU if there is one. By default a folder is opened on auto, and a Model stays.
    """
    model, features, tally = on_device(model, device), Features(layers, combine, weights, long), Tally()
    recipe = text_recipe(model, features, pool, prompt, prompt_name)
    rows = list(iter_texts(texts, model, recipe, tally))
    _warn_of_losses(tally)
    return np.stack(rows) if rows else np.zeros((0, recipe.width(model.config.encoder)), np.float32)


def encode_tokens(
    texts: Iterable[str],
    model: Model | Path | str | None = None,
    *,
    per: Per = "token",
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
    device: str | None = None,
) -> list[TokenVectors]:
    """A vector for each token of each text, or for each word (the mean of its pieces). Special tokens are left out.

    The default model is the one in the box. For `device` see `encode`.
    """
    features, tally = Features(layers, combine, weights, long), Tally()
    found = list(iter_tokens(texts, on_device(model, device), per=per, features=features, tally=tally))
    _warn_of_losses(tally)
    return found


def iter_texts(texts: Iterable[str], model: Model, recipe: TextRecipe, tally: Tally) -> Iterator[Vectors]:
    """`encode` as a stream, in constant memory. Counts are added to `tally`."""
    engine, pooling = Engine(model), recipe.pooling
    require_several(texts)
    prompted = (recipe.prompt + _require_text(text) for text in texts) if recipe.prompt else texts

    def pooled(batch: Batch, jobs: list[_Job]) -> list[Partial]:
        part = pooling.partial(_states(batch, model, recipe.features), _counted(batch, jobs, recipe.skipped))
        values, weights = part.values.cpu(), part.weights.cpu()
        return [Partial(values[i : i + 1], weights[i : i + 1]) for i in range(len(jobs))]

    for _, encodings, jobs in _chunks(prompted, model, recipe.features, tally, recipe.max_length):
        merged: list[Partial | None] = [None] * len(encodings)  # long texts have several jobs
        for job, part in zip(jobs, engine.run(jobs, pooled), strict=True):
            before = merged[job.text]
            merged[job.text] = part if before is None else pooling.merged(before, part)
        parts = [part for part in merged if part is not None]
        whole = Partial(torch.cat([part.values for part in parts]), torch.cat([part.weights for part in parts]))
        yield from recipe.finish(pooling.finish(whole)).numpy()


def iter_tokens(
    texts: Iterable[str], model: Model, *, per: Per, features: Features, tally: Tally
) -> Iterator[TokenVectors]:
    """`encode_tokens` as a stream."""
    require_choice("`per`", per, get_args(Per))
    engine = Engine(model)

    def kept(batch: Batch, jobs: list[_Job]) -> list[Tensor]:
        parts = _states(batch, model, features).cpu().split(batch.lengths.tolist())
        return [rows[job.keep].clone() for job, rows in zip(jobs, parts, strict=True)]

    for some, encodings, jobs in _chunks(texts, model, features, tally):
        parts: list[list[Tensor]] = [[] for _ in encodings]
        for job, rows in zip(jobs, engine.run(jobs, kept), strict=True):
            parts[job.text].append(rows)
        for text, encoding, found in zip(some, encodings, parts, strict=True):
            yield _by_token(text, encoding, torch.cat(found), per)


def _warn_of_losses(tally: Tally) -> None:
    """Warn if texts were cut, even though the caller asked for it."""
    if tally.cut:
        warnings.warn(str(tally), stacklevel=3)


def _chunks(
    texts: Iterable[str], model: Model, features: Features, tally: Tally, max_length: int = 0
) -> Iterator[tuple[list[str], list[Encoding], list[_Job]]]:
    """Chunks of texts, with their encodings and the jobs that cover them."""
    require_several(texts)
    features.numbers(model.config.encoder.layers)  # a wrong layer is an error before any work
    reader = Reader(model, WindowSettings(max_length, long=features.long), long_setting="`long`")
    reader.tally = tally
    for some in chunks(map(_require_text, texts)):
        reads = reader([(text,) for text in some])
        yield some, [read.encoding for read in reads], [job for i, read in enumerate(reads) for job in _jobs(i, read)]


def require_several(texts: Iterable[Any]) -> None:
    """Refuse a single string, which is an iterable of letters."""
    if isinstance(texts, str):
        raise BothwaysError(
            "a list of texts was expected, and one string was given: put it in a list", "bad-input", texts
        )


def _require_text(text: Any) -> str:
    if not isinstance(text, str):
        raise BothwaysError(f"a text was expected, and {text!r} was given", "bad-input", text)
    return text


def _jobs(text: int, read: Read) -> Iterator[_Job]:
    """The first window also counts what comes before the text, [CLS], and the last what comes after it, [SEP]."""
    if not len(read.encoding):
        raise BothwaysError(
            f"text {text + 1} has no tokens, and this model's tokenizer adds no special tokens", "no-tokens", text + 1
        )
    after = len(read.encoding) - read.inside.stop
    for view in read.views:
        own, end = view.window.own - view.shift, view.window.own_end - view.shift
        keep = slice(0 if view is read.views[0] else own, end + (after if view is read.views[-1] else 0))
        yield _Job(text, view, keep)


def _states(batch: Batch, model: Model, features: Features) -> Tensor:
    """The combined hidden states of a batch, (N, W), in fp32."""
    layers = features.numbers(model.config.encoder.layers)
    if features.layers == STATIC:
        states = [model.encoder.embeddings.tokens(batch.ids)]
    else:
        seen = model.encoder.activations(batch, hidden_states=set(layers))
        states = [seen.hidden_states[n] for n in layers]
    return features.combined(states).float()


def _counted(batch: Batch, jobs: list[_Job], skipped: int) -> Counted:
    """The tokens that are pooled: of a window those that are its own, and none of the first `skipped` of a text."""
    whole = Counted.whole(batch)
    if not skipped and all(job.keep == slice(0, len(job.view)) for job in jobs):
        return whole
    starts = batch.first.tolist()
    spans = [range(max(job.keep.start, skipped - job.view.shift), job.keep.stop) for job in jobs]
    rows = np.concatenate([np.arange(s.start, s.stop) + start for s, start in zip(spans, starts, strict=True)])
    owners = np.repeat(np.arange(len(jobs)), [len(span) for span in spans])
    places = np.concatenate([np.arange(s.start, s.stop) + j.view.shift for s, j in zip(spans, jobs, strict=True)])
    first = np.array(starts) + [0 if job.view.shift else min(skipped, len(job.view) - 1) for job in jobs]
    arrays = (torch.from_numpy(array).to(batch.ids.device) for array in (rows, owners, places, first))
    return Counted(next(arrays), next(arrays), next(arrays), next(arrays), whole.last)


def _by_token(text: str, encoding: Encoding, states: Tensor, per: Per) -> TokenVectors:
    """Hidden states of all tokens, special tokens included → vectors of the text's tokens or words."""
    inside = [i for i, source in enumerate(encoding.sources) if source is not None]
    words, offsets, pieces = encoding.words, encoding.offsets, encoding.pieces
    if per == "token":
        return TokenVectors([pieces[i] for i in inside], [offsets[i] for i in inside], states[inside].numpy())
    members: dict[int, list[int]] = {}
    for i in inside:
        word = words[i]
        assert word is not None  # every token of the text itself is a piece of some word
        members.setdefault(word, []).append(i)
    spans = [(offsets[tokens[0]][0], offsets[tokens[-1]][1]) for tokens in members.values()]
    vectors = [states[tokens].mean(0) for tokens in members.values()]
    stacked = torch.stack(vectors) if vectors else states[:0]
    return TokenVectors([text[start:end] for start, end in spans], spans, stacked.numpy())
