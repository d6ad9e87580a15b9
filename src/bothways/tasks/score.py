"""Pair scoring with a cross-encoder, such as a reranker: one number, usually from 0 to 1, for two texts.

B sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np

from bothways.data.examples import Text
from bothways.data.findings import DataCounts, Finding
from bothways.data.labels import as_kind, as_number
from bothways.data.notes import Notes
from bothways.data.ranked import read_ranked
from bothways.engine.reader import WindowSettings
from bothways.engine.sequences import Indices
from bothways.errors import BothwaysError, require_choice
from bothways.lazy import Tensor, torch
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.ranges import Bounded, Range
from bothways.scoring.ranking import ScoredPairs
from bothways.tasks.losses import binary_cross_entropy, binary_imitation, grouped_imitation
from bothways.tasks.ranking_losses import OVER_PAIRS, RANKING_LOSSES, preferred
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, TaskConfig
from bothways.tasks.text_task import NUMBER, TextTask, as_text, named_activation, not_numbers, number_finding
from bothways.text.columns import Columns

if TYPE_CHECKING:
    from bothways.model.model import Model

_ACTIVATIONS: dict[str, Literal["sigmoid", "identity"]] = {"Sigmoid": "sigmoid", "Identity": "identity"}


@dataclass(frozen=True)
class ScoreSettings:
    """The `[score]` part of a recipe."""

    loss: Literal["binary_cross_entropy", "softmax", "listnet", "ranknet", "lambda"] = "binary_cross_entropy"
    """Each pair by itself; or all documents of a query together: listwise by softmax, ListNet or LambdaLoss, pairwise
    by RankNet."""

    def __post_init__(self) -> None:
        require_choice("score.loss", self.loss, ("binary_cross_entropy", *RANKING_LOSSES))


@dataclass(frozen=True)
class _Listed:
    """The target of a sample for a loss that compares the documents of a query."""

    query: str
    golds: tuple[float, ...]
    """Of each document, as in the data."""
    windows: tuple[int, ...]
    """Sequences of each document."""


@dataclass(frozen=True)
class ScoreOptions(Bounded):
    """What config.json stores for a cross-encoder."""

    section = "bothways"

    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and highest number in the training data, at least 0 and 1."""
    texts: Annotated[int, Range(0, 2)] = 2
    """Texts per example; 0: one or two, in folders of other libraries."""
    activation: Literal["sigmoid", "identity"] = "sigmoid"
    """What turns the logit into the score. We train with a sigmoid; identity is that of other libraries' folders."""


