"""Multiple choice: which of several answers is right?

B sequences · O options of all examples together · G examples.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.columns import Columns
from bothways.data.examples import Choice
from bothways.data.multiple_choice import read_choices
from bothways.data.notes import Notes
from bothways.engine.reader import WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.ranking import Accuracy
from bothways.tasks.answer import named_pair
from bothways.tasks.losses import grouped_cross_entropy, grouped_imitation
from bothways.tasks.task import EncodedExample, Outputs, Sample, Targets, Task, TaskConfig


class MultipleChoice(Task):
    """SWAG, RACE, DREAM, C3: each option is read after the text and the question, and gets one number."""

    name = "choose"
    aliases = ("multiple-choice",)
    head = "choice"
    columns = ()
    metric = "accuracy"

    @classmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Choice]:
        cls.refuse_columns(columns)
        return read_choices(files, notes)

    @classmethod
    def parse(cls, given: Any) -> Choice:
        question, options = named_pair(given, ("question", "options"))
        if not isinstance(options, list | tuple) or not options or not all(isinstance(o, str) for o in options):
            raise BothwaysError(
                f"a list of options was expected, each a text, and {options!r} was given", "bad-input", options
            )
        context = given.get("context", "") if isinstance(given, Mapping) else ""
        return Choice(context, question, tuple(options))

    @classmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Choice], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        return TaskConfig(cls.name, window), ()

    def encode(self, examples: Sequence[Choice]) -> list[EncodedExample]:
        pairs = [_pair(example, option) for example in examples for option in example.options]
        reads = iter(self.reader(pairs))
        return [EncodedExample(example, [next(reads) for _ in example.options]) for example in examples]

    def samples(self, item: EncodedExample) -> list[Sample]:
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

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        options = _options(self.outputs(model, states, batch), targets)
        return grouped_cross_entropy(options, targets["group"], targets["right"])

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        ours, theirs = (_options(outputs, targets) for outputs in (own, taught))
        return grouped_imitation(ours, theirs, targets["group"], len(targets["right"]), temperature)

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        return model.logits("choice", states, batch)

    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> NDArray[np.float64]:
        """The chance of each option; the windows of a long text are averaged."""
        rows = iter(outputs)
        logits = np.array([np.mean([next(rows) for _ in read.views]) for read in item.reads], np.float64)
        logits /= self.config.temperature
        chances: NDArray[np.float64] = np.exp(logits - np.logaddexp.reduce(logits))
        return chances

    def answer(self, item: EncodedExample, decoded: NDArray[np.float64], top: int = 1) -> Any:
        """{"label": its number, "answer": its text, "score"}."""
        order = np.argsort(-decoded, kind="stable")
        options = item.example.options
        found = [{"label": int(i), "answer": options[i], "score": float(decoded[i])} for i in order]
        return found[0] if top == 1 else found[:top]

    def new_scores(self) -> Accuracy:
        return Accuracy()

    def error(self, item: EncodedExample, decoded: NDArray[np.float64]) -> float:
        return 1 - float(decoded[item.example.gold])

    def count(self, scores: Any, item: EncodedExample, decoded: NDArray[np.float64]) -> None:
        scores.add([int(decoded.argmax()) == item.example.gold])


def _options(outputs: Tensor, targets: Targets) -> Tensor:
    """One number for each option, the mean over its windows: (B, 1) → (O,)."""
    each = outputs[:, 0].float() * targets["share"]
    return each.new_zeros(len(targets["group"])).index_add(0, targets["option"], each)


def _pair(example: Choice, option: str) -> tuple[str, str]:
    """The text first, then the question with its answer; without a text, the question first."""
    if not example.context:
        return example.question, option
    return example.context, f"{example.question} {option}".strip()
