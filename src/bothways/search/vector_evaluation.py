"""Evaluation of vectors over a folder of sets: STS, retrieval, reranking, clustering, classification."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from bothways.data.notes import Notes
from bothways.data.vector_sets import Kind, VectorSet, find_vector_sets
from bothways.model.device import Device, Precision
from bothways.predict.encode_options import Long
from bothways.predict.roles import RoleEncoder
from bothways.predict.source import AnyModel, open_source
from bothways.progress import Watch, in_notebook
from bothways.scoring.significance import Comparison, compare, interval
from bothways.search.vector_tasks import METRICS, Scored, Setting, score_set

T = TypeVar("T")


@dataclass(frozen=True)
class SetScores:
    """The scores of a model on one evaluation set."""

    name: str
    """The path of the set in the folder."""
    kind: Kind
    metric: str
    """The main score of the kind."""
    scores: dict[str, float]
    interval: tuple[float, float]
    """The 95 % confidence interval of the main score: bootstrap over pairs, queries or texts."""
    counts: dict[str, int]
    """Of pairs, queries, documents, texts, labels."""
    against_scores: dict[str, float] = field(default_factory=dict)
    """Those of the second model, if one was given."""
    against: Comparison | None = None
    """The main score minus that of the second model, by the paired bootstrap."""

    @property
    def score(self) -> float:
        """The main score."""
        return self.scores[self.metric]


@dataclass(frozen=True)
class VectorEvaluation:
    """The scores of a model on all evaluation sets of a folder."""

    sets: list[SetScores]
    means: dict[str, float]
    """By kind: the mean main score of its sets."""
    against_means: dict[str, float]
    """Those of the second model, if one was given."""
    left_out: dict[str, str]
    """By path: why a file is no evaluation set."""
    read: list[str]
    """By model: the numbers of texts and tokens read, and cut."""


def _watch_in_notebook(items: Iterable[T], what: str, files: Sequence[str] = ()) -> Iterable[T]:
    """The items, with their progress shown in a notebook."""
    return in_notebook(items, what)


def evaluate_vectors(
    folder: Path | str,
    model: AnyModel = None,
    against: AnyModel = None,
    *,
    base: Path | str | None = None,
    prompt: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    long: Long = "cut",
    notes: Notes | None = None,
    watch: Watch = _watch_in_notebook,
    device: Device | None = None,
    dtype: Precision | None = None,
) -> VectorEvaluation:
    """Score the embeddings of a model on every evaluation set in a folder. The default model is `sentence`.

    For the kinds of sets see `find_vector_sets`. `against`: a second model, to compare with by a paired bootstrap.
    `base`: the base model, if the first one is an adapter that does not name it.
    Prompts are for both models: `query_prompt` and `document_prompt` for retrieval and reranking, `prompt` for the
    other kinds; the default are those of the model's folder. Long texts are cut, which is reported; for `long`,
    `device` and `dtype` see `encode`.
    """
    sets, left_out = find_vector_sets(folder)
    notes, found, read = notes if notes is not None else Notes(), [], []
    for number, one in enumerate([model] if against is None else [model, against]):
        of = None if number else base
        (source,) = (open_source(some, of, device, dtype) for some in watch([one], "loading the model"))
        encoder = RoleEncoder(
            source,
            prompt=prompt,
            query_prompt=query_prompt,
            document_prompt=document_prompt,
            long=long,
        )
        setting = Setting(encoder, Notes() if number else notes, watch)  # what the files lack is noted once
        found.append([score_set(some, setting) for some in sets])
        read.append(str(encoder.tally))
        if encoder.tally.cut:
            warnings.warn(str(encoder.tally), stacklevel=2)
        del source, encoder, setting  # the first model leaves the memory before the second one is loaded
    resampled = watch(list(zip(sets, *found, strict=True)), "resampling")
    scored = [_scores(one, *mine) for one, *mine in resampled]
    means = [_means(sets, some) for some in found]
    return VectorEvaluation(scored, means[0], means[1] if against is not None else {}, left_out, read)


def _scores(one: VectorSet, first: Scored, second: Scored | None = None) -> SetScores:
    names, mine = METRICS[one.kind], first.accumulator
    found = SetScores(one.name, one.kind, names[0], _chosen(first, names), interval(mine, names[0]), first.counts)
    if second is None:
        return found
    compared = compare(mine, second.accumulator, names[0])
    return replace(found, against_scores=_chosen(second, names), against=compared)


def _chosen(scored: Scored, names: Iterable[str]) -> dict[str, float]:
    every = scored.accumulator.scores()
    return {name: every[name] for name in names}


def _means(sets: Sequence[VectorSet], scored: Sequence[Scored]) -> dict[str, float]:
    """By kind: the mean main score."""
    mains: dict[str, list[float]] = {}
    for one, mine in zip(sets, scored, strict=True):
        mains.setdefault(one.kind, []).append(mine.accumulator.scores()[METRICS[one.kind][0]])
    return {kind: sum(mains[kind]) / len(mains[kind]) for kind in METRICS if kind in mains}