class PairScoring(TextTask):
    """Query and passage, or any other pair."""

    name = "score"
    title = "cross-encoder, reranker"
    aliases = ("cross-encoder", "reranker", "rerank")
    has_ranking = False
    pair_part = "second"
    metric = "spearman"
    Settings = ScoreSettings
    Options = ScoreOptions

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Text]:
        return read_ranked(files, columns, notes)

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Text]:
        return read_ranked([file], replace(columns, reads_label=False), notes)

    @classmethod
    def parse(cls, given: Any) -> Text:
        return as_text(given)

    def __init__(self, model: ModelFacts, config: TaskConfig, settings: Any = None, train: Sequence[Any] = ()) -> None:
        super().__init__(model, config, settings)
        self.texts_wanted = self.options.texts
        self.ranking_loss = RANKING_LOSSES.get(self.settings.loss)
        if self.ranking_loss is not None:  # scores are then comparable within a query only
            self.metric = "ndcg@10"

    @classmethod
    def infer(cls, model: ModelFacts) -> TaskConfig | None:
        """The activation is sentence-transformers' for a cross-encoder: a sigmoid, or what config.json names."""
        if len(model.config.labels) != 1:
            return None
        named = named_activation(model.config.hf_config) or "torch.nn.Sigmoid"
        found = _ACTIVATIONS.get(named.rpartition(".")[2]) if named.startswith("torch.nn.") else None
        if found is None:
            raise BothwaysError(
                f"the folder names the activation_fn {named} for the score: expected torch's Sigmoid or Identity",
                "unknown-activation",
                named,
            )
        return TaskConfig(cls.name, options=ScoreOptions(texts=0, activation=found))

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Text], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        numbers = [as_number(example) for example in examples if example.gold is not None]
        options = ScoreOptions((min(0.0, *numbers), max(1.0, *numbers)))
        return TaskConfig(cls.name, window, options=options), NUMBER

    @classmethod
    def normalise(cls, config: TaskConfig, example: Text) -> Text:
        return as_kind(example, "regression")

    def gold(self, example: Text) -> float:
        """The gold, scaled to 0 to 1."""
        low, high = self.options.range
        return float((as_number(example) - low) / (high - low))

    def samples(self, item: EncodedExample) -> list[Sample]:
        if self.ranking_loss is None:
            return super().samples(item)
        views, gold = item.views, as_number(item.example)
        return [Sample.of(views, _Listed(item.example.texts[0], (gold,), (len(views),)))]

    def joined(self, samples: Sequence[Sample]) -> tuple[list[Sample], int]:
        """All documents of a query in one sample. Those of a query without a preference between them are left out."""
        if self.ranking_loss is None:
            return super().joined(samples)
        lists: dict[str, list[Sample]] = {}
        for sample in samples:
            lists.setdefault(sample.target.query, []).append(sample)
        kept = [_list_of(some) for some in lists.values() if len({one.target.golds for one in some}) > 1]
        if not kept:
            raise BothwaysError(
                f"score.loss is {self.settings.loss!r}, which compares the documents of a query, and no query has two "
                "with different labels",
                "no-lists",
                self.settings.loss,
            )
        return kept, len(samples) - sum(len(one.target.golds) for one in kept)

    def _collate_lists(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        """The document of each sequence, the place of each document in (Q, L), and the golds there; NaN is padding."""
        sizes = [len(sample.target.golds) for sample in samples]
        gold = torch.full((len(samples), max(sizes)), torch.nan)
        for number, sample in enumerate(samples):
            gold[number, : sizes[number]] = torch.tensor(sample.target.golds)
        windows = torch.tensor([count for sample in samples for count in sample.target.windows])
        targets = {
            "document": torch.arange(len(windows)).repeat_interleave(windows),
            "place": (~gold.isnan()).flatten().nonzero()[:, 0],
            "gold": gold,
        }
        pairs = float(preferred(gold, ~gold.isnan()).sum())
        return targets, max(pairs, 1.0) if self.settings.loss in OVER_PAIRS else float(len(samples))

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        if self.ranking_loss is not None:
            return self._collate_lists(samples)
        gold, weight = torch.tensor([sample.target for sample in samples]).T
        return {"gold": gold.contiguous(), "weight": weight.contiguous()}, float(weight.sum())

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        logits = self.outputs(model, states, batch)[:, 0]
        if self.ranking_loss is None:
            return binary_cross_entropy(logits, targets["gold"], targets["weight"])
        gold, place = targets["gold"], targets["place"]
        scores = torch.zeros(gold.numel(), device=gold.device).scatter(0, place, _best(logits, targets))
        return self.ranking_loss(scores.view_as(gold), gold, ~gold.isnan())

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        if self.ranking_loss is not None:
            ours, theirs = (_best(x[:, 0], targets) for x in (own, taught))
            queries, longest = targets["gold"].shape
            return grouped_imitation(ours, theirs, targets["place"] // longest, queries, temperature)
        return binary_imitation(own[:, 0], taught[:, 0], targets["weight"], temperature)

    def predictions(self, outputs: Outputs, counts: Indices) -> list[float]:
        """From 0 to 1, unless the activation is the identity. A long text gets the score of its best window."""
        logits = np.maximum.reduceat(outputs[:, 0].astype(np.float64), np.cumsum(counts) - counts)
        if self.options.activation == "identity":
            return [float(logit) for logit in logits]
        scores: list[float] = np.exp(-np.logaddexp(0, -logits / self.config.temperature)).tolist()
        return scores

    def answer(self, item: EncodedExample, decoded: float, top: int = 1) -> Any:
        return {"label": self.labels[0], "score": decoded}

    def new_scores(self) -> ScoredPairs:
        return ScoredPairs()

    def error(self, item: EncodedExample, decoded: float) -> float:
        return abs(decoded - self.gold(item.example))

    def count(self, scores: Any, item: EncodedExample, decoded: float) -> None:
        scores.add_pair(item.example.texts[0], self.gold(item.example), decoded)

    # ------------------------------------------------------------------ checks of labelled data

    @classmethod
    def survey(cls, example: Text, counts: DataCounts) -> None:
        super().survey(example, counts)
        if len(example.texts) < 2:
            counts.fault("pairs", example.where)

    @classmethod
    def data_kind(cls, counts: DataCounts) -> str:
        return "regression" if counts.golds and not not_numbers(counts) else super().data_kind(counts)

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        do = "Name the column of the second text with `pair`, or the task classify with `task`."
        yield from counts.rows_with("pairs", "error", "only one text", do)
        if odd := not_numbers(counts):
            yield number_finding(counts, odd)


def _list_of(samples: Sequence[Sample]) -> Sample:
    """The documents of one query as one sample."""
    golds, windows = ([part for one in samples for part in getattr(one.target, name)] for name in ("golds", "windows"))
    return Sample(
        [ids for one in samples for ids in one.ids],
        [segments for one in samples for segments in one.segments],
        _Listed(samples[0].target.query, tuple(golds), tuple(windows)),
    )


def _best(logits: Tensor, targets: Targets) -> Tensor:
    """The score of each document: that of its best window, as in predictions."""
    lowest = logits.new_full(targets["place"].shape, float("-inf"), dtype=torch.float32)
    return lowest.scatter_reduce(0, targets["document"], logits.float(), "amax")
