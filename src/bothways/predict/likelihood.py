"""Sentence scores by pseudo-log-likelihood, and accuracy on minimal pairs (BLiMP).

M scored positions of all texts.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bothways.data.notes import Notes
from bothways.data.sources import open_json, rows_of
from bothways.engine.chunks import read_ahead
from bothways.engine.engine import Engine
from bothways.engine.sequences import Indices, Sequences, ragged
from bothways.engine.token_ids import TokenIds
from bothways.errors import BothwaysError, name_list
from bothways.model.device import Device, Precision
from bothways.model.facts import ModelFacts
from bothways.model.opened import AnsweringModel
from bothways.predict.places import Places, log_probabilities, places_of
from bothways.progress import in_notebook
from bothways.text.files import require_files

_TOKENS_AT_ONCE = 2**20
"""Masked copies of texts are made in groups of about so many tokens."""


@dataclass(frozen=True)
class MinimalPair:
    """A grammatical sentence and an ungrammatical one that differ as little as possible."""

    good: str
    bad: str
    group: str
    """The phenomenon that they test: BLiMP's UID."""


@dataclass(frozen=True)
class MinimalPairScores:
    """Share of minimal pairs whose good sentence has the higher score."""

    accuracy: float
    """Mean over groups, as in BLiMP."""
    pairs: int
    groups: dict[str, float]


@dataclass(frozen=True)
class _Scored(Places):
    """Places whose log-probabilities are added up by text."""

    owners: Indices
    """(M,) the text of each place."""
    sums: NDArray[np.float64]
    """One for each text of the chunk, which several of these share."""
    is_last: bool
    """Whether the sums are complete with this one."""


