"""Hard negatives for pairs of an anchor and a positive: texts that are similar to the anchor, and no positives of it.

A candidate counts only if its score is below that of the anchor's positives by the margins asked for. It follows that
no margin lets a negative in that is closer to the anchor than a positive (a relative margin of a negative score must
be taken from its absolute value).
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.errors import require_choice, require_range
from bothways.hash_rng import mix, uniform
from bothways.model.device import Device, Precision
from bothways.predict.encode_options import Long
from bothways.predict.given_texts import require_several
from bothways.predict.roles import RoleEncoder
from bothways.predict.source import AnyModel, open_source
from bothways.progress import Watch, watch_nothing
from bothways.search.nearest import Scores, nearest_blocks
from bothways.search.products import BUDGET, Matrix, Rows
from bothways.search.text_vectors import stored_vectors
from bothways.text.frames import not_a_text
from bothways.text.same_text import same_key

Sampling = Literal["top", "random"]
_POOL = 10
"""Candidates for each negative, by default, from which to sample."""


@dataclass(frozen=True)
class NegativeRules:
    """Which candidates may be negatives of an anchor. Scores are cosines."""

    num_negatives: int = 3
    range_min: int = 0
    """Skip the so many most similar candidates: they may be positives that nobody has marked."""
    range_max: int | None = None
    """Take negatives from the so many most similar candidates only. By default `range_min` and `num_negatives`; for
    random sampling `range_min` and ten for each negative."""
    max_score: float | None = None
    min_score: float | None = None
    absolute_margin: float | None = None
    """The score is below that of every positive by so much, or more."""
    relative_margin: float | None = None
    """The score is below that of every positive by this share of its absolute value, or more: 0.05 is 5 %."""
    sampling: Sampling = "top"
    """The most similar candidates, or random ones from the range."""
    seed: int = 0

    def __post_init__(self) -> None:
        require_choice("`sampling`", self.sampling, get_args(Sampling))
        require_range("`num_negatives`", self.num_negatives, self.num_negatives >= 1, "at least 1")
        require_range("`range_min`", self.range_min, self.range_min >= 0, "0 or more")
        for name in ("absolute_margin", "relative_margin"):
            margin = getattr(self, name)
            require_range(f"`{name}`", margin, margin is None or 0 <= margin < float("inf"), "0 or more")
        least = self.range_min + self.num_negatives
        require_range("`range_max`", self.range_max, self.stop >= least, f"at least {least}, to leave room")

    @property
    def stop(self) -> int:
        """The rank after the last candidate."""
        if self.range_max is not None:
            return self.range_max
        return self.range_min + self.num_negatives * (_POOL if self.sampling == "random" else 1)

    def caps(self, positives: Scores) -> Scores:
        """The greatest score of a negative, by the lowest score of the anchor's positives. Never above that score,
        if there is a margin."""
        lowest = positives.astype(np.float64)
        found = np.full(len(lowest), np.inf)
        if self.absolute_margin is not None:
            found = np.minimum(found, lowest - self.absolute_margin)
        if self.relative_margin is not None:
            found = np.minimum(found, lowest - np.abs(lowest) * self.relative_margin)
        if self.max_score is not None:
            found = np.minimum(found, self.max_score)
        rounded = found.astype(np.float32)
        # Rounded downwards: the nearest float32 may be greater.
        return np.where(rounded > found, np.nextafter(rounded, np.float32(-np.inf)), rounded)

    def choose(self, scores: Scores, anchor: int) -> Rows:
        """The places of the negatives among candidates in order of their score; fewer if there are not enough."""
        last = len(scores) if self.min_score is None else int((scores >= np.float32(self.min_score)).sum())
        ranks = np.arange(self.range_min, min(self.stop, last))
        if self.sampling == "random" and len(ranks) > self.num_negatives:
            drawn = uniform(mix(self.seed, anchor, ranks)).argsort(kind="stable")[: self.num_negatives]
            ranks = ranks[np.sort(drawn)]
        return ranks[: self.num_negatives]


@dataclass(frozen=True)
class HardNegatives:
    """A pair with its negatives, the most similar one first."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    scores: tuple[float, ...]
    """The cosine of the anchor with the positive, then with each negative."""

    def row(self) -> dict[str, str]:
        """As a row of a file: anchor, positive, negative_1, negative_2 …"""
        numbered = {f"negative_{i}": text for i, text in enumerate(self.negatives, 1)}
        return {"anchor": self.anchor, "positive": self.positive, **numbered}


