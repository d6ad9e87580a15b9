"""Which label, which labels, or how much: of one text or of a pair.

B sequences · C labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.examples import Text
from bothways.data.labels import as_number
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.checkpoint import nameless
from bothways.model.distill import soft_distance
from bothways.model.model import Model
from bothways.scoring.classification import Classes
from bothways.scoring.many_labels import ManyLabels
from bothways.scoring.regression import Numbers
from bothways.tasks.folder import task_config
from bothways.tasks.losses import binary_cross_entropy, binary_imitation, cross_entropy
from bothways.tasks.reading import Reader
from bothways.tasks.task import Item, Outputs, Sample

Kind = Literal["auto", "single", "multi", "regression"]


@dataclass(frozen=True)
class ClassifySettings:
    """The `[classify]` part of a recipe."""

    kind: Kind = "auto"
    """One label each, several, or a number; auto: as the data look."""
    smoothing: float = 0.0
    """So much of the gold is spread over all labels."""
    focal: float = 0.0
    """Rows that are right with probability p count (1 - p) to this power."""
    weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """How much each label counts; balanced: as many rows of each would."""
    goal: str = ""
    """The score by which the best model is chosen, such as matthews or macro_f1, if not the usual one."""

    def __post_init__(self) -> None:
        if not 0 <= self.smoothing < 1 or self.focal < 0:
            raise BothwaysError("classify.smoothing is a number from 0 up to 1, and classify.focal is 0 or more")


class Classify:
    """Sentiment, topics, inference, paraphrase, similarity."""

    head = "sequence"
    per_token = False

    def __init__(self, model: Model, settings: ClassifySettings | None = None, golds: Sequence[Any] = ()) -> None:
        """`golds` are those of the training data, for balanced weights."""
        self.config, self.labels = task_config(model), model.config.labels
        self.settings = settings or ClassifySettings()
        self.reader = Reader(model, self.config.window)
        self.number = {name: i for i, name in enumerate(self.labels)}
        if self.labels == nameless(len(self.labels)):  # the data then have numbers
            self.number |= {str(i): i for i in range(len(self.labels))}
        self.weights = self._weights(golds)
        usual = {"single": "accuracy", "multi": "micro_f1", "regression": "spearman"}[self.config.kind]
        self.goal = self.settings.goal or usual
        if self.goal not in (known := self.judge().scores()):
            raise BothwaysError(f"classify.goal cannot be {self.goal!r}: expected {', '.join(known)}")

    def _weights(self, golds: Sequence[Any]) -> NDArray[np.float32]:
        wanted = self.settings.weights
        if wanted == "none":
            return np.ones(len(self.labels), np.float32)
        if isinstance(wanted, dict):
            if unknown := set(wanted) - set(self.labels):
                raise BothwaysError(
                    f"classify.weights names {', '.join(sorted(unknown))}, which no row is labelled with"
                )
            return np.array([wanted.get(name, 1.0) for name in self.labels], np.float32)
        counts = np.zeros(len(self.labels))
        for gold in golds:
            for name in gold if isinstance(gold, tuple) else (gold,):
                counts[self.number[name]] += 1
        return np.asarray(counts.mean() / np.maximum(counts, 1), np.float32)

    # ------------------------------------------------------------------ in

    def items(self, examples: Sequence[Text]) -> list[Item]:
        for example in examples:
            if self.config.texts and len(example.texts) != self.config.texts:
                has, wants = ("one text", "pairs") if self.config.texts == 2 else ("two texts", "single texts")
                raise BothwaysError(f"{example.where or 'an input'} has {has}, and this model reads {wants}")
        reads = self.reader([example.texts for example in examples])
        return [Item(example, [read]) for example, read in zip(examples, reads, strict=True)]

    def gold(self, example: Text) -> Any:
        """The gold in numbers."""
        if self.config.kind == "regression":
            return as_number(example)
        names = example.gold if isinstance(example.gold, tuple) else (example.gold,)
        if unknown := [name for name in names if name not in self.number]:
            raise BothwaysError(
                f"{example.where} has the label {unknown[0]!r}, and this model knows {', '.join(self.labels)}"
            )
        numbers = [self.number[str(name)] for name in names]
        return numbers[0] if self.config.kind == "single" else np.isin(np.arange(len(self.labels)), numbers)

    def check(self, example: Text) -> None:
        self.gold(example)

    def samples(self, item: Item) -> list[Sample]:
        """Every window of a long text, all together counting as one."""
        gold = self.gold(item.example)
        return [Sample.of([view], (gold, 1 / len(item.views))) for view in item.views]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        golds, shares = zip(*(sample.target for sample in samples), strict=True)
        share = np.array(shares, np.float32)
        if self.config.kind == "single":
            gold = torch.tensor(golds)
            weight = share * self.weights[gold.numpy()]
            return {"gold": gold, "weight": torch.from_numpy(weight)}, float(weight.sum())
        gold = torch.from_numpy(np.array(golds, np.float32))
        return {"gold": gold, "weight": torch.from_numpy(share)}, float(share.sum())

    # ------------------------------------------------------------------ out

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Mapping[str, Tensor]) -> Tensor:
        logits, gold, weight = self.outputs(model, states, batch), targets["gold"], targets["weight"]
        if self.config.kind == "single":
            return cross_entropy(logits, gold, weight, self.settings.smoothing, self.settings.focal)
        if self.config.kind == "regression":
            return ((logits[:, 0].float() - gold) ** 2 * weight).sum()
        smooth = self.settings.smoothing
        each = torch.as_tensor(self.weights, device=gold.device) * gold + (1 - gold)
        gold = gold * (1 - smooth) + smooth / 2
        return binary_cross_entropy(logits, gold, each * weight[:, None] / len(self.labels), self.settings.focal)

    def imitation(self, own: Tensor, taught: Tensor, targets: Mapping[str, Tensor], temperature: float) -> Tensor:
        weight = targets["weight"]
        if self.config.kind == "single":
            return (soft_distance(own, taught, temperature) * weight).sum()
        if self.config.kind == "regression":
            return ((own[:, 0].float() - taught[:, 0].float()) ** 2 * weight).sum()
        return binary_imitation(own, taught, weight[:, None] / len(self.labels), temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("sequence", states, batch)

    def decide(self, item: Item, outputs: Sequence[Outputs]) -> NDArray[np.float64]:
        """(C,) probabilities, or the number itself. The windows of a long text are averaged."""
        logits: NDArray[np.float64] = np.mean(np.asarray(outputs, np.float64), 0)
        if self.config.kind == "regression":
            return logits
        logits /= self.config.temperature
        # One label: the chances of all add up to 1. Several: each label against its absence.
        against = np.logaddexp.reduce(logits) if self.config.kind == "single" else np.logaddexp(logits, 0)
        chances: NDArray[np.float64] = np.exp(logits - against)
        return chances

    def present(self, item: Item, decision: NDArray[np.float64], top: int = 1) -> Any:
        """{"label", "score"}; of several labels, and with top > 1, a list of them, the likeliest first."""
        order = np.argsort(-decision, kind="stable")
        found = [{"label": self.labels[i], "score": float(decision[i])} for i in order]
        if self.config.kind == "multi" and top == 1:
            return [one for one in found if one["score"] >= self.threshold(str(one["label"]))]
        return found[0] if top == 1 else found[:top]

    def threshold(self, label: str) -> float:
        return self.config.thresholds.get(label, 0.5)

    def judge(self) -> Classes | ManyLabels | Numbers:
        if self.config.kind == "regression":
            return Numbers()
        if self.config.kind == "single":
            return Classes(self.labels)
        return ManyLabels(self.labels, [self.threshold(label) for label in self.labels])

    def wrongness(self, item: Item, decision: NDArray[np.float64]) -> float:
        gold = self.gold(item.example)
        if self.config.kind == "single":
            return 1 - float(decision[gold])
        return float(np.abs(decision - gold).max())

    def mark(self, judge: Any, item: Item, decision: NDArray[np.float64]) -> None:
        gold = self.gold(item.example)
        judge.add([gold], decision if self.config.kind == "regression" else [decision])
