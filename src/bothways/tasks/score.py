"""Pair scoring: one number from 0 to 1 for two texts, by a cross-encoder. A reranker is one.

B sequences.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bothways.data.columns import Columns
from bothways.data.examples import Text
from bothways.data.labels import as_kind, as_number
from bothways.data.notes import Notes
from bothways.data.texts import read_texts_labelled
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.ranking import ScoredPairs
from bothways.tasks.classify import as_text
from bothways.tasks.losses import binary_cross_entropy, binary_imitation
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, Task, TaskConfig


@dataclass(frozen=True)
class ScoreOptions:
    """What a folder says of its cross-encoder."""

    range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest number in the training data."""


class PairScoring(Task):
    """Query and passage, or any other pair."""

    name = "score"
    aliases = ("cross-encoder", "reranker", "rerank")
    head = "sequence"
    has_ranking = False
    pair_part = "second"
    metric = "spearman"
    Options = ScoreOptions

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Text]:
        return read_texts_labelled(files, columns, "auto", notes)

    @classmethod
    def parse(cls, given: Any) -> Text:
        return as_text(given, needs_two=True)

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Text], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        numbers = [as_number(example) for example in examples if example.gold is not None]
        options = ScoreOptions((min(0.0, *numbers), max(1.0, *numbers)))
        return TaskConfig(cls.name, window, options=options), ("score",)

    @classmethod
    def normalise(cls, config: TaskConfig, example: Text) -> Text:
        return as_kind(example, "regression")

    def encode(self, examples: Sequence[Text]) -> list[EncodedExample]:
        for example in examples:
            if len(example.texts) != 2:
                raise BothwaysError(f"{example.where or 'a row'} has one text, and score compares two")
        reads = self.reader([example.texts for example in examples])
        return [EncodedExample(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def gold(self, example: Text) -> float:
        """The gold between 0 and 1."""
        low, high = self.options.range
        return float((as_number(example) - low) / (high - low))

    def check(self, example: Text) -> None:
        self.gold(example)

    def samples(self, item: EncodedExample) -> list[Sample]:
        gold = self.gold(item.example)
        return [Sample.of([view], (gold, 1 / len(item.views))) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        gold, weight = torch.tensor([sample.target for sample in samples]).T
        return {"gold": gold.contiguous(), "weight": weight.contiguous()}, float(weight.sum())

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        return binary_cross_entropy(self.outputs(model, states, batch)[:, 0], targets["gold"], targets["weight"])

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        return binary_imitation(own[:, 0], taught[:, 0], targets["weight"], temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("sequence", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> float:
        """From 0 to 1. A long text is as good as its best window."""
        return float(np.exp(-np.logaddexp(0, -max(float(rows[0]) for rows in outputs) / self.config.temperature)))

    def answer(self, item: EncodedExample, decoded: float, top: int = 1) -> Any:
        return {"label": self.labels[0], "score": decoded}

    def new_scores(self) -> ScoredPairs:
        return ScoredPairs()

    def error(self, item: EncodedExample, decoded: float) -> float:
        return abs(decoded - self.gold(item.example))

    def count(self, scores: Any, item: EncodedExample, decoded: float) -> None:
        scores.add_pair(item.example.texts[0], self.gold(item.example), decoded)