def sentence_scores(
    texts: Iterable[str],
    model: AnsweringModel | Path | str | None = None,
    *,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> Iterator[float]:
    """The log-likelihood of each text, in order. Streams in constant memory. The default model is en.

    Masked language models: the pseudo-log-likelihood, each token masked alone (Salazar et al. 2020). Left-to-right
    models: the log-likelihood of every next token. Replaced token detectors: the log-probability that no token is
    replaced. For `device` and `dtype` see `encode`.
    """
    engine = Engine(model, device=device, dtype=dtype)
    return _scores(texts, engine, _places_for(engine.model))


def _scores(texts: Iterable[str], engine: Engine, places: "_PlacesOf") -> Iterator[float]:
    reader = _Sentences(engine.model)
    found = read_ahead(reader, texts, engine.device)
    parts = (part for sentences in found for part in places(sentences))
    for part, values in engine.run(parts, log_probabilities(engine), places_of):
        np.add.at(part.sums, part.owners, values.astype(np.float64))
        if part.is_last:
            yield from part.sums.tolist()


def score_minimal_pairs(
    pairs: Iterable[MinimalPair],
    model: AnsweringModel | Path | str | None = None,
    *,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> MinimalPairScores:
    """How often a model gives the good sentence of a pair a higher score than the bad one."""
    right: dict[str, int] = {}
    count: dict[str, int] = {}
    kept, read = itertools.tee(in_notebook(pairs, "scoring"))
    texts = (text for pair in read for text in (pair.good, pair.bad))
    scores = sentence_scores(texts, model, device=device, dtype=dtype)
    for pair, good, bad in zip(kept, scores, scores, strict=True):
        count[pair.group] = count.get(pair.group, 0) + 1
        right[pair.group] = right.get(pair.group, 0) + (good > bad)
    if not count:
        raise BothwaysError("there are no minimal pairs to score", "no-data")
    groups = {group: right[group] / count[group] for group in count}
    return MinimalPairScores(sum(groups.values()) / len(groups), sum(count.values()), groups)


def read_minimal_pairs(file: Path | str, limit: int = 0) -> Iterator[MinimalPair]:
    """Rows with sentence_good, sentence_bad and UID, as in BLiMP. `limit`: maximum pairs of each UID, 0 for all."""
    seen: dict[str, int] = {}
    path = require_files([Path(file)])[0]
    kind, lines = open_json(path)
    for where, row in rows_of(path, kind, lines, Notes()):
        good, bad = (row.get(f"sentence_{kind}") for kind in ("good", "bad"))
        if not isinstance(good, str) or not isinstance(bad, str):
            raise BothwaysError(
                f"{where} has no sentence_good and sentence_bad: its columns are {name_list(row)}", "no-column", where
            )
        group = str(row.get("UID", "all"))
        seen[group] = seen.get(group, 0) + 1
        if not limit or seen[group] <= limit:
            yield MinimalPair(good, bad, group)


# ---------------------------------------------------------------------- scoring

_PlacesOf = Callable[[Sequences], Iterator[_Scored]]


class _Sentences:
    """Tokenizes texts, and refuses those that are too long."""

    def __init__(self, model: ModelFacts) -> None:
        self.token_ids = TokenIds(model.require_tokenizer(), has_segments=False)
        self.limit = model.config.encoder.max_length

    def __call__(self, texts: list[str], before: int) -> Sequences:
        found = self.token_ids(texts).sequences
        for i in np.flatnonzero(found.lengths > self.limit):
            raise BothwaysError(
                f"{texts[i][:40]!r} … has {found.lengths[i]} tokens and this model reads at most {self.limit}",
                "too-long",
                int(found.lengths[i]),
            )
        return found


def _places_for(model: ModelFacts) -> _PlacesOf:
    """Where and how a text is scored, by the head of the model."""
    tokenizer = model.require_tokenizer()
    around = tokenizer.around
    if "masked" in model.heads and model.config.encoder.causal:
        return _next_tokens
    if "masked" in model.heads:
        if tokenizer.mask is None:
            raise BothwaysError("this model's tokenizer has no mask token, so it cannot score texts", "no-mask-token")
        return partial(_one_by_one, around=around, mask=tokenizer.id(tokenizer.mask))
    if "replaced" in model.heads:
        return partial(_all_at_once, around=around)
    has = ", ".join(model.heads) or "none"
    raise BothwaysError(
        f"this model has no head that scores texts (it has: {has}): expected masked or replaced", "no-head", "masked"
    )


def _one_by_one(texts: Sequences, around: tuple[int, int], mask: int) -> Iterator[_Scored]:
    """A copy of the text for each of its tokens, which is masked in it. `around`: the special tokens on both sides."""
    counts = np.maximum(texts.lengths - sum(around), 0)
    owners, places = np.repeat(np.arange(len(texts)), counts), ragged(np.full(len(texts), around[0]), counts)
    sums = np.zeros(len(texts))
    groups = np.cumsum(texts.lengths[owners]) // _TOKENS_AT_ONCE
    ends = [*np.flatnonzero(np.diff(groups)) + 1, len(owners)]
    for first, last in zip([0, *ends], ends, strict=False):
        own, place = owners[first:last], places[first:last]
        lengths = texts.lengths[own]
        ids = texts.ids[ragged(texts.starts[own], lengths)]
        at = np.cumsum(lengths) - lengths + place
        tokens = ids[at]
        ids[at] = mask
        yield _Scored(Sequences(ids, lengths), np.ones_like(own), place, tokens, own, sums, last == len(owners))


def _next_tokens(texts: Sequences) -> Iterator[_Scored]:
    return _of_whole_texts(texts, 0, texts.lengths - 1, shift=1)


def _all_at_once(texts: Sequences, around: tuple[int, int]) -> Iterator[_Scored]:
    return _of_whole_texts(texts, around[0], texts.lengths - sum(around), shift=0)


def _of_whole_texts(texts: Sequences, first: int, counts: Indices, shift: int) -> Iterator[_Scored]:
    """All texts as they are. A place scores the token that is `shift` further."""
    counts = np.maximum(counts, 0)
    places, owners = ragged(np.full(len(texts), first), counts), np.repeat(np.arange(len(texts)), counts)
    tokens = texts.ids[texts.starts[owners] + places + shift]
    yield _Scored(texts, counts, places, tokens, owners, np.zeros(len(texts)), True)
