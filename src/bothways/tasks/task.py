"""The contract of a task: its files, its inputs, its head, its loss, its answers, its scores.

A task is one file, and a line in registry.py. No task knows the training loop, and the loop knows no task.
N tokens in the batch · B sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bothways.data.columns import Columns
from bothways.data.notes import Notes
from bothways.engine.reader import Part, Read, Reader, View, WindowSettings
from bothways.errors import BothwaysError
from bothways.model.batch import Batch
from bothways.model.model import Model
from bothways.scoring.accumulator import Accumulator

Outputs = NDArray[np.float32]
Targets = Mapping[str, Tensor]


@dataclass(frozen=True)
class EncodedExample:
    """An example as the model reads it."""

    example: Any
    reads: list[Read]
    """One; for multiple choice, one for each option."""

    @property
    def views(self) -> list[View]:
        return [view for read in self.reads for view in read.views]


@dataclass(frozen=True, slots=True)
class Sample:
    """What is drawn in training: a sequence with its target, or several that belong together."""

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
class Nothing:
    """The settings, or the options, of a task that has none."""


@dataclass(frozen=True)
class TaskConfig:
    """What a fine-tuned folder says of its task, in config.json under "bothways"."""

    task: str
    window: WindowSettings = field(default_factory=WindowSettings)
    temperature: float = 1.0
    """By which logits are divided, to calibrate the probabilities."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """For several labels: the lowest probability at which each is given; for question answering, "null" is the margin
    of no answer."""
    options: Any = field(default_factory=Nothing)
    """The task's own: an instance of its `Options`."""


class Task(ABC):
    """One way to use an encoder. Class methods work on files and examples, instances with a model."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that the field has for it."""
    head: ClassVar[str]
    """The model's head that it reads."""
    per_token: ClassVar[bool] = False
    """Whether outputs are for each token, or for each sequence."""
    has_ranking: ClassVar[bool] = True
    """Whether it can give several answers, the likeliest first."""
    columns: ClassVar[tuple[str, ...]] = ("text", "pair", "label")
    """The columns of its files that a user can name."""
    pair_part: ClassVar[Part] = "longer"
    """Of a pair of texts, the one that windows go over."""
    epochs: ClassVar[int] = 3
    """As BERT's paper fine-tuned for it."""
    Settings: ClassVar[type] = Nothing
    """A dataclass: the part of a recipe that is called as the task."""
    Options: ClassVar[type] = Nothing
    """A dataclass: what a folder says of this task alone."""
    whole_step: ClassVar[bool] = False
    """Whether its loss is over the vectors of all examples of a step (in-batch negatives): see `step_loss`."""
    metric: str
    """The score by which models are compared."""

    def __init__(self, model: Model, config: TaskConfig, settings: Any = None, golds: Sequence[Any] = ()) -> None:
        """`settings` and the golds of the training data matter to training only."""
        self.config, self.options, self.labels = config, config.options, model.config.labels
        self.settings = settings if settings is not None else self.Settings()
        self.reader = Reader(model, config.window, self.pair_part)

    # ------------------------------------------------------------------ files and inputs

    @classmethod
    @abstractmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Any]:
        """The examples of files, labelled or not. `known`: the task's settings or options, where there are some."""

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Any]:
        """The examples of a file that is to be answered."""
        return cls.read([file], columns, notes)

    @classmethod
    @abstractmethod
    def parse(cls, given: Any) -> Any:
        """One input as a user gives it in Python, as an example."""

    @classmethod
    def refuse_columns(cls, columns: Columns) -> None:
        """Refuse columns that a user has named and this task does not read."""
        for argument in ("text", "pair", "label"):
            named = getattr(columns, argument)
            if named and argument not in cls.columns:
                raise BothwaysError(
                    f"`{argument}` names the column {named!r}, and the task {cls.name} finds its columns by their own "
                    f"names: leave it out",
                    "column-not-read",
                    named,
                )

    # ------------------------------------------------------------------ from data to a model

    @classmethod
    @abstractmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Any], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        """The task's config and the names of its labels, as the training data show them."""

    @classmethod
    def normalise(cls, config: TaskConfig, example: Any) -> Any:
        """The example with its gold in the task's form."""
        return example

    @classmethod
    def tuned(cls, config: TaskConfig, scores: Mapping[str, float]) -> TaskConfig:
        """The config with what the scores on development data decide, such as a threshold."""
        return config

    @classmethod
    def hf_config(cls, config: TaskConfig) -> dict[str, Any]:
        """What else config.json shall say, for those who read the folder with transformers."""
        return {}

    @classmethod
    def infer(cls, model: Model) -> TaskConfig:
        """The config of a folder that others made."""
        return TaskConfig(cls.name, options=cls.Options())

    # ------------------------------------------------------------------ training

    @abstractmethod
    def encode(self, examples: Sequence[Any]) -> list[EncodedExample]:
        """Examples as token sequences."""

    def check(self, example: Any) -> None:
        """Refuse an example on which this model cannot be evaluated, such as one with a label it does not know."""

    @abstractmethod
    def samples(self, item: EncodedExample) -> list[Sample]:
        """What there is to learn from one example."""

    @abstractmethod
    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        """The targets of a batch that holds these samples, and by what the sum of its losses is to be divided."""

    def loss(self, model: Model, states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        """The sum of the losses, in fp32."""
        raise NotImplementedError

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        """The distance between the outputs and a teacher's: a sum over what `loss` sums over."""
        raise NotImplementedError

    def step_targets(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        """For `whole_step`: the targets of all samples of a step, whose sequences come in this order, and by what the
        sum of the losses is to be divided."""
        raise NotImplementedError

    def step_loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        """For `whole_step`: the sum of the losses over all vectors (S, …) of a step, in fp32. It has no parameters."""
        raise NotImplementedError

    # ------------------------------------------------------------------ answers

    @abstractmethod
    def outputs(self, model: Model, states: Tensor, batch: Batch) -> Tensor:
        """(B, …) or (N, …): all that is needed to decode; for `whole_step` the vectors."""

    @abstractmethod
    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Any:
        """What the outputs for an item's views mean, all windows taken together."""

    @abstractmethod
    def answer(self, item: EncodedExample, decoded: Any, top: int = 1) -> Any:
        """The answer in the format of a Hugging Face pipeline; with top > 1, that many, the likeliest first."""

    # ------------------------------------------------------------------ scores

    @abstractmethod
    def new_scores(self) -> Accumulator:
        """What decoded outputs are counted in …"""

    @abstractmethod
    def count(self, scores: Any, item: EncodedExample, decoded: Any) -> None:
        """… one by one, against the gold."""

    @abstractmethod
    def error(self, item: EncodedExample, decoded: Any) -> float:
        """How wrong an answer is: the worst errors are shown first. 0 is right."""
