"""Texts as vectors: which layers, which pooling, for whole texts, tokens or words.

N tokens in a batch · J pieces of work in it · W width of the result.
"""

import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.engine.engine import Engine, chunks
from bothways.engine.reader import Read, Reader, Tally, View, WindowSettings
from bothways.errors import BothwaysError, require_choice
from bothways.model.batch import Batch
from bothways.model.config import EncoderConfig
from bothways.model.load import load
from bothways.model.model import Model
from bothways.predict.encode_options import Combine, Long, Per, Pool
from bothways.text.tokenizer import Encoding

Vectors = NDArray[np.float32]

STATIC = "static"
NAMED_LAYERS = {"last": (-1,), "second-to-last": (-2,), "last-four": (-4, -3, -2, -1)}


@dataclass(frozen=True)
class Features:
    """Which hidden states make a vector, and how long texts are met. The defaults suit most uses."""

    layers: str | int | Sequence[int] = "last"
    """"last", "second-to-last", "last-four", "all", or a number or several: 0 is the embeddings, -1 the last layer.
    "static": rows of the token table, which know nothing of their neighbours."""
    combine: Combine = "concat"
    """How several layers become one vector."""
    weights: Sequence[float] | None = None
    """One number for each layer: the vector is their weighted sum, whatever `combine` says."""
    long: Long = "error"
    """Texts beyond the model's limit: refuse them, cut them, or read them in overlapping windows."""

    def __post_init__(self) -> None:
        require_choice("combine", self.combine, get_args(Combine))
        require_choice("long", self.long, get_args(Long))
        if self.weights is not None and not all(math.isfinite(weight) for weight in self.weights):
            raise BothwaysError(f"the weights of layers must be numbers, not {list(self.weights)}")

    def numbers(self, depth: int) -> list[int]:
        """The layers as numbers from 0 to `depth`."""
        if self.layers == STATIC:
            return []
        if isinstance(self.layers, str):
            wanted: Sequence[int] = self._parsed(depth)
        else:
            wanted = [self.layers] if isinstance(self.layers, int) else self.layers
        if not len(wanted):
            raise BothwaysError("no layers were named: name at least one")
        for n in wanted:
            if not -depth - 1 <= n <= depth:
                raise BothwaysError(
                    f"there is no layer {n}: this model has 0 (the embeddings) to {depth}, or -1 to {-depth - 1}"
                )
        if self.weights is not None and len(self.weights) != len(wanted):
            raise BothwaysError(f"{len(self.weights)} weights were given for {len(wanted)} layers")
        return [n % (depth + 1) for n in wanted]

    def width(self, shape: EncoderConfig) -> int:
        """W."""
        if self.layers == STATIC:
            return shape.table_width
        layers = self.numbers(shape.layers)
        return shape.width * (len(layers) if self.combine == "concat" and self.weights is None else 1)

    def _parsed(self, depth: int) -> Sequence[int]:
        assert isinstance(self.layers, str)
        if self.layers == "all":
            return range(depth + 1)
        if self.layers in NAMED_LAYERS:
            return NAMED_LAYERS[self.layers]
        try:
            return [int(n) for n in self.layers.split(",")]
        except ValueError:
            known = ", ".join([*NAMED_LAYERS, "all", STATIC])
            raise BothwaysError(f"{self.layers!r} names no layers: expected {known}, or numbers such as 0,-1") from None

    def combined(self, states: Sequence[Tensor]) -> Tensor:
        """Hidden states of the chosen layers, (N, width) each → (N, W)."""
        if self.weights is not None:
            return torch.stack([state * weight for state, weight in zip(states, self.weights, strict=True)]).sum(0)
        if self.combine == "concat":
            return torch.cat(list(states), dim=1)
        stacked = torch.stack(list(states))
        return stacked.sum(0) if self.combine == "sum" else stacked.mean(0)


@dataclass(frozen=True)
class TokenVectors:
    """The tokens or words of one text."""

    texts: list[str]
    """Each token's piece, or each word as it is written."""
    offsets: list[tuple[int, int]]
    """Where each stands in the text."""
    vectors: Vectors
    """(tokens or words, W)."""


@dataclass(frozen=True)
class _Job:
    """One sequence to run: a text, or one window of it."""

    text: int
    view: View
    keep: slice
    """The rows that count: all of a text, or the part of it that this window answers for."""

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
    pool: Pool = "mean",
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
) -> Vectors:
    """One vector for each text: (texts, W). Without a model it is the one in the box.

    `pool` is "mean" over all tokens, their "max", or "cls" for the state of [CLS]. For the rest see `Features`.
    """
    model, features, tally = _loaded(model), Features(layers, combine, weights, long), Tally()
    rows = list(iter_texts(texts, model, pool=pool, features=features, tally=tally))
    _warn_of_losses(tally)
    return np.stack(rows) if rows else np.zeros((0, features.width(model.config.encoder)), np.float32)


def encode_tokens(
    texts: Iterable[str],
    model: Model | Path | str | None = None,
    *,
    per: Per = "token",
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
) -> list[TokenVectors]:
    """A vector for each token, or for each word (the mean of its pieces), of each text; specials are left out.

    Without a model it is the one in the box.
    """
    features, tally = Features(layers, combine, weights, long), Tally()
    found = list(iter_tokens(texts, _loaded(model), per=per, features=features, tally=tally))
    _warn_of_losses(tally)
    return found