def mine_hard_negatives(
    pairs: Iterable[tuple[str, str]],
    model: AnyModel = None,
    *,
    corpus: Iterable[str] = (),
    rules: NegativeRules | None = None,
    long: Long = "error",
    device: Device | None = None,
    dtype: Precision | None = None,
    budget: int = BUDGET,
    watch: Watch = watch_nothing,
) -> list[HardNegatives]:
    """Hard negatives for pairs of an anchor and a positive: one row for each pair that has enough of them.

    Candidates are the positives of all pairs, and the texts of `corpus`. Never a negative: the anchor itself, any
    positive of it, and texts that differ from these only in case, white space or punctuation. An anchor with several
    positives is several pairs; equal pairs and equal candidates count once. `rules` say which candidates are taken. A
    model folder with the prompts "query" and "document" gets them. `budget` bounds the memory in bytes, beside the
    texts. For the rest see `encode`.
    """
    for given in (pairs, corpus):
        require_several(given)
    rules, task = rules or NegativeRules(), _Task.of(pairs, corpus)
    if not task.anchors:
        return []
    encoder = RoleEncoder(open_source(model, None, device, dtype), long=long)
    with ExitStack() as stack:
        documents = stack.enter_context(
            stored_vectors(task.documents, encoder, watch, "encoding candidates", "document")
        )
        anchors = stack.enter_context(stored_vectors(task.anchors, encoder, watch, "encoding anchors", "query"))
        return list(_mined(task, anchors, documents, rules, device, budget, watch))


@dataclass(frozen=True)
class _Task:
    """Distinct anchors, their positives, and the candidates for negatives."""

    anchors: list[str]
    positives: list[list[tuple[str, int]]]
    """Of each anchor: the text, and the number of the document that is the same text."""
    documents: list[str]
    same: list[int]
    """Of each anchor: the number of the document that is the same text, or -1."""

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]], corpus: Iterable[str]) -> "_Task":
        documents: dict[str, tuple[int, str]] = {}

        def number(text: str) -> int:
            if not isinstance(text, str):
                raise not_a_text(text)
            return documents.setdefault(same_key(text), (len(documents), text))[0]

        for text in corpus:
            number(text)
        found: dict[str, dict[str, int]] = {}
        for anchor, positive in pairs:
            if not isinstance(anchor, str):
                raise not_a_text(anchor)
            found.setdefault(anchor, {})[positive] = number(positive)
        same = [documents.get(same_key(anchor), (-1, ""))[0] for anchor in found]
        positives = [list(own.items()) for own in found.values()]
        return cls(list(found), positives, [text for _, text in documents.values()], same)

    def excluded(self, anchor: int) -> list[int]:
        """The documents that are no candidates for an anchor."""
        return [self.same[anchor], *(document for _, document in self.positives[anchor])]


def _mined(
    task: _Task,
    anchors: Matrix,
    documents: Matrix,
    rules: NegativeRules,
    device: Device | None,
    budget: int,
    watch: Watch,
) -> Iterator[HardNegatives]:
    of_positives = list(_positive_scores(task, anchors, documents))
    caps = rules.caps(np.array([scores.min() for scores in of_positives], np.float32))
    depth = rules.stop + 1 + max(map(len, task.positives))
    blocks = nearest_blocks(anchors, documents, depth, at_most=caps, budget=budget, device=device)
    found = ((scores, rows) for block in blocks for scores, rows in zip(*block, strict=True))
    for anchor, (scores, rows) in enumerate(watch(_Counted(found, len(anchors)), "mining")):
        kept = ~np.isin(rows, [*task.excluded(anchor), -1])
        scores, rows = scores[kept], rows[kept]
        chosen = rules.choose(scores, anchor)
        if len(chosen) < rules.num_negatives:
            continue
        negatives = tuple(task.documents[row] for row in rows[chosen])
        for (positive, _), score in zip(task.positives[anchor], of_positives[anchor].tolist(), strict=True):
            yield HardNegatives(task.anchors[anchor], positive, negatives, (score, *scores[chosen].tolist()))


def _positive_scores(task: _Task, anchors: Matrix, documents: Matrix) -> Iterator[NDArray[np.float32]]:
    """The scores of the positives of each anchor, rounded as those of candidates are."""
    for i, own in enumerate(task.positives):
        vectors = np.array(documents[[document for _, document in own]], np.float64)
        yield (vectors * np.array(anchors[i], np.float64)).sum(1).astype(np.float32)


@dataclass(frozen=True)
class _Counted:
    """An iterable whose length is known, for progress."""

    items: Iterable[tuple[Scores, Rows]]
    length: int

    def __iter__(self) -> Iterator[tuple[Scores, Rows]]:
        return iter(self.items)

    def __len__(self) -> int:
        return self.length
