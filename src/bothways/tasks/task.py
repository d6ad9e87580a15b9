"""The contract of a task: its files, inputs, head, loss, answers, scores, and the checks of its data.

A task is one file and a line in registry.py. It knows neither the training loop nor doctor, nor do these know a task.
N tokens in the batch · B sequences.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bothways.data.findings import DataCounts, Finding, Share
from bothways.data.label_checks import by_count
from bothways.data.notes import Notes
from bothways.engine.reader import Reader, WindowSettings
from bothways.engine.reads import Part
from bothways.errors import BothwaysError
from bothways.lazy import Tensor
from bothways.model.batch import Batch
from bothways.model.facts import ModelFacts
from bothways.progress import Watch
from bothways.ranges import Bounded, Positive
from bothways.scoring.accumulator import Accumulator
from bothways.tasks.encoded import EncodedChunk as EncodedChunk
from bothways.tasks.encoded import EncodedExample as EncodedExample
from bothways.tasks.encoded import Sample as Sample
from bothways.text.columns import Columns
from bothways.text.same_text import is_blank

if TYPE_CHECKING:
    from bothways.model.model import Model

Outputs = NDArray[np.float32]
Targets = Mapping[str, Tensor]


@dataclass(frozen=True)
class Nothing:
    """The settings or options of a task that has none."""


@dataclass(frozen=True)
class TaskConfig(Bounded):
    """The task of a fine-tuned folder, as config.json stores it under "bothways"."""

    task: str
    window: WindowSettings = field(default_factory=WindowSettings)
    temperature: Positive = 1.0
    """Logits are divided by it, to calibrate the probabilities."""
    thresholds: dict[str, float] = field(default_factory=dict)
    """Multi-label: the lowest probability of each label. Answers: "null", the score above which there is none."""
    options: Any = field(default_factory=Nothing)
    """An instance of the task's `Options`."""


@dataclass(frozen=True)
class Reconsidered:
    """How files should be read after all, once their labels are known."""

    settings: Any
    """The task's settings with which they are read."""
    label: str
    """The columns of the label; "" as before."""
    finding: Finding


