"""How well do two texts go together? One number from 0 to 1 for a pair: the cross-encoder that reranks.

B sequences.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bothways.data.examples import Text
from bothways.data.labels import as_number
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.ranking import Pairs
from bothways.tasks.folder import task_config
from bothways.tasks.losses import binary_cross_entropy, binary_imitation
from bothways.tasks.reading import Reader
from bothways.tasks.task import Item, Outputs, Sample


class Score:
    """Query and passage, or any other pair."""

    head = "sequence"
    per_token = False
    goal = "spearman"

    def __init__(self, model: Model) -> None:
        self.config, self.labels = task_config(model), model.config.labels
        self.reader = Reader(model, self.config.window, "second")

    def items(self, examples: Sequence[Text]) -> list[Item]:
        for example in examples:
            if len(example.texts) != 2:
                raise BothwaysError(f"{example.where or 'a row'} has one text, and score compares two")
        reads = self.reader([example.texts for example in examples])
        return [Item(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def gold(self, example: Text) -> float:
        """The gold between 0 and 1."""
        low, high = self.config.range
        return (as_number(example) - low) / (high - low)

    def check(self, example: Text) -> None:
        self.gold(example)

    def samples(self, item: Item) -> list[Sample]:
        gold = self.gold(item.example)
        return [Sample.of([view], (gold, 1 / len(item.views))) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        gold, weight = torch.tensor([sample.target for sample in samples]).T
        return {"gold": gold.contiguous(), "weight": weight.contiguous()}, float(weight.sum())

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Mapping[str, Tensor]) -> Tensor:
        return binary_cross_entropy(self.outputs(model, states, batch)[:, 0], targets["gold"], targets["weight"])

    def imitation(self, own: Tensor, taught: Tensor, targets: Mapping[str, Tensor], temperature: float) -> Tensor:
        return binary_imitation(own[:, 0], taught[:, 0], targets["weight"], temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("sequence", states, batch)

    def decide(self, item: Item, outputs: Sequence[Outputs]) -> float:
        """From 0 to 1. A long text is as good as its best window."""
        return float(np.exp(-np.logaddexp(0, -max(float(rows[0]) for rows in outputs) / self.config.temperature)))

    def present(self, item: Item, decision: float, top: int = 1) -> Any:
        return {"label": self.labels[0], "score": decision}

    def judge(self) -> Pairs:
        return Pairs()

    def wrongness(self, item: Item, decision: float) -> float:
        return abs(decision - self.gold(item.example))

    def mark(self, judge: Any, item: Item, decision: float) -> None:
        judge.add_pair(item.example.texts[0], self.gold(item.example), decision)
