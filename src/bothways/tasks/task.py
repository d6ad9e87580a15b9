"""The contract of a task: from examples to sequences, from states to a loss, from outputs to answers and scores.

No task knows the training loop, and the loop knows no task. N tokens in the batch · B sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.labels import Kind
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.rows import Accumulator
from bothways.tasks.reading import Read, Reader, View, WindowSettings

Outputs = NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """An example as the model reads it."""

    example: Any
    reads: list[Read]
    """One; or, where answers are chosen from, one for each of them."""

    @property
    def views(self) -> list[View]:
        return [view for read in self.reads for view in read.views]


@dataclass(frozen=True, slots=True)
class Sample:
    """What is drawn in training: a sequence with its target, or several that are judged together."""

    ids: list[NDArray[np.int32]]
    segments: list[NDArray[np.uint8]]
    target: Any

    @classmethod
    def of(cls, views: Sequence[View], target: Any) -> "Sample":
        ids = [np.asarray(view.ids, np.int32) for view in views]
        return cls(ids, [np.asarray(view.segments, np.uint8) for view in views], target)

    def __len__(self) -> int:
        return sum(map(len, self.ids))


@dataclass(frozen=True)
class TaskConfig:
    """What a fine-tuned folder says of its task, in config.json under "bothways"."""

    task: str
    kind: Literal["", Kind] = ""
    """For classify: single, multi or regression."""
    window: WindowSettings = field(default_factory=WindowSettings)
    temperature: float = 1.0
    """By which logits are divided, so that probabilities mean what they say."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """For several labels: from which probability on each is given; for answer, "null" is the margin of no answer."""
    longest: int = 30
    """For answer: an answer has at most so many tokens."""
    range: tuple[float, float] = (0.0, 1.0)
    """For score: the lowest and the highest number in the training data."""
    texts: int = 0
    """For classify: how many texts an example has, one or two; 0: it is not known, or both occurred."""


class Task(Protocol):
    """One way to use an encoder."""

    head: str
    """The model's head that it reads."""
    per_token: bool
    """Whether outputs are for each token, or for each sequence."""
    goal: str
    """The score by which models are compared."""
    reader: Reader

    def items(self, examples: Sequence[Any]) -> list[Item]:
        """Examples, encoded."""

    def check(self, example: Any) -> None:
        """Refuse an example on which this model cannot be judged, such as one with a label it does not know."""

    def samples(self, item: Item) -> list[Sample]:
        """What there is to learn from one example."""

    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        """The targets of a batch that holds these samples, and by what the sum of its losses is to be divided."""

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Mapping[str, Tensor]) -> Tensor:
        """The sum of the losses, in fp32."""

    def imitation(self, own: Tensor, taught: Tensor, targets: Mapping[str, Tensor], temperature: float) -> Tensor:
        """How far the outputs are from a teacher's: a sum over what `loss` sums over."""

    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        """(B, …) or (N, …): all that is needed to decide."""

    def decide(self, item: Item, outputs: Sequence[Outputs]) -> Any:
        """What the outputs for an item's views mean, all windows taken together."""

    def present(self, item: Item, decision: Any, top: int = 1) -> Any:
        """A decision in the words of a Hugging Face pipeline; with top > 1, the likeliest so many."""

    def judge(self) -> Accumulator:
        """What decisions are counted in …"""

    def mark(self, judge: Any, item: Item, decision: Any) -> None:
        """… one by one, against the gold."""

    def wrongness(self, item: Item, decision: Any) -> float:
        """How wrong a decision is: the worst errors are looked at first. 0 is perfectly right."""
