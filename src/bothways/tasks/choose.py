"""Which of these answers is right?

B sequences · O options of all examples together · G examples.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.examples import Choice
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.ranking import Right
from bothways.tasks.folder import task_config
from bothways.tasks.losses import grouped_cross_entropy, grouped_imitation
from bothways.tasks.reading import Reader
from bothways.tasks.task import Item, Outputs, Sample


class Choose:
    """SWAG, RACE, DREAM, C3: each answer is read behind the text and the question, and gets one number."""

    head = "choice"
    per_token = False
    goal = "accuracy"

    def __init__(self, model: Model) -> None:
        self.config = task_config(model)
        self.reader = Reader(model, self.config.window)

    def items(self, examples: Sequence[Choice]) -> list[Item]:
        pairs = [_pair(example, option) for example in examples for option in example.options]
        reads = iter(self.reader(pairs))
        return [Item(example, [next(reads) for _ in example.options]) for example in examples]

    def check(self, example: Choice) -> None:
        pass

    def samples(self, item: Item) -> list[Sample]:
        """All options together, for they are weighed against each other."""
        options = [number for number, read in enumerate(item.reads) for _ in read.views]
        return [Sample.of(item.views, (options, item.example.gold))]

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        option: list[int] = []  # of each sequence, counted through the batch
        group: list[int] = []  # of each option
        right: list[int] = []  # of each group
        for number, sample in enumerate(samples):
            options, gold = sample.target
            right.append(len(group) + gold)
            option += [len(group) + o for o in options]
            group += [number] * (max(options) + 1)
        share = 1 / np.bincount(option)[option]
        targets = {"option": option, "group": group, "right": right}
        tensors = {name: torch.tensor(value) for name, value in targets.items()}
        return {**tensors, "share": torch.from_numpy(share.astype(np.float32))}, float(len(samples))

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Mapping[str, Tensor]) -> Tensor:
        options = _options(self.outputs(model, states, batch), targets)
        return grouped_cross_entropy(options, targets["group"], targets["right"])

    def imitation(self, own: Tensor, taught: Tensor, targets: Mapping[str, Tensor], temperature: float) -> Tensor:
        ours, theirs = (_options(outputs, targets) for outputs in (own, taught))
        return grouped_imitation(ours, theirs, targets["group"], len(targets["right"]), temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("choice", states, batch)

    def decide(self, item: Item, outputs: Sequence[Outputs]) -> NDArray[np.float64]:
        """The chance of each option; the windows of a long text are averaged."""
        rows = iter(outputs)
        logits = np.array([np.mean([next(rows) for _ in read.views]) for read in item.reads], np.float64)
        logits /= self.config.temperature
        chances: NDArray[np.float64] = np.exp(logits - np.logaddexp.reduce(logits))
        return chances

    def present(self, item: Item, decision: NDArray[np.float64], top: int = 1) -> Any:
        """{"label": its number, "answer": its text, "score"}."""
        order = np.argsort(-decision, kind="stable")
        options = item.example.options
        found = [{"label": int(i), "answer": options[i], "score": float(decision[i])} for i in order]
        return found[0] if top == 1 else found[:top]

    def judge(self) -> Right:
        return Right()

    def wrongness(self, item: Item, decision: NDArray[np.float64]) -> float:
        return 1 - float(decision[item.example.gold])

    def mark(self, judge: Any, item: Item, decision: NDArray[np.float64]) -> None:
        judge.add([int(decision.argmax()) == item.example.gold])


def _options(outputs: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
    """One number for each option, the mean over its windows: (B, 1) → (O,)."""
    each = outputs[:, 0].float() * targets["share"]
    return each.new_zeros(len(targets["group"])).index_add(0, targets["option"], each)


def _pair(example: Choice, option: str) -> tuple[str, str]:
    """The text first, then the question with its answer; without a text, the question first."""
    if not example.context:
        return example.question, option
    return example.context, f"{example.question} {option}".strip()