def iter_texts(
    texts: Iterable[str], model: Model, *, pool: Pool, features: Features, tally: Tally
) -> Iterator[Vectors]:
    """`encode` as a stream: memory does not grow with the number of texts. `tally` is filled on the way."""
    require_choice("pool", pool, get_args(Pool))
    engine = Engine(model)

    def pooled(batch: Batch, jobs: list[_Job]) -> list[tuple[Tensor, int]]:
        values, counts = _pooled(_states(batch, model, features), batch, jobs, pool)
        return list(zip(values, counts, strict=True))

    for _, encodings, jobs in _chunks(texts, model, features, tally):
        # Long texts have several jobs; each gives (sum or max, count), merged here.
        merged: list[tuple[Tensor, int]] = [(torch.empty(0), 0)] * len(encodings)
        for job, (value, count) in zip(jobs, engine.run(jobs, pooled), strict=True):
            before, seen = merged[job.text]
            if seen:
                value = torch.maximum(before, value) if pool == "max" else before + value
            merged[job.text] = value, seen + count
        for value, count in merged:
            yield (value if pool == "max" else value / count).numpy()


def iter_tokens(
    texts: Iterable[str], model: Model, *, per: Per, features: Features, tally: Tally
) -> Iterator[TokenVectors]:
    """`encode_tokens` as a stream."""
    require_choice("per", per, get_args(Per))
    engine = Engine(model)

    def kept(batch: Batch, jobs: list[_Job]) -> list[Tensor]:
        parts = _states(batch, model, features).split(batch.lengths.tolist())
        return [rows[job.keep].clone() for job, rows in zip(jobs, parts, strict=True)]

    for some, encodings, jobs in _chunks(texts, model, features, tally):
        parts: list[list[Tensor]] = [[] for _ in encodings]
        for job, rows in zip(jobs, engine.run(jobs, kept), strict=True):
            parts[job.text].append(rows)
        for text, encoding, found in zip(some, encodings, parts, strict=True):
            yield _by_token(text, encoding, torch.cat(found), per)


def _warn_of_losses(tally: Tally) -> None:
    """Whoever asked for texts to be cut still hears how many were."""
    if tally.cut:
        warnings.warn(str(tally), stacklevel=3)


def _loaded(model: Model | Path | str | None) -> Model:
    return model if isinstance(model, Model) else load(model)


def _chunks(
    texts: Iterable[str], model: Model, features: Features, tally: Tally
) -> Iterator[tuple[list[str], list[Encoding], list[_Job]]]:
    """Some texts at a time, with their encodings and the jobs that cover them."""
    require_several(texts)
    features.numbers(model.config.encoder.layers)  # a wrong layer is told before any work
    reader = Reader(model, WindowSettings(long=features.long), switch="`long`")
    reader.tally = tally
    for some in chunks(map(_require_text, texts)):
        reads = reader([(text,) for text in some])
        yield some, [read.encoding for read in reads], [job for i, read in enumerate(reads) for job in _jobs(i, read)]


def require_several(texts: Iterable[Any]) -> None:
    """A text is an iterable too, of letters, and never meant as that."""
    if isinstance(texts, str):
        raise BothwaysError("several texts were expected, as a list, and one text was given: put it into brackets")


def _require_text(text: Any) -> str:
    if not isinstance(text, str):
        raise BothwaysError(f"a text was expected, and {text!r} was given")
    return text


def _jobs(text: int, read: Read) -> Iterator[_Job]:
    """The first window answers for what comes before the text, [CLS], and the last for what comes after it."""
    if not len(read.encoding):
        raise BothwaysError(f"text {text + 1} has no tokens, and this model's tokenizer adds none")
    after = len(read.encoding) - read.inside.stop
    for view in read.views:
        own, end = view.window.own - view.shift, view.window.own_end - view.shift
        keep = slice(0 if view is read.views[0] else own, end + (after if view is read.views[-1] else 0))
        yield _Job(text, view, keep)


def _states(batch: Batch, model: Model, features: Features) -> Tensor:
    """The combined states of a batch, (N, W), in fp32 on the CPU."""
    layers = features.numbers(model.config.encoder.layers)
    if features.layers == STATIC:
        states = [model.encoder.embeddings.tokens(batch.ids)]
    else:
        seen = model.encoder.activations(batch, hidden_states=set(layers))
        states = [seen.hidden_states[n] for n in layers]
    return features.combined(states).float().cpu()


def _pooled(states: Tensor, batch: Batch, group: list[_Job], pool: Pool) -> tuple[Tensor, list[int]]:
    """For each job its sum (or maximum) over the rows that count, and how many they were: (J, W)."""
    batch = batch.to(states.device)
    if pool == "cls":
        return states[batch.first], [1] * len(group)
    owner = torch.repeat_interleave(torch.arange(len(group)), batch.lengths)
    keep = torch.zeros(len(states), dtype=torch.bool)
    for job, start in zip(group, batch.first.tolist(), strict=True):
        keep[start + job.keep.start : start + job.keep.stop] = True
    owner, states = owner[keep], states[keep]
    if pool == "mean":
        sums = states.new_zeros(len(group), states.shape[1]).index_add_(0, owner, states)
        return sums, [job.keep.stop - job.keep.start for job in group]
    low = states.new_full((len(group), states.shape[1]), float("-inf"))
    return low.scatter_reduce_(0, owner[:, None].expand_as(states), states, "amax"), [1] * len(group)


def _by_token(text: str, encoding: Encoding, states: Tensor, per: Per) -> TokenVectors:
    """States of all tokens, specials included → those of the text's tokens or words."""
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
