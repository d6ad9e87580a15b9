"""Embeddings: vectors of texts, tokens or words from the hidden states of any layers.

N tokens in a batch · S sequences of a chunk · W width of the result.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Engine, one_per_token
from bothways.engine.long_reader import LongReader, WindowChunk, streams
from bothways.engine.reader import Reader, Tally, WindowSettings
from bothways.engine.reads import Reads
from bothways.engine.sequences import Indices, Sequences, on_device, ragged
from bothways.errors import BothwaysError, require_choice
from bothways.lazy import Tensor, torch
from bothways.model import arrays
from bothways.model.arrays import Array
from bothways.model.batch import Batch
from bothways.model.box import model_for_encoding
from bothways.model.device import Device, Precision
from bothways.model.facts import ModelFacts
from bothways.model.opened import AnsweringModel
from bothways.model.pooling import Counted
from bothways.model.static import StaticModel, is_static, load_static
from bothways.predict.encode_options import Combine, Long, Per, Pool
from bothways.predict.features import STATIC, Features, TextRecipe, text_recipe, warn_of_prompts
from bothways.predict.given_texts import require_several, texts_of
from bothways.predict.pooled_windows import joined, vector_of_windows
from bothways.progress import notebook_progress
from bothways.text.frames import not_a_text
from bothways.text.long_text import LongText
from bothways.text.tokenizer import Encoding

Vectors = NDArray[np.float32]
_TOKEN_SHARE = 0.125
"""Vectors of tokens take more memory than those of texts: their chunks are smaller."""
_DEVICE_SHARE = 0.5
"""The same where they stay on a GPU."""


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
class PackedStates:
    """The hidden states of some texts, one text after the other."""

    lengths: Indices
    """Tokens of each text, special tokens included."""
    ids: NDArray[np.int32]
    """(tokens of all texts,) token ids."""
    states: Tensor
    """(tokens of all texts, W), on the device of the model."""


@dataclass(frozen=True)
class TextChunk:
    """Some texts as the model reads them: each as one sequence, or as several windows."""

    texts: list[str]
    reads: Reads

    @property
    def sequences(self) -> Sequences:
        return self.reads.sequences

    @property
    def has_windows(self) -> bool:
        return self.reads.has_windows

    @cached_property
    def kept(self) -> tuple[Indices, Indices, Indices]:
        """For each sequence, (S,) each: the first token that counts, the one after the last, and the window's shift.

        The first window also counts what comes before the text, [CLS], and the last what comes after it, [SEP].
        """
        first, stop = np.zeros(len(self.sequences), np.int64), self.sequences.lengths.copy()
        shift = np.zeros_like(first)
        begins = np.cumsum(self.reads.counts) - self.reads.counts
        for text, views in self.reads.views.items():
            for place, view in enumerate(views, int(begins[text])):
                shift[place] = view.shift
                if view is not views[0]:
                    first[place] = view.window.own - view.shift
                if view is not views[-1]:
                    stop[place] = view.window.own_end - view.shift
        return first, stop, shift

    @cached_property
    def own(self) -> Indices:
        """The tokens that count of all sequences: those of each text, in order and once."""
        first, stop, _ = self.kept
        return ragged(self.sequences.starts + first, stop - first)

    @property
    def lengths(self) -> Indices:
        """Tokens of each text, however many windows it has."""
        first, stop, _ = self.kept
        lengths: Indices = np.add.reduceat(stop - first, np.cumsum(self.reads.counts) - self.reads.counts)
        return lengths


def encode(
    texts: Iterable[Any],
    model: AnsweringModel | StaticModel | Path | str | None = None,
    *,
    pool: Pool | Sequence[Pool] | None = None,
    prompt: str | None = None,
    prompt_name: str | None = None,
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
    text: str | None = None,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> Vectors:
    """One vector for each text, or for each row of a table in memory: (texts, W). The default model is sentence in the
    box, or en where `pool` or `layers` are given.

    A folder of sentence-transformers makes the vector as its own files say: its prompts, pooling, Dense and Normalize
    modules and maximum length. Other folders give the mean over all tokens. `pool` names another pooling, or several
    (see `Pooling`); then, or with other `layers`, there are no Dense and Normalize. A static model, or its folder,
    gives the mean of its token vectors, for texts of any length, on the CPU. `text` names the column of a table, if it
    has no usual name. `prompt` is put before every text; `prompt_name` is the name of one of the folder's prompts. For
    the rest see `Features`.

    `device` is cpu, cuda, cuda:1, mps, or auto: a GPU if there is one. `dtype` is fp32, bf16, fp16, or auto: bf16 on a
    GPU that computes in it. By default a folder is opened with auto, and a Model stays as it is.
    """
    features, tally = Features(layers, combine, weights, long), Tally()
    texts = texts_of(texts, text)
    model = model_for_encoding(model, pool=pool, layers=layers)
    if isinstance(model, str | Path) and is_static(model):
        model = load_static(model)
    if isinstance(model, StaticModel):
        if pool or prompt or prompt_name or replace(features, long="error") != Features():
            raise BothwaysError(
                "a static model has one vector for each token: it takes no `pool`, `prompt`, `prompt_name` or `layers`",
                "bad-combination",
            )
        return model.encode(texts)
    engine = Engine(model, device=device, dtype=dtype)
    recipe = text_recipe(engine.model, features, pool, prompt, prompt_name)
    warn_of_prompts(recipe, prompt, prompt_name)
    require_several(texts)
    with notebook_progress("encoding", len(texts) if isinstance(texts, Sized) else None) as bar:
        rows = list(encode_blocks(bar.over(texts), engine, recipe, tally))
    warn_of_losses(tally)
    return np.concatenate(rows) if rows else np.zeros((0, recipe.width(engine.model.config.encoder)), np.float32)


def encode_tokens(
    texts: Iterable[Any],
    model: AnsweringModel | Path | str | None = None,
    *,
    per: Per = "token",
    layers: str | int | Sequence[int] = "last",
    combine: Combine = "concat",
    weights: Sequence[float] | None = None,
    long: Long = "error",
    text: str | None = None,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> list[TokenVectors]:
    """A vector for each token of each text, or for each word (the mean of its pieces). Special tokens are left out.

    The default model is the included model en. For `text`, `device` and `dtype` see `encode`.
    """
    features, tally = Features(layers, combine, weights, long), Tally()
    engine = Engine(model, device=device, dtype=dtype)
    texts = texts_of(texts, text)
    require_several(texts)
    with notebook_progress("encoding", len(texts) if isinstance(texts, Sized) else None) as bar:
        found = list(iter_tokens(bar.over(texts), engine, per=per, features=features, tally=tally))
    warn_of_losses(tally)
    return found


def encode_blocks(
    texts: Iterable[str | LongText], engine: Engine, recipe: TextRecipe, tally: Tally, first: int = 0
) -> Iterator[Vectors]:
    """`encode` as a stream, in constant memory: the vectors of some texts at a time.

    Counts are added to `tally`. `first`: the number of the first text, counted from 0, for errors.
    """
    pooling, model = recipe.pooling, engine.model
    require_several(texts)
    engine.calls.require_layers(_layers(engine, recipe.features))  # a wrong layer is an error before any work

    def pooled(batch: Any, chunk: TextChunk | WindowChunk, picked: Indices) -> Array:
        if recipe.is_own and not chunk.has_windows and (vectors := engine.calls.vectors(batch)) is not None:
            return vectors
        part = pooling.partial(
            _states(batch, engine, recipe.features), _counted(batch, engine, chunk, picked, recipe.skipped)
        )
        if not chunk.has_windows:
            return recipe.finish(pooling.finish(part))
        return arrays.joined([part.values.reshape(len(picked), -1), part.weights])

    for is_long, some in groupby(texts, streams):
        if is_long:
            for text in some:
                reader = text_reader(model, recipe.features, tally, recipe.max_length)
                windows = LongReader(reader, first + 1)(text, recipe.prompt)
                yield vector_of_windows(engine.run(windows, pooled), recipe, engine.backend)
                first += 1
        else:
            prompted = map(partial(_prompted, prompt=recipe.prompt), some)
            chunks = text_chunks(prompted, model, recipe.features, tally, first, recipe.max_length)
            for chunk, rows in engine.run(chunks, pooled):
                yield joined(rows, chunk.reads.counts, recipe, engine.backend) if chunk.has_windows else rows
                first += len(chunk.texts)


def _prompted(text: Any, prompt: str) -> str:
    return prompt + _require_text(text) if prompt else text


def iter_tokens(
    texts: Iterable[str], engine: Engine, *, per: Per, features: Features, tally: Tally, first: int = 0
) -> Iterator[TokenVectors]:
    """`encode_tokens` as a stream."""
    require_choice("`per`", per, get_args(Per))
    engine.calls.require_layers(_layers(engine, features))

    def states(batch: Any, chunk: TextChunk, picked: Indices) -> Array:
        return _states(batch, engine, features)

    chunks = text_chunks(texts, engine.model, features, tally, first, has_offsets=True, share=_TOKEN_SHARE)
    for chunk, found in engine.run(chunks, states, one_per_token):
        begin, rows = 0, found[chunk.own] if chunk.has_windows else found
        for text, encoding in zip(chunk.texts, map(Encoding, chunk.reads.encodings), strict=True):
            yield _by_token(text, encoding, rows[begin : begin + len(encoding)], per)
            begin += len(encoding)


def iter_states(texts: Iterable[str], engine: Engine, features: Features, tally: Tally) -> Iterator[PackedStates]:
    """The hidden states of all tokens, special tokens included, as a stream: those of some texts at a time."""
    held: dict[int, list[tuple[Indices, Tensor]]] = {}

    def keep(batch: Batch, chunk: TextChunk, picked: Indices) -> Tensor:
        states: Tensor = _states(batch, engine, features)
        held.setdefault(id(chunk), []).append((picked, states))
        return states.new_empty(len(picked), 0)  # nothing leaves the device

    share = _TOKEN_SHARE if engine.device.type == "cpu" else _DEVICE_SHARE
    for chunk, _ in engine.run(text_chunks(texts, engine.model, features, tally, 0, share=share), keep):
        found = chunk.sequences
        picked, states = zip(*held.pop(id(chunk)), strict=True)
        order = np.concatenate(picked)
        # Where the tokens of each sequence are, in the order in which they were computed.
        begins = np.empty(len(found), np.int64)
        begins[order] = np.cumsum(found.lengths[order]) - found.lengths[order]
        rows = ragged(begins, found.lengths)[chunk.own]
        yield PackedStates(
            chunk.lengths, found.ids[chunk.own], torch.cat(states).index_select(0, on_device(rows, engine.device))
        )


def warn_of_losses(tally: Tally) -> None:
    """Warn if texts were cut, even though the caller asked for it."""
    if tally.cut:
        warnings.warn(str(tally), stacklevel=3)


def text_chunks(
    texts: Iterable[str],
    model: ModelFacts,
    features: Features,
    tally: Tally,
    first: int,
    max_length: int = 0,
    has_offsets: bool = False,
    share: float = 1.0,
) -> Iterator[TextChunk]:
    """Chunks of texts as the model reads them. `share`: of their usual size."""
    require_several(texts)
    reader = text_reader(model, features, tally, max_length, has_offsets)

    def read(some: list[str], before: int) -> TextChunk:
        if set(map(type, some)) != {str}:
            some = list(map(_require_text, some))
        reads = reader(some, before)
        if not reads.sequences.lengths.all():
            number = before + int(np.flatnonzero(reads.tokens.sequences.lengths == 0)[0]) + 1
            raise BothwaysError(
                f"text {number} has no tokens, and this model's tokenizer adds no special tokens", "no-tokens", number
            )
        return TextChunk(some, reads)

    return read_ahead(read, texts, model.device, share, first)


def text_reader(
    model: ModelFacts, features: Features, tally: Tally, max_length: int = 0, has_offsets: bool = False
) -> Reader:
    features.numbers(model.config.encoder.layers)  # a wrong layer is an error before any work
    settings = WindowSettings(max_length, long=features.long)
    reader = Reader(model, settings, long_setting="`long`", has_offsets=has_offsets)
    reader.tally = tally
    return reader


def _require_text(text: Any) -> str:
    if not isinstance(text, str):
        raise not_a_text(text)
    return text


def _layers(engine: Engine, features: Features) -> list[int] | None:
    """The numbers of the layers; None: the table of token embeddings."""
    numbers = features.numbers(engine.model.config.encoder.layers)
    return None if features.layers == STATIC else numbers


def _states(batch: Any, engine: Engine, features: Features) -> Array:
    """The combined hidden states of a batch, (N, W), in fp32."""
    return arrays.to_fp32(features.combined(engine.calls.hidden(batch, _layers(engine, features))))


def _counted(batch: Any, engine: Engine, chunk: TextChunk | WindowChunk, picked: Indices, skipped: int) -> Counted:
    """The tokens that are pooled: of a window those that are its own, and none of the first `skipped` of a text."""
    whole = Counted.whole(batch)
    if not skipped and not chunk.has_windows:
        return whole
    first, stop, shift = (array[picked] for array in chunk.kept)
    lengths = chunk.sequences.lengths[picked]
    starts = np.cumsum(lengths) - lengths
    first = np.maximum(first, skipped - shift)
    counts = stop - first
    counted = (
        ragged(starts + first, counts),
        np.repeat(np.arange(len(picked)), counts),
        counts,
        ragged(first + shift, counts),
        starts + np.where(shift > 0, 0, np.minimum(skipped, lengths - 1)),
    )
    rows, owners, sizes, places, firsts = map(engine.backend.array, counted)
    return Counted(rows, owners, sizes, places, firsts, whole.last)


def _by_token(text: str, encoding: Encoding, states: Vectors, per: Per) -> TokenVectors:
    """Hidden states of all tokens, special tokens included → vectors of the text's tokens or words."""
    inside = [i for i, source in enumerate(encoding.sources) if source is not None]
    words, offsets, pieces = encoding.words, encoding.offsets, encoding.pieces
    if per == "token":
        return TokenVectors([pieces[i] for i in inside], [offsets[i] for i in inside], states[inside])
    members: dict[int, list[int]] = {}
    for i in inside:
        word = words[i]
        assert word is not None  # every token of the text itself is a piece of some word
        members.setdefault(word, []).append(i)
    spans = [(offsets[tokens[0]][0], offsets[tokens[-1]][1]) for tokens in members.values()]
    vectors = np.array([states[tokens].mean(0) for tokens in members.values()], np.float32)
    return TokenVectors([text[start:end] for start, end in spans], spans, vectors.reshape(len(spans), states.shape[1]))
