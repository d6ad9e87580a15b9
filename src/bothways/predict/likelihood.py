"""Sentence scores by pseudo-log-likelihood, and accuracy on minimal pairs (BLiMP).

M scored positions of a batch.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from bothways.data.notes import Notes
from bothways.data.sources import open_json, rows_of
from bothways.engine.engine import Engine
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.load import load
from bothways.model.model import Model
from bothways.text.files import require_files
from bothways.text.tokenizer import Encoding

_AT_ONCE = 512


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
class _Job:
    """A sequence to run, and the positions and tokens to score in it."""

    text: int
    ids: list[int]
    places: list[int]
    tokens: list[int]

    @property
    def segments(self) -> list[int]:
        return [0] * len(self.ids)


def sentence_scores(texts: Iterable[str], model: Model | Path | str | None = None) -> Iterator[float]:
    """The log-likelihood of each text, in order. Streams in constant memory. The default model is the one in the box.

    Masked language models: the pseudo-log-likelihood, each token masked alone (Salazar et al. 2020). Left-to-right
    models: the log-likelihood of every next token. Replaced token detectors: the log-probability that no token is
    replaced.
    """
    model = model if isinstance(model, Model) else load(model)
    tokenizer, jobs_of, engine = model.require_tokenizer(), _jobs_for(model), Engine(model)
    stream = iter(texts)
    while some := list(itertools.islice(stream, _AT_ONCE)):
        encodings = tokenizer.batch(some)
        for text, encoding in zip(some, encodings, strict=True):
            if len(encoding) > model.config.encoder.max_length:
                raise BothwaysError(
                    f"{text[:40]!r} … has {len(encoding)} tokens and this model reads at most "
                    f"{model.config.encoder.max_length}",
                    "too-long",
                    len(encoding),
                )
        jobs = [job for number, encoding in enumerate(encodings) for job in jobs_of(number, encoding)]
        sums = [0.0] * len(some)
        for job, value in zip(jobs, engine.run(jobs, partial(_sums, model)), strict=True):
            sums[job.text] += value
        yield from sums


def score_minimal_pairs(pairs: Iterable[MinimalPair], model: Model | Path | str | None = None) -> MinimalPairScores:
    """How often a model gives the good sentence of a pair a higher score than the bad one."""
    right: dict[str, int] = {}
    count: dict[str, int] = {}
    kept, read = itertools.tee(pairs)
    scores = sentence_scores((text for pair in read for text in (pair.good, pair.bad)), model)
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
                f"{where} has no sentence_good and sentence_bad: its columns are {', '.join(row)}", "no-column", where
            )
        group = str(row.get("UID", "all"))
        seen[group] = seen.get(group, 0) + 1
        if not limit or seen[group] <= limit:
            yield MinimalPair(good, bad, group)


# ---------------------------------------------------------------------- scoring


def _jobs_for(model: Model) -> Callable[[int, Encoding], Iterator[_Job]]:
    """How a text becomes jobs, by the head of the model."""
    if "masked" in model.heads and model.config.encoder.causal:
        return _next_tokens
    if "masked" in model.heads:
        tokenizer = model.require_tokenizer()
        if tokenizer.mask is None:
            raise BothwaysError("this model's tokenizer has no mask token, so it cannot score texts", "no-mask-token")
        return partial(_one_by_one, mask=tokenizer.id(tokenizer.mask))
    if "replaced" in model.heads:
        return _all_at_once
    has = ", ".join(model.heads) or "none"
    raise BothwaysError(
        f"this model has no head that scores texts (it has: {has}): expected masked or replaced", "no-head", "masked"
    )


def _one_by_one(text: int, encoding: Encoding, mask: int) -> Iterator[_Job]:
    for place in _inside(encoding):
        ids = list(encoding.ids)
        ids[place] = mask
        yield _Job(text, ids, [place], [encoding.ids[place]])


def _next_tokens(text: int, encoding: Encoding) -> Iterator[_Job]:
    yield _Job(text, encoding.ids, list(range(len(encoding) - 1)), encoding.ids[1:])


def _all_at_once(text: int, encoding: Encoding) -> Iterator[_Job]:
    places = _inside(encoding)
    yield _Job(text, encoding.ids, places, [encoding.ids[place] for place in places])


def _inside(encoding: Encoding) -> list[int]:
    return [place for place, source in enumerate(encoding.sources) if source is not None]


def _sums(model: Model, batch: Batch, jobs: Sequence[_Job]) -> list[float]:
    """For each job, the sum of the log-probabilities at its positions."""
    at = torch.tensor([start + p for start, job in zip(batch.first.tolist(), jobs, strict=True) for p in job.places])
    tokens = torch.tensor([token for job in jobs for token in job.tokens])
    each = _log_probabilities(model, batch, at.to(model.device), tokens.to(model.device)).double().cpu()
    return [float(part.sum()) for part in each.split([len(job.places) for job in jobs])]


def _log_probabilities(model: Model, batch: Batch, at: Tensor, tokens: Tensor) -> Tensor:
    """(M,) log-probability of each token: as the prediction, or as not replaced."""
    states = model.encoder(batch)
    if "masked" not in model.heads:
        return F.logsigmoid(-model.logits("replaced", states, batch)[at, 0].float())
    logs = model.masked(states[at]).float().log_softmax(-1)
    return logs.gather(1, tokens[:, None])[:, 0]
