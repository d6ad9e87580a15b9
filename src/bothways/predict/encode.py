"""Embeddings: vectors of texts, tokens or words from the hidden states of any layers.

N tokens in a batch · J jobs in it · W width of the result.
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
    """Which hidden states make a vector, and how long texts are handled. The defaults suit most uses."""

    layers: str | int | Sequence[int] = "last"
    """"last", "second-to-last", "last-four", "all", or a number or several: 0 is the embeddings, -1 the last layer.
    "static": rows of the token embedding table, without context."""
    combine: Combine = "concat"
    """How to combine several layers into one vector."""
    weights: Sequence[float] | None = None
    """One weight for each layer: the vector is their weighted sum, and `combine` is ignored."""
    long: Long = "error"
    """Texts longer than the model's maximum length: raise an error, cut them, or read them in overlapping windows."""

    def __post_init__(self) -> None:
        require_choice("`combine`", self.combine, get_args(Combine))
        require_choice("`long`", self.long, get_args(Long))
        if self.weights is not None and not all(math.isfinite(weight) for weight in self.weights):
            raise BothwaysError(
                f"`weights` must be finite numbers, not {list(self.weights)}", "not-finite", list(self.weights)
            )

    def numbers(self, depth: int) -> list[int]:
        """The layers as numbers from 0 to `depth`."""
        if self.layers == STATIC:
            return []
        if isinstance(self.layers, str):
            wanted: Sequence[int] = self._parsed(depth)
        else:
            wanted = [self.layers] if isinstance(self.layers, int) else self.layers
        if not len(wanted):
            raise BothwaysError("`layers` names no layer: expected at least one", "no-such-layer")
        for n in wanted:
            if not -depth - 1 <= n <= depth:
                raise BothwaysError(
                    f"there is no layer {n}: this model has 0 (the embeddings) to {depth}, or -1 to {-depth - 1}",
                    "no-such-layer",
                    n,
                )
        if self.weights is not None and len(self.weights) != len(wanted):
            raise BothwaysError(
                f"`weights` has {len(self.weights)} numbers for {len(wanted)} layers: expected one for each",
                "length-mismatch",
                (len(self.weights), len(wanted)),
            )
        return [n % (depth + 1) for n in wanted]

    def width(self, shape: EncoderConfig) -> int:
        """W, the width of the vectors."""
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
            raise BothwaysError(
                f"`layers` cannot be {self.layers!r}: expected {known}, or numbers such as 0,-1",
                "unknown-choice",
                self.layers,
            ) from None

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
    pool: Pool = "mean",
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
) -> Vectors:
    """One vector for each text: (texts, W). The default model is the one in the box.

    `pool` is "mean" or "max" over all tokens, or "cls" for the hidden state of [CLS]. For the rest see `Features`.
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
    """A vector for each token of each text, or for each word (the mean of its pieces). Special tokens are left out.

    The default model is the one in the box.
    """
    features, tally = Features(layers, combine, weights, long), Tally()
    found = list(iter_tokens(texts, _loaded(model), per=per, features=features, tally=tally))
    _warn_of_losses(tally)
    return found


def iter_texts(
    texts: Iterable[str], model: Model, *, pool: Pool, features: Features, tally: Tally
) -> Iterator[Vectors]:
    """`encode` as a stream, in constant memory. Counts are added to `tally`."""
    require_choice("`pool`", pool, get_args(Pool))
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
    require_choice("`per`", per, get_args(Per))
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
    """Warn if texts were cut, even though the caller asked for it."""
    if tally.cut:
        warnings.warn(str(tally), stacklevel=3)


def _loaded(model: Model | Path | str | None) -> Model:
    return model if isinstance(model, Model) else load(model)


def _chunks(
    texts: Iterable[str], model: Model, features: Features, tally: Tally
) -> Iterator[tuple[list[str], list[Encoding], list[_Job]]]:
    """Chunks of texts, with their encodings and the jobs that cover them."""
    require_several(texts)
    features.numbers(model.config.encoder.layers)  # a wrong layer is an error before any work
    reader = Reader(model, WindowSettings(long=features.long), long_setting="`long`")
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
    """The combined hidden states of a batch, (N, W), in fp32 on the CPU."""
    layers = features.numbers(model.config.encoder.layers)
    if features.layers == STATIC:
        states = [model.encoder.embeddings.tokens(batch.ids)]
    else:
        seen = model.encoder.activations(batch, hidden_states=set(layers))
        states = [seen.hidden_states[n] for n in layers]
    return features.combined(states).float().cpu()


def _pooled(states: Tensor, batch: Batch, group: list[_Job], pool: Pool) -> tuple[Tensor, list[int]]:
    """(J, W) the sum (or maximum) of each job's rows that count, and how many they are."""
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