class Task(ABC):
    """One way to use an encoder. Class methods work on files and examples, instances with a model."""

    name: ClassVar[str]
    title: ClassVar[str]
    """The name that the field uses, as in "text classification"."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names that are accepted."""
    head: ClassVar[str] = ""
    """The model's head that it reads; none if it reads the encoder's states."""
    per_token: ClassVar[bool] = False
    """Whether outputs are per token, not per sequence."""
    needs_offsets: ClassVar[bool] = True
    """Whether it reads the places of tokens in the text; without them, tokenizing is faster."""
    has_ranking: ClassVar[bool] = True
    """Whether it can return several answers, the most probable first."""
    max_texts: ClassVar[int] = 2
    """The number of texts on the command line that can be one input."""
    columns: ClassVar[tuple[str, ...]] = ("text", "pair", "label")
    """The columns of its files that a user can name."""
    pair_part: ClassVar[Part] = "longer"
    """The text of a pair that is read in windows if it is long."""
    epochs: ClassVar[int] = 3
    """Epochs of fine-tuning in BERT's paper."""
    Settings: ClassVar[type] = Nothing
    """A frozen dataclass: the part of a recipe that has the task's name."""
    Options: ClassVar[type] = Nothing
    """A frozen dataclass: what config.json stores for this task only."""
    golds: ClassVar[str] = "labels"
    """What findings call the golds."""
    ambiguous_kinds: ClassVar[tuple[str, ...]] = ()
    """Kinds of data (see `data_kind`) in which equal texts may have different golds: a model learns their average."""
    whole_step: bool = False
    """Whether the loss compares all examples of a step (in-batch negatives): see `step_loss`."""
    metric: str
    """The score by which models are compared."""
    errors_title: str = "Largest errors"
    """What a list of the worst errors is called, by what `error` measures."""
    marked_field: ClassVar[str] = ""
    """The field of an example in which `start` and `end` of its answers are places; none if they have none."""
    has_probabilities: bool = False
    """Whether `decode` gives a probability for each label."""
    list_column: ClassVar[str] = ""
    """What a column of answers that are lists is called in a table, such as entities."""
    marked_title: ClassVar[str] = ""
    """The field that is shown above it, such as the question."""

    def __init__(self, model: ModelFacts, config: TaskConfig, settings: Any = None, train: Sequence[Any] = ()) -> None:
        """Only training uses `settings` and the examples of the training data."""
        self.config, self.options, self.labels = config, config.options, model.config.labels
        self.settings = settings if settings is not None else self.Settings()
        self.reader = Reader(model, config.window, self.pair_part, has_offsets=self.needs_offsets)

    # ------------------------------------------------------------------ files and inputs

    @classmethod
    @abstractmethod
    def read(cls, files: Sequence[str], columns: Columns, notes: Notes, known: Any = None) -> Iterator[Any]:
        """The examples of files, labelled or not. `known`: the task's settings or options, if there are any."""

    @classmethod
    def read_inputs(cls, file: str, columns: Columns, notes: Notes) -> Iterator[Any]:
        """The examples of a file to predict."""
        return cls.read([file], columns, notes)

    @classmethod
    @abstractmethod
    def parse(cls, given: Any) -> Any:
        """An input of the Python API as an example."""

    def known_columns(self, files: Sequence[str], columns: Columns) -> Columns:
        """The columns of files to evaluate, with those that the model knows from its training."""
        return columns

    @classmethod
    def refuse_columns(cls, columns: Columns) -> None:
        """Refuse columns that the user names and this task does not read."""
        for argument in ("text", "pair", "label"):
            named = getattr(columns, argument)
            if named and argument not in cls.columns:
                raise BothwaysError(
                    f"`{argument}` names the column {named!r}, but {cls.name} finds its columns by itself: "
                    f"leave it out",
                    "column-not-read",
                    named,
                )

    # ------------------------------------------------------------------ from data to a model

    @classmethod
    @abstractmethod
    def plan(
        cls, settings: Any, window: WindowSettings, examples: Sequence[Any], max_length: int
    ) -> tuple[TaskConfig, tuple[str, ...]]:
        """The task's config and label names, from the training data."""

    @classmethod
    def assemble(cls, examples: Iterable[Any], settings: Any, is_dev: bool) -> Iterable[Any]:
        """The examples of files as examples to learn from, or to be scored on, where several rows make one."""
        return examples

    @classmethod  # noqa: B027 (optional)
    def prepare(cls, model: "Model", base: "Model", config: TaskConfig) -> None:
        """Add to a new model of `base` what the task needs beside its head."""

    def gather(self, model: "Model", examples: Sequence[Any], device: Any, watch: Watch, seed: int) -> None:  # noqa: B027
        """Before training: get what its steps need beside the examples, such as the vectors of a teacher."""

    @classmethod
    def normalise(cls, config: TaskConfig, example: Any) -> Any:
        """The example with its gold in the form that the task trains on."""
        return example

    @classmethod
    def tuned(cls, config: TaskConfig, scores: Mapping[str, float]) -> TaskConfig:
        """The config with what is tuned on development data, such as a threshold."""
        return config

    def tune(self, scores: Any) -> Any:
        """Tune on the scores of development data, such as thresholds: the scores with these, or None to count again."""
        return scores

    @classmethod
    def hf_config(cls, config: TaskConfig) -> dict[str, Any]:
        """Further keys of config.json, for transformers."""
        return {}

    @classmethod
    def infer(cls, model: ModelFacts) -> TaskConfig | None:
        """The config of a folder that bothways did not write; None if its head is for another task."""
        return TaskConfig(cls.name, options=cls.Options())

    # ------------------------------------------------------------------ training

    @abstractmethod
    def encode(self, examples: Sequence[Any], before: int = 0) -> EncodedChunk:
        """Examples as token sequences. `before`: the number of examples before them, for errors."""

    def check(self, example: Any) -> None:  # noqa: B027 (optional)
        """Refuse an example on which this model cannot be evaluated, such as one with an unknown label."""

    @abstractmethod
    def samples(self, item: EncodedExample) -> list[Sample]:
        """The training samples of one example."""

    def joined(self, samples: Sequence[Sample]) -> tuple[list[Sample], int]:
        """The samples of all examples, with those put together that a loss compares, and the number left out."""
        return list(samples), 0

    @abstractmethod
    def collate(self, samples: Sequence[Sample], batch: Batch) -> tuple[dict[str, Tensor], float]:
        """The targets of a batch of these samples, and the number that the sum of its losses is divided by."""

    def loss(self, model: "Model", states: Tensor, batch: Batch, targets: Targets) -> Tensor:
        """The sum of the losses, in fp32."""
        raise NotImplementedError

    def imitation(self, own: Tensor, taught: Tensor, targets: Targets, temperature: float) -> Tensor:
        """The distillation loss between the outputs and a teacher's, summed as in `loss`."""
        raise NotImplementedError

    def epoch_steps(self, samples: Sequence[Sample], batch: int, seed: ArrayLike) -> Sequence[NDArray[np.int64]] | None:
        """The numbers of the samples of each step of an epoch, all samples once; None: in random order."""
        return None

    def note(self, samples: Sequence[Sample], batch: int) -> str:
        """What a user should know about the steps before they begin."""
        return ""

    def step_targets(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], float]:
        """For `whole_step`: the targets of a step's samples, in order, and what the sum of the losses is divided by."""
        raise NotImplementedError

    def step_loss(self, vectors: Tensor, targets: Targets) -> Tensor:
        """For `whole_step`: the sum of the losses over all vectors (S, …) of a step, in fp32. It has no parameters."""
        raise NotImplementedError

    # ------------------------------------------------------------------ answers

    @abstractmethod
    def outputs(self, model: "Model", states: Tensor, batch: Batch) -> Tensor:
        """(B, …) or (N, …): what `decode` needs; for `whole_step` the vectors."""

    @abstractmethod
    def decode(self, item: EncodedExample, outputs: Sequence[Outputs]) -> Any:
        """The prediction for an example, from the outputs of all its windows."""

    def decode_chunk(self, items: EncodedChunk, outputs: Outputs) -> Iterable[Any]:
        """The predictions for many examples, from the outputs of all their sequences: in order, and lazily."""
        sizes = items.sequences.lengths if self.per_token else np.ones(len(items.sequences), np.int64)
        ends = np.cumsum(sizes).tolist()
        views = iter(zip([0, *ends], ends, strict=False))
        for item, count in zip(items, items.counts.tolist(), strict=True):
            own = [outputs[start:end] for start, end in islice(views, count)]
            yield self.decode(item, own if self.per_token else [rows[0] for rows in own])

    @abstractmethod
    def answer(self, item: EncodedExample, decoded: Any, top: int = 1) -> Any:
        """The prediction in the format of a Hugging Face pipeline; with top > 1 a list, the most probable first."""

    def gold_answer(self, example: Any) -> Any:
        """The gold of an example as an answer, without a score."""
        return example.gold

    @classmethod
    def shown(cls, answer: Any) -> str:
        """An answer as text for a person; "-" if there is none."""
        answers = answer if isinstance(answer, list) else [answer]
        return ", ".join(map(cls.shown_part, answers)) or "-"

    @classmethod
    def shown_part(cls, answer: Mapping[str, Any]) -> str:
        """One of the parts of an answer, as text for a person."""
        name = answer.get("answer", answer.get("label", ""))
        return f"{name} {answer['score']:.3f}" if "score" in answer else ", ".join(map(str, answer.values()))

    @classmethod
    def shown_texts(cls, example: Any) -> Sequence[str]:
        """What is printed beside an answer."""
        return cls.texts_of(example)

    def calibration(self, item: EncodedExample, decoded: Any) -> tuple[NDArray[np.float64], int] | None:
        """Log-probabilities and the number of the gold label, if the task can be calibrated by a temperature."""
        return None

    # ------------------------------------------------------------------ scores

    @abstractmethod
    def new_scores(self) -> Accumulator:
        """An empty accumulator of scores."""

    @abstractmethod
    def count(self, scores: Any, item: EncodedExample, decoded: Any) -> None:
        """Add one prediction, compared with its gold, to the scores."""

    @abstractmethod
    def error(self, item: EncodedExample, decoded: Any) -> float:
        """How wrong a prediction is, to list the worst errors first. 0 is correct."""

    # ------------------------------------------------------------------ checks of labelled data (bothways doctor)

    @classmethod
    def looks_like(cls, path: Path, rows: Sequence[Any]) -> bool:
        """Whether a labelled file seems to be for this task, by its path and its first rows (none in plain text)."""
        return False

    @classmethod
    def texts_of(cls, example: Any) -> Sequence[str]:
        """The texts that identify an example: two examples with equal texts are duplicates."""
        return tuple(example.texts)

    @classmethod
    def texts_read(cls, example: Any) -> Sequence[str]:
        """The texts as the model reads them, repeated if it reads them several times."""
        return cls.texts_of(example)

    @classmethod
    def is_empty(cls, example: Any) -> bool:
        """Whether a text that the task needs is empty."""
        return any(map(is_blank, cls.texts_of(example)))

    @classmethod
    def shared_text(cls, example: Any) -> str | None:
        """The text that several examples may share, such as the context of questions; None if the task has none."""
        return None

    @classmethod
    def gold_key(cls, example: Any) -> str | None:
        """The gold as a string that is equal for equal golds; None without a gold."""
        return None if example.gold is None else str(example.gold)

    @classmethod
    def shown_gold(cls, example: Any) -> str:
        """The gold for a person; "" if it is too long to show."""
        return ""

    @classmethod
    def survey(cls, example: Any, counts: DataCounts) -> None:
        """Count what the methods below need to know about an example."""
        if (key := cls.gold_key(example)) is not None:
            counts.names[key] += 1

    @classmethod
    def reconsider(cls, counts: DataCounts) -> Reconsidered | None:
        """How the files should be read instead, seen from all labels; None: as they were."""
        return None

    @classmethod
    def data_kind(cls, counts: DataCounts) -> str:
        """The kind of the data where the task has several, such as single, multi or regression."""
        return ""

    @classmethod
    def label_counts(cls, counts: DataCounts, kind: str) -> dict[str, int]:
        """How often each label occurs, in the order in which they are shown."""
        return by_count(counts.names)

    @classmethod
    def label_shares(cls, counts: DataCounts, kind: str) -> tuple[Share, ...]:
        """The labels with their share of the labelled rows."""
        total = max(counts.labelled, 1)
        return tuple(Share(name, n, n / total) for name, n in cls.label_counts(counts, kind).items())

    @classmethod
    @abstractmethod
    def exemplars(cls, counts: DataCounts) -> list[Any]:
        """Examples without texts from which `plan` makes the same config as from all training data."""

    @classmethod
    def check_rows(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Faults of single rows, in training and development data."""
        return iter(())

    @classmethod
    def check_labels(cls, counts: DataCounts, kind: str) -> Iterator[Finding]:
        """Faults of the labels of training data, taken together."""
        return iter(())

    @classmethod
    def check_dev(cls, train: DataCounts, dev: DataCounts, kind: str) -> Iterator[Finding]:
        """Development data against training data, such as labels that only one of them has."""
        return iter(())

    def survey_tokens(self, item: EncodedExample, counts: DataCounts) -> None:  # noqa: B027 (optional)
        """Count what `check_tokens` needs to know about an encoded example."""

    def check_tokens(self, counts: DataCounts) -> Iterator[Finding]:
        """Faults that depend on the model's tokenizer."""
        return iter(())
